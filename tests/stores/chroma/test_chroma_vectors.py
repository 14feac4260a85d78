"""Chroma keeps every law of a vector store: in memory, in a folder, and as a server."""

import pytest

from loom.stores.chroma import ChromaVectorStore
from loom.testing.conformance import VectorStoreSuite
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]


class TestInMemory(VectorStoreSuite):
    @pytest.fixture
    async def store(self):
        made = ChromaVectorStore()
        yield made
        await made.aclose()


class TestFolder(VectorStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path):
        made = ChromaVectorStore(tmp_path)
        yield made
        await made.aclose()


class TestServer(VectorStoreSuite):
    @pytest.fixture
    async def store(self, chroma_url):
        made = ChromaVectorStore(chroma_url)
        await made.clear()
        yield made
        await made.aclose()
