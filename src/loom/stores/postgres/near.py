"""The vectors of large users: an HNSW index for each, because an exact search of theirs takes too long.

Below INDEXED_FROM vectors all are compared, which is exact and about as quick. An index holds one user alone, so that
the vectors of others do not thin out what it finds, and writes of small users pay nothing for it. Only an owner of the
tables can make one; init_schema() does, without keeping writers waiting.
"""

# ruff: noqa: S608 - only names and numbers that this package makes stand in SQL; every value is bound

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from loom.stores.postgres.connection import Packed, one, rows, run
from loom.stores.postgres.vectors import SCALE, binding

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many indexes are made, and of how many."""

INDEXED_FROM = 20_000
"""How many vectors of one user are compared one by one; at half of it an index is dropped again.

Measured once on 2 busy cores, 30 questions each, on made-up vectors of 256 numbers in clusters, which suit an index;
comparing all and by the index: 5,000 vectors take 4 ms, and 5 ms for 200 hits; 20,000 take 23 ms, and 1.4 ms for 10
hits or 9 ms for 200; 100,000 take 62 to 95 ms, and 2 ms or 8 ms. Between 5,000 and 20,000 nothing was measured. At
100,000 the index found all of the nearest 10, and 171 of the nearest 200. Vectors without clusters were not tried.
"""
PREFIX = "near_"
_MOST_NUMBERS = 2000
_LEAST_LOOK = 100
_LONGEST_LOOK = 1000
INDEXES = """
SELECT c.relname, i.indisvalid, pg_get_expr(i.indpred, i.indrelid)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND starts_with(c.relname, %s)
"""
_LARGE = "SELECT owner, count(*) FROM vectors GROUP BY owner HAVING count(*) >= %s"


def index_name(owner: UUID) -> str:
    """The name of a user's index."""
    return f"{PREFIX}{owner.hex}"


def candidates(limit: int) -> int:
    """How many of the nearest an index is asked for: some are not shown, or do not fit a filter."""
    return 2 * limit


def looks_in_index(owner: UUID, limit: int) -> str:
    """An expression that tells whether the user has an index that finds as many.

    Then the transaction that asks uses it, and looks far enough.
    """
    wanted = max(candidates(limit), _LEAST_LOOK)
    if wanted > _LONGEST_LOOK:
        return "false"
    settings = {"hnsw.ef_search": wanted, "hnsw.iterative_scan": "strict_order", "plan_cache_mode": "force_custom_plan"}
    made = " || ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"CASE WHEN to_regclass('{index_name(owner)}') IS NULL THEN false ELSE {made} IS NOT NULL END"


def nearest(owner: UUID, vector: Packed, limit: int | None, dimension: int | None) -> tuple[str, tuple[Any, ...]]:
    """A query for the nearest of a user's vectors with their cosines, or for all without a limit.

    With a dimension it is in the words that the planner knows an index by.
    """
    data, fits = "v.data", ""
    if dimension is not None:
        data, fits = f"v.data::vector({dimension})", f" AND vector_dims(v.data) = {dimension}"
    far = f"{data} <#> %s::vector"
    sql = (
        f"SELECT v.number, round(-({far}) * {SCALE}) / {SCALE} AS score FROM vectors AS v "
        f"WHERE v.owner = %s{fits} ORDER BY {far} LIMIT %s"
    )
    return sql, (vector, owner, vector, None if limit is None else candidates(limit))


async def index_large_users(
    db: Database, schema: str, *, at_least: int = INDEXED_FROM, progress: Progress | None = None
) -> None:
    """Make the indexes that are missing and drop those that are not needed; the connection is in no transaction."""
    if await one(db, "SELECT 1 FROM pg_type WHERE oid = to_regtype('vector') AND typtype = 'd'") is not None:
        return  # plain arrays, which no index takes
    bound = await binding(db)
    dimension = bound[1] if bound else 0
    amounts = dict(await rows(db, _LARGE, at_least // 2))
    kept: set[str] = set()
    for name, is_valid, condition in await rows(db, INDEXES, schema, PREFIX):
        is_needed = UUID(name.removeprefix(PREFIX)) in amounts and condition.endswith(f"= {dimension}))")
        if is_valid and is_needed:
            kept.add(name)
        else:
            await run(db, f"DROP INDEX CONCURRENTLY {name}")
    large = [owner for owner, amount in amounts.items() if amount >= at_least and index_name(owner) not in kept]
    for done, owner in enumerate(large if dimension <= _MOST_NUMBERS else ()):
        if progress is not None:
            progress(done, len(large))
        # Other vectors than those of this embedder are left out: they would not fit the type.
        await run(
            db,
            f"CREATE INDEX CONCURRENTLY {index_name(owner)} ON vectors "
            f"USING hnsw ((data::vector({dimension})) vector_ip_ops) "
            f"WHERE owner = '{owner}' AND vector_dims(data) = {dimension}",
        )
