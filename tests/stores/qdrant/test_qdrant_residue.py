"""What Qdrant keeps of a forgotten user in its files: what the receipt says, until that is done."""

import pytest

from loom.stores.qdrant import QdrantVectorStore
from tests.stores.engines import needs_package
from tests.stores.vector_residue import IDS, check_residue

pytestmark = pytest.mark.anyio

ALL, NONE = {"ids": len(IDS), "vectors": len(IDS)}, {"ids": 0, "vectors": 0}


async def build_again(store, folder):
    await store._index.clear()
    assert (await store.verify(repair=True)).is_repaired


@needs_package("qdrant_client")
async def test_the_engine_inside_the_client(tmp_path):
    before, _, done = await check_residue(tmp_path, QdrantVectorStore, build_again)
    assert (before, done) == (ALL, NONE)


@needs_package("qdrant_edge")
async def test_the_embedded_engine(tmp_path):
    found = await check_residue(tmp_path, lambda folder: QdrantVectorStore(f"edge:{folder}"), build_again)
    assert found == (ALL, ALL, NONE)
