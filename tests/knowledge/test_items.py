"""Pieces of knowledge as loom-agent spells them: add_item, query, get_by_id, embed_batch."""

import warnings

import pytest

from loom.core.filter import Eq
from loom.errors import ProviderUnavailable, UsageError
from loom.providers.embedding.local import HashEmbedder, StaticEmbedder
from loom.providers.embedding.openai import OpenAIEmbeddingProvider
from loom.providers.knowledge import (
    Document,
    GraphKnowledgeBase,
    InMemoryKnowledgeBase,
    KnowledgeItem,
    VectorKnowledgeBase,
)
from loom.stores.inmemory.vectors import InMemoryVectorStore

pytestmark = pytest.mark.anyio

TOKENS = KnowledgeItem(id="kb_1", content="API authentication uses Bearer tokens", source="API docs")
TEA = KnowledgeItem(id="kb_2", content="Green tea is brewed at eighty degrees", metadata={"topic": "drinks"})


def vector(embedder=None):
    return VectorKnowledgeBase(
        embedding_provider=embedder or HashEmbedder(), vector_store=InMemoryVectorStore(), chunk_size=60,
        chunk_overlap=20,
    )  # fmt: skip


def graph():
    return GraphKnowledgeBase(
        embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore(), chunk_size=60, chunk_overlap=20
    )


BASES = [
    lambda: InMemoryKnowledgeBase(chunk_size=60, chunk_overlap=20),
    vector,
    graph,
    lambda: GraphKnowledgeBase(chunk_size=60, chunk_overlap=20),
]
every_base = pytest.mark.parametrize("make", BASES, ids=["in-memory", "vector", "graph", "graph-in-memory"])


@every_base
async def test_what_is_added_without_await_is_found_by_the_next_call(make):
    base = make()
    base.add_item(TOKENS)
    base.add_item(TEA)
    (first, *_) = await base.query("how do I authenticate API requests", limit=1)
    assert (first.id, first.content, first.source) == (TOKENS.id, TOKENS.content, TOKENS.source)
    assert 0 < first.relevance <= 1
    base.add_item(KnowledgeItem(id="kb_3", content="Coffee is roasted"))
    assert await base.get_by_id("kb_3") == KnowledgeItem(id="kb_3", content="Coffee is roasted")
    base.add_item(KnowledgeItem(id="kb_4", content="Cocoa is ground"))
    assert await base.remove("kb_4") == 1
    assert await base.get_by_id("kb_4") is None


@every_base
async def test_an_item_may_be_awaited_and_says_whether_it_was_new(make):
    base = make()
    assert await base.add_item(TOKENS) is True
    assert await base.add_item(TOKENS) is False
    assert await base.add_item(KnowledgeItem(id="kb_1", content="API authentication uses cookies")) is True
    assert [item.content for item in await base.query("authentication")] == ["API authentication uses cookies"]
    added = base.add_item(TEA)
    await base.search("tea")
    assert await added is True
    assert await added is True


async def test_whether_an_item_is_new_is_not_known_before_it_is_added():
    assert bool(InMemoryKnowledgeBase().add_item(TEA)) is True
    base = vector()
    added = base.add_item(TEA)
    with pytest.raises(UsageError, match=r"await kb\.add_item"):
        bool(added)
    assert await base.flush() == 1
    assert await base.flush() == 0


@every_base
async def test_filters_are_a_filter_or_a_mapping(make):
    base = make()
    base.add_item(TEA)
    base.add_item(KnowledgeItem(id="kb_5", content="Green tea towels are sold here", metadata={"topic": "shop"}))
    for filters in ({"topic": "drinks"}, {"topic": ["drinks", "food"]}, Eq("meta.topic", "drinks")):
        assert [item.id for item in await base.query("green tea", filters=filters)] == ["kb_2"]
        assert [hit.item.document_id for hit in await base.search("green tea", where=filters)] == ["kb_2"]
    assert (await base.query("green tea", 5, {"topic": "drinks"}))[0].metadata == {"topic": "drinks"}
    assert await base.query("green tea", filters={"topic": "garden"}) == []


@every_base
async def test_a_long_document_comes_in_passages_and_is_read_back_whole(make):
    text = "Anna drinks green tea in the morning. Bruno drinks black coffee at noon. Clara drinks cocoa at night."
    base = make()
    await base.add(Document(id="diary", text=text, source="diary"))
    found = await base.query("who drinks cocoa")
    assert len({item.id for item in found}) == len(found)
    for item in found:
        assert (await base.get_by_id(item.id)).content == item.content
    assert (await base.get_by_id("diary")).content == text
    assert await base.get_by_id("unknown") is None


@every_base
async def test_a_bad_item_is_refused_at_once(make):
    base = make()
    with pytest.raises(UsageError):
        base.add_item(KnowledgeItem(id="", content="text"))
    with pytest.raises(UsageError, match="at most"):
        base.add_item(KnowledgeItem(id="a", content="x" * 10_000_001))
    assert await base.query("text") == []


class Switched(HashEmbedder):
    """An embedder that can be switched off."""

    is_down = True

    async def embed(self, texts, *, purpose="document"):
        if self.is_down:
            raise ProviderUnavailable("the service is down; try again later")
        return await super().embed(texts, purpose=purpose)


async def test_items_wait_on_while_the_embedder_is_down():
    embedder = Switched()
    base = vector(embedder)
    base.add_item(TOKENS)
    with pytest.raises(ProviderUnavailable):
        await base.query("tokens")
    with pytest.raises(ProviderUnavailable):
        await base.add_item(TEA)
    Switched.is_down = False
    try:
        assert [item.id for item in await base.query("Bearer tokens")] == ["kb_1"]
    finally:
        Switched.is_down = True


def test_items_that_were_never_added_are_named_when_the_base_goes_away():
    base = vector()
    base.add_item(TEA)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del base
    assert [str(one.message) for one in caught if one.category is RuntimeWarning] == [
        "1 item(s) of the knowledge base 'default' were never added; await kb.flush() before the knowledge base is dropped"
    ]


async def test_a_base_over_a_graph_service_takes_no_items():
    class Service:
        def search(self, **_):
            return {"results": [{"content": "found", "id": "r1", "score": 0.5}]}

    base = GraphKnowledgeBase(graph_rag_service=Service(), search_mode="hybrid", max_hops=2)
    with pytest.raises(UsageError, match="service"):
        base.add_item(TEA)
    assert [(item.id, item.content, item.relevance) for item in await base.query("x")] == [("r1", "found", 0.5)]
    with pytest.raises(UsageError, match="service"):
        await base.get_by_id("r1")


@pytest.mark.parametrize("embedder", [HashEmbedder(), StaticEmbedder()])
async def test_embed_takes_texts_alone_and_embed_batch_is_the_same(embedder):
    texts = ["green tea", "black coffee"]
    by_embed, by_batch = await embedder.embed(texts), await embedder.embed_batch(texts)
    as_documents = await embedder.embed(texts, purpose="document")
    assert [list(v) for v in by_embed] == [list(v) for v in by_batch] == [list(v) for v in as_documents]
    assert callable(OpenAIEmbeddingProvider(api_key="k").embed_batch)
