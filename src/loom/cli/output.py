"""What commands print: pictures for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import typer
from rich.console import Console

HIDDEN = {"prompt", "body", "key"}
"""Fields that are too large for a report."""


def console() -> Console:
    """Where people read."""
    return Console(highlight=False)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: object) -> Any:
    """A value as JSON knows it: dataclasses become objects, with their properties' names for keys."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in HIDDEN}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[str, object]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(v) for v in cast("Sequence[object]", value)]
    return value
