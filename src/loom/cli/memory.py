"""`loom memory`: a memory file on the command line."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from loom.cli.output import console, plain, print_json, progress_bar
from loom.errors import UsageError

app = typer.Typer(help="Remember, recall and forget, in a memory file.", no_args_is_help=True)

Db = Annotated[str, typer.Option("--db", help="The memory: sqlite:PATH.", envvar="LOOM_MEMORY")]
User = Annotated[str, typer.Option("--user", help="Whose memory.", envvar="LOOM_USER")]
Embedder = Annotated[
    str | None,
    typer.Option(
        "--embedder",
        help="The embedder: wordllama, minilm, openai, openai-large, hash; picked by itself if not given.",
        envvar="LOOM_EMBEDDER",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT = "sqlite:./loom-memory.db"


@contextmanager
def _opened(db: str, embedder: str | None = None) -> Generator[Any]:
    from loom.engine import open_memory_sync

    with open_memory_sync(db, embedder=embedder) as memory:
        yield memory


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        console().print(Text(f"! {note}", style="yellow"))


@app.command()
def add(
    text: Annotated[list[str], typer.Argument(help="What to remember; each argument is one thing.")],
    *,
    db: Db = DEFAULT,
    user: User = "me",
    session: Annotated[str | None, typer.Option(help="The conversation it belongs to.")] = None,
    embedder: Embedder = None,
    json: Json = False,
) -> None:
    """Remember something."""
    with _opened(db, embedder) as memory:
        done = memory.remember(text, user_id=user, session_id=session)
        notes = done.notes + memory.metabolize(user_id=user).notes
        facts = memory.facts(user_id=user)
    if json:
        kept = [e.id for e in done.kept]
        print_json({"kept": kept, "skipped": plain(done.skipped), "facts": len(facts), "notes": notes})
        return
    out = console()
    out.print(f"kept {len(done.kept)}; {len(facts)} facts are known of {user}")
    for skip in done.skipped:
        out.print(Text(f"left out {skip.text!r}: {skip.reason}", style="yellow"))
    _print_notes(notes)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="The question, in plain words.")],
    *,
    db: Db = DEFAULT,
    user: User = "me",
    limit: Annotated[int, typer.Option(help="Hits at the most.")] = 8,
    embedder: Embedder = None,
    json: Json = False,
) -> None:
    """Recall what is known, and why each hit is there."""
    with _opened(db, embedder) as memory:
        found = memory.recall(query, user_id=user, limit=limit)
    if json:
        hits = [
            {"id": h.item.id, "kind": h.item.kind, "text": h.item.text, "score": h.score, "why": h.why} for h in found
        ]
        print_json({"hits": hits, "searched": found.searched, "notes": found.notes})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("score", "kind", "text", "why"):
        table.add_column(name, overflow="fold")
    for hit in found:
        why = ", ".join(f"{name} {value:.2f}" for name, value in hit.why.items())
        table.add_row(f"{hit.score:.2f}", hit.item.kind, Text(hit.item.text), Text(why, style="dim"))
    console().print(table if found.hits else f"nothing found among the {found.searched} records of {user}")
    _print_notes(found.notes)


@app.command()
def facts(
    db: Db = DEFAULT,
    user: User = "me",
    history: Annotated[bool, typer.Option(help="Retired facts, too.")] = False,
    json: Json = False,
) -> None:
    """What is known for a fact, and since when."""
    with _opened(db) as memory:
        found = memory.facts(user_id=user, history=history)
    if json:
        print_json(found)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("subject", "predicate", "object", "true from", "until", "believed from", "until"):
        table.add_column(name)
    for fact in found:
        times = (fact.valid_from, fact.valid_until, fact.recorded_at, fact.superseded_at)
        days = [at.strftime("%Y-%m-%d") if at else "" for at in times]
        table.add_row(Text(fact.subject), Text(fact.predicate), Text(fact.object), *days)
    console().print(table if found else f"no facts are known of {user}")


@app.command()
def show(
    id: Annotated[
        str | None, typer.Argument(help="A record; without one, the profile that is shown in every turn.")
    ] = None,
    db: Db = DEFAULT,
    user: User = "me",
    json: Json = False,
) -> None:
    """A record with where it comes from and what came of it, or a user's profile."""
    with _opened(db) as memory:
        found = memory.explain(id, user_id=user) if id else memory.profile(user_id=user)
    if json:
        print_json(found)
        return
    out = console()
    out.print(Text(str(found) or f"nothing is known of {user}"))
    if not id and found.standing.left_out:
        left = len(found.standing.left_out)
        _print_notes((f"{left} more stand and are not shown: they take more than the tokens set aside for them",))


@app.command()
def stats(db: Db = DEFAULT, user: User = "me", embedder: Embedder = None, json: Json = False) -> None:
    """How much is known, by layer, and which embedder is used."""
    with _opened(db, embedder) as memory:
        found = memory.stats(user_id=user)
        note = memory.embedder_note
    if json:
        print_json({**found, "embedder": note})
        return
    table = Table(box=None, pad_edge=False)
    for name, count in found.items():
        table.add_row(name, f"{count:,}")
    console().print(table)
    console().print(Text(note))


@app.command()
def forget(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Records to forget; without any, everything of the user.")
    ] = None,
    db: Db = DEFAULT,
    user: User = "me",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Forget records, or a whole user."""
    if not ids and not yes:
        typer.confirm(f"Forget everything that is known of {user}?", abort=True)
    with _opened(db) as memory:
        receipt = memory.forget(*(ids or ()), user_id=user)
    if json:
        print_json(receipt)
        return
    console().print(f"removed {', '.join(f'{n} {kind}' for kind, n in receipt.removed.items()) or 'nothing'}")
    for line in receipt.pending:
        console().print(Text(f"pending: {line}", style="yellow"))


@app.command(name="export")
def export_(
    db: Db = DEFAULT,
    user: User = "me",
    to: Annotated[Path | None, typer.Option(help="A file; the terminal if not given.")] = None,
    json: Annotated[bool, typer.Option("--json", help="It always is JSON; this changes nothing.")] = False,  # noqa: ARG001
) -> None:
    """Everything of a user as JSON lines."""
    with _opened(db) as memory:
        lines = memory.export(user_id=user)
    if to is None:
        typer.echo("\n".join(lines))
    else:
        try:
            to.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{to} cannot be written: {error.strerror}; give another file") from error
        console().print(f"wrote {len(lines) - 1} records to {to}")


@app.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(help="An export of Loom or of ChatGPT, Claude Code transcripts, JSON lines.")],
    db: Db = DEFAULT,
    user: User = "me",
    embedder: Embedder = None,
    json: Json = False,
) -> None:
    """Read conversations or an export into a user's memory; reading a file again adds nothing."""
    with _opened(db, embedder) as memory, progress_bar("importing") as progress:
        if _is_export(path):
            done = memory.import_(_lines(path), user_id=user, progress=progress)
            kept, notes = len(done.kept), done.notes
        else:
            kept, notes = _import_transcripts(memory, path, user, progress)
    if json:
        print_json({"imported": kept, "notes": notes})
        return
    console().print(f"imported {kept} records for {user}")
    _print_notes(notes)


def _import_transcripts(
    memory: Any, path: Path, user: str, progress: Callable[[int, int], None]
) -> tuple[int, tuple[str, ...]]:
    from loom.memory.transcripts import read_transcripts

    kept, notes = 0, dict[str, None]()
    conversations = read_transcripts(path)
    for number, found in enumerate(conversations, 1):
        key = f"import:{found.session_id}"
        done = memory.remember(found.turns, user_id=user, session_id=found.session_id, key=key)
        kept += len(done.kept) - len(done.skipped)
        notes.update(dict.fromkeys(done.notes))
        progress(number, len(conversations))
    notes.update(dict.fromkeys(memory.metabolize(user_id=user).notes))
    return kept, tuple(notes)


@app.command()
def reembed(db: Db = DEFAULT, embedder: Embedder = None, json: Json = False) -> None:
    """Give every record of every user a vector of another embedder; broken off, it goes on where it stopped."""
    with _opened(db, embedder) as memory, progress_bar("embedding") as progress:
        done = memory.reembed(progress=progress)
    if json:
        print_json(done)
        return
    let_go = "; the vectors of another embedder are gone" if done.exchanged else ""
    console().print(f"embedded {done.records:,} records with {done.embedder}{let_go}")


@app.command()
def work(db: Db = DEFAULT, json: Json = False) -> None:
    """Do the jobs that wait, of every user."""
    with _opened(db) as memory:
        done = memory.metabolize()
    if json:
        print_json(done)
        return
    counts = ", ".join(f"{n} {what}" for what, n in done.counts.items() if n)
    console().print(f"did {done.jobs} jobs{': ' + counts if counts else ''}")
    _print_notes((*done.notes, *(f"failed: {reason}" for reason in done.failed)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; give an export in UTF-8") from error


def _is_export(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().startswith('{"loom": "memory"')
    except (OSError, UnicodeDecodeError):
        return False
