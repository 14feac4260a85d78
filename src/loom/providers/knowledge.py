"""A door to the knowledge bases, which live in loom.knowledge.

Each name is loaded from its home when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "GraphKnowledgeBase": "loom.knowledge.graph",
    "InMemoryKnowledgeBase": "loom.knowledge.in_memory",
    "KnowledgeItem": "loom.knowledge.document",
    "VectorKnowledgeBase": "loom.knowledge.vector",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
