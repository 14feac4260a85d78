"""A door to the embedders, which live with the other providers.

Each name is loaded from its home when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "HashEmbedder": "loom.providers.embedding.hashing",
    "MiniLmEmbedder": "loom.providers.embedding.minilm",
    "OpenAIEmbedder": "loom.providers.embedding.openai",
    "WordLlamaEmbedder": "loom.providers.embedding.wordllama",
    "pick_embedder": "loom.providers.embedding.auto",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
