"""`loom demo`: what Loom does, in a minute. No key, no server, nothing is sent."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from loom.cli.output import console, plain, print_json

if TYPE_CHECKING:
    from loom.cli.demo_scene import Scene


def demo(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Two users, facts that change, recall, a compaction, checkpoints, the cache, and what each cost. Needs no key."""
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(_perform, Path(folder), json)


async def _perform(folder: Path, json: bool) -> None:
    out = console()
    shown: list[Scene] = []
    async for scene in play(folder):
        shown.append(scene)
        if not json:
            _show(out, len(shown), scene)
    if json:
        print_json([{"title": scene.title, "data": plain(scene.data)} for scene in shown])


async def play(folder: Path) -> AsyncIterator[Scene]:
    """The scenes of the demo, each made when it is asked for."""
    from loom.cli.demo_agent import agent_scenes
    from loom.cli.demo_context import context_scenes

    async for scene in agent_scenes(folder):
        yield scene
    for scene in context_scenes(folder):
        yield scene


def _show(out: Console, number: int, scene: Scene) -> None:
    out.print(Rule(f"{number}. {scene.title}", align="left"))
    out.print(Text(scene.words, style="italic"))
    out.print()
    out.print(scene.view)
    out.print()
