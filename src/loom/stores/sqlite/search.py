"""Search in a SQLite file: word index, vectors, and the ranking of both."""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound
from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loom.core.record import Hit, rank_key, scored
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import Query
from loom.stores._record_table import no_record, unit_vector
from loom.stores._search import (
    EXACT_NUMBERS,
    Float32s,
    Floats,
    Numbers,
    Place,
    PostingPart,
    Scores,
    TextChange,
    Vectors,
    by_score,
    check_numbers,
    cosines,
    joined_run,
    parts_of,
    runs_of,
    total,
    why_of,
    without,
)
from loom.stores._sql import Condition
from loom.stores.base import Bound, DamagedData, check_bound, reading
from loom.stores.sqlite.connection import Database, Row, one, rows
from loom.stores.sqlite.rows import (
    SELECTED,
    SQLITE,
    condition,
    find_rows,
    from_row,
    next_number,
    number_of,
    row_of,
    seen,
)
from loom.text.words import query_terms

# The word index of one file: rows of postings, and BM25 over each user's own texts.
#
# A run's rows lie together in the file: what is new changes the few pages of the last, small run, and is moved on when
# a larger run is full. Every statistic is of one user alone: what others write changes no score.


class IndexChange(TextChange):
    """Texts that come to and go from the index of one user; written by flush() in one go."""

    __slots__ = ("_user", "has_replaced")

    def __init__(self, user: int) -> None:
        super().__init__()
        self._user = user
        self.has_replaced = False
        """Whether a record got another text."""

    def remove(self, signal: str, number: int, text: str) -> None:
        """Take a text out that was indexed like this."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the file says what it is
            raise DamagedData(f"a text of record number {number} is {text!r}")
        super().remove(signal, number, text)

    def flush(self, db: Database, before: int, size: int) -> None:
        """Write the change, where the user had `before` numbers and now has `size`."""
        start = joined_run(before, size)
        if start is not None:
            _join_runs(db, self._user, start)
        added = self.entries(size)
        _take_out(db, self._user, self.gone(size), added)
        db.executemany(_APPEND, ((self._user, *place, entries) for place, entries in added.items()))
        for signal, (texts, words) in self.lengths.items():
            db.execute(_COUNT, (self._user, signal, texts, words))
        db.execute("DELETE FROM lengths WHERE user = ? AND texts = 0", (self._user,))


# Two blobs put together are text to SQLite, unless it is told.
_APPEND = (
    "INSERT INTO postings VALUES (?, ?, ?, ?, ?) ON CONFLICT (user, run, term, signal) "
    "DO UPDATE SET entries = CAST(entries || excluded.entries AS BLOB)"
)
_COUNT = (
    "INSERT INTO lengths VALUES (?, ?, ?, ?) ON CONFLICT (user, signal) "
    "DO UPDATE SET texts = texts + excluded.texts, words = words + excluded.words"
)
_PLACE = "user = ? AND run = ? AND term = ? AND signal = ?"


def _join_runs(db: Database, user: int, start: int) -> None:
    """Make one run of all that begin here or later."""
    joined: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    for term, signal, entries in db.execute(
        "SELECT term, signal, entries FROM postings WHERE user = ? AND run >= ? ORDER BY run", (user, start)
    ):
        joined[term, signal].append(entries)
    db.execute("DELETE FROM postings WHERE user = ? AND run >= ?", (user, start))
    places = ((user, start, *place, b"".join(joined[place])) for place in sorted(joined))
    db.executemany("INSERT INTO postings VALUES (?, ?, ?, ?, ?)", places)


def _take_out(db: Database, user: int, gone: Mapping[Place, set[int]], added: dict[Place, bytes]) -> None:
    """Take these numbers out of these places; what is added to such a place is written with it, and taken away."""
    held: dict[Place, bytes] = {}
    for place in sorted(gone):
        found = one(db, f"SELECT entries FROM postings WHERE {_PLACE}", user, *place)
        if found is not None:
            held[place] = found[0]
    with reading("the word index"):
        left_over = without(held, gone)
    for place, left in left_over.items():
        kept = left + added.pop(place, b"")
        if kept:
            db.execute(f"UPDATE postings SET entries = ? WHERE {_PLACE}", (kept, user, *place))
        else:
            db.execute(f"DELETE FROM postings WHERE {_PLACE}", (user, *place))


def index_parts(db: Database, user: int, text: str, size: int) -> list[PostingPart]:
    """What each term of a text adds to each signal, where the user has `size` numbers; every score is above 0."""
    lengths = {signal: (n, words) for signal, n, words in rows(db, _LENGTHS, user)}
    held: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    for term, signal, entries in db.execute(_TERMS, (str(list(runs_of(size))), json.dumps(query_terms(text)), user)):
        held[term, signal].append(entries)
    with reading("the word index"):
        found = parts_of(held, lengths)
        check_numbers(found, size)
    return found


_LENGTHS = "SELECT signal, texts, words FROM lengths WHERE user = ?"
_TERMS = (
    "SELECT postings.term, signal, entries FROM json_each(?) AS runs CROSS JOIN json_each(?) AS terms "
    "CROSS JOIN postings WHERE user = ? AND run = runs.value AND term = terms.value"
)


# The vectors of records, and the cache that searches them.

_PAGE = 4096
_BYTES = 4
"""Of a number of a vector."""
_OFF = 0.01
"""How far the square of a vector's length may be off: it was 1 but for rounding when it was written."""
_MOST_GONE = 1 / 8
"""The share of sketches that may be of vectors that are gone."""


def binding(db: Database) -> Bound | None:
    """The embedder and dimension of the file, None before bind()."""
    found = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'dimension')").fetchall())
    with reading("the embedder of the file"):
        return (found["embedder"], int(found["dimension"])) if found else None


def check_binding(db: Database, expected: Bound | None) -> None:
    """Refuse to go on where another process has bound the file anew since this one did; None: this one did not."""
    if expected is not None:
        check_bound(binding(db), expected)


def dimension(db: Database) -> int | None:
    """How many numbers a vector of this file has; None before bind()."""
    bound = binding(db)
    return None if bound is None else bound[1]


def direction(vector: Vector, size: int | None, what: str = "the vector of a query") -> Float32s:
    """The direction of a vector in 32 bits; refuses one that has none, or another dimension than the file's."""
    return np.asarray(unit_vector(vector, size, what), np.float32)


def put_vectors(db: Database, user: int | None, scope: Scope, vectors: Mapping[str, Vector]) -> None:
    """Set the vectors of records."""
    size = dimension(db)
    units = {id: direction(vector, size, f"the vector of {id}") for id, vector in vectors.items()}
    found = {} if user is None else find_rows(db, user, scope, units)
    for id in units:
        if id not in found:
            raise no_record(id, "a vector")
    for row, _ in _held(db, found.values()):
        drop_vector(db, row)
    new = [(user, found[id], unit.astype("<f4").tobytes()) for id, unit in units.items()]
    db.executemany("INSERT INTO vectors (user, row, data) VALUES (?, ?, ?)", new)


def drop_vector(db: Database, row: int) -> None:
    """Take the vector of a record away, if it has one."""
    user = one(db, "DELETE FROM vectors WHERE row = ? RETURNING user", row)
    if user is not None:
        db.execute("UPDATE users SET vectors_gone = vectors_gone + 1 WHERE user = ?", user)


class NearestVectors(NamedTuple):
    """The number of each record that has a vector, and its cosine to a query; a number may come twice.

    Estimates may also name a vector that is gone: compared() tells.
    """

    numbers: Numbers
    cosines: Float32s
    is_exact: bool


def compared(db: Database, user: int, numbers: Numbers, vector: Vector) -> tuple[Numbers, Float32s]:
    """Those of the records that have a vector, and their exact cosines, read from the file."""
    query = direction(vector, dimension(db))
    found = _held(db, [row_of(user, number) for number in numbers.tolist()])
    matrix = _matrix([data for _, data in found], len(query))
    return np.asarray([number_of(row) for row, _ in found], np.int64), cosines(matrix, query)


class _Held:
    """The vectors of one user as of a moment; `gone` changes when a vector went, `last` is the newest one held."""

    __slots__ = ("bound", "gone", "last", "lock", "vectors")

    def __init__(self, exact_numbers: int) -> None:
        self.lock = Lock()
        self.bound: Bound | None = None
        self.gone = 0
        self.last = 0
        self.vectors = Vectors(0, exact_numbers=exact_numbers)

    def update(self, db: Database, user: int) -> None:
        """Bring in what was written since; start anew where too much of what is held is gone."""
        bound, gone = binding(db), _gone(db, user)
        # An estimate is checked against the file, so that it may be of a vector that is gone; a cosine may not.
        missing = abs(gone - self.gone)
        allowed = 0 if self.vectors.is_exact else len(self.vectors) * _MOST_GONE
        if bound != self.bound or missing > allowed:
            self.bound, self.gone, self.last = bound, gone, 0
            self.vectors = Vectors(dimension(db) or 0, exact_numbers=self.vectors.exact_numbers)
        found = db.execute(
            "SELECT number, row, data FROM vectors WHERE user = ? AND number > ? ORDER BY number", (user, self.last)
        )
        while page := list(islice(found, _PAGE)):
            block = _matrix([data for _, _, data in page], dimension(db) or 0)
            self.vectors.append([number_of(row) for _, row, _ in page], block)
            self.last = page[-1][0]


class VectorCache:
    """The vectors of the users searched last, in memory, at most `max_bytes` together. Safe to share between threads.

    A user's vectors are kept whole while they are few, and are searched exactly; of many, only sketches are kept.
    """

    __slots__ = ("_exact_numbers", "_held", "_lock", "_max_bytes")

    def __init__(self, max_bytes: int, *, exact_numbers: int = EXACT_NUMBERS) -> None:
        self._max_bytes = max_bytes
        self._exact_numbers = exact_numbers
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._lock = Lock()

    def near(self, db: Database, user: int, vector: Vector) -> NearestVectors:
        """How near each record of the user is that has a vector."""
        query = direction(vector, dimension(db))
        with self._lock:
            held = self._held.setdefault(user, _Held(self._exact_numbers))
            self._held.move_to_end(user)
        # A user with many vectors takes a while to load, and no other user has to wait for that.
        with held.lock:
            held.update(db, user)
            numbers, likeness, is_exact = held.vectors.numbers, held.vectors.likeness(), held.vectors.is_exact
        self._shrink()
        return NearestVectors(numbers, likeness(query), is_exact)

    def drop(self, user: int) -> None:
        """Hold nothing of the user."""
        with self._lock:
            self._held.pop(user, None)

    def _shrink(self) -> None:
        with self._lock:
            used = sum(held.vectors.nbytes for held in self._held.values())
            while used > self._max_bytes:
                _, dropped = self._held.popitem(last=False)
                used -= dropped.vectors.nbytes


def _held(db: Database, given: Iterable[int]) -> list[Row]:
    """Those of the rows that have a vector, with it."""
    return rows(
        db,
        "SELECT given.value, v.data FROM json_each(?) AS given CROSS JOIN vectors AS v ON v.row = given.value",
        json.dumps(list(given)),
    )


def _matrix(vectors: Sequence[bytes], size: int) -> Float32s:
    """The vectors as rows; refuses what no vector of this size is, before room is made for it."""
    with reading("a vector"):
        if any(len(data) != size * _BYTES for data in vectors):
            raise DamagedData(f"a vector is not of {size} numbers")
        matrix = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), size)
        with np.errstate(all="ignore"):
            lengths = np.einsum("ij,ij->i", matrix, matrix)
        if not (np.abs(lengths - 1) < _OFF).all():
            raise DamagedData("a vector is not of length 1")
    return matrix


def _gone(db: Database, user: int) -> int:
    found = one(db, "SELECT vectors_gone FROM users WHERE user = ?", user)
    with reading("the count of vectors"):
        return int(found[0]) if found else 0


DENSE = "dense"
_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""

# Where cosines are estimates: how many are compared exactly, and how far ahead of them the hits must be.
_LIKELIEST = 1000
_LIKELIEST_FOR_EACH = 5
_MOST_GROUPS = 2
_AHEAD = 4

_Row: TypeAlias = tuple[Any, ...]
"""A row of the table: its columns, the first of which is the id, then which one it is."""


class _SqliteRequest(NamedTuple):
    """A query of a user, and the condition for what it may return but for its filter."""

    user: int
    scope: Scope
    shown: Condition
    query: Query


class _Rows:
    """The rows of a user that a query may return; each is read once."""

    __slots__ = ("_read", "db", "request")

    def __init__(self, db: Database, request: _SqliteRequest) -> None:
        self.db = db
        self.request = request
        self._read: dict[int, _Row | None] = {}

    def of(self, numbers: Sequence[int]) -> list[_Row | None]:
        """The row of each number; None where it may not be returned."""
        new = [number for number in numbers if number not in self._read]
        if new:
            self._read.update(dict.fromkeys(new))
            among = json.dumps([row_of(self.request.user, number) for number in new])
            for row in _fitting(self.db, self.request, f"{SELECTED}, r.row", among=among):
                self._read[number_of(row[-1])] = row
        return [self._read[number] for number in numbers]


def search(
    db: Database, user: int | None, scope: Scope, query: Query, *, now: datetime, cache: VectorCache
) -> list[Hit]:
    """The best hits, best first."""
    if query.vector is not None:
        direction(query.vector, dimension(db))
    if user is None:
        return []
    request = _SqliteRequest(user, scope, _shown(user, scope, query, now), query)
    if query.vector is None and not query.text.strip():
        return [Hit(from_row(row), 0.0) for row in _fitting(db, request, SELECTED, limit=query.limit)]
    size = next_number(db, user)
    parts = index_parts(db, user, query.text, size) if query.text.strip() else []
    summed = total(parts, size)
    rows_of = _Rows(db, request)
    if query.vector is None:
        best = _best(rows_of, *_with_score(rows_of, summed), query.limit)
    else:
        near = _near(cache.near(db, user, query.vector), size)
        best, dense = _best_and_near(rows_of, summed, near, query.limit)
        parts += dense
    return sorted(_hits(best, parts, size), key=rank_key)


def search_hybrid(
    db: Database, user: int, scope: Scope, query: Query, *, near: int, now: datetime, cache: VectorCache
) -> list[Hit]:
    """The best by words and the `near` best by vector, each with its cosine."""
    assert query.vector is not None
    size = next_number(db, user)
    parts = index_parts(db, user, query.text, size)
    rows_of = _Rows(db, _SqliteRequest(user, scope, _shown(user, scope, query, now), query))
    best = _best(rows_of, *_with_score(rows_of, total(parts, size)), query.limit)
    cosines = _near(cache.near(db, user, query.vector), size)
    if cosines.is_exact:
        nearest = _best(rows_of, *_in_scope(rows_of, cosines.numbers, cosines.cosines), near)
        dense = [PostingPart(DENSE, cosines.numbers, cosines.cosines)]
    else:
        close = np.zeros(size)
        nearest, dense = _best_and_near(rows_of, close, cosines, near)
        near_ones = np.concatenate([_numbers(()), *(part.numbers for part in dense)])
        _compared(rows_of, np.setdiff1d(_numbers(best), near_ones), close, dense)
    either = list({row[-1]: row for row in (*best, *nearest)}.values())
    return sorted(_hits(either, _of(best, parts, size) + dense, size), key=rank_key)


def search_beside(
    db: Database, user: int, scope: Scope, query: Query, nearest: Mapping[str, float], *, now: datetime
) -> list[Hit]:
    """The best by words, and those of `nearest` that are shown, each with its cosine: as given, or else compared."""
    size = next_number(db, user)
    parts = index_parts(db, user, query.text, size)
    rows_of = _Rows(db, _SqliteRequest(user, scope, _shown(user, scope, query, now), query))
    best = _best(rows_of, *_with_score(rows_of, total(parts, size)), query.limit)
    known = {id: number_of(row) for id, row in find_rows(db, user, scope, nearest).items()}
    given = np.asarray(list(known.values()), np.int64)
    dense = [PostingPart(DENSE, given, np.asarray([nearest[id] for id in known], np.float64))]
    _compared(rows_of, np.setdiff1d(_numbers(best), given), np.zeros(size), dense)
    close = [row for row in rows_of.of(list(known.values())) if row is not None]
    either = list({row[-1]: row for row in (*best, *close)}.values())
    return sorted(_hits(either, _of(best, parts, size) + dense, size), key=rank_key)


def _numbers(found: Sequence[_Row]) -> Numbers:
    return np.asarray([number_of(row[-1]) for row in found], np.int64)


def _of(best: list[_Row], parts: list[PostingPart], size: int) -> list[PostingPart]:
    """The parts, for these rows alone."""
    is_best = np.zeros(size, np.bool_)
    is_best[_numbers(best)] = True
    chosen = ((part, is_best[part.numbers]) for part in parts)
    return [PostingPart(part.signal, part.numbers[mask], part.scores[mask]) for part, mask in chosen]


def _in_scope(rows_of: _Rows, found: Numbers, scores: Scores) -> tuple[Numbers, Scores]:
    """Those that the scope sees, as far as that is known without their rows."""
    if rows_of.request.scope.session_id is None:
        return found, scores
    is_seen = np.isin(found, _in_session(rows_of.db, rows_of.request.user, rows_of.request.scope))
    return found[is_seen], scores[is_seen]


def _with_score(rows_of: _Rows, total: Floats) -> tuple[Numbers, Scores]:
    """The numbers that something speaks for, and their scores."""
    found = np.flatnonzero(total > 0)
    return _in_scope(rows_of, found, total[found])


def _best_and_near(
    rows_of: _Rows, total: Floats, near: NearestVectors, limit: int
) -> tuple[list[_Row], list[PostingPart]]:
    """The best when cosines are added to `total`, and the parts that they are."""
    spoke = total > 0
    spoke[near.numbers] = True
    found = np.flatnonzero(spoke)
    if not near.is_exact:
        return _best_by_estimate(rows_of, _in_scope(rows_of, found, total[found])[0], total, near, limit)
    total[near.numbers] += near.cosines
    best = _best(rows_of, *_in_scope(rows_of, found, total[found]), limit)
    return best, [PostingPart(DENSE, near.numbers, near.cosines)]


def _near(near: NearestVectors, size: int) -> NearestVectors:
    """Without numbers that this view of the file does not know: the cache may be newer."""
    known = near.numbers < size
    return near if known.all() else NearestVectors(near.numbers[known], near.cosines[known], near.is_exact)


def _shown(user: int, scope: Scope, query: Query, now: datetime) -> Condition:
    """The condition for what this query may return, but for its filter."""
    return SQLITE.shown(Condition(*seen(user, scope)), query, now)


def _fitting(
    db: Database, request: _SqliteRequest, columns: str, *, limit: int = -1, among: str | None = None
) -> list[tuple[Any, ...]]:
    """The rows that are shown and fit the filter, by id; or `among` a JSON list of rows, in any order."""
    where, shown = request.query.where, request.shown
    fits = condition(where)
    sql, values = f"{shown.sql} AND {fits.sql}", (*shown.values, *fits.values)
    source, order = "records AS r", "ORDER BY r.id"
    if among is not None:
        # A cross join is not reordered: the rows given are looked up, instead of walking all of the user's.
        source, values = "json_each(?) AS given CROSS JOIN records AS r ON r.row = given.value", (among, *values)
        order = ""
    if where is None or fits.exact:
        return rows(db, f"SELECT {columns} FROM {source} WHERE {sql} {order} LIMIT ?", *values, limit)
    found: list[tuple[Any, ...]] = []
    width = columns.count(",") + 1
    cursor = db.execute(f"SELECT {columns}, {SELECTED} FROM {source} WHERE {sql} {order}", values)
    for row in cursor:
        if where.matches(from_row(row[width:])):
            found.append(row[:width])
            if len(found) == limit:
                break
    cursor.close(True)
    return found


def _in_session(db: Database, user: int, scope: Scope) -> Numbers:
    """The numbers of all that the session sees."""
    found = rows(
        db,
        "SELECT row FROM records WHERE user = ? AND session_id = ? "
        "UNION ALL SELECT row FROM records WHERE user = ? AND layer IS NULL",
        user,
        scope.session_id,
        user,
    )
    return np.asarray([number_of(row) for (row,) in found], np.int64)


def _best(rows_of: _Rows, found: Numbers, scores: Scores, limit: int) -> list[_Row]:
    """The rows of the best that are shown: looks at the best scores first and stops when enough fit."""
    best_rows: list[tuple[float, str, _Row]] = []
    for places in by_score(scores, limit + _TO_SPARE):
        pairs = zip(scores[places].tolist(), rows_of.of(found[places].tolist()), strict=True)
        best_rows += [(-score, row[0], row) for score, row in pairs if row is not None]
        if len(best_rows) >= limit:
            break
    with reading("the id of a record"):  # a damaged one may not be text
        best_rows.sort()  # no two have one id: rows are never compared
    return [row for _, _, row in best_rows[:limit]]


def _best_by_estimate(
    rows_of: _Rows, found: Numbers, total: Floats, near: NearestVectors, limit: int
) -> tuple[list[_Row], list[PostingPart]]:
    """The same where cosines are estimates: the likeliest are compared exactly, which adds to `total` and the parts."""
    estimate = total.copy()
    estimate[near.numbers] += near.cosines
    size = max(_LIKELIEST, limit * _LIKELIEST_FOR_EACH)
    parts: list[PostingPart] = []
    looked, candidates = 0, found[:0]
    for places in islice(by_score(estimate[found], size), _MOST_GROUPS):
        group = found[places]
        looked += len(group)
        # Equal estimates are not parted; of very many equal ones, the oldest have to do.
        likeliest = group[np.argsort(-estimate[group], kind="stable")[: _LIKELIEST_FOR_EACH * size]]
        candidates = np.concatenate([candidates, _compared(rows_of, likeliest, total, parts)])
        best = _best(rows_of, candidates, total[candidates], limit)
        if looked == len(found) or _are_ahead(best, total, candidates, limit):
            return best, parts
    # Few fit. What fits is looked for first, and then the likeliest of that.
    fitting = _numbers(_fitting(rows_of.db, rows_of.request, "r.row"))
    rest = np.setdiff1d(np.intersect1d(found, fitting), candidates)
    group = rest[next(by_score(estimate[rest], size), slice(None))]
    candidates = np.concatenate([candidates, _compared(rows_of, group, total, parts)])
    return _best(rows_of, candidates, total[candidates], limit), parts


def _compared(rows_of: _Rows, numbers: Numbers, total: Floats, parts: list[PostingPart]) -> Numbers:
    """Add exact cosines to `total` and `parts`; returns those of the numbers that a word or a vector speaks for."""
    vector = rows_of.request.query.vector
    assert vector is not None
    with_words = numbers[total[numbers] > 0]
    with_vector, cosines = compared(rows_of.db, rows_of.request.user, numbers, vector)
    part = PostingPart(DENSE, with_vector, cosines.astype(np.float64))
    total[with_vector] += part.scores
    parts.append(part)
    return np.union1d(with_words, with_vector)


def _are_ahead(best: list[_Row], total: Floats, candidates: Numbers, limit: int) -> bool:
    """Whether the best are so far ahead of other candidates that one with a lower estimate hardly belongs to them."""
    if len(best) < limit:
        return False
    return int(np.count_nonzero(total[candidates] >= total[number_of(best[-1][-1])])) * _AHEAD <= len(candidates)


def _hits(best: list[_Row], parts: list[PostingPart], size: int) -> Iterator[Hit]:
    numbers = [number_of(row[-1]) for row in best]
    why = why_of(numbers, parts, size)
    for number, row in zip(numbers, best, strict=True):
        yield scored(from_row(row), why[number])
