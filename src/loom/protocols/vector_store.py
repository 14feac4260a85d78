"""Keeping vectors and finding the nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from loom.core.checks import check_id, check_text
from loom.core.filter import Filter
from loom.core.record import Scalar, checked_attributes
from loom.core.scope import Scope
from loom.protocols.embedder import Vector


@dataclass(frozen=True, slots=True)
class VectorItem:
    """A vector under an id, with attributes to filter by (`meta.NAME`).

    `payload` is a text that is kept beside it and that no search looks at; see KeepsPayloads.
    """

    id: str
    vector: Vector = field(repr=False, compare=False)
    attributes: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar], hash=False)
    payload: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a vector")
        check_text(self.payload, f"the payload of vector {self.id}", may_be_empty=True)
        object.__setattr__(self, "attributes", checked_attributes(self.attributes))


@dataclass(frozen=True, slots=True)
class VectorHit:
    """A vector that was found; `score` is the cosine, from -1 to 1."""

    id: str
    score: float
    attributes: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar], hash=False)


@runtime_checkable
class VectorStore(Protocol):
    """Keeps vectors and finds the nearest by cosine.

    Laws:
    - bind() fixes embedder and dimension, or the first upsert() fixes the dimension; another identity raises
      EmbedderMismatch, another dimension UsageError; a NaN, an infinity or a zero vector is refused;
    - up to 1,000 vectors the answer is exact: the same as comparing with each;
    - scaling a vector changes no answer; equal scores are ordered by id;
    - upsert() replaces by id, all or nothing; what was deleted is never found again;
    - the filter comes before the limit: `limit` hits whenever so many fit;
    - scopes never meet; a scope without a session sees the sessions of its user.
    """

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        ...

    async def upsert(self, scope: Scope, items: Sequence[VectorItem]) -> None:
        """Add vectors, or replace those with the same id."""
        ...

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors, nearest first."""
        ...

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove vectors; returns how many were there."""
        ...

    async def count(self, scope: Scope) -> int:
        """How many vectors there are."""
        ...

    async def forget(self, scope: Scope) -> int:
        """Remove all vectors of the scope; returns how many."""
        ...

    async def aclose(self) -> None:
        """Release the store. Closing twice is allowed."""
        ...


@runtime_checkable
class KeepsPayloads(Protocol):
    """A vector store that gives back which vectors it holds, and the text beside each.

    Laws:
    - ids() names exactly the vectors that count() counts;
    - payloads() gives the text of the newest upsert(), and nothing of a vector that has none or is not there;
    - a payload lives and dies with its vector.
    """

    async def ids(self, scope: Scope) -> tuple[str, ...]:
        """The ids of the scope's vectors."""
        ...

    async def payloads(self, scope: Scope, *ids: str) -> Mapping[str, str]:
        """The payloads of those of these vectors that have one, by id."""
        ...
