"""The `loom` application: its commands, and errors as plain text."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from loom import __version__
from loom.cli.output import echo
from loom.text.fence import plain_text

COMMANDS = {
    "chat": "Talk to an agent that remembers. Lines that begin with / are commands: /help lists them.",
    "demo": (
        "Show two users, facts that change, recall, compaction, checkpoints, the cache and all costs. Needs no key."
    ),
    "doctor": "Report what is installed, or whether a store answers and what it guarantees with its current settings.",
    "forget": "Erase a person: memory, conversations and jobs, with a receipt that says what is still pending.",
    "cache": "Check what the prompt cache does with requests, before and after they are sent.",
    "hook": "Give Claude Code and Codex what Loom remembers, and keep what they forget, by hooks.",
    "inspect": (
        "Look at a store, or at a transcript of Claude Code or Codex, in a browser. Nothing leaves this machine."
    ),
    "mcp": "Serve the memory to Claude Code, Codex, Cursor and other programs that speak MCP.",
    "memory": "Remember, recall and forget.",
    "proxy": "Pass calls of Anthropic's and OpenAI's clients on unchanged, and record what the prompt cache did.",
    "serve": "Serve the memory over HTTP and MCP.",
    "session": "Show saved conversations, go back in them, fork and compact them.",
    "store": "Create a store, verify its indexes, copy it, erase forgotten bytes.",
}
"""The commands in the order of the list, each with the first paragraph of its help."""


def load(name: str) -> typer.Typer | Callable[..., None]:
    """A command, whose module is imported now: all of them at once take four times as long as the list of commands."""
    match name:
        case "chat":
            from loom.cli import chat

            return chat.chat
        case "demo":
            from loom.cli import demo

            return demo.demo
        case "cache":
            from loom.cli import cache

            return cache.app
        case "hook":
            from loom.cli import hook

            return hook.app
        case "mcp":
            from loom.cli import mcp

            return mcp.app
        case "proxy":
            from loom.cli import proxy

            return proxy.app
        case "serve" | "inspect":
            from loom.cli import serve

            return serve.app if name == "serve" else serve.inspect
        case "session":
            from loom.cli import session

            return session.app
        case "memory" | "forget":
            from loom.cli import memory

            return memory.app if name == "memory" else memory.forget_person
        case _:
            from loom.cli import store

            return store.app if name == "store" else store.doctor


class LateCommand(TyperCommand):
    """A command as the list shows it. Its module is imported when it is used."""

    @cached_property
    def command(self) -> Any:
        """The command itself."""
        name = str(self.name)
        found = load(name)
        app = typer.Typer(add_completion=False)
        app.callback()(lambda: None)  # an application with one command alone is that command
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name=name)(found)
        group: Any = typer.main.get_command(app)
        return group.commands[name]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the command line of the command itself."""
        return self.command.make_context(info_name, args, parent=parent, **extra)


class Commands(TyperGroup):
    """The commands. An error that quotes the command line quotes it as plain text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: LateCommand(name, help=help) for name, help in COMMANDS.items()}

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
    # What a terminal cannot show is better shown as `?` than not at all; so with what is piped in and is not text.
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
