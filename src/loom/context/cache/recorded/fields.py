"""Checked access to the fields of a recorded request, and its canonical JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeAlias, cast

from loom.errors import BadRequestFile

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object."""

_SHOWN = 60


def table(value: object, path: str) -> JsonObject:
    """The JSON object at a path."""
    if not isinstance(value, Mapping):
        refuse(path, value, "a JSON object")
    return cast("JsonObject", value)


def rows(value: object, path: str) -> list[Any]:
    """The list at a path; a missing one is empty."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        refuse(path, value, "a list")
    return list(cast("list[Any]", value))


def tables(value: object, path: str) -> Iterator[tuple[str, JsonObject]]:
    """The JSON objects of the list at a path, each with its own path."""
    for i, item in enumerate(rows(value, path)):
        yield f"{path}[{i}]", table(item, f"{path}[{i}]")


def as_list(value: object) -> list[Any] | None:
    """A list, or None in place of anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def text_of(value: object, path: str) -> str:
    """The text at a path."""
    if not isinstance(value, str):
        refuse(path, value, "a text")
    return value


def maybe_table(value: object) -> JsonObject:
    """A JSON object, or an empty one in place of anything else."""
    return cast("JsonObject", value) if isinstance(value, Mapping) else {}


def maybe_text(value: object) -> str:
    """A text, or an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def canonical(value: object) -> str:
    """JSON text of a value, with its keys in the order in which they were sent."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestFile(
            f"the request holds a value that is not JSON: {error}; pass the body as it goes over the wire"
        ) from error


def refuse(path: str, value: object, wanted: str) -> NoReturn:
    """Says that the value at a path has the wrong form."""
    shown = repr(value)
    shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
    raise BadRequestFile(f"{path} is {shown}, but must be {wanted}; record the request body as it was sent")
