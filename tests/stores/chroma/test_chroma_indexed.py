"""SQLite with Chroma beside it keeps every law of a memory store."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import settings

from loom.stores.chroma import ChromaVectorStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.wrappers.indexed import IndexedStore
from tests.stores.engines import needs_package
from tests.stores.index_laws import IndexLaws

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]


class TestLaws(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        primary = SqliteStore(tmp_path / "memory.db", clock=clock, durability="fast")
        async with IndexedStore(primary, ChromaVectorStore(tmp_path / "chroma"), clock=clock) as store:
            yield store


class TestServerLaws(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path, chroma_url):
        primary, index = (
            SqliteStore(tmp_path / "memory.db", clock=clock, durability="fast"),
            ChromaVectorStore(chroma_url),
        )
        await index.clear()
        async with IndexedStore(primary, index, clock=clock) as store:
            yield store


class Machine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with IndexedStore(SqliteStore(":memory:", clock=clock), ChromaVectorStore(), clock=clock) as store:
            await store.bind("machine:1:2", 2)
            yield store


TestModel = Machine.TestCase
TestModel.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


class TestIndex(IndexLaws):
    child = "from loom.stores.chroma import ChromaVectorStore; index = ChromaVectorStore(folder)"

    def open_index(self, folder):
        return ChromaVectorStore(folder)
