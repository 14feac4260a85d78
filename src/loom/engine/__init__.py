"""The composition root: the only place that chooses backends."""

from loom.engine.checkpoints import open_checkpoints
from loom.engine.open import open_memory
from loom.engine.sync import SyncMemory, open_memory_sync

__all__ = ["SyncMemory", "open_checkpoints", "open_memory", "open_memory_sync"]
