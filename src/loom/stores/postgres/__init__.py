"""Memory in Postgres with pgvector: many users, many processes, one server. Needs psycopg and its pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.postgres.schema import init_schema
    from loom.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore", "init_schema"]

__getattr__, __dir__ = door(
    __name__,
    {
        "PostgresStore": "loom.stores.postgres.store",
        "init_schema": "loom.stores.postgres.schema",
    },
)
