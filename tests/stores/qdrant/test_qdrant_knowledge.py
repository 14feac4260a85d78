"""A knowledge base whose vectors are in Qdrant."""

import pytest

from loom.stores.qdrant import QdrantVectorStore
from tests.stores.engine_knowledge import (
    KnowledgeLaws,
    SharedLaws,
    check_that_a_base_persists,
    check_that_names_are_kept_apart,
)
from tests.stores.engines import needs_package

pytestmark = pytest.mark.anyio


@needs_package("qdrant_client")
class TestClient(KnowledgeLaws):
    @pytest.fixture
    async def vectors(self):
        made = QdrantVectorStore()
        yield made
        await made.aclose()

    async def test_names_are_kept_apart(self, vectors):
        await check_that_names_are_kept_apart(vectors)


@needs_package("qdrant_edge")
class TestEdge(KnowledgeLaws):
    @pytest.fixture
    async def vectors(self, tmp_path):
        made = QdrantVectorStore(f"edge:{tmp_path}")
        yield made
        await made.aclose()

    async def test_names_are_kept_apart(self, vectors):
        await check_that_names_are_kept_apart(vectors)


@needs_package("qdrant_client")
class TestSharedClient(SharedLaws):
    @pytest.fixture
    async def vectors(self):
        made = QdrantVectorStore()
        yield made
        await made.aclose()


@needs_package("qdrant_edge")
class TestSharedEdge(SharedLaws):
    @pytest.fixture
    async def vectors(self, tmp_path):
        made = QdrantVectorStore(f"edge:{tmp_path}")
        yield made
        await made.aclose()


@needs_package("qdrant_client")
async def test_a_base_in_a_folder_persists(tmp_path):
    await check_that_a_base_persists(lambda: QdrantVectorStore(tmp_path))


@needs_package("qdrant_edge")
async def test_a_base_in_the_embedded_engine_persists(tmp_path):
    await check_that_a_base_persists(lambda: QdrantVectorStore(f"edge:{tmp_path}"))
