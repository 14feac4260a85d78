"""The composition root: the only place that chooses backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.engine._blocking import SyncMemory, SyncSession, open_memory_sync
    from loom.engine.open import open_checkpoints, open_memory

__all__ = ["SyncMemory", "SyncSession", "open_checkpoints", "open_memory", "open_memory_sync"]

__getattr__, __dir__ = door(
    __name__,
    {
        **dict.fromkeys(("SyncMemory", "SyncSession", "open_memory_sync"), "loom.engine._blocking"),
        **dict.fromkeys(("open_checkpoints", "open_memory"), "loom.engine.open"),
    },
)
