"""What the scenes of `loom demo` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

PROVIDER, MODEL = "anthropic", "claude-sonnet-5"
"""Whose rules and prices count. Nobody is called."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One step of the demo: what is shown, why, and the same as data."""

    title: str
    words: str
    view: RenderableType
    data: object


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> Table:
    """A plain table; the columns named in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(columns))
    numbers = set(right)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", no_wrap=name in numbers)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def dollars(amount: float | None) -> str:
    """A price; a dash where none is known."""
    return "-" if amount is None else f"${amount:.4f}"
