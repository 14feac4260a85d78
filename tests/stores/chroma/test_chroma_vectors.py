"""Chroma keeps every law of a vector store: in memory, in a folder, and as a server."""

import random

import pytest

from loom.core.filter import Eq, In, Not, Range
from loom.protocols.vector_store import VectorItem
from loom.stores.chroma import ChromaVectorStore
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.testing.conformance import VectorStoreSuite
from loom.testing.conformance.samples import ALICE
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
