"""Plain text and fences: hidden characters removed, stored text shown as data."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_OPENERS: Final = (
    "<\u02c2\u1438\u16b2\u2039\u227a\u2329\u276c\u276e\u2770\u27e8\u2991\u29fc\u3008\ufe64\uff1c\U0001d236"
)
"""`<`, and what a reader takes for it."""
_SLASHES: Final = frozenset("/\\\u1735\u2044\u2215\u2216\u2571\u2572\u27cb\u29f8\u29f9\u2cc6\u3033\ufe68\uff0f\uff3c")
_OPENER: Final = re.compile(f"[{_OPENERS}]")
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Mn", "Me"})
"""Categories of characters that change nothing about which letter is read: controls, formats, marks."""
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters without a shape."""
_ALIKE: Final = str.maketrans(
    {
        char: letter
        for letter, chars in {
            "a": "\u0430\u03b1\u1d00", "c": "\u0441\u1d04", "d": "\u0501\u1d05", "e": "\u0435\u1d07",
            "g": "\u0261\u0262", "h": "\u04bb\u029c", "i": "\u0131\u0456\u03b9\u026a", "j": "\u0458\u1d0a",
            "k": "\u043a\u03ba\u1d0b", "l": "\u04cf\u029f|", "m": "\u043c\u1d0d", "n": "\u0578\u0274",
            "o": "\u043e\u03bf\u0585\u1d0f", "p": "\u0440\u03c1\u1d18", "r": "\u0433\u0280", "s": "\u0455\ua731",
            "t": "\u0442\u03c4\u1d1b", "u": "\u03c5\u057d\u1d1c", "x": "\u0445", "y": "\u0443\u03b3\u028f",
            "-": "\u2010\u2012\u2013\u2014\u2212",
        }.items()
        for char in chars
    }
)  # fmt: skip
"""Letters of other scripts that look like Latin ones."""
_ROLE: Final = re.compile(
    r"<(?=\|[\w.:/-]{1,40}\|>|\uff5c[^<>\n\uff5c]{1,40}\uff5c>|(?:start|end)_of_turn>|</?SYS>>|/?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\])",
    re.IGNORECASE,
)
"""What chat templates write between turns: a server that reads it in a text would begin another turn there."""


def fenced(tag: str, text: str, note: str = "") -> str:
    """The text between an opening and a closing tag, with a note for the model in front.

    Whatever looks like this tag inside the text loses its bracket, so that the text can neither close its fence nor
    open another.
    """
    body = f"<{tag}>\n{without_tag(tag, text)}\n</{tag}>"
    return f"{note}\n{body}" if note else body


def without_tag(tag: str, text: str) -> str:
    """The text in which nothing reads as this tag, or as the mark of another turn; all else stays as it is.

    Letters count as they are seen: case, width, accents and invisible characters make no difference, and neither do
    brackets, slashes and letters of other scripts that look alike.
    """
    if text.isascii() and "<" not in text and "[" not in text:
        return text
    name = _folded(tag)
    inside = _OPENER.sub(lambda found: "&lt;" if _is_tag(text, found.end(), name) else found[0], text)
    return _ROLE.sub(lambda found: "&lt;" if found[0] == "<" else "&#91;", inside)


def _is_tag(text: str, start: int, name: str) -> bool:
    """Whether a tag of this name goes on at `start`, behind its bracket.

    A bracket ends every run that is passed over here, so all calls together read each character once.
    """
    at = _passed(text, start, blanks=True)
    while at < len(text) and text[at] in _SLASHES:
        at = _passed(text, at + 1, blanks=True)
    read = end = 0
    while read < len(name):
        letters = _folded(text[at]) if at < len(text) else ""
        if not letters or not name.startswith(letters, read):
            return False
        read += len(letters)
        end = at + 1
        at = _passed(text, end, blanks=False)
    # Whether a character shows depends on the font: the name ends before one that may not, and behind it.
    return not all(place < len(text) and (text[place].isalnum() or text[place] == "_") for place in (end, at))


def _passed(text: str, at: int, *, blanks: bool) -> int:
    """The place of the next character that is read."""
    while at < len(text) and (blanks if text[at].isspace() else _is_unseen(text[at])):
        at += 1
    return at


def _is_unseen(char: str) -> bool:
    return unicodedata.category(char) in _UNSEEN or char in _BLANK_LETTERS


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold().translate(_ALIKE)
    return "".join(char for char in plain if not unicodedata.combining(char))


# Plain text: what people can see, without the characters that hide, reorder or fake it.
#
# Stored text reaches prompts and terminals. There a line break begins a line of its own, an escape sequence moves the
# cursor, a bidirectional override shows another order, and characters without a shape carry words that no reader sees.
# Text that holds none of them comes back unchanged.

_CONTROL: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029"
"""C0, DEL, C1, and the line and paragraph separators."""
_HIDDEN: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ufdd0-\ufdef\ufffe\uffff"
)
"""What Unicode calls default ignorable: soft hyphen, zero-width, bidi, tags, selectors; and non-characters."""
_JOINERS: Final = "\u200c\u200d"
_WRITTEN: Final = rf"[^\x00-\u02ff\u2028\u2029{_JOINERS}{_HIDDEN}]"
"""What a joiner can stand between: letters of scripts that need it, and pictures."""
_PICTURE: Final = r"[\u00a9\u00ae\u203c-\u205f\u2070-\u3163\u3165-\u3299\U0001f000-\U0001faff]"
"""What a selector can stand behind: none of the hidden ones, which go first."""
_INVISIBLE: Final = re.compile(rf"[{_HIDDEN}]|[\ufe0e\ufe0f](?<!{_PICTURE}.)(?!\u20e3)", re.DOTALL)
_LOOSE_JOINER: Final = re.compile(rf"[{_JOINERS}](?:(?<!{_WRITTEN}.)|(?!{_WRITTEN}))", re.DOTALL)
"""A joiner that joins nothing; looked for when all else is gone, so that what it seems to join is there."""
_BREAKS: Final = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CONTROLS: Final = re.compile(f"[{_CONTROL}]")
_NOT_IN_LINES: Final = re.compile(rf"(?![\t\n])[{_CONTROL}]")
_SQUARE: Final = str.maketrans("()", "[]")
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


def one_line(text: str, limit: int | None = None) -> str:
    """`text` on one line: nothing unseen, runs of blanks as one; more than `limit` characters end in an ellipsis."""
    if not (text.isascii() and text.isprintable()):
        text = _CONTROLS.sub(" ", _visible(text))
    line = " ".join(text.split())
    if limit is None or len(line) <= limit:
        return line
    return f"{line[: limit - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def in_brackets(name: str, limit: int | None = None) -> str:
    """A name for a place between round brackets, on one line: it cannot close them."""
    line = one_line(name, limit)
    depth = 0
    for char in line:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
    return line if depth == 0 else line.translate(_SQUARE)


def plain_text(text: str) -> str:
    """`text` without what is unseen; tabs stay, and every line end is a plain newline."""
    if text.isascii() and text.isprintable():
        return text
    return _NOT_IN_LINES.sub("", _BREAKS.sub("\n", _visible(text)))


def _visible(text: str) -> str:
    """`text` without characters that have no shape. Half a surrogate pair, which has no UTF-8 form, is replaced."""
    if text.isascii():
        return text
    return _HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}", _LOOSE_JOINER.sub("", _INVISIBLE.sub("", text)))
