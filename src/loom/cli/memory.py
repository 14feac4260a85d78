"""`loom memory`: a memory on the command line, with its import."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.table import Table
from rich.text import Text

from loom.cli.output import (
    DEFAULT,
    Json,
    ask,
    console,
    echo,
    echo_json,
    plain,
    print_json,
    print_listed,
    progress_bar,
    progress_bars,
    write_file,
)
from loom.errors import NotFound, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from loom.traces.transcript import Transcript


# `loom memory import`: read a file or a pipe into a memory, piece by piece, and count the result.


_NOTES = 20
_NAMED = 5
_DAMAGED = ("broken", "unfinished", "too long", "file")
"""Reasons that a user can do something about, so each has its file and line."""


@dataclass(slots=True)
class Imported:
    """Counts of an import."""

    new: int = 0
    there: int = 0
    """Records that were already stored."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """How many entries were left out, by reason."""
    notes: dict[str, None] = field(default_factory=dict[str, None])
    """Notes for the user, each once."""
    more: int = 0
    """Damaged files and lines that have no note of their own."""

    def note(self, text: str) -> None:
        """Add a note about a file; after some of them the rest is only counted."""
        if len(self.notes) < _NOTES:
            self.notes[text] = None
        else:
            self.more += 1

    def __str__(self) -> str:
        """The counts, for people."""
        there = f", {self.there:,} already there" if self.there else ""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.most_common())
        return f"{self.new:,} new{there}" + (f", {self.left_out.total():,} left out ({reasons})" if reasons else "")


def import_files(
    memory: Any,
    paths: Sequence[Path],
    *,
    user: str,
    progress: Callable[[int, int], None],
    learning: Callable[[int, int], None] | None = None,
) -> Imported:
    """Read exports of Loom and what other programs recorded into a user's memory, piece by piece.

    `progress` is called with the bytes read and the size of the files, and `learning` with the jobs that are done and
    their number: they extract facts from what was written.
    """
    from loom.memory._upkeep import metabolism
    from loom.traces.reader import TranscriptReader, find_files, short_reason

    files = find_files(paths)
    reading = _Progress(progress, [one.path for one in files])
    done, reader = Imported(), TranscriptReader()
    has_turns = False
    for path, is_named in files:
        try:
            has_turns |= _import_file(memory, reader, path, user, done, reading, is_named=is_named)
        except UsageError as error:
            if is_named:
                kept = f"{done.new + done.there:,} records before it are kept; correct the file and import all of it "
                again = f"{kept}again, nothing is added twice" if done.new + done.there else "nothing was imported"
                raise UsageError(f"{path}: {error}; {again}") from error
            done.left_out["file"] += 1
            done.note(f"{path} was left out: {short_reason(error)}")
        reading.next_file(path)
    jobs = 0
    while has_turns:
        learned = memory.metabolize(user_id=user, progress=_after(jobs, learning))
        done.notes.update(dict.fromkeys(learned.notes))
        has_turns = learned.jobs >= metabolism.PASS  # after fewer there is nothing left to do
        jobs += learned.jobs
    return done


def _after(before: int, report: Callable[[int, int], None] | None) -> Callable[[int, int], None] | None:
    """A report that counts on from the passes before."""
    return None if report is None else lambda done, total: report(before + done, before + total)


def _import_file(
    memory: Any, reader: Any, path: Path, user: str, done: Imported, progress: _Progress, *, is_named: bool
) -> bool:
    """Import one file; returns whether it had turns, from which facts are still to be extracted."""
    from loom.memory._upkeep.portable import batches
    from loom.traces.notes import is_markdown, read_markdown
    from loom.traces.stream import JsonStream, pieces_of

    pieces = pieces_of(path, progress)
    if is_markdown(path):
        _import_transcripts(memory, read_markdown(pieces, str(path)), user, done)
        return True
    stream, start = JsonStream(pieces), 0
    if not stream.begins_with("loom"):
        _import_transcripts(memory, reader.read(stream, str(path)), user, done)
        return True
    if not is_named:  # a folder may hold what others wrote, and an export brings instructions that stand at once
        raise UsageError("it is an export of Loom, with instructions and pinned texts; name the file to import it")
    for lines in batches(stream.lines()):
        with _delay_interrupt():
            read = memory.import_(lines, user_id=user, start=start)
        start += len(lines)
        there = len(read.skipped)
        done.there += there
        done.new += len({record.id for record in read.kept}) - there
        done.notes.update(dict.fromkeys(read.notes))
    return False


def _import_transcripts(memory: Any, transcripts: Iterable[Transcript], user: str, done: Imported) -> None:
    owned: list[Transcript] = []
    for found in transcripts:
        if found.owner:
            owned.append(found)  # whether they are of several users is known at the end of the file
        else:
            _import_transcript(memory, found, user, done)
    owners = {found.owner for found in owned}
    for found in owned:
        if len(owners) == 1 or found.owner == user:
            _import_transcript(memory, found, user, done)
        else:
            done.left_out["another user"] += len(found.texts)
    if len(owners) > 1:
        named = ", ".join(sorted(owners)[:_NAMED])
        done.note(f"the file has memories of {len(owners):,} users ({named}); only those of {user} were imported")


def _import_transcript(memory: Any, transcript: Transcript, user: str, done: Imported) -> None:
    from loom.memory._upkeep.transcripts import parts_of
    from loom.memory.results import REPEATED

    for part in parts_of(transcript):
        reasons = Counter(part.skipped)
        if part.turns:
            with _delay_interrupt():
                read = memory.remember(part.turns, user_id=user, session_id=part.session_id, key=part.key)
            reasons.update(skip.reason for skip in read.skipped)
            there = reasons.pop(REPEATED, 0)
            done.there += there
            done.new += len(read.kept) - there
            done.notes.update(dict.fromkeys(read.notes))
        for reason, count in reasons.items():
            done.left_out[reason.partition(":")[0]] += count
    for skip in transcript.skipped:
        if skip.reason.startswith(_DAMAGED):
            done.note(f"{transcript.path}, line {skip.line} was left out: {skip.reason.partition(': ')[2]}")


class _Progress:
    """The progress of several files as that of one."""

    def __init__(self, report: Callable[[int, int], None], paths: Iterable[Path]) -> None:
        self._report = report
        self._sizes = {path: _size(path) for path in paths}
        self._done = 0

    def __call__(self, done: int, _: int) -> None:
        self._report(self._done + done, max(self._done + done, sum(self._sizes.values())))

    def next_file(self, path: Path) -> None:
        self._done += self._sizes[path]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reading it says so
        return 0


@contextmanager
def _delay_interrupt() -> Generator[None]:
    """Delay Ctrl-C until the block is done, so that no record is left without a vector; a second one acts at once."""
    signals: list[int] = []

    def note(number: int, _: object) -> None:
        signals.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


app = typer.Typer(help="Remember, recall and forget.", no_args_is_help=True)


def _not_blank(param: typer.CallbackParam, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise UsageError(f"--{param.name} is empty; give it a name")
    return value


Url = Annotated[str, typer.Option("--url", help="The memory: sqlite:PATH or another URL.", envvar="LOOM_MEMORY")]
User = Annotated[str, typer.Option("--user", help="The user.", envvar="LOOM_USER", callback=_not_blank)]
Embedder = Annotated[
    str | None,
    typer.Option(
        "--embedder",
        help="The embedder: static, wordllama, minilm, openai, openai-large, hash; by default, one on this machine.",
        envvar="LOOM_EMBEDDER",
    ),
]


@contextmanager
def _opened(
    url: str, embedder: str | None = None, *, may_be_new: bool = False, model: str | None = None
) -> Generator[Any]:
    """Open the memory at a URL; one that does not exist is refused, unless the command is about to fill it."""
    from loom.engine import open_memory_sync
    from loom.engine.open import open_model
    from loom.engine.urls import check_is_there
    from loom.memory._write.extract_llm import LlmExtractor

    if not may_be_new:
        check_is_there(url)
    reads = None if model is None else LlmExtractor(open_model(model))  # turns that wait for a model
    with open_memory_sync(url, embedder=embedder, extractor=reads) as memory:
        yield memory


def _similar(url: str, user: str) -> list[dict[str, str | int]]:
    """The users with almost this name, if nothing is stored for this one.

    Only operators have the command line of a store, and they may see its users.
    """
    from loom.admin.maintenance import similar_users
    from loom.core.scope import Scope
    from loom.engine.urls import Opening, store_at

    async def find() -> list[dict[str, str | int]]:
        async with aclosing(store_at(url, Opening(makes=False))) as store:
            scope = Scope(user_id=user)
            return [] if await store.count(scope) else [one._asdict() for one in await similar_users(store, scope)]

    return anyio.run(find)


def _print_similar(url: str, user: str) -> bool:
    """Say which users have almost this name; False if there are none, or this user has records."""
    found = _similar(url, user)
    if found:
        names = ", ".join(f"{one['user_id']!r} ({one['records']:,} records)" for one in found)
        _print_notes((f"nothing is stored for user {user!r}; did you mean {names}?",))
    return bool(found)


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        console().print(Text(f"! {note}", style="yellow"))


@app.command(name="remember", hidden=True)  # as in Python
@app.command()
def add(
    text: Annotated[list[str], typer.Argument(help="The texts to remember, one per argument; - is standard input.")],
    *,
    url: Url = DEFAULT,
    user: User = "me",
    session: Annotated[str | None, typer.Option(help="The conversation it belongs to.", callback=_not_blank)] = None,
    embedder: Embedder = None,
    json: Json = False,
) -> None:
    """Remember something."""
    text = [sys.stdin.read().strip() if one == "-" else one for one in text]
    with _opened(url, embedder, may_be_new=True) as memory:
        done = memory.remember(text, user_id=user, session_id=session)
        notes = done.notes + memory.metabolize(user_id=user).notes
        facts = memory.facts(user_id=user)
    if json:
        kept = [e.id for e in done.kept]
        print_json({"kept": kept, "skipped": plain(done.skipped), "facts": len(facts), "notes": notes})
        return
    out = console()
    out.print(f"kept {len(done.kept)}; {len(facts)} {'fact is' if len(facts) == 1 else 'facts are'} known of {user}")
    for skip in done.skipped:
        out.print(Text(f"left out {skip.text!r}: {skip.reason}", style="yellow"))
    _print_notes(notes)


@app.command(name="recall", hidden=True)  # as in Python
@app.command()
def search(
    query: Annotated[str, typer.Argument(help="The question, in plain words.")],
    *,
    url: Url = DEFAULT,
    user: User = "me",
    limit: Annotated[int, typer.Option(help="The maximum number of hits.", min=1)] = 8,
    embedder: Embedder = None,
    json: Json = False,
) -> None:
    """Recall what is known, and show why each hit was found.

    Only the beginning of a long text is shown; `show` and --json print all of it.
    """
    if not query.strip():
        raise UsageError("the question is empty; ask in words, or see everything with `loom memory export`")
    with _opened(url, embedder) as memory:
        found = memory.recall(query, user_id=user, limit=limit)
    if json:
        hits = [
            {"id": h.item.id, "kind": h.item.kind, "text": h.item.text, "score": h.score, "why": h.why} for h in found
        ]
        similar = _similar(url, user) if found.searched == 0 else ()
        print_json({"hits": hits, "searched": found.searched, "notes": found.notes, "similar_users": similar})
        return
    for hit in found:
        why = ", ".join(f"{name} {value:.2f}" for name, value in hit.why.items())
        print_listed(hit.item.id, hit.text, f"{hit.item.kind}, score {hit.score:.2f}: {why}")
    if not found.hits:
        console().print(Text(f"nothing found among the {found.searched} records of {user}"))
    if found.searched != 0 or not _print_similar(url, user):
        _print_notes(found.notes)


@app.command()
def facts(
    url: Url = DEFAULT,
    user: User = "me",
    history: Annotated[bool, typer.Option(help="Include retired facts.")] = False,
    at: Annotated[str | None, typer.Option(help="What was true then: a date or a time, such as 2026-03-05.")] = None,
    known_at: Annotated[str | None, typer.Option(help="What was believed then: a date or a time.")] = None,
    json: Json = False,
) -> None:
    """List the known facts, with the periods in which they are true and believed."""
    from loom.core.checks import read_time

    times = {"at": read_time(at, "--at"), "known_at": read_time(known_at, "--known-at")}
    with _opened(url) as memory:
        found = memory.facts(user_id=user, history=history, **times)
    if json:
        print_json(found)
        return
    for fact in found:
        true, believed = _days(fact.valid_from, fact.valid_until), _days(fact.recorded_at, fact.superseded_at)
        print_listed(fact.id, fact.text, f"true {true}; believed {believed}")
    if not found:
        console().print(Text(f"no facts are known of {user}{' for that time' if at or known_at else ''}"))
        _print_similar(url, user)


def _days(start: datetime | None, end: datetime | None) -> str:
    """The first day, and the last one if there is one."""
    days = [f"{word} {at:%Y-%m-%d}" for word, at in (("from", start), ("until", end)) if at]
    return " ".join(days) or "at any time"


@app.command()
def show(
    id: Annotated[
        str | None, typer.Argument(help="A record id; without it, the profile that is shown in every turn.")
    ] = None,
    url: Url = DEFAULT,
    user: User = "me",
    json: Json = False,
) -> None:
    """Show a record with its sources and what was derived from it, or a user's profile."""
    with _opened(url) as memory:
        found = _explained(memory, id, user) if id else memory.profile(user_id=user)
    if json:
        print_json(found)
        return
    out = console()
    out.print(Text(str(found) or f"nothing is known of {user}"))
    if not str(found):
        _print_similar(url, user)
    if not id and found.standing.left_out:
        left = len(found.standing.left_out)
        _print_notes((f"{left} more standing instructions are not shown: they do not fit into the token limit",))


def _explained(memory: Any, id: str, user: str) -> Any:
    try:
        return memory.explain(id, user_id=user)
    except NotFound as error:
        hint = "`loom memory search` and `loom memory facts` show the ids"
        raise NotFound(f"user {user!r} has no record {id!r}; {hint}") from error


@app.command()
def standing(url: Url = DEFAULT, user: User = "me", json: Json = False) -> None:
    """List the standing preferences and instructions, and those that wait to be confirmed."""
    with _opened(url) as memory:
        found = memory.standing(user_id=user)
    if json:
        print_json(found)
        return
    for item in (*found.items, *found.left_out):
        print_listed(item.id, item.text, f"since {item.since:%Y-%m-%d}" if item.since else "at any time")
    for item in found.unconfirmed:
        hint = f"`loom memory confirm {item.id}` accepts it, `reject` drops it"
        print_listed(item.id, item.text, f"waiting since {item.since:%Y-%m-%d}: {hint}")
    if not (found.items or found.left_out or found.unconfirmed):
        console().print(Text(f"{user} has no standing instructions"))
        _print_similar(url, user)


@app.command()
def history(
    block: Annotated[
        str | None, typer.Argument(help="A pinned block; without it, the standing instructions are shown.")
    ] = None,
    url: Url = DEFAULT,
    user: User = "me",
    json: Json = False,
) -> None:
    """Show who changed a pinned block, or the standing instructions, when and how, as diffs."""
    with _opened(url) as memory:
        found = memory.standing_history(user_id=user)[::-1] if block is None else [_block_history(memory, block, user)]
    if json:
        shown = [
            {"name": one.name, "versions": [{**plain(version), "diff": one.diff(version.number)} for version in one]}
            for one in found
        ]
        print_json(shown if block is None else shown[0])
        return
    console().print(Text("\n\n".join(str(one) for one in found) or f"{user} has no standing instructions"))
    if not found:
        _print_similar(url, user)


def _block_history(memory: Any, name: str, user: str) -> Any:
    try:
        return memory.block_history(name, user_id=user)
    except NotFound:
        names = ", ".join(repr(block.name) for block in memory.blocks(user_id=user)) or "none"
        raise NotFound(f"user {user!r} has no block {name!r}; the blocks are: {names}") from None


@contextmanager
def _named(what: str, id: str, user: str) -> Generator[None]:
    try:
        yield
    except NotFound as error:
        raise NotFound(f"user {user!r} has no {what} {id!r}; `loom memory standing` lists them") from error


@app.command()
def confirm(
    id: Annotated[str, typer.Argument(help="A waiting instruction; `standing` lists them.")],
    url: Url = DEFAULT,
    user: User = "me",
    json: Json = False,
) -> None:
    """Confirm a waiting instruction that was found inside other text."""
    with _opened(url) as memory, _named("unconfirmed instruction", id, user):
        done = memory.confirm(id, user_id=user)
    if json:
        print_json(done)
        return
    console().print(Text(f"standing instruction: {', '.join(item.text for item in done.kept)}"))
    _print_notes(done.notes)


@app.command()
def reject(
    id: Annotated[str, typer.Argument(help="A waiting or standing instruction; `standing` lists them.")],
    url: Url = DEFAULT,
    user: User = "me",
    json: Json = False,
) -> None:
    """Drop a waiting instruction, or end a standing one."""
    with _opened(url) as memory, _named("instruction", id, user):
        receipt = memory.reject(id, user_id=user)
    _print_receipt(receipt, json=json)


@app.command()
def stats(url: Url = DEFAULT, user: User = "me", embedder: Embedder = None, json: Json = False) -> None:
    """Count the records by layer, and show which embedder is used."""
    with _opened(url, embedder) as memory:
        found = memory.stats(user_id=user)
        note = memory.embedder_note
    if json:
        print_json({**found, "embedder": note})
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, count in found.items():
        table.add_row(name, f"{count:,}")
    console().print(table)
    console().print(Text(note))
    if not any(found.values()):
        _print_similar(url, user)


@app.command()
def forget(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Records to forget; without any, all data of the user.")
    ] = None,
    url: Url = DEFAULT,
    user: User = "me",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Forget records, or a whole user."""
    with _opened(url) as memory:
        if not ids and not yes:
            ask(f"Forget everything that is known of {user}?")
        for id in ids or ():
            _explained(memory, id, user)  # if one of them does not exist, nothing is forgotten
        receipt = memory.forget(*(ids or ()), user_id=user)
    _print_receipt(receipt, json=json)


def _print_receipt(receipt: Any, *, json: bool) -> None:
    if json:
        print_json(receipt)
        return
    console().print(f"removed {', '.join(f'{n} {kind}' for kind, n in receipt.removed.items()) or 'nothing'}")
    for line in receipt.pending:
        console().print(Text(f"pending: {line}", style="yellow"))


@app.command(name="export")
def export_(
    url: Url = DEFAULT,
    user: User = "me",
    to: Annotated[Path | None, typer.Option(help="A file; by default, standard output.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The output is always JSON.")] = False,  # noqa: ARG001
) -> None:
    """Write all records of a user as JSON lines."""
    with _opened(url) as memory:
        lines = [*memory.export(user_id=user)]
    if len(lines) == 1:  # the head alone
        echo(f"! nothing is stored for user {user!r}", err=True)
    if to is None:
        echo_json("\n".join(lines))
    else:
        write_file(to, "\n".join(lines) + "\n")
        console().print(f"wrote {len(lines) - 1} records to {to}")


@app.command(name="import")
def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Files, folders, patterns or pipes; - is standard input. An export of Loom; transcripts of Claude "
            "Code or Codex; exports of ChatGPT or claude.ai; spans of OpenTelemetry; logs of LiteLLM or Langfuse; "
            "recorded requests; memories of mem0, a LangGraph store, Letta (.af); Markdown; or messages with role and "
            'content: one per line, a JSON array of them, or one {"messages": [...]} per conversation.',
        ),
    ],
    url: Url = DEFAULT,
    user: User = "me",
    embedder: Embedder = None,
    json: Json = False,
) -> None:
    """Import conversations, notes or an export into a user's memory; importing a file twice adds nothing.

    The time of a message is read from timestamp, create_time, created_at or at, in ISO 8601 or seconds since 1970.
    """
    try:
        with (
            _opened(url, embedder, may_be_new=True) as memory,
            progress_bars("importing", "finding facts") as (progress, learning),
        ):
            done = import_files(memory, paths, user=user, progress=progress, learning=learning)
    except KeyboardInterrupt:
        with _opened(url, may_be_new=True) as memory:  # opened again, because the interrupted write is complete by now
            held = sum(count for name, count in memory.stats(user_id=user).items() if name not in {"jobs", "failed"})
        again = "run it again to continue, nothing is added twice"
        echo(f"loom: stopped; {held:,} records of {user} are kept; {again}", err=True)
        raise typer.Exit(130) from None
    if json:
        counts = {"imported": done.new, "there": done.there, "skipped": done.left_out}
        print_json({**counts, "notes": list(done.notes)})
        return
    console().print(f"imported for {user}: {done}")
    _print_notes((*done.notes, *([f"and {done.more:,} more notes like these"] if done.more else [])))


@app.command()
def reembed(url: Url = DEFAULT, embedder: Embedder = None, json: Json = False) -> None:
    """Embed every record of every user again with another embedder; if interrupted, run it again to continue."""
    with _opened(url, embedder) as memory, progress_bar("embedding") as progress:
        done = memory.reembed(progress=progress)
    if json:
        print_json(done)
        return
    replaced = "; the vectors of another embedder were removed" if done.exchanged else ""
    console().print(f"embedded {done.records:,} records with {done.embedder}{replaced}")


@app.command()
def work(
    url: Url = DEFAULT,
    model: Annotated[
        str | None,
        typer.Option(help="The model that reads waiting turns, as provider:model; without it they keep waiting."),
    ] = None,
    processes: Annotated[int, typer.Option(help="How many processes share the work.")] = 1,
    every: Annotated[
        float | None, typer.Option(help="Go on until it is stopped, with this pause in seconds when nothing is due.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the waiting jobs of all users.

    Several of them, on one machine or on many, share the jobs of one Postgres or Redis.
    """
    from loom.admin.workers import Worker, run_workers
    from loom.memory.results import Metabolized

    done = Metabolized()
    with progress_bar("working") as progress:

        def add(more: Metabolized) -> None:
            nonlocal done
            done += more
            progress(done.jobs, done.jobs)

        run_workers(Worker(url, model, every), processes=processes, report=add)
    if json:
        print_json(done)
        return
    counts = ", ".join(f"{n} {what}" for what, n in done.counts.items() if n)
    console().print(f"did {done.jobs} jobs{': ' + counts if counts else ''}")
    if done.bill.requests:
        console().print(Text(str(done.bill), style="dim"))
    _print_notes((*done.notes, *(f"failed: {reason}" for reason in done.failed)))


def forget_person(
    user: Annotated[str, typer.Argument(help="The user to erase.")],
    *,
    url: Annotated[
        str, typer.Option("--url", "--db", help="The store, such as sqlite:PATH.", envvar="LOOM_MEMORY")
    ] = DEFAULT,
    sessions: Annotated[
        str | None, typer.Option("--sessions", help="The store of conversations, if not beside the memory.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="The namespace of the application.")] = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Erase a person: memory, conversations and jobs, with a receipt that says what is still pending.

    The exit code is 1 if something is pending.
    """
    from loom.admin.maintenance import erase_user

    if not user.strip():
        raise UsageError("the user is empty; name the user to erase")
    if not yes:
        ask(f"Erase all data of {user}, conversations included?")

    erased = anyio.run(partial(erase_user, url, user, namespace=namespace, sessions=sessions))
    if json:
        print_json({"user": user, "stores": erased.stores, "pending": erased.pending})
    for receipt in () if json else erased.stores:
        removed = ", ".join(f"{count} {kind}" for kind, count in receipt.removed.items()) or "nothing was there"
        console().print(Text(f"{receipt.store}: {removed}"), soft_wrap=True)
        for line in receipt.pending:
            console().print(Text(f"  pending: {line}", style="yellow"), soft_wrap=True)
    if erased.pending:
        raise typer.Exit(1)
