"""The embedders, each imported from its provider module on first use."""

from __future__ import annotations

from loom.core.doors import door

_HOMES = {
    "HashEmbedder": "loom.providers.embedding.hashing",
    "MiniLmEmbedder": "loom.providers.embedding.minilm",
    "OpenAIEmbedder": "loom.providers.embedding.openai",
    "WordLlamaEmbedder": "loom.providers.embedding.wordllama",
    "pick_embedder": "loom.providers.embedding.auto",
}

__getattr__, __dir__ = door(__name__, _HOMES)
