"""A door to the embedders, which live with the other providers.

Each name is loaded from its home when it is first asked for.
"""

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
