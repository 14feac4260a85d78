"""Vectors in Qdrant: one collection, in which every call names its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np

from loom.core.checks import check_text
from loom.core.filter import Filter
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit, VectorItem
from loom.stores.qdrant.client import MEMORY, QdrantCalls
from loom.stores.vector_entries import (
    ID,
    NAMESPACE,
    SESSION,
    TENANT,
    USER,
    Binding,
    Found,
    Wanted,
    check_binding,
    check_embedder,
    checked_query,
    checked_rows,
    entry_id,
    entry_of,
    fields_of,
    nearest,
    tenant_of,
    wanted_by,
)

_PAGE = 500
_RESIDUE = "numbers of removed vectors may stand in the files of Qdrant at {where} until it writes over them"
_IDENTITY, _DIMENSION = "loom_embedder", "loom_dimension"


class QdrantVectorStore:
    """Keeps vectors in one collection of Qdrant, found by cosine among those of one user.

    `where` is the URL of a server, a folder for the engine inside the client, or `:memory:`. The engine inside the
    client compares with every vector, in Python, and syncs its folder to disk vector by vector: it is for thousands of
    vectors. A folder belongs to one process at a time. A server has an index for each user and answers by it when a
    user has many vectors (by Qdrant's `full_scan_threshold`, 10 MB of them); fewer are compared exactly.
    """

    def __init__(
        self,
        where: str | PathLike[str] = MEMORY,
        *,
        collection: str = "loom",
        api_key: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        check_text(fspath(where), "the place of a Qdrant store")
        check_text(collection, "the name of a collection")
        self._calls = QdrantCalls(fspath(where), api_key=api_key, timeout=timeout)
        self._collection = collection
        self._known: Binding | None = None

    # -- whose vectors these are --------------------------------------------------------------------------

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        check_embedder(identity, dimension)
        known = await self._binding() or await self._create(identity, dimension)
        check_binding(known, identity, dimension)
        if known[0] is None:
            about = {_IDENTITY: identity, _DIMENSION: dimension}
            await self._calls("update_collection", collection_name=self._collection, metadata=about)
            self._known = (identity, dimension)

    @property
    def residue(self) -> str:
        """What may stay of removed vectors in the files of the engine, in words."""
        return "" if self._calls.where == MEMORY else _RESIDUE.format(where=self._calls.where)

    async def bound(self) -> tuple[str, int] | None:
        """The embedder and dimension of the vectors, as they are now."""
        self._known = None
        known = await self._binding()
        return None if known is None or known[0] is None else (known[0], known[1])

    async def clear(self) -> None:
        """Remove the vectors of everybody, and whose they were."""
        self._known = None
        if await self._calls("collection_exists", collection_name=self._collection):
            await self._calls("delete_collection", collection_name=self._collection)

    async def _binding(self) -> Binding | None:
        if self._known is None and await self._calls("collection_exists", collection_name=self._collection):
            found = await self._calls("get_collection", collection_name=self._collection)
            about: dict[str, Any] = found.config.metadata or {}
            if _DIMENSION not in about:
                raise StoreError(f"the collection {self._collection!r} is not one of Loom's; name another")
            self._known = (about.get(_IDENTITY), int(about[_DIMENSION]))
        return self._known

    async def _create(self, identity: str | None, dimension: int) -> Binding:
        from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

        about = {_DIMENSION: dimension} | ({_IDENTITY: identity} if identity is not None else {})
        try:
            await self._calls(
                "create_collection",
                collection_name=self._collection,
                vectors_config=models.VectorParams(size=dimension, distance=models.Distance.COSINE),
                # An index for each user, and none over all of them, as every search is one of a user.
                hnsw_config=models.HnswConfigDiff(m=0, payload_m=16),
                metadata=about,
            )
            await self._index_fields(models)
        except StoreError:
            if await self._binding() is None:  # nobody else made it at the same moment
                raise
        known = await self._binding()
        assert known is not None
        return known

    async def _index_fields(self, models: Any) -> None:
        if not self._calls.is_server:
            return  # the engine inside the client has no such index
        for key in (TENANT, SESSION, ID):
            kind = models.KeywordIndexParams(type="keyword", is_tenant=key == TENANT)
            await self._calls(
                "create_payload_index", collection_name=self._collection, field_name=key, field_schema=kind
            )

    # -- vectors ------------------------------------------------------------------------------------------

    async def upsert(self, scope: Scope, items: Sequence[VectorItem]) -> None:
        """Add vectors, or replace those with the same id."""
        known = await self._binding()
        rows = checked_rows(items, known)
        if rows:
            if known is None:
                await self._create(None, len(next(iter(rows.values()))[1]))
            await self._write(scope, rows)

    async def _write(self, scope: Scope, rows: Mapping[str, tuple[VectorItem, list[float]]]) -> None:
        from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

        if scope.session_id is None:
            # A scope without a session sees the sessions of its user, so it replaces there too.
            in_sessions = self._filter(scope, [Wanted(ID, tuple(rows))])
            in_sessions.must_not = [models.IsEmptyCondition(is_empty=models.PayloadField(key=SESSION))]
            await self._delete(in_sessions)
        whose = {TENANT: tenant_of(scope), NAMESPACE: scope.namespace, USER: scope.user_id}
        points = [
            models.PointStruct(id=entry_id(scope, item.id), vector=row, payload=whose | fields_of(scope, item))
            for item, row in rows.values()
        ]
        await self._calls("upsert", collection_name=self._collection, points=points, wait=True)

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors, nearest first."""
        known = await self._binding()
        asked = checked_query(vector, known)

        async def ask(size: int, wanted: Sequence[Wanted]) -> Found:
            if known is None:
                return Found((), is_all=True)
            fits = self._filter(scope, wanted)
            found = await self._calls(
                "query_points", collection_name=self._collection, query=asked, query_filter=fits, limit=size
            )
            entries = [entry_of(point.payload, point.score) for point in found.points]
            return Found(entries, is_all=len(entries) < size)

        return await nearest(ask, scope, limit=limit, where=where)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove vectors; returns how many were there."""
        if not ids or await self._binding() is None:
            return 0
        return await self._delete(self._filter(scope, [*wanted_by(scope, None), Wanted(ID, tuple(set(ids)))]))

    async def count(self, scope: Scope) -> int:
        """How many vectors there are."""
        if await self._binding() is None:
            return 0
        return await self._count(self._filter(scope, wanted_by(scope, None)))

    async def forget(self, scope: Scope) -> int:
        """Remove all vectors of the scope; returns how many."""
        if await self._binding() is None:
            return 0
        return await self._delete(self._filter(scope, wanted_by(scope, None)))

    async def ids(self, scope: Scope) -> tuple[str, ...]:
        """The ids of the scope's vectors."""
        found = await self._scroll(self._filter(scope, wanted_by(scope, None)))
        return tuple(point.payload[ID] for point in found)

    async def vectors(self, scope: Scope, *ids: str) -> Mapping[str, Vector]:
        """The directions of those of these vectors that are there."""
        if not ids:
            return {}
        fits = self._filter(scope, [*wanted_by(scope, None), Wanted(ID, ids)])
        found = await self._scroll(fits, with_vectors=True)
        return {point.payload[ID]: np.asarray(point.vector, np.float32).tolist() for point in found}

    async def users(self) -> tuple[Scope, ...]:
        """Everybody who has vectors."""
        found = {(point.payload[NAMESPACE], point.payload[USER]) for point in await self._scroll(None)}
        return tuple(Scope(namespace, user_id) for namespace, user_id in sorted(found))

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        await self._calls.aclose()

    # -- calls --------------------------------------------------------------------------------------------

    def _filter(self, scope: Scope, wanted: Sequence[Wanted]) -> Any:
        """The condition of every call: the user first, then what is wanted of his."""
        from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

        conditions = [Wanted(TENANT, (tenant_of(scope),)), *wanted]
        return models.Filter(
            must=[models.FieldCondition(key=key, match=models.MatchAny(any=list(values))) for key, values in conditions]
        )

    async def _count(self, fits: Any) -> int:
        found = await self._calls("count", collection_name=self._collection, count_filter=fits, exact=True)
        return int(found.count)

    async def _delete(self, fits: Any) -> int:
        from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

        count = await self._count(fits)
        if count:
            selected = models.FilterSelector(filter=fits)
            await self._calls("delete", collection_name=self._collection, points_selector=selected, wait=True)
        return count

    async def _scroll(self, fits: Any, *, with_vectors: bool = False) -> list[Any]:
        if await self._binding() is None:
            return []
        found: list[Any] = []
        offset: Any = None
        while True:
            page, offset = await self._calls(
                "scroll", collection_name=self._collection, scroll_filter=fits, limit=_PAGE, offset=offset,
                with_vectors=with_vectors, with_payload=True,
            )  # fmt: skip
            found += page
            if offset is None:
                return found
