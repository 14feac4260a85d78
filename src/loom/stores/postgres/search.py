"""Answering a query: signals for the records of a user, then the best that the scope may see."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np

from loom.core.hit import Hit, rank_key, scored
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import Query
from loom.stores.by_score import by_score
from loom.stores.postgres import index, near
from loom.stores.postgres.connection import Packed, Row, fetch
from loom.stores.postgres.owners import owner_of, seen
from loom.stores.postgres.records import fitting
from loom.stores.postgres.vectors import COSINE, DENSE, all_cosines, direction, packed
from loom.stores.postgres.where import POSTGRES, condition
from loom.stores.postings import Floats, Numbers, Part, total, why_of
from loom.stores.record_rows import SELECTED, from_row
from loom.stores.sql_where import Condition

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""
_COSINE = f"(SELECT {COSINE} FROM vectors AS v WHERE v.owner = %s AND v.number = t.number)"


class Known(NamedTuple):
    """The start of a search: how many numbers the user has, the dimension of vectors, whether an index is used."""

    size: int | None
    dimension: int | None
    in_index: bool


def look(scope: Scope, near_limit: int | None) -> str:
    """The statement for what a search begins with; with a limit, one that looks for so many of the nearest."""
    owner = owner_of(scope)
    in_index = "false" if near_limit is None else near.looks_in_index(owner, near_limit)
    size = f"(SELECT next_number FROM users WHERE owner = '{owner}')"
    return f"SELECT {size}, (SELECT dimension FROM embedder), {in_index}"


class _Request(NamedTuple):
    """A query of a user, what is known at its start, and the condition for what it may return but for its filter."""

    db: Database
    owner: UUID
    known: Known
    query: Query
    shown: str
    values: tuple[Any, ...]


class _Found(NamedTuple):
    """A row that may be returned, its number, and its cosine if it was asked for and there is one."""

    row: Row
    number: int
    cosine: float | None


async def search(db: Database, known: Known, scope: Scope, query: Query, *, now: datetime) -> list[Hit]:
    """The best hits, best first."""
    request = _make_request(db, known, scope, query, now)
    has_words = bool(query.text.strip())
    vector = None if query.vector is None else _vector(known, query.vector)
    if vector is None and not has_words:
        return await _first(request)
    if vector is not None and not has_words:
        return [scored(from_row(hit.row), _dense(hit)) for hit in await _nearest(request, vector, query.limit)]
    parts = await index.parts(db, request.owner, query.text, known.size or 0)
    if vector is not None:
        parts.append(Part(DENSE, *await all_cosines(db, request.owner, vector)))
    scores = total(parts, known.size or 0)
    best = await _best(request, scores, parts)
    why = why_of([hit.number for hit in best], parts, len(scores))
    return sorted((scored(from_row(hit.row), why[hit.number]) for hit in best), key=rank_key)


async def search_apart(
    db: Database, known: Known, scope: Scope, query: Query, *, near: int, now: datetime
) -> list[Hit]:
    """The best by words and the `near` best by vector, each with its cosine."""
    assert query.vector is not None
    request = _make_request(db, known, scope, query, now)
    vector = _vector(known, query.vector)
    parts = await index.parts(db, request.owner, query.text, known.size or 0)
    scores = total(parts, known.size or 0)
    by_words = await _best(request, scores, parts, vector)
    why = why_of([hit.number for hit in by_words], parts, len(scores))
    hits = {hit.number: scored(from_row(hit.row), why[hit.number] | _dense(hit)) for hit in by_words}
    for hit in await _nearest(request, vector, near):
        if hit.number not in hits:
            hits[hit.number] = scored(from_row(hit.row), _dense(hit))
    return sorted(hits.values(), key=rank_key)


def _make_request(db: Database, known: Known, scope: Scope, query: Query, now: datetime) -> _Request:
    shown = POSTGRES.shown(Condition(*seen(scope)), query, now)
    return _Request(db, owner_of(scope), known, query, shown.sql, shown.values)


def _vector(known: Known, vector: Vector) -> Packed:
    return packed(direction(vector, known.dimension, "the vector of a query"))


async def _first(request: _Request) -> list[Hit]:
    """The hits of a query without words or vector: the first by id."""
    db, _, _, query, shown, values = request
    fits = condition(query.where)
    sql = f"SELECT {SELECTED} FROM records AS r WHERE {shown} AND {fits.sql} ORDER BY r.id"
    first = fitting(db, sql, (*values, *fits.values), where=query.where, fits=fits, limit=query.limit)
    return [Hit(from_row(row), 0.0) async for row in first]


async def _nearest(request: _Request, vector: Packed, limit: int) -> list[_Found]:
    """The nearest by vector, of those that may be returned."""
    in_index = request.known.in_index
    dimension = request.known.dimension if in_index else None
    hits, is_sure = await _near(request, near.nearest(request.owner, vector, limit, dimension), limit)
    if (len(hits) < limit) if in_index else not is_sure:
        hits, _ = await _near(request, near.nearest(request.owner, vector, None, None), limit)
    return hits


async def _near(request: _Request, nearest: tuple[str, tuple[Any, ...]], limit: int) -> tuple[list[_Found], bool]:
    """The best of the nearest, and whether no other could be among them.

    A filter may leave little of them, and ids decide between those that are as near as the last. They are looked up by
    their numbers, one after another until there are enough: left to itself, a planner that knows nothing of a new user
    may look up all, or compare all with all.
    """
    fits = condition(request.query.where)
    sql = (
        "SELECT r.*, t.amount, t.least, t.number, t.score FROM (SELECT *, count(*) OVER () AS amount, "
        f"min(score) OVER () AS least FROM ({nearest[0]}) AS n ORDER BY score DESC OFFSET 0) AS t "
        f"CROSS JOIN LATERAL {_record(request, fits)} ORDER BY t.score DESC, r.id"
    )
    bound = (*nearest[1], *request.values, *fits.values)
    found = [row async for row in fitting(request.db, sql, bound, where=request.query.where, fits=fits, limit=limit)]
    if not found:
        return [], False
    amount, least, _, score = found[-1][-4:]
    is_sure = amount < near.candidates(limit) or (len(found) == limit and score > least)
    return [_Found(row, *row[-2:]) for row in found], is_sure


async def _best(request: _Request, scores: Floats, parts: Sequence[Part], vector: Packed | None = None) -> list[_Found]:
    """The best that the parts speak for and that may be returned, best first: looks no further than it has to."""
    has_score = scores != 0
    for part in parts:
        if part.signal == DENSE:
            has_score[part.numbers] = True
    best: list[_Found] = []
    limit = request.query.limit
    found = np.flatnonzero(has_score)
    for places in by_score(scores[found], limit + _TO_SPARE):
        best += await _read(request, found[places], vector)
        if len(best) >= limit:
            break
    best.sort(key=lambda hit: (-scores[hit.number], hit.row[0]))
    return best[:limit]


async def _read(request: _Request, numbers: Numbers, vector: Packed | None) -> list[_Found]:
    """Those of these records that may be returned, with their cosines if there is a vector."""
    where, fits = request.query.where, condition(request.query.where)
    cosine, of_vector = ("NULL::float8", ()) if vector is None else (_COSINE, (vector, request.owner))
    sql = (
        f"SELECT r.*, t.number, {cosine} FROM unnest(%b::bigint[]) AS t (number) "
        f"CROSS JOIN LATERAL {_record(request, fits)}"
    )
    rows = await fetch(request.db, sql, *of_vector, numbers.tolist(), *request.values, *fits.values)
    hits = [_Found(row, *row[-2:]) for row in rows]
    return hits if where is None or fits.exact else [hit for hit in hits if where.matches(from_row(hit.row))]


def _record(request: _Request, fits: Condition) -> str:
    """The record of a number, if it may be returned."""
    of_number = f"r.number = t.number AND {request.shown} AND {fits.sql}"
    return f"(SELECT {SELECTED} FROM records AS r WHERE {of_number} OFFSET 0) AS r"


def _dense(hit: _Found) -> dict[str, float]:
    return {} if hit.cosine is None else {DENSE: hit.cosine}
