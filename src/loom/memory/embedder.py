"""The embedders, each imported from its provider module on first use."""

from __future__ import annotations

from loom.core.doors import door

_HOMES = {
    "HashEmbedder": "loom.providers.embedding.local",
    "MiniLmEmbedder": "loom.providers.embedding.local",
    "OpenAIEmbedder": "loom.providers.embedding.openai",
    "StaticEmbedder": "loom.providers.embedding.local",
    "WordLlamaEmbedder": "loom.providers.embedding.local",
    "pick_embedder": "loom.providers.embedding.choose",
}

__getattr__, __dir__ = door(__name__, _HOMES)
