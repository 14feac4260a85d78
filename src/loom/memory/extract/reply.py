"""Parses the JSON objects in a model's reply, even if it is wrapped in prose, broken or cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from loom.core.message import JSON

MAX_REPLY: Final = 400_000
"""Maximum characters of a reply that are read; a note reports the rest."""
_MAX_FAILURES: Final = 200
_DECODER: Final = json.JSONDecoder()
_WRAPPERS: Final = ("facts", "claims", "items", "results", "data")


class ExtractionReply(NamedTuple):
    """The items of a reply. The notes do not quote it: it may repeat text that is forgotten later."""

    items: list[JSON]
    notes: list[str]
    """Problems with the reply."""
    is_read: bool
    """Whether anything could be read; an empty list counts."""


def read_items(text: str) -> ExtractionReply:
    """The items of a reply, in order, and its problems.

    Only objects are searched for, so prose and fences around them, an array without end and a trailing comma do no
    harm.
    """
    notes = [f"the reply has {len(text):,} characters; the first {MAX_REPLY:,} were read"] * (len(text) > MAX_REPLY)
    text = _without_stray_commas(text[:MAX_REPLY])
    items: list[JSON] = []
    position = failures = found = 0
    while (start := text.find("{", position)) >= 0 and failures < _MAX_FAILURES:
        try:
            value, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            failures, position = failures + 1, start + 1
        else:
            found += 1
            items.extend(_unwrapped(value))
    is_read = bool(found) or _says_nothing(text)
    if not is_read:
        notes.append(f"the reply of {len(text):,} characters holds no JSON that can be read")
    elif failures:
        notes.append(f"{failures} piece(s) of the reply could not be read as JSON; it may be cut off")
    return ExtractionReply(items, notes, is_read)


def _unwrapped(value: JSON) -> Iterator[JSON]:
    """The items inside `{"facts": [...]}`, or the object itself."""
    table = cast("dict[str, Any]", value)
    for name in _WRAPPERS:
        if isinstance(table.get(name), list):
            yield from table[name]
            return
    yield table


def _says_nothing(text: str) -> bool:
    start = text.find("[")
    return start >= 0 and text[start + 1 :].lstrip().startswith("]")


def _without_stray_commas(text: str) -> str:
    """The text without commas before a closing bracket; strings stay unchanged."""
    out: list[str] = []
    inside = escaped = False
    comma = -1
    for char in text:
        if inside:
            inside = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            inside, escaped, comma = True, False, -1
        elif char == ",":
            comma = len(out)
        elif char in "]}" and comma >= 0:
            del out[comma]
            comma = -1
        elif not char.isspace():
            comma = -1
        out.append(char)
    return "".join(out)
