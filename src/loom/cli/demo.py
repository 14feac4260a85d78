"""`loom demo`: what Loom does, in a minute. It needs no key and no server, and sends nothing."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from loom.cli.output import Json, console, plain, print_json

PROVIDER, MODEL = "anthropic", "claude-sonnet-5"
"""The provider whose cache rules and prices are used. Nothing is sent to it."""


@dataclass(frozen=True, slots=True)
class DemoScene:
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


def demo(json: Json = False) -> None:
    """Show two users, facts that change, recall, compaction, checkpoints, the cache and all costs. Needs no key."""
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(_perform, Path(folder), json)


async def _perform(folder: Path, json: bool) -> None:
    out = console()
    shown: list[DemoScene] = []
    async for scene in play(folder):
        shown.append(scene)
        if not json:
            _show(out, len(shown), scene)
    if json:
        print_json([{"title": scene.title, "data": plain(scene.data)} for scene in shown])


async def play(folder: Path) -> AsyncIterator[DemoScene]:
    """The scenes of the demo, one at a time."""
    from loom.cli.demo_agent import agent_scenes
    from loom.cli.demo_context import context_scenes

    async for scene in agent_scenes(folder):
        yield scene
    for scene in context_scenes(folder):
        yield scene


def _show(out: Console, number: int, scene: DemoScene) -> None:
    out.print(Rule(f"{number}. {scene.title}", align="left"))
    out.print(Text(scene.words, style="italic"))
    out.print()
    out.print(scene.view)
    out.print()
