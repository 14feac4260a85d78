"""What commands print: pictures for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, cast

import typer
from rich.console import Console

from loom.core.codec import record_to_dict
from loom.core.record import Episode, Fact, WorkingBlock

HIDDEN = {"prompt", "body", "key"}
"""Fields that are too large for a report."""


def console() -> Console:
    """Where people read."""
    return Console(highlight=False)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print a value as JSON; without an indent, on one line."""
    typer.echo(json.dumps(plain(value), indent=indent, ensure_ascii=False))


def plain(value: object) -> Any:
    """A value as JSON knows it: dataclasses become objects, with their properties' names for keys."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Episode | Fact | WorkingBlock):
        return record_to_dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in HIDDEN}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[str, object]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(v) for v in cast("Sequence[object]", value)]
    return value
