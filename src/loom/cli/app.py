"""The commands of `loom`, and what they share."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from loom import __version__
from loom.cli import cache, chat, demo, doctor, memory, session, store
from loom.cli.forget import forget

app = typer.Typer(
    name="loom",
    help="Decide what a model sees, and keep what it should know next time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cache.app, name="cache")
app.add_typer(memory.app, name="memory")
app.add_typer(session.app, name="session")
app.command(name="chat")(chat.chat)
app.add_typer(store.app, name="store")
app.command(name="demo")(demo.demo)
app.command(name="doctor")(doctor.doctor)
app.command(name="forget")(forget)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"loom {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Decide what a model sees, and keep what it should know next time."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is better shown as `?` than not at all
            stream.reconfigure(errors="replace")
