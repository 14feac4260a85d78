"""Memory and checkpoints in Postgres with pgvector: many users and processes, one server. Needs psycopg."""

from loom.stores.postgres.checkpoints import PostgresCheckpointStore
from loom.stores.postgres.schema import init_schema
from loom.stores.postgres.store import PostgresStore, sweep_schema

__all__ = ["PostgresCheckpointStore", "PostgresStore", "init_schema", "sweep_schema"]
