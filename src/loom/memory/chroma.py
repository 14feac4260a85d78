"""ChromaMemory, imported from the engine on first use."""

from __future__ import annotations

from loom.core.doors import door

__getattr__, __dir__ = door(__name__, {"ChromaMemory": "loom.engine.open"})
