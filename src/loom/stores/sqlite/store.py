"""A memory store in one SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from os import PathLike
from typing import Self, TypeVar

from loom.core.checks import as_utc
from loom.core.clock import Clock, SystemClock
from loom.core.filter import Filter
from loom.core.hit import Hit
from loom.core.record import Layer, Receipt, Record
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.protocols.memory_store import FoundBy, Query
from loom.stores.index_difference import IndexDifference
from loom.stores.record_rules import check_embedder, check_keep, check_limit, lease_times, vector_apart
from loom.stores.sqlite import check, describing, handover, records, reembed, search, vectors
from loom.stores.sqlite import jobs as job_rows
from loom.stores.sqlite.checkpoint_schema import count_sessions
from loom.stores.sqlite.connection import Database, Durability
from loom.stores.sqlite.file import SqliteFile
from loom.stores.sqlite.records import Keys
from loom.stores.sqlite.touches import Touches
from loom.stores.sqlite.users import all_users, check_epoch, epoch_of, find_user, forget_name

_T = TypeVar("_T")


class SqliteStore:
    """Keeps records, vectors, keys and jobs in one file, with every optional power of a store.

    Several stores, threads and processes may share a file. Opened at the first use, or by `async with`.
    `durability="full"` survives a power cut after every acknowledged write; `"fast"` survives the end of the process,
    and a power cut may take the last writes. `":memory:"` keeps everything in memory. Of a user with many vectors (more
    than 131,072 of 256 numbers) only sketches are kept in memory: they choose candidates, which are compared exactly.
    What is kept of vectors takes at most `vector_cache_bytes` between searches. With `make_folder` the folder of a new
    file is made with it.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        vector_cache_bytes: int = 512 * 2**20,
        make_folder: bool = False,
    ) -> None:
        self._file = SqliteFile(path, durability=durability, make_folder=make_folder)
        self._view = self._file.view
        self._touches = Touches()
        self._clock = clock or SystemClock()
        self._cache = vectors.VectorCache(vector_cache_bytes)
        self._bound: tuple[str, int] | None = None

    async def __aenter__(self) -> Self:
        await self._file.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        await self.write(scope, put=records)

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, None where there is none."""
        return await self._shown(scope, lambda db, user: records.get(db, user, scope, id), None)

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first; the score is the sum of the signals in `why`."""
        now = self._clock.now()
        if self._touches.asked_for_by(query.where):
            await self._commit(self._touches.write)
        bound = None if query.vector is None else self._bound

        def find(db: Database) -> list[Hit]:
            vectors.check_bound(db, bound)
            return search.search(db, find_user(db, scope), scope, query, now=now, cache=self._cache)

        return self._touches.shown_in(scope, await self._view(find))

    async def search_apart(self, scope: Scope, query: Query, *, near: int) -> tuple[Hit, ...]:
        """The best by the words of a query and the `near` best by its vector."""
        vector_apart(query, near)
        now = self._clock.now()
        if self._touches.asked_for_by(query.where):
            await self._commit(self._touches.write)

        def find(db: Database, user: int) -> list[Hit]:
            vectors.check_bound(db, self._bound)
            return search.search_apart(db, user, scope, query, near=near, now=now, cache=self._cache)

        return self._touches.shown_in(scope, await self._read(scope, find, []))

    async def search_beside(self, scope: Scope, query: Query, nearest: Mapping[str, float]) -> tuple[Hit, ...]:
        """The best by words, and those of `nearest` that the query may show, each with its cosine."""
        now = self._clock.now()
        if self._touches.asked_for_by(query.where):
            await self._commit(self._touches.write)

        def find(db: Database, user: int) -> list[Hit]:
            vectors.check_bound(db, self._bound)
            return search.search_beside(db, user, scope, query, nearest, now=now)

        return self._touches.shown_in(scope, await self._read(scope, find, []))

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, from behind `after`."""
        check_limit(limit)
        return await self._shown(
            scope,
            lambda db, user: tuple(records.select(db, user, scope, where=where, after=after, limit=limit)),
            (),
        )

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        ask = self._shown if self._touches.asked_for_by(where) else self._read
        return await ask(scope, lambda db, user: records.count(db, user, scope, where), 0)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        return await self._change(scope, lambda db, _: records.change(db, scope, delete=ids), 0)

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session; then empty the write-ahead log."""

        def remove(db: Database) -> tuple[int, dict[str, int]] | None:
            user = find_user(db, scope)
            return None if user is None else (user, _forget(db, user, scope))

        done, pending = await self._file.erase(self._touches.before(remove))
        user, removed = done or (None, {})
        if user is not None and scope.session_id is None:
            self._cache.drop(user)
        return Receipt(removed={kind: count for kind, count in removed.items() if count}, pending=pending)

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same file."""
        return await self._view(lambda db: count_sessions(db, scope))

    async def scrub(self) -> tuple[str, ...]:
        """Empty the write-ahead log, where deleted text may still stand; returns what is pending, in words."""
        return await self._file.scrub()

    async def aclose(self) -> None:
        """Finish writing and release the file. Closing twice is allowed."""
        if self._touches:
            with suppress(StoreError):  # what was recalled lately is worth no failure
                await self._commit(self._touches.write)
        await self._file.aclose()

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        check_keep(keep)
        start = None if before is None else as_utc(before, "before of a prune")
        layer, now = Layer(layer), self._clock.now()
        return await self._change(
            scope, lambda db, user: records.prune(db, user, scope, layer, keep=keep, before=start, now=now), ()
        )

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode. It is written with the next change: a search waits for no disk.

        Every call of this store sees it at once; another process sees it later, and a crash may lose it.
        """
        self._touches.add(scope, ids, as_utc(at, "the time of an access"))
        if self._touches.are_many:
            await self._commit(self._touches.write)

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        check_embedder("bind", identity, dimension)
        wanted = (identity, dimension)
        if self._bound == wanted:  # whatever uses vectors sees if that is no longer so
            return
        if await self._view(vectors.binding) != wanted:  # so that a search waits for no writer
            await self._commit(lambda db: vectors.bind(db, identity, dimension))
        self._bound = wanted

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        given = dict(vectors)
        await self._commit(lambda db: _put_vectors(db, self._bound, scope, given))

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        check_embedder("rebind", identity, dimension)
        is_new = await self._commit(lambda db: reembed.rebind(db, identity, dimension))
        self._bound = (identity, dimension)
        return is_new

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records of all users without a vector, by namespace, user and id."""
        check_limit(limit)
        if self._touches:
            await self._commit(self._touches.write)
        return tuple(await self._view(lambda db: reembed.unembedded(db, where, after, limit)))

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        return await self._view(lambda db: reembed.count_unembedded(db, where))

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        check_limit(limit)
        return await self._view(lambda db: all_users(db, after, limit))

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension; None before bind()."""
        return await self._view(vectors.binding)

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """How the word index and the vectors differ from the records; with `repair` they do not any longer.

        A vector that is no vector of the embedder is taken away by that; `loom memory reembed` makes a new one.
        """
        ask = self._commit if repair else self._view
        return await ask(lambda db: check.check(db, repair=repair))

    async def describe(self) -> dict[str, str]:
        """What this file is and what it guarantees."""
        return {**await self._view(describing.labels), "durability": describing.durability(self._file)}

    async def put_keys(self, scope: Scope, keys: Keys) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        await self.write(scope, keys=keys)

    async def found_by(self, scope: Scope, *ids: str) -> Mapping[str, FoundBy]:
        """The keys and the vector of each of these records that is there."""
        return await self._read(scope, lambda db, user: handover.found_by(db, user, scope, ids), {})

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed."""
        return await self._view(lambda db: epoch_of(db, scope))

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

        def change(db: Database) -> int:
            check_epoch(db, scope, since)
            records.change(db, scope, put=put, delete=delete, keys=keys)
            return job_rows.enqueue(db, scope, jobs)

        return await self._commit(change)

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
        return await self._commit(lambda db: job_rows.lease(db, now, until, limit, scope=scope, kinds=kinds))

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

        def change(db: Database) -> None:
            job_rows.close(db, lease)
            check_epoch(db, scope, since)
            records.change(db, scope, put=put, delete=delete, keys=keys)
            job_rows.enqueue(db, scope, jobs)

        await self._commit(change)

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back for `retry_at`, or make it a dead letter."""
        retry_at = None if retry_at is None else as_utc(retry_at, "retry_at of a failed job")
        now = as_utc(now, "now of a failed job")
        await self._commit(lambda db: job_rows.fail(db, lease, reason, now, retry_at))

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up, the earliest first."""
        return await self._view(lambda db: job_rows.dead_letters(db, scope))

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id."""
        return await self._view(lambda db: job_rows.open_jobs(db, scope))

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        return await self._view(lambda db: job_rows.pending(db, scope))

    async def _read(self, scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> _T:
        """A view of one user's rows; `nothing` where he has none."""

        def view(db: Database) -> _T:
            user = find_user(db, scope)
            return nothing if user is None else action(db, user)

        return await self._view(view)

    async def _shown(self, scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> _T:
        """A view of one user's rows with all accesses that were counted."""
        if self._touches:
            await self._commit(self._touches.write)
        return await self._read(scope, action, nothing)

    async def _commit(self, action: Callable[[Database], _T]) -> _T:
        """What a change returns, after it is durable; what waits to be written goes first."""
        return await self._file.commit(self._touches.before(action) if self._touches else action)

    async def _change(self, scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> _T:
        """A change of one user's rows; `nothing` where he has none, and then he gets none."""

        def change(db: Database) -> _T:
            user = find_user(db, scope)
            return nothing if user is None else action(db, user)

        return await self._commit(change)


def _forget(db: Database, user: int, scope: Scope) -> dict[str, int]:
    removed = job_rows.forget(db, user, scope)
    if scope.session_id is not None:
        return removed | records.forget_session(db, user, scope)
    removed |= records.forget_user(db, user)
    forget_name(db, user)
    return removed


def _put_vectors(db: Database, bound: tuple[str, int] | None, scope: Scope, given: Mapping[str, Vector]) -> None:
    vectors.check_bound(db, bound)
    vectors.put_vectors(db, find_user(db, scope), scope, given)
