"""Which embedder to use: the one that was named, else one on this machine. No text leaves it unless that was asked."""

from __future__ import annotations

from typing import NamedTuple

from loom.errors import UsageError
from loom.protocols.embedder import Embedder

NAMES = ("openai", "openai-large", "wordllama", "minilm", "hash")
"""The embedders that can be named."""

DEFAULT = "wordllama"
"""The one that is used where none is named."""


class Picked(NamedTuple):
    """An embedder, and one line that says which and why."""

    embedder: Embedder
    why: str


def pick_embedder(setting: str | Embedder | None = None) -> Picked:
    """The embedder for a setting: a name, an instance, or None (or "auto") for the one on this machine."""
    if setting is None or setting == "auto":
        embedder = _named(DEFAULT)
        return Picked(embedder, f"embedding with {embedder.identity} on this machine, because no other was named")
    if not isinstance(setting, str):
        if not isinstance(setting, Embedder):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{setting!r} is not an embedder; give an Embedder or one of {', '.join(NAMES)}")
        return Picked(setting, f"embedding with {setting.identity}, the embedder that was given")
    embedder = _named(setting)
    leaves = "; texts go to OpenAI" if setting.startswith("openai") else ""
    return Picked(embedder, f"embedding with {embedder.identity}, because embedder={setting!r} was configured{leaves}")


def local_embedder(identity: str) -> Embedder | None:
    """The embedder of an identity, such as a store names, if it runs on this machine and is installed; else None."""
    name, _, rest = identity.partition(" ")[0].partition(":")
    try:
        match name:
            case "hash":
                from loom.providers.embedding.hashing import HashEmbedder  # noqa: PLC0415

                found: Embedder = HashEmbedder(int(rest.rpartition(":")[2]))
            case "wordllama" | "minilm":
                found = _named(name)
            case _:
                return None
    except (UsageError, ValueError):
        return None
    return found if found.identity == f"{name}:{rest}" else None


def _named(name: str) -> Embedder:
    match name:
        case "openai":
            return _openai("text-embedding-3-small")
        case "openai-large":
            return _openai("text-embedding-3-large")
        case "wordllama":
            from loom.providers.embedding.wordllama import WordLlamaEmbedder  # noqa: PLC0415

            return WordLlamaEmbedder()
        case "minilm":
            from loom.providers.embedding.minilm import MiniLmEmbedder  # noqa: PLC0415

            return MiniLmEmbedder()
        case "hash":
            from loom.providers.embedding.hashing import HashEmbedder  # noqa: PLC0415

            return HashEmbedder()
        case _:
            raise UsageError(f"there is no embedder {name!r}; use one of {', '.join(NAMES)}, or give an instance")


def _openai(model: str) -> Embedder:
    from loom.providers.embedding.openai import OpenAIEmbeddingProvider  # noqa: PLC0415

    return OpenAIEmbeddingProvider(model)
