"""Chroma keeps every law of a vector store: in memory, in a folder, and as a server."""

import random

import pytest

from loom.core.filter import Eq, In, Not, Range
from loom.protocols.vector_store import VectorItem
from loom.stores.chroma import ChromaVectorStore
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.testing.conformance import VectorStoreSuite
from loom.testing.conformance.suite import ALICE
from tests.stores.engine_laws import EngineLaws
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]


class TestInMemory(EngineLaws, VectorStoreSuite):
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


class TestServer(EngineLaws, VectorStoreSuite):
    @pytest.fixture
    async def store(self, chroma_url):
        made = ChromaVectorStore(chroma_url)
        await made.clear()
        yield made
        await made.aclose()


async def test_of_many_vectors_those_that_fit_are_found():
    """Beyond what is compared exactly: few that fit among many, by values and by ids; and many that tie."""
    chance = random.Random(5)
    store, reference = ChromaVectorStore(), InMemoryVectorStore()
    items = [VectorItem(f"v{n:04}", [chance.gauss(0, 1) for _ in range(8)], {"rare": n % 400}) for n in range(1200)]
    for each in (store, reference):
        await each.upsert(ALICE, items)
    for where in (Eq("meta.rare", 7), In("id", ("v0007", "v1100")), Not(Eq("id", "v0001")), Range("meta.rare", 398)):
        asked = [chance.gauss(0, 1) for _ in range(8)]
        expected = [hit.id for hit in await reference.search(ALICE, asked, limit=5, where=where)]
        assert [hit.id for hit in await store.search(ALICE, asked, limit=5, where=where)] == expected
    await store.aclose()


@pytest.mark.parametrize("how", ["forget", "delete", "clear"])
async def test_what_another_client_removed_of_many_is_not_found(how, chroma_url):
    """A collection that was large when it was searched last may be small by now, or another one."""
    store, other = ChromaVectorStore(chroma_url), ChromaVectorStore(chroma_url)
    await store.clear()
    await store.upsert(ALICE, [VectorItem(f"v{n:04}", [1.0, n / 1000]) for n in range(1200)])
    for _ in range(2):
        assert [hit.id for hit in await store.search(ALICE, [1.0, 0.0], limit=2)] == ["v0000", "v0001"]
    if how == "forget":
        await other.forget(ALICE)
    elif how == "delete":
        await other.delete(ALICE, *(f"v{n:04}" for n in range(1195)))
    else:
        await other.clear()
    left = [f"v{n}" for n in range(1195, 1200)] if how == "delete" else []
    assert [hit.id for hit in await store.search(ALICE, [1.0, 0.0], limit=20)] == left
    await other.upsert(ALICE, [VectorItem("new", [1.0, 0.0])])
    assert [hit.id for hit in await store.search(ALICE, [1.0, 0.0], limit=1)] == ["new"]
    for each in (store, other):
        await each.aclose()
