"""`loom serve`: the HTTP server, and its tokens."""

from __future__ import annotations

import socket
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from loom.cli.output import DEFAULT, Json, console, echo, print_json
from loom.errors import MissingExtra, UsageError


class UrlGroup(TyperGroup):
    """`loom serve sqlite:./bot.db`: a word that is not a command is the URL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        is_url = bool(args) and not args[0].startswith("-") and args[0] not in self.commands
        return super().parse_args(ctx, ["--url", *args] if is_url else args)


app = typer.Typer(cls=UrlGroup, help="Serve the memory over HTTP and MCP.", invoke_without_command=True)
tokens_app = typer.Typer(help="Make, list and revoke the tokens of callers.", no_args_is_help=True)
app.add_typer(tokens_app, name="token")

_BACKLOG = 2048
"""Connections that may wait to be accepted."""
_SWITCH_SECONDS = 0.001
"""How long a thread that reads rows may keep the interpreter while the event loop waits for it; by default, 5 ms."""
Tokens = Annotated[
    Path | None, typer.Option("--tokens", help="The file of tokens; by default, one in your home folder.")
]


def token_file(path: Path | None) -> Any:
    """The tokens in a file, or in the one in the home folder."""
    from loom.server.tokens import TokenFile

    return TokenFile(path or Path.home() / ".loom" / "tokens.json")


def existing_tokens(path: Path | None) -> Any:
    """The tokens in a file, which has to be there if it was named.

    A name that is misspelled must not open a server, nor look like a file without tokens.
    """
    file = token_file(path)
    if path is not None and not path.exists():
        raise UsageError(
            f"there is no file of tokens {path}; make it with `loom serve token add NAME --tokens {path}`, or leave "
            "out --tokens"
        )
    return file


def _check_extra(command: str) -> None:
    """Refuse to start without the whole extra: who has FastAPI for a program of their own has a part of it."""
    try:
        import loom.server.http.app  # pyright: ignore[reportUnusedImport]
        import loom.server.http.listen  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtra(command, "server") from error


@app.callback()
def serve(
    ctx: typer.Context,
    *,
    url: Annotated[str, typer.Option("--url", help="The memory to serve.", envvar="LOOM_MEMORY")] = DEFAULT,
    namespace: Annotated[
        str, typer.Option("--namespace", help="The namespace of callers without a token.")
    ] = "default",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.", min=0, max=65535)] = 8420,
    knowledge: Annotated[
        list[Path] | None,
        typer.Option("--knowledge", help="A file or folder of documents that every recall reads too; repeatable."),
    ] = None,
    tokens: Tokens = None,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Serve a memory and its conversations: REST at /v1, MCP at /mcp, /openapi.json, /healthz, /readyz, /metrics.

    It listens on this machine only. Any other address needs tokens: `loom serve token add`.
    """
    if ctx.invoked_subcommand is not None:
        return
    _check_extra("loom serve")
    from loom.server.http.guard import LOOPBACK

    file = existing_tokens(tokens)
    is_local = host in LOOPBACK
    if not is_local and not file.tokens():
        raise UsageError(
            f"{host} can be reached from other machines, and there are no tokens; make one first with "
            "`loom serve token add NAME`, or listen on 127.0.0.1"
        )
    served = _Served(url, namespace, host, port, json=json, tokens=file, needs_token=not is_local)
    anyio.run(_serve, replace(served, knowledge=tuple(knowledge or ())))


def inspect(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A store (sqlite:PATH, a .db file, another URL), or a transcript; by default, your memory."
        ),
    ] = None,
    *,
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.", min=0, max=65535)] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Look at a store, or at a transcript of Claude Code or Codex, in a browser. Nothing leaves this machine."""
    from loom.engine.urls import check_is_there

    _check_extra("loom inspect")
    path = Path(target) if target and ":" not in target else None
    if path is not None and path.suffix not in {".db", ".sqlite", ".sqlite3"}:
        if not path.exists():
            raise UsageError(f"{target} does not exist; name a store, such as sqlite:./bot.db, or a transcript")
        served = _Served("inmemory", json=json, port=port, transcript=path, page="/inspect/transcript")
    else:
        url = f"sqlite:{path}" if path else target or DEFAULT
        check_is_there(url)
        served = _Served(url, json=json, port=port, page="/inspect/users")
    anyio.run(_serve, replace(served, opens=open_browser and not json))


@dataclass(frozen=True, slots=True)
class _Served:
    """What is served where."""

    url: str
    namespace: str = "default"
    host: str = "127.0.0.1"
    port: int = 0
    json: bool = False
    tokens: Any = None
    needs_token: bool = False
    transcript: Path | None = None
    knowledge: tuple[Path, ...] = ()
    page: str = ""
    opens: bool = False


async def _serve(served: _Served) -> None:
    from loom.engine.agent_parts import agent_checkpoints
    from loom.engine.open import open_memory
    from loom.engine.urls import check_folder, without_secrets
    from loom.server.http.app import create_app
    from loom.server.http.guard import LOOPBACK
    from loom.server.http.listen import http_server, shorten_pauses

    sys.setswitchinterval(_SWITCH_SECONDS)
    shorten_pauses()
    check_folder(served.url)
    checkpoints, notes = agent_checkpoints(None, served.url)
    config, left_out = await _with_knowledge(served.knowledge)
    notes = (*notes, *left_out)
    async with open_memory(served.url, namespace=served.namespace, config=config) as memory, aclosing(checkpoints):
        hosts = None if served.needs_token else LOOPBACK
        made = create_app(
            memory,
            checkpoints,
            tokens=served.tokens,
            needs_token=served.needs_token,
            hosts=hosts,
            transcript=served.transcript,
        )
        with listening(served.host, served.port) as listener:
            host = f"[{served.host}]" if ":" in served.host else served.host
            where = f"http://{host}:{listener.getsockname()[1]}{served.page}"
            shown = without_secrets(served.url)  # what is printed ends up in logs
            if served.json:
                print_json({"address": where, "url": shown, "notes": notes}, indent=None)
            else:
                echo(f"Loom serves {served.transcript or shown} at {where} (Ctrl-C ends it)")
                for note in notes:
                    echo(f"! {note}", err=True)
            if served.opens:
                webbrowser.open(where)
            await http_server(made, on_end=made.end).serve(sockets=[listener])


async def _with_knowledge(paths: Sequence[Path]) -> tuple[Any, tuple[str, ...]]:
    """The configuration of a memory that reads these documents too, and what could not be read."""
    if not paths:
        return None, ()
    from loom.knowledge import InMemoryKnowledgeBase, load_file, load_folder
    from loom.memory.config import MemoryConfig

    base, notes = InMemoryKnowledgeBase(), tuple[str, ...]()
    for path in paths:
        if not path.exists():
            raise UsageError(f"--knowledge {path} does not exist; name a file or a folder of documents")
        loaded = await (load_folder(path) if path.is_dir() else load_file(path))
        await base.add(*loaded.documents)
        notes += loaded.notes
    return MemoryConfig(knowledge_base=base), notes


def listening(host: str, port: int) -> socket.socket:
    """A socket that callers can connect to already, so that the address that is printed works at once."""
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise UsageError(f"{host}:{port} cannot be listened on: {error.strerror}; choose another --port") from error
    return listener


@tokens_app.command("add")
def add_token(
    name: Annotated[str, typer.Argument(help="A name for it.")],
    *,
    user: Annotated[list[str] | None, typer.Option("--user", help="A user it is for; by default, all.")] = None,
    right: Annotated[
        list[str] | None, typer.Option("--right", help="read, write, forget or operate; by default, all but operate.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="The namespace it is for.")] = "default",
    tokens: Tokens = None,
    json: Json = False,
) -> None:
    """Make a token. It is shown once; only its digest is kept."""
    rights: Any = right or ["read", "write", "forget"]
    secret = token_file(tokens).add(name, namespace=namespace, users=user, rights=rights)
    if json:
        print_json({"name": name, "token": secret})
        return
    console().print(Text(secret), soft_wrap=True)
    echo("keep it now: it is not shown again", err=True)


@tokens_app.command("list")
def list_tokens(tokens: Tokens = None, json: Json = False) -> None:
    """List the tokens, without their secrets."""
    found = existing_tokens(tokens).tokens()
    if json:
        rows = [(t.name, t.namespace, t.users, t.rights, t.made_at) for t in found]
        print_json([dict(zip(("name", "namespace", "users", "rights", "made_at"), row, strict=True)) for row in rows])
        return
    table = Table("token", "namespace", "users", "rights", "made", box=None, pad_edge=False)
    for one in found:
        users = "all" if one.users is None else ", ".join(one.users)
        table.add_row(Text(one.name), Text(one.namespace), Text(users), Text(", ".join(one.rights)), Text(one.made_at))
    console().print(table if found else Text("there are no tokens"))


@tokens_app.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(help="The name of the token.")], tokens: Tokens = None, json: Json = False
) -> None:
    """Revoke a token: its bearer is refused from the next request on."""
    existing_tokens(tokens).revoke(name)
    if json:
        print_json({"revoked": name})
    else:
        console().print(Text(f"{name} is revoked"))
