"""Fences: stored text is shown as data, and cannot get out."""

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
    read = 0
    while read < len(name):
        letters = _folded(text[at]) if at < len(text) else ""
        if not letters or not name.startswith(letters, read):
            return False
        read += len(letters)
        at = _passed(text, at + 1, blanks=False)
    return at >= len(text) or not (text[at].isalnum() or text[at] == "_")


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
