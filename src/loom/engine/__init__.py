"""The composition root: the only place that chooses backends."""

from loom.engine._blocking import SyncMemory, SyncSession, open_memory_sync
from loom.engine.open import open_checkpoints, open_memory

__all__ = ["SyncMemory", "SyncSession", "open_checkpoints", "open_memory", "open_memory_sync"]
