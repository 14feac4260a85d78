"""Return values of tools, in the form a model reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from loom.core.checks import join_surrogates
from loom.core.limits import MAX_TEXT, shortened
from loom.core.message import DocumentPart, ImagePart, TextPart
from loom.protocols.tool import ToolOutput

_Part = TextPart | ImagePart | DocumentPart


def as_output(value: Any) -> ToolOutput:
    """Text as it is, parts as they are, nothing as "done", anything else as JSON; both ends of what is too long.

    Raises:
        TypeError: it has no such form; the message says what to return instead.
    """
    if value is None:
        return "done"
    if isinstance(value, str):
        return _sayable(shortened(value, MAX_TEXT))
    if isinstance(value, _Part):
        return (value,)
    parts: list[Any] = [*value] if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownVariableType]
    if parts and all(isinstance(part, _Part) for part in parts):
        return tuple(parts)
    return _sayable(shortened(_as_json(value), MAX_TEXT))


def _as_json(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("returned bytes; return text, or an ImagePart or DocumentPart with base64 data")
    if isinstance(value, Iterator | AsyncIterator):  # a generator, say
        raise TypeError("returned something to go through; return a list, or text")
    try:
        return json.dumps(to_jsonable_python(value), ensure_ascii=False)
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise TypeError(f"returned a {type(value).__name__} that has no JSON form ({error}); return text") from error


def _sayable(text: str) -> str:
    """The text as every provider takes it: not empty, and no half of a surrogate pair."""
    return join_surrogates(text) if text.strip() else "(empty)"
