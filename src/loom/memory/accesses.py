"""Counts accesses: a recall counts for the record found and for its successor, the statement made from it.

An archived record whose count has become high enough is brought back by a job, one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256

from loom.core.clock import Clock
from loom.core.hit import Hit
from loom.core.record import Episode, Layer
from loom.core.scope import Scope
from loom.memory.config import MemoryConfig
from loom.memory.layers import deserves_promotion, revived
from loom.memory.neighbours import Store
from loom.protocols.jobs import Job
from loom.protocols.memory_store import Touches

REVIVE = "revive"
"""The kind of job that brings records back from the archive."""
LAYER_JOBS = {Layer.L1: "digest", Layer.L2: "assimilate", Layer.L3: "sediment", Layer.L4: "sediment"}
"""The kind of job that checks each layer."""


def statement_id(id: str) -> str:
    """The id of the statement that is made from a record when it moves into L2."""
    return f"s:{id}"


async def successor(store: Store, user: Scope, record: Episode) -> Episode:
    """The statement that replaced a record when it moved into L2, or else the record itself."""
    if record.sources:
        return record
    made = await store.get(user, statement_id(record.id))
    return made if isinstance(made, Episode) else record


class Accesses:
    """Counts the records that were recalled."""

    def __init__(self, store: Store, config: MemoryConfig, *, clock: Clock, make_job: Callable[..., Job]) -> None:
        self._store, self._config, self._clock, self._make_job = store, config, clock, make_job

    async def count(self, scope: Scope, hits: Iterable[Hit]) -> None:
        """Count one access of each record that was found, and of the statement made from it.

        The store ignores ids that do not exist, so the statement is touched without reading it first. It is only read
        for an archived record that was recalled often enough to come back.
        """
        found = {hit.item.id: hit.item for hit in hits if isinstance(hit.item, Episode)}
        if not found or not isinstance(self._store, Touches):
            return
        user, now = scope.for_user(), self._clock.now()
        made = [statement_id(e.id) for e in found.values() if _may_have_successor(e)]
        await self._store.touch(user, *dict.fromkeys([*found, *made]), at=now)
        jobs: dict[str, Job] = {}
        for record in found.values():
            counted = replace(record, accesses=record.accesses + 1, accessed_at=now)
            job = await self._due(user, counted)
            if job is not None:
                jobs.setdefault(job.key, job)
        if jobs:
            await self._store.write(user, jobs=list(jobs.values()))

    async def _due(self, user: Scope, record: Episode) -> Job | None:
        """The job that this access makes due, if any: a check of its layer, or its return from the archive."""
        now = self._clock.now()
        if _may_have_successor(record) and revived(record, self._config, now=now) is not None:
            record = await successor(self._store, user, record)
        if record.archived_at is not None:
            comes_back = revived(record, self._config, now=now) is not None
            return self._make_job(user, REVIVE, key=revive_key(record.id), records=[record.id]) if comes_back else None
        # Only the access that reaches a threshold queues a job: a program that never runs jobs must not pile them up.
        before = replace(record, accesses=max(0, record.accesses - 1))
        reached = deserves_promotion(record, self._config, now=now)
        if not reached or deserves_promotion(before, self._config, now=now):
            return None
        return self._make_job(user, LAYER_JOBS[record.layer])


def revive_key(id: str) -> str:
    """The job key of a record's return: one is open at a time. Hashed, because an id may be as long as a key."""
    return f"{REVIVE}:{sha256(id.encode()).hexdigest()[:32]}"


def _may_have_successor(record: Episode) -> bool:
    return record.archived_at is not None and not record.sources
