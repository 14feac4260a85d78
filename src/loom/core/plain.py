"""Plain text: what people can see, without the characters that hide, reorder or fake it.

Stored text reaches prompts and terminals. There a line break begins a line of its own, an escape sequence moves the
cursor, a bidirectional override shows another order, and characters without a shape carry words that no reader sees.
Text that holds none of them comes back unchanged.
"""

from __future__ import annotations

import re
from typing import Final

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
_UNSEEN: Final = re.compile(rf"[{_HIDDEN}]|[\ufe0e\ufe0f](?<!{_PICTURE}.)(?!\u20e3)", re.DOTALL)
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
    return _HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}", _LOOSE_JOINER.sub("", _UNSEEN.sub("", text)))
