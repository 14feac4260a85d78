"""Vectors in Chroma: in memory, in a folder, or on a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
from typing import Any, TextIO, TypeVar
from urllib.parse import urlsplit

import numpy as np
from anyio import to_thread

from loom.core.checks import check_text
from loom.core.filter import Filter
from loom.core.scope import Scope
from loom.core.threads import renew_lock_after_fork
from loom.errors import LoomError, MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit, VectorItem
from loom.stores._vector_entries import (
    ID,
    NAMESPACE,
    PAYLOAD,
    USER,
    Binding,
    Found,
    VectorEntry,
    Wanted,
    check_binding,
    check_embedder,
    checked_query,
    checked_rows,
    entry_id,
    entry_of,
    fields_of,
    locked,
    nearest,
    tenant_of,
    wanted_by,
)

# A folder that one process has for itself: Chroma loses what two processes write to one folder at a time.

_NAME = "loom.lock"
_lock = Lock()
renew_lock_after_fork(sys.modules[__name__], "_lock")
_held: dict[tuple[int, str], tuple[TextIO, int]] = {}
"""By process and folder: what the parent holds, a forked child does not hold as well."""


def hold(folder: str) -> str:
    """Keep other processes out of a folder; returns the key to release it with. This process may hold it again."""
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    key = str(path)
    with _lock:
        mine = (os.getpid(), key)
        instead = f"close it there, or run `chroma run --path {key}` and give the URL of that server"
        file, holders = _held.get(mine) or (locked(path / _NAME, f"the Chroma folder {key}", instead), 0)
        _held[mine] = (file, holders + 1)
    return key


def release(key: str) -> None:
    """Release the folder; other processes may use it once no store of this one does."""
    with _lock:
        mine = (os.getpid(), key)
        file, holders = _held.pop(mine)
        if holders > 1:
            _held[mine] = (file, holders - 1)
        else:
            file.close()


# Talking to Chroma: in memory, in a folder, or as a server, behind one way to call it.

MEMORY = ":memory:"
_T = TypeVar("_T")


class ChromaCalls:
    """Does work with a Chroma client, in worker threads. Connected at the first call; safe to share between threads."""

    def __init__(self, where: str, *, headers: dict[str, str] | None, timeout: float) -> None:
        self.where = where
        self.is_server = where.startswith(("http://", "https://"))
        self._headers = headers
        self._timeout = timeout
        self._lock = Lock()
        self._client: Any = None
        self._folder: str | None = None
        self.is_closed = False

    async def __call__(self, work: Callable[..., _T], *given: Any) -> _T:
        """Give the client to `work`, with what else it takes."""
        return await to_thread.run_sync(partial(self._do, work, *given))

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        await to_thread.run_sync(self._close)

    def _do(self, work: Callable[..., _T], *given: Any) -> _T:
        with self._translate_errors():
            return work(self._opened(), *given)

    def _close(self) -> None:
        with self._lock:
            self.is_closed = True
            client, self._client = self._client, None
            if client is not None:
                sessions = [_session(client), _session(client._admin_client)] if self.is_server else []  # noqa: SLF001
                client.close()
                for session in sessions:
                    session.close()  # the client's own close() leaves its connections open
            if self._folder is not None:
                release(self._folder)
                self._folder = None

    def _opened(self) -> Any:
        with self._lock:
            if self.is_closed:
                raise UsageError(f"the vector store {self.where} is closed; open another")
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        try:
            import chromadb  # noqa: PLC0415 - heavy, and optional
            from chromadb.config import Settings  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtra("Chroma", "chroma") from error
        settings = Settings(anonymized_telemetry=False)
        if self.where == MEMORY:
            return chromadb.EphemeralClient(settings)
        if self.is_server:
            return self._connect_to_server(settings)
        self._folder = self._folder or hold(self.where)
        return chromadb.PersistentClient(self._folder, settings)

    def _connect_to_server(self, settings: Any) -> Any:
        url = urlsplit(self.where)
        settings.chroma_api_impl = "chromadb.api.fastapi.FastAPI"
        settings.chroma_server_host = url.hostname or ""
        settings.chroma_server_ssl_enabled = url.scheme == "https"
        if not settings.chroma_server_ssl_enabled:
            settings.chroma_server_ssl_verify = False  # else each of its two sessions reads all certificates: 30 ms
        settings.chroma_server_http_port = url.port or (443 if settings.chroma_server_ssl_enabled else 80)
        settings.chroma_server_headers = self._headers
        return _patient_for(self._timeout)(settings=settings)

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        """Errors of the client as errors of a store."""
        try:
            yield
        except LoomError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        import httpx  # noqa: PLC0415 - Chroma brings it
        from chromadb.errors import AuthorizationError, ChromaAuthError, ChromaError  # noqa: PLC0415

        if isinstance(error, httpx.HTTPError | OSError) or "Could not connect" in str(error):
            return StoreUnavailable(f"Chroma at {self.where} cannot be reached now: {error}; try again later")
        if isinstance(error, ChromaAuthError | AuthorizationError):
            return StoreError(f"Chroma at {self.where} refused the caller: {error}; give the right headers")
        if isinstance(error, ChromaError):
            return StoreError(f"Chroma at {self.where} could not do it: {error}")
        return error


def _patient_for(timeout: float) -> Any:
    """A client of a server that waits so long for each answer.

    Chroma's own client would wait for ever, also while it is made: it asks the server twice before that.
    """
    from chromadb.api.client import Client  # noqa: PLC0415 - it is loaded by now

    class PatientClient(Client):
        def get_user_identity(self) -> Any:
            _session(self).timeout = timeout
            return self._server.get_user_identity()  # the other one hides which error it was

        def _validate_tenant_database(self, tenant: str, database: str) -> None:
            _session(self._admin_client).timeout = timeout
            super()._validate_tenant_database(tenant, database)

    return PatientClient


def _session(client: Any) -> Any:
    """The HTTP session of a client of a server, or of its administrator."""
    return client._server._session  # noqa: SLF001 - the client has no public way


_PAGE = 500
_EXACT = 1000
_IDENTITY, _DIMENSION = "embedder", "dimension"
_COSINE = {"hnsw": {"space": "cosine"}}
_RESIDUE = (
    "numbers and ids of removed vectors may stand in the files of Chroma at {where}, some even after `chroma vacuum`; "
    "its data deleted and built again from the primary store (`loom store verify --repair`) holds none"
)
_stores = count(1)


class ChromaVectorStore:
    """Keeps vectors in Chroma, a collection for each user, found by cosine.

    `url` is that of a server, a folder, or `:memory:`. Up to 1,000 vectors of a user are compared exactly; of
    more, Chroma's index chooses, which may miss one. A folder belongs to one process at a time; a server is for
    several. `headers` go to a server with every request, which takes `timeout` seconds at the most.
    """

    def __init__(
        self,
        url: str | PathLike[str] = MEMORY,
        *,
        prefix: str = "loom",
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        check_text(fspath(url), "the URL of a Chroma store")
        check_text(prefix, "the prefix of collections")
        self._calls = ChromaCalls(fspath(url), headers=dict(headers) if headers else None, timeout=timeout)
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

    def _of_large(self, scope: Scope, query: list[float], size: int) -> list[VectorEntry]:
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


def _query(collection: Any, query: list[float], size: int, where: dict[str, Any] | None = None) -> list[VectorEntry]:
    found = collection.query(query_embeddings=[query], n_results=size, where=where, include=["metadatas", "distances"])
    pairs = zip(found["metadatas"][0], found["distances"][0], strict=True)
    return [entry_of(fields, 1.0 - distance) for fields, distance in pairs]


def _first_of_all(collection: Any, query: list[float], held: int, size: int) -> list[VectorEntry]:
    """The nearest of all that are held, of which alone the fields are read; nothing if the index does not give all."""
    found = collection.query(query_embeddings=[query], n_results=held, include=["distances"])
    keys, distances = found["ids"][0][:size], found["distances"][0]
    if len(distances) < held:
        return []
    read = collection.get(ids=keys, include=["metadatas"])
    fields = dict(zip(read["ids"], read["metadatas"], strict=True))
    return [entry_of(fields[key], 1.0 - distances[place]) for place, key in enumerate(keys) if key in fields]


def _compared(collection: Any, query: list[float], where: dict[str, Any] | None) -> list[VectorEntry]:
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
