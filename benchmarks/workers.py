"""One and four worker processes on one Postgres: how fast they digest episodes, and whether each effect is there once.

    python benchmarks/workers.py [--episodes 10k] [--users 100] [--json]

Every episode states one fact and has a job of its own. The workers are processes that share nothing but the server,
which a private folder holds, with `fsync` on. The clock starts when all of them are connected. Afterwards every
episode must have made exactly one fact, no job may be left, and none may have been given up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import anyio
import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loom import Memory
from loom.core.record import Episode, Provenance
from loom.core.scope import Scope
from loom.memory._write.extract_rules import RuleExtractor
from loom.protocols.memory_store import Job
from loom.stores.postgres import PostgresStore, init_schema
from loom.testing.servers import PostgresServer, postgres

AT = datetime(2026, 1, 1, tzinfo=UTC)
WORKERS = (1, 4)
_FACTS = "SELECT count(*), count(DISTINCT (owner, sources)) FROM {}.records WHERE kind = 'fact'"
_EPISODES = "SELECT count(*) FROM {}.records WHERE kind = 'episode' AND sources IS NULL"
_JOBS = "SELECT count(*) FILTER (WHERE dead_at IS NULL), count(*) FILTER (WHERE dead_at IS NOT NULL) FROM {}.jobs"


def size_of(word: str) -> int:
    return int(word.lower().replace("k", "000"))


def episode(user: Scope, number: int) -> tuple[Episode, Job]:
    id = f"e{number:06}"
    said = Episode(
        id=id, text=f"My favourite dish{number} is tea{number}.", at=AT, recorded_at=AT, provenance=Provenance("user")
    )
    return said, Job(id=id, scope=user, kind="digest", key=f"digest:{id}", run_at=AT, payload={"episodes": [id]})


async def fill(url: str, schema: str, episodes: int, users: int) -> None:
    async with PostgresStore(url, schema=schema) as store:
        for number in range(users):
            user = Scope(user_id=f"user {number}")
            made = [episode(user, place) for place in range(number, episodes, users)]
            await store.write(user, put=[said for said, _ in made], jobs=[job for _, job in made])


async def work(url: str, schema: str) -> None:
    """What a worker process does: as many rounds as there are jobs, then say how many it did."""
    async with PostgresStore(url, schema=schema) as store:
        memory = Memory(store, extractor=RuleExtractor())
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        done, failed, start = 0, list[str](), time.process_time()
        while (round_ := await memory.metabolize()).jobs:
            done += round_.jobs
            failed += round_.failed
        print(json.dumps({"jobs": done, "failed": failed, "cpu": time.process_time() - start}), flush=True)


@contextmanager
def processes(url: str, schema: str, amount: int) -> Generator[list[subprocess.Popen[str]]]:
    """Workers that are connected and wait for a line."""
    command = [sys.executable, __file__, "--worker", url, schema]
    with ExitStack() as stack:
        started: list[subprocess.Popen[str]] = []
        for _ in range(amount):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started


def measure(server: PostgresServer, amount: int, episodes: int, users: int, progress: Progress) -> dict[str, Any]:
    schema, url = f"with_{amount}", server.url("loom_app")
    anyio.run(lambda: init_schema(server.url(), schema=schema))
    anyio.run(fill, url, schema, episodes, users)
    task = progress.add_task(f"{amount} worker{'s' * (amount > 1)}", total=episodes)
    with processes(url, schema, amount) as started, psycopg.connect(server.url(), autocommit=True) as db:
        start = time.perf_counter()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        while any(process.poll() is None for process in started):
            progress.update(task, completed=episodes - _row(db, _JOBS, schema)[0])
            time.sleep(0.5)
        seconds = time.perf_counter() - start
        said = [json.loads(process.communicate()[0]) for process in started]
        progress.update(task, completed=episodes)
        return {"workers": amount, "seconds": seconds, "per second": episodes / seconds, **_checked(db, schema, said)}


def _row(db: psycopg.Connection[tuple[Any, ...]], sql: str, schema: str) -> tuple[Any, ...]:
    return db.execute(sql.format(schema).encode()).fetchone() or ()


def _checked(db: psycopg.Connection[tuple[Any, ...]], schema: str, said: list[dict[str, Any]]) -> dict[str, Any]:
    facts, different = _row(db, _FACTS, schema)
    left, dead = _row(db, _JOBS, schema)
    return {
        "facts": facts,
        "doubled": facts - different,
        "episodes": _row(db, _EPISODES, schema)[0],
        "jobs done": sum(one["jobs"] for one in said),
        "jobs of each": [one["jobs"] for one in said],
        "CPU seconds": sum(one["cpu"] for one in said),
        "put back": sum(len(one["failed"]) for one in said),
        "jobs left": left,
        "given up": dead,
    }


def main(episodes: int, users: int, *, as_json: bool) -> None:
    console = Console(stderr=as_json)
    with postgres(fsync="on") as server, Progress(console=console) as progress:
        found = [measure(server, amount, episodes, users, progress) for amount in WORKERS]
    if as_json:
        print(json.dumps(found))
    else:
        names = ("workers", "per second", "seconds", "CPU seconds", "facts", "doubled", "jobs of each", "jobs left")
        table = Table(*names)
        for one in found:
            table.add_row(*(f"{one[name]:.1f}" if isinstance(one[name], float) else str(one[name]) for name in names))
        console.print(table)
    for one in found:
        if (
            (one["facts"], one["episodes"]) != (episodes, episodes)
            or one["doubled"]
            or one["jobs left"]
            or one["given up"]
        ):
            raise SystemExit(f"broken promise: {one}")


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--worker"]:
        anyio.run(work, given[1], given[2])
    else:
        options = dict(pairwise(given))
        amounts = size_of(options.get("--episodes", "10k")), size_of(options.get("--users", "100"))
        main(*amounts, as_json="--json" in given)
