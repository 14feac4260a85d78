"""Knowledge bases: documents split into passages, searched by words, by vectors and along relations.

Each name is imported from its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door
from loom.protocols.knowledge_base import Document

if TYPE_CHECKING:
    from loom.knowledge.document import KnowledgeItem
    from loom.knowledge.graph import GraphKnowledgeBase
    from loom.knowledge.in_memory import InMemoryKnowledgeBase
    from loom.knowledge.loaders import Loaded, load_file, load_folder
    from loom.knowledge.vector import VectorKnowledgeBase

_HOMES = {
    "GraphKnowledgeBase": "loom.knowledge.graph",
    "InMemoryKnowledgeBase": "loom.knowledge.in_memory",
    "KnowledgeItem": "loom.knowledge.document",
    "Loaded": "loom.knowledge.loaders",
    "VectorKnowledgeBase": "loom.knowledge.vector",
    "load_file": "loom.knowledge.loaders",
    "load_folder": "loom.knowledge.loaders",
}

__all__ = [
    "Document",
    "GraphKnowledgeBase",
    "InMemoryKnowledgeBase",
    "KnowledgeItem",
    "Loaded",
    "VectorKnowledgeBase",
    "load_file",
    "load_folder",
]

__getattr__, __dir__ = door(__name__, _HOMES)
