"""A memory store in a schema of a Postgres database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Self

from loom.core.checks import as_utc
from loom.core.clock import Clock, SystemClock
from loom.core.filter import Filter
from loom.core.hit import Hit
from loom.core.record import Layer, Receipt, Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.protocols.memory_store import FoundBy, Query
from loom.stores.postgres import jobs as job_rows
from loom.stores.postgres import records, search
from loom.stores.postgres import vectors as vector_rows
from loom.stores.postgres.describe import describe
from loom.stores.postgres.guard import Guard, guarded
from loom.stores.postgres.owners import all_users
from loom.stores.postgres.records import Keys
from loom.stores.postgres.schema import SCHEMA, UNSWEPT
from loom.stores.record_rules import check_embedder, check_keep, check_limit, lease_times, vector_apart


class PostgresStore:
    """Keeps records, vectors, keys and jobs in Postgres with pgvector, with every optional power of a store.

    Any number of stores and processes may share a schema, which `init_schema()` or `loom store init` makes. `dsn` is a
    URL or a connection string of libpq, and names the role made for this. A database without the schema gets it at the
    first use, if the role may create one: it then has tables of its own, and `notes` says how users are kept apart;
    `make_schema=False` leaves such a database alone.
    Connected at the first use, or by `async with`; where there are two roles, one that could see the rows of all users
    is refused unless `allow_owner` says otherwise. A call gives up with StoreUnavailable after `timeout` seconds,
    whatever it waits for; what it wrote may then be there or not, and the same again is safe.
    """

    def __init__(
        self,
        dsn: str,
        *,
        clock: Clock | None = None,
        pool_size: int = 8,
        timeout: float = 30,
        schema: str = SCHEMA,
        allow_owner: bool = False,
        make_schema: bool = True,
    ) -> None:
        self._clock, self._schema = clock or SystemClock(), schema
        insists = Guard(schema, allow_owner, make_schema)
        self._server = guarded(dsn, insists, pool_size=pool_size, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self._server.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of what the server guarantees; nothing before the first call."""
        return self._server.notes

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        await self.write(scope, put=records)

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, None where there is none."""
        async with self._server.transaction(scope) as db:
            return await records.get(db, scope, id)

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first; the score is the sum of the signals in `why`."""
        look = search.look(scope, None if query.vector is None else query.limit)
        async with self._server.looking(scope, look) as (db, known):
            return tuple(await search.search(db, search.Known(*known), scope, query, now=self._clock.now()))

    async def search_apart(self, scope: Scope, query: Query, *, near: int) -> tuple[Hit, ...]:
        """The best by the words of a query and the `near` best by its vector."""
        vector_apart(query, near)
        async with self._server.looking(scope, search.look(scope, near)) as (db, seen):
            known, now = search.Known(*seen), self._clock.now()
            return tuple(await search.search_apart(db, known, scope, query, near=near, now=now))

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, from behind `after`."""
        check_limit(limit)
        async with self._server.transaction(scope) as db:
            return tuple(await records.select(db, scope, where=where, after=after, limit=limit))

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        if where is None and scope.session_id is None:
            found = await self._server.glance(scope, records.counted(scope))
            return found[0] if found else 0
        async with self._server.transaction(scope) as db:
            return await records.count(db, scope, where)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        async with self._server.transaction(scope, writes=True) as db:
            return await records.change(db, scope, delete=ids)

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session."""
        async with self._server.transaction(scope, writes=True) as db:
            removed = await job_rows.forget(db, scope)
            if scope.session_id is None:
                removed |= await records.forget_user(db, scope)
            else:
                removed |= await records.forget_session(db, scope)
        removed = {kind: count for kind, count in removed.items() if count}
        return Receipt(removed=removed, pending=(UNSWEPT,) if removed else ())

    async def scrub(self) -> tuple[str, ...]:
        """What only an administrator can do: no bytes of removed rows in the files of the server."""
        return (UNSWEPT,)

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same schema."""
        async with self._server.transaction(scope) as db:
            return await records.count_sessions(db, scope)

    async def describe(self) -> dict[str, str]:
        """What the server is and guarantees: server, schema, durability, isolation, index and embedder, in words."""
        async with self._server.transaction(None) as db:
            return await describe(db, self._schema)

    async def aclose(self) -> None:
        """Give all connections back. Closing twice is allowed."""
        await self._server.close()

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        check_keep(keep)
        start = None if before is None else as_utc(before, "before of a prune")
        layer, now = Layer(layer), self._clock.now()
        async with self._server.transaction(scope, writes=True) as db:
            return await records.prune(db, scope, layer, keep=keep, before=start, now=now)

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode."""
        at = as_utc(at, "the time of an access")
        async with self._server.transaction(scope, writes=True) as db:
            await records.touch(db, scope, ids, at)

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        check_embedder("bind", identity, dimension)
        if vector_rows.check_bound(await self._server.glance(None, vector_rows.BOUND), identity, dimension):
            return
        async with self._server.transaction(None) as db:
            await vector_rows.bind(db, identity, dimension)

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        async with self._server.transaction(scope, writes=True) as db:
            await vector_rows.put_vectors(db, scope, vectors)

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        check_embedder("rebind", identity, dimension)
        async with self._server.transaction(None) as db:
            return await vector_rows.rebind(db, identity, dimension)

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records of all users without a vector, by namespace, user and id."""
        check_limit(limit)
        async with self._server.transaction(None) as db:
            return tuple([found async for found in vector_rows.unembedded(db, where, after, limit)])

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        async with self._server.transaction(None) as db:
            return len([1 async for _ in vector_rows.unembedded(db, where, None, None)])

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension; None before bind()."""
        async with self._server.transaction(None) as db:
            return await vector_rows.binding(db)

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        check_limit(limit)
        async with self._server.transaction(None) as db:
            return await all_users(db, after, limit)

    async def put_keys(self, scope: Scope, keys: Keys) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        await self.write(scope, keys=keys)

    async def found_by(self, scope: Scope, *ids: str) -> Mapping[str, FoundBy]:
        """The keys and the vector of each of these records that is there."""
        async with self._server.transaction(scope) as db:
            return await vector_rows.found_by(db, scope, ids)

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed."""
        async with self._server.transaction(scope) as db:
            return await records.epoch(db, scope)

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
        async with self._server.transaction(scope, writes=True) as db:
            await records.check_epoch(db, scope, since)
            await records.change(db, scope, put=put, delete=delete, keys=keys)
            return await job_rows.enqueue(db, scope, jobs)

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
        check_limit(limit)
        now, until = lease_times(now, until)
        async with self._server.transaction(scope) as db:
            return await job_rows.lease(db, now, until, limit, scope=scope, kinds=kinds)

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
        async with self._server.transaction(scope, writes=True) as db:
            await job_rows.close(db, lease)
            await records.check_epoch(db, scope, since)
            await records.change(db, scope, put=put, delete=delete, keys=keys)
            await job_rows.enqueue(db, scope, jobs)

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back for `retry_at`, or make it a dead letter."""
        retry_at = None if retry_at is None else as_utc(retry_at, "retry_at of a failed job")
        now = as_utc(now, "now of a failed job")
        async with self._server.transaction(lease.job.scope, writes=True) as db:
            await job_rows.fail(db, lease, reason, now, retry_at)

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up, the earliest first."""
        async with self._server.transaction(scope) as db:
            return await job_rows.dead_letters(db, scope)

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id."""
        async with self._server.transaction(scope) as db:
            return await job_rows.open_jobs(db, scope)

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        async with self._server.transaction(scope) as db:
            return await job_rows.pending(db, scope)
