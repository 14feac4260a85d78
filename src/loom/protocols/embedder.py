"""Turning text into vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Purpose: TypeAlias = Literal["query", "document"]


class Vector(Protocol):
    """Numbers in order: a list, a tuple, an array, a row of a matrix."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[float]: ...


@runtime_checkable
class Embedder(Protocol):
    """Gives texts a place in a vector space.

    Laws:
    - deterministic, also across processes; a batch gives what its texts give one by one;
    - every vector has `dimension` finite numbers; one vector for each text, in order; no texts, no vectors;
    - `purpose` is honoured where the model tells queries from documents;
    - `identity` changes whenever the output would;
    - a text too long is cut, not refused; an empty text is refused with UsageError;
    - a failure raises a ProviderError and never returns zeros.

    With an attribute `is_instant`, which is True, it says that it takes no time worth waiting for: its vectors are then
    written with the texts, and those of any other embedder after them.
    """

    @property
    def identity(self) -> str:
        """Name, version and dimension, such as `static:4:256`; stored beside the vectors."""
        ...

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        ...

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Sequence[Vector]:
        """One vector for each text."""
        ...
