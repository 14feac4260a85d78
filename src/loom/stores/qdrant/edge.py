"""A collection in a folder, in the embedded engine of Qdrant; needs the extra `qdrant-edge`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TextIO, TypeVar
from urllib.parse import quote

from anyio import to_thread

from loom.errors import LoomError, MissingExtra, StoreError, UsageError
from loom.stores.folder_lock import locked
from loom.stores.qdrant.engine import INDEXED, Fits, Near, Point
from loom.stores.vector_entries import SESSION, TENANT

_PAGE = 500
_ABOUT, _POINTS, _LOCK = "loom.json", "points", "loom.lock"
_T = TypeVar("_T")


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

    async def about(self) -> Mapping[str, Any] | None:
        """What was written about the collection."""
        return await self._calls(self._about)

    async def create(self, about: Mapping[str, Any], dimension: int) -> None:
        """Make the collection, and the indexes of its fields."""
        await self._calls(self._create, about, dimension)

    async def write_about(self, about: Mapping[str, Any]) -> None:
        """Write about the collection anew."""
        await self._calls(self._write_about, about)

    async def drop(self) -> None:
        """Remove the collection and its files, if it is there."""
        await self._calls(self._drop)

    async def upsert(self, points: Sequence[Point]) -> None:
        """Add points, or replace those with the same id."""
        await self._calls(self._upsert, points)

    async def nearest(self, query: Sequence[float], fits: Fits, size: int) -> list[Near]:
        """So many of the nearest points that fit, nearest first."""
        return await self._calls(self._nearest, query, fits, size)

    async def count(self, fits: Fits) -> int:
        """How many points fit."""
        return await self._calls(self._count, fits)

    async def delete(self, fits: Fits) -> None:
        """Remove the points that fit."""
        await self._calls(self._delete, fits)

    async def points(
        self, fits: Fits | None, *, with_vectors: bool = False, fields: Sequence[str] | None = None
    ) -> list[Point]:
        """All points that fit, page by page."""
        return await self._calls(self._points, fits, with_vectors, fields)

    async def aclose(self) -> None:
        """Write to disk what is in memory, and let the folder go. Closing twice is allowed."""
        await to_thread.run_sync(self._close)

    # -- in a worker thread -------------------------------------------------------------------------------

    async def _calls(self, work: Callable[..., _T], *given: Any) -> _T:
        return await to_thread.run_sync(partial(self._alone, work, *given))

    def _alone(self, work: Callable[..., _T], *given: Any) -> _T:
        with self._lock:
            if self._is_closed:
                raise UsageError(f"the vector store {self.where} is closed; open another")
            self._hold()
            with _spoken_errors(self.where):
                return work(*given)

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

    def _about(self) -> Mapping[str, Any] | None:
        try:
            return json.loads((self._folder / _ABOUT).read_bytes())
        except FileNotFoundError:
            return None

    def _write_about(self, about: Mapping[str, Any]) -> None:
        whole = self._folder / f"{_ABOUT}.new"
        with whole.open("w", encoding="utf-8") as file:
            json.dump(dict(about), file)
            file.flush()
            os.fsync(file.fileno())
        whole.replace(self._folder / _ABOUT)

    def _create(self, about: Mapping[str, Any], dimension: int) -> None:
        engine = _engine()
        self._remove_points()  # of a process that died before it wrote whose they are
        config = engine.EdgeConfig(vectors=engine.EdgeVectorParams(size=dimension, distance=engine.Distance.Cosine))
        self._shard = engine.EdgeShard.create(str(self._folder / _POINTS), config)
        for key in INDEXED:
            kind = engine.KeywordIndexParams(is_tenant=key == TENANT)
            self._shard.update(engine.UpdateOperation.create_field_index(key, kind))
        self._shard.flush()
        self._write_about(about)

    def _drop(self) -> None:
        (self._folder / _ABOUT).unlink(missing_ok=True)
        self._remove_points()

    def _remove_points(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self._shard = None
        shutil.rmtree(self._folder / _POINTS, ignore_errors=True)

    # -- points -------------------------------------------------------------------------------------------

    def _upsert(self, points: Sequence[Point]) -> None:
        engine = _engine()
        given = [engine.Point(one.id, list(one.vector), dict(one.fields)) for one in points]
        self._opened().update(engine.UpdateOperation.upsert_points(given))

    def _nearest(self, query: Sequence[float], fits: Fits, size: int) -> list[Near]:
        engine = _engine()
        nearest = engine.Query.Nearest(list(query))
        given = engine.QueryRequest(size, query=nearest, filter=_filter(fits), with_payload=True)
        return [Near(one.payload or {}, one.score) for one in self._opened().query(given)]

    def _count(self, fits: Fits) -> int:
        return int(self._opened().count(_engine().CountRequest(exact=True, filter=_filter(fits))))

    def _delete(self, fits: Fits) -> None:
        self._opened().update(_engine().UpdateOperation.delete_points_by_filter(_filter(fits)))

    def _points(self, fits: Fits | None, with_vectors: bool, fields: Sequence[str] | None) -> list[Point]:
        found: list[Any] = []
        offset: Any = None
        while True:
            given = _engine().ScrollRequest(
                offset, _PAGE, None if fits is None else _filter(fits),
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


def _filter(fits: Fits) -> Any:
    engine = _engine()
    must = [engine.FieldCondition(key=key, match=engine.MatchAny(list(values))) for key, values in fits.wanted]
    return engine.Filter(must=must, must_not=[engine.IsEmptyCondition(SESSION)] if fits.in_session else None)


@contextmanager
def _spoken_errors(where: str) -> Generator[None]:
    """Errors of the engine, which have no class of their own, as errors of a store."""
    try:
        yield
    except LoomError:
        raise
    except Exception as error:
        raise StoreError(f"Qdrant at {where} could not do it: {error}") from error
