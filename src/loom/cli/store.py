"""`loom store`, `loom doctor` and `loom forget`: looking after stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer
from rich.table import Table
from rich.text import Text

from loom.cli.output import Json, console, plain, print_json, progress_bar
from loom.errors import UsageError

if TYPE_CHECKING:
    from loom.admin.copy import Copied
    from loom.admin.doctor import Examined
    from loom.admin.maintenance import Verified
    from loom.core.scope import Scope

app = typer.Typer(help="Create a store, verify its indexes, copy it, erase forgotten bytes.", no_args_is_help=True)

Url = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="The store: sqlite:PATH, postgres://..., redis://..., qdrant:FOLDER, ..."),
]
AdminUrl = Annotated[
    str | None, typer.Argument(metavar="URL", help="The store; for Postgres, the URL of an administrator.")
]
NamedUrl = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The store, in place of the first argument.")
]
_T = TypeVar("_T")


def user_name(user: Scope) -> str:
    """A user's name for people; the default namespace is left out."""
    return user.user_id if user.namespace == "default" else f"{user.namespace} / {user.user_id}"


def _given(url: str | None, named: str | None) -> str | None:
    """The store that was given as a word or with --url."""
    if url is not None and named is not None:
        # Neither is repeated: each may hold a password.
        raise UsageError("the store is given twice, as a word and with --url; give it once")
    return named if url is None else url


def _needed(url: str | None, named: str | None) -> str:
    """The same, where the command does nothing without a store."""
    place = _given(url, named)
    if place is None:
        raise UsageError("no store is given; name it as a word or with --url, such as sqlite:./bot.db")
    return place


def run_and_close(store: Any, work: Callable[[Any], Awaitable[_T]]) -> _T:
    """Run work on an open store, and close it."""

    async def run() -> _T:
        async with aclosing(store):
            return await work(store)

    return anyio.run(run)


@app.command()
def init(
    url: AdminUrl = None,
    *,
    named: NamedUrl = None,
    schema: Annotated[str | None, typer.Option(help="The schema to create in Postgres.  [default: loom]")] = None,
    app_role: Annotated[str | None, typer.Option(help="The role that stores connect as.  [default: loom_app]")] = None,
    owner_role: Annotated[
        str | None, typer.Option(help="The role that owns the tables, never used to connect.  [default: loom_owner]")
    ] = None,
    password: Annotated[
        str | None, typer.Option(help="The password of the app role.", envvar="LOOM_APP_PASSWORD", show_envvar=True)
    ] = None,
    one_role: Annotated[
        bool, typer.Option("--one-role", help="Create no role in Postgres: stores connect as the role of this URL.")
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Spread users over this many partitions of each table in Postgres; moves them if there are others.  "
            "[default: as it is, 1 for a new schema]",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Create the schema and roles in Postgres, or the file or folder of another store; existing data stays.

    While users are moved to other partitions, stores refuse calls. If interrupted, run it again to continue.
    """
    from loom.admin.maintenance import init_store

    place = _needed(url, named)
    roles = {"schema": schema, "app_role": app_role, "owner_role": owner_role, "password": password}
    roles |= {"one_role": one_role or None, "partitions": partitions}
    with progress_bar("making") as progress:
        made = anyio.run(partial(init_store, place, progress=progress, **roles))
    if json:
        print_json({one.part: one.done for one in made})
        return
    for one in made:
        console().print(Text(f"{one.part}: {one.done}"), soft_wrap=True)


@app.command()
def sweep(
    url: AdminUrl = None,
    *,
    named: NamedUrl = None,
    schema: Annotated[str | None, typer.Option(help="The schema in Postgres.  [default: loom]")] = None,
    owner_role: Annotated[
        str | None, typer.Option(help="The role that owns the tables.  [default: loom_owner]")
    ] = None,
    json: Json = False,
) -> None:
    """Erase the bytes of forgotten records from the files; exit code 1 if some are still pending.

    In Postgres each table is locked while it is rewritten.
    """
    from loom.admin.maintenance import sweep_store

    place = _needed(url, named)
    with progress_bar("sweeping"):
        pending = anyio.run(partial(sweep_store, place, schema=schema, owner_role=owner_role))
    if json:
        print_json({"pending": list(pending)})
    else:
        for line in pending or ("no bytes of forgotten records are left",):
            console().print(Text(line), soft_wrap=True)
    if pending:
        raise typer.Exit(1)


@app.command()
def verify(
    url: Url = None,
    named: NamedUrl = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild indexes that differ from the records; remove damaged records.")
    ] = False,
    json: Json = False,
) -> None:
    """Read every record and compare every index with the records; exit code 1 if damage or a difference is left."""
    from loom.admin.maintenance import verify_store
    from loom.engine.urls import Opening, check_is_there, store_at

    place = _needed(url, named)
    check_is_there(place)
    with progress_bar("verifying"):
        found = run_and_close(store_at(place, Opening(makes=False)), lambda store: verify_store(store, repair=repair))
    is_right = all(part.is_right for part in found)
    if json:
        parts = [{**plain(part), "is_right": part.is_right} for part in found]
        print_json({"is_right": is_right, "parts": parts})
    else:
        _show_verified(found, is_right=is_right, repair=repair)
    if not is_right:
        raise typer.Exit(1)


def _show_verified(found: tuple[Verified, ...], *, is_right: bool, repair: bool) -> None:
    from loom.admin.maintenance import NOTHING

    out = console()
    table = Table("part", "user", "index of", "missing", "extra", "wrong", box=None, pad_edge=False)
    for part in found:
        difference = part.difference
        if difference is None:
            out.print(Text(f"{part.part} ({part.store}): {NOTHING}"), soft_wrap=True)
            continue
        checked = f"{difference.users:,} users and {difference.vectors:,} vectors"
        out.print(Text(f"{part.part} ({part.store}): checked {checked}"), soft_wrap=True)
        for problem in difference.problems:
            out.print(Text(f"! {problem}; restore the file from a copy", style="yellow"), soft_wrap=True)
        for lost in difference.damaged:
            done = "it was removed" if repair else "--repair removes it; if you have a copy, restore that first"
            out.print(Text(f"! {lost}; {done}", style="yellow"), soft_wrap=True)
        for one in difference.by_user:
            counts = (f"{count:,}" for count in (one.missing, one.extra, one.wrong))
            table.add_row(part.part, Text(user_name(one.user)), one.what, *counts)
    if table.row_count:
        out.print(table)
    if table.row_count or any(part.difference and part.difference.damaged for part in found):
        out.print("everything was repaired" if is_right else "they differ" if repair else "they differ; see --repair")
    elif is_right:
        out.print("no difference")


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The store to read.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The store to write; a file is created if needed.")],
    namespace: Annotated[str | None, typer.Option(help="Only this namespace; by default, all of them.")] = None,
    json: Json = False,
) -> None:
    """Copy all data of all users, sessions included, to another store; if interrupted, run it again to continue.

    Records with the same id are replaced in DST; its other records stay. Do not write to either store during the copy.
    Afterwards both sides are counted and compared by digest, user by user (--json shows all); exit code 1 if they
    differ.
    """
    from loom.admin.copy import copy_places

    with progress_bar("copying") as progress:
        done = anyio.run(partial(copy_places, source, target, namespace=namespace, progress=progress))
    if json:
        kinds = [{**plain(one), "is_equal": one.is_equal} for one in done.kinds]
        print_json({**plain(done), "is_equal": done.is_equal, "kinds": kinds})
    else:
        _show_copied(done)
    if not done.is_equal:
        raise typer.Exit(1)


_DIFFERENCES = 20
"""Differences that are named one by one."""


def _show_copied(done: Copied) -> None:
    out = console()
    table = Table("kind", "source", "target", "", box=None, pad_edge=False)
    for kind in dict.fromkeys(one.kind for one in done.kinds):
        own = [one for one in done.kinds if one.kind == kind]
        sides = (sum(one.source.count for one in own), sum(one.target.count for one in own))
        table.add_row(kind, *(f"{count:,}" for count in sides), "same" if all(o.is_equal for o in own) else "differs")
    if table.row_count:
        out.print(table)
    other = [one for one in done.kinds if not one.is_equal]
    for one in other[:_DIFFERENCES]:
        counts = f"{one.source.count:,} and {one.target.count:,}"
        out.print(Text(f"! {user_name(one.user)}: {one.kind} differs ({counts})", style="yellow"), soft_wrap=True)
    if len(other) > _DIFFERENCES:
        out.print(Text(f"! {len(other) - _DIFFERENCES:,} more differ; --json lists all", style="yellow"))
    for note in done.notes:
        out.print(Text(f"! {note}", style="yellow"), soft_wrap=True)
    out.print(f"{done.users:,} users; {done.written:,} records and checkpoints written")


# `loom doctor`: report what is installed, and what a store guarantees.


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A store, such as sqlite:PATH or postgres://...; without it, the installation."
        ),
    ] = None,
    named: NamedUrl = None,
    json: Json = False,
) -> None:
    """Report what is installed, or whether a store answers and what it guarantees with its current settings.

    The exit code is 1 if a part of the store does not answer, or if the model that LOOM_MODEL names cannot be used.
    """
    place = _given(url, named)
    if place is None:
        _installation(json=json)
        return
    from loom.admin.doctor import examine
    from loom.engine.urls import check_is_there

    check_is_there(place)
    with progress_bar("asking"):
        found = anyio.run(examine, place)
    if json:
        print_json(found)
    else:
        _show(found)
    if any(part.failure for part in found):
        raise typer.Exit(1)


def _installation(*, json: bool) -> None:
    from loom.admin.doctor import installed

    found, table = installed(), _table()
    for name in ("python", "loom", "embedder", "model"):
        table.add_row(name, Text(getattr(found, name)))
    if found.model_failure:
        table.add_row("", Text(f"cannot be used: {found.model_failure}", style="yellow"))
    for extra, status in found.extras.items():
        table.add_row(f"extra {extra}", Text(status))
    if json:
        print_json(found)
    else:
        console().print(table)
    if found.model_failure:
        raise typer.Exit(1)


def _show(found: tuple[Examined, ...]) -> None:
    from loom.admin.doctor import LABELS

    table = _table()
    for part in found:
        answers = Text("yes") if part.failure is None else Text(f"no: {part.failure}", style="yellow")
        prefix = "" if len(found) == 1 else f"{part.part} "
        table.add_row(f"{prefix}answers", answers)
        table.add_row(f"{prefix}kind", part.store)
        for label in sorted(part.labels, key=lambda one: LABELS.index(one) if one in LABELS else len(LABELS)):
            table.add_row(f"{prefix}{label}", Text(part.labels[label]))
    console().print(table)


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table
