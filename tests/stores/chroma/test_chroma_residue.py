"""What Chroma keeps of a forgotten user in its files: what the receipt says, until that is done."""

import shutil

import pytest

from loom.stores.chroma import ChromaVectorStore
from tests.stores.engines import needs_package
from tests.stores.vector_residue import IDS, check_residue

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]


async def remove(store, folder):
    await store.aclose()
    shutil.rmtree(folder)


async def test_a_folder(tmp_path):
    none = {"ids": 0, "vectors": 0}
    before, after, done = await check_residue(tmp_path, ChromaVectorStore, remove)
    assert before == {"ids": len(IDS), "vectors": len(IDS)}
    assert after != none
    assert done == none
