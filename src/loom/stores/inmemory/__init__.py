"""Memory and checkpoints in the process's own memory."""

from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.stores.inmemory.store import InMemoryStore

__all__ = ["InMemoryStore", "MemoryCheckpointStore"]
