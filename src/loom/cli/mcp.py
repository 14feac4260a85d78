"""`loom mcp`: the memory as an MCP server, and its entry in the settings of the programs that use it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.text import Text

from loom.cli.output import Json, ask, console, echo, print_json
from loom.core.checks import did_you_mean
from loom.errors import UsageError
from loom.server.hooks import default_url
from loom.server.hosts import HOSTS, Edit, plan_edit

app = typer.Typer(
    help="Serve the memory to Claude Code, Codex, Cursor and other programs that speak MCP.",
    invoke_without_command=True,
)

Url = Annotated[
    str | None, typer.Option("--url", help="The memory; by default, a file in your home folder.", envvar="LOOM_MEMORY")
]
User = Annotated[str, typer.Option("--user", help="The user whose memory it is.", envvar="LOOM_USER")]
Namespace = Annotated[str, typer.Option("--namespace", help="The namespace of the application.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-instructions",
        help="Let wishes that the model passes on stand at once; otherwise they wait for `loom memory confirm`.",
    ),
]


@app.callback()
def serve(
    ctx: typer.Context,
    *,
    url: Url = None,
    user: User = "me",
    namespace: Namespace = "default",
    trust_instructions: Trust = False,
    json: Annotated[bool, typer.Option("--json", help="What it speaks is always JSON.")] = False,  # noqa: ARG001
) -> None:
    """Answer one program over standard input and output. Without arguments, the program that starts it is the client.

    `loom mcp install HOST` writes the entry into the settings of a program.
    """
    if ctx.invoked_subcommand is not None:
        return
    if not user.strip():
        raise UsageError("--user is empty; name the user whose memory it is")
    place = url or default_url()
    if sys.stdin.isatty():
        hint = "waiting for an MCP client on standard input; end with Ctrl-D. `loom mcp install --help` sets one up."
        echo(hint, err=True)
    anyio.run(_serve, place, user, namespace, trust_instructions)


async def _serve(url: str, user: str, namespace: str, trust_instructions: bool) -> None:
    from loom.engine.agent_parts import agent_checkpoints
    from loom.engine.open import open_memory
    from loom.engine.urls import check_folder
    from loom.server.mcp import MemoryTools, serve_stdio

    if url == default_url():
        Path(url.removeprefix("sqlite:")).parent.mkdir(mode=0o700, exist_ok=True)
    check_folder(url)
    checkpoints, _ = agent_checkpoints(None, url)
    async with open_memory(url, namespace=namespace) as memory:
        try:
            tools = MemoryTools(memory, checkpoints, user_id=user, trust_instructions=trust_instructions)
            await serve_stdio(tools)
        finally:
            await checkpoints.aclose()


@app.command()
def install(
    host: Annotated[str, typer.Argument(help="claude-code, codex, cursor, vscode or claude-desktop.")],
    *,
    project: Annotated[bool, typer.Option("--project", help="Write the settings of this folder, not yours.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the entry out.")] = False,
    url: Url = None,
    user: User = "me",
    namespace: Namespace = "default",
    trust_instructions: Trust = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Write Loom's entry into the settings of a program; everything else in them stays as it is.

    The change is shown first. Running it again changes nothing.
    """
    found = HOSTS.get(host)
    if found is None:
        raise UsageError(
            f"{host!r:.60} is not a program that Loom knows; name one of {', '.join(HOSTS)}{did_you_mean(host, HOSTS)}"
        )
    path = found.path(project=Path.cwd() if project else None, home=Path.home())
    place = default_url() if url is None else url if project else _from_anywhere(url)
    options = ["--url", place, "--user", user]
    options += ["--namespace", namespace] if namespace != "default" else []
    options += ["--trust-instructions"] if trust_instructions else []
    entry = {"command": "loom" if project else program(), "args": ["mcp", *options]}
    edit = plan_edit(found, path, None if remove else entry)
    make_edit(host, edit, yes=yes, json=json)


def make_edit(host: str, edit: Edit, *, yes: bool, json: bool) -> bool:
    """Show a change of a program's settings, make it if the user agrees, and say what was done; True: say more.

    With `--json` nobody is there to be asked.
    """
    if edit.changes and not json:
        console().print(Text(edit.diff), soft_wrap=True)
    if edit.changes and not yes and not json:
        ask(f"Change {edit.path}?")
    if edit.changes:
        edit.make()
    if json:
        print_json({"host": host, "file": str(edit.path), "changed": edit.changes, "diff": edit.diff})
        return False
    state = "was changed; restart" if edit.changes else "is as it should be, nothing was changed in"
    console().print(Text(f"{edit.path} {state} {HOSTS[host].title}"), soft_wrap=True)
    return edit.changes


def _from_anywhere(url: str) -> str:
    """The URL of the same file from any folder: a program starts the server in the folder that is open in it."""
    from loom.engine.urls import written_out

    scheme, _, path = written_out(url).partition(":")
    is_path = scheme == "sqlite" and path and not path.startswith(("//", ":"))
    return f"sqlite:{Path(path).absolute()}" if is_path else url


def program() -> str:
    """The `loom` command by its full path: programs with windows often start without the path of a terminal."""
    beside = Path(sys.executable).with_name("loom.exe" if sys.platform == "win32" else "loom")
    return str(beside) if beside.exists() else shutil.which("loom") or "loom"
