"""Choosing an embedder by name; the local one is the default. A hashing embedder for tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from loom.errors import UsageError
from loom.protocols.embedder import Embedder
from loom.providers.embedding._checks import EmbedsBatches, checked_texts

if TYPE_CHECKING:
    from loom.protocols.embedder import Purpose, Vector

DEFAULT = "wordllama"
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


def _wordllama() -> Embedder:
    from loom.providers.embedding.local import WordLlamaEmbedder  # noqa: PLC0415

    return WordLlamaEmbedder()


def _minilm() -> Embedder:
    from loom.providers.embedding.local import MiniLmEmbedder  # noqa: PLC0415

    return MiniLmEmbedder()


def _hash() -> Embedder:

    return HashEmbedder()


BUILT_IN: dict[str, OpensEmbedder] = {
    "openai": partial(_openai, "text-embedding-3-small"),
    "openai-large": partial(_openai, "text-embedding-3-large"),
    DEFAULT: _wordllama,
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
        raise UsageError(f"there is no embedder {setting!r}; use one of {', '.join(known)}, or give an instance")
    embedder = opens()
    leaves = "; texts go to OpenAI" if setting.startswith("openai") else ""
    return Picked(embedder, f"embedding with {embedder.identity}, because embedder={setting!r} was configured{leaves}")


def local_embedder(identity: str) -> Embedder | None:
    """The embedder of an identity, such as a store names, if it runs on this machine and is installed; else None."""
    name, _, rest = identity.partition(" ")[0].partition(":")
    try:
        match name:
            case "hash":
                found: Embedder = HashEmbedder(int(rest.rpartition(":")[2]))
            case "wordllama" | "minilm":
                found = BUILT_IN[name]()
            case _:
                return None
    except (UsageError, ValueError):
        return None
    return found if found.identity == f"{name}:{rest}" else None


# An embedder for tests: hashed words and letter triples, with no model behind it.

_VERSION = 1
_MAX_CHARACTERS = 16_384
_WORD = re.compile(r"\w+")
_TRIPLE_WEIGHT = 0.3


class HashEmbedder(EmbedsBatches):
    """Embeds by hashing words and letter triples. For tests: it knows spelling, not meaning.

    The same text gives the same vector in every process and on every machine.
    """

    __slots__ = ("_dimension",)

    def __init__(self, dimension: int = 256) -> None:
        if dimension < 1:
            raise UsageError(f"dimension={dimension} is not a size; give 1 or more")
        self._dimension = dimension

    @property
    def identity(self) -> str:
        """`hash:VERSION:DIMENSION`."""
        return f"hash:{_VERSION}:{self._dimension}"

    @property
    def dimension(self) -> int:
        """As given."""
        return self._dimension

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector of length 1 for each text."""
        return [self._embed(text) for text in checked_texts(texts, purpose)]

    def _embed(self, text: str) -> Vector:
        folded = text[:_MAX_CHARACTERS].casefold()
        vector = [0.0] * self._dimension
        for feature, count in Counter(_features(folded)).items():
            place, sign = self._slot(feature)
            weight = _TRIPLE_WEIGHT if feature.startswith("3:") else 1.0
            vector[place] += sign * weight * sqrt(count)
        if not any(vector):
            # No word at all, or features that cancel each other out: the text as a whole still has a place.
            vector[self._slot(f"all:{folded}")[0]] = 1.0
        length = sqrt(sum(number * number for number in vector))
        return [number / length for number in vector]

    def _slot(self, feature: str) -> tuple[int, int]:
        number = int.from_bytes(blake2b(feature.encode(errors="replace"), digest_size=8).digest(), "big")
        return (number >> 1) % self._dimension, 1 if number & 1 else -1


def _features(folded: str) -> Iterator[str]:
    for word in _WORD.findall(folded):
        yield f"w:{word}"
        framed = f" {word} "
        for start in range(len(framed) - 2):
            yield f"3:{framed[start : start + 3]}"
