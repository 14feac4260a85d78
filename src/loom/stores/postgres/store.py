"""A memory store in a schema of a Postgres database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from loom.core.clock import Clock
from loom.core.filter import Filter
from loom.core.hit import Hit
from loom.core.record import Layer, Receipt, Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.protocols.memory_store import FoundBy, Query
from loom.stores.base import BaseMemoryStore, Bound, Write, Written
from loom.stores.postgres import jobs as job_rows
from loom.stores.postgres import records, search
from loom.stores.postgres import vectors as vector_rows
from loom.stores.postgres.describe import describe
from loom.stores.postgres.guard import Guard, guarded
from loom.stores.postgres.owners import all_users
from loom.stores.postgres.schema import SCHEMA, UNSWEPT


class PostgresStore(BaseMemoryStore):
    """Keeps records, vectors, keys and jobs in Postgres with pgvector, with every optional power of a store.

    Any number of stores and processes may share a schema, which `init_schema()` or `loom store init` makes. `dsn` is a
    URL or a connection string of libpq, and names the role made for this. A database without the schema gets it at the
    first use, if the role may create one: it then has tables of its own, and `notes` says how users are kept apart;
    `make_schema=False` leaves such a database alone.
    Connected at the first use, or by `async with`; where there are two roles, one that could see the rows of all users
    is refused unless `allow_owner` says otherwise. A call gives up with StoreUnavailable after `timeout` seconds,
    whatever it waits for; what it wrote may then be there or not, and the same again is safe.
    """

    _max_kind_bytes = 512  # a kind is part of the key of an index

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
        super().__init__(clock=clock)
        self._schema = schema
        insists = Guard(schema, allow_owner, make_schema)
        self._server = guarded(dsn, insists, pool_size=pool_size, timeout=timeout)

    async def _open(self) -> None:
        await self._server.open()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of what the server guarantees; nothing before the first call."""
        return self._server.notes

    async def _get(self, scope: Scope, id: str) -> Record | None:
        async with self._server.transaction(scope) as db:
            return await records.get(db, scope, id)

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        look = search.look(scope, None if query.vector is None else query.limit)
        async with self._server.looking(scope, look) as (db, known):
            return await search.search(db, search.Known(*known), scope, query, now=self._clock.now())

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        async with self._server.looking(scope, search.look(scope, near)) as (db, found):
            known, now = search.Known(*found), self._clock.now()
            return await search.search_apart(db, known, scope, query, near=near, now=now)

    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]:
        async with self._server.transaction(scope) as db:
            return await records.select(db, scope, where=where, after=after, limit=limit)

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        if where is None and scope.session_id is None:
            found = await self._server.glance(scope, records.counted(scope))
            return found[0] if found else 0
        async with self._server.transaction(scope) as db:
            return await records.count(db, scope, where)

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, FoundBy]:
        async with self._server.transaction(scope) as db:
            return await vector_rows.found_by(db, scope, ids)

    async def _write(self, scope: Scope, write: Write) -> Written:
        async with self._server.transaction(scope, writes=True) as db:
            if write.closing is not None:
                await job_rows.close(db, write.closing)
            await records.check_epoch(db, scope, write.since)
            deleted = await records.change(db, scope, put=write.put, delete=write.delete, keys=write.keys)
            return Written(deleted, await job_rows.enqueue(db, scope, write.jobs))

    async def _forget(self, scope: Scope) -> Receipt:
        async with self._server.transaction(scope, writes=True) as db:
            removed = await job_rows.forget(db, scope)
            forget = records.forget_user if scope.session_id is None else records.forget_session
            removed |= await forget(db, scope)
        return Receipt(removed=removed, pending=(UNSWEPT,) if any(removed.values()) else ())

    async def scrub(self) -> tuple[str, ...]:
        """What only an administrator can do: no bytes of removed rows in the files of the server."""
        return (UNSWEPT,)

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same schema."""
        async with self._server.transaction(scope) as db:
            return await records.count_sessions(db, scope)

    async def _describe(self) -> dict[str, str]:
        async with self._server.transaction(None) as db:
            return await describe(db, self._schema)

    async def _close(self) -> None:
        await self._server.close()

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        now = self._clock.now()
        async with self._server.transaction(scope, writes=True) as db:
            return await records.prune(db, scope, layer, keep=keep, before=before, now=now)

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        async with self._server.transaction(scope, writes=True) as db:
            await records.touch(db, scope, ids, at)

    async def _bound(self) -> Bound | None:
        return vector_rows.bound_of(await self._server.glance(None, vector_rows.BOUND))

    async def _set_embedder(self, old: Bound | None, new: Bound) -> bool:
        async with self._server.transaction(None) as db:
            return await vector_rows.rebind(db, old, new)

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        async with self._server.transaction(scope, writes=True) as db:
            await vector_rows.put_vectors(db, scope, vectors)

    async def _unembedded(
        self, where: Filter | None, after: tuple[Scope, str] | None, limit: int | None
    ) -> Collection[tuple[Scope, Record]]:
        async with self._server.transaction(None) as db:
            return [found async for found in vector_rows.unembedded(db, where, after, limit)]

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        async with self._server.transaction(None) as db:
            return await all_users(db, after, limit)

    async def _epoch(self, scope: Scope) -> str:
        async with self._server.transaction(scope) as db:
            return await records.epoch(db, scope)

    async def _lease(
        self, now: datetime, until: datetime, limit: int, scope: Scope | None, kinds: Sequence[str] | None
    ) -> Iterable[Lease]:
        async with self._server.transaction(scope) as db:
            return await job_rows.lease(db, now, until, limit, scope=scope, kinds=kinds)

    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        async with self._server.transaction(lease.job.scope, writes=True) as db:
            await job_rows.fail(db, lease, reason, now, retry_at)

    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]:
        async with self._server.transaction(scope) as db:
            return await job_rows.dead_letters(db, scope)

    async def _open_jobs(self, scope: Scope) -> Collection[Job]:
        async with self._server.transaction(scope) as db:
            return await job_rows.open_jobs(db, scope)

    async def _pending(self, scope: Scope) -> int:
        async with self._server.transaction(scope) as db:
            return await job_rows.pending(db, scope)
