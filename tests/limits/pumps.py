"""Texts that make a pattern walk: what it repeats, behind what it needs to get there, many times over."""

from __future__ import annotations

import re
import re._constants as sre
import re._parser as parser
from collections.abc import Iterable, Iterator
from typing import Any

UNITS = (
    *("a", "A", "ab ", "Ab ", "aB", "I ", "I am ", "my ", "the ", "and ", "x and ", "to ", "a to b ", "please ", "so "),
    *("always ", "in ", "ago ", ".", ". ", "a.", "A. ", "!", "? ", ",", ", ", "a,", "a, ", ";", "; ", ":", ": ", "a: "),
    *(" ", "  ", "\t", "\n", "\n\n", " \n", "\r\n", "a\n", "- a\n", "'", '"', "'a' ", '"a" ', "\u2019", "a\u2019"),
    *("(", ")", "()", "[", "]", "{", "}", "<", "< ", "</", "<a", "1", "12 ", "1.", "1,", "1-", "2026-", "-", "--", "_"),
    *("/", "//a", "\\", "&", "=", "@", "#", "*", "`", "|", "$", "%", "~", "+", "\u00e9 ", "\u65e5", "\u65e5\u672c "),
    *("\u0905", "\u0300", "\u0315\u0300", "\u200b", "\u00a0", "\U0001f600", "\x00", "a b c d. ", "a-b-", "http://"),
)
"""What people and machines repeat: signs, letters, words, lines, brackets, digits, marks, and mixtures of them."""

_CHARS = "a A0 \n.,;:'\"-_/\\<>()[]{}!?|=+*&%$#@~^`\t\u00e9\u2019\u201c\u65e5\u0905\u3002"
_MOST = 60


def pumps_of(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """What to put in front, and what to repeat: beginnings of what the pattern takes, and each thing it repeats."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(text, pattern.flags & ~re.DEBUG & ~re.UNICODE)
    found: dict[tuple[str, str], None] = {}
    for before in _walk(tree, ("",), found):
        found["", before] = None
    for pair in list(found)[:_MOST]:
        if pair[1]:
            yield pair


def _walk(items: Iterable[Any], before: tuple[str, ...], found: dict[tuple[str, str], None]) -> tuple[str, ...]:
    """Go through a sequence; returns the texts that take one behind it, having noted what repeats on the way."""
    for item in items:
        after: list[str] = []
        for text in before:
            after += [text + more for more in _texts(item, text, found)]
        before = tuple(dict.fromkeys(after))[:4] or before
        for text in before:
            found["", text] = None
    return before


def _texts(item: Any, before: str, found: dict[tuple[str, str], None]) -> list[str]:
    """A few texts that one item of a pattern takes."""
    op, value = item
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, most, inner = value
        once = _inner(inner, before, found)
        for unit in once:
            found[before, unit] = None
        if most == 0:
            return [""]
        return [unit * max(1, least) for unit in once[:2]]
    if op is sre.BRANCH:
        return [text for branch in value[1] for text in _inner(branch, before, found)][:12]
    if op is sre.SUBPATTERN:
        return _inner(value[-1], before, found)
    if op is sre.ATOMIC_GROUP:
        return _inner(value, before, found)
    if op is sre.ASSERT and value[0] > 0:
        _inner(value[1], before, found)
    return _one(op, value)


def _inner(items: Iterable[Any], before: str, found: dict[tuple[str, str], None]) -> list[str]:
    texts = _walk(items, (before,), found)
    return [text[len(before) :] for text in texts]


def _one(op: Any, value: Any) -> list[str]:
    if op is sre.LITERAL:
        return [chr(value)]
    if op is sre.NOT_LITERAL:
        return [next(c for c in _CHARS if ord(c) != value)]
    if op is sre.ANY:
        return ["a", " "]
    if op is sre.IN:
        return [c for c in _CHARS if _is_in(value, c)][:2] or [
            chr(v if isinstance(v, int) else v[0]) for _, v in value[-1:]
        ]
    return [""]


def _is_in(choices: Iterable[Any], char: str) -> bool:
    negated, hit = False, False
    for op, value in choices:
        if op is sre.NEGATE:
            negated = True
        elif op is sre.LITERAL:
            hit |= ord(char) == value
        elif op is sre.RANGE:
            hit |= value[0] <= ord(char) <= value[1]
        elif op is sre.CATEGORY:
            hit |= re.match(_CATEGORIES[value], char) is not None
    return hit != negated


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_NOT_DIGIT: r"\D", sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S", sre.CATEGORY_WORD: r"\w", sre.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
