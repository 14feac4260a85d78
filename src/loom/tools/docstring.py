"""Reading a docstring: what a function does, and what it says of each parameter."""

from __future__ import annotations

import re
from inspect import cleandoc

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Params):")
_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Params|Returns?|Raises|Yields?|Examples?|Notes?|Attributes|Warnings?|See Also):?"
)
_REST = re.compile(r":(?:param|parameter|arg|argument)\s(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\)\s*)?:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\w+)\s*(?::.*)?")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """What stands before the first section, as one paragraph to each of its own, and the text of each parameter.

    Google (`Args:`), reST (`:param name:`) and numpy (`Parameters`, underlined) are understood.
    """
    lines = cleandoc(text or "").splitlines()
    start = next((n for n in range(len(lines)) if _is_section(lines, n)), len(lines))
    paragraphs = "\n".join(lines[:start]).split("\n\n")
    summary = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
    return summary, _google(lines) or _numpy(lines) or _rest(lines)


def _is_section(lines: list[str], n: int) -> bool:
    line = lines[n]
    if line.startswith(":"):
        return re.match(r":\w[^:]*:", line) is not None
    return _SECTION.fullmatch(line.rstrip()) is not None and (line.rstrip().endswith(":") or _is_underlined(lines, n))


def _is_underlined(lines: list[str], n: int) -> bool:
    return n + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[n + 1]) is not None


def _google(lines: list[str]) -> dict[str, str]:
    start = next((n for n, line in enumerate(lines) if _GOOGLE.fullmatch(line.rstrip())), None)
    if start is None:
        return {}
    found: list[tuple[str, list[str]]] = []
    depth: int | None = None
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if not indent:
            break
        depth = indent if depth is None else depth
        entry = _ENTRY.fullmatch(line.strip()) if indent == depth else None
        _take(found, line, entry)
    return _joined(found)


def _numpy(lines: list[str]) -> dict[str, str]:
    head = (n for n, line in enumerate(lines) if line.rstrip() == "Parameters" and _is_underlined(lines, n))
    start = next(head, None)
    if start is None:
        return {}
    found: list[tuple[str, list[str]]] = []
    for n in range(start + 2, len(lines)):
        line = lines[n]
        if _is_underlined(lines, n):
            break
        if not line.strip():
            continue
        if line[0].isspace():
            _take(found, line, None)
        elif entry := _NUMPY_ENTRY.fullmatch(line.strip()):
            found.append((entry[1], []))
    return _joined(found)


def _rest(lines: list[str]) -> dict[str, str]:
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in lines:
        if line.startswith(":") or not line.strip():
            entry = _REST.fullmatch(line.rstrip())
            inside = entry is not None
            _take(found, "", entry)
        elif inside and line[0].isspace():
            _take(found, line, None)
    return _joined(found)


def _take(found: list[tuple[str, list[str]]], line: str, entry: re.Match[str] | None) -> None:
    """Begin another parameter, or go on with the last one."""
    if entry is not None:
        found.append((entry[1], [entry[2]]))
    elif found:
        found[-1][1].append(line)


def _joined(found: list[tuple[str, list[str]]]) -> dict[str, str]:
    texts = {name: " ".join(" ".join(lines).split()) for name, lines in found}
    return {name: text for name, text in texts.items() if text}
