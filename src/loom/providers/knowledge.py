"""A door to the knowledge bases, which live in loom.knowledge.

Each name is loaded from its home when it is first asked for.
"""

from __future__ import annotations

from loom.core.doors import door

_HOMES = {
    "Document": "loom.protocols.knowledge_base",
    "GraphKnowledgeBase": "loom.knowledge.graph",
    "InMemoryKnowledgeBase": "loom.knowledge.in_memory",
    "KnowledgeItem": "loom.knowledge.document",
    "VectorKnowledgeBase": "loom.knowledge.vector",
}

__getattr__, __dir__ = door(__name__, _HOMES)
