"""What a lost primary and a lost pooler cost four processes that write. Run: python -m benchmarks.postgres_failover.

    python -m benchmarks.postgres_failover [--rounds 100] [--only failover|pooler] [--asynchronous] [--json]

Four processes write to a schema of eight partitions, each for users of its own and for one that all share: a record
with a job, and a touch of a record, whose counter tells a write that was done twice. In each round the primary is
killed and its replica promoted, which then gets a replica itself; or the transaction pooler before the server is killed
and started again. A process notes what was acknowledged and how long each call took. At the end, everything that was
acknowledged must be there, once. Without `--asynchronous` commits wait for the replica, and one that is lost ends the
run with an error, as does a write that is there twice or a call that went past its deadline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import psycopg

from loom.core.record import Episode, Provenance
from loom.core.scope import Scope
from loom.errors import StoreUnavailable
from loom.protocols.memory_store import Job
from loom.stores.postgres import PostgresStore, init_schema
from loom.stores.postgres.connection import owner_of
from loom.testing.servers import free_port, postgres, postgres_pair

AT = datetime(2026, 1, 1, tzinfo=UTC)
PROCESSES = 4
PARTITIONS = 8
USERS = 3
TIMEOUT = 10.0
SLACK = 1.0
"""Seconds that a busy machine may take to wake a process whose call is over."""


def users_of(process: int) -> list[Scope]:
    return [*(Scope(user_id=f"user {process}.{number}") for number in range(USERS)), Scope(user_id="everybody")]


def episode(id: str) -> Episode:
    return Episode(id=id, text=f"a cup of tea {id}", at=AT, recorded_at=AT, provenance=Provenance("user"))


class Writer:
    """One process of the load."""

    def __init__(self, store: PostgresStore, process: int) -> None:
        self._store, self._process = store, process
        self.acknowledged: dict[str, list[str]] = {}
        self.touched: Counter[str] = Counter()
        self.refused, self.doubtful, self.late, self.longest = 0, 0, 0, 0.0

    async def write(self, scope: Scope, place: int) -> None:
        """Write one record with its job, and count one access; a refused call is made again."""
        id, counter = f"e{self._process}.{place}", f"counter {self._process}"
        job = Job(id=id, scope=scope, kind="none", key=id, run_at=AT, payload={})
        while not await self._call(self._store.write(scope, put=[episode(id)], jobs=[job])):
            pass
        self.acknowledged.setdefault(scope.user_id, []).append(id)
        if not place:
            await self._store.put(scope, episode(counter))
        elif await self._call(self._store.touch(scope, counter, at=AT + timedelta(seconds=place))):
            self.touched[scope.user_id] += 1
        else:
            self.doubtful += 1  # counted or not: only what was acknowledged is compared

    async def _call(self, call: Any) -> bool:
        start = time.monotonic()
        try:
            await call
        except StoreUnavailable as error:
            self.refused += 1
            print(error, file=sys.stderr)
            return False
        finally:
            took = time.monotonic() - start
            self.longest = max(self.longest, took)
            self.late += took > TIMEOUT + SLACK
        return True


async def load(url: str, process: int, over: Path) -> None:
    """What a process of the load does until the file is there; prints what it saw."""
    async with PostgresStore(url, timeout=TIMEOUT, pool_size=4) as store:
        writer = Writer(store, process)
        print("ready", flush=True)

        async def write(scope: Scope) -> None:
            place = 0
            while not over.exists():  # noqa: ASYNC240 - a look at a local folder
                await writer.write(scope, place)
                place += 1

        async with anyio.create_task_group() as tasks:
            for scope in users_of(process):
                tasks.start_soon(write, scope)
    said = {
        name: getattr(writer, name) for name in ("acknowledged", "touched", "refused", "doubtful", "late", "longest")
    }
    print(json.dumps(said), flush=True)


@contextmanager
def loaded(url: str, folder: Path) -> Generator[list[dict[str, Any]]]:
    """Processes that write until the block is over; what they saw is in the list afterwards."""
    said: list[dict[str, Any]] = []
    over = folder / "over"
    over.unlink(missing_ok=True)
    with ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for process in range(PROCESSES):
            command = [sys.executable, "-m", "benchmarks.postgres_failover", "--load", url, str(process), str(over)]
            started = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=(folder / f"log {process}").open("w"), text=True
            )
            stack.callback(started.kill)
            processes.append(started)
        for started in processes:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
        yield said
        over.touch()
        said += [json.loads(started.communicate()[0]) for started in processes]
        for process in range(PROCESSES):
            for line in (folder / f"log {process}").read_text().splitlines():
                if line.startswith("postgresql"):
                    print(line, file=sys.stderr)


def checked(admin: str, said: list[dict[str, Any]]) -> dict[str, Any]:
    """What is there, compared with what was acknowledged."""
    lost = doubled = acknowledged = 0
    with psycopg.connect(admin, autocommit=True) as db:
        for process, one in enumerate(said):
            for user, ids in one["acknowledged"].items():
                owner = owner_of(Scope(user_id=user))
                acknowledged += len(ids)
                for table in ("records", "jobs"):
                    found = db.execute(f"SELECT id FROM loom.{table} WHERE owner = %s", [owner]).fetchall()
                    held = Counter(id for (id,) in found if id.startswith(f"e{process}."))
                    lost += len(set(ids) - held.keys())
                    doubled += sum(held.values()) - len(held)
                counted = db.execute(
                    "SELECT accesses FROM loom.records WHERE owner = %s AND id = %s", [owner, f"counter {process}"]
                ).fetchone()
                touched = one["touched"].get(user, 0)
                accesses = counted[0] if counted else 0
                lost += max(0, touched - accesses)
                doubled += max(0, accesses - touched - one["doubtful"])
    figures = {name: sum(one[name] for one in said) for name in ("refused", "doubtful", "late")}
    longest = max(one["longest"] for one in said)
    return {"acknowledged": acknowledged, "lost": lost, "doubled": doubled, **figures, "longest": longest}


def grown(admin: str, since: int) -> int:
    """How many records there are, once there are some more."""
    while True:
        try:
            with psycopg.connect(admin, autocommit=True) as db:
                (found,) = db.execute("SELECT count(*) FROM loom.records").fetchone() or (0,)
        except psycopg.OperationalError:
            found = 0
        if found >= since + PROCESSES * 5:
            return int(found)
        time.sleep(0.02)


def failover(rounds: int, folder: Path, *, sync: bool) -> dict[str, Any]:
    with postgres_pair(sync=sync, max_connections="100") as pair:
        anyio.run(lambda: init_schema(pair.url(), partitions=PARTITIONS))
        away: list[float] = []
        with loaded(pair.url("loom_app"), folder) as said:
            records = 0
            for number in range(rounds):
                records = grown(pair.url(), records)
                start = time.monotonic()
                pair.fail_over()
                records = grown(pair.url(), records)
                away.append(time.monotonic() - start)
                pair.follow()
                show("primary killed, replica promoted", number, rounds)
            grown(pair.url(), records)
        return {"rounds": rounds, **checked(pair.url(), said), "away": sorted(away)[len(away) // 2]}


def pooler(rounds: int, folder: Path) -> dict[str, Any]:
    with postgres(max_connections="100") as server, ExitStack() as stack:
        anyio.run(lambda: init_schema(server.url(), partitions=PARTITIONS))
        port = free_port()
        command = [sys.executable, "-m", "loom.testing.pooler", str(port), str(server.port)]

        def start() -> subprocess.Popen[bytes]:
            started = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(started.kill)
            return started

        process = start()
        url = f"postgresql://loom_app@127.0.0.1:{port}/postgres?prepare=off"
        records, away = 0, list[float]()
        wait_for(url.partition("?")[0])
        with loaded(url, folder) as said:
            for number in range(rounds):
                records = grown(server.url(), records)
                begin = time.monotonic()
                process.kill()
                process.wait()
                process = start()
                records = grown(server.url(), records)
                away.append(time.monotonic() - begin)
                show("pooler killed", number, rounds)
        return {"rounds": rounds, **checked(server.url(), said), "away": sorted(away)[len(away) // 2]}


def wait_for(url: str) -> None:
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            time.sleep(0.02)
        else:
            return


def show(what: str, number: int, rounds: int) -> None:
    print(f"\r{what}: round {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--load"]:
        anyio.run(load, sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        return
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=100)
    words.add_argument("--only", choices=["failover", "pooler"])
    words.add_argument("--asynchronous", action="store_true")
    words.add_argument("--json", action="store_true")
    asked = words.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if asked.only != "pooler":
            found["failover"] = failover(asked.rounds, Path(folder), sync=not asked.asynchronous)
        if asked.only != "failover":
            found["pooler"] = pooler(asked.rounds, Path(folder))
    print(file=sys.stderr)
    if asked.json:
        print(json.dumps(found))
    for name, figures in found.items() if not asked.json else ():
        print(
            f"{name}: "
            + ", ".join(
                f"{value:,.3g} {what}" if isinstance(value, float) else f"{value:,} {what}"
                for what, value in figures.items()
            )
        )
    if any(one["doubled"] or one["late"] or (one["lost"] and not asked.asynchronous) for one in found.values()):
        raise SystemExit("something acknowledged was lost or doubled, or a call went past its deadline")


if __name__ == "__main__":
    main()
