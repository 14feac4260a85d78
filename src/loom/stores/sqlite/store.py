"""A memory store in one SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from os import PathLike
from typing import TypeVar

from loom.core.clock import Clock
from loom.core.filter import Filter
from loom.core.hit import Hit
from loom.core.record import Layer, Receipt, Record
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.protocols.memory_store import FoundBy, Query
from loom.stores.base import BaseMemoryStore, Bound, Write, Written
from loom.stores.index_difference import IndexDifference
from loom.stores.sqlite import check, describing, handover, records, reembed, search, vectors
from loom.stores.sqlite import jobs as job_rows
from loom.stores.sqlite.checkpoint_schema import count_sessions
from loom.stores.sqlite.connection import Database, Durability
from loom.stores.sqlite.file import SqliteFile
from loom.stores.sqlite.touches import Touches
from loom.stores.sqlite.users import all_users, check_epoch, epoch_of, find_user, forget_name

_T = TypeVar("_T")


class SqliteStore(BaseMemoryStore):
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
        super().__init__(clock=clock)
        self._file = SqliteFile(path, durability=durability, make_folder=make_folder)
        self._view = self._file.view
        self._touches = Touches()
        self._cache = vectors.VectorCache(vector_cache_bytes)
        self._bound_here: Bound | None = None  # the embedder that this object was bound to

    async def _open(self) -> None:
        await self._file.opened()

    async def _get(self, scope: Scope, id: str) -> Record | None:
        return await self._shown(scope, lambda db, user: records.get(db, user, scope, id), None)

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        now, bound = self._clock.now(), None if query.vector is None else self._bound_here

        def find(db: Database) -> list[Hit]:
            vectors.check_binding(db, bound)
            return search.search(db, find_user(db, scope), scope, query, now=now, cache=self._cache)

        return await self._hits(scope, query, find)

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        now = self._clock.now()

        def find(db: Database, user: int) -> list[Hit]:
            vectors.check_binding(db, self._bound_here)
            return search.search_apart(db, user, scope, query, near=near, now=now, cache=self._cache)

        return await self._hits(scope, query, _of_user(scope, find, []))

    async def search_beside(self, scope: Scope, query: Query, nearest: Mapping[str, float]) -> tuple[Hit, ...]:
        """The best by words, and those of `nearest` that the query may show, each with its cosine."""
        now = self._clock.now()

        def find(db: Database, user: int) -> list[Hit]:
            vectors.check_binding(db, self._bound_here)
            return search.search_beside(db, user, scope, query, nearest, now=now)

        return await self._hits(scope, query, _of_user(scope, find, []))

    async def _hits(self, scope: Scope, query: Query, find: Callable[[Database], list[Hit]]) -> tuple[Hit, ...]:
        if self._touches.asked_for_by(query.where):
            await self._commit(self._touches.write)
        return self._touches.shown_in(scope, await self._view(find))

    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]:
        return await self._shown(
            scope, lambda db, user: records.select(db, user, scope, where=where, after=after, limit=limit), []
        )

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        ask = self._shown if self._touches.asked_for_by(where) else self._read
        return await ask(scope, lambda db, user: records.count(db, user, scope, where), 0)

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, FoundBy]:
        return await self._read(scope, lambda db, user: handover.found_by(db, user, scope, ids), {})

    async def _write(self, scope: Scope, write: Write) -> Written:
        def change(db: Database) -> Written:
            if write.closing is not None:
                job_rows.close(db, write.closing)
            check_epoch(db, scope, write.since)
            deleted = records.change(db, scope, put=write.put, delete=write.delete, keys=write.keys)
            return Written(deleted, job_rows.enqueue(db, scope, write.jobs))

        return await self._commit(change)

    async def _forget(self, scope: Scope) -> Receipt:
        def remove(db: Database) -> tuple[int, dict[str, int]] | None:
            user = find_user(db, scope)
            return None if user is None else (user, _forget(db, user, scope))

        # Also empties the write-ahead log, where deleted text may still be.
        done, pending = await self._file.erase(self._touches.before(remove))
        user, removed = done or (None, {})
        if user is not None and scope.session_id is None:
            self._cache.drop(user)
        return Receipt(removed=removed, pending=pending)

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same file."""
        return await self._view(lambda db: count_sessions(db, scope))

    async def scrub(self) -> tuple[str, ...]:
        """Empty the write-ahead log, where deleted text may still be; returns what is pending, in words."""
        return await self._file.scrub()

    async def _close(self) -> None:
        if self._touches:
            with suppress(StoreError):  # the latest access counts are not worth a failure
                await self._commit(self._touches.write)
        await self._file.aclose()

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        now = self._clock.now()

        def change(db: Database, user: int) -> tuple[str, ...]:
            return records.prune(db, user, scope, layer, keep=keep, before=before, now=now)

        return await self._commit(_of_user(scope, change, ()))

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        # Written with the next change, so that a search waits for no disk. Every call of this store sees the count at
        # once; another process sees it later, and a crash may lose it.
        self._touches.add(scope, ids, at)
        if self._touches.are_many:
            await self._commit(self._touches.write)

    async def _bound(self) -> Bound | None:
        return await self._view(vectors.binding)

    async def _bind(self, wanted: Bound) -> None:
        if self._bound_here != wanted:  # every call that uses vectors checks that it is still so
            await super()._bind(wanted)
            self._bound_here = wanted

    async def _set_embedder(self, old: Bound | None, new: Bound) -> bool:
        is_done = await self._commit(lambda db: reembed.rebind(db, old, new))
        if is_done:
            self._bound_here = new
        return is_done

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        await self._commit(lambda db: _put_vectors(db, self._bound_here, scope, vectors))

    async def _unembedded(
        self, where: Filter | None, after: tuple[Scope, str] | None, limit: int | None
    ) -> Collection[tuple[Scope, Record]]:
        if self._touches:
            await self._commit(self._touches.write)
        return await self._view(lambda db: reembed.unembedded(db, where, after, limit))

    async def _count_unembedded(self, where: Filter | None) -> int:
        return await self._view(lambda db: reembed.count_unembedded(db, where))

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        return await self._view(lambda db: all_users(db, after, limit))

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """How the word index and the vectors differ from the records; `repair` removes the differences.

        It removes a vector that the embedder cannot have made; `loom memory reembed` makes a new one.
        """
        ask = self._commit if repair else self._view
        return await ask(lambda db: check.check(db, repair=repair))

    async def _describe(self) -> dict[str, str]:
        return {**await self._view(describing.labels), "durability": describing.durability(self._file)}

    async def _epoch(self, scope: Scope) -> str:
        return await self._view(lambda db: epoch_of(db, scope))

    async def _lease(
        self, now: datetime, until: datetime, limit: int, scope: Scope | None, kinds: Sequence[str] | None
    ) -> Iterable[Lease]:
        return await self._commit(lambda db: job_rows.lease(db, now, until, limit, scope=scope, kinds=kinds))

    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        await self._commit(lambda db: job_rows.fail(db, lease, reason, now, retry_at))

    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]:
        return await self._view(lambda db: job_rows.dead_letters(db, scope))

    async def _open_jobs(self, scope: Scope) -> Collection[Job]:
        return await self._view(lambda db: job_rows.open_jobs(db, scope))

    async def _pending(self, scope: Scope) -> int:
        return await self._view(lambda db: job_rows.pending(db, scope))

    async def _read(self, scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> _T:
        return await self._view(_of_user(scope, action, nothing))

    async def _shown(self, scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> _T:
        """A view of one user's rows with all accesses that were counted."""
        if self._touches:
            await self._commit(self._touches.write)
        return await self._read(scope, action, nothing)

    async def _commit(self, action: Callable[[Database], _T]) -> _T:
        """What a change returns, after it is durable; waiting access counts are written first."""
        return await self._file.commit(self._touches.before(action) if self._touches else action)


def _of_user(scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> Callable[[Database], _T]:
    """The action on one user's rows; `nothing` where the user has none, who is then not registered either."""

    def act(db: Database) -> _T:
        user = find_user(db, scope)
        return nothing if user is None else action(db, user)

    return act


def _forget(db: Database, user: int, scope: Scope) -> dict[str, int]:
    removed = job_rows.forget(db, user, scope)
    if scope.session_id is not None:
        return removed | records.forget_session(db, user, scope)
    removed |= records.forget_user(db, user)
    forget_name(db, user)
    return removed


def _put_vectors(db: Database, bound: Bound | None, scope: Scope, given: Mapping[str, Vector]) -> None:
    vectors.check_binding(db, bound)
    vectors.put_vectors(db, find_user(db, scope), scope, given)
