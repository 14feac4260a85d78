"""Which embedder to use: the one that was named, else the best that needs no question."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

from loom.errors import UsageError
from loom.protocols.embedder import Embedder

NAMES = ("openai", "openai-large", "wordllama", "minilm", "hash")
"""The embedders that can be named."""

_KEY = "OPENAI_API_KEY"


class Picked(NamedTuple):
    """An embedder, and one line that says which and why."""

    embedder: Embedder
    why: str


def pick_embedder(setting: str | Embedder | None = None, *, environ: Mapping[str, str] | None = None) -> Picked:
    """The embedder for a setting: a name, an instance, or None (or "auto") for the automatic pick.

    The automatic pick is OpenAI where OPENAI_API_KEY is set and its SDK is installed, else wordllama.
    `environ` stands in for the process environment.
    """
    if setting is None or setting == "auto":
        return _automatic(os.environ if environ is None else environ)
    if not isinstance(setting, str):
        if not isinstance(setting, Embedder):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{setting!r} is not an embedder; give an Embedder or one of {', '.join(NAMES)}")
        return Picked(setting, f"embedding with {setting.identity}, the embedder that was given")
    embedder = _named(setting)
    return Picked(embedder, f"embedding with {embedder.identity}, because embedder={setting!r} was configured")


def _automatic(environ: Mapping[str, str]) -> Picked:
    key = environ.get(_KEY, "").strip()
    if key and find_spec("openai") is not None:
        embedder = _openai("text-embedding-3-small", key)
        return Picked(embedder, f"embedding with {embedder.identity}, because {_KEY} is set; texts go to OpenAI")
    reason = "the OpenAI SDK is not installed" if key else f"{_KEY} is not set"
    embedder = _named("wordllama")
    return Picked(embedder, f"embedding with {embedder.identity} on this machine, because {reason}")


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


def _openai(model: str, key: str | None = None) -> Embedder:
    from loom.providers.embedding.openai import OpenAIEmbeddingProvider  # noqa: PLC0415

    return OpenAIEmbeddingProvider(model, api_key=key)
