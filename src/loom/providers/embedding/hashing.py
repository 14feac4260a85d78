"""An embedder for tests: hashed words and letter triples, with no model behind it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from math import sqrt
from typing import TYPE_CHECKING

from loom.errors import UsageError
from loom.providers.embedding.checks import EmbedsBatches, checked_texts

if TYPE_CHECKING:
    from loom.protocols.embedder import Purpose, Vector

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
