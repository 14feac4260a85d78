"""A worker process that takes one job, goes as far as it is told, says so, and waits for what its parent does to it."""

import asyncio
import sys
from datetime import datetime, timedelta

import psycopg

from loom.core.record import Episode, Provenance
from loom.errors import StoreConflict
from loom.stores.postgres import PostgresStore


def say(*words: str) -> None:
    print(*words, flush=True)  # noqa: T201 - the parent reads it


def wait_for_parent() -> None:
    """Until the parent writes a line; while it does not, this process does nothing at all."""
    sys.stdin.readline()


def effect_of(job_id: str, worker: str, at: datetime) -> Episode:
    return Episode(
        id=f"done {job_id} by {worker}", text="the effect", at=at, recorded_at=at, provenance=Provenance("user")
    )


def stop_before_commit(phase: str) -> None:
    """The next commit is announced, and waits; asleep, it has used up the time that the server gives it."""
    commit = psycopg.AsyncConnection.commit

    async def announced(db: psycopg.AsyncConnection) -> None:
        if phase == "asleep":
            await db.execute("SET LOCAL idle_in_transaction_session_timeout = 1")
        say("at", phase)
        wait_for_parent()
        await commit(db)

    psycopg.AsyncConnection.commit = announced  # pyright: ignore[reportAttributeAccessIssue]


async def work(url: str, phase: str, now: datetime) -> None:
    async with PostgresStore(url, timeout=3600) as store:
        (lease,) = await store.lease(now=now, until=now + timedelta(hours=1))
        if phase == "claimed":
            say("at", "claimed")
            wait_for_parent()
        elif phase in ("written", "asleep"):
            stop_before_commit(phase)
        try:
            await store.finish(lease, put=[effect_of(lease.job.id, "child", now)])
        except StoreConflict:
            say("rejected", lease.job.id)
            return
        say("at", "finished")
        wait_for_parent()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], datetime.fromisoformat(sys.argv[3])))
