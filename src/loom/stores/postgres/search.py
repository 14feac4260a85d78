"""Answering a query in one statement: signals for the records of a user, then the best that the scope may see."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from loom.core.hit import Hit
from loom.core.scope import Scope
from loom.core.words import query_terms
from loom.protocols.memory_store import Query
from loom.stores.postgres import index
from loom.stores.postgres.owners import owner_of, seen
from loom.stores.postgres.records import fitting
from loom.stores.postgres.vectors import DENSE, SCALE, direction
from loom.stores.postgres.where import condition
from loom.stores.record_rows import SELECTED, to_micros

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

# Rounded, because equal vectors must score equal; the numbers leave the long vectors behind before they are sorted.
_NEAR = (
    f"SELECT v.number, '{DENSE}' AS signal, '' AS term, round(-(v.data <#> %s::float8[]::vector) * {SCALE}) / {SCALE} "
    "AS score FROM vectors AS v WHERE v.owner = %s OFFSET 0"
)
# Summed in one order, so that a sum has one value, and hits one order.
_TOTAL = (
    "SELECT number, sum(score ORDER BY signal, term) AS total, array_agg(signal ORDER BY signal, term) AS signals, "
    "array_agg(score ORDER BY signal, term) AS scores FROM ({}) AS spoken GROUP BY number"
)
_ALONE = "SELECT number, score AS total, ARRAY[signal] AS signals, ARRAY[score] AS scores FROM ({}) AS spoken"


async def search(db: Database, scope: Scope, query: Query, *, now: datetime) -> list[Hit]:
    """The best hits, best first."""
    shown, values = _shown(scope, query, now)
    fits = condition(query.where)
    spoken, asked = await _spoken(db, scope, query)
    if spoken:
        # Each is looked up by its number: left to itself, a planner that knows nothing of a new user may compare all
        # with all.
        sql = (
            f"SELECT r.*, t.total, t.signals, t.scores FROM ({spoken}) AS t CROSS JOIN LATERAL "
            f"(SELECT {SELECTED} FROM records AS r WHERE r.number = t.number AND {shown} AND {fits.sql} OFFSET 0) AS r "
            "ORDER BY t.total DESC, r.id"
        )
    else:
        sql = (
            f"SELECT {SELECTED}, 0::float8, '{{}}'::text[], '{{}}'::float8[] FROM records AS r "
            f"WHERE {shown} AND {fits.sql} ORDER BY r.id"
        )
    bound = (*asked, *values, *fits.values)
    return [
        Hit(record, row[-3], _why(row[-2], row[-1]))
        async for record, row in fitting(db, sql, bound, where=query.where, fits=fits, limit=query.limit)
    ]


async def _spoken(db: Database, scope: Scope, query: Query) -> tuple[str, tuple[Any, ...]]:
    """The query for what speaks for each record, and its values; empty where nothing but a filter was asked."""
    owner = owner_of(scope)
    sql, values = index.scores(owner, query_terms(query.text)) if query.text.strip() else ("", ())
    if query.vector is None:
        return _TOTAL.format(sql) if sql else "", values
    values = (*values, await direction(db, query.vector, "the vector of a query"), owner)
    return _TOTAL.format(f"{sql} UNION ALL ({_NEAR})") if sql else _ALONE.format(_NEAR), values


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
