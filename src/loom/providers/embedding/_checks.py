"""The checks that embedders share: texts that can be embedded, and vectors that are worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from loom.errors import BadResponse, UsageError
from loom.protocols.embedder import Purpose

if TYPE_CHECKING:
    from loom.protocols.embedder import Vector

_PURPOSES = get_args(Purpose)


class EmbedsBatches:
    """`embed_batch`, the other name that embed() has for many documents."""

    __slots__ = ()

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector for each text."""
        raise NotImplementedError(f"{type(self).__name__} has to say how it embeds")

    async def embed_batch(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector for each text: the same as embed()."""
        return await self.embed(texts, purpose=purpose)


def checked_texts(texts: Sequence[str], purpose: Purpose) -> list[str]:
    """The texts as a list; refuses what is not text, an empty one, and an unknown purpose."""
    if isinstance(texts, str):
        raise UsageError(f"embed() was given one text ({texts[:40]!r}); give a list of texts")
    if purpose not in _PURPOSES:
        raise UsageError(f"the purpose {purpose!r} is not known; use one of {', '.join(_PURPOSES)}")
    for place, text in enumerate(texts):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"text {place} to embed is a {type(text).__name__}; give text")
        if not text.strip():
            raise UsageError(f"text {place} to embed is empty; leave it out")
    return list(texts)


def cut_bytes(text: str, limit: int) -> str:
    """The longest beginning of `text` that takes at most `limit` bytes of UTF-8, on a character's edge."""
    # Half a surrogate pair has no UTF-8 form; every embedder sees the replacement mark instead.
    encoded = text.encode(errors="replace")
    return encoded[:limit].decode(errors="ignore")


def checked_vectors(vectors: Sequence[Vector], *, count: int, dimension: int, who: str) -> Sequence[Vector]:
    """The vectors; raises BadResponse unless there is one for each text, with finite numbers that are not all zero."""
    import numpy as np  # noqa: PLC0415  (only needed once there is something to check)

    if len(vectors) != count:
        raise BadResponse(f"{who} gave {len(vectors)} vectors for {count} texts; check the model and the service")
    for place, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise BadResponse(
                f"{who} gave {len(vector)} numbers for text {place}, {dimension} were expected; "
                f"set dimension={len(vector)} if that is what the model gives"
            )
        numbers = np.asarray(vector, dtype=np.float64)
        if not np.isfinite(numbers).all() or not numbers.any():
            raise BadResponse(f"{who} gave a vector with NaN, an infinity or only zeros for text {place}; try again")
    return vectors
