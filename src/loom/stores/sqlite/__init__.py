"""Memory and checkpoints in one SQLite file: the embedded default."""

from loom.stores.sqlite.checkpoints import SqliteCheckpointStore
from loom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteCheckpointStore", "SqliteStore"]
