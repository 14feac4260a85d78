"""The vectors of records: their embedder, writing, reading and replacing them."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping
from struct import Struct
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from loom.core.filter import Filter
from loom.core.record import Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import FoundBy
from loom.stores.base import Bound
from loom.stores.postgres.connection import Packed, PackedVector, Row, fetch, one, rows, run
from loom.stores.postgres.owners import owner_of, seen
from loom.stores.postgres.records import fitting, numbers_of
from loom.stores.postgres.where import condition
from loom.stores.postings import Floats, Numbers
from loom.stores.record_rows import SELECTED, from_row
from loom.stores.user_records import no_record, unit_vector

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

DENSE = "dense"
SCALE = 10**6
"""What differs past this many parts of a cosine is rounding."""
COSINE = f"round(-(v.data <#> %s::vector) * {SCALE}) / {SCALE}"
# All numbers of all vectors come in one array, which is cut here.
_SET = (
    "INSERT INTO vectors (owner, number, data) "
    "SELECT %s, n.number, a.data[(n.place - 1) * %s + 1 : n.place * %s]::vector "
    "FROM unnest(%b::bigint[]) WITH ORDINALITY AS n (number, place), (SELECT %s::real[]) AS a (data) "
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


async def binding(db: Database, *, hold: bool = False) -> Bound | None:
    """The embedder and dimension, None before bind(); `hold` keeps rebind() waiting until the transaction ends."""
    return bound_of(await one(db, BOUND + (" FOR SHARE" if hold else "")))


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


async def put_vectors(db: Database, scope: Scope, vectors: Mapping[str, Vector]) -> None:
    """Set the vectors of records."""
    bound = await binding(db, hold=True)
    size = bound[1] if bound else None
    units = {id: direction(vector, size, f"the vector of {id}") for id, vector in vectors.items()}
    numbers = await numbers_of(db, scope, units)
    for id in units:
        if id not in numbers:
            raise no_record(id, "a vector")
    if units:
        all_numbers = packed_array(np.concatenate(list(units.values())))
        await run(db, _SET, owner_of(scope), size, size, [numbers[id] for id in units], all_numbers)


async def rebind(db: Database, old: Bound | None, new: Bound) -> bool:
    """Bind the schema to another embedder and remove all vectors; False where it is not bound to `old`."""
    await run(db, "LOCK TABLE embedder IN EXCLUSIVE MODE")
    if await binding(db) != old:
        return False
    await run(db, "DELETE FROM embedder")
    await run(db, "INSERT INTO embedder (identity, dimension) VALUES (%s, %s)", *new)
    await run(db, "DELETE FROM vectors")
    return True


async def unembedded(
    db: Database, where: Filter | None, after: tuple[Scope, str] | None, limit: int | None
) -> AsyncGenerator[tuple[Scope, Record]]:
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


async def found_by(db: Database, scope: Scope, ids: Iterable[str]) -> dict[str, FoundBy]:
    """The keys and the vector of each of these records that the scope sees."""
    sql, values = seen(scope)
    records = await rows(
        db,
        "SELECT r.id, r.number, v.data::real[] FROM records AS r LEFT JOIN vectors AS v "
        f"ON v.owner = r.owner AND v.number = r.number WHERE {sql} AND r.id = ANY(%s)",
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
    return {id: FoundBy(keys[number], data) for id, number, data in records}
