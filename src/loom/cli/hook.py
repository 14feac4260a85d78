"""`loom hook`: memory that does not wait to be asked, as hooks in the settings of Claude Code and Codex."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from loom.cli.mcp import Namespace, Url, User, make_edit, program
from loom.cli.output import Json, console
from loom.core.checks import did_you_mean
from loom.errors import UsageError
from loom.server.hooks import READS, HookOptions, answer, default_url
from loom.server.hosts import HOSTS, plan_hooks

Warm = Annotated[
    bool,
    typer.Option(
        "--warm/--cold",
        help="Whether a process stays for 15 minutes that has the engine loaded; without it, prompts recall by words.",
    ),
]

app = typer.Typer(help="Give Claude Code and Codex what Loom remembers, and keep what they forget, by hooks.")


@app.command()
def install(
    host: Annotated[str, typer.Argument(help="claude-code or codex.")],
    *,
    project: Annotated[bool, typer.Option("--project", help="Write the settings of this folder, not yours.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the hooks out.")] = False,
    url: Url = None,
    user: User = "me",
    namespace: Namespace = "default",
    warm: Warm = True,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Write Loom's hooks into the settings of a program; the hooks of others stay beside them.

    The change is shown first. Running it again changes nothing.
    """
    found = HOSTS.get(host)
    if found is None or found.hooks_file is None:
        known = [name for name, one in HOSTS.items() if one.hooks_file]
        hint = did_you_mean(host, known)
        raise UsageError(
            f"{host!r:.60} is not a program with hooks that Loom knows; name one of {', '.join(known)}{hint}"
        )
    if not user.strip():
        raise UsageError("--user is empty; name the user whose memory it is")
    path = (Path.cwd() if project else Path.home()).joinpath(*found.hooks_file)
    # The settings of a project are shared: without a URL, each machine uses the memory of the person at it.
    options = HookOptions(url or ("" if project else default_url()), user, namespace)
    start = ["loom" if project else program(), "hook", "run"]
    hooks = {
        event: _hook([*start, event, *options._replace(warm=warm and event in READS).words()]) for event in found.events
    }
    edit = plan_hooks(path, None if remove else hooks)
    has_hooks = make_edit(host, edit, yes=yes, json=json) and not remove
    if has_hooks and warm:
        console().print(
            "A process of Loom stays for 15 minutes after each prompt, so that the next finds more; --cold: none."
        )
    if has_hooks and host == "codex":
        console().print("Codex runs new hooks only after you have accepted them: type /hooks in it.")


def _hook(words: list[str]) -> dict[str, Any]:
    command = subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
    return {"type": "command", "command": command, "timeout": 10}


@app.command()
def run(
    event: Annotated[str, typer.Argument(help="SessionStart, UserPromptSubmit, PreCompact, SessionEnd or Stop.")],
    *,
    url: Url = None,
    user: User = "me",
    namespace: Namespace = "default",
    warm: Warm = False,
    wait: Annotated[bool, typer.Option("--wait", help="Read a transcript here, not in the background.")] = False,
) -> None:
    """Answer one event of a program, which is JSON on standard input; programs start this, people do not.

    Whatever fails, the exit code is 0 and nothing is printed; ~/.loom/hooks.log says why.
    """
    answer(event, HookOptions(url or default_url(), user, namespace, wait, warm), sys.stdin, sys.stdout)
