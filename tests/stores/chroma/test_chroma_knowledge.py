"""A knowledge base whose vectors are in Chroma."""

import pytest

from loom.knowledge.vector import VectorKnowledgeBase
from loom.providers.embedding.local import HashEmbedder
from loom.stores.chroma import ChromaVectorStore
from loom.testing.conformance import SharedKnowledgeSuite
from tests.stores.engine_knowledge import (
    KnowledgeLaws,
    SharedLaws,
    check_that_a_base_persists,
    check_that_names_are_kept_apart,
)
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


class TestSharedFolder(SharedLaws):
    @pytest.fixture
    async def vectors(self, tmp_path):
        made = ChromaVectorStore(tmp_path)
        yield made
        await made.aclose()


class TestSharedServer(SharedKnowledgeSuite):
    """Each base has a client of its own, as in another process."""

    @pytest.fixture
    async def another(self, chroma_url):
        made = []

        async def make():
            made.append(ChromaVectorStore(chroma_url))
            return VectorKnowledgeBase(
                embedding_provider=HashEmbedder(), vector_store=made[-1], chunk_size=60, chunk_overlap=20
            )

        await make()
        await made[0].clear()
        yield make
        for store in made:
            await store.aclose()


async def test_a_base_in_a_folder_persists(tmp_path):
    await check_that_a_base_persists(lambda: ChromaVectorStore(tmp_path))
