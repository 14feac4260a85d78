"""SQLite with Qdrant beside it keeps every law of a memory store."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import settings

from loom.stores.qdrant import QdrantVectorStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.wrappers.indexed import IndexedStore
from tests.stores.engines import needs_package
from tests.stores.index_laws import IndexLaws

pytestmark = [pytest.mark.anyio, needs_package("qdrant_client")]


class TestLaws(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        primary = SqliteStore(tmp_path / "memory.db", clock=clock, durability="fast")
        async with IndexedStore(primary, QdrantVectorStore(tmp_path / "qdrant"), clock=clock) as store:
            yield store


class Machine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with IndexedStore(SqliteStore(":memory:", clock=clock), QdrantVectorStore(), clock=clock) as store:
            await store.bind("machine:1:2", 2)
            yield store


TestModel = Machine.TestCase
TestModel.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


class TestIndex(IndexLaws):
    child = "from loom.stores.qdrant import QdrantVectorStore; index = QdrantVectorStore(folder)"

    def open_index(self, folder):
        return QdrantVectorStore(folder)
