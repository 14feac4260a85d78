"""Vectors in Qdrant: one collection for all users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath

from loom.core.checks import check_text
from loom.core.filter import Filter
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit, VectorItem
from loom.stores._vector_entries import (
    ID,
    NAMESPACE,
    PAYLOAD,
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
from loom.stores.qdrant.connection import MEMORY, ClientCollection, EdgeCollection, Fits, Point, QdrantCalls

_EDGE = "edge:"
_RESIDUE = (
    "numbers and ids of removed vectors may stand in the files of Qdrant at {where} until it writes over them; clear() "
    "removes the files, and verify(repair=True) builds them again from the primary store"
)
_IDENTITY, _DIMENSION = "loom_embedder", "loom_dimension"


class QdrantVectorStore:
    """Keeps vectors in one collection of Qdrant, found by cosine among those of one user.

    `url` is that of a server, `edge:FOLDER` for the embedded engine of Qdrant, a folder for the engine inside the
    client, or `:memory:`. A folder belongs to one store at a time, in one process.

    - A server has an index for each user and answers by it when a user has many vectors (by Qdrant's
      `full_scan_threshold`, 10 MB of them); fewer are compared exactly.
    - The embedded engine compares with every vector of the user. A write survives a killed process; a power cut may
      take writes since the store was opened, as the engine forces them to disk when it is closed.
    - The engine inside the client compares with every vector, in Python, and forces each one to disk by itself: it is
      for thousands of vectors.
    """

    def __init__(
        self,
        url: str | PathLike[str] = MEMORY,
        *,
        collection: str = "loom",
        api_key: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        place = fspath(url)
        check_text(place.removeprefix(_EDGE), "the URL of a Qdrant store")
        check_text(collection, "the name of a collection")
        self._collection = collection
        self._engine = (
            EdgeCollection(place, collection)
            if place.startswith(_EDGE)
            else ClientCollection(QdrantCalls(place, api_key=api_key, timeout=timeout), collection)
        )
        self._known: Binding | None = None

    # -- whose vectors these are --------------------------------------------------------------------------

    async def bind(self, identity: str, dimension: int) -> None:
        """Name the embedder that the vectors come from; the same again changes nothing."""
        check_embedder(identity, dimension)
        known = await self._binding() or await self._create(identity, dimension)
        check_binding(known, identity, dimension)
        if known[0] is None:
            about = {_IDENTITY: identity, _DIMENSION: dimension}
            await self._engine.write_about(about)
            self._known = (identity, dimension)

    @property
    def place(self) -> str:
        """The engine and where it is."""
        return f"Qdrant at {self._engine.where}"

    @property
    def residue(self) -> str:
        """What may stay of removed vectors in the files of the engine, in words."""
        return "" if self._engine.where == MEMORY else _RESIDUE.format(where=self._engine.where)

    async def bound(self) -> tuple[str, int] | None:
        """The embedder and dimension of the vectors, as they are now."""
        self._known = None
        known = await self._binding()
        return None if known is None or known[0] is None else (known[0], known[1])

    async def clear(self) -> None:
        """Remove the vectors of all users, and the name of their embedder."""
        self._known = None
        await self._engine.drop()

    async def _binding(self) -> Binding | None:
        if self._known is None:
            about = await self._engine.about()
            if about is not None and _DIMENSION not in about:
                raise StoreError(f"the collection {self._collection!r} is not one of Loom's; name another")
            self._known = None if about is None else (about.get(_IDENTITY), int(about[_DIMENSION]))
        return self._known

    async def _create(self, identity: str | None, dimension: int) -> Binding:
        about = {_DIMENSION: dimension} | ({_IDENTITY: identity} if identity is not None else {})
        try:
            await self._engine.create(about, dimension)
        except (StoreError, ValueError):  # the engine inside the client says ValueError
            if await self._binding() is None:  # otherwise another process made it at the same moment
                raise
        known = await self._binding()
        assert known is not None
        return known

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
        if scope.session_id is None:
            # A scope without a session sees the sessions of its user, so it replaces there too.
            await self._delete(Fits(_of(scope, [Wanted(ID, tuple(rows))]), in_session=True))
        whose = {TENANT: tenant_of(scope), NAMESPACE: scope.namespace, USER: scope.user_id}
        await self._engine.upsert(
            [Point(entry_id(scope, item.id), whose | fields_of(scope, item), row) for item, row in rows.values()]
        )

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors, nearest first."""
        known = await self._binding()
        query = checked_query(vector, known)

        async def ask(size: int, wanted: Sequence[Wanted]) -> Found:
            if known is None:
                return Found((), is_all=True)
            found = await self._engine.nearest(query, Fits(_of(scope, wanted)), size)
            return Found([entry_of(one.fields, one.score) for one in found], is_all=len(found) < size)

        return await nearest(ask, scope, limit=limit, where=where)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove vectors; returns how many were there."""
        if not ids or await self._binding() is None:
            return 0
        return await self._delete(Fits(_of(scope, [*wanted_by(scope, None), Wanted(ID, tuple(set(ids)))])))

    async def count(self, scope: Scope) -> int:
        """How many vectors there are."""
        if await self._binding() is None:
            return 0
        return await self._engine.count(Fits(_of(scope, wanted_by(scope, None))))

    async def forget(self, scope: Scope) -> int:
        """Remove all vectors of the scope; returns how many."""
        if await self._binding() is None:
            return 0
        return await self._delete(Fits(_of(scope, wanted_by(scope, None))))

    async def ids(self, scope: Scope) -> tuple[str, ...]:
        """The ids of the scope's vectors."""
        if await self._binding() is None:
            return ()
        found = await self._engine.points(Fits(_of(scope, wanted_by(scope, None))), fields=(ID,))
        return tuple(point.fields[ID] for point in found)

    async def payloads(self, scope: Scope, *ids: str) -> Mapping[str, str]:
        """The payloads of those of these vectors that have one, by id."""
        if not ids or await self._binding() is None:
            return {}
        fits = Fits(_of(scope, [*wanted_by(scope, None), Wanted(ID, ids)]))
        found = await self._engine.points(fits, fields=(ID, PAYLOAD))
        return {point.fields[ID]: point.fields[PAYLOAD] for point in found if PAYLOAD in point.fields}

    async def vectors(self, scope: Scope, *ids: str) -> Mapping[str, Vector]:
        """The directions of those of these vectors that are there."""
        if not ids or await self._binding() is None:
            return {}
        fits = Fits(_of(scope, [*wanted_by(scope, None), Wanted(ID, ids)]))
        return {point.fields[ID]: point.vector for point in await self._engine.points(fits, with_vectors=True)}

    async def users(self) -> tuple[Scope, ...]:
        """All users who have vectors."""
        if await self._binding() is None:
            return ()
        found = {(point.fields[NAMESPACE], point.fields[USER]) for point in await self._engine.points(None)}
        return tuple(Scope(namespace, user_id) for namespace, user_id in sorted(found))

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        await self._engine.aclose()

    async def _delete(self, fits: Fits) -> int:
        count = await self._engine.count(fits)
        if count:
            await self._engine.delete(fits)
        return count


def _of(scope: Scope, wanted: Sequence[Wanted]) -> list[Wanted]:
    """The condition of every call: the user first, then what is wanted of theirs."""
    return [Wanted(TENANT, (tenant_of(scope),)), *wanted]
