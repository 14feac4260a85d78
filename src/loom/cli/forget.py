"""`loom forget`: erasing a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

from loom.cli.memory import DEFAULT
from loom.cli.output import ask, console, print_json
from loom.errors import UsageError

if TYPE_CHECKING:
    from loom.core.record import Erasure


def forget(
    user: Annotated[str, typer.Argument(help="Whom to forget.")],
    *,
    db: Annotated[str, typer.Option("--db", help="The place: sqlite:PATH, a URL.", envvar="LOOM_MEMORY")] = DEFAULT,
    sessions: Annotated[
        str | None, typer.Option("--sessions", help="Where conversations are saved, if not beside the memory.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="The application.")] = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Erase a person: memory, conversations and jobs, with a receipt that says what is still pending.

    The exit code is 1 where something is pending.
    """
    from loom.engine.erase import erase_user

    if not user.strip():
        raise UsageError("the user is empty; say whom to forget")
    if not yes:
        ask(f"Erase everything of {user}, conversations included?")

    async def work() -> Erasure:
        return await erase_user(db, user, namespace=namespace, sessions=sessions)

    erased = anyio.run(work)
    if json:
        print_json({"user": user, "stores": erased.stores, "pending": erased.pending})
    else:
        _print(erased)
    if erased.pending:
        raise typer.Exit(1)


def _print(erased: Erasure) -> None:
    for receipt in erased.stores:
        removed = ", ".join(f"{count} {kind}" for kind, count in receipt.removed.items()) or "nothing was there"
        console().print(Text(f"{receipt.store}: {removed}"), soft_wrap=True)
        for line in receipt.pending:
            console().print(Text(f"  pending: {line}", style="yellow"), soft_wrap=True)
