"""Search in Postgres: words and vectors (pgvector, HNSW for large users, arrays without it)."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound
from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from struct import Struct
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from loom.core.filter import Filter
from loom.core.record import Hit, rank_key, scored
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import HitColumns, Query, SearchKeys
from loom.stores._record_table import no_record, unit_vector
from loom.stores._search import Floats, Numbers, PostingPart, best_first, by_score, signals_of, total, why_of, whys
from loom.stores._sql import SELECTED, Condition, from_row, hit_columns
from loom.stores.base import After, Bound, Owned, check_bound
from loom.stores.postgres import records as index
from loom.stores.postgres.connection import (
    Database,
    Packed,
    PackedVector,
    Row,
    fetch,
    one,
    owner_of,
    rows,
    run,
    seen,
    take_packed,
)
from loom.stores.postgres.records import POSTGRES, Writing, bigints, condition, fitting

# The vectors of records: their embedder, writing, reading and replacing them.

DENSE = "dense"
SCALE = 10**6
"""What differs past this many parts of a cosine is rounding."""
COSINE = f"round(-(v.data <#> %s::vector) * {SCALE}) / {SCALE}"
# All numbers of all vectors come in one array, which is cut here.
_SET = (
    "INSERT INTO vectors (owner, number, data) "
    "SELECT %s, n.number, a.data[(n.place - 1) * %s + 1 : n.place * %s]::vector "
    "FROM unnest(%s::bigint[]) WITH ORDINALITY AS n (number, place), (SELECT %s::real[]) AS a (data) "
    "ON CONFLICT (owner, number) DO UPDATE SET data = excluded.data"
)
BOUND = "SELECT identity, dimension FROM embedder"
"""The statement for whose vectors the schema holds."""

# How values look on their way: a vector starts with its dimension, an array with its dimensions and its type.
_VECTOR_HEAD = Struct(">HH")
_ARRAY_HEAD = Struct(">iiIii")
_REAL = 700
_REALS = np.dtype([("bytes", ">i4"), ("real", ">f4")])
_COSINES = np.dtype([("number", ">i8"), ("cosine", ">f8")])


def bound_of(row: Row | None) -> Bound | None:
    """The embedder of a row of BOUND; None before bind()."""
    return None if row is None else (row[0], row[1])


HELD = f"{BOUND} FOR SHARE"
"""The same, keeping rebind() waiting until the transaction ends."""


async def binding(db: Database) -> Bound | None:
    """The embedder and dimension, None before bind()."""
    return bound_of(await one(db, BOUND))


def direction(vector: Vector, dimension: int | None, what: str) -> Floats:
    """The direction of a vector; refuses one that does not fit this schema's."""
    return np.asarray(unit_vector(vector, dimension, what))


def packed(unit: Floats) -> PackedVector:
    """A vector as pgvector receives it."""
    return PackedVector(_VECTOR_HEAD.pack(len(unit), 0) + unit.astype(">f4").tobytes())


def packed_array(numbers: Floats) -> Packed:
    """Numbers as Postgres receives an array of type real."""
    reals = np.empty(numbers.size, _REALS)
    reals["bytes"] = 4
    reals["real"] = numbers.ravel()
    return Packed(_ARRAY_HEAD.pack(1, 0, _REAL, numbers.size, 1) + reals.tobytes())


async def all_cosines(db: Database, owner: UUID, vector: Packed) -> tuple[Numbers, Floats]:
    """The numbers of all records that have a vector, and how near each is to this one."""
    sql = f"SELECT string_agg(int8send(v.number) || float8send({COSINE}), '') FROM vectors AS v WHERE v.owner = %s"
    ((found,),) = await fetch(db, sql, vector, owner)
    near = np.frombuffer(found or b"", _COSINES)
    return near["number"].astype(np.int64), near["cosine"].astype(np.float64)


async def put_vectors(
    writing: Writing, vectors: Mapping[str, Vector], bound: Bound | None, expected: Bound | None
) -> None:
    """Set the vectors of records; refuses another embedder than the expected one, if there is one."""
    if expected is not None:
        check_bound(bound, expected)
    size = bound[1] if bound else None
    units = {id: direction(vector, size, f"the vector of {id}") for id, vector in vectors.items()}
    numbers = await writing.numbers(units)
    for id in units:
        if id not in numbers:
            raise no_record(id, "a vector")
    if units:
        all_numbers = packed_array(np.concatenate(list(units.values())))
        writing.batch.add(_SET, writing.owner, size, size, bigints([numbers[id] for id in units]), all_numbers)


async def rebind(db: Database, old: Bound | None, new: Bound) -> bool:
    """Bind the schema to another embedder and remove all vectors; False where it is not bound to `old`."""
    await run(db, "LOCK TABLE embedder IN EXCLUSIVE MODE")
    if await binding(db) != old:
        return False
    await run(db, "DELETE FROM embedder")
    await run(db, "INSERT INTO embedder (identity, dimension) VALUES (%s, %s)", *new)
    await run(db, "DELETE FROM vectors")
    return True


async def unembedded(db: Database, where: Filter | None, after: After, limit: int | None) -> AsyncGenerator[Owned]:
    """Records without a vector, by namespace, user and id."""
    start = ("", "", "") if after is None else (after[0].namespace, after[0].user_id, after[1])
    fits = condition(where)
    sql = (
        f"SELECT {SELECTED}, u.namespace, u.user_id FROM users AS u JOIN records AS r ON r.owner = u.owner "
        f"WHERE (u.namespace, u.user_id, r.id) > (%s, %s, %s) AND {fits.sql} "
        "AND NOT EXISTS (SELECT 1 FROM vectors AS v WHERE v.owner = r.owner AND v.number = r.number) "
        "ORDER BY u.namespace, u.user_id, r.id"
    )
    async for row in fitting(db, sql, (*start, *fits.values), where=where, fits=fits, limit=limit):
        yield Scope(row[-2], row[-1]), from_row(row)


async def search_keys(db: Database, scope: Scope, ids: Iterable[str]) -> dict[str, SearchKeys]:
    """The keys and the vector of each of these records that the scope sees."""
    sql, values = seen(scope)
    records = await rows(
        db,
        "SELECT r.id, r.number, v.data::real[] FROM records AS r LEFT JOIN vectors AS v "
        f"ON v.owner = %s AND v.number = r.number WHERE {sql} AND r.id = ANY(%s)",
        owner_of(scope),
        *values,
        list(ids),
    )
    keys: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for number, kind, text in await rows(
        db,
        "SELECT number, kind, text FROM keys WHERE owner = %s AND number = ANY(%s)",
        owner_of(scope),
        [number for _, number, _ in records],
    ):
        keys[number][kind] = text
    return {id: SearchKeys(keys[number], data) for id, number, data in records}


# The vectors of large users: an HNSW index for each, because an exact search of theirs takes too long.
#
# Below INDEXED_FROM vectors all are compared, which is exact and about as quick. An index holds one user alone, so that
# the vectors of others do not thin out what it finds, and writes of small users pay nothing for it. Only an owner of
# the tables can make one; init_schema() does, without keeping writers waiting.

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


def nearest_by_index(
    owner: UUID, vector: Packed, limit: int | None, dimension: int | None
) -> tuple[str, tuple[Any, ...]]:
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
    for name, is_valid, covers in await rows(db, INDEXES, schema, PREFIX):
        is_needed = UUID(name.removeprefix(PREFIX)) in amounts and covers.endswith(f"= {dimension}))")
        if is_valid and is_needed:
            kept.add(name)
        else:
            await run(db, f"DROP INDEX CONCURRENTLY {name}")
    large = [owner for owner, amount in amounts.items() if amount >= at_least and index_name(owner) not in kept]
    for done, owner in enumerate(large if dimension <= _MOST_NUMBERS else ()):
        if progress is not None:
            progress(done, len(large))
        # On the partition of the user, where there are any: an index of the whole table would be one on each of them.
        found = await one(db, "SELECT tableoid::regclass::text FROM vectors WHERE owner = %s LIMIT 1", owner)
        # Other vectors than those of this embedder are left out: they would not fit the type.
        await run(
            db,
            f"CREATE INDEX CONCURRENTLY {index_name(owner)} ON {found[0] if found else 'vectors'} "
            f"USING hnsw ((data::vector({dimension})) vector_ip_ops) "
            f"WHERE owner = '{owner}' AND vector_dims(data) = {dimension}",
        )


_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""
_COSINE = f"(SELECT {COSINE} FROM vectors AS v WHERE v.owner = %s AND v.number = t.number)"


class Known(NamedTuple):
    """The start of a search: how many numbers and records the user has, the embedder, whether an index is used."""

    size: int | None
    held: int | None
    identity: str | None
    dimension: int | None
    in_index: bool


def known(row: Row, expected: Bound | None) -> Known:
    """What a row of look() says; refuses an embedder that another process bound the schema to since this one did."""
    found = Known(*row)
    if expected is not None:
        check_bound(None if found.identity is None else (found.identity, found.dimension or 0), expected)
    return found


def look(scope: Scope, near_limit: int | None) -> str:
    """The statement for what a search begins with; with a limit, one that looks for so many of the nearest."""
    owner = owner_of(scope)
    in_index = "false" if near_limit is None else looks_in_index(owner, near_limit)
    return (
        f"SELECT u.next_number, u.records, e.identity, e.dimension, {in_index} FROM (SELECT) AS o "
        f"LEFT JOIN users AS u ON u.owner = '{owner}' LEFT JOIN embedder AS e ON true"
    )


class _PostgresRequest(NamedTuple):
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
        parts.append(PostingPart(DENSE, *await all_cosines(db, request.owner, vector)))
    scores = total(parts, known.size or 0)
    best = await _best(request, scores, parts)
    why = why_of([hit.number for hit in best], parts, len(scores))
    return sorted((scored(from_row(hit.row), why[hit.number]) for hit in best), key=rank_key)


async def search_hybrid(
    db: Database, known: Known, scope: Scope, query: Query, *, near: int, now: datetime
) -> list[Hit]:
    """The best by words and the `near` best by vector, each with its cosine."""
    found, signals = await _both(_make_request(db, known, scope, query, now), near)
    return sorted((scored(from_row(row), why) for row, why in zip(found, whys(signals), strict=True)), key=rank_key)


async def search_columns(
    db: Database, known: Known, scope: Scope, query: Query, *, near: int, now: datetime
) -> HitColumns:
    """The hits of search_hybrid() in its order, as columns."""
    found, signals = await _both(_make_request(db, known, scope, query, now), near)
    if found:
        sums = np.zeros(len(found))
        for column in signals.values():
            sums += np.where(np.isnan(column), 0.0, column)
        order = best_first(sums, [row[0] for row in found])  # as rank_key() orders
        found, signals = [found[place] for place in order], {name: column[order] for name, column in signals.items()}
    return replace(hit_columns(found, signals, lambda place: from_row(found[place])), held=known.held)


async def _both(request: _PostgresRequest, near: int) -> tuple[list[Row], dict[str, Floats]]:
    """The rows of the best by words and of the `near` best by vector, and the column of each signal."""
    db, owner, known, query, *_ = request
    assert query.vector is not None
    vector, size = _vector(known, query.vector), known.size or 0
    nearest = nearest_by_index(owner, vector, near, known.dimension if known.in_index else None)
    parts, packed_near = await index.parts_and_nearest(db, owner, query.text, size, nearest)
    close = np.frombuffer(packed_near, _COSINES)
    by_words, by_vector = await _best_and_nearest(request, vector, near, parts, close)
    words = {hit.number for hit in by_words}
    found = [*by_words, *(hit for hit in by_vector if hit.number not in words)]
    signals = signals_of(np.asarray([hit.number for hit in by_words], np.int64), parts, size)
    rest = np.full(len(found) - len(by_words), np.nan)
    columns = {name: np.concatenate([column, rest]) for name, column in signals.items()}
    cosines = np.asarray([hit.cosine for hit in found], np.float64)
    if not np.isnan(cosines).all():
        columns[DENSE] = cosines
    return [hit.row for hit in found], columns


async def _best_and_nearest(
    request: _PostgresRequest, vector: Packed, near: int, parts: Sequence[PostingPart], nearest: NDArray[Any]
) -> tuple[list[_Found], list[_Found]]:
    """The best by words and the nearest, of those that may be returned: what both look at next is read at once."""
    scores, limit = total(parts, request.known.size or 0), request.query.limit
    numbers: list[int] = nearest["number"].tolist()
    cosines: list[float] = nearest["cosine"].tolist()
    found = np.flatnonzero(scores)
    groups = by_score(scores[found], limit + _TO_SPARE)
    rows: dict[int, _Found | None] = {}
    best: list[_Found] = []
    close: list[_Found] = []
    looked, is_sure = 0, not numbers
    while True:
        more: list[int] = found[next(groups, slice(0))].tolist() if len(best) < limit else []
        rest = [] if is_sure else numbers[looked : near + _TO_SPARE if not looked else None]
        if not more and not rest:
            break
        both = [number for number in dict.fromkeys([*more, *rest]) if number not in rows]
        rows |= dict.fromkeys(both) | {hit.number: hit for hit in await _read(request, both, vector)}
        best += [hit for number in more if (hit := rows[number]) is not None]
        close += [hit for number in rest if (hit := rows[number]) is not None]
        looked += len(rest)
        # Ids decide between those that are as near as the last: it must be nearer than all that were not read.
        is_all = looked == len(numbers) < candidates(near)
        least = None if is_all else cosines[min(looked, len(cosines) - 1)] if cosines else None
        is_sure = least is None or (len(close) >= near and (close[near - 1].cosine or 0.0) > least)
    best.sort(key=lambda hit: (-scores[hit.number], hit.row[0]))
    if not is_sure and (len(close) < near if request.known.in_index else True):
        return best[:limit], await _nearest(request, vector, near)
    close.sort(key=lambda hit: (-(hit.cosine or 0.0), hit.row[0]))
    return best[:limit], close[:near]


def _make_request(db: Database, known: Known, scope: Scope, query: Query, now: datetime) -> _PostgresRequest:
    shown = POSTGRES.shown(Condition(*seen(scope)), query, now)
    return _PostgresRequest(db, owner_of(scope), known, query, shown.sql, shown.values)


def _vector(known: Known, vector: Vector) -> Packed:
    return packed(direction(vector, known.dimension, "the vector of a query"))


async def _first(request: _PostgresRequest) -> list[Hit]:
    """The hits of a query without words or vector: the first by id."""
    db, _, _, query, shown, values = request
    fits = condition(query.where)
    sql = f"SELECT {SELECTED} FROM records AS r WHERE {shown} AND {fits.sql} ORDER BY r.id"
    first = fitting(db, sql, (*values, *fits.values), where=query.where, fits=fits, limit=query.limit)
    return [Hit(from_row(row), 0.0) async for row in first]


async def _nearest(request: _PostgresRequest, vector: Packed, limit: int) -> list[_Found]:
    """The nearest by vector, of those that may be returned."""
    in_index = request.known.in_index
    dimension = request.known.dimension if in_index else None
    hits, is_sure = await _near(request, nearest_by_index(request.owner, vector, limit, dimension), limit)
    if (len(hits) < limit) if in_index else not is_sure:
        hits, _ = await _near(request, nearest_by_index(request.owner, vector, None, None), limit)
    return hits


async def _near(
    request: _PostgresRequest, nearest: tuple[str, tuple[Any, ...]], limit: int
) -> tuple[list[_Found], bool]:
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
    is_sure = amount < candidates(limit) or (len(found) == limit and score > least)
    return [_Found(row, *row[-2:]) for row in found], is_sure


async def _best(
    request: _PostgresRequest, scores: Floats, parts: Sequence[PostingPart], vector: Packed | None = None
) -> list[_Found]:
    """The best that the parts speak for and that may be returned, best first: looks no further than it has to."""
    has_score = scores != 0
    for part in parts:
        if part.signal == DENSE:
            has_score[part.numbers] = True
    best: list[_Found] = []
    limit = request.query.limit
    found = np.flatnonzero(has_score)
    for places in by_score(scores[found], limit + _TO_SPARE):
        best += await _read(request, found[places].tolist(), vector)
        if len(best) >= limit:
            break
    best.sort(key=lambda hit: (-scores[hit.number], hit.row[0]))
    return best[:limit]


async def _read(request: _PostgresRequest, numbers: Sequence[int], vector: Packed | None) -> list[_Found]:
    """Those of these records that may be returned, with their cosines if there is a vector."""
    if not numbers:
        return []
    where, fits = request.query.where, condition(request.query.where)
    cosine, of_vector = ("NULL::float8", ()) if vector is None else (_COSINE, (vector, request.owner))
    sql = (
        f"SELECT r.*, t.number, {cosine} FROM unnest(%s::bigint[]) AS t (number) "
        f"CROSS JOIN LATERAL {_record(request, fits)}"
    )
    rows = await fetch(request.db, sql, *of_vector, bigints(numbers), *request.values, *fits.values)
    hits = [_Found(row, *row[-2:]) for row in rows]
    return hits if where is None or fits.exact else [hit for hit in hits if where.matches(from_row(hit.row))]


def _record(request: _PostgresRequest, fits: Condition) -> str:
    """The record of a number, if it may be returned."""
    of_number = f"r.number = t.number AND {request.shown} AND {fits.sql}"
    return f"(SELECT {SELECTED} FROM records AS r WHERE {of_number} OFFSET 0) AS r"


def _dense(hit: _Found) -> dict[str, float]:
    return {} if hit.cosine is None else {DENSE: hit.cosine}


# The type of vectors: pgvector's where the server has it, else plain arrays, compared one by one.
#
# pgvector is a package that an administrator installs and an extension that, on most servers, only a superuser may add
# to a database. A schema that was made without it has a type `vector` of its own, an array of numbers, and the one
# operator that searches need: every search is exact, and slower the more vectors a user has.

SLOWER = (
    "this database is without pgvector: vectors are compared one by one, which is exact and slow beyond some thousands "
    "for a user; let an administrator run `CREATE EXTENSION vector`, then `loom store init`"
)

_HEAD = 4
_EXTENSION = (
    "SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace "
    "WHERE e.extname = 'vector'"
)
_AVAILABLE = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
_PLAIN = (
    "SELECT 1 FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace "
    "WHERE t.typname = 'vector' AND t.typtype = 'd' AND n.nspname = %s"
)
_MAKE_PLAIN = """
CREATE DOMAIN vector AS real[];
CREATE FUNCTION negative_inner_product(real[], real[]) RETURNS float8 LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS 'SELECT -sum(t.a::float8 * t.b) FROM unnest($1, $2) AS t (a, b)';
CREATE OPERATOR <#> (LEFTARG = real[], RIGHTARG = real[], FUNCTION = negative_inner_product);
"""
_DROP_PLAIN = """
DROP OPERATOR <#> (real[], real[]);
DROP FUNCTION negative_inner_product(real[], real[]);
DROP DOMAIN vector;
"""


async def make_extension(db: Database) -> None:
    """Add pgvector to the database, where the server has it and the role that is connected may."""
    from psycopg import errors  # noqa: PLC0415

    if await one(db, _EXTENSION) is not None or await one(db, _AVAILABLE) is None:
        return
    try:
        async with db.transaction():
            await run(db, "CREATE EXTENSION IF NOT EXISTS vector")
    except errors.InsufficientPrivilege:
        return


async def is_plain(db: Database, schema: str) -> bool:
    """Whether a schema was made without pgvector."""
    return await one(db, _PLAIN, schema) is not None


async def schema_of(db: Database, schema: str, where: str) -> str:
    """The schema that the type `vector` of Loom's schema is in."""
    if await is_plain(db, schema):
        return schema
    found = await one(db, _EXTENSION)
    if found is None:
        raise StoreError(f"{where} has no extension `vector`; run `loom store init` as a role that may create it")
    return str(found[0])


async def settle(db: Database, schema: str, where: str) -> None:
    """Put the schema and the type of vectors on the path of the transaction; make the type where there is none.

    Plain vectors become pgvector's once the extension is there.
    """
    from psycopg import sql  # noqa: PLC0415

    extension = await one(db, _EXTENSION)
    plain = await is_plain(db, schema)
    path = [sql.Identifier(name) for name in (schema, *(extension or ()))]
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.SQL(", ").join(path)))
    has_tables = await one(db, "SELECT 1 WHERE to_regclass('vectors') IS NOT NULL")
    if extension is None and not plain:
        if has_tables:
            raise StoreError(f"{where} lost its extension `vector`, and the vectors with it; restore a copy")
        await run(db, _MAKE_PLAIN)
    elif extension is not None and plain and has_tables:
        real = sql.Identifier(extension[0], "vector")
        change = "ALTER TABLE vectors ALTER COLUMN data TYPE {} USING data::real[]::{}"
        await db.execute(sql.SQL(change).format(real, real))
        await run(db, _DROP_PLAIN)


async def take_plain(db: Database) -> None:
    """Teach a connection to send vectors as arrays."""
    from psycopg import adapt, pq  # noqa: PLC0415

    class PlainDumper(adapt.Dumper):
        format = pq.Format.BINARY

        def dump(self, obj: Packed) -> bytes:
            return packed_array(np.frombuffer(obj, ">f4", offset=_HEAD))

    await take_packed(db)
    db.adapters.register_dumper(PackedVector, PlainDumper)
