"""A memory store in the process's own memory: nothing outlives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from anyio import CancelScope, Event, to_thread

from loom.core.checks import as_utc
from loom.core.clock import Clock, SystemClock
from loom.core.filter import Filter
from loom.core.hit import Hit
from loom.core.limits import ON_LOOP
from loom.core.record import Episode, Layer, Receipt, Record
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, StaleWrite, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.protocols.memory_store import FoundBy, Query
from loom.stores.describing import spoken_embedder
from loom.stores.inmemory.jobs import JobBook
from loom.stores.inmemory.shelf import Change, Keys, Shelf, copied, unit_vector
from loom.stores.record_rules import check_embedder, check_keep, check_limit, lease_times, vector_apart


class InMemoryStore:
    """Keeps records, vectors, keys and jobs in dicts, with every optional power of a store.

    For tests and for what need not last. Each call runs without a pause, so tasks of one event loop may
    share a store; threads may not. Only long texts are indexed in a thread, and whatever asks about their user
    meanwhile waits.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._shelves: dict[tuple[str, str], Shelf] = {}
        self._jobs = JobBook()
        self._bound: tuple[str, int] | None = None
        self._gone = 0  # how many users were removed
        self._closed = False
        self._changing: dict[tuple[str, str], Event] = {}

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        await self.write(scope, put=records)

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, None where there is none."""
        await self._settled(scope)
        return self._shelf(scope).get(scope, id)

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first; the score is the sum of the signals in `why`."""
        await self._settled(scope)
        shelf = self._shelf(scope)
        vector = None
        if query.vector is not None:
            vector = unit_vector(query.vector, self._dimension(), "the vector of a query")
        return tuple(shelf.search(scope, query, now=self._clock.now(), vector=vector))

    async def search_apart(self, scope: Scope, query: Query, *, near: int) -> tuple[Hit, ...]:
        """The best by the words of a query and the `near` best by its vector."""
        unit = unit_vector(vector_apart(query, near), self._dimension(), "the vector of a query")
        await self._settled(scope)
        return tuple(self._shelf(scope).search_apart(scope, query, near=near, now=self._clock.now(), vector=unit))

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, from behind `after`."""
        check_limit(limit)
        await self._settled(scope)
        return tuple(copied(r) for r in self._shelf(scope).select(scope, where, after=after or "")[:limit])

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        await self._settled(scope)
        return self._shelf(scope).count(scope, where)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        await self._settled(scope)
        shelf = self._shelf(scope)
        change = shelf.plan(scope, delete=ids)
        await self._indexed(scope, shelf, change)
        return len(change.records)

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session."""
        await self._settled(scope)
        shelf = self._shelf(scope)
        gone = shelf.select(scope, None)
        if scope.session_id is None:
            self._drop(scope)
        else:
            gone = [record for record in gone if isinstance(record, Episode)]
            await self._indexed(scope, shelf, shelf.plan(scope, delete=[record.id for record in gone]))
        removed = Counter(record.kind for record in gone)
        removed["job"], removed["dead_letter"] = self._jobs.forget(scope)
        return Receipt(removed={kind: count for kind, count in removed.items() if count})

    async def aclose(self) -> None:
        """Let go of everything. Closing twice is allowed."""
        self._closed = True
        self._shelves, self._jobs = {}, JobBook()

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        check_keep(keep)
        before = None if before is None else as_utc(before, "before of a prune")
        await self._settled(scope)
        return self._shelf(scope).prune(scope, Layer(layer), keep=keep, before=before, now=self._clock.now())

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode."""
        await self._settled(scope)
        self._shelf(scope).touch(scope, ids, as_utc(at, "the time of an access"))

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        self._check_open()
        check_embedder("bind", identity, dimension)
        if self._bound is not None and self._bound != (identity, dimension):
            raise EmbedderMismatch(*(f"{name} ({size} numbers)" for name, size in (self._bound, (identity, dimension))))
        self._bound = (identity, dimension)

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        await self._settled(scope)
        shelf, dimension = self._shelf(scope), self._dimension()
        shelf.set_vectors(
            scope, {id: unit_vector(vector, dimension, f"the vector of {id}") for id, vector in vectors.items()}
        )

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        self._check_open()
        if self._bound == (identity, dimension):
            return False
        check_embedder("rebind", identity, dimension)
        await self._all_settled()
        self._bound = (identity, dimension)
        for shelf in self._shelves.values():
            shelf.vectors.clear()
        return True

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records of all users without a vector, by namespace, user and id."""
        check_limit(limit)
        await self._all_settled()
        start = None if after is None else (*_owner(after[0]), after[1])
        found = [(s, r) for s, r in self._unembedded(where) if start is None or (*_owner(s), r.id) > start]
        return tuple((scope, copied(record)) for scope, record in found[:limit])

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        await self._all_settled()
        return len(self._unembedded(where))

    def _unembedded(self, where: Filter | None) -> list[tuple[Scope, Record]]:
        self._check_open()
        found = [(Scope(*owner), shelf) for owner, shelf in sorted(self._shelves.items(), key=lambda item: item[0])]
        return [(s, r) for s, shelf in found for r in shelf.select(s, where) if r.id not in shelf.vectors]

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension; None before bind()."""
        self._check_open()
        return self._bound

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users who have something here, by namespace and user, from behind `after`."""
        self._check_open()
        check_limit(limit)
        owners = sorted({*self._shelves, *self._jobs.owners()})
        found = [owner for owner in owners if after is None or owner > _owner(after)]
        return tuple(Scope(*owner) for owner in found[:limit])

    async def describe(self) -> dict[str, str]:
        """What this store is and what it guarantees."""
        return {
            "server": "none: in the memory of this process",
            "durability": "none: everything is gone when the process ends",
            "isolation": "a dict of its own for each user",
            "index": "exact: every vector and every text is compared",
            "embedder": spoken_embedder(await self.bound()),
        }

    async def put_keys(self, scope: Scope, keys: Keys) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        await self.write(scope, keys=keys)

    async def found_by(self, scope: Scope, *ids: str) -> Mapping[str, FoundBy]:
        """The keys and the vector of each of these records that is there."""
        await self._settled(scope)
        return self._shelf(scope).found_by(scope, ids)

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed."""
        self._check_open()
        await self._settled(scope)
        return self._epoch(scope)

    def _epoch(self, scope: Scope) -> str:
        shelf = self._shelves.get(_owner(scope))
        # A user who came and went while somebody prepared a write is not the user who was never there.
        return f"-{self._gone}" if shelf is None else f"{shelf.life}.{shelf.removed}"

    def _check_epoch(self, scope: Scope, since: str | None) -> None:
        if since is not None and self._epoch(scope) != since:
            raise StaleWrite(scope.user_id)

    async def write(
        self,
        scope: Scope,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Delete, put, set keys and queue jobs, in this order, all or none; returns how many jobs are new."""
        await self._settled(scope)
        self._check_epoch(scope, since)
        shelf = self._shelf(scope)
        change = shelf.plan(scope, put=put, delete=delete, keys=keys)
        new = self._jobs.plan(scope, jobs)
        self._jobs.add(new)
        await self._indexed(scope, shelf, change)
        return len(new)

    async def lease(
        self,
        *,
        now: datetime,
        until: datetime,
        limit: int = 1,
        scope: Scope | None = None,
        kinds: Sequence[str] | None = None,
    ) -> tuple[Lease, ...]:
        """Take jobs that are due, oldest first; of one user, and of some kinds, only, if these are given."""
        self._check_open()
        check_limit(limit)
        now, until = lease_times(now, until)
        return self._jobs.lease(now, until, limit, scope, kinds)

    async def finish(
        self,
        lease: Lease,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> None:
        """Apply what the job did and close it; a job it queues may have the same key."""
        scope = lease.job.scope
        await self._settled(scope)
        self._jobs.check(lease)
        self._check_epoch(scope, since)
        shelf = self._shelf(scope)
        change = shelf.plan(scope, put=put, delete=delete, keys=keys)
        new = self._jobs.plan(scope, jobs, closing=lease)
        self._jobs.close(lease)
        self._jobs.add(new)
        await self._indexed(scope, shelf, change)

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back for `retry_at`, or make it a dead letter."""
        retry_at = None if retry_at is None else as_utc(retry_at, "retry_at of a failed job")
        self._jobs.fail(lease, reason, as_utc(now, "now of a failed job"), retry_at)

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up, the earliest first."""
        return self._jobs.dead_letters(scope)

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id."""
        return self._jobs.open_jobs(scope)

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        return self._jobs.pending(scope)

    def _shelf(self, scope: Scope) -> Shelf:
        self._check_open()
        return self._shelves.get(_owner(scope)) or Shelf()

    async def _settled(self, scope: Scope) -> None:
        """Wait until nothing of a user is being indexed in a thread."""
        while (change := self._changing.get(_owner(scope))) is not None:
            await change.wait()

    async def _all_settled(self) -> None:
        while self._changing:
            await next(iter(self._changing.values())).wait()

    async def _indexed(self, scope: Scope, shelf: Shelf, change: Change) -> None:
        """Make a change; one with much text in a thread, and to its end, whoever is cancelled."""
        if shelf.chars(change) <= ON_LOOP:
            shelf.apply(change)
            self._keep(scope, shelf)
            return
        done = self._changing[_owner(scope)] = Event()
        try:
            with CancelScope(shield=True):
                await to_thread.run_sync(shelf.apply, change)
            self._keep(scope, shelf)
        finally:
            del self._changing[_owner(scope)]
            done.set()

    def _keep(self, scope: Scope, shelf: Shelf) -> None:
        if self._closed:
            return
        if not shelf.records:
            # Nothing of a user who has nothing is kept, their name included.
            self._drop(scope)
        elif _owner(scope) not in self._shelves:
            shelf.life = self._gone
            self._shelves[_owner(scope)] = shelf

    def _drop(self, scope: Scope) -> None:
        self._gone += self._shelves.pop(_owner(scope), None) is not None

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this store is closed; open another")

    def _dimension(self) -> int:
        if self._bound is None:
            raise UsageError("nobody said whose vectors these are; call bind(identity, dimension) first")
        return self._bound[1]


def _owner(scope: Scope) -> tuple[str, str]:
    return (scope.namespace, scope.user_id)
