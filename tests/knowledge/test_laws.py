"""The three knowledge bases keep every law of a knowledge base."""

import pytest
from hypothesis import settings

from loom.core.scope import Scope
from loom.errors import ProviderUnavailable
from loom.knowledge.graph import GraphKnowledgeBase
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.knowledge.vector import VectorKnowledgeBase
from loom.protocols.knowledge_base import Document, KnowledgeBase, SearchesGraph
from loom.providers.embedding.local import HashEmbedder
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.testing.conformance import KnowledgeBaseMachine, KnowledgeBaseSuite, SharedKnowledgeSuite

pytestmark = pytest.mark.anyio

SMALL = {"chunk_size": 60, "chunk_overlap": 20}

# Checked by pyright, signatures included.
as_words: KnowledgeBase = InMemoryKnowledgeBase()
as_graph: KnowledgeBase = GraphKnowledgeBase()
as_relations: SearchesGraph = GraphKnowledgeBase()


def words():
    return InMemoryKnowledgeBase(**SMALL)


def vector(**more):
    return VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore(), **SMALL, **more)


def graph(mode, hops, *, with_vectors=True):
    given = {"embedding_provider": HashEmbedder(), "vector_store": InMemoryVectorStore()} if with_vectors else {}
    return GraphKnowledgeBase(search_mode=mode, max_hops=hops, **given, **SMALL)


class TestWords(KnowledgeBaseSuite):
    @pytest.fixture
    async def base(self):
        return words()


class TestWordsInLargePassages(KnowledgeBaseSuite):
    @pytest.fixture
    async def base(self):
        return InMemoryKnowledgeBase()


class TestVectorsAndWords(KnowledgeBaseSuite):
    @pytest.fixture
    async def base(self):
        return vector()


class TestVectorsAlone(KnowledgeBaseSuite):
    @pytest.fixture
    async def base(self):
        return vector(words_weight=0.0)


class TestGraph(KnowledgeBaseSuite):
    @pytest.fixture(params=[0, 2])
    async def base(self, request):
        return graph("graph", request.param)


class TestGraphByVector(KnowledgeBaseSuite):
    @pytest.fixture
    async def base(self):
        return graph("vector", 2)


class TestGraphHybrid(KnowledgeBaseSuite):
    @pytest.fixture(params=[0, 1, 2])
    async def base(self, request):
        return graph("hybrid", request.param)


class TestGraphHybridWithoutVectors(KnowledgeBaseSuite):
    @pytest.fixture
    async def base(self):
        return graph("hybrid", 2, with_vectors=False)


class TestShared(SharedKnowledgeSuite):
    @pytest.fixture(params=[VectorKnowledgeBase, GraphKnowledgeBase])
    async def another(self, request):
        store = InMemoryVectorStore()

        async def make():
            return request.param(embedding_provider=HashEmbedder(), vector_store=store, **SMALL)

        return make


def model(make, examples=25):
    class Machine(KnowledgeBaseMachine):
        def make_base(self):
            return make()

    Machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=15, deadline=None)
    return Machine.TestCase


TestWordsModel = model(words, 60)
TestVectorModel = model(vector)
TestGraphModel = model(lambda: graph("graph", 2))
TestGraphHybridModel = model(lambda: graph("hybrid", 1))


class Flaky(HashEmbedder):
    """An embedder that can be switched off."""

    down = False

    async def embed(self, texts, *, purpose="document"):
        if type(self).down:
            raise ProviderUnavailable("the service is down; try again later")
        return await super().embed(texts, purpose=purpose)


TEA = Document(id="tea", text="Green tea is brewed at eighty degrees.")
GUIDE = Document(id="guide", text="API authentication uses Bearer tokens.")


@pytest.mark.parametrize("kind", [VectorKnowledgeBase, GraphKnowledgeBase])
async def test_a_failed_add_leaves_everything_as_it_was(kind, monkeypatch):
    base = kind(embedding_provider=Flaky(), vector_store=InMemoryVectorStore())
    await base.add(TEA)
    monkeypatch.setattr(Flaky, "down", True)  # the switch of the fake
    with pytest.raises(ProviderUnavailable):
        await base.add(GUIDE, Document(id="tea", text="Changed tea."))
    monkeypatch.setattr(Flaky, "down", False)
    assert [hit.item.text for hit in await base.search("tea tokens", limit=9)] == [TEA.text]
    assert await base.add(GUIDE) == 1


class Stuck(InMemoryVectorStore):
    """A vector store that does not let go of its vectors while it is stuck."""

    stuck = True

    async def delete(self, scope, *ids):
        if self.stuck:
            raise ProviderUnavailable("the service is down; try again later")
        return await super().delete(scope, *ids)


@pytest.mark.parametrize("kind", [VectorKnowledgeBase, GraphKnowledgeBase])
async def test_a_failed_remove_can_be_done_again(kind):
    store = Stuck()
    base = kind(embedding_provider=HashEmbedder(), vector_store=store)
    await base.add(TEA, GUIDE)
    with pytest.raises(ProviderUnavailable):
        await base.remove("tea")
    store.stuck = False
    assert await base.remove("tea") == 1
    assert [hit.item.document_id for hit in await base.search("tea tokens", limit=9)] == ["guide"]
    name = "graph" if kind is GraphKnowledgeBase else "default"
    assert await store.count(Scope(namespace="knowledge", user_id=name)) == 1
