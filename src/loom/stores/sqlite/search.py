"""Answering a query: signals for every record of a user, then the best that the scope may see."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from math import fsum
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loom.core.hit import Hit, rank_key
from loom.core.record import Record
from loom.core.scope import Scope
from loom.protocols.memory_store import Query
from loom.stores.record_rows import SELECTED, from_row, to_micros
from loom.stores.sqlite import index
from loom.stores.sqlite.connection import Database, rows
from loom.stores.sqlite.users import next_number, number_of, row_of, seen
from loom.stores.sqlite.vectors import Near, VectorCache, compared, dimension, unit_vector
from loom.stores.sqlite.where import condition

DENSE = "dense"
_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""

# Where cosines are estimates: how many are compared exactly, and how far ahead of them the hits must be.
_LIKELIEST = 1000
_LIKELIEST_FOR_EACH = 5
_MOST_GROUPS = 2
_AHEAD = 4

_Sql: TypeAlias = tuple[str, tuple[Any, ...]]
_Row: TypeAlias = tuple[Any, ...]
"""A row of the table: which one it is, then its columns, the first of which is the id."""


class _Asked(NamedTuple):
    """A query of a user, and the condition for what it may return but for its filter."""

    user: int
    shown: _Sql
    query: Query


def search(
    db: Database, user: int | None, scope: Scope, query: Query, *, now: datetime, cache: VectorCache
) -> list[Hit]:
    """The best hits, best first."""
    if query.vector is not None:
        unit_vector(query.vector, dimension(db), "the vector of a query")
    if user is None:
        return []
    asked = _Asked(user, _shown(user, scope, query, now), query)
    if query.vector is None and not query.text.strip():
        return [Hit(from_row(row), 0.0) for row in _fitting(db, asked.shown, query, SELECTED, limit=query.limit)]
    total = np.zeros(next_number(db, user))
    parts = _words(db, asked, total) if query.text.strip() else []
    near = None if query.vector is None else _near(cache.near(db, user, query.vector), len(total))
    found = _in_scope(db, asked, scope, _spoken_for(total, near))
    if near is None:
        best = _best(db, found, total, asked)
    else:
        best, dense = _best_and_near(db, found, total, near, asked)
        parts += dense
    return sorted(_hits(best, parts, len(total)), key=rank_key)


def search_apart(
    db: Database, user: int, scope: Scope, query: Query, *, near: int, now: datetime, cache: VectorCache
) -> list[Hit]:
    """The best by words and the `near` best by vector, each with its cosine."""
    assert query.vector is not None
    asked = _Asked(user, _shown(user, scope, query, now), query)
    total = np.zeros(next_number(db, user))
    parts = _words(db, asked, total)
    best = _best(db, _in_scope(db, asked, scope, np.flatnonzero(total > 0)), total, asked)
    cosines = _near(cache.near(db, user, query.vector), len(total))
    close = np.zeros(len(total))
    found = _in_scope(db, asked, scope, _spoken_for(close, cosines))
    nearest, dense = _best_and_near(db, found, close, cosines, asked._replace(query=replace(query, limit=near)))
    if not cosines.is_exact:
        near_ones = np.concatenate([_numbers(()), *(part.numbers for part in dense)])
        _compared(db, np.setdiff1d(_numbers(best), near_ones), close, asked, dense)
    either = list({row[0]: row for row in (*best, *nearest)}.values())
    return sorted(_hits(either, _of(best, parts, len(total)) + dense, len(total)), key=rank_key)


def _numbers(found: Sequence[_Row]) -> index.Numbers:
    return np.asarray([number_of(row[0]) for row in found], np.int64)


def _of(best: list[_Row], parts: list[index.Part], size: int) -> list[index.Part]:
    """What the parts say of these rows, and of no others."""
    is_best = np.zeros(size, np.bool_)
    is_best[_numbers(best)] = True
    chosen = ((part, is_best[part.numbers]) for part in parts)
    return [index.Part(part.signal, part.numbers[mask], part.scores[mask]) for part, mask in chosen]


def _words(db: Database, asked: _Asked, total: index.Floats) -> list[index.Part]:
    """What each word speaks for, added to `total`."""
    parts = index.parts(db, asked.user, asked.query.text, len(total))
    for part in parts:
        total[part.numbers] += part.scores
    return parts


def _in_scope(db: Database, asked: _Asked, scope: Scope, found: index.Numbers) -> index.Numbers:
    if scope.session_id is None:
        return found
    return np.intersect1d(found, _in_session(db, asked.user, scope), assume_unique=True)


def _best_and_near(
    db: Database, found: index.Numbers, total: index.Floats, near: Near, asked: _Asked
) -> tuple[list[_Row], list[index.Part]]:
    """The best when cosines are added to `total`, and the part that they are."""
    if not near.is_exact:
        return _best_by_estimate(db, found, total, near, asked)
    total[near.numbers] += near.cosines
    return _best(db, found, total, asked), [index.Part(DENSE, near.numbers, near.cosines.astype(np.float64))]


def _near(near: Near, size: int) -> Near:
    """Without numbers that this view of the file does not know: the cache may be newer."""
    known = near.numbers < size
    return near if known.all() else Near(near.numbers[known], near.cosines[known], near.is_exact)


def _spoken_for(total: index.Floats, near: Near | None) -> index.Numbers:
    """The numbers that a word or a vector speaks for."""
    spoke = total > 0
    if near is not None:
        spoke[near.numbers] = True
    return np.flatnonzero(spoke)


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
    """The rows that are shown and fit the filter, by id; or `among` a JSON list of rows, in any order."""
    fits = condition(query.where)
    sql, values = f"{shown[0]} AND {fits.sql}", (*shown[1], *fits.values)
    source, order = "records AS r", "ORDER BY r.id"
    if among is not None:
        # A cross join is not reordered: the rows given are looked up, instead of walking all of the user's.
        source, values = "json_each(?) AS given CROSS JOIN records AS r ON r.row = given.value", (among, *values)
        order = ""
    if query.where is None or fits.exact:
        return rows(db, f"SELECT {columns} FROM {source} WHERE {sql} {order} LIMIT ?", *values, limit)
    found: list[tuple[Any, ...]] = []
    width = columns.count(",") + 1
    cursor = db.execute(f"SELECT {columns}, {SELECTED} FROM {source} WHERE {sql} {order}", values)
    for row in cursor:
        if query.where.matches(from_row(row[width:])):
            found.append(row[:width])
            if len(found) == limit:
                break
    cursor.close(True)
    return found


def _in_session(db: Database, user: int, scope: Scope) -> index.Numbers:
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


def _best(db: Database, found: index.Numbers, total: index.Floats, asked: _Asked) -> list[_Row]:
    """The rows of the best that are shown: looks at the best scores first and stops when enough fit."""
    kept: list[_Row] = []
    limit = asked.query.limit
    for numbers in _by_score(found, total, limit + _TO_SPARE):
        among = json.dumps([row_of(asked.user, number) for number in numbers.tolist()])
        kept += _fitting(db, asked.shown, asked.query, f"r.row, {SELECTED}", among=among)
        if len(kept) >= limit:
            break
    kept.sort(key=lambda row: (-total[number_of(row[0])], row[1]))
    return kept[:limit]


def _best_by_estimate(
    db: Database, found: index.Numbers, total: index.Floats, near: Near, asked: _Asked
) -> tuple[list[_Row], list[index.Part]]:
    """The same where cosines are estimates: the likeliest are compared exactly, which adds to `total` and the parts."""
    estimate = total.copy()
    estimate[near.numbers] += near.cosines
    size = max(_LIKELIEST, asked.query.limit * _LIKELIEST_FOR_EACH)
    parts: list[index.Part] = []
    looked, candidates = 0, found[:0]
    for group in islice(_by_score(found, estimate, size), _MOST_GROUPS):
        looked += len(group)
        # Equal estimates are not parted; of very many equal ones, the oldest have to do.
        likeliest = group[np.argsort(-estimate[group], kind="stable")[: _LIKELIEST_FOR_EACH * size]]
        candidates = np.concatenate([candidates, _compared(db, likeliest, total, asked, parts)])
        best = _best(db, candidates, total, asked)
        if looked == len(found) or _are_ahead(best, total, candidates, asked.query.limit):
            return best, parts
    # Few fit. What fits is looked for first, and then the likeliest of that.
    fitting = np.asarray([number_of(row) for (row,) in _fitting(db, asked.shown, asked.query, "r.row")], np.int64)
    rest = np.setdiff1d(np.intersect1d(found, fitting), candidates)
    group = next(_by_score(rest, estimate, size), rest)
    candidates = np.concatenate([candidates, _compared(db, group, total, asked, parts)])
    return _best(db, candidates, total, asked), parts


def _compared(
    db: Database, numbers: index.Numbers, total: index.Floats, asked: _Asked, parts: list[index.Part]
) -> index.Numbers:
    """Add exact cosines to `total` and `parts`; returns those of the numbers that a word or a vector speaks for."""
    assert asked.query.vector is not None
    with_words = numbers[total[numbers] > 0]
    with_vector, cosines = compared(db, asked.user, numbers, asked.query.vector)
    part = index.Part(DENSE, with_vector, cosines.astype(np.float64))
    total[with_vector] += part.scores
    parts.append(part)
    return np.union1d(with_words, with_vector)


def _are_ahead(best: list[_Row], total: index.Floats, candidates: index.Numbers, limit: int) -> bool:
    """Whether the best are so far ahead of other candidates that one with a lower estimate hardly belongs to them."""
    if len(best) < limit:
        return False
    return int(np.count_nonzero(total[candidates] >= total[number_of(best[-1][0])])) * _AHEAD <= len(candidates)


def _by_score(found: index.Numbers, total: index.Floats, size: int) -> Iterator[index.Numbers]:
    """Groups of falling score; equal scores are never parted, so that ids can decide between them."""
    while len(found) > size:
        score = total[found]
        # The best of many blocks are quicker to order than all, and `size` blocks that reach a score hold as many hits.
        block = max(1, len(found) // (8 * size))
        highest = np.maximum.reduceat(score, np.arange(0, len(score), block))
        is_top = score >= np.partition(highest, len(highest) - size)[len(highest) - size]
        yield found[is_top]
        found = found[~is_top]
        size *= 4
    if len(found):
        yield found


def _hits(best: list[_Row], parts: list[index.Part], size: int) -> Iterator[Hit]:
    numbers = [number_of(row[0]) for row in best]
    why = _why(numbers, parts, size)
    for number, row in zip(numbers, best, strict=True):
        yield _hit(from_row(row[1:]), why[number])


def _hit(record: Record, why: dict[str, float]) -> Hit:
    """A hit without the checks of one that is given: its scores were computed here, and one recall makes hundreds."""
    hit = object.__new__(Hit)
    object.__setattr__(hit, "item", record)
    object.__setattr__(hit, "score", fsum(why.values()))
    object.__setattr__(hit, "why", why)
    return hit


def _why(best: list[int], parts: list[index.Part], size: int) -> dict[int, dict[str, float]]:
    """For each of the best, the score of each signal that spoke for it."""
    is_best = np.zeros(size, np.bool_)
    is_best[best] = True
    why: dict[int, dict[str, float]] = {number: {} for number in best}
    for signal, numbers, scores in sorted(parts, key=itemgetter(0)):
        chosen = is_best[numbers]
        for number, score in zip(numbers[chosen].tolist(), scores[chosen].tolist(), strict=True):
            why[number][signal] = why[number].get(signal, 0.0) + score
    return why
