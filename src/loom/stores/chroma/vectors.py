"""Vectors in Chroma: a collection for each user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from os import PathLike, fspath
from typing import Any

import numpy as np

from loom.core.checks import check_text
from loom.core.filter import Filter
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit, VectorItem
from loom.stores.chroma.client import MEMORY, ChromaCalls
from loom.stores.vector_entries import (
    ID,
    NAMESPACE,
    PAYLOAD,
    USER,
    Binding,
    Entry,
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
_EXACT = 1000
_IDENTITY, _DIMENSION = "embedder", "dimension"
_COSINE = {"hnsw": {"space": "cosine"}}
_RESIDUE = (
    "numbers and ids of removed vectors may stand in the files of Chroma at {where}, some even after `chroma vacuum`; "
    "its data deleted and built again from the truth (`loom store verify --repair`) holds none"
)
_stores = count(1)


class ChromaVectorStore:
    """Keeps vectors in Chroma, a collection for each user, found by cosine.

    `where` is the URL of a server, a folder, or `:memory:`. Up to 1,000 vectors of a user are compared exactly; of
    more, Chroma's index chooses, which may miss one. A folder belongs to one process at a time; a server is for
    several. `headers` go to a server with every request, which takes `timeout` seconds at the most.
    """

    def __init__(
        self,
        where: str | PathLike[str] = MEMORY,
        *,
        prefix: str = "loom",
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        check_text(fspath(where), "the place of a Chroma store")
        check_text(prefix, "the prefix of collections")
        self._calls = ChromaCalls(fspath(where), headers=dict(headers) if headers else None, timeout=timeout)
        # All clients in memory of one process see the same collections.
        self._prefix = f"{prefix}-{next(_stores)}" if self._calls.where == MEMORY else prefix
        self._known: Binding | None = None
        self._large: dict[str, Any] = {}  # collections that hold too many to compare exactly, as far as is known here

    # -- whose vectors these are --------------------------------------------------------------------------

    async def bind(self, identity: str, dimension: int) -> None:
        """Name the embedder that the vectors come from; the same again changes nothing."""
        check_embedder(identity, dimension)
        known = await self._binding()
        if known is not None:
            check_binding(known, identity, dimension)
        if known is None or known[0] is None:
            await self._write_binding((identity, dimension))

    async def bound(self) -> tuple[str, int] | None:
        """The embedder and dimension of the vectors, as they are now."""
        self._known = None
        known = await self._binding()
        return None if known is None or known[0] is None else (known[0], known[1])

    @property
    def place(self) -> str:
        """The engine and where it is."""
        return f"Chroma at {self._calls.where}"

    @property
    def residue(self) -> str:
        """What may stay of removed vectors in the files of the engine, in words."""
        return "" if self._calls.where == MEMORY else _RESIDUE.format(where=self._calls.where)

    async def clear(self) -> None:
        """Remove the vectors of all users, and the name of their embedder."""
        await self._calls(self._remove_all)
        self._known = None

    async def _binding(self) -> Binding | None:
        if self._known is None:
            about = await self._calls(self._about)
            self._known = None if about is None else (about.get(_IDENTITY), int(about[_DIMENSION]))
        return self._known

    async def _write_binding(self, bound: Binding) -> None:
        about = {name: value for name, value in ((_IDENTITY, bound[0]), (_DIMENSION, bound[1])) if value is not None}
        await self._calls(self._write_about, about)
        self._known = bound

    # -- vectors ------------------------------------------------------------------------------------------

    async def upsert(self, scope: Scope, items: Sequence[VectorItem]) -> None:
        """Add vectors, or replace those with the same id; all or nothing for as many as Chroma takes at once."""
        known = await self._binding()
        rows = checked_rows(items, known)
        if rows:
            if known is None:
                await self._write_binding((None, len(next(iter(rows.values()))[1])))
            await self._calls(self._write, scope, rows)

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors, nearest first."""
        query = checked_query(vector, await self._binding())

        async def ask(size: int, wanted: Sequence[Wanted]) -> Found:
            return await self._calls(self._nearest, scope, query, size, wanted)

        return await nearest(ask, scope, limit=limit, where=where)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove vectors; returns how many were there."""
        return await self._calls(self._delete, scope, ids)

    async def count(self, scope: Scope) -> int:
        """How many vectors there are."""
        return len(await self.ids(scope)) if scope.session_id is not None else await self._calls(self._count, scope)

    async def forget(self, scope: Scope) -> int:
        """Remove all vectors of the scope; returns how many."""
        if scope.session_id is not None:
            return await self.delete(scope, *await self.ids(scope))
        return await self._calls(self._remove, scope)

    async def ids(self, scope: Scope) -> tuple[str, ...]:
        """The ids of the scope's vectors."""
        return await self._calls(self._ids, scope)

    async def vectors(self, scope: Scope, *ids: str) -> Mapping[str, Vector]:
        """The directions of those of these vectors that are there."""
        return await self._calls(self._vectors, scope, ids)

    async def payloads(self, scope: Scope, *ids: str) -> Mapping[str, str]:
        """The payloads of those of these vectors that have one, by id."""
        return await self._calls(self._payloads, scope, ids)

    async def users(self) -> tuple[Scope, ...]:
        """All users who have vectors."""
        return await self._calls(self._users)

    async def aclose(self) -> None:
        """Release the client; what was kept in memory is gone. Closing twice is allowed."""
        if self._calls.where == MEMORY and not self._calls.is_closed:
            await self.clear()
        await self._calls.aclose()

    # -- with the client, in a worker thread --------------------------------------------------------------

    def _about(self, client: Any) -> dict[str, Any] | None:
        found = _collection(client, self._binding_name)
        return None if found is None else dict(found.metadata)

    def _write_about(self, client: Any, about: dict[str, Any]) -> None:
        found = client.get_or_create_collection(self._binding_name, embedding_function=None, metadata=about)
        found.modify(metadata=about)

    def _write(self, client: Any, scope: Scope, rows: Mapping[str, tuple[VectorItem, list[float]]]) -> None:
        about = {NAMESPACE: scope.namespace, USER: scope.user_id}
        collection = client.get_or_create_collection(
            self._name(scope), embedding_function=None, metadata=about, configuration=_COSINE
        )
        if scope.session_id is None:
            # A scope without a session sees the sessions of its user, so it replaces there too.
            mine = {entry_id(scope, id) for id in rows}
            _delete(collection, [key for key, _ in _found(collection, tuple(rows)) if key not in mine])
        given = list(rows.values())
        for start in range(0, len(given), client.get_max_batch_size()):
            page = given[start : start + client.get_max_batch_size()]
            collection.upsert(
                ids=[entry_id(scope, item.id) for item, _ in page],
                embeddings=[row for _, row in page],
                # Chroma keeps the fields that are not given again; None takes one away.
                metadatas=[{PAYLOAD: None, **fields_of(scope, item)} for item, _ in page],
            )

    def _nearest(self, client: Any, scope: Scope, query: list[float], size: int, wanted: Sequence[Wanted]) -> Found:
        where = _where(wanted)
        if where is None and (found := self._of_large(scope, query, size)):
            return Found(found, is_all=False)
        collection = _collection(client, self._name(scope))
        held = 0 if collection is None else collection.count()
        if not held:
            return Found((), is_all=True)
        if held <= _EXACT:
            # The index gives all when it is asked for so many, and what it gives it compares exactly.
            found = [] if where else _first_of_all(collection, query, held, size)
            return Found(found, size >= held) if found else Found(_compared(collection, query, where), is_all=True)
        self._large[self._name(scope)] = collection
        found = _query(collection, query, min(size, held), where)
        if len(found) < min(size, held) and where is not None:
            # Few fit, and the index finds few of few: these are compared one by one.
            return Found(_compared(collection, query, where), is_all=True)
        return Found(found, is_all=size >= held)

    def _of_large(self, scope: Scope, query: list[float], size: int) -> list[Entry]:
        """So many of the nearest in a collection that is known to be large, in one call; nothing if it is not any more.

        Others may have removed it, or most of what it held.
        """
        from chromadb.errors import NotFoundError  # noqa: PLC0415 - it is loaded by now

        collection = self._large.get(self._name(scope))
        if collection is None:
            return []
        try:
            found = _query(collection, query, size)
        except NotFoundError:
            found = []
        if len(found) < size:
            self._large.pop(self._name(scope), None)
            return []
        return found

    def _delete(self, client: Any, scope: Scope, ids: Sequence[str]) -> int:
        self._large.pop(self._name(scope), None)
        collection = _collection(client, self._name(scope))
        if collection is None:
            return 0
        return _delete(collection, [key for key, _ in _found(collection, ids, wanted_by(scope, None))])

    def _count(self, client: Any, scope: Scope) -> int:
        collection = _collection(client, self._name(scope))
        return 0 if collection is None else int(collection.count())

    def _remove(self, client: Any, scope: Scope) -> int:
        self._large.pop(self._name(scope), None)
        held = self._count(client, scope)
        if _collection(client, self._name(scope)) is not None:
            client.delete_collection(self._name(scope))
        return held

    def _remove_all(self, client: Any) -> None:
        self._large.clear()
        for collection in [*self._collections(client), _collection(client, self._binding_name)]:
            if collection is not None:
                client.delete_collection(collection.name)

    def _ids(self, client: Any, scope: Scope) -> tuple[str, ...]:
        collection = _collection(client, self._name(scope))
        if collection is None:
            return ()
        found = collection.get(where=_where(wanted_by(scope, None)), include=["metadatas"])
        return tuple(fields[ID] for fields in found["metadatas"])

    def _vectors(self, client: Any, scope: Scope, ids: Sequence[str]) -> dict[str, Vector]:
        collection = _collection(client, self._name(scope))
        if collection is None:
            return {}
        found = _found(collection, ids, wanted_by(scope, None), include="embeddings")
        keys = {entry_id(scope, id): id for id in ids}
        return {keys[key]: vector.tolist() for key, vector in found if key in keys}

    def _payloads(self, client: Any, scope: Scope, ids: Sequence[str]) -> dict[str, str]:
        collection = _collection(client, self._name(scope))
        found = () if collection is None else _found(collection, ids, wanted_by(scope, None))
        return {fields[ID]: fields[PAYLOAD] for _, fields in found if fields.get(PAYLOAD)}

    def _users(self, client: Any) -> tuple[Scope, ...]:
        about = [one.metadata for one in self._collections(client) if one.count()]
        found = [(each[NAMESPACE], each[USER]) for each in about]
        return tuple(Scope(namespace, user_id) for namespace, user_id in sorted(found))

    def _collections(self, client: Any) -> list[Any]:
        found: list[Any] = []
        while page := client.list_collections(limit=_PAGE, offset=len(found)):
            found += page
        return [one for one in found if one.name.startswith(f"{self._prefix}-user-")]

    def _name(self, scope: Scope) -> str:
        return f"{self._prefix}-user-{tenant_of(scope)}"

    @property
    def _binding_name(self) -> str:
        return f"{self._prefix}-binding"


def _collection(client: Any, name: str) -> Any:
    from chromadb.errors import NotFoundError  # noqa: PLC0415 - it is loaded by now

    try:
        return client.get_collection(name, embedding_function=None)
    except NotFoundError:
        return None


def _where(wanted: Sequence[Wanted]) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = [{key: {"$in": list(values)}} for key, values in wanted]
    return {"$and": conditions} if len(conditions) > 1 else next(iter(conditions), None)


def _query(collection: Any, query: list[float], size: int, where: dict[str, Any] | None = None) -> list[Entry]:
    found = collection.query(query_embeddings=[query], n_results=size, where=where, include=["metadatas", "distances"])
    pairs = zip(found["metadatas"][0], found["distances"][0], strict=True)
    return [entry_of(fields, 1.0 - distance) for fields, distance in pairs]


def _first_of_all(collection: Any, query: list[float], held: int, size: int) -> list[Entry]:
    """The nearest of all that are held, of which alone the fields are read; nothing if the index does not give all."""
    found = collection.query(query_embeddings=[query], n_results=held, include=["distances"])
    keys, distances = found["ids"][0][:size], found["distances"][0]
    if len(distances) < held:
        return []
    read = collection.get(ids=keys, include=["metadatas"])
    fields = dict(zip(read["ids"], read["metadatas"], strict=True))
    return [entry_of(fields[key], 1.0 - distances[place]) for place, key in enumerate(keys) if key in fields]


def _compared(collection: Any, query: list[float], where: dict[str, Any] | None) -> list[Entry]:
    """All entries that fit, nearest first, compared one by one."""
    found = collection.get(where=where, include=["metadatas", "embeddings"])
    scores = np.asarray(found["embeddings"], np.float64).reshape(-1, len(query)) @ np.asarray(query)
    entries = [entry_of(fields, score) for fields, score in zip(found["metadatas"], scores.tolist(), strict=True)]
    return sorted(entries, key=lambda entry: -entry.score)


def _found(
    collection: Any, ids: Sequence[str], wanted: Sequence[Wanted] = (), *, include: str = "metadatas"
) -> Iterator[tuple[str, Any]]:
    """The engine's ids of these entries, each with its fields or its vector."""
    for start in range(0, len(ids), _PAGE):
        where = _where([*wanted, Wanted(ID, tuple(ids[start : start + _PAGE]))])
        found = collection.get(where=where, include=[include])
        yield from zip(found["ids"], found[include], strict=True)


def _delete(collection: Any, keys: Sequence[str]) -> int:
    for start in range(0, len(keys), _PAGE):
        collection.delete(ids=list(keys[start : start + _PAGE]))
    return len(keys)
