"""A door to memory with Chroma, which is put together by the engine.

Each name is loaded from its home when it is first asked for.
"""

from __future__ import annotations

from loom.core.doors import door

_HOMES = {"ChromaMemory": "loom.engine.memories"}

__getattr__, __dir__ = door(__name__, _HOMES)
