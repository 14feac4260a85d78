"""A knowledge base whose vectors are in Chroma."""

import pytest

from loom.stores.chroma import ChromaVectorStore
from tests.stores.engine_knowledge import KnowledgeLaws, check_that_names_are_kept_apart
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]


class TestFolder(KnowledgeLaws):
    @pytest.fixture
    async def vectors(self, tmp_path):
        made = ChromaVectorStore(tmp_path)
        yield made
        await made.aclose()

    async def test_names_are_kept_apart(self, vectors):
        await check_that_names_are_kept_apart(vectors)


class TestServer(KnowledgeLaws):
    @pytest.fixture
    async def vectors(self, chroma_url):
        made = ChromaVectorStore(chroma_url)
        await made.clear()
        yield made
        await made.aclose()
