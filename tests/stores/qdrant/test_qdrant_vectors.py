"""Qdrant keeps every law of a vector store: in memory and in a folder."""

import gc

import pytest

from loom.core.filter import Eq
from loom.errors import StoreError, StoreUnavailable
from loom.protocols.vector_store import VectorItem
from loom.stores.qdrant import QdrantVectorStore
from loom.testing.conformance import VectorStoreSuite
from loom.testing.conformance.suite import ALICE
from loom.testing.fakes import START
from tests.stores.engine_laws import EngineLaws
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("qdrant_client")]


class TestInMemory(EngineLaws, VectorStoreSuite):
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


async def test_what_is_in_a_folder_stays(tmp_path):
    store = QdrantVectorStore(tmp_path)
    await store.bind("e:1:2", 2)
    await store.upsert(ALICE, [VectorItem("a", [1.0, 0.0], {"n": 1, "at": START})])
    await store.aclose()
    store = QdrantVectorStore(tmp_path)
    assert await store.bound() == ("e:1:2", 2)
    (hit,) = await store.search(ALICE, [1.0, 0.0], where=Eq("meta.at", START))
    assert dict(hit.attributes) == {"n": 1, "at": START}
    await store.aclose()


# The client that is refused leaves its file of the lock to the collector of garbage.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_a_folder_belongs_to_one_store_at_a_time(tmp_path):
    first, second = QdrantVectorStore(tmp_path), QdrantVectorStore(tmp_path)
    await first.bind("e:1:2", 2)
    with pytest.raises(StoreUnavailable, match="open elsewhere"):
        await second.bind("e:1:2", 2)
    await first.aclose()
    await second.bind("e:1:2", 2)
    await second.aclose()
    gc.collect()


async def test_a_collection_of_somebody_else_is_left_alone(tmp_path):
    from qdrant_client import QdrantClient
    from qdrant_client.models import Distance, VectorParams

    theirs = QdrantClient(path=str(tmp_path))
    theirs.create_collection("loom", vectors_config=VectorParams(size=2, distance=Distance.DOT))
    theirs.close()
    store = QdrantVectorStore(tmp_path)
    with pytest.raises(StoreError, match="not one of Loom's"):
        await store.bind("e:1:2", 2)
    await store.aclose()
