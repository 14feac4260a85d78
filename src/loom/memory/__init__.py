"""Long-term memory of an agent, in four layers, with facts that have a history.

The memory classes named after their backend are imported from the engine on first use.
"""

from __future__ import annotations

from loom.core.doors import door

_HOMES: dict[str, str] = {
    "ContextCompressor": "loom.memory._upkeep.summaries",
    **dict.fromkeys(
        ("ChromaMemory", "CompositeMemory", "PostgresMemory", "QdrantMemory", "RedisMemory", "SqliteMemory"),
        "loom.engine.open",
    ),
}

__getattr__, __dir__ = door(__name__, _HOMES)
