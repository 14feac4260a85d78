"""Memory and checkpoints in Postgres with pgvector: many users and processes, one server. Needs psycopg."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.postgres.checkpoints import PostgresCheckpointStore
    from loom.stores.postgres.schema import init_schema
    from loom.stores.postgres.store import PostgresStore, sweep_schema

__all__ = ["PostgresCheckpointStore", "PostgresStore", "init_schema", "sweep_schema"]

__getattr__, __dir__ = door(
    __name__,
    {
        "PostgresCheckpointStore": "loom.stores.postgres.checkpoints",
        "PostgresStore": "loom.stores.postgres.store",
        "init_schema": "loom.stores.postgres.schema",
        "sweep_schema": "loom.stores.postgres.store",
    },
)
