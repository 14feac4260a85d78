"""The port of a Qdrant engine: the calls that the vector store makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from loom.stores.vector_entries import ID, SESSION, TENANT, Wanted

INDEXED = (TENANT, SESSION, ID)
"""The fields that an engine finds points by."""


class Point(NamedTuple):
    """A vector with the fields beside it; `vector` where that was asked for."""

    id: str
    fields: Mapping[str, Any]
    vector: Sequence[float] = ()


class Near(NamedTuple):
    """The fields of a point that was found by nearness, and how near it is."""

    fields: Mapping[str, Any]
    score: float


class Fits(NamedTuple):
    """Which points: those with all of these values, and with `in_session` only those of any session."""

    wanted: Sequence[Wanted]
    in_session: bool = False


class Engine(Protocol):
    """One collection of points in an engine. Connected at the first call."""

    @property
    def where(self) -> str:
        """The place of the engine, as it was given."""
        ...

    async def about(self) -> Mapping[str, Any] | None:
        """What was written about the collection; None without a collection, empty where nothing was written."""
        ...

    async def create(self, about: Mapping[str, Any], dimension: int) -> None:
        """Make the collection, with what is to be known about it."""
        ...

    async def write_about(self, about: Mapping[str, Any]) -> None:
        """Write about the collection anew."""
        ...

    async def drop(self) -> None:
        """Remove the collection, if it is there."""
        ...

    async def upsert(self, points: Sequence[Point]) -> None:
        """Add points, or replace those with the same id."""
        ...

    async def nearest(self, query: Sequence[float], fits: Fits, size: int) -> list[Near]:
        """So many of the nearest points that fit, nearest first."""
        ...

    async def count(self, fits: Fits) -> int:
        """How many points fit."""
        ...

    async def delete(self, fits: Fits) -> None:
        """Remove the points that fit."""
        ...

    async def points(
        self, fits: Fits | None, *, with_vectors: bool = False, fields: Sequence[str] | None = None
    ) -> list[Point]:
        """All points that fit, all there are without a condition; with these fields alone, if they are named."""
        ...

    async def aclose(self) -> None:
        """Release the engine. Closing twice is allowed."""
        ...
