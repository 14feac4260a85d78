"""Answering a query: signals for every record of a user, then the best that the scope may see."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from math import fsum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.core.hit import Hit
from loom.core.scope import Scope
from loom.protocols.memory_store import Query
from loom.stores.sqlite import index
from loom.stores.sqlite.codec import SELECTED, from_row, to_micros
from loom.stores.sqlite.connection import Database, one, rows
from loom.stores.sqlite.users import number_of, row_of, seen
from loom.stores.sqlite.vectors import VectorCache, dimension, unit_vector
from loom.stores.sqlite.where import condition

DENSE = "dense"
_FIRST_LOOK = 256

_Numbers: TypeAlias = NDArray[np.int64]
_Signals: TypeAlias = dict[str, tuple[index.Floats, NDArray[np.bool_]]]
_Sql: TypeAlias = tuple[str, tuple[Any, ...]]


def search(
    db: Database, user: int | None, scope: Scope, query: Query, *, now: datetime, cache: VectorCache
) -> list[Hit]:
    """The best hits, best first."""
    if query.vector is not None:
        unit_vector(query.vector, dimension(db), "the vector of a query")
    if user is None:
        return []
    shown = _shown(user, scope, query, now)
    if query.vector is None and not query.text.strip():
        return [Hit(from_row(row), 0.0) for row in _fitting(db, shown, query, SELECTED, limit=query.limit)]
    signals = _signals(db, user, query, cache)
    if not signals:
        return []
    total = np.sum([score for score, _ in signals.values()], axis=0)
    found = np.flatnonzero(np.logical_or.reduce([spoke for _, spoke in signals.values()]))
    if scope.session_id is not None:
        found = np.intersect1d(found, _in_session(db, user, scope), assume_unique=True)
    best = _best(db, found, total, user=user, shown=shown, query=query)
    return _hits(db, best, signals)


def _signals(db: Database, user: int, query: Query, cache: VectorCache) -> _Signals:
    """For each signal, the score of every record number and whether it spoke for it."""
    made = one(db, "SELECT next_number FROM users WHERE user = ?", user)
    size = int(made[0]) if made else 0
    signals: _Signals = {}
    if query.text.strip():
        signals = {signal: (score, score > 0) for signal, score in index.scores(db, user, query.text, size).items()}
    if query.vector is not None:
        numbers, cosines = cache.cosines(db, user, query.vector)
        known = numbers < size  # the cache may be newer than this view of the file
        score, spoke = np.zeros(size), np.zeros(size, np.bool_)
        score[numbers[known]] = cosines[known]
        spoke[numbers[known]] = True
        signals[DENSE] = (score, spoke)
    return dict(sorted(signals.items()))


def _shown(user: int, scope: Scope, query: Query, now: datetime) -> _Sql:
    """The condition for what this query may return, but for its filter."""
    sql, values = seen(user, scope)
    parts = [sql]
    if not query.archived:
        parts.append("r.archived_at IS NULL")
    if not query.history:
        parts.append(
            "(r.kind <> 'fact' OR ((r.valid_from IS NULL OR r.valid_from <= ?) "
            "AND (r.valid_until IS NULL OR r.valid_until > ?) AND r.recorded_at <= ? "
            "AND (r.superseded_at IS NULL OR r.superseded_at > ?)))"
        )
        at, known_at = to_micros(query.at or now), to_micros(query.known_at or now)
        values = (*values, at, at, known_at, known_at)
    return " AND ".join(parts), values


def _fitting(
    db: Database, shown: _Sql, query: Query, columns: str, *, limit: int = -1, among: str | None = None
) -> list[tuple[Any, ...]]:
    """The rows that are shown and fit the filter, by id; `among` is a JSON list of rows."""
    fits = condition(query.where)
    sql, values = f"{shown[0]} AND {fits.sql}", (*shown[1], *fits.values)
    source = "records AS r"
    if among is not None:
        # A cross join is not reordered: the rows given are looked up, instead of walking all of the user's.
        source, values = "json_each(?) AS given CROSS JOIN records AS r ON r.row = given.value", (among, *values)
    if query.where is None or fits.exact:
        return rows(db, f"SELECT {columns} FROM {source} WHERE {sql} ORDER BY r.id LIMIT ?", *values, limit)
    found: list[tuple[Any, ...]] = []
    width = columns.count(",") + 1
    cursor = db.execute(f"SELECT {columns}, {SELECTED} FROM {source} WHERE {sql} ORDER BY r.id", values)
    for row in cursor:
        if query.where.matches(from_row(row[width:])):
            found.append(row[:width])
            if len(found) == limit:
                break
    cursor.close(True)
    return found


def _in_session(db: Database, user: int, scope: Scope) -> _Numbers:
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


def _best(db: Database, found: _Numbers, total: index.Floats, *, user: int, shown: _Sql, query: Query) -> list[int]:
    """The rows of the best that are shown: looks at the best scores first and stops when enough fit."""
    kept: list[tuple[Any, ...]] = []
    for numbers in _by_score(found, total, max(_FIRST_LOOK, query.limit * 4)):
        among = json.dumps([row_of(user, number) for number in numbers.tolist()])
        kept += _fitting(db, shown, query, "r.row, r.id", among=among)
        if len(kept) >= query.limit:
            break
    kept.sort(key=lambda row: (-total[number_of(row[0])], row[1]))
    return [int(row) for row, _ in kept[: query.limit]]


def _by_score(found: _Numbers, total: index.Floats, size: int) -> Iterator[_Numbers]:
    """Groups of falling score; equal scores are never parted, so that ids can decide between them."""
    while len(found) > size:
        score = total[found]
        least = np.partition(score, len(score) - size)[len(score) - size]
        is_top = score >= least
        yield found[is_top]
        found = found[~is_top]
        size *= 4
    if len(found):
        yield found


def _hits(db: Database, best: list[int], signals: _Signals) -> list[Hit]:
    hits: list[Hit] = []
    for row in best:
        stored = one(db, f"SELECT {SELECTED} FROM records AS r WHERE r.row = ?", row)
        number = number_of(row)
        why = {signal: float(score[number]) for signal, (score, spoke) in signals.items() if spoke[number]}
        if stored is not None:
            hits.append(Hit(from_row(stored), fsum(why.values()), why))
    return hits
