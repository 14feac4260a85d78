"""Laws of a knowledge base: alone, sharing a store, and against a plain dict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from loom.core.filter import And, Eq, Filter, In, Not
from loom.core.record import Hit, Passage, Provenance, rank_key
from loom.errors import UsageError
from loom.protocols.knowledge_base import Document, KnowledgeBase, SearchesGraph, SearchMode
from loom.testing.conformance.machines import Machine
from loom.testing.conformance.suite import TWINS, Suite, at_once

CHAIN = (
    Document(id="d0", text="Anna knows Bruno."),
    Document(id="d1", text="Bruno knows Clara."),
    Document(id="d2", text="Clara knows Dmitri."),
    Document(id="d3", text="Dmitri knows Emil."),
    Document(id="d9", text="Yusuf knows Zora."),
)
"""Each name but the first and the last is one relation further from Anna; the last document is out of reach."""


def a_document(id: str = "tea", text: str = "Anna drinks green tea.", **fields: Any) -> Document:
    """A document about tea; `fields` say otherwise."""
    return Document(id=id, text=text, **fields)


class KnowledgeBaseSuite(Suite):
    """Subclass it and override the fixture `base`.

    Texts speak of people by name, so that words, vectors and relations all find them; what a base finds beyond the
    documents that name what is asked for is its own affair.
    """

    @pytest.fixture
    async def base(self) -> KnowledgeBase:
        """An empty knowledge base."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `base`")

    async def test_searching_an_empty_corpus_gives_nothing(self, base: KnowledgeBase) -> None:
        """And adding or removing nothing is allowed."""
        assert await base.search("Anna") == ()
        assert await base.search("?!") == ()
        assert (await base.add(), await base.remove(), await base.remove("tea")) == (0, 0, 0)

    async def test_the_same_document_again_adds_nothing(self, base: KnowledgeBase) -> None:
        """The answers are those of before, and no passage is there twice."""
        assert await base.add(a_document(), a_document("two")) == 2
        before = await base.search("Anna", limit=50)
        assert await base.add(a_document(), a_document("two"), a_document()) == 0
        assert await base.search("Anna", limit=50) == before
        assert sorted(hit.item.id for hit in before) == sorted({hit.item.id for hit in before})

    async def test_other_text_replaces_all_passages(self, base: KnowledgeBase) -> None:
        """Of a document with many passages none is left."""
        await base.add(_long("tea"), a_document("other"))
        assert await base.add(a_document(text="Bruno drinks coffee.")) == 1
        for query in ("Anna", "Bruno", "Anna and Bruno drink"):
            texts = {hit.item.text for hit in await base.search(query, limit=500) if _document(hit) == "tea"}
            assert texts <= {"Bruno drinks coffee."}
        assert "tea" in await _documents(base, "Bruno")

    @pytest.mark.parametrize(
        "changed",
        [{"source": "second edition"}, {"provenance": Provenance("web")}, {"attributes": {"n": True}}],
        ids=["source", "provenance", "attributes"],
    )
    async def test_whatever_a_hit_shows_can_change(self, base: KnowledgeBase, changed: dict[str, Any]) -> None:
        """The same text with another source, provenance or attribute is a change, and shows."""
        await base.add(a_document(attributes={"n": 1}))
        given: dict[str, Any] = {"attributes": {"n": 1}} | changed
        assert await base.add(a_document(**given)) == 1
        (hit,) = await base.search("Anna")
        assert isinstance(hit.item, Passage)
        for name, value in changed.items():
            assert repr(getattr(hit.item, name)) == repr(value)

    async def test_of_two_under_one_id_the_later_counts(self, base: KnowledgeBase) -> None:
        """In one call as in two."""
        assert await base.add(a_document(), a_document(text="Anna drinks coffee.")) == 1
        assert [hit.item.text for hit in await base.search("Anna")] == ["Anna drinks coffee."]

    async def test_removing_a_document_removes_its_passages(self, base: KnowledgeBase) -> None:
        """All of its passages, once, and no other document's; it may be added again."""
        await base.add(_long("long"), a_document())
        assert await base.remove("long", "long", "unknown") == 1
        assert await _documents(base, "Anna drinks tea") == {"tea"}
        assert await base.remove("long") == 0
        assert await base.add(_long("long")) == 1
        assert await _documents(base, "Anna drinks tea") == {"long", "tea"}

    async def test_a_hit_is_a_passage_of_its_document(self, base: KnowledgeBase) -> None:
        """With its id, source, provenance and attributes, and the text from start to end."""
        documents = {document.id: document for document in (_long("long"), _long("accents", "Zo\u00eb \U0001f375 "))}
        await base.add(*documents.values())
        hits = await base.search("Anna drinks tea", limit=500)
        assert {_document(hit) for hit in hits} == set(documents)
        for hit in hits:
            passage = hit.item
            assert isinstance(passage, Passage)
            document = documents[passage.document_id]
            assert passage.text == document.text[passage.start : passage.end]
            assert (passage.source, passage.provenance) == (document.source, document.provenance)
            assert passage.attributes == document.attributes

    async def test_every_part_of_a_document_is_found(self, base: KnowledgeBase) -> None:
        """A name at the start, in the middle or at the end leads to a passage that holds it."""
        names = ("Bruno", "Clara", "Dmitri")
        filler = "Anna drinks green tea. " * 100
        await base.add(a_document(text=filler.join(f"{name} sings. " for name in names)))
        for name in names:
            assert any(name in hit.item.text for hit in await base.search(name, limit=500)), name

    async def test_hits_are_ordered_and_say_why(self, base: KnowledgeBase) -> None:
        """By rank_key, the same each time; a limit cuts off the end, also of many."""
        await base.add(*(a_document(f"d{n:03}", f"Anna {'drinks tea ' * (n % 7)}with guest {n}.") for n in range(150)))
        hits = await base.search("Anna drinks tea", limit=1000)
        assert len({_document(hit) for hit in hits}) == 150
        assert list(hits) == sorted(hits, key=rank_key)
        assert all(hit.why for hit in hits)
        for limit in (1, 2, 20, 60):
            assert await base.search("Anna drinks tea", limit=limit) == hits[:limit]

    async def test_filters_come_before_the_limit(self, base: KnowledgeBase) -> None:
        """Better passages that do not fit the filter take no place."""
        await base.add(*(a_document(f"a{n:03}", attributes={"n": n}) for n in range(90)))
        await base.add(a_document("z", f"Anna {'reads books and ' * 10}drinks.", source="library"))
        where = And(In("meta.n", (88, 89)), Not(Eq("document_id", "a088")))
        assert [_document(hit) for hit in await base.search("Anna drinks green tea", limit=1, where=where)] == ["a089"]
        found = await base.search("Anna drinks green tea", limit=1, where=Eq("source", "library"))
        assert [_document(hit) for hit in found] == ["z"]
        assert await base.search("Anna", where=Eq("trusted", value=True)) == ()

    @pytest.mark.parametrize(("query", "limit"), [("Anna", 0), ("Anna", -1), (3, 5)])
    async def test_a_search_that_cannot_be_meant_is_refused(self, base: KnowledgeBase, query: Any, limit: int) -> None:
        """Also where there is nothing to search."""
        with pytest.raises(UsageError):
            await base.search(query, limit=limit)

    async def test_adding_is_all_or_nothing(self, base: KnowledgeBase) -> None:
        """One item is not a document: none is added."""
        wrong: Any = "Anna drinks green tea."
        with pytest.raises(UsageError):
            await base.add(a_document(), wrong, a_document("two"))
        assert await base.search("Anna") == ()

    async def test_ids_are_data(self, base: KnowledgeBase) -> None:
        """Ids that look alike, or like those of passages, are different documents."""
        ids = sorted({id for pair in TWINS for id in pair} | {"tea", "tea#0", "tea#0#0"})
        assert await base.add(*(a_document(id) for id in ids)) == len(ids)
        assert await _documents(base, "Anna") == set(ids)
        assert await base.remove("tea") == 1
        assert await _documents(base, "Anna") == set(ids) - {"tea"}

    async def test_what_the_caller_changes_later_changes_nothing(self, base: KnowledgeBase) -> None:
        """A base holds its own copy."""
        given: Any = {"n": 1}
        document = a_document(attributes=given)
        await base.add(document)
        given["n"] = 2
        (hit,) = await base.search("Anna")
        assert isinstance(hit.item, Passage)
        assert hit.item.attributes == {"n": 1}

    async def test_adding_at_the_same_time_counts_once(self, base: KnowledgeBase) -> None:
        """Tasks that add the same documents do not add them twice."""
        counts = await at_once(*(base.add(a_document(), a_document("two")) for _ in range(4)))
        assert sorted(counts) == [0, 0, 0, 2]
        assert len(await base.search("Anna", limit=50)) == 2

    # -- of a base that follows relations -----------------------------------------------------------------

    @pytest.mark.parametrize("hops", range(5))
    async def test_the_graph_goes_max_hops_and_no_further(self, base: KnowledgeBase, hops: int) -> None:
        """A document that names a person within reach is found, any other is not."""
        graph = _graph(base)
        await base.add(*CHAIN)
        hits = await graph.search_graph("Anna", mode="graph", max_hops=hops, limit=50)
        assert [_document(hit) for hit in hits] == ["d0", "d1", "d2", "d3"][: hops + 1]
        assert all(set(hit.why) == {"graph"} for hit in hits)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)

    @pytest.mark.parametrize("mode", ["vector", "graph", "hybrid"])
    async def test_the_signals_are_told_apart(self, base: KnowledgeBase, mode: SearchMode) -> None:
        """`graph` speaks only for what is within reach, and never in the mode `vector`."""
        graph = _graph(base)
        await base.add(*CHAIN)
        try:
            hits = await graph.search_graph("Anna", mode=mode, max_hops=1, limit=50)
        except UsageError as error:
            pytest.skip(f"{type(base).__name__} was made without vectors: {error}")
        near = {_document(hit) for hit in hits if "graph" in hit.why}
        assert near == (set() if mode == "vector" else {"d0", "d1"})
        assert list(hits) == sorted(hits, key=rank_key)
        assert await graph.search_graph("Anna", mode=mode, max_hops=1, limit=2) == hits[:2]

    async def test_relations_go_with_their_document(self, base: KnowledgeBase) -> None:
        """Without the document in between, the way is closed; circles end."""
        graph = _graph(base)
        await base.add(*CHAIN, Document(id="circle", text="Dmitri knows Anna."))
        assert len(await graph.search_graph("Clara", mode="graph", max_hops=50, limit=50)) == 5
        await base.remove("circle", "d1")
        hits = await graph.search_graph("Anna", mode="graph", max_hops=50, limit=50)
        assert [_document(hit) for hit in hits] == ["d0"]

    @pytest.mark.parametrize("bad", [{"mode": "deep"}, {"max_hops": -1}, {"limit": 0}], ids=str)
    async def test_a_way_that_cannot_be_meant_is_refused(self, base: KnowledgeBase, bad: dict[str, Any]) -> None:
        """Unknown modes and negative numbers."""
        graph = _graph(base)
        with pytest.raises(UsageError):
            await graph.search_graph("Anna", **bad)


def _long(id: str, start: str = "") -> Document:
    """A document that no base takes for one passage."""
    text = start + " ".join(f"Anna drinks green tea on day {n}." for n in range(150))
    return Document(id=id, text=text, source="diary", provenance=Provenance("operator"), attributes={"lang": "en"})


def _document(hit: Any) -> str:
    return hit.item.document_id


async def _documents(base: KnowledgeBase, query: str) -> set[str]:
    return {_document(hit) for hit in await base.search(query, limit=500)}


def _graph(base: KnowledgeBase) -> SearchesGraph:
    if not isinstance(base, SearchesGraph):
        pytest.skip(f"{type(base).__name__} is not SearchesGraph")
    return base


# The laws of knowledge bases that share a store: what one of them writes, all of them have.

Another: TypeAlias = Callable[[], Awaitable[KnowledgeBase]]
"""Makes another knowledge base over the same store, as a second program would."""

DAYS = " ".join(f"Anna drinks green tea on day {n}." for n in range(150))


class SharedKnowledgeSuite(Suite):
    """Subclass it and override the fixture `another`."""

    @pytest.fixture
    async def another(self) -> Another:
        """What makes a knowledge base over one store, which is empty at first."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `another`")

    async def test_a_second_base_finds_what_the_first_added(self, another: Another) -> None:
        """With the same hits: passages, sources, provenance, attributes and scores."""
        one = await another()
        documents = (
            Document(id="long", text=DAYS, source="diary", provenance=Provenance("operator", trusted=True)),
            Document(id="short", text="Zo\u00eb \U0001f375 met Anna.\n\nShe left.", attributes={"n": 1, "b": True}),
        )
        await one.add(*documents)
        two = await another()
        for query in ("Anna drinks tea", "who met Anna"):
            first, second = [{h.item.id: h for h in await base.search(query, limit=500)} for base in (one, two)]
            assert {id: hit.item for id, hit in second.items()} == {id: hit.item for id, hit in first.items()}
            assert [second[id].score for id in first] == pytest.approx([hit.score for hit in first.values()], abs=1e-4)
            assert {_document(hit) for hit in second.values()} == {"long", "short"}
        assert await two.add(*documents) == 0

    async def test_a_base_that_was_there_before_finds_it_too(self, another: Another) -> None:
        """Also where the words find it and it is not among the nearest, and again after a change."""
        one, two = await another(), await another()
        await two.add(*(Document(id=f"d{n:03}", text=f"Bruno drinks coffee on day {n}.") for n in range(120)))
        assert len(await one.search("Bruno", limit=500)) == 120
        await one.add(Document(id="x", text="Anna keeps the quinine in the cellar."))
        assert "x" in {_document(hit) for hit in await two.search("quinine")}
        await one.add(Document(id="x", text="Anna keeps the absinthe in the cellar."))
        hits = await two.search("absinthe")
        assert {hit.item.text for hit in hits if _document(hit) == "x"} == {"Anna keeps the absinthe in the cellar."}

    async def test_other_text_replaces_it_everywhere(self, another: Another) -> None:
        """No passage of the old document is left, whichever base replaces it."""
        one, two = await another(), await another()
        await one.add(Document(id="tea", text=DAYS))
        assert len(await two.search("Anna", limit=500)) > 0
        assert await two.add(Document(id="tea", text="Bruno drinks coffee.")) == 1
        for base in (one, two, await another()):
            assert {hit.item.text for hit in await base.search("Anna or Bruno drinks", limit=500)} == {
                "Bruno drinks coffee."
            }

    async def test_the_second_removes_what_the_first_added(self, another: Another) -> None:
        """Once, all of its passages, and the first no longer finds it."""
        one, two = await another(), await another()
        await one.add(Document(id="long", text=DAYS), Document(id="tea", text="Anna drinks green tea."))
        assert await two.remove("long", "unknown") == 1
        assert await one.remove("long") == 0
        for base in (one, two, await another()):
            assert {_document(hit) for hit in await base.search("Anna drinks green tea", limit=500)} == {"tea"}
        assert await one.add(Document(id="long", text=DAYS)) == 1
        assert {_document(hit) for hit in await two.search("Anna", limit=500)} == {"long", "tea"}

    async def test_two_add_at_once(self, another: Another) -> None:
        """Each finds what both added, round after round."""
        one, two = await another(), await another()
        for turn in range(5):
            both = [Document(id=f"{name}{turn}", text=f"Anna gave {name} a present.") for name in ("one", "two")]
            await at_once(one.add(both[0]), two.add(both[1]))
            expected = {f"{name}{n}" for name in ("one", "two") for n in range(turn + 1)}
            for base in (one, two):
                assert {_document(hit) for hit in await base.search("Anna gave a present", limit=100)} == expected

    async def test_two_change_one_document_at_once(self, another: Another) -> None:
        """It has one complete text, the same for both bases; removing it removes it from both."""
        one, two = await another(), await another()
        texts = [" ".join(f"Anna {verb} on day {n}." for n in range(60)) for verb in ("sings", "paints")]
        first, second = (Document(id="anna", text=text) for text in texts)
        await at_once(one.add(first), two.add(second))
        bases = (one, two, await another())
        found = [{hit.item.text for hit in await base.search("Anna", limit=500)} for base in bases]
        assert found[0] == found[1] == found[2]
        assert len({text.split()[1] for text in found[0]}) == 1
        assert await two.remove("anna") == 1
        for base in (one, two, await another()):
            assert await base.search("Anna", limit=500) == ()

    async def test_a_document_can_come_and_go(self, another: Another) -> None:
        """What is removed and added again by the other is a new document."""
        one, two = await another(), await another()
        for text in ("Anna drinks tea.", "Anna drinks coffee.", "Anna drinks tea."):
            await one.remove("a")
            assert await two.add(Document(id="a", text=text)) == 1
            assert [hit.item.text for hit in await one.search("Anna drinks")] == [text]


# A knowledge base against a plain dict: random calls, and after each the same documents.

NAMES = ("Anna", "Bruno", "Clara", "Dmitri", "Emil")
IDS = st.sampled_from(["a", "A", "a#0", "a#1", "%", "e\u0301", "\u00e9"])
SENTENCES = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).map("{0[0]} knows {0[1]}.".format)
TEXTS = st.tuples(st.lists(SENTENCES, min_size=1, max_size=4), st.integers(1, 10)).map(
    lambda drawn: " ".join(drawn[0] * drawn[1])
)
"""Up to 40 sentences: some documents have one passage and others many, and all of them together not so many that a base
may leave some out before it ranks them."""
DOCUMENTS = st.builds(
    Document, id=IDS, text=TEXTS, source=st.sampled_from(["", "diary"]),
    attributes=st.dictionaries(st.just("n"), st.sampled_from([1, True, "1"]), max_size=1),
)  # fmt: skip
FILTERS = (
    st.builds(Eq, st.just("document_id"), IDS)
    | st.builds(Eq, st.just("meta.n"), st.sampled_from([1, True, None]))
    | st.builds(Not, st.builds(In, st.just("source"), st.just(("diary",))))
)


class KnowledgeBaseMachine(Machine):
    """Subclass it and say how a base is made; its `TestCase` is the test."""

    def make_base(self) -> KnowledgeBase:
        """A new, empty knowledge base."""
        raise NotImplementedError(f"{type(self).__name__} has to say how to make a knowledge base")

    @initialize()
    def open(self) -> None:
        """Start with nothing."""
        self.start_loop()
        self.base, self.documents = self.make_base(), dict[str, Document]()

    @rule(documents=st.lists(DOCUMENTS, max_size=3))
    def add(self, documents: list[Document]) -> None:
        """As many are new or changed as differ from what was there."""
        latest = {document.id: document for document in documents}
        new = [document for id, document in latest.items() if repr(self.documents.get(id)) != repr(document)]
        assert self.ask(self.base.add, *documents) == len(new)
        self.documents |= latest
        self.changed = True

    @rule(ids=st.lists(IDS, max_size=3))
    def remove(self, ids: list[str]) -> None:
        """As many go as were there."""
        assert self.ask(self.base.remove, *ids) == len(set(ids) & set(self.documents))
        for id in ids:
            self.documents.pop(id, None)
        self.changed = True

    @rule(name=st.sampled_from(NAMES), where=st.none() | FILTERS)
    def search(self, name: str, where: Filter | None) -> None:
        """Hits are passages of documents that are there; those that hold the name are among them."""
        hits: tuple[Hit, ...] = self.ask(self.base.search, name, limit=1000, where=where)
        self._check(hits)
        assert all(where is None or where.matches(hit.item) for hit in hits)
        found = {hit.item.document_id for hit in hits if isinstance(hit.item, Passage)}
        fitting = {id for id, document in self.documents.items() if where is None or where.matches(_as_hit(document))}
        assert {id for id in fitting if name in self.documents[id].text} <= found <= fitting
        assert self.ask(self.base.search, name, limit=2, where=where) == hits[:2]

    def compare(self) -> None:
        """Every document is found by what it says, and no other."""
        hits: tuple[Hit, ...] = self.ask(self.base.search, " ".join(NAMES), limit=1000)
        self._check(hits)
        assert {hit.item.document_id for hit in hits if isinstance(hit.item, Passage)} == set(self.documents)

    def _check(self, hits: tuple[Hit, ...]) -> None:
        assert list(hits) == sorted(hits, key=rank_key)
        assert len({hit.item.id for hit in hits}) == len(hits)
        for hit in hits:
            assert isinstance(hit.item, Passage)
            document = self.documents[hit.item.document_id]
            assert hit.item.text == document.text[hit.item.start : hit.item.end]
            assert (hit.item.source, hit.item.attributes) == (document.source, document.attributes)
            assert hit.why


def _as_hit(document: Document) -> Passage:
    """The document as one passage, for a filter to look at."""
    return Passage(
        id=document.id, document_id=document.id, text=document.text, start=0, end=len(document.text),
        provenance=document.provenance, source=document.source, attributes=document.attributes,
    )  # fmt: skip
