"""Kills a writing process again and again and counts what is lost. Run: python -m benchmarks.crash [KILLS].

The child ingests records with jobs, works the jobs off (each makes one summary, in one transaction with the end of
the job) and forgets a user now and then. It reports each acknowledgement on a pipe. After every kill the file must
open clean, hold every acknowledged record exactly once, have one summary or one open job for each, and nothing of
what was forgotten.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from loom.core.record import Episode, Layer, Provenance
from loom.core.scope import Scope
from loom.protocols.memory_store import Job, Query
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.connection import connect

ALICE = Scope(user_id="alice")
AT = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(microseconds=1)
WRITERS = 4
LONGEST_SECONDS = 0.15
KILLS_PER_FILE = 25


def episode(id: str, **fields: object) -> Episode:
    text = f"we drank tea in room {id}"
    given = {"text": text, "at": AT, "recorded_at": AT, "provenance": Provenance("user")} | fields
    return Episode(id=id, **given)  # pyright: ignore[reportArgumentType]


def say(what: str, id: str) -> None:
    print(what, id, flush=True)


async def ingest(store: SqliteStore, name: str) -> None:
    for n in range(1_000_000):
        id = f"{name}-{n}"
        job = Job(id=id, scope=ALICE, kind="digest", key=id, run_at=AT)
        await store.write(ALICE, put=[episode(id)], jobs=[job])
        say("put", id)


async def metabolise(store: SqliteStore, start: int) -> None:
    now = AT + timedelta(seconds=start)  # a lease of an earlier process is over
    while True:
        for lease in await store.lease(now=now, until=now + LEASE, limit=4):
            source = lease.job.id
            await store.finish(
                lease, put=[episode(f"sum:{source}:{lease.token}", layer=Layer.SESSION, sources=(source,))]
            )
            say("digested", source)
        now += LEASE * 2
        await asyncio.sleep(0)


async def forget(store: SqliteStore, name: str) -> None:
    for n in range(1_000_000):
        eve = Scope(user_id=f"eve-{name}-{n}")
        await store.put(eve, *(episode(f"e{i}") for i in range(5)))
        receipt = await store.forget(eve)
        if not receipt.pending:
            say("forgot", eve.user_id)


async def child(path: str, turn: int) -> None:
    async with SqliteStore(path) as store, asyncio.TaskGroup() as group:
        for n in range(WRITERS):
            group.create_task(ingest(store, f"{turn}.{n}"))
        group.create_task(metabolise(store, turn))
        group.create_task(forget(store, str(turn)))


def run_and_kill(path: Path, turn: int, chance: random.Random) -> list[list[str]]:
    command = [sys.executable, "-m", "benchmarks.crash", "--child", str(path), str(turn)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()  # the moments are spread over writing, not over starting Python
    time.sleep(chance.random() * LONGEST_SECONDS)
    process.kill()
    rest, errors = process.communicate()
    if errors:
        raise SystemExit(f"the child failed by itself:\n{errors}")
    said = [line.split() for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return [words for words in said if len(words) == 2]  # a line that the kill tore acknowledges nothing


def is_clean(path: Path) -> bool:
    db = connect(str(path))
    found = db.execute("PRAGMA integrity_check").fetchall() + db.execute("PRAGMA foreign_key_check").fetchall()
    db.close()
    return found == [("ok",)]


async def check(path: Path, acknowledged: list[list[str]]) -> dict[str, int]:
    async with SqliteStore(path) as store:
        kept = [record.id for record in await store.list(ALICE, limit=10_000_000)]
        hits = await store.search(ALICE, Query(text="tea", limit=10_000_000))
        # The id of a summary names its lease, so that a job done twice leaves two.
        made = [id.split(":")[1] for id in kept if id.startswith("sum:")]
        summaries = set(made)
        raw = {id for id in kept if not id.startswith("sum:")}
        ghosts = [user for what, user in acknowledged if what == "forgot" and await store.count(Scope(user_id=user))]
        return {
            "acknowledged": len(acknowledged),
            "lost": sum(what == "put" and id not in raw for what, id in acknowledged)
            + sum(what == "digested" and id not in summaries for what, id in acknowledged),
            "doubled": len(made) - len(summaries),
            "neither digested nor queued": abs(len(raw) - len(summaries) - await store.pending(ALICE)),
            "index differs": int(sorted(hit.item.id for hit in hits) != kept),
            "forgotten but there": len(ghosts),
        }


def main(kills: int) -> None:
    chance, total = random.Random(kills), {"kills": 0, "unclean": 0}
    acknowledged: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        for turn in progress.track(range(kills), description="killing"):
            # A new file now and then, so that a kill also hits the very first writes.
            path = Path(folder) / f"memory{turn // KILLS_PER_FILE}.db"
            acknowledged += run_and_kill(path, turn, chance)
            total["kills"] += 1
            total["unclean"] += not is_clean(path)
            if (turn + 1) % KILLS_PER_FILE == 0 or turn == kills - 1:
                for name, count in asyncio.run(check(path, acknowledged)).items():
                    total[name] = total.get(name, 0) + count
                acknowledged = []
    Console().print(total)
    bad = {name: count for name, count in total.items() if count and name not in {"kills", "acknowledged"}}
    if bad:
        raise SystemExit(f"broken promises: {bad}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(child(sys.argv[2], int(sys.argv[3])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
