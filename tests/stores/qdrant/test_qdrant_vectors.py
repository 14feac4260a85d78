"""Qdrant keeps every law of a vector store: in memory and in a folder."""

import pytest

from loom.stores.qdrant import QdrantVectorStore
from loom.testing.conformance import VectorStoreSuite
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("qdrant_client")]


class TestInMemory(VectorStoreSuite):
    @pytest.fixture
    async def store(self):
        made = QdrantVectorStore()
        yield made
        await made.aclose()


class TestFolder(VectorStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path):
        made = QdrantVectorStore(tmp_path)
        yield made
        await made.aclose()
