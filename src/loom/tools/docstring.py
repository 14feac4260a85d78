"""Reads docstrings: the summary of a function, and the text of each parameter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Params):")
_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Params|Returns?|Raises|Yields?|Examples?|Notes?|Attributes|Warnings?|See Also):?"
)
_REST = re.compile(r":(?:param|parameter|arg|argument)\s(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\)\s*)?:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\w+)\s*(?::.*)?()")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The text before the first section, each paragraph on one line, and the text of each parameter.

    Google (`Args:`), reST (`:param name:`) and numpy (`Parameters`, underlined) are understood. It is our own because
    docstring-parser finds fewer parameters: one line that does not fit a style makes it drop the whole section.
    """
    lines = cleandoc(text or "").splitlines()
    start = next((n for n in range(len(lines)) if _is_section(lines, n)), len(lines))
    paragraphs = "\n".join(lines[:start]).split("\n\n")
    summary = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
    return summary, _joined(_google(lines)) or _joined(_numpy(lines)) or _joined(_rest(lines))


def _is_section(lines: list[str], n: int) -> bool:
    line = lines[n].rstrip()
    if line.startswith(":"):
        return re.match(r":\w[^:]*:", line) is not None
    return _SECTION.fullmatch(line) is not None and (line.endswith(":") or _is_underlined(lines, n))


def _is_underlined(lines: list[str], n: int) -> bool:
    return n + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[n + 1]) is not None


# Each style yields the lines of its parameters, and the match of those that begin a parameter.


def _google(lines: list[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    start = next((n for n, line in enumerate(lines, 1) if _GOOGLE.fullmatch(line.rstrip())), len(lines))
    depth = 0
    for line in filter(str.strip, lines[start:]):
        indent = len(line) - len(line.lstrip())
        if not indent:
            return
        depth = depth or indent
        yield line, _ENTRY.fullmatch(line.strip()) if indent == depth else None


def _numpy(lines: list[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    heads = (n for n, line in enumerate(lines) if line.rstrip() == "Parameters" and _is_underlined(lines, n))
    for n in range(next(heads, len(lines)) + 2, len(lines)):
        if _is_underlined(lines, n):
            return
        entry = _NUMPY_ENTRY.fullmatch(lines[n].rstrip())
        if entry or lines[n][:1].isspace():
            yield lines[n], entry


def _rest(lines: list[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    inside = False
    for line in lines:
        if line.startswith(":") or not line.strip():
            entry = _REST.fullmatch(line.rstrip())
            inside = entry is not None
            yield "", entry
        elif inside and line[0].isspace():
            yield line, None


def _joined(found: Iterable[tuple[str, re.Match[str] | None]]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    name = ""
    for line, entry in found:
        if entry is not None:
            name = entry[1]
            texts[name] = [entry[2]]
        elif name:
            texts[name].append(line)
    joined = {name: " ".join(" ".join(pieces).split()) for name, pieces in texts.items()}
    return {name: text for name, text in joined.items() if text}
