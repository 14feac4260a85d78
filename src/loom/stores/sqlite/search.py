"""Search in a SQLite file: what the word index and the vectors find, ranked."""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.core.filter import Filter
from loom.core.record import Fact, Hit, rank_key, scored
from loom.core.scope import Scope
from loom.protocols.memory_store import Query
from loom.stores._search import (
    Floats,
    Numbers,
    PostingPart,
    Scores,
    best_first,
    by_score,
    signals_of,
    total,
    whys,
)
from loom.stores._sql import COLUMNS, Condition, to_micros
from loom.stores.base import reading
from loom.stores.sqlite.connection import (
    MADE,
    SELECTED,
    SQLITE,
    WALKED,
    Database,
    KnownRows,
    condition,
    each,
    find_rows,
    from_row,
    number_of,
    row_of,
    rows,
    seen,
    sizes_of,
    spend,
)
from loom.stores.sqlite.index import NearestVectors, SearchCache, compared, dimension, direction, index_parts

DENSE = "dense"
_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""

# Where cosines are estimates: how many are compared exactly, and how far ahead of them the hits must be. Where few of
# them fit, all that fits is listed instead, which reads everything that the user has.
_LIKELIEST = 200
_LIKELIEST_FOR_EACH = 4
_MOST_GROUPS = 4
_FEW_GROUPS = 2
_AHEAD = 3

_Row: TypeAlias = tuple[Any, ...]
"""A row of the table: its columns, the first of which is the id, then which one it is."""
_ID = itemgetter(0)
_KIND, _TEXT = map(COLUMNS.index, ("kind", "text"))
_times_of = itemgetter(*map(COLUMNS.index, ("valid_from", "valid_until", "recorded_at", "superseded_at")))


class _SqliteRequest(NamedTuple):
    """A query of a user, and the condition for what it may return; its filter must look again if that is not exact.

    `at_any_time` is the condition for that and for facts of other times.
    """

    user: int
    scope: Scope
    fits: Condition
    at_any_time: Condition
    query: Query
    now: datetime


def _request(user: int, scope: Scope, query: Query, now: datetime) -> _SqliteRequest:
    owned, fits = Condition(*seen(user, scope)), condition(query.where)
    shown, ever = (
        Condition(f"{c.sql} AND {fits.sql}", (*c.values, *fits.values), fits.exact)
        for c in (SQLITE.shown(owned, one, now) for one in (query, replace(query, history=True)))
    )
    return _SqliteRequest(user, scope, shown, ever, query, now)


class _Rows:
    """The rows of a user that a query may return; each is read once, and `known` ones not at all."""

    __slots__ = ("_all", "_at", "_is_any_time", "_known", "_known_at", "db", "request")

    def __init__(self, db: Database, request: _SqliteRequest, known: KnownRows) -> None:
        self.db = db
        self.request = request
        self._all = known
        # What a filter matches that SQL cannot express is not told by the condition.
        self._known = known.fitting(request.at_any_time) if request.fits.exact else {}
        query = request.query
        self._is_any_time = query.history
        self._at, self._known_at = to_micros(query.at or request.now), to_micros(query.known_at or request.now)

    def read_first(self, *searches: tuple[Numbers, Scores, int]) -> None:
        """Read with one statement what several calls of _best() look at first, each given what it is called with."""
        first = [found[next(by_score(scores, limit + _TO_SPARE), slice(0))] for found, scores, limit in searches]
        self.of(list({number: None for numbers in first for number in numbers.tolist()}))

    def of(self, numbers: Sequence[int]) -> list[_Row | None]:
        """The row of each number; None where it may not be returned."""
        known = self._known
        new = [number for number in numbers if number not in known]
        if new:
            self._read_whole(new)
        found = [known[number] for number in numbers]
        if self._is_any_time or all(row is None or row[_KIND] != Fact.kind for row in found):
            return found
        return [row if row is None or row[_KIND] != Fact.kind or self._is_current(row) else None for row in found]

    def _is_current(self, row: _Row) -> bool:
        """Whether a fact was true and believed at the times of the query, as Dialect.shown() says."""
        valid_from, valid_until, recorded_at, superseded_at = _times_of(row)
        with reading("the times of a fact"):
            return (
                (valid_from is None or valid_from <= self._at)
                and (valid_until is None or valid_until > self._at)
                and recorded_at <= self._known_at
                and (superseded_at is None or superseded_at > self._known_at)
            )

    def _read_whole(self, numbers: Sequence[int]) -> None:
        first = row_of(self.request.user, 0)
        found = _among(self.db, self.request, sorted([first + number for number in numbers]))
        self._known.update(dict.fromkeys(numbers))  # once all are read: others look them up as well
        self._known.update({row[-1] - first: row for row in found})
        if self.request.fits.exact:
            self._all.chars += sum([len(row[_TEXT] or "") for row in found])


def search(
    db: Database, user: int | None, scope: Scope, query: Query, *, now: datetime, cache: SearchCache
) -> list[Hit]:
    """The best hits, best first."""
    if query.vector is not None:
        direction(query.vector, dimension(db))
    if user is None:
        return []
    request = _request(user, scope, query, now)
    if query.vector is None and not query.text.strip():
        return [Hit(from_row(row), 0.0) for row in _fitting(db, request, SELECTED, limit=query.limit)]
    sizes = sizes_of(db, user)
    size = sizes.size
    parts = index_parts(db, user, query.text, sizes, cache) if query.text.strip() else []
    summed = total(parts, size)
    near = None if query.vector is None else _near(cache.near(db, user, query.vector, sizes), size)
    with cache.rows(user, sizes) as known:
        rows_of = _Rows(db, request, known)
        if near is None:
            best = _best(rows_of, *_with_score(rows_of, summed), query.limit)
        else:
            best, dense = _best_and_near(rows_of, summed, near, query.limit)
            parts += dense
    return sorted(_hits(best, parts, size), key=rank_key)


def search_hybrid(
    db: Database, user: int, scope: Scope, query: Query, *, near: int, now: datetime, cache: SearchCache
) -> list[Hit]:
    """The best by words and the `near` best by vector, each with its cosine."""
    found, signals = _both(db, _request(user, scope, query, now), near, cache)
    return sorted((scored(from_row(row), why) for row, why in zip(found, whys(signals), strict=True)), key=rank_key)


def search_columns(
    db: Database, user: int, scope: Scope, query: Query, *, near: int, now: datetime, cache: SearchCache
) -> tuple[list[_Row], dict[str, Floats]]:
    """The rows of search_hybrid() in its order, and the column of each signal: NaN where it does not speak."""
    found, signals = _both(db, _request(user, scope, query, now), near, cache)
    if not found:
        return [], {}
    total = np.zeros(len(found))
    for column in signals.values():
        total += np.where(np.isnan(column), 0.0, column)
    with reading("the id of a record"):
        order = best_first(total, [*map(_ID, found)])  # as rank_key() orders
    return [found[place] for place in order], {name: column[order] for name, column in signals.items()}


def _both(db: Database, request: _SqliteRequest, near: int, cache: SearchCache) -> tuple[list[_Row], dict[str, Floats]]:
    """The rows of the best by words and of the `near` best by vector, and the column of each signal."""
    user, query = request.user, request.query
    assert query.vector is not None
    sizes = sizes_of(db, user)
    size = sizes.size
    spend(WALKED * size)
    parts = index_parts(db, user, query.text, sizes, cache)
    cosines = _near(cache.near(db, user, query.vector, sizes), size)
    with cache.rows(user, sizes) as known:
        best, nearest, dense = _best_of_both(_Rows(db, request, known), total(parts, size), cosines, near)
    either = list({row[-1]: row for row in (*best, *nearest)}.values())
    return either, signals_of(_numbers(either), _of(best, parts, size) + dense, size)


def _best_of_both(
    rows_of: _Rows, summed: Floats, cosines: NearestVectors, near: int
) -> tuple[list[_Row], list[_Row], list[PostingPart]]:
    """The rows of the best by words, those of the `near` best by vector, and what vectors add."""
    size, limit = len(summed), rows_of.request.query.limit
    by_words = _with_score(rows_of, summed)
    if cosines.is_exact:
        by_vector = _in_scope(rows_of, cosines.numbers, cosines.cosines)
        rows_of.read_first((*by_words, limit), (*by_vector, near))
        best, nearest = _best(rows_of, *by_words, limit), _best(rows_of, *by_vector, near)
        return best, nearest, [PostingPart(DENSE, cosines.numbers, cosines.cosines)]
    close = np.zeros(size)
    best = _best(rows_of, *by_words, limit)
    estimates = np.full(size, np.nan)
    estimates[cosines.numbers] = cosines.cosines  # of a number that comes twice, the newer vector comes last
    found = np.flatnonzero(~np.isnan(estimates))
    nearest, dense = _best_by_estimate(rows_of, *_in_scope(rows_of, found, estimates[found]), close, near)
    near_ones = np.concatenate([_numbers(()), *(part.numbers for part in dense)])
    _compared(rows_of, _without(_numbers(best), near_ones, size), close, dense)
    return best, nearest, dense


def search_beside(
    db: Database,
    user: int,
    scope: Scope,
    query: Query,
    nearest: Mapping[str, float],
    *,
    now: datetime,
    cache: SearchCache,
) -> list[Hit]:
    """The best by words, and those of `nearest` that are shown, each with its cosine: as given, or else compared."""
    sizes = sizes_of(db, user)
    size = sizes.size
    parts = index_parts(db, user, query.text, sizes, cache)
    numbers = {id: number_of(row) for id, row in find_rows(db, user, scope, nearest).items()}
    given = np.asarray(list(numbers.values()), np.int64)
    dense = [PostingPart(DENSE, given, np.asarray([nearest[id] for id in numbers], np.float64))]
    with cache.rows(user, sizes) as known:
        rows_of = _Rows(db, _request(user, scope, query, now), known)
        best = _best(rows_of, *_with_score(rows_of, total(parts, size)), query.limit)
        _compared(rows_of, _without(_numbers(best), given, size), np.zeros(size), dense)
        close = [row for row in rows_of.of(list(numbers.values())) if row is not None]
    either = list({row[-1]: row for row in (*best, *close)}.values())
    return sorted(_hits(either, _of(best, parts, size) + dense, size), key=rank_key)


def _numbers(found: Sequence[_Row]) -> Numbers:
    return np.asarray([row[-1] for row in found], np.int64) & number_of(-1)


def _are(numbers: Numbers, size: int) -> NDArray[np.bool_]:
    """Which of `size` numbers are among these. Sets of numpy import much at their first use, and sort."""
    among = np.zeros(size, np.bool_)
    among[numbers[numbers < size]] = True
    return among


def _without(numbers: Numbers, others: Numbers, size: int) -> Numbers:
    """The numbers in order, without the others, where there are `size` of them."""
    return np.sort(numbers[~_are(others, size)[numbers]])


def _of(best: list[_Row], parts: list[PostingPart], size: int) -> list[PostingPart]:
    """The parts, for these rows alone."""
    is_best = _are(_numbers(best), size)
    chosen = ((part, is_best[part.numbers]) for part in parts)
    return [PostingPart(part.signal, part.numbers[mask], part.scores[mask]) for part, mask in chosen]


def _in_scope(rows_of: _Rows, found: Numbers, scores: Scores) -> tuple[Numbers, Scores]:
    """Those that the scope sees, as far as that is known without their rows."""
    if rows_of.request.scope.session_id is None:
        return found, scores
    among = _in_session(rows_of.db, rows_of.request.user, rows_of.request.scope)
    is_seen = _are(among, int(found.max(initial=-1)) + 1)[found]
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
        estimates = total.copy()
        estimates[near.numbers] += near.cosines
        return _best_by_estimate(rows_of, *_in_scope(rows_of, found, estimates[found]), total, limit)
    total[near.numbers] += near.cosines
    best = _best(rows_of, *_in_scope(rows_of, found, total[found]), limit)
    return best, [PostingPart(DENSE, near.numbers, near.cosines)]


def _near(near: NearestVectors, size: int) -> NearestVectors:
    """Without numbers that this view of the file does not know: the cache may be newer."""
    known = near.numbers < size
    return near if known.all() else NearestVectors(near.numbers[known], near.cosines[known], near.is_exact)


def _fitting(db: Database, request: _SqliteRequest, columns: str, *, limit: int = -1) -> list[tuple[Any, ...]]:
    """The rows that are shown and fit the filter, by id."""
    where, (sql, values) = request.query.where, (request.fits.sql, request.fits.values)
    source = f"FROM records AS r WHERE {sql} ORDER BY r.id"
    if where is None or request.fits.exact:
        return rows(db, f"SELECT {columns} {source} LIMIT ?", *values, limit)
    found: list[tuple[Any, ...]] = []
    width = columns.count(",") + 1
    cursor = db.execute(f"SELECT {columns}, {SELECTED} {source}", values)
    try:
        for row in cursor:
            if _matches(where, row[width:]):
                found.append(row[:width])
                if len(found) == limit:
                    break
    finally:
        cursor.close(True)
    return found


def _matches(where: Filter, row: _Row) -> bool:
    """Whether the record of a row fits; to make one costs more than to read the row."""
    spend(MADE)
    return where.matches(from_row(row))


def _among(db: Database, request: _SqliteRequest, given: Sequence[int]) -> list[_Row]:
    """Those of the rows given that fit, at any time; neighbours are best given together, they share pages."""
    fits, where = request.at_any_time, request.query.where
    # A cross join is not reordered: the rows given are looked up, instead of walking all of the user's.
    source = "json_each(?) AS given CROSS JOIN records AS r ON r.row = given.value"
    found = [*each(db, f"SELECT {SELECTED}, r.row FROM {source} WHERE {fits.sql}", json.dumps(given), *fits.values)]
    return found if where is None or fits.exact else [row for row in found if _matches(where, row)]


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
    """The rows of the best that are shown, in any order: looks at the best scores first, and stops when enough fit."""
    best: list[_Row] = []
    values: list[float] = []
    for places in by_score(scores, limit + _TO_SPARE):
        rows_there = rows_of.of(found[places].tolist())
        values += [score for score, row in zip(scores[places].tolist(), rows_there, strict=True) if row is not None]
        best += [row for row in rows_there if row is not None]
        if len(best) >= limit:
            break
    if len(best) <= limit:
        return best
    last = sorted(values, reverse=True)[limit - 1]
    ahead = [row for row, value in zip(best, values, strict=True) if value > last]
    with reading("the id of a record"):  # a damaged one may not be text
        equal = sorted([row for row, value in zip(best, values, strict=True) if value == last], key=_ID)
    return ahead + equal[: limit - len(ahead)]


def _best_by_estimate(
    rows_of: _Rows, found: Numbers, estimates: Scores, total: Floats, limit: int
) -> tuple[list[_Row], list[PostingPart]]:
    """The same where cosines are estimates: the likeliest are compared exactly, which adds to `total` and the parts."""
    size = max(_LIKELIEST, limit * _LIKELIEST_FOR_EACH)
    parts: list[PostingPart] = []
    looked, candidates = 0, found[:0]
    for group, places in enumerate(islice(by_score(estimates, size), _MOST_GROUPS), 1):
        looked += len(places)
        # Equal estimates are not parted; of very many equal ones, the oldest have to do.
        likeliest = places[np.argsort(-estimates[places], kind="stable")[: _LIKELIEST_FOR_EACH * size]]
        candidates = np.concatenate([candidates, _compared(rows_of, found[likeliest], total, parts)])
        best = _best(rows_of, candidates, total[candidates], limit)
        if looked == len(found) or _are_ahead(best, total, candidates, limit):
            return best, parts
        if group >= _FEW_GROUPS and len(best) < limit:
            break
    # Few fit. What fits is looked for first, and then the likeliest of that.
    fitting = _numbers(_fitting(rows_of.db, rows_of.request, "r.row"))
    is_left = _are(fitting, len(total)) & ~_are(candidates, len(total))
    rest = np.flatnonzero(is_left[found])
    likeliest = found[rest[next(by_score(estimates[rest], size), slice(None))]]
    candidates = np.concatenate([candidates, _compared(rows_of, likeliest, total, parts)])
    return _best(rows_of, candidates, total[candidates], limit), parts


def _compared(rows_of: _Rows, numbers: Numbers, total: Floats, parts: list[PostingPart]) -> Numbers:
    """Add exact cosines to `total` and `parts`; returns those of the numbers that a word or a vector speaks for."""
    vector = rows_of.request.query.vector
    assert vector is not None
    numbers = np.flatnonzero(_are(numbers, len(total)))  # in order, and each once
    with_words = numbers[total[numbers] > 0]
    with_vector, cosines = compared(rows_of.db, rows_of.request.user, numbers, vector)
    part = PostingPart(DENSE, with_vector, cosines.astype(np.float64))
    total[with_vector] += part.scores
    parts.append(part)
    return np.flatnonzero(_are(np.concatenate([with_words, with_vector]), len(total)))


def _are_ahead(best: list[_Row], total: Floats, candidates: Numbers, limit: int) -> bool:
    """Whether the best are so far ahead of other candidates that one with a lower estimate hardly belongs to them.

    Among those at least as good are some that do not fit, such as what the conversation shows: they do not count.
    """
    if len(best) < limit:
        return False
    unfit = int(np.count_nonzero(total[candidates] >= total[_numbers(best)].min())) - len(best)
    return len(best) * _AHEAD <= len(candidates) - unfit


def _hits(best: list[_Row], parts: list[PostingPart], size: int) -> Iterator[Hit]:
    why = whys(signals_of(_numbers(best), parts, size))
    return (scored(from_row(row), signals) for row, signals in zip(best, why, strict=True))
