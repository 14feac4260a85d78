"""A knowledge base over any vector engine keeps every law of a knowledge base."""

import pytest

from loom.knowledge.graph import GraphKnowledgeBase
from loom.knowledge.vector import VectorKnowledgeBase
from loom.protocols.knowledge_base import Document
from loom.providers.embedding.local import HashEmbedder
from loom.testing.conformance import KnowledgeBaseSuite, SharedKnowledgeSuite


class KnowledgeLaws(KnowledgeBaseSuite):
    """Subclass it and override the fixture `vectors`: an empty store, closed afterwards."""

    @pytest.fixture
    async def base(self, vectors):
        return VectorKnowledgeBase(
            embedding_provider=HashEmbedder(), vector_store=vectors, chunk_size=60, chunk_overlap=20
        )


class SharedLaws(SharedKnowledgeSuite):
    """Subclass it and override the fixture `vectors`: an empty store, closed afterwards."""

    @pytest.fixture
    async def another(self, vectors):
        async def make():
            return VectorKnowledgeBase(
                embedding_provider=HashEmbedder(), vector_store=vectors, chunk_size=60, chunk_overlap=20
            )

        return make


async def check_that_a_base_persists(open_store):
    """What was added is found after the store was closed and opened again, by a base and by a graph."""
    store = open_store()
    base = VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=store)
    await base.add(Document(id="d", text="Green tea comes from Uji.", source="guide", attributes={"n": 1}))
    found = await base.search("tea")
    graph = GraphKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=store)
    await graph.add(Document(id="e", text="Anna knows Bruno."))
    await graph.add_facts(("Bruno", "works_at", "Acme Group"))
    near = await graph.search("Anna")
    await store.aclose()

    store = open_store()
    base = VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=store)
    assert await base.search("tea") == found
    assert (await base.get_by_id("d")).content == "Green tea comes from Uji."
    graph_again = GraphKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=store)
    assert await graph_again.search("Anna") == near
    assert graph_again.relations == graph.relations
    assert await base.remove("d") == 1
    await store.aclose()

    store = open_store()
    base = VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=store)
    assert await base.search("tea") == ()
    await store.aclose()


async def check_that_names_are_kept_apart(vectors):
    """Two knowledge bases and a document of one id in one store."""
    one, two = (
        VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=vectors, name=name, words_weight=0.0)
        for name in ("one", "two")
    )
    await one.add(Document(id="d", text="green tea from Uji"))
    await two.add(Document(id="d", text="the piano in Zurich"))
    assert [hit.item.text for hit in await one.search("tea")] == ["green tea from Uji"]
    assert await one.remove("d") == 1
    assert [hit.item.text for hit in await two.search("piano")] == ["the piano in Zurich"]
