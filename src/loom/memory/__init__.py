"""Memory: what an agent should know next time, in four layers, with facts that have a history.

The memories by the name of what keeps them are put together by the engine, and loaded when they are first asked for.
"""

from __future__ import annotations

from loom.core.doors import door

_HOMES: dict[str, str] = dict.fromkeys(
    ("ChromaMemory", "CompositeMemory", "PostgresMemory", "QdrantMemory", "RedisMemory", "SqliteMemory"),
    "loom.engine.memories",
)

__getattr__, __dir__ = door(__name__, _HOMES)
