"""A process that writes to a store and says what was acknowledged; it is killed at any moment."""

import asyncio
import sys
from datetime import UTC, datetime

from loom.core.record import Episode, Provenance
from loom.core.scope import Scope
from loom.protocols.memory_store import Job
from loom.stores.sqlite import SqliteStore

ALICE = Scope(user_id="alice")
AT = datetime(2026, 1, 1, tzinfo=UTC)


def an_episode(id: str) -> Episode:
    return Episode(id=id, text=f"we drank tea in room {id}", at=AT, recorded_at=AT, provenance=Provenance("user"))


async def write(path: str, name: str, writers: int, each: int) -> None:
    """Every writer puts records, each with a job, and prints an id after its acknowledgement."""
    async with SqliteStore(path) as store:
        await asyncio.gather(*(_write_one(store, f"{name}{n}", each) for n in range(writers)))


async def _write_one(store: SqliteStore, name: str, each: int) -> None:
    for n in range(each):
        id = f"{name}-{n}"
        job = Job(id=id, scope=ALICE, kind="digest", key=id, run_at=AT)
        await store.write(ALICE, put=[an_episode(id)], keys={id: {"around": f"around {id}"}}, jobs=[job])
        print(id, flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
