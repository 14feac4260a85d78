"""The vector store in memory: exact cosine search with numpy."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from loom.core.filter import Filter
from loom.core.record import Scalar
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit, VectorItem
from loom.stores._search import check_length, unit

_Row: TypeAlias = NDArray[np.float64]
_Key: TypeAlias = tuple[str | None, str]
_FIRST_ROWS = 16
# Equal vectors must tie, also when one is a multiple of the other: what differs past this digit is rounding.
_DIGITS = 9
# Below this many numbers a scan takes about a millisecond, less than it costs to hand it to a thread.
_INLINE_NUMBERS = 2_000_000


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of one row; `id`, `session_id` and `attributes` are what a filter may ask for."""

    id: str
    session_id: str | None
    attributes: Mapping[str, Scalar]
    payload: str = ""


class InMemoryVectorStore:
    """Keeps vectors in memory and compares with every one of them: exact at any size, linear in it."""

    __slots__ = ("_dimension", "_identity", "_users")

    def __init__(self) -> None:
        self._identity: str | None = None
        self._dimension: int | None = None
        self._users: dict[tuple[str, str], _Table] = {}

    async def bind(self, identity: str, dimension: int) -> None:
        """Name the embedder that the vectors come from; the same again changes nothing."""
        if self._identity is not None and self._identity != identity:
            raise EmbedderMismatch(self._identity, identity)
        if dimension < 1:
            raise UsageError(f"dimension={dimension} is not a size; give 1 or more")
        self._check_dimension(dimension, f"bind({identity!r})")
        self._identity, self._dimension = identity, dimension

    async def upsert(self, scope: Scope, items: Sequence[VectorItem]) -> None:
        """Add vectors, or replace those with the same id."""
        # Everything is checked before anything is written, and nothing awaits in between: all or nothing.
        dimension = self._dimension
        rows: list[tuple[VectorItem, _Row]] = []
        for item in items:
            row = unit(item.vector, f"vector {item.id}")
            dimension = dimension or len(row)
            check_length(len(row), dimension, f"vector {item.id}")
            rows.append((item, row))
        if not rows or dimension is None:
            return
        self._dimension = dimension
        table = self._users.setdefault((scope.namespace, scope.user_id), _Table(dimension))
        for item, row in rows:
            if scope.session_id is None:
                # A scope without a session sees the sessions of its user, so it replaces there too.
                table.remove([key for key in table.keys_of(item.id) if key[0] is not None])
            table.set(_Entry(item.id, scope.session_id, item.attributes, item.payload), row)

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors, nearest first."""
        if limit < 1:
            raise UsageError(f"limit={limit} asks for nothing; give 1 or more")
        query = unit(vector, "the vector to search for")
        self._check_dimension(len(query), "the vector to search for")
        table = self._table(scope)
        if table is None:
            return ()
        question = _Search(query, scope, limit, where)
        rows, entries = table.snapshot()
        if rows.size <= _INLINE_NUMBERS:
            return question.over(rows, entries)
        with table.lent():
            return await to_thread.run_sync(question.over, rows, entries)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove vectors; returns how many were there."""
        table = self._table(scope)
        if table is None:
            return 0
        keys = [key for id in dict.fromkeys(ids) for key in table.keys_of(id) if _sees(scope, key[0])]
        return table.remove(keys)

    async def count(self, scope: Scope) -> int:
        """How many vectors there are."""
        table = self._table(scope)
        return 0 if table is None else sum(_sees(scope, one.session_id) for one in table.snapshot()[1])

    async def forget(self, scope: Scope) -> int:
        """Remove all vectors of the scope; returns how many."""
        table = self._table(scope)
        if table is None:
            return 0
        keys = [(one.session_id, one.id) for one in table.snapshot()[1] if _sees(scope, one.session_id)]
        removed = table.remove(keys)
        if not table.snapshot()[1]:
            del self._users[scope.namespace, scope.user_id]
        return removed

    async def ids(self, scope: Scope) -> tuple[str, ...]:
        """The ids of the scope's vectors."""
        table = self._table(scope)
        return () if table is None else tuple(one.id for one in table.snapshot()[1] if _sees(scope, one.session_id))

    async def payloads(self, scope: Scope, *ids: str) -> Mapping[str, str]:
        """The payloads of those of these vectors that have one, by id."""
        table = self._table(scope)
        keys = [] if table is None else [key for id in ids for key in table.keys_of(id) if _sees(scope, key[0])]
        held = [] if table is None else [table.at(key) for key in keys]
        return {one.id: one.payload for one in held if one.payload}

    async def aclose(self) -> None:
        """Keep nothing any longer. Closing twice is allowed."""
        self._users.clear()

    def _table(self, scope: Scope) -> _Table | None:
        return self._users.get((scope.namespace, scope.user_id))

    def _check_dimension(self, given: int, what: str) -> None:
        if self._dimension is not None:
            check_length(given, self._dimension, what)


class _Table:
    """The vectors of one user: a matrix that grows by doubling, and what each of its rows is."""

    __slots__ = ("_by_id", "_entries", "_place", "_readers", "_rows")

    def __init__(self, dimension: int) -> None:
        self._rows: _Row = np.zeros((_FIRST_ROWS, dimension))
        self._entries: list[_Entry] = []
        self._place: dict[_Key, int] = {}
        self._by_id: dict[str, set[str | None]] = {}
        self._readers = 0

    @contextmanager
    def lent(self) -> Generator[None]:
        """While a thread reads the snapshot, a write leaves that as it is and goes on with a copy."""
        self._readers += 1
        lent = self._entries
        try:
            yield
        finally:
            if self._entries is lent:
                self._readers -= 1

    def _before_write(self) -> None:
        if self._readers:
            self._rows, self._entries, self._readers = self._rows.copy(), list(self._entries), 0

    def set(self, entry: _Entry, row: _Row) -> None:
        self._before_write()
        key = (entry.session_id, entry.id)
        place = self._place.get(key)
        if place is None:
            place = self._append(key, entry)
        self._entries[place] = entry
        self._rows[place] = row

    def _append(self, key: _Key, entry: _Entry) -> int:
        place = len(self._entries)
        if place == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._entries.append(entry)
        self._place[key] = place
        self._by_id.setdefault(entry.id, set()).add(entry.session_id)
        return place

    def remove(self, keys: Sequence[_Key]) -> int:
        if keys:
            self._before_write()
        for key in keys:
            place, last = self._place.pop(key), len(self._entries) - 1
            sessions = self._by_id[key[1]]
            sessions.discard(key[0])
            if not sessions:
                del self._by_id[key[1]]
            # The last row takes the free place, so that the rows stay without gaps.
            moved = self._entries.pop()
            if place != last:
                self._entries[place] = moved
                self._rows[place] = self._rows[last]
                self._place[moved.session_id, moved.id] = place
            self._rows[last] = 0.0
        return len(keys)

    def keys_of(self, id: str) -> Iterator[_Key]:
        return ((session, id) for session in tuple(self._by_id.get(id, ())))

    def at(self, key: _Key) -> _Entry:
        return self._entries[self._place[key]]

    def snapshot(self) -> tuple[_Row, list[_Entry]]:
        return self._rows[: len(self._entries)], self._entries


@dataclass(frozen=True, slots=True)
class _Search:
    """One question: which rows may answer, how many, and nearest to what."""

    query: _Row
    scope: Scope
    limit: int
    where: Filter | None

    def over(self, rows: _Row, entries: Sequence[_Entry]) -> tuple[VectorHit, ...]:
        """The nearest of these rows."""
        scores = np.round(np.clip(rows @ self.query, -1.0, 1.0), _DIGITS)
        places = self._fitting(entries)
        if len(places) > self.limit:
            # Everything that ties with the last hit stays in, so that ids decide and not the order of rows.
            fitting = scores[places]
            worst = np.partition(fitting, -self.limit)[-self.limit]
            places = places[fitting >= worst]
        found = [(entries[int(place)], float(scores[place])) for place in places]
        hits = [VectorHit(one.id, score, one.attributes) for one, score in found]
        hits.sort(key=lambda hit: (-hit.score, hit.id))
        return tuple(hits[: self.limit])

    def _fitting(self, entries: Sequence[_Entry]) -> NDArray[np.intp]:
        where, scope = self.where, self.scope
        if where is None and scope.session_id is None:
            return np.arange(len(entries), dtype=np.intp)
        fits = [_sees(scope, one.session_id) and (where is None or where.matches(one)) for one in entries]
        return np.flatnonzero(np.array(fits, dtype=np.bool_))


def _sees(scope: Scope, session_id: str | None) -> bool:
    return scope.session_id is None or scope.session_id == session_id
