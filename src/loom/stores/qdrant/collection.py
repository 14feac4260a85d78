"""A collection of a Qdrant server, or of the engine inside Qdrant's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loom.stores.qdrant.client import QdrantCalls
from loom.stores.qdrant.engine import INDEXED, Fits, Near, Point
from loom.stores.vector_entries import SESSION, TENANT

_PAGE = 500


class ClientCollection:
    """A collection by its name, through the client of Qdrant."""

    def __init__(self, calls: QdrantCalls, name: str) -> None:
        self._calls = calls
        self._name = name

    @property
    def where(self) -> str:
        """The place of the engine."""
        return self._calls.where

    async def about(self) -> Mapping[str, Any] | None:
        """What was written about the collection."""
        if not await self._calls("collection_exists", collection_name=self._name):
            return None
        found = await self._calls("get_collection", collection_name=self._name)
        return found.config.metadata or {}

    async def create(self, about: Mapping[str, Any], dimension: int) -> None:
        """Make the collection, and on a server the indexes of its fields."""
        from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

        await self._calls(
            "create_collection",
            collection_name=self._name,
            vectors_config=models.VectorParams(size=dimension, distance=models.Distance.COSINE),
            # An index for each user, and none over all of them, as every search is one of a user.
            hnsw_config=models.HnswConfigDiff(m=0, payload_m=16),
            metadata=dict(about),
        )
        if self._calls.is_server:  # the engine inside the client has no such index
            for key in INDEXED:
                kind = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=key == TENANT)
                await self._calls("create_payload_index", collection_name=self._name, field_name=key, field_schema=kind)

    async def write_about(self, about: Mapping[str, Any]) -> None:
        """Write about the collection anew."""
        await self._calls("update_collection", collection_name=self._name, metadata=dict(about))

    async def drop(self) -> None:
        """Remove the collection, if it is there."""
        if await self._calls("collection_exists", collection_name=self._name):
            await self._calls("delete_collection", collection_name=self._name)

    async def upsert(self, points: Sequence[Point]) -> None:
        """Add points, or replace those with the same id."""
        from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

        given = [models.PointStruct(id=one.id, vector=list(one.vector), payload=dict(one.fields)) for one in points]
        await self._calls("upsert", collection_name=self._name, points=given, wait=True)

    async def nearest(self, query: Sequence[float], fits: Fits, size: int) -> list[Near]:
        """So many of the nearest points that fit, nearest first."""
        found = await self._calls(
            "query_points", collection_name=self._name, query=list(query), query_filter=_filter(fits), limit=size
        )
        return [Near(one.payload, one.score) for one in found.points]

    async def count(self, fits: Fits) -> int:
        """How many points fit."""
        found = await self._calls("count", collection_name=self._name, count_filter=_filter(fits), exact=True)
        return int(found.count)

    async def delete(self, fits: Fits) -> None:
        """Remove the points that fit."""
        from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

        selected = models.FilterSelector(filter=_filter(fits))
        await self._calls("delete", collection_name=self._name, points_selector=selected, wait=True)

    async def points(
        self, fits: Fits | None, *, with_vectors: bool = False, fields: Sequence[str] | None = None
    ) -> list[Point]:
        """All points that fit, page by page."""
        found: list[Any] = []
        offset: Any = None
        while True:
            page, offset = await self._calls(
                "scroll", collection_name=self._name, scroll_filter=None if fits is None else _filter(fits),
                limit=_PAGE, offset=offset, with_vectors=with_vectors,
                with_payload=True if fields is None else list(fields),
            )  # fmt: skip
            found += page
            if offset is None:
                return [_point(one) for one in found]

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        await self._calls.aclose()


def _point(found: Any) -> Point:
    return Point(str(found.id), found.payload, () if found.vector is None else np.asarray(found.vector).tolist())


def _filter(fits: Fits) -> Any:
    from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

    must = [models.FieldCondition(key=key, match=models.MatchAny(any=list(values))) for key, values in fits.wanted]
    is_out = models.IsEmptyCondition(is_empty=models.PayloadField(key=SESSION))
    return models.Filter(must=[*must], must_not=[is_out] if fits.in_session else None)
