"""The `loom` application: its commands, and errors as plain text."""

from __future__ import annotations

import io
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from loom import __version__
from loom.cli import cache, chat, demo, memory, session, store
from loom.cli.output import echo
from loom.text.fence import plain_text


class Commands(TyperGroup):
    """The commands. An error that quotes the command line quotes it as plain text."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the command line."""
        with _plain_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the rest of it, and run the command."""
        with _plain_errors():
            return super().invoke(ctx)


@contextmanager
def _plain_errors() -> Generator[None]:
    try:
        yield
    except Exception as error:
        message: object = getattr(error, "message", None)  # of the errors that typer itself prints
        if isinstance(message, str):
            error.__dict__["message"] = plain_text(message)
        raise


app = typer.Typer(
    name="loom",
    cls=Commands,
    help="Decide what a model sees, and remember what it should know next time.",
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
app.command(name="doctor")(store.doctor)
app.command(name="forget")(memory.forget_person)


def _version(value: bool) -> None:
    if value:
        echo(f"loom {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decide what a model sees, and remember what it should know next time."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is better shown as `?` than not at all
            stream.reconfigure(errors="replace")
