"""What commands print: pictures for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, cast

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress
from rich.text import Text

from loom.core.codec import record_to_dict
from loom.core.record import Episode, Fact, WorkingBlock

HIDDEN = {"prompt", "body", "key"}
"""Fields that are too large for a report."""
SHOWN_CHARS = 300
"""Characters of a text in a list."""


def console() -> Console:
    """Where people read."""
    return Console(highlight=False)


def print_listed(id: str, said: str, about: str) -> None:
    """A record of a list: its id with what it says, which no width of a terminal cuts, and a line about it."""
    out = console()
    out.print(Text(f"{id}  {shortened(said)}"), soft_wrap=True)
    out.print(Padding(Text(about, style="dim"), (0, 0, 0, 4), expand=False))


def shortened(text: str) -> str:
    """A text on one line, cut with an ellipsis where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS].rstrip()}\N{HORIZONTAL ELLIPSIS}"


@contextmanager
def progress_bar(title: str) -> Generator[Callable[[int, int], None]]:
    """A bar on the error stream, where people watch; gives a function that is told how far the work is."""
    out = Console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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
