"""A memory store in one SQLite file: the embedded default."""

from loom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
