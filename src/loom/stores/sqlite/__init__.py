"""Memory and checkpoints in one SQLite file: the embedded default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.sqlite.checkpoints import SqliteCheckpointStore
    from loom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteCheckpointStore", "SqliteStore"]

__getattr__, __dir__ = door(
    __name__,
    {
        "SqliteCheckpointStore": "loom.stores.sqlite.checkpoints",
        "SqliteStore": "loom.stores.sqlite.store",
    },
)
