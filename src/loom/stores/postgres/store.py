"""Memory store in a Postgres schema; its description, and sweeping forgotten bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from loom.core.clock import Clock
from loom.core.filter import Filter
from loom.core.record import Hit, Layer, Receipt, Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import DeadLetter, HitColumns, Job, Lease, Newest, Query, SearchKeys, Together
from loom.stores._record_table import Keys
from loom.stores.base import (
    After,
    BaseMemoryStore,
    Bound,
    LeaseRequest,
    Owned,
    Write,
    Written,
    check_hybrid,
    embedder_label,
)
from loom.stores.postgres import records, search
from loom.stores.postgres import search as vector_rows
from loom.stores.postgres.connection import (
    Database,
    Row,
    all_users,
    connect,
    name_of,
    one,
    rows,
    run,
    translate_errors,
)
from loom.stores.postgres.partitions import stored_partitions
from loom.stores.postgres.schema import (
    SCHEMA,
    TABLES,
    UNSWEPT,
    Guard,
    as_owner,
    guarded,
    isolation_of,
    may_lose,
    replication,
    stored_version,
)
from loom.stores.postgres.search import INDEXES, PREFIX, binding, index_large_users

_T = TypeVar("_T")

# The description of a Postgres store and its guarantees, as the server is set up now.

_SERVER = """
SELECT split_part(current_setting('server_version'), ' ', 1),
    (SELECT extversion FROM pg_extension WHERE extname = 'vector')
"""
_DURABILITY = """
SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')
"""
_ROWS = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM vectors)"


async def describe(db: Database, schema: str) -> dict[str, str]:
    """Server, schema, durability, isolation, index and embedder; the transaction is one for all users."""
    version, vector = await one(db, _SERVER) or ("", "")
    return {
        "server": f"PostgreSQL {version}, {f'pgvector {vector}' if vector else 'without pgvector'}",
        "schema": f"{schema}, format {await stored_version(db, schema)}{await _partitions(db)}",
        "durability": await _durability(db),
        "isolation": await isolation_of(db, schema),
        "index": await _index(db, schema),
        "embedder": embedder_label(await binding(db)),
    }


async def _partitions(db: Database) -> str:
    amount = await stored_partitions(db)
    return f", {amount} partitions" if amount > 1 else ""


async def _durability(db: Database) -> str:
    replicas, waits = await replication(db)
    here = await _durability_here(db)
    if waits is not None:
        return f"{here}; a standby confirms each write, so it survives the loss of the primary: {waits}"
    return f"{here}; {await may_lose(db)}" if replicas else here


async def _durability_here(db: Database) -> str:
    fsync, commit, pages = await one(db, _DURABILITY) or ("", "", "")
    settings = f"fsync={fsync}, synchronous_commit={commit}, full_page_writes={pages}"
    if fsync != "on" or pages != "on":
        return f"not safe from a power cut: {settings}"
    if commit == "off":
        return f"a crash may lose the last moments: {settings}"
    return f"what was acknowledged survives a crash: {settings}"


async def _index(db: Database, schema: str) -> str:
    records, vectors = await one(db, _ROWS) or (0, 0)
    made = [name for name, is_valid, _ in await rows(db, INDEXES, schema, PREFIX) if is_valid]
    how = f"HNSW for {len(made)} users, exact for the others" if made else "exact"
    return f"{how}; {records} records, {vectors} vectors"


class PostgresStore(BaseMemoryStore):
    """Keeps records, vectors, keys and jobs in Postgres with pgvector, with every optional power of a store.

    Any number of stores and processes may share a schema, which `init_schema()` or `loom store init` makes. `dsn` is a
    URL or a connection string of libpq, and names the role made for this. A database without the schema gets it at the
    first use, if the role may create one: it then has tables of its own, and `notes` says how users are kept apart;
    `make_schema=False` leaves such a database alone.
    Connected at the first use, or by `async with`; where there are two roles, one that could see the rows of all users
    is refused unless `allow_owner` says otherwise. A call gives up with StoreUnavailable after `timeout` seconds,
    whatever it waits for; what it wrote may then be there or not, and the same again is safe. A call whose connection
    is lost before that is made again on another, and what it wrote is there once.
    `dsn` may name several hosts, of which the primary is used. Searches are answered by `replica`, the URL of
    a streaming replica, where it has replayed what this store wrote and saw of the user. `prepare=False` sends no
    prepared statements, for poolers that hand each transaction to another connection. In a URL both are options of the
    query: `?replica=URL&prepare=off`.
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
        replica: str | None = None,
        prepare: bool | None = None,
    ) -> None:
        super().__init__(clock=clock)
        self._schema = schema
        self._turns: set[UUID] = set()
        self._bound_here: Bound | None = None  # the embedder that this object was bound to
        insists = Guard(schema, allow_owner, make_schema)
        self._server = guarded(dsn, insists, pool_size=pool_size, timeout=timeout, replica=replica, prepare=prepare)

    async def _open(self) -> None:
        await self._server.open()

    async def _transact(
        self, scope: Scope | None, work: Callable[[Database], Awaitable[_T]], *, writes: bool = False
    ) -> _T:
        return await self._server.work(scope, work, writes=writes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of what the server guarantees; nothing before the first call."""
        return self._server.notes

    async def _get(self, scope: Scope, id: str) -> Record | None:
        return await self._transact(scope, lambda db: records.get(db, scope, id))

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        look, now = search.look(scope, None if query.vector is None else query.limit), self._clock.now()
        bound = None if query.vector is None else self._bound_here
        return await self._server.read(
            scope, look, lambda db, row: search.search(db, search.known(row, bound), scope, query, now=now)
        )

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        return await self._search_both(search.search_hybrid, scope, query, near)

    async def search_columns(self, scope: Scope, query: Query, *, near: int) -> HitColumns:
        """The hits of search_hybrid(), not read."""
        check_hybrid(query, near)
        return await self._search_both(search.search_columns, scope, query, near)

    async def _search_both(self, find: Callable[..., Awaitable[_T]], scope: Scope, query: Query, near: int) -> _T:
        now, bound = self._clock.now(), self._bound_here

        async def answer(db: Database, row: Row) -> _T:
            return await find(db, search.known(row, bound), scope, query, near=near, now=now)

        return await self._server.read(scope, search.look(scope, near), answer)

    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]:
        return await self._transact(scope, lambda db: records.select(db, scope, where=where, after=after, limit=limit))

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        if where is None and scope.session_id is None:
            found = await self._server.glance(scope, records.counted(scope))
            return found[0] if found else 0
        return await self._transact(scope, lambda db: records.count(db, scope, where))

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, SearchKeys]:
        return await self._transact(scope, lambda db: vector_rows.search_keys(db, scope, ids))

    async def read_together(self, scope: Scope, *wheres: Filter | Newest) -> Together:
        """The epoch of the scope's user, and the records that fit each filter."""

        async def read(db: Database, row: Row) -> Together:
            return Together(records.UserRow(*row).epoch, await records.select_all(db, scope, wheres))

        return await self._server.read(scope, records.user_look(scope), read, newest=True)

    async def _write(self, scope: Scope, write: Write) -> Written:
        expected = self._bound_here

        async def change(db: Database, looked: Sequence[Row | None]) -> Written:
            user = records.UserRow(*(looked[0] or ()))
            if write.closing is not None:
                await records.close(db, write.closing)
            user.check_epoch(scope, write.since)
            writing = records.Writing(db, scope, user)
            deleted = await writing.change(write.put, write.delete, write.keys)
            if write.vectors:
                await vector_rows.put_vectors(writing, write.vectors, vector_rows.bound_of(looked[1]), expected)
            made = Written(deleted, await writing.enqueue(write.jobs))
            await writing.send()
            return made

        look = records.user_look(scope)
        return await self._server.write(scope, f"{look}; {vector_rows.HELD}" if write.vectors else look, change)

    async def write_embedded(
        self,
        scope: Scope,
        vectors: Mapping[str, Vector],
        *,
        put: Sequence[Record] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Put records, keys, vectors and jobs, all or none; returns how many jobs are new."""
        made = Write(put=put, keys=keys or {}, jobs=jobs, since=since, vectors=vectors)
        return (await self._checked_write(scope, made)).jobs

    async def _forget(self, scope: Scope) -> Receipt:
        removed: dict[str, int] = {}

        async def forget(db: Database) -> None:
            gone = await records.forget(db, scope)
            more = records.forget_user if scope.session_id is None else records.forget_session
            gone |= await more(db, scope)
            # The mark of the write goes with the user: done again after a lost answer, nothing may be left to count.
            removed.update({kind: max(count, removed.get(kind, 0)) for kind, count in gone.items()})

        await self._transact(scope, forget, writes=True)
        return Receipt(removed=removed, pending=(UNSWEPT,) if any(removed.values()) else ())

    async def scrub(self) -> tuple[str, ...]:
        """What only an administrator can do: no bytes of removed rows in the files of the server."""
        return (UNSWEPT,)

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same schema."""
        return await self._transact(scope, lambda db: records.count_sessions(db, scope))

    async def _describe(self) -> dict[str, str]:
        return await self._transact(None, lambda db: describe(db, self._schema))

    async def _close(self) -> None:
        await self._server.close()

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        now = self._clock.now()

        async def prune(db: Database) -> Iterable[str]:
            return await records.prune(db, scope, layer, keep=keep, before=before, now=now)

        return await self._transact(scope, prune, writes=True)

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        await self._transact(scope, lambda db: records.touch(db, scope, ids, at), writes=True)

    async def _bound(self) -> Bound | None:
        return vector_rows.bound_of(await self._server.glance(None, vector_rows.BOUND))

    async def _bind(self, wanted: Bound) -> None:
        if self._bound_here != wanted:  # every call that uses vectors checks that it is still so
            await super()._bind(wanted)
            self._bound_here = wanted

    async def _set_embedder(self, old: Bound | None, new: Bound) -> bool:
        is_done = await self._transact(None, lambda db: vector_rows.rebind(db, old, new), writes=True)
        if is_done:
            self._bound_here = new
        return is_done

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        await self._write(scope, Write(vectors=vectors))

    async def _unembedded(self, where: Filter | None, after: After, limit: int | None) -> Collection[Owned]:
        async def found(db: Database) -> list[Owned]:
            return [record async for record in vector_rows.unembedded(db, where, after, limit)]

        return await self._transact(None, found)

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        return await self._transact(None, lambda db: all_users(db, after, limit))

    async def _epoch(self, scope: Scope) -> str:
        return records.UserRow(*(await self._server.glance(scope, records.user_look(scope)) or ())).epoch

    async def _lease(self, asked: LeaseRequest) -> Iterable[Lease]:
        return await self._transact(asked.scope, lambda db: records.lease(db, asked, self._turns))

    async def job_counts(self, *, now: datetime) -> dict[str, int]:
        """How many jobs of all users are due, leased and given up."""
        return await self._transact(None, lambda db: records.job_counts(db, now))

    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        await self._transact(lease.job.scope, lambda db: records.fail(db, lease, reason, now, retry_at), writes=True)

    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]:
        return await self._transact(scope, lambda db: records.dead_letters(db, scope))

    async def _open_jobs(self, scope: Scope) -> Collection[Job]:
        return await self._transact(scope, lambda db: records.open_jobs(db, scope))

    async def _pending(self, scope: Scope) -> int:
        return await self._transact(scope, lambda db: records.pending(db, scope))


# Erasing forgotten data from the files of the server: an administrator makes the server write its files anew.

_HELD = (
    "SELECT pid FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND xact_start < %s AND pid <> pg_backend_pid()"
)
_COPIED = (
    "SELECT 1 WHERE current_setting('archive_mode') <> 'off' OR EXISTS (SELECT 1 FROM pg_replication_slots) "
    "OR EXISTS (SELECT 1 FROM pg_stat_replication)"
)


async def sweep_schema(admin_dsn: str, *, schema: str = SCHEMA, owner_role: str | None = None) -> tuple[str, ...]:
    """Leave no byte of what was removed in the tables and the write-ahead log; returns what is pending, in words.

    `admin_dsn` names a superuser; `owner_role` is the owner of the schema if not given. Each table is locked while it
    is written anew, and the write-ahead log is filled with zeros twice around, 16 MB for each of its files.
    """
    where = name_of(admin_dsn)
    with translate_errors(where, needed="an administrator of the server"):
        async with as_owner(admin_dsn, schema, where, owner_role=owner_role) as db:
            await index_large_users(db, schema)
        db = await connect(admin_dsn, autocommit=True)
        async with db:
            start = await one(db, "SELECT clock_timestamp()")
            await _rewrite_tables(db, schema)
            await _overwrite_log(db)
            held = await rows(db, _HELD, *(start or ()))
            copied = await one(db, _COPIED)
    pending = [f"process {pid} of the server still sees removed rows; sweep again when it is done" for (pid,) in held]
    if copied is not None:
        pending.append("the write-ahead log is archived or replicated; let the copies run out")
    return tuple(pending)


async def _rewrite_tables(db: Database, schema: str) -> None:
    from psycopg import sql  # noqa: PLC0415

    for table in TABLES:
        await db.execute(sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.Identifier(schema, table)))
    # What the planner knew of the rows before is a removed row itself.
    await run(db, "VACUUM (FULL) pg_catalog.pg_statistic")


async def _overwrite_log(db: Database) -> None:
    """Fill every file of the write-ahead log: a used one is not removed but taken again, with what is in it."""
    for _ in range(2):  # the file that is being written now comes around in the second lap
        await run(db, "CHECKPOINT")
        found = await one(db, "SELECT count(*) FROM pg_ls_waldir()")
        for _ in range(int(found[0]) + 1 if found else 1):
            # A switch ends a file with zeros, if there is anything in it.
            await run(db, "SELECT pg_logical_emit_message(true, 'loom', 'sweep')")
            await run(db, "SELECT pg_switch_wal()")
    await run(db, "CHECKPOINT")
