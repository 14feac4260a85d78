"""Forgetting beside every other call of a memory, on SQLite with a vector engine beside it.

Both memories use one store: an engine's folder belongs to one process.
"""

from contextlib import AsyncExitStack

import pytest

from loom.stores.chroma import ChromaVectorStore
from loom.stores.qdrant import QdrantVectorStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance import ErasureSuite
from loom.wrappers.indexed import IndexedStore
from tests.memory.test_erasure import opened
from tests.stores.engines import needs_package


class Indexed(ErasureSuite):
    """Laws over a store with an index; the index holds no vector of what was forgotten."""

    stride = 7

    def open_index(self, folder):
        raise NotImplementedError

    @pytest.fixture
    async def memories(self, tmp_path):
        index = self.open_index(tmp_path / "index")
        store = IndexedStore(SqliteStore(tmp_path / "memory.db", durability="fast"), index)
        async with AsyncExitStack() as stack:
            yield await opened(stack, store, store)
            assert (await store.verify()).is_equal


@needs_package("qdrant_client")
class TestQdrant(Indexed):
    def open_index(self, folder):
        return QdrantVectorStore(folder)


@needs_package("chromadb")
class TestChroma(Indexed):
    def open_index(self, folder):
        return ChromaVectorStore(folder)


del Indexed
