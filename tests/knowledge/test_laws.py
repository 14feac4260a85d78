"""The laws of a knowledge base, for all three of them."""

import anyio
import pytest

from loom.core.filter import And, Eq, In, Not
from loom.core.hit import rank_key
from loom.core.record import Provenance
from loom.errors import ProviderUnavailable, UsageError
from loom.knowledge.graph import GraphKnowledgeBase
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.knowledge.vector import VectorKnowledgeBase
from loom.protocols.knowledge_base import Document, KnowledgeBase
from loom.providers.embedding.hashing import HashEmbedder
from loom.stores.inmemory.vectors import InMemoryVectorStore

pytestmark = pytest.mark.anyio

SMALL = {"chunk_size": 60, "chunk_overlap": 20}
GUIDE = Document(
    id="guide",
    text="API authentication uses Bearer tokens. Tokens expire after one hour.  The gateway rejects old tokens.\n\nBerlin hosts it.",
    source="API docs",
    provenance=Provenance("operator", trusted=True),
    attributes={"lang": "en", "year": 2026},
)
TEA = Document(id="tea", text="Green tea is brewed at eighty degrees.", source="Cook book")


def _vector():
    return VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore(), **SMALL)


def _graph_with_vectors():
    return GraphKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore(), **SMALL)


@pytest.fixture(
    params=[lambda: InMemoryKnowledgeBase(**SMALL), _vector, lambda: GraphKnowledgeBase(**SMALL), _graph_with_vectors],
    ids=["words", "vector", "graph", "graph+vector"],
)
def base(request) -> KnowledgeBase:
    return request.param()


async def _documents(base, query, **how):
    return [hit.item.document_id for hit in await base.search(query, **how)]


async def test_it_is_a_knowledge_base(base):
    assert isinstance(base, KnowledgeBase)


async def test_searching_an_empty_corpus_gives_nothing(base):
    assert await base.search("tokens") == ()
    assert await base.search("!!!") == ()
    assert await base.remove("guide") == 0
    assert await base.add() == 0


async def test_adding_the_same_document_again_adds_nothing(base):
    assert await base.add(GUIDE, TEA) == 2
    before = await base.search("tokens", limit=50)
    assert await base.add(GUIDE, TEA) == 0
    assert await base.add(GUIDE, GUIDE) == 0
    assert await base.search("tokens", limit=50) == before
    assert len({hit.item.id for hit in before}) == len(before)


async def test_other_text_under_an_id_replaces_all_of_its_passages(base):
    await base.add(GUIDE, TEA)
    assert await base.add(Document(id="guide", text="Sessions are signed with Cookies.")) == 1
    hits = await base.search("tokens gateway Berlin API Bearer Cookies", limit=50)
    assert {hit.item.text for hit in hits if hit.item.document_id == "guide"} == {"Sessions are signed with Cookies."}


async def test_another_source_of_the_same_text_shows(base):
    await base.add(TEA)
    assert await base.add(Document(id="tea", text=TEA.text, source="Second edition")) == 1
    assert [hit.item.source for hit in await base.search("Green tea")] == ["Second edition"]


async def test_of_two_under_one_id_the_later_counts(base):
    assert await base.add(TEA, Document(id="tea", text="Black tea is brewed longer.")) == 1
    assert [hit.item.text for hit in await base.search("tea")] == ["Black tea is brewed longer."]


async def test_removing_a_document_removes_its_passages(base):
    await base.add(GUIDE, TEA)
    assert await base.remove("guide", "guide", "unknown") == 1
    assert "guide" not in await _documents(base, "API authentication Bearer tokens gateway", limit=50)
    assert await _documents(base, "Green tea") == ["tea"]
    assert await base.add(GUIDE) == 1
    assert (await _documents(base, "Bearer tokens"))[0] == "guide"


async def test_a_hit_is_a_passage_of_the_document(base):
    await base.add(GUIDE, TEA)
    hits = [hit for hit in await base.search("API tokens gateway Berlin", limit=50) if hit.item.document_id == "guide"]
    assert len(hits) >= 3
    for hit in hits:
        passage = hit.item
        assert passage.text == GUIDE.text[passage.start : passage.end]
        assert (passage.source, passage.provenance) == ("API docs", GUIDE.provenance)
        assert dict(passage.attributes) == {"lang": "en", "year": 2026}
        assert len(passage.text) <= 60


async def test_hits_are_ordered_and_say_why(base):
    await base.add(GUIDE, TEA, *(Document(id=f"copy{n}", text="The gateway rejects old tokens.") for n in range(5)))
    hits = await base.search("gateway tokens", limit=50)
    assert list(hits) == sorted(hits, key=rank_key)
    assert all(hit.why and set(hit.why) <= {"bm25", "vector", "graph"} for hit in hits)
    assert await base.search("gateway tokens", limit=3) == hits[:3]


async def test_filters_come_before_the_limit(base):
    many = [Document(id=f"n{n:02}", text=f"The gateway rejects token {n}.", attributes={"n": n}) for n in range(90)]
    await base.add(*many, TEA)
    where = And(In("meta.n", (88, 89)), Not(Eq("id", "tea#0")))
    assert sorted(await _documents(base, "gateway rejects tokens", limit=2, where=where)) == ["n88", "n89"]
    assert await _documents(base, "gateway tea", where=Eq("source", "Cook book")) == ["tea"]
    assert await _documents(base, "gateway tea", where=Eq("trusted", value=True)) == []


@pytest.mark.parametrize(("query", "limit"), [("tea", 0), (3, 5)])
async def test_a_search_that_cannot_be_meant_is_refused(base, query, limit):
    with pytest.raises(UsageError):
        await base.search(query, limit=limit)


async def test_what_is_no_document_is_refused_and_nothing_stays(base):
    with pytest.raises(UsageError, match="not a document"):
        await base.add(TEA, "text")
    assert await base.search("tea") == ()


async def test_long_and_look_alike_ids_stay_apart(base):
    ids = ["a", "a#0", "a#0#0", "x" * 512, "x" * 511 + "y"]
    assert await base.add(*(Document(id=id, text=f"Green tea number {place}.") for place, id in enumerate(ids))) == 5
    hits = await base.search("green tea", limit=20)
    assert sorted(hit.item.document_id for hit in hits) == sorted(ids)
    assert len({hit.item.id for hit in hits}) == 5


async def test_adding_at_the_same_time_counts_once(base):
    counts = []

    async def add():
        counts.append(await base.add(GUIDE, TEA))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(add)
    assert sorted(counts) == [0, 0, 0, 2]


class Flaky(HashEmbedder):
    """An embedder that can be switched off."""

    down = False

    async def embed(self, texts, *, purpose):
        if type(self).down:
            raise ProviderUnavailable("the service is down; try again later")
        return await super().embed(texts, purpose=purpose)


@pytest.mark.parametrize("kind", [VectorKnowledgeBase, GraphKnowledgeBase])
async def test_a_failed_add_leaves_everything_as_it_was(kind, monkeypatch):
    store = InMemoryVectorStore()
    base = kind(embedding_provider=Flaky(), vector_store=store)
    await base.add(TEA)
    monkeypatch.setattr(Flaky, "down", True)  # the switch of the fake
    with pytest.raises(ProviderUnavailable):
        await base.add(GUIDE, Document(id="tea", text="Changed tea."))
    monkeypatch.setattr(Flaky, "down", False)
    assert [hit.item.text for hit in await base.search("tea tokens", limit=9)] == [TEA.text]
    assert await base.add(GUIDE) == 1
