"""`loom memory`: a memory file on the command line."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loom.cli.output import console, plain, print_json

app = typer.Typer(help="Remember, recall and forget, in a memory file.", no_args_is_help=True)

Db = Annotated[str, typer.Option("--db", help="The memory: sqlite:PATH.", envvar="LOOM_MEMORY")]
User = Annotated[str, typer.Option("--user", help="Whose memory.", envvar="LOOM_USER")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT = "sqlite:./loom-memory.db"


@contextmanager
def _opened(db: str) -> Generator[Any]:
    from loom.engine import open_memory_sync

    with open_memory_sync(db) as memory:
        yield memory


@app.command()
def add(
    text: Annotated[list[str], typer.Argument(help="What to remember; each argument is one thing.")],
    db: Db = DEFAULT,
    user: User = "me",
    session: Annotated[str | None, typer.Option(help="The conversation it belongs to.")] = None,
    json: Json = False,
) -> None:
    """Remember something."""
    with _opened(db) as memory:
        done = memory.remember(text, user_id=user, session_id=session)
        memory.metabolize(user_id=user)
        facts = memory.facts(user_id=user)
    if json:
        print_json({"kept": [e.id for e in done.kept], "skipped": plain(done.skipped), "facts": len(facts)})
        return
    out = console()
    out.print(f"kept {len(done.kept)}; {len(facts)} facts are known of {user}")
    for skip in done.skipped:
        out.print(Text(f"left out {skip.text!r}: {skip.reason}", style="yellow"))


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="The question, in plain words.")],
    db: Db = DEFAULT,
    user: User = "me",
    limit: Annotated[int, typer.Option(help="Hits at the most.")] = 8,
    json: Json = False,
) -> None:
    """Recall what is known, and why each hit is there."""
    with _opened(db) as memory:
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
    out = console()
    out.print(table if found.hits else f"nothing found among the {found.searched} records of {user}")
    for note in found.notes:
        out.print(Text(f"! {note}", style="yellow"))


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
def stats(db: Db = DEFAULT, user: User = "me", json: Json = False) -> None:
    """How much is known, by layer."""
    with _opened(db) as memory:
        found = memory.stats(user_id=user)
    if json:
        print_json(found)
        return
    table = Table(box=None, pad_edge=False)
    for name, count in found.items():
        table.add_row(name, f"{count:,}")
    console().print(table)


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
        to.write_text("\n".join(lines) + "\n", encoding="utf-8")
        console().print(f"wrote {len(lines) - 1} records to {to}")


@app.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(help="An export of Loom or of ChatGPT, Claude Code transcripts, JSON lines.")],
    db: Db = DEFAULT,
    user: User = "me",
    json: Json = False,
) -> None:
    """Read conversations or an export into a user's memory; reading a file again adds nothing."""
    from rich.progress import track

    from loom.memory.transcripts import read_transcripts

    with _opened(db) as memory:
        if _is_export(path):
            kept = len(memory.import_(path.read_text(encoding="utf-8").split("\n"), user_id=user).kept)
        else:
            kept = 0
            errors = Console(stderr=True)
            for found in track(read_transcripts(path), "importing", console=errors, transient=True):
                done = memory.remember(
                    found.turns, user_id=user, session_id=found.session_id, key=f"import:{found.session_id}"
                )
                kept += len(done.kept) - len(done.skipped)
            memory.metabolize(user_id=user)
    if json:
        print_json({"imported": kept})
    else:
        console().print(f"imported {kept} records for {user}")


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
    for reason in done.failed:
        console().print(Text(f"failed: {reason}", style="yellow"))


def _is_export(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().startswith('{"loom": "memory"')
    except (OSError, UnicodeDecodeError):
        return False
