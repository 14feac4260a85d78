"""Memory with its vectors in Chroma or Qdrant: opened in memory, in a folder, or beside a server."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any, ClassVar

from loom.core.clock import Clock
from loom.engine.open import open_memory
from loom.engine.places import BACKENDS
from loom.errors import UsageError
from loom.memory.memory import Memory
from loom.stores.sqlite.connection import Durability


class _VectorMemory:
    """Ways to open a Memory whose vectors are searched by one engine."""

    _ENGINE: ClassVar[str]

    @classmethod
    def local(
        cls, path: str | PathLike[str], *, clock: Clock | None = None, durability: Durability = "full", **options: Any
    ) -> Memory:
        """A memory in a folder, made at the first use: the engine's files, and `memory.db` beside them.

        The folder belongs to one process at a time.
        """
        place = fspath(path)
        if place.startswith(("http://", "https://")):
            raise UsageError(f"{place} is a server; open it with {cls.__name__}.server({place!r}, truth='./memory.db')")
        return open_memory(f"{cls._ENGINE}:{place}", clock=clock, durability=durability, **options)

    @classmethod
    def ephemeral(cls, *, clock: Clock | None = None, **options: Any) -> Memory:
        """A memory that is gone when it is closed."""
        return open_memory(cls._ENGINE, clock=clock, **options)

    @classmethod
    def server(
        cls,
        url: str,
        *,
        truth: str | PathLike[str],
        clock: Clock | None = None,
        durability: Durability = "full",
        **options: Any,
    ) -> Memory:
        """A memory whose vectors are searched by the server at `url`; `truth` is the file or the store beside it.

        A store is written like any other: `postgres://...`. Anything else is the path of a SQLite file.
        """
        beside = fspath(truth)
        is_place = beside.partition(":")[0] in {*BACKENDS, "postgresql", "rediss", "unix"}
        place = {"backend": cls._ENGINE, "url": url, "truth": beside if is_place else f"sqlite:{beside}"}
        return open_memory(place, clock=clock, durability=durability, **options)


class ChromaMemory(_VectorMemory):
    """Ways to open a Memory whose vectors are searched by Chroma.

    Chroma keeps vectors alone: records, facts, blocks and jobs are in a store beside it, from which the vectors can be
    built again at any time. The options are those of `open_memory`.
    """

    _ENGINE = "chroma"


class QdrantMemory(_VectorMemory):
    """Ways to open a Memory whose vectors are searched by Qdrant.

    Qdrant keeps vectors alone: records, facts, blocks and jobs are in a store beside it, from which the vectors can be
    built again at any time. In a folder and in memory it is the engine inside `qdrant-client`, which is for thousands
    of vectors. The options are those of `open_memory`.
    """

    _ENGINE = "qdrant"
