"""Memory classes by backend: each is a Memory, and the same as open_memory() with its URL."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from os import PathLike, fspath
from typing import Any, ClassVar, Self

from loom.core.record import Layer
from loom.engine.open import memory_parts
from loom.engine.places import STORES
from loom.errors import MissingExtra, UsageError
from loom.memory.memory import Memory
from loom.protocols.memory_store import MemoryStore


class SqliteMemory(Memory):
    """A Memory in one SQLite file, which is made at the first use: the same as `open_memory("sqlite:PATH")`.

    The options are those of `open_memory`.
    """

    def __init__(self, path: str | PathLike[str], **options: Any) -> None:
        place = fspath(path)
        super().__init__(**memory_parts(place if place.startswith("sqlite:") else f"sqlite:{place}", **options))


class PostgresMemory(Memory):
    """A Memory in Postgres, connected at the first use: the same as `open_memory("postgres://...")`.

    The options are those of `open_memory`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        _check_scheme(url, ("postgres", "postgresql"), "postgres://USER:PASSWORD@HOST/DATABASE")
        _check_packages("a Postgres memory", "postgres", "psycopg", "psycopg_pool")
        super().__init__(**memory_parts(url, **options))


class RedisMemory(Memory):
    """A Memory on a Redis server, connected at the first use: the same as `open_memory("redis://...")`.

    `durable=True` refuses a server that may lose what it acknowledged; `ttl` says how long episodes stay: seconds,
    `"7d"`, or one for each layer, `{"l1": "1h", "rest": "30d"}`. The other options are those of `open_memory`.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        durable: bool | None = None,
        ttl: float | str | Mapping[str, float | str] | None = None,
        **options: Any,
    ) -> None:
        _check_scheme(url, ("redis", "rediss", "unix"), "redis://HOST:6379/0")
        _check_packages("a Redis memory", "redis", "redis")
        place = {"backend": "redis", "url": url, "durable": durable, "ttl": ttl}
        super().__init__(**memory_parts(place, **options))


class _VectorMemory(Memory):
    """A Memory whose vectors are searched by one engine."""

    _ENGINE: ClassVar[str]

    def __init__(self, path: str | PathLike[str] | Mapping[str, Any] | None = None, **options: Any) -> None:
        if isinstance(path, Mapping):
            super().__init__(**memory_parts(path, **options))
            return
        place = "" if path is None else fspath(path)
        if place.startswith(("http://", "https://")):
            raise UsageError(
                f"{place} is a server; open it with {type(self).__name__}.server({place!r}, truth='./memory.db')"
            )
        super().__init__(**memory_parts(f"{self._ENGINE}:{place}" if place else self._ENGINE, **options))

    @classmethod
    def local(cls, path: str | PathLike[str], **options: Any) -> Self:
        """A memory in a folder, made at the first use: the engine's files, and `memory.db` beside them.

        The folder belongs to one process at a time.
        """
        return cls(path, **options)

    @classmethod
    def ephemeral(cls, **options: Any) -> Self:
        """A memory that is gone when it is closed."""
        return cls(**options)

    @classmethod
    def server(cls, url: str, *, truth: str | PathLike[str], **options: Any) -> Self:
        """A memory whose vectors are searched by the server at `url`; `truth` is the file or the store beside it.

        A store is written like any other: `postgres://...`. Anything else is the path of a SQLite file.
        """
        beside = fspath(truth)
        is_place = beside.partition(":")[0] in STORES
        place = {"backend": cls._ENGINE, "url": url, "truth": beside if is_place else f"sqlite:{beside}"}
        return cls(place, **options)


class ChromaMemory(_VectorMemory):
    """A Memory whose vectors are searched by Chroma: in a folder, beside a server, or in this process alone.

    Chroma keeps vectors alone: records, facts, blocks and jobs are in a store beside it, from which the vectors can be
    built again at any time. The options are those of `open_memory`.
    """

    _ENGINE = "chroma"


class QdrantMemory(_VectorMemory):
    """A Memory whose vectors are searched by Qdrant: in a folder, beside a server, or in this process alone.

    Qdrant keeps vectors alone: records, facts, blocks and jobs are in a store beside it, from which the vectors can be
    built again at any time. In a folder and in memory it is the engine inside `qdrant-client`, which is for thousands
    of vectors. The options are those of `open_memory`.
    """

    _ENGINE = "qdrant"


class CompositeMemory(Memory):
    """A Memory whose layers live in different stores, each given as a URL or a store.

    A layer without a store of its own lives with the next layer above that has one. `primary` holds the truth: facts,
    blocks, jobs and the archive, so it should be the durable one; if it is not given, that is the store of the highest
    layer named. `vectors` is a vector engine beside `primary`. The options are those of `open_memory`.
    """

    def __init__(
        self,
        *,
        l1: str | MemoryStore | None = None,
        l2: str | MemoryStore | None = None,
        l3: str | MemoryStore | None = None,
        l4: str | MemoryStore | None = None,
        primary: str | MemoryStore | None = None,
        vectors: str | None = None,
        **options: Any,
    ) -> None:
        named = {Layer.L1: l1, Layer.L2: l2, Layer.L3: l3, Layer.L4: l4}
        layers = {layer.label.lower(): store for layer, store in named.items() if store is not None}
        if primary is None and not layers:
            raise UsageError("no layer was given a store; name `primary`, or at least the store of l4")
        place = {"backend": "composite", "truth": primary, "vectors": vectors, "layers": layers}
        super().__init__(**memory_parts({name: value for name, value in place.items() if value}, **options))
        top = primary if primary is not None else list(layers.values())[-1]
        self.place = top if isinstance(top, str) else None


def _check_scheme(url: str, schemes: tuple[str, ...], form: str) -> None:
    if url.partition(":")[0].lower() not in schemes:
        # What follows the scheme may hold a password.
        raise UsageError(f"a URL that starts with {url.partition(':')[0]!r} is of another store; write {form}")


def _check_packages(what: str, extra: str, *packages: str) -> None:
    if any(find_spec(package) is None for package in packages):
        raise MissingExtra(what, extra)
