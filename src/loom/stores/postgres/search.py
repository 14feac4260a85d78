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
from loom.stores.postgres.vectors import DENSE, DIGITS, direction
from loom.stores.postgres.where import condition
from loom.stores.sqlite.codec import SELECTED, to_micros

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

_NEAR = (
    f"SELECT v.number, '{DENSE}' AS signal, round(-(v.data <#> %s::float8[]::vector)::numeric, {DIGITS})::float8 "
    "AS score FROM vectors AS v WHERE v.owner = %s"
)
# Summed in the order of the signals, so that a sum has one value, and hits one order.
_TOTAL = (
    "SELECT number, sum(score ORDER BY signal) AS total, array_agg(signal ORDER BY signal) AS signals, "
    "array_agg(score ORDER BY signal) AS scores FROM ({}) AS spoken GROUP BY number"
)


async def search(db: Database, scope: Scope, query: Query, *, now: datetime) -> list[Hit]:
    """The best hits, best first."""
    shown, values = _shown(scope, query, now)
    fits = condition(query.where)
    signals, asked = await _signals(db, scope, query)
    if signals:
        sql = (
            f"SELECT {SELECTED}, t.total, t.signals, t.scores FROM ({_TOTAL.format(' UNION ALL '.join(signals))}) AS t "
            f"JOIN records AS r ON r.number = t.number WHERE {shown} AND {fits.sql} ORDER BY t.total DESC, r.id"
        )
    else:
        sql = (
            f"SELECT {SELECTED}, 0::float8, '{{}}'::text[], '{{}}'::float8[] FROM records AS r "
            f"WHERE {shown} AND {fits.sql} ORDER BY r.id"
        )
    bound = (*asked, *values, *fits.values)
    return [
        Hit(record, row[-3], dict(zip(row[-2], row[-1], strict=True)))
        async for record, row in fitting(db, sql, bound, where=query.where, fits=fits, limit=query.limit)
    ]


async def _signals(db: Database, scope: Scope, query: Query) -> tuple[list[str], tuple[Any, ...]]:
    """The queries for what speaks for records, and their values; none where the query asks for nothing but a filter."""
    owner = owner_of(scope)
    parts: list[str] = []
    values: tuple[Any, ...] = ()
    if query.text.strip():
        sql, values = index.scores(owner, query_terms(query.text))
        parts.append(sql)
    if query.vector is not None:
        parts.append(_NEAR)
        values = (*values, await direction(db, query.vector, "the vector of a query"), owner)
    return parts, values


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
