import json
from datetime import UTC, datetime

import pytest

from loom.core.record import Fact, Provenance
from loom.core.scope import Scope
from loom.errors import BadResponse, EmbedderMismatch, ProviderUnavailable, UsageError
from loom.knowledge.graph import entity_key, relations_in
from loom.protocols.knowledge_base import Document, KnowledgeBase, SearchesGraph
from loom.protocols.vector_store import VectorItem
from loom.providers.embedding.local import HashEmbedder, StaticEmbedder
from loom.providers.knowledge import GraphKnowledgeBase, InMemoryKnowledgeBase, KnowledgeItem, VectorKnowledgeBase
from loom.stores.inmemory.vectors import InMemoryVectorStore

pytestmark = pytest.mark.anyio


def _doc(id, text):
    return Document(id=id, text=text)


async def test_the_seeds_question_finds_the_seeds_item():
    kb = InMemoryKnowledgeBase()
    item = KnowledgeItem(id="kb_1", content="API authentication uses Bearer tokens", source="API docs")
    assert bool(kb.add_item(item)) is True
    assert bool(kb.add_item(item)) is False
    kb.add_item(KnowledgeItem("kb_2", "Authors of the request form are thanked", "Credits"))
    (first, *_) = await kb.search("how do I authenticate API requests")
    assert (first.item.document_id, first.item.text, first.item.source) == ("kb_1", item.content, "API docs")
    assert 0 < first.score < 1 < first.why["bm25"]


async def test_rare_words_and_short_texts_weigh_more():
    kb = InMemoryKnowledgeBase()
    await kb.add(
        _doc("long", "The printer stands in the hall beside the plants and the printer is old and grey and loud."),
        _doc("short", "The printer jams."),
        *(_doc(f"p{n}", "A printer of the office.") for n in range(5)),
    )
    assert [hit.item.document_id for hit in await kb.search("printer jams", limit=1)] == ["short"]
    scores = {hit.item.document_id: hit.score for hit in await kb.search("hall printers", limit=9)}
    assert max(scores, key=lambda id: scores[id]) == "long"
    assert scores["short"] > 0


async def test_vectors_find_what_shares_no_word():
    kb = VectorKnowledgeBase(embedding_provider=StaticEmbedder(), vector_store=InMemoryVectorStore())
    await kb.add(_doc("dog", "I adopted a puppy called Biscuit."), _doc("deploy", "The staging deploy failed."))
    (first, *_) = await kb.search("what is my dog's name")
    assert first.item.document_id == "dog"
    assert set(first.why) == {"vector"}
    (first, *_) = await kb.search("staging")
    assert first.item.document_id == "deploy"
    assert set(first.why) == {"vector", "bm25"}


async def test_the_weight_of_words_goes_from_none_to_all():
    bases = [
        VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore(), words_weight=weight)
        for weight in (0.0, 1.0)
    ]
    whys = []
    for kb in bases:
        await kb.add(_doc("a", "green tea"), _doc("b", "blue car"))
        whys.append({name for hit in await kb.search("green") for name in hit.why})
    assert whys == [{"vector"}, {"bm25"}]
    with pytest.raises(UsageError, match="words_weight"):
        VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore(), words_weight=1.5)


async def test_bases_share_a_store_by_name_and_leave_no_vectors_behind():
    store, embedder = InMemoryVectorStore(), HashEmbedder()
    one = VectorKnowledgeBase(embedding_provider=embedder, vector_store=store, name="one")
    two = VectorKnowledgeBase(embedding_provider=embedder, vector_store=store, name="two")
    await one.add(_doc("d", "Green tea. " * 200))
    await two.add(_doc("d", "Blue car."))
    assert [hit.item.text for hit in await two.search("green tea")] == ["Blue car."]
    scope = Scope(namespace="knowledge", user_id="one")
    assert await store.count(scope) == 4
    await one.add(_doc("d", "Red bus."))
    assert await store.count(scope) == 1
    await one.remove("d")
    assert await store.count(scope) == 0


async def test_vectors_without_a_passage_are_never_shown_and_take_no_place():
    store, embedder = InMemoryVectorStore(), HashEmbedder()
    (vector,) = await embedder.embed(["green tea"], purpose="document")
    left_over = [VectorItem(f"old#{n}", vector) for n in range(300)]
    await store.upsert(Scope(namespace="knowledge", user_id="default"), left_over)
    kb = VectorKnowledgeBase(embedding_provider=embedder, vector_store=store, words_weight=0.0)
    await kb.add(_doc("a", "green"), _doc("b", "tea"))
    assert [hit.item.document_id for hit in await kb.search("green tea")] == ["a", "b"]


async def test_another_embedder_for_the_same_store_is_refused():
    store = InMemoryVectorStore()
    await VectorKnowledgeBase(embedding_provider=HashEmbedder(64), vector_store=store).add(_doc("a", "green tea"))
    with pytest.raises(EmbedderMismatch):
        await VectorKnowledgeBase(embedding_provider=HashEmbedder(32), vector_store=store).add(_doc("a", "green tea"))


CHAIN = (
    _doc("d1", "Anna Schmidt works at Acme. She likes walks."),
    _doc("d2", "Acme is in Berlin."),
    _doc("d3", "Berlin has a big airport."),
    _doc("d4", "The big airport was built by Otto."),
    _doc("d5", "Lisbon has trams."),
)


async def _found(kb, query, **how):
    return [hit.item.document_id for hit in await kb.search_graph(query, **how)]


@pytest.mark.parametrize(
    ("hops", "reached"), [(0, ["d1"]), (1, ["d1", "d2"]), (2, ["d1", "d2", "d3"]), (3, ["d1", "d2", "d3", "d4"])]
)
async def test_the_graph_goes_as_far_as_it_may(hops, reached):
    kb = GraphKnowledgeBase()
    await kb.add(*CHAIN)
    hits = await kb.search_graph("where does anna schmidt work", mode="graph", max_hops=hops, limit=20)
    assert [hit.item.document_id for hit in hits] == reached
    assert [hit.why for hit in hits] == [{"graph": 0.5**hop} for hop in range(hops + 1)]


async def test_one_word_of_a_name_is_enough_and_no_name_reaches_nothing():
    kb = GraphKnowledgeBase(search_mode="graph", max_hops=1)
    await kb.add(*CHAIN, _doc("d6", "Anna sings."))
    assert [hit.item.document_id for hit in await kb.search("does anna work")] == ["d1", "d6", "d2"]
    assert await kb.search("does somebody swim") == ()


async def test_circles_end():
    kb = GraphKnowledgeBase(search_mode="graph")
    await kb.add(_doc("1", "Ada knows Bob."), _doc("2", "Bob knows Cid."), _doc("3", "Cid knows Ada."))
    assert await _found(kb, "Ada", mode="graph", max_hops=50) == ["1", "3", "2"]


async def test_the_three_modes_tell_their_signals_apart():
    kb = GraphKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore())
    await kb.add(*CHAIN)
    assert isinstance(kb, KnowledgeBase)
    assert isinstance(kb, SearchesGraph)
    query = "Anna Schmidt works"
    by_vector = await kb.search_graph(query, mode="vector", limit=20)
    assert {name for hit in by_vector for name in hit.why} == {"vector"}
    assert by_vector[0].item.document_id == "d1"
    by_both = {hit.item.document_id: set(hit.why) for hit in await kb.search_graph(query, max_hops=1, limit=20)}
    assert by_both["d1"] == {"vector", "bm25", "graph"}
    assert by_both["d2"] == {"vector", "graph"}
    assert by_both["d5"] == {"vector"}


async def test_hybrid_puts_what_the_graph_reaches_before_what_nobody_speaks_for():
    kb = GraphKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore())
    await kb.add(*CHAIN)
    hits = await kb.search("Anna Schmidt works")
    assert [hit.item.document_id for hit in hits][:3] == ["d1", "d2", "d3"]
    alone = VectorKnowledgeBase(embedding_provider=HashEmbedder(), vector_store=InMemoryVectorStore())
    await alone.add(*CHAIN)
    text_score = {hit.item.document_id: hit.score for hit in await alone.search("Anna Schmidt works")}
    assert hits[1].score == pytest.approx(0.5 * text_score["d2"] + 0.5 * hits[1].why["graph"])


async def test_facts_join_what_documents_do_not():
    kb = GraphKnowledgeBase(search_mode="graph", max_hops=2)
    await kb.add(_doc("tea", "Sencha is steamed."), _doc("shop", "Kyoto has tea shops."))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    fact = Fact(
        id="f1", subject="Sencha", predicate="comes_from", object="Kyoto", recorded_at=at,
        provenance=Provenance("user", trusted=True),
    )  # fmt: skip
    assert await kb.add_facts(fact, ("Kyoto", "lies in", "Japan")) == 2
    assert await kb.add_facts(fact, ("Kyoto", "lies in", "Japan")) == 0
    assert [relation.predicate for relation in kb.relations] == ["has", "lies in", "comes_from", "is"]
    hits = await kb.search("sencha", limit=20)
    texts = [hit.item.text for hit in hits]
    assert sorted(texts[:2]) == ["Sencha comes from Kyoto", "Sencha is steamed."]
    assert texts[2:] == ["Kyoto lies in Japan", "Kyoto has tea shops."]
    provenances = {hit.item.document_id: hit.item.provenance for hit in hits}
    assert provenances["fact:f1"] == Provenance("user", trusted=True)
    assert await kb.remove("fact:f1") == 1
    assert [hit.item.document_id for hit in await kb.search("sencha", limit=20)] == ["tea"]


async def test_a_relation_lives_as_long_as_one_document_states_it():
    kb = GraphKnowledgeBase(search_mode="graph", max_hops=1)
    await kb.add(_doc("1", "Ada knows Bob."), _doc("2", "Yes: Ada knows Bob."), _doc("3", "Bob sings."))
    await kb.remove("1")
    assert await _found(kb, "Ada", mode="graph", max_hops=1) == ["2", "3"]
    await kb.add(_doc("2", "Ada sleeps."))
    assert await _found(kb, "Ada", mode="graph", max_hops=1) == ["2"]
    assert kb.relations == ()


def test_relations_are_read_by_rule():
    def read(text):
        return [tuple(relation) for relation in relations_in(text).relations]

    assert read("The API gateway uses bearer tokens for logins.") == [("api gatewai", "uses", "bearer token")]
    assert read("Marie Curie met Albert Einstein in Brussels, and left.") == [
        ("mari curi", "met", "albert einstein"), ("albert einstein", "in", "brussel"),
    ]  # fmt: skip
    assert read("Anna and Bob sing. We are here. It is.") == []
    assert entity_key("The Bearer Tokens") == entity_key("a bearer token") == "bearer token"
    assert entity_key("the") == entity_key("") == ""


@pytest.mark.parametrize(
    "bad",
    [{"search_mode": "deep"}, {"max_hops": -1}, {"graph_weight": 2}, {"embedding_provider": HashEmbedder()}],
    ids=lambda bad: next(iter(bad)),
)
def test_settings_that_cannot_work_are_refused(bad):
    with pytest.raises(UsageError):
        GraphKnowledgeBase(**bad)


async def test_questions_that_cannot_be_answered_are_refused():
    kb = GraphKnowledgeBase()
    with pytest.raises(UsageError, match="needs vectors"):
        await kb.search_graph("Ada", mode="vector")
    with pytest.raises(UsageError, match="max_hops=-1"):
        await kb.search_graph("Ada", max_hops=-1)
    with pytest.raises(UsageError, match="triple"):
        await kb.add_facts(("Ada", "knows"))


class Service:
    """A graph service as a user would bring one."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def search(self, **question):
        self.asked.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class AsyncService:
    """The same, async."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    async def search(self, **question):
        self.asked.append(question)
        return self.answer


ROWS = {
    "results": [
        {"id": "r1", "content": "Low", "score": 0.2, "source": "wiki", "metadata": {"lang": "en", "path": ["x"]}},
        {"chunk_id": "r2", "text": "High", "score": 0.9},
    ]
}


@pytest.mark.parametrize("kind", [Service, AsyncService])
async def test_a_service_answers_instead_of_the_own_graph(kind):
    service = kind(ROWS)
    kb = GraphKnowledgeBase(graph_rag_service=service, search_mode="hybrid", max_hops=2)
    hits = await kb.search("Ada", limit=7)
    assert [(hit.item.id, hit.item.text, hit.score, dict(hit.why)) for hit in hits] == [
        ("r2", "High", 0.9, {"hybrid": 0.9}), ("r1", "Low", 0.2, {"hybrid": 0.2}),
    ]  # fmt: skip
    assert (hits[1].item.source, dict(hits[1].item.attributes)) == ("wiki", {"lang": "en"})
    assert not hits[1].item.provenance.trusted
    assert service.asked == [
        {
            "query": "Ada", "top_k": 7, "max_hops": 2, "search_mode": "hybrid", "rerank_enabled": True,
            "vector_weight": 0.5, "graph_weight": 0.5,
        }
    ]  # fmt: skip
    with pytest.raises(UsageError, match="add documents to that service"):
        await kb.add(_doc("1", "x"))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"results": "text"},
        {"results": [3]},
        {"results": [{"id": "a"}]},
        {"results": [{"text": "a", "score": "b"}]},
    ],
    ids=json.dumps,
)
async def test_an_answer_of_another_shape_is_a_bad_response(answer):
    with pytest.raises(BadResponse, match="graph service"):
        await GraphKnowledgeBase(graph_rag_service=Service(answer)).search("Ada")


async def test_a_failing_service_is_unavailable_with_its_cause():
    with pytest.raises(ProviderUnavailable, match="RuntimeError: boom") as caught:
        await GraphKnowledgeBase(graph_rag_service=Service(RuntimeError("boom"))).search("Ada")
    assert isinstance(caught.value.__cause__, RuntimeError)
