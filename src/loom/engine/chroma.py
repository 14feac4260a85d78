"""Memory with its vectors in Chroma: opened in memory, in a folder, or beside a Chroma server."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from loom.core.clock import Clock
from loom.engine.open import open_memory
from loom.errors import UsageError
from loom.memory.memory import Memory
from loom.stores.chroma import ChromaVectorStore
from loom.stores.indexed import IndexedStore
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.connection import Durability

TRUTH = "memory.db"
"""The file of a Chroma folder that holds everything that is no vector, and the vectors too."""


class ChromaMemory:
    """Ways to open a Memory whose vectors are searched by Chroma.

    Chroma keeps vectors alone: records, facts, blocks and jobs are in SQLite beside it, from which the vectors can be
    built again at any time. The options are those of `open_memory`.
    """

    @staticmethod
    def local(
        path: str | PathLike[str], *, clock: Clock | None = None, durability: Durability = "full", **options: Any
    ) -> Memory:
        """A memory in a folder, made at the first use: Chroma's files, and `memory.db` beside them.

        The folder belongs to one process at a time.
        """
        return open_memory(chroma_store(path, clock=clock, durability=durability), clock=clock, **options)

    @staticmethod
    def ephemeral(*, clock: Clock | None = None, **options: Any) -> Memory:
        """A memory that is gone when it is closed."""
        return open_memory(chroma_store(clock=clock), clock=clock, **options)

    @staticmethod
    def server(
        url: str,
        *,
        truth: str | PathLike[str],
        clock: Clock | None = None,
        durability: Durability = "full",
        **options: Any,
    ) -> Memory:
        """A memory whose vectors are searched by the Chroma server at `url`; `truth` is the SQLite file beside it."""
        below = SqliteStore(truth, clock=clock, durability=durability)
        return open_memory(IndexedStore(below, ChromaVectorStore(url), clock=clock), clock=clock, **options)


def chroma_store(
    path: str | PathLike[str] | None = None, *, clock: Clock | None = None, durability: Durability = "full"
) -> IndexedStore:
    """A store in a folder, or in memory without one."""
    if path is None:
        return IndexedStore(SqliteStore(":memory:", clock=clock), ChromaVectorStore(), clock=clock)
    if str(path).startswith(("http://", "https://")):
        raise UsageError(f"{path} is a server; open it with ChromaMemory.server({path!r}, truth='./memory.db')")
    truth = SqliteStore(Path(path) / TRUTH, clock=clock, durability=durability, make_folder=True)
    return IndexedStore(truth, ChromaVectorStore(path), clock=clock)
