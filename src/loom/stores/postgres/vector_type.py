"""The type of vectors: pgvector's where the server has it, else plain arrays, compared one by one.

pgvector is a package that an administrator installs and an extension that, on most servers, only a superuser may add
to a database. A schema that was made without it has a type `vector` of its own, an array of numbers, and the one
operator that searches need: every search is exact, and slower the more vectors a user has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loom.errors import StoreError
from loom.stores.postgres.connection import Packed, PackedVector, one, run, take_packed
from loom.stores.postgres.vectors import packed_array

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

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
