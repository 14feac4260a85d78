"""`loom session`: show, restore, fork, export and compact saved conversations, and list their requests."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from loom.admin.sessions import compact_saved, find_checkpoint, recent_sessions, saved_session
from loom.cli.output import DEFAULT, WHO, Json, console, echo_json, print_json, print_listed, write_file
from loom.cli.store import run_and_close
from loom.core.codec import log_to_dict
from loom.core.message import plain
from loom.core.scope import Scope

if TYPE_CHECKING:
    from loom.core.log import Checkpoint
    from loom.protocols.checkpoint_store import CheckpointStore
    from loom.session.journal import RequestRecord
    from loom.session.session import Session

app = typer.Typer(help="Show saved conversations, go back in them, fork and compact them.", no_args_is_help=True)

Store = Annotated[
    str,
    typer.Option(
        "--store",
        "--url",
        help="The store of sessions: sqlite:PATH or files:FOLDER, or the memory that they are beside.",
        envvar=["LOOM_SESSIONS", "LOOM_MEMORY"],
    ),
]
User = Annotated[str, typer.Option("--user", help="The user of the conversations.", envvar="LOOM_USER")]
Namespace = Annotated[str, typer.Option("--namespace", help="The namespace of the application.")]
Id = Annotated[str, typer.Argument(help="The id of the conversation.")]
At = Annotated[str | None, typer.Option("--at", help="A checkpoint id, or the number of a turn; by default, the last.")]
_T = TypeVar("_T")
_WIDEST = 10_000


def _run(store: str, work: Callable[[CheckpointStore], Awaitable[_T]]) -> _T:
    """Run work on a store that must exist already."""
    from loom.engine.open import open_checkpoints
    from loom.engine.urls import check_is_there, sessions_place

    place = sessions_place(store) or store
    opened = open_checkpoints(place)
    check_is_there(place)
    return run_and_close(opened, work)


@app.command("list")
def list_(
    store: Store = DEFAULT,
    user: User = WHO,
    namespace: Namespace = "default",
    limit: Annotated[int, typer.Option(help="The maximum number of conversations.", min=1)] = 20,
    json: Json = False,
) -> None:
    """List the conversations of a user by their first words, the most recent first."""
    scope = Scope(namespace, user)
    found = _run(store, lambda opened: recent_sessions(opened, scope, limit=limit + 1))
    more, found = len(found) > limit, found[:limit]
    if json:
        print_json([{"session": id, "begins": text, "checkpoints": n, "last": last} for id, text, n, last in found])
        return
    if not found:
        console().print(Text(f"user {user!r} has no conversations here"))
        return
    for line in found:
        tokens = line.last.usage.input + line.last.usage.output
        counts = f"turns: {line.last.turn:,}, checkpoints: {line.checkpoints:,}, tokens: {tokens:,}"
        print_listed(line.id, line.begins, f"{counts}, saved {_time(line.last)}")
    if more:
        console().print(Text(f"there are more; --limit {limit * 2} shows them"))


def _time(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.at:%Y-%m-%d %H:%M:%S}"


def _print_whole(table: Table) -> None:
    """Print a table at its full width, even in a narrow terminal: an id that is cut is useless."""
    out = console()
    out.width = max(out.width, out.measure(table, options=out.options.update(width=_WIDEST)).maximum)
    out.print(table)


@app.command()
def show(
    id: Id,
    store: Store = DEFAULT,
    user: User = WHO,
    namespace: Namespace = "default",
    at: At = None,
    whole: Annotated[bool, typer.Option("--all", help="Show all original messages, compacted ones too.")] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="List its checkpoints, for --at.")] = False,
    json: Json = False,
) -> None:
    """Show a conversation as the model sees it, and what was compacted."""
    scope = Scope(namespace, user, id)
    if checkpoints:
        _show_checkpoints(store, scope, json=json)
        return

    async def work(opened: CheckpointStore) -> tuple[Session, list[tuple[str, str, str]]]:
        session = await saved_session(opened, scope, at)
        shown = session.log if whole else session.shown
        return session, [(i.id, i.message.role, "\n".join(map(plain, i.message.parts))) for i in shown]

    session, lines = _run(store, work)
    if json:
        messages = [{"id": message, "role": role, "text": text} for message, role, text in lines]
        print_json({"session": id, "turn": session.turn, "messages": messages, "compactions": session.compactions})
        return
    out = console()
    for message, role, text in lines:
        out.print(Text.assemble((f"{role:9} ", "bold"), text, (f"  {message}", "dim")))
    for done in session.compactions:
        out.print(
            Text(f"compaction {done.id}: {done.strategy}, {done.tokens_before:,} -> {done.tokens_after:,} tokens")
        )


def _show_checkpoints(store: str, scope: Scope, *, json: bool) -> None:
    async def work(opened: CheckpointStore) -> tuple[Checkpoint, ...]:
        await find_checkpoint(opened, scope, None)
        return await opened.list(scope)

    saved = _run(store, work)
    if json:
        print_json([{"id": point.id, "turn": point.turn, "at": point.at} for point in saved])
        return
    table = Table("checkpoint", "turn", "saved", box=None, pad_edge=False)
    for point in saved:
        table.add_row(point.id, str(point.turn), _time(point))
    _print_whole(table)


@app.command()
def requests(
    id: Id,
    store: Store = DEFAULT,
    user: User = WHO,
    namespace: Namespace = "default",
    at: At = None,
    json: Json = False,
) -> None:
    """List the requests of a conversation: tokens, what the cache did, what it cost, and what failed."""
    from loom.session.journal import requests_of

    scope = Scope(namespace, user, id)

    async def work(opened: CheckpointStore) -> tuple[RequestRecord, ...]:
        found = await find_checkpoint(opened, scope, at)
        return await requests_of(opened, scope, found.id)

    records = _run(store, work)
    if json:
        print_json(records)
        return
    if not records:
        console().print(Text(f"conversation {id!r} has no records of requests; an earlier Loom kept none"))
        return
    table = Table(
        *("turn", "time", "for", "model", "input", "read", "expected", "written", "output", "cost", "remark"),
        box=None,
        pad_edge=False,
    )
    for record in records:
        table.add_row(*_request_row(record))
    _print_whole(table)


def _request_row(record: RequestRecord) -> list[Text]:
    usage, loss = record.usage, record.loss
    where = f" at {loss.path}, byte {loss.byte:,}" if loss and loss.byte is not None else ""
    remark = record.error or (f"{loss.cause}{where}: {loss.tokens:,} tokens lost" if loss else "")
    cells = [
        str(record.turn),
        f"{record.at:%Y-%m-%d %H:%M:%S}",
        record.purpose,
        record.model,
        _number(usage and usage.input),
        _number(record.cache_read),
        _number(record.predicted_read),
        _number(record.cache_write),
        _number(usage and usage.output),
        "" if record.cost is None else f"${record.cost:.4f}",
        remark,
    ]
    return [Text(cell) for cell in cells]


def _number(count: int | None) -> str:
    """A count, or nothing where none was reported: that is not 0."""
    return "" if count is None else f"{count:,}"


@app.command()
def restore(
    id: Id,
    at: Annotated[str, typer.Option("--at", help="A checkpoint id, or the number of a turn.")],
    store: Store = DEFAULT,
    user: User = WHO,
    namespace: Namespace = "default",
    json: Json = False,
) -> None:
    """Go back to an earlier point of a conversation; later checkpoints stay available."""
    scope = Scope(namespace, user, id)

    async def work(opened: CheckpointStore) -> Checkpoint:
        session = await saved_session(opened, scope, at)
        return await session.checkpoint()

    saved = _run(store, work)
    _say(json, saved, f"conversation {id!r} continues from turn {saved.turn} (checkpoint {saved.id})")


@app.command()
def fork(
    id: Id,
    new_id: Annotated[str | None, typer.Option("--as", help="The id of the new conversation.")] = None,
    store: Store = DEFAULT,
    user: User = WHO,
    namespace: Namespace = "default",
    at: At = None,
    json: Json = False,
) -> None:
    """Begin a new conversation at a point of another; both continue separately."""
    scope = Scope(namespace, user, id)

    async def work(opened: CheckpointStore) -> tuple[str, int]:
        session = await saved_session(opened, scope, at)
        found = await find_checkpoint(opened, scope, at)
        forked = await session.fork(found.id, session_id=new_id)
        return forked.id, forked.turn

    name, turn = _run(store, work)
    _say(json, {"session": name, "turn": turn}, f"conversation {name!r} begins at turn {turn} of {id!r}")


@app.command()
def export(
    id: Id,
    store: Store = DEFAULT,
    user: User = WHO,
    namespace: Namespace = "default",
    at: At = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default, standard output.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The output is always JSON.")] = False,  # noqa: ARG001
) -> None:
    """Write a conversation as one JSON document: the checkpoint and its whole log."""
    scope = Scope(namespace, user, id)

    async def work(opened: CheckpointStore) -> dict[str, Any]:
        found = await find_checkpoint(opened, scope, at)
        return log_to_dict(found, await opened.history(scope, found.id))

    document = jsonlib.dumps(_run(store, work), indent=2, ensure_ascii=False)
    if output is None:
        echo_json(document)
    else:
        write_file(output, document + "\n")
        console().print(f"written to {output}")


@app.command()
def compact(
    id: Id,
    store: Store = DEFAULT,
    user: User = WHO,
    namespace: Namespace = "default",
    strategy: Annotated[str, typer.Option(help="snapshot, truncate or sliding_window.")] = "snapshot",
    retain: Annotated[int, typer.Option(help="How many of the newest messages stay unchanged.")] = 6,
    model: Annotated[
        str, typer.Option(help="The model whose context window applies, as provider:model.")
    ] = "compatible:unknown",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would happen.")] = False,
    json: Json = False,
) -> None:
    """Compact a conversation, or report what that would do. Only strategies that need no model are available."""
    from loom.engine.open import check_name
    from loom.session.compaction.driver import CompactionPlan

    scope = Scope(namespace, user, id)
    check_name(model)

    async def work(opened: CheckpointStore) -> Any:
        return await compact_saved(opened, scope, strategy=strategy, retain=retain, model=model, dry_run=dry_run)

    done = _run(store, work)
    if dry_run:
        _say(json, {**_counts(done), "calls": done.calls, "goes": [s.id for s in done.goes]}, str(done))
    elif isinstance(done, CompactionPlan):
        text = f"nothing to compact: the newest {retain} messages are kept, and there are no others"
        _say(json, {**_counts(done), "undo": None}, text)
    else:
        text = f"{done.strategy}: {done.tokens_before:,} -> {done.tokens_after:,} tokens; its handle is {done.id}"
        _say(json, {**_counts(done), "undo": done.id}, text)


def _counts(done: Any) -> dict[str, Any]:
    return {"strategy": done.strategy, "tokens_before": done.tokens_before, "tokens_after": done.tokens_after}


def _say(json: bool, value: object, text: str) -> None:
    if json:
        print_json(value)
    else:
        console().print(Text(text))
