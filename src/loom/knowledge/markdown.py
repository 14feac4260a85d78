"""Splits Markdown at its headings: each section with the headings above it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_DEEPEST = 6
_FENCES = ("```", "~~~")
_FRONT = "---"
_INDENTED = 4


class MarkdownSection(NamedTuple):
    """A section: its headings, outermost first, its own included, and its text with its own heading."""

    headings: tuple[str, ...]
    text: str


def parts_of(text: str) -> list[MarkdownSection]:
    """The non-empty sections of a Markdown text, in order; text before the first heading has no headings.

    Lines in fenced code are not headings. A heading that contains only sections appears in their headings.
    """
    found: list[MarkdownSection] = []
    headings: list[str] = []
    lines: list[str] = []
    levels: list[int] = []
    for line, level, title in _marked(text):
        if level:
            _close(found, headings, lines, is_leaf=not levels or level <= levels[-1])
            while levels and levels[-1] >= level:
                levels.pop()
                headings.pop()
            levels.append(level)
            headings.append(title)
            lines = []
        lines.append(line)
    _close(found, headings, lines, is_leaf=True)
    return found


def _close(found: list[MarkdownSection], headings: list[str], lines: list[str], *, is_leaf: bool) -> None:
    body = lines[1:] if headings and not is_leaf else lines
    if any(line.strip() for line in body):
        found.append(MarkdownSection(tuple(headings), "\n".join(lines).strip()))


def _marked(text: str) -> Iterator[tuple[str, int, str]]:
    """Each line; for a heading also its level, from 1, and its title."""
    lines = text.splitlines()
    at, fence = _front_matter(lines), ""
    yield from ((line, 0, "") for line in lines[:at])
    while at < len(lines):
        line, below = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
        at += 1
        mark = _fence(line)
        if fence:
            is_end = mark.startswith(fence) and line.strip() == mark
            fence = "" if is_end else fence
            yield line, 0, ""
        elif mark:
            fence = mark
            yield line, 0, ""
        elif heading := _heading(line):
            yield line, *heading
        elif (level := _underline(below)) and _is_text(line):
            at += 1
            yield f"{line}\n{below}", level, line.strip()
        else:
            yield line, 0, ""


def _front_matter(lines: list[str]) -> int:
    """The number of lines of the front matter."""
    if not lines or lines[0].rstrip() != _FRONT:
        return 0
    return next((at + 1 for at, line in enumerate(lines) if at and line.rstrip() == _FRONT), 0)


def _fence(line: str) -> str:
    """The marks of a line that opens or closes a fenced block, or nothing."""
    stripped = line.strip()
    if not stripped.startswith(_FENCES) or _indent(line) >= _INDENTED:
        return ""
    return stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]


def _heading(line: str) -> tuple[int, str] | None:
    stripped = line.strip()
    level = len(stripped) - len(stripped.lstrip("#"))
    rest = stripped[level:]
    if not 1 <= level <= _DEEPEST or (rest and not rest[0].isspace()) or _indent(line) >= _INDENTED:
        return None
    title = rest.strip()
    shorter = title.rstrip("#")
    closed = shorter.rstrip() if shorter != title and (not shorter or shorter[-1].isspace()) else title
    return level, closed or stripped


def _underline(line: str) -> int:
    """The level of a line of = (1) or - (2) that makes the line above a heading; else 0."""
    signs = line.strip()
    if _indent(line) >= _INDENTED or not signs or signs[0] not in "=-" or signs.strip(signs[0]):
        return 0
    return 1 if signs[0] == "=" else 2


def _is_text(line: str) -> bool:
    """Whether a line may be an underlined heading: plain text, not a list, quote, table or rule."""
    stripped = line.strip()
    return bool(stripped) and stripped[0] not in "-*+>|=#" and _indent(line) < _INDENTED


def _indent(line: str) -> int:
    expanded = line.expandtabs(_INDENTED)
    return len(expanded) - len(expanded.lstrip(" "))
