"""Choosing an embedder by name; the local one is the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from loom.core.checks import did_you_mean
from loom.errors import UsageError
from loom.protocols.embedder import Embedder

if TYPE_CHECKING:
    pass

DEFAULT = "static"
"""The one that is used where none is named."""


class Picked(NamedTuple):
    """An embedder, and one line that says which and why."""

    embedder: Embedder
    why: str


OpensEmbedder: TypeAlias = Callable[[], Embedder]
"""Makes the embedder of a name."""


def _openai(model: str) -> Embedder:
    from loom.providers.embedding.openai import OpenAIEmbeddingProvider  # noqa: PLC0415

    return OpenAIEmbeddingProvider(model)


def _static() -> Embedder:
    from loom.providers.embedding.local import StaticEmbedder  # noqa: PLC0415

    return StaticEmbedder()


def _wordllama() -> Embedder:
    from loom.providers.embedding.local import WordLlamaEmbedder  # noqa: PLC0415

    return WordLlamaEmbedder()


def _minilm() -> Embedder:
    from loom.providers.embedding.local import MiniLmEmbedder  # noqa: PLC0415

    return MiniLmEmbedder()


def _hash() -> Embedder:

    from loom.providers.embedding.local import HashEmbedder  # noqa: PLC0415

    return HashEmbedder()


BUILT_IN: dict[str, OpensEmbedder] = {
    "openai": partial(_openai, "text-embedding-3-small"),
    "openai-large": partial(_openai, "text-embedding-3-large"),
    DEFAULT: _static,
    "wordllama": _wordllama,
    "minilm": _minilm,
    "hash": _hash,
}
"""The embedders that can be named; the engine knows those of installed packages beside them."""


def pick_embedder(setting: str | Embedder | None = None, known: Mapping[str, OpensEmbedder] = BUILT_IN) -> Picked:
    """The embedder for a setting: a name, an instance, or None (or "auto") for the one on this machine."""
    if setting is None or setting == "auto":
        embedder = BUILT_IN[DEFAULT]()
        return Picked(embedder, f"embedding with {embedder.identity} on this machine, because no other was named")
    if not isinstance(setting, str):
        if not isinstance(setting, Embedder):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{setting!r} is not an embedder; give an Embedder or one of {', '.join(known)}")
        return Picked(setting, f"embedding with {setting.identity}, the embedder that was given")
    opens = known.get(setting)
    if opens is None:
        hint = did_you_mean(setting, known)
        raise UsageError(f"there is no embedder {setting!r}; use one of {', '.join(known)}, or give an instance{hint}")
    embedder = opens()
    leaves = "; texts go to OpenAI" if setting.startswith("openai") else ""
    return Picked(embedder, f"embedding with {embedder.identity}, because embedder={setting!r} was configured{leaves}")


def local_embedder(identity: str) -> Embedder | None:
    """The embedder of an identity, such as a store names, if it runs on this machine and is installed; else None."""
    name, _, rest = identity.partition(" ")[0].partition(":")
    try:
        match name:
            case "hash":
                from loom.providers.embedding.local import HashEmbedder  # noqa: PLC0415

                found: Embedder = HashEmbedder(int(rest.rpartition(":")[2]))
            case "static" | "wordllama" | "minilm":
                found = BUILT_IN[name]()
            case _:
                return None
    except (UsageError, ValueError):
        return None
    return found if found.identity == f"{name}:{rest}" else None
