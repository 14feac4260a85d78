"""The vectors of records: whose they are, setting, handing over and exchanging them."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from loom.core.filter import Filter
from loom.core.record import Record
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, NotFound, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import FoundBy
from loom.stores.inmemory.shelf import unit_vector
from loom.stores.postgres.connection import one, rows, run, run_many
from loom.stores.postgres.owners import owner_of, seen
from loom.stores.postgres.records import fitting, numbers_of
from loom.stores.postgres.where import condition
from loom.stores.record_rows import SELECTED

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

DENSE = "dense"
SCALE = 10**6
"""What differs past this many parts of a cosine is rounding."""
COSINE = f"round(-(v.data <#> %s::vector) * {SCALE}) / {SCALE}"

_SET = (
    "INSERT INTO vectors (owner, number, data) VALUES (%s, %s, %s::vector) "
    "ON CONFLICT (owner, number) DO UPDATE SET data = excluded.data"
)


async def bind(db: Database, identity: str, dimension: int) -> None:
    """Fix whose vectors the schema holds."""
    await run(db, "INSERT INTO embedder (identity, dimension) VALUES (%s, %s) ON CONFLICT DO NOTHING",
              identity, dimension)  # fmt: skip
    bound = await binding(db)
    if bound is not None and bound != (identity, dimension):
        raise EmbedderMismatch(_spoken(*bound), _spoken(identity, dimension))


async def binding(db: Database, *, hold: bool = False) -> tuple[str, int] | None:
    """The embedder and dimension, None before bind(); `hold` keeps rebind() waiting until the transaction ends."""
    found = await one(db, f"SELECT identity, dimension FROM embedder{' FOR SHARE' if hold else ''}")
    return None if found is None else (found[0], found[1])


async def direction(db: Database, vector: Vector, what: str) -> tuple[int, str]:
    """The dimension of this schema's vectors and the direction of one as text; refuses one that does not fit."""
    size = _dimension(await binding(db))
    return size, _text(vector, size, what)


async def cosines_of(db: Database, scope: Scope, vector: Vector, ids: Sequence[str]) -> dict[str, float]:
    """How near each of these records is to a vector, of those that the scope sees and that have one."""
    if not ids:
        return {}
    _, unit = await direction(db, vector, "the vector of a query")
    sql, values = seen(scope)
    joined = "records AS r JOIN vectors AS v ON v.owner = r.owner AND v.number = r.number"
    found = await rows(
        db, f"SELECT r.id, {COSINE} FROM {joined} WHERE {sql} AND r.id = ANY(%s)", unit, *values, list(ids)
    )
    return dict(found)


async def put_vectors(db: Database, scope: Scope, vectors: Mapping[str, Vector]) -> None:
    """Set the vectors of records."""
    size = _dimension(await binding(db, hold=True))
    units = {id: _text(vector, size, f"the vector of {id}") for id, vector in vectors.items()}
    numbers = await numbers_of(db, scope, units)
    for id in units:
        if id not in numbers:
            raise NotFound(f"there is no record {id!r} to give a vector to; put it first")
    owner = owner_of(scope)
    await run_many(db, _SET, [(owner, numbers[id], unit) for id, unit in units.items()])


async def rebind(db: Database, identity: str, dimension: int) -> bool:
    """Take this embedder's vectors from now on and let go of those of any other; False where it is bound to it."""
    await run(db, "LOCK TABLE embedder IN EXCLUSIVE MODE")
    if await binding(db) == (identity, dimension):
        return False
    await run(db, "DELETE FROM embedder")
    await bind(db, identity, dimension)
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
    async for record, row in fitting(db, sql, (*start, *fits.values), where=where, fits=fits, limit=limit):
        yield Scope(row[-2], row[-1]), record


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


def _dimension(bound: tuple[str, int] | None) -> int:
    if bound is None:
        raise UsageError("nobody said whose vectors these are; call bind(identity, dimension) first")
    return bound[1]


def _text(vector: Vector, dimension: int, what: str) -> str:
    """The direction of a vector, written as pgvector reads it: far quicker to send than a list of numbers."""
    return f"[{','.join(map(repr, unit_vector(vector, dimension, what)))}]"


def _spoken(identity: str, size: int) -> str:
    return f"{identity} ({size} numbers)"
