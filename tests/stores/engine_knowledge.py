"""A knowledge base over any vector engine keeps every law of a knowledge base."""

import pytest

from loom.knowledge.vector import VectorKnowledgeBase
from loom.protocols.knowledge_base import Document
from loom.providers.embedding.hashing import HashEmbedder
from loom.testing.conformance import KnowledgeBaseSuite


class KnowledgeLaws(KnowledgeBaseSuite):
    """Subclass it and override the fixture `vectors`: an empty store, closed afterwards."""

    @pytest.fixture
    async def base(self, vectors):
        return VectorKnowledgeBase(
            embedding_provider=HashEmbedder(), vector_store=vectors, chunk_size=60, chunk_overlap=20
        )


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
