"""The composition root: the only place that chooses backends."""

from loom.engine.open import open_checkpoints, open_memory
from loom.engine.sync import SyncMemory, SyncSession, open_memory_sync

__all__ = ["SyncMemory", "SyncSession", "open_checkpoints", "open_memory", "open_memory_sync"]
