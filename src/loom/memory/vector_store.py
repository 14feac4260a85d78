"""A door to the vector store in memory, which lives with the other stores.

Each name is loaded from its home when it is first asked for.
"""

from __future__ import annotations

from loom.core.doors import door

_HOMES = {"InMemoryVectorStore": "loom.stores.inmemory.vectors"}

__getattr__, __dir__ = door(__name__, _HOMES)
