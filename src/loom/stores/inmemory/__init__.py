"""Memory and checkpoints in the process's own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
    from loom.stores.inmemory.store import InMemoryStore

__all__ = ["InMemoryStore", "MemoryCheckpointStore"]

__getattr__, __dir__ = door(
    __name__,
    {
        "InMemoryStore": "loom.stores.inmemory.store",
        "MemoryCheckpointStore": "loom.stores.inmemory.checkpoints",
    },
)
