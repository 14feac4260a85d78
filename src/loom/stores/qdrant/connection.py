"""Connections to Qdrant: a server, its client's engine, or the embedded Qdrant Edge."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from threading import Lock
from types import CoroutineType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TextIO, TypeVar
from urllib.parse import quote

import numpy as np
from anyio import to_thread

from loom.errors import LoomError, MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.stores._vector_entries import ID, SESSION, TENANT, Wanted, locked

INDEXED = (TENANT, SESSION, ID)
"""The fields that an engine finds points by."""


class Point(NamedTuple):
    """A vector with the fields beside it; `vector` where that was asked for."""

    id: str
    fields: Mapping[str, Any]
    vector: Sequence[float] = ()


class NearPoint(NamedTuple):
    """The fields of a point that was found by nearness, and how near it is."""

    fields: Mapping[str, Any]
    score: float


class Fits(NamedTuple):
    """Which points: those with all of these values, and with `in_session` only those of any session."""

    wanted: Sequence[Wanted]
    in_session: bool = False


# Talking to Qdrant: a server, or the engine inside its client, behind one way to call it.

MEMORY = ":memory:"


class QdrantCalls:
    """Makes calls of a Qdrant client by name. Connected at the first call; safe to share between threads.

    The engine inside the client answers in a worker thread, one call at a time; a server is asked as it comes.
    """

    def __init__(self, where: str, *, api_key: str | None, timeout: float) -> None:
        self.where = where
        self.is_server = where.startswith(("http://", "https://"))
        self._api_key = api_key
        self._timeout = timeout
        self._lock = Lock()
        self._client: Any = None
        self._is_closed = False

    async def __call__(self, method: str, **given: Any) -> Any:
        """Call this method of the client."""
        if not self.is_server:
            return await to_thread.run_sync(partial(self._locally, method, **given))
        with self._translate_errors():
            return await getattr(self._opened(), method)(**given)

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        self._is_closed = True
        client, self._client = self._client, None
        if client is None:
            return
        if self.is_server:
            await client.close()
        else:
            await to_thread.run_sync(client.close)

    def _locally(self, method: str, **given: Any) -> Any:
        with self._lock, self._translate_errors():
            return getattr(self._opened(), method)(**given)

    def _opened(self) -> Any:
        if self._is_closed:
            raise UsageError(f"the vector store {self.where} is closed; open another")
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> Any:
        try:
            from qdrant_client import AsyncQdrantClient, QdrantClient  # noqa: PLC0415 - heavy, and optional
        except ImportError as error:
            raise MissingExtra("Qdrant", "qdrant") from error
        if self.is_server:
            return AsyncQdrantClient(
                url=self.where, api_key=self._api_key, timeout=max(1, round(self._timeout)), check_compatibility=False
            )
        at: dict[str, Any] = {"location": MEMORY} if self.where == MEMORY else {"path": self.where}
        # One thread at a time calls it, and not always the same one.
        return QdrantClient(**at, force_disable_check_same_thread=True)

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        """Errors of the client as errors of a store."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        from qdrant_client.http.exceptions import ResponseHandlingException  # noqa: PLC0415 - it is loaded by now

        if "already accessed" in str(error):
            return StoreUnavailable(
                f"the Qdrant folder {self.where} is open elsewhere, and one process may use it at a time; "
                "close the other, or run a Qdrant server and give its URL"
            )
        status = getattr(error, "status_code", None)
        if status in {401, 403}:
            return StoreError(f"Qdrant at {self.where} refused the key (status {status}); give the right api_key")
        if status is None and not isinstance(error, ResponseHandlingException | OSError):
            return error
        if status is None or status >= 500 or status in {408, 429}:
            return StoreUnavailable(f"Qdrant at {self.where} cannot be reached now: {error}; try again later")
        return StoreError(f"Qdrant at {self.where} refused the request: {error}")


# A collection of a Qdrant server, or of the engine inside Qdrant's client.

_PAGE = 500


class ClientCollection:
    """A collection by its name, through the client of Qdrant."""

    def __init__(self, calls: QdrantCalls, name: str) -> None:
        self.where = calls.where
        self._calls, self._name = calls, name

    async def about(self) -> Mapping[str, Any] | None:
        """What was written about the collection; None without a collection, empty where nothing was written."""
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

    async def nearest(self, query: Sequence[float], fits: Fits, size: int) -> list[NearPoint]:
        """So many of the nearest points that fit, nearest first."""
        found = await self._calls(
            "query_points", collection_name=self._name, query=list(query), query_filter=_filter(fits), limit=size
        )
        return [NearPoint(one.payload, one.score) for one in found.points]

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
        """All points that fit, all there are without a condition; with these fields alone, if they are named."""
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
                vectors = [() if one.vector is None else np.asarray(one.vector).tolist() for one in found]
                return [Point(str(one.id), one.payload, row) for one, row in zip(found, vectors, strict=True)]

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        await self._calls.aclose()


def _filter(fits: Fits) -> Any:
    from qdrant_client import models  # noqa: PLC0415 - heavy, and optional

    must = [models.FieldCondition(key=key, match=models.MatchAny(any=list(values))) for key, values in fits.wanted]
    is_out = models.IsEmptyCondition(is_empty=models.PayloadField(key=SESSION))
    return models.Filter(must=[*must], must_not=[is_out] if fits.in_session else None)


# A collection in a folder, in the embedded engine of Qdrant; needs the extra `qdrant-edge`.

_ABOUT, _POINTS, _LOCK = "loom.json", "points", "loom.lock"
_T = TypeVar("_T")
_P = ParamSpec("_P")


def _in_thread(
    work: Callable[Concatenate[EdgeCollection, _P], _T],
) -> Callable[Concatenate[EdgeCollection, _P], CoroutineType[Any, Any, _T]]:
    """A method that runs in a worker thread, while no other does."""

    @wraps(work)
    async def call(self: EdgeCollection, *given: _P.args, **named: _P.kwargs) -> _T:
        return await to_thread.run_sync(self._alone, partial(work, self, *given, **named))

    return call


class EdgeCollection:
    """A collection by its name, in a folder of its own below `folder`: its points, and a file that says whose they are.

    The file is written last and removed first, so that a process that dies on the way leaves no collection rather than
    a part of one. Calls are made in worker threads, one at a time.
    """

    def __init__(self, where: str, name: str) -> None:
        self.where = where
        self._folder = Path(where.partition(":")[2]) / f"collection-{quote(name, safe='')}"
        self._lock = Lock()
        self._held: TextIO | None = None
        self._shard: Any = None
        self._is_closed = False

    async def aclose(self) -> None:
        """Write to disk what is in memory, and let the folder go. Closing twice is allowed."""
        await to_thread.run_sync(self._close)

    def _alone(self, work: Callable[[], _T]) -> _T:
        with self._lock:
            if self._is_closed:
                raise UsageError(f"the vector store {self.where} is closed; open another")
            self._hold()
            try:
                return work()
            except LoomError:
                raise
            except Exception as error:  # those of the engine have no class of their own
                raise StoreError(f"Qdrant at {self.where} could not do it: {error}") from error

    def _hold(self) -> None:
        if self._held is None:
            _engine()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._held = locked(self._folder / _LOCK, f"the Qdrant folder {self._folder}", _INSTEAD)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            shard, self._shard = self._shard, None
            if shard is not None:
                shard.flush()
                shard.close()
            if self._held is not None:
                self._held.close()
                self._held = None

    def _opened(self) -> Any:
        if self._shard is None:
            try:
                self._shard = _engine().EdgeShard.load(str(self._folder / _POINTS))
            except Exception as error:
                raise StoreError(
                    f"the Qdrant folder {self._folder} cannot be read: {error}; delete it, and it is built again from "
                    "the store beside it at the next use"
                ) from error
        return self._shard

    # -- whose points these are ---------------------------------------------------------------------------

    @_in_thread
    def about(self) -> Mapping[str, Any] | None:
        """What was written about the collection."""
        try:
            return json.loads((self._folder / _ABOUT).read_bytes())
        except FileNotFoundError:
            return None

    @_in_thread
    def write_about(self, about: Mapping[str, Any]) -> None:
        """Write about the collection anew."""
        self._write_about(about)

    def _write_about(self, about: Mapping[str, Any]) -> None:
        whole = self._folder / f"{_ABOUT}.new"
        with whole.open("w", encoding="utf-8") as file:
            json.dump(dict(about), file)
            file.flush()
            os.fsync(file.fileno())
        whole.replace(self._folder / _ABOUT)

    @_in_thread
    def create(self, about: Mapping[str, Any], dimension: int) -> None:
        """Make the collection, and the indexes of its fields."""
        engine = _engine()
        self._remove_points()  # of a process that died before it wrote whose they are
        config = engine.EdgeConfig(vectors=engine.EdgeVectorParams(size=dimension, distance=engine.Distance.Cosine))
        self._shard = engine.EdgeShard.create(str(self._folder / _POINTS), config)
        for key in INDEXED:
            kind = engine.KeywordIndexParams(is_tenant=key == TENANT)
            self._shard.update(engine.UpdateOperation.create_field_index(key, kind))
        self._shard.flush()
        self._write_about(about)

    @_in_thread
    def drop(self) -> None:
        """Remove the collection and its files, if it is there."""
        (self._folder / _ABOUT).unlink(missing_ok=True)
        self._remove_points()

    def _remove_points(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self._shard = None
        shutil.rmtree(self._folder / _POINTS, ignore_errors=True)

    # -- points -------------------------------------------------------------------------------------------

    @_in_thread
    def upsert(self, points: Sequence[Point]) -> None:
        """Add points, or replace those with the same id."""
        engine = _engine()
        given = [engine.Point(one.id, list(one.vector), dict(one.fields)) for one in points]
        self._opened().update(engine.UpdateOperation.upsert_points(given))

    @_in_thread
    def nearest(self, query: Sequence[float], fits: Fits, size: int) -> list[NearPoint]:
        """So many of the nearest points that fit, nearest first."""
        engine = _engine()
        nearest = engine.Query.Nearest(list(query))
        given = engine.QueryRequest(size, query=nearest, filter=_edge_filter(fits), with_payload=True)
        return [NearPoint(one.payload or {}, one.score) for one in self._opened().query(given)]

    @_in_thread
    def count(self, fits: Fits) -> int:
        """How many points fit."""
        return int(self._opened().count(_engine().CountRequest(exact=True, filter=_edge_filter(fits))))

    @_in_thread
    def delete(self, fits: Fits) -> None:
        """Remove the points that fit."""
        self._opened().update(_engine().UpdateOperation.delete_points_by_filter(_edge_filter(fits)))

    @_in_thread
    def points(
        self, fits: Fits | None, *, with_vectors: bool = False, fields: Sequence[str] | None = None
    ) -> list[Point]:
        """All points that fit, page by page."""
        found: list[Any] = []
        offset: Any = None
        while True:
            given = _engine().ScrollRequest(
                offset, _PAGE, None if fits is None else _edge_filter(fits),
                with_payload=True if fields is None else list(fields), with_vector=with_vectors,
            )  # fmt: skip
            page, offset = self._opened().scroll(given)
            found += page
            if offset is None:
                return [Point(str(one.id), one.payload, one.vector or ()) for one in found]


_INSTEAD = "close it there, or run a Qdrant server and give its URL"


def _engine() -> Any:
    try:
        import qdrant_edge  # noqa: PLC0415 - heavy, and optional
    except ImportError as error:
        raise MissingExtra("the embedded engine of Qdrant", "qdrant-edge") from error
    return qdrant_edge


def _edge_filter(fits: Fits) -> Any:
    engine = _engine()
    must = [engine.FieldCondition(key=key, match=engine.MatchAny(list(values))) for key, values in fits.wanted]
    return engine.Filter(must=must, must_not=[engine.IsEmptyCondition(SESSION)] if fits.in_session else None)
