"""Memory store in one SQLite file."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from os import PathLike
from threading import Lock
from typing import TypeVar

import apsw
import numpy as np

from loom.core.clock import Clock
from loom.core.filter import And, Filter, Not, Or
from loom.core.record import Episode, Hit, Layer, Passage, Receipt, Record, changed, latest_of, scored
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import (
    DeadLetter,
    HitColumns,
    IndexDifference,
    Job,
    Lease,
    Newest,
    Others,
    Query,
    SearchKeys,
    Together,
)
from loom.stores import base
from loom.stores._record_table import Keys, listed_place
from loom.stores._sql import NO_HITS, hit_columns
from loom.stores.base import After, BaseMemoryStore, Bound, LeaseRequest, Owned, Write, Written
from loom.stores.sqlite import check, index, records, search
from loom.stores.sqlite.connection import (
    CHECKSUM,
    SELECTED,
    Database,
    Durability,
    Row,
    all_users,
    check_epoch,
    condition,
    epoch_of,
    find_user,
    from_row,
    one,
    rows,
    seen,
    translate_errors,
)
from loom.stores.sqlite.file import SqliteFile
from loom.stores.sqlite.index import binding
from loom.stores.sqlite.schema import MEMORY_PAGE_BYTES, VERSION, count_sessions, prepare

# The description of a SQLite store and its guarantees.

_DURABLE: dict[str, str] = {
    "full": "full: an acknowledged write survives a killed process and a power cut (WAL, synchronous=FULL)",
    "fast": "fast: survives a killed process; a power cut may take the last writes (WAL, synchronous=NORMAL)",
}


def labels(db: Database) -> dict[str, str]:
    """The labels that are read from the file."""
    found = one(db, "SELECT count(*), coalesce(sum(records), 0) FROM users") or (0, 0)
    vectors = one(db, "SELECT count(*) FROM vectors") or (0,)
    return {
        "server": f"SQLite {apsw.sqlite_lib_version()}, in this process",
        "isolation": "every statement names its user; anyone who can read the file can read all of it",
        "index": f"{vectors[0]:,} vectors of {found[1]:,} records of {found[0]:,} users; written with the records",
        "embedder": base.embedder_label(binding(db)),
        "schema": f"version {VERSION}, the newest this Loom knows",
    }


# Keys and vectors of records, read back so that the records can be moved to another store.


def search_keys(
    db: Database, user: int, scope: Scope, ids: Iterable[str], cache: index.SearchCache
) -> dict[str, SearchKeys]:
    """The keys and the vector of each of these records that the scope sees."""
    sql, values = seen(user, scope)
    wanted = json.dumps(list(dict.fromkeys(ids)))
    records = rows(
        db,
        f"SELECT r.id, r.row, v.data FROM json_each(?) AS given CROSS JOIN records AS r ON r.id = given.value "
        f"LEFT JOIN vectors AS v ON v.row = r.row WHERE {sql}",
        wanted,
        *values,
    )
    keys: defaultdict[int, dict[str, str]] = defaultdict(dict)
    given = json.dumps([row for _, row, _ in records])
    for row, kind, text in rows(
        db, "SELECT k.row, kind, text FROM json_each(?) AS given CROSS JOIN keys AS k ON k.row = given.value", given
    ):
        keys[row][kind] = text
    for row, text in index.texts_around(db, user, [row for _, row, _ in records], cache):
        keys[row][index.AROUND_KIND] = text
    with base.reading("a vector"):
        return {
            id: SearchKeys(keys[row], None if data is None else np.frombuffer(data, "<f4")) for id, row, data in records
        }


# Exchanging the vectors of a file for those of another embedder.

_USERS = "SELECT user, namespace, user_id FROM users WHERE (namespace, user_id) >= (?, ?) ORDER BY namespace, user_id"
_WITHOUT_VECTOR = "NOT EXISTS (SELECT 1 FROM vectors AS v WHERE v.row = r.row)"


def rebind(db: Database, old: Bound | None, new: Bound) -> bool:
    """Bind the file to another embedder and remove all vectors; False where it is not bound to `old`."""
    if binding(db) != old:
        return False
    db.execute("DELETE FROM meta WHERE name IN ('embedder', 'dimension')")
    db.executemany("INSERT INTO meta VALUES (?, ?)", [("embedder", new[0]), ("dimension", str(new[1]))])
    db.execute("DELETE FROM vectors")
    db.execute("DELETE FROM sketches")
    # By this every process that holds a user's vectors in memory sees that they are gone.
    db.execute("UPDATE users SET vectors_gone = vectors_gone + 1")
    return True


def unembedded(db: Database, where: Filter | None, after: After, limit: int | None) -> list[Owned]:
    """Records without a vector, by namespace, user and id."""
    # Closed at once: a cursor that stays open keeps the log from being emptied.
    with closing(_found(db, where, after)) as found:
        return list(islice(found, limit))


def count_unembedded(db: Database, where: Filter | None) -> int:
    """How many records without a vector there are."""
    return sum(1 for _ in _found(db, where, None))


def _found(db: Database, where: Filter | None, after: After) -> Generator[Owned]:
    # User by user, so that a page begins where the last one ended and nothing is read twice.
    start = ("", "") if after is None else (after[0].namespace, after[0].user_id)
    with closing(db.execute(_USERS, start)) as users:
        for user, namespace, user_id in users:
            behind = after[1] if after is not None and (namespace, user_id) == start else ""
            with closing(_records_without_vector(db, user, where, behind)) as records:
                for record in records:
                    yield Scope(namespace, user_id), record


def _records_without_vector(db: Database, user: int, where: Filter | None, after: str) -> Generator[Record]:
    fits = condition(where)
    sql = f"SELECT {SELECTED} FROM records AS r WHERE r.user = ? AND r.id > ? AND {_WITHOUT_VECTOR} AND {fits.sql}"
    with closing(db.execute(f"{sql} ORDER BY r.id", (user, after, *fits.values))) as found:
        for row in found:
            record = from_row(row)
            if where is None or fits.exact or where.matches(record):
                yield record


# Accesses that are counted, but not yet written: a search should not wait for a disk.

_MOST = 1000
"""So many accesses wait at the most."""


class TouchBuffer:
    """Accesses that wait for the next write: who saw which records, and when. Safe between threads."""

    __slots__ = ("_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[Scope, Sequence[str], datetime]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def are_many(self) -> bool:
        """Whether it is time to write them."""
        return sum(len(ids) for _, ids, _ in self._waiting) >= _MOST

    def add(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        """Count an access of each episode."""
        if ids:
            with self._lock:
                self._waiting.append((scope, ids, at))

    def write(self, db: Database) -> None:
        """Write what waits."""
        self.before(lambda _: None)(db)

    def before(self, action: Callable[[Database], _T]) -> Callable[[Database], _T]:
        """The change with all that waits written first; where it fails, they wait on."""

        def both(db: Database) -> _T:
            with self._lock:
                taken, self._waiting = self._waiting, []
            try:
                for scope, ids, at in taken:
                    user = find_user(db, scope)
                    if user is not None:
                        records.touch(db, user, scope, ids, at)
                return action(db)
            except BaseException:
                with self._lock:
                    self._waiting = taken + self._waiting
                raise

        return both

    def asked_for_by(self, where: Filter | None) -> bool:
        """Whether a filter may ask for what waits."""
        return bool(self) and _asks_for_accesses(where)

    def shown_in(self, scope: Scope, hits: Iterable[Hit]) -> tuple[Hit, ...]:
        """The hits of a user with the accesses that wait."""
        touches = self.of(scope)
        return tuple([_touched_hit(hit, touches) if hit.item.id in touches else hit for hit in hits])

    def shown_on(self, scope: Scope, records: Iterable[Record]) -> list[Record]:
        """The records of a user with the accesses that wait."""
        touches = self.of(scope)
        return [_touched(record, touches) if record.id in touches else record for record in records]

    def of(self, scope: Scope) -> Mapping[str, Sequence[tuple[Scope, datetime]]]:
        """The accesses of a user that wait, by record."""
        touches: defaultdict[str, list[tuple[Scope, datetime]]] = defaultdict(list)
        with self._lock:
            for seen_by, ids, at in self._waiting:
                for id in ids if base.owner(seen_by) == base.owner(scope) else ():
                    touches[id].append((seen_by, at))
        return touches


def _asks_for_accesses(where: Filter | None) -> bool:
    match where:
        case None:
            return False
        case And() | Or():
            return any(map(_asks_for_accesses, where.filters))
        case Not():
            return _asks_for_accesses(where.filter)
        case _:
            return where.field in {"accesses", "accessed_at"}


def _touched_hit(hit: Hit, touches: Mapping[str, Sequence[tuple[Scope, datetime]]]) -> Hit:
    return hit if isinstance(hit.item, Passage) else scored(_touched(hit.item, touches), dict(hit.why))


def _touched(record: Record, touches: Mapping[str, Sequence[tuple[Scope, datetime]]]) -> Record:
    if record.id not in touches or not isinstance(record, Episode):
        return record
    times = [at for scope, at in touches[record.id] if scope.session_id in (None, record.session_id)]
    if not times:
        return record
    last = max(times) if record.accessed_at is None else max(*times, record.accessed_at)
    return changed(record, accesses=record.accesses + len(times), accessed_at=last)


_T = TypeVar("_T")


class SqliteStore(BaseMemoryStore):
    """Keeps records, vectors, keys and jobs in one file, with every optional power of a store.

    Several stores, threads and processes may share a file. Opened at the first use, or by `async with`.
    `durability="full"` survives a power cut after every acknowledged write; `"fast"` survives the end of the process,
    and a power cut may take the last writes. `":memory:"` keeps everything in memory. Of a user with many vectors (more
    than 16,384 of 256 numbers) only sketches are kept in memory: they choose candidates, which are compared exactly.
    What is kept of users' vectors and conversations takes at most `vector_cache_bytes` between searches. With
    `make_folder` the folder of a new file is made with it.
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
        self._file = SqliteFile(
            path, durability=durability, make_folder=make_folder, prepare=partial(prepare, page_bytes=MEMORY_PAGE_BYTES)
        )
        self._view = self._file.view
        self._touches = TouchBuffer()
        self._cache = index.SearchCache(vector_cache_bytes, self._changes)
        self._bound_here: Bound | None = None  # the embedder that this object was bound to

    def _changes(self, user: int, after: int, until: int) -> Collection[int] | None:
        writer = self._file.writer
        return None if writer is None else writer.changes.between(user, after, until)

    @property
    def others(self) -> Others | None:
        """What is known of other processes that write to the file."""
        writer = self._file.writer
        return None if writer is None else writer.others

    async def _open(self) -> None:
        await self._file.opened()

    async def _get(self, scope: Scope, id: str) -> Record | None:
        found = await self._read(scope, lambda db, user: records.get(db, user, scope, id), None)
        return None if found is None else self._touches.shown_on(scope, [found])[0]

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        now, bound = self._clock.now(), None if query.vector is None else self._bound_here

        def find(db: Database) -> list[Hit]:
            user = self._cache.find(db, scope)
            if bound is not None:
                index.check_binding(db, bound)
            return search.search(db, user, scope, query, now=now, cache=self._cache)

        return await self._hits(scope, query, find)

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        now = self._clock.now()

        def find(db: Database, user: int) -> list[Hit]:
            index.check_binding(db, self._bound_here)
            return search.search_hybrid(db, user, scope, query, near=near, now=now, cache=self._cache)

        return await self._hits(scope, query, self._of_user(scope, find, []))

    async def search_columns(self, scope: Scope, query: Query, *, near: int) -> HitColumns:
        """The hits of search_hybrid(), not read."""
        base.check_hybrid(query, near)
        now = self._clock.now()

        def find(db: Database, user: int) -> tuple[list[Row], HitColumns, int | None]:
            index.check_binding(db, self._bound_here)
            found, signals = search.search_columns(db, user, scope, query, near=near, now=now, cache=self._cache)
            for row in found:
                if row[CHECKSUM] is None:  # an older Loom wrote it: only its types can be checked
                    from_row(row)
            held = None if scope.session_id else records.count(db, user, scope, None)
            return found, hit_columns(found, signals, lambda place: from_row(found[place])), held

        if self._touches.asked_for_by(query.where):
            await self._commit(self._touches.write)
        found, columns, held = await self._view(
            self._of_user(scope, find, ([], NO_HITS, 0)), ("search", *base.owner(scope))
        )
        touches = self._touches.of(scope)

        def read(place: int) -> Record:
            with translate_errors(self._file.path):
                return _touched(from_row(found[place]), touches)

        return replace(columns, read=read, held=held)

    async def search_beside(self, scope: Scope, query: Query, nearest: Mapping[str, float]) -> tuple[Hit, ...]:
        """The best by words, and those of `nearest` that the query may show, each with its cosine."""
        now = self._clock.now()

        def find(db: Database, user: int) -> list[Hit]:
            index.check_binding(db, self._bound_here)
            return search.search_beside(db, user, scope, query, nearest, now=now, cache=self._cache)

        return await self._hits(scope, query, self._of_user(scope, find, []))

    async def _hits(self, scope: Scope, query: Query, find: Callable[[Database], list[Hit]]) -> tuple[Hit, ...]:
        if self._touches.asked_for_by(query.where):
            await self._commit(self._touches.write)
        return self._touches.shown_in(scope, await self._view(find))

    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]:
        if self._touches.asked_for_by(where):
            await self._commit(self._touches.write)
        found = await self._read(
            scope, lambda db, user: records.select(db, user, scope, where=where, after=after, limit=limit), []
        )
        return self._touches.shown_on(scope, found)

    async def read_together(self, scope: Scope, *wheres: Filter | Newest) -> Together:
        """The epoch of the scope's user, and the records that fit each filter."""
        filters = [where.where if isinstance(where, Newest) else where for where in wheres]
        if any(map(self._touches.asked_for_by, filters)):
            await self._commit(self._touches.write)

        def read(db: Database) -> Together:
            user = self._cache.find(db, scope)
            epoch = epoch_of(db, scope)
            if user is None:
                return Together(epoch, [[] for _ in wheres])
            with self._cache.records(user, epoch) as known:
                found = [records.select_all(db, user, scope, where, known) for where in wheres]
            return Together(epoch, found)

        what = ",".join(
            [f"{type(where).__name__} {listed_place(one)}" for where, one in zip(wheres, filters, strict=True)]
        )
        epoch, lists = await self._view(read, (what, *base.owner(scope)))
        return Together(epoch, [self._touches.shown_on(scope, found) for found in lists])

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        if self._touches.asked_for_by(where):
            await self._commit(self._touches.write)
        return await self._read(scope, lambda db, user: records.count(db, user, scope, where), 0)

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, SearchKeys]:
        return await self._read(scope, lambda db, user: search_keys(db, user, scope, ids, self._cache), {})

    async def _write(self, scope: Scope, write: Write) -> Written:
        latest, writer = latest_of(write.put), await self._file.opened()

        def change(db: Database) -> tuple[int | None, Written]:
            writer.note_latest(latest)
            if write.closing is not None:
                records.close(db, write.closing)
            check_epoch(db, scope, write.since)
            deleted, user, new = records.change(db, scope, put=write.put, delete=write.delete, keys=write.keys)
            if write.vectors:
                bound = index.check_binding(db, self._bound_here)
                new = index.NONE_NEW if scope.session_id else new  # a session may not see all that it puts
                index.put_vectors(db, user, scope, write.vectors, bound=bound, new=new)
            return user, Written(deleted, records.enqueue(db, scope, write.jobs, user))

        user, done = await self._commit(change)
        if done.deleted and user is not None:
            self._cache.drop(user)  # what was deleted is not kept in memory, either
        return done

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
        def remove(db: Database) -> tuple[int, dict[str, int]] | None:
            user = find_user(db, scope)
            if user is None:
                return None
            jobs, is_user = records.forget(db, user, scope), scope.session_id is None
            return user, jobs | (records.forget_user(db, user) if is_user else records.forget_session(db, user, scope))

        # Also empties the write-ahead log, where deleted text may still be.
        done, pending = await self._file.erase(self._touches.before(remove))
        user, removed = done or (None, {})
        if user is not None:
            self._cache.drop(user)
        return Receipt(removed=removed, pending=pending)

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same file."""
        return await self._view(lambda db: count_sessions(db, scope))

    async def scrub(self) -> tuple[str, ...]:
        """Empty the write-ahead log, where deleted text may still be; returns what is pending, in words."""
        return await self._file.scrub()

    async def sweep(self) -> tuple[str, ...]:
        """Write the file anew, which leaves nothing in the unused parts of its pages; returns what is pending."""
        return await self._file.sweep()

    async def _close(self) -> None:
        try:
            if self._touches:
                with suppress(StoreError):  # the latest access counts are not worth a failure
                    await self._commit(self._touches.write)
        finally:
            await self._file.aclose()

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        now = self._clock.now()

        def change(db: Database, user: int) -> tuple[str, ...]:
            return records.prune(db, user, scope, layer, keep=keep, before=before, now=now)

        return await self._commit(self._of_user(scope, change, ()))

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        # Written with the next change, so that a search waits for no disk. Every call of this store sees the count at
        # once; another process sees it later, and a crash may lose it.
        self._touches.add(scope, ids, at)
        if self._touches.are_many:
            await self._commit(self._touches.write)

    async def _bound(self) -> Bound | None:
        return await self._view(index.binding)

    async def _bind(self, wanted: Bound) -> None:
        if self._bound_here != wanted:  # every call that uses vectors checks that it is still so
            await super()._bind(wanted)
            self._bound_here = wanted

    async def _set_embedder(self, old: Bound | None, new: Bound) -> bool:
        is_done = await self._commit(lambda db: rebind(db, old, new))
        if is_done:
            self._bound_here = new
        return is_done

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        await self._commit(lambda db: _put_vectors(db, self._bound_here, scope, vectors))

    async def _unembedded(self, where: Filter | None, after: After, limit: int | None) -> Collection[Owned]:
        if self._touches:
            await self._commit(self._touches.write)
        return await self._view(lambda db: unembedded(db, where, after, limit))

    async def _count_unembedded(self, where: Filter | None) -> int:
        return await self._view(lambda db: count_unembedded(db, where))

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        return await self._view(lambda db: all_users(db, after, limit))

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """How the word index and the vectors differ from the records; `repair` removes the differences.

        It removes a vector that the embedder cannot have made; `loom memory reembed` makes a new one.
        """
        ask = self._commit if repair else self._view
        return await ask(lambda db: check.check(db, repair=repair))

    async def _describe(self) -> dict[str, str]:
        file = self._file
        durability = "none: everything is gone when it is closed" if file.is_in_memory else _DURABLE[file.durability]
        return {**await self._view(labels), "durability": durability}

    async def _epoch(self, scope: Scope) -> str:
        return await self._view(lambda db: epoch_of(db, scope))

    async def job_counts(self, *, now: datetime) -> dict[str, int]:
        """How many jobs of all users are due, leased and given up."""
        return await self._view(lambda db: records.job_counts(db, now))

    async def _lease(self, asked: LeaseRequest) -> Iterable[Lease]:
        return await self._commit(lambda db: records.lease(db, asked))

    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        await self._commit(lambda db: records.fail(db, lease, reason, now, retry_at))

    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]:
        return await self._view(lambda db: records.dead_letters(db, scope))

    async def _open_jobs(self, scope: Scope) -> Collection[Job]:
        return await self._view(lambda db: records.open_jobs(db, scope))

    async def _pending(self, scope: Scope) -> int:
        return await self._view(lambda db: records.pending(db, scope))

    async def _read(self, scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> _T:
        return await self._view(self._of_user(scope, action, nothing))

    def _of_user(self, scope: Scope, action: Callable[[Database, int], _T], nothing: _T) -> Callable[[Database], _T]:
        """The action on one user's rows; `nothing` where the user has none, who is then not registered either."""

        def act(db: Database) -> _T:
            user = self._cache.find(db, scope)
            return nothing if user is None else action(db, user)

        return act

    async def _commit(self, action: Callable[[Database], _T]) -> _T:
        """What a change returns, after it is durable; waiting access counts are written first."""
        return await self._file.commit(self._touches.before(action) if self._touches else action)


def _put_vectors(db: Database, bound: Bound | None, scope: Scope, given: Mapping[str, Vector]) -> None:
    bound = index.check_binding(db, bound)
    index.put_vectors(db, find_user(db, scope), scope, given, bound=bound)
