"""Answering a query in one statement: signals for the records of a user, then the best that the scope may see."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from loom.core.hit import Hit, joined
from loom.core.scope import Scope
from loom.core.words import query_terms
from loom.protocols.memory_store import Query
from loom.stores.postgres import index, near
from loom.stores.postgres.owners import owner_of, seen
from loom.stores.postgres.records import fitting
from loom.stores.postgres.vectors import COSINE, DENSE, cosines_of, direction
from loom.stores.postgres.where import condition
from loom.stores.record_rows import SELECTED, to_micros

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

# Rounded, because equal vectors must score equal; the numbers leave the long vectors behind before they are sorted.
_NEAR = (
    f"SELECT v.number, '{DENSE}' AS signal, '' AS term, {COSINE} AS score FROM vectors AS v WHERE v.owner = %s OFFSET 0"
)
# Summed in one order, so that a sum has one value, and hits one order.
_TOTAL = (
    "SELECT number, sum(score ORDER BY signal, term) AS total, array_agg(signal ORDER BY signal, term) AS signals, "
    "array_agg(score ORDER BY signal, term) AS scores FROM ({}) AS spoken GROUP BY number"
)


class _Asked(NamedTuple):
    """A query, who asks it, and when."""

    db: Database
    scope: Scope
    query: Query
    now: datetime


async def search(db: Database, scope: Scope, query: Query, *, now: datetime) -> list[Hit]:
    """The best hits, best first."""
    owner = owner_of(scope)
    asked = _Asked(db, scope, query, now)
    by_words = index.scores(owner, query_terms(query.text)) if query.text.strip() else None
    if query.vector is None:
        return await _best(asked, _TOTAL.format(by_words[0]), by_words[1]) if by_words else await _best(asked, "", ())
    dimension, vector = await direction(db, query.vector, "the vector of a query")
    if by_words:
        sql, values = by_words
        return await _best(asked, _TOTAL.format(f"{sql} UNION ALL ({_NEAR})"), (*values, vector, owner))
    if await near.looks_in_index(db, owner, query.limit):
        hits = await _best(asked, *_alone(*near.nearest(dimension, owner, vector, query.limit)))
        if len(hits) == query.limit:
            return hits
    # A filter may leave little of what is nearest, and then all are compared.
    return await _best(asked, *_alone(_NEAR, (vector, owner)))


async def search_apart(db: Database, scope: Scope, query: Query, *, near: int, now: datetime) -> list[Hit]:
    """The best by words and the `near` best by vector, each with its cosine."""
    assert query.vector is not None
    by_words = await search(db, scope, replace(query, vector=None), now=now)
    by_vector = await search(db, scope, replace(query, text="", limit=near), now=now)
    cosines = {hit.item.id: hit.why[DENSE] for hit in by_vector}
    far = [hit.item.id for hit in by_words if hit.item.id not in cosines]
    return joined(by_words, by_vector, cosines | await cosines_of(db, scope, query.vector, far))


async def _best(asked: _Asked, spoken: str, values: tuple[Any, ...]) -> list[Hit]:
    """The best of the records that something speaks for, of those that the query may return."""
    db, scope, query, now = asked
    shown, of_shown = _shown(scope, query, now)
    fits = condition(query.where)
    if spoken:
        # The best are looked up by their numbers, one after another until there are enough: left to itself, a planner
        # that knows nothing of a new user may look up all, or compare all with all.
        sql = (
            f"SELECT r.*, t.total, t.signals, t.scores FROM ({spoken} ORDER BY total DESC OFFSET 0) AS t "
            "CROSS JOIN LATERAL "
            f"(SELECT {SELECTED} FROM records AS r WHERE r.number = t.number AND {shown} AND {fits.sql} OFFSET 0) AS r "
            "ORDER BY t.total DESC, r.id"
        )
    else:
        sql = (
            f"SELECT {SELECTED}, 0::float8, '{{}}'::text[], '{{}}'::float8[] FROM records AS r "
            f"WHERE {shown} AND {fits.sql} ORDER BY r.id"
        )
    bound = (*values, *of_shown, *fits.values)
    return [
        Hit(record, row[-3], _why(row[-2], row[-1]))
        async for record, row in fitting(db, sql, bound, where=query.where, fits=fits, limit=query.limit)
    ]


def _alone(near: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Cosines as all that speaks for a record."""
    signals = f"ARRAY['{DENSE}'] AS signals, ARRAY[score] AS scores"
    return f"SELECT number, score AS total, {signals} FROM ({near}) AS spoken", values


def _why(signals: list[str], scores: list[float]) -> dict[str, float]:
    """The score of each signal, from the parts that its words add to it."""
    why: dict[str, float] = {}
    for signal, score in zip(signals, scores, strict=True):
        why[signal] = why.get(signal, 0.0) + score
    return why


def _shown(scope: Scope, query: Query, now: datetime) -> tuple[str, tuple[Any, ...]]:
    """The condition for what this query may return, but for its filter."""
    sql, values = seen(scope)
    parts = [sql]
    if not query.archived:
        parts.append("r.archived_at IS NULL")
    if not query.history:
        parts.append(
            "(r.kind <> 'fact' OR ((r.valid_from IS NULL OR r.valid_from <= %s) "
            "AND (r.valid_until IS NULL OR r.valid_until > %s) AND r.recorded_at <= %s "
            "AND (r.superseded_at IS NULL OR r.superseded_at > %s)))"
        )
        at, known_at = to_micros(query.at or now), to_micros(query.known_at or now)
        values = (*values, at, at, known_at, known_at)
    return " AND ".join(parts), values
