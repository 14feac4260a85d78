"""InMemoryVectorStore, imported from the stores on first use."""

from __future__ import annotations

from loom.core.doors import door

__getattr__, __dir__ = door(__name__, {"InMemoryVectorStore": "loom.stores.inmemory.vectors"})
