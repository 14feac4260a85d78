"""The suite of knowledge bases can fail: bases with one planted fault each, and the law that catches it."""

from dataclasses import replace

import anyio.lowlevel
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from loom.core.record import Hit
from loom.knowledge.graph import GraphKnowledgeBase, Network
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.testing.conformance import KnowledgeBaseMachine, KnowledgeBaseSuite
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio


class AddsTwice(InMemoryKnowledgeBase):
    async def add(self, *documents):
        await super().add(*documents)
        return len(documents)


class KeepsOldPassages(InMemoryKnowledgeBase):
    async def add(self, *documents):
        old = dict(self.corpus.passages)
        added = await super().add(*documents)
        for id, passage in old.items():
            if id not in self.corpus.passages:
                self.corpus.passages[id] = passage
                self.corpus.index.add(id, passage.text)
        return added


class LooksAtTheTextAlone(InMemoryKnowledgeBase):
    async def add(self, *documents):
        known = {p.document_id: p.text for p in self.corpus.passages.values()}
        return await super().add(*(d for d in documents if known.get(d.id) != d.text))


class RemovesTheFirstPassageAlone(InMemoryKnowledgeBase):
    async def remove(self, *document_ids):
        kept = [p for p in self.corpus.passages.values() if p.document_id in document_ids and p.start > 0]
        removed = await super().remove(*document_ids)
        for passage in kept:
            self.corpus.passages[passage.id] = passage
            self.corpus.index.add(passage.id, passage.text)
        return removed


class CountsWhatIsUnknown(InMemoryKnowledgeBase):
    async def remove(self, *document_ids):
        await super().remove(*document_ids)
        return len(document_ids)


class MovesOffsets(InMemoryKnowledgeBase):
    async def search(self, query, **more):
        hits = await super().search(query, **more)
        return tuple(Hit(replace(h.item, start=h.item.start + 1, end=h.item.end + 1), h.score, h.why) for h in hits)


class LimitsBeforeFiltering(InMemoryKnowledgeBase):
    async def search(self, query, *, limit=5, where=None):
        hits = await super().search(query, limit=limit)
        return tuple(hit for hit in hits if where is None or where.matches(hit.item))


class IgnoresFilters(InMemoryKnowledgeBase):
    async def search(self, query, *, limit=5, where=None):
        return await super().search(query, limit=limit)


class OrdersByArrival(InMemoryKnowledgeBase):
    async def search(self, query, *, limit=5, where=None):
        hits = await super().search(query, limit=10_000, where=where)
        return tuple(reversed(hits))[:limit]


class SaysNoWhy(InMemoryKnowledgeBase):
    async def search(self, query, **more):
        return tuple(Hit(hit.item, hit.score) for hit in await super().search(query, **more))


class AddsOneByOne(InMemoryKnowledgeBase):
    async def add(self, *documents):
        return sum([await super(AddsOneByOne, self).add(document) for document in documents])


class FoldsCase(InMemoryKnowledgeBase):
    async def add(self, *documents):
        return await super().add(*(replace(document, id=document.id.lower()) for document in documents))


class ReadsThenAdds(InMemoryKnowledgeBase):
    async def add(self, *documents):
        new = len(self.corpus.drafts(documents))
        await anyio.lowlevel.checkpoint()
        await super().add(*documents)
        return new


class LosesTheEnd(InMemoryKnowledgeBase):
    async def add(self, *documents):
        return await super().add(*(replace(d, text=d.text[:1000]) if hasattr(d, "text") else d for d in documents))


class DropsSources(InMemoryKnowledgeBase):
    async def search(self, query, **more):
        hits = await super().search(query, **more)
        return tuple(Hit(replace(hit.item, source=""), hit.score, hit.why) for hit in hits)


CAUGHT_BY = {
    AddsTwice: "test_the_same_document_again_adds_nothing",
    KeepsOldPassages: "test_other_text_replaces_all_passages",
    LooksAtTheTextAlone: "test_whatever_a_hit_shows_can_change",
    RemovesTheFirstPassageAlone: "test_removing_a_document_removes_its_passages",
    CountsWhatIsUnknown: "test_searching_an_empty_corpus_gives_nothing",
    MovesOffsets: "test_a_hit_is_a_passage_of_its_document",
    LimitsBeforeFiltering: "test_filters_come_before_the_limit",
    IgnoresFilters: "test_filters_come_before_the_limit",
    OrdersByArrival: "test_hits_are_ordered_and_say_why",
    SaysNoWhy: "test_hits_are_ordered_and_say_why",
    AddsOneByOne: "test_adding_is_all_or_nothing",
    FoldsCase: "test_ids_are_data",
    ReadsThenAdds: "test_adding_at_the_same_time_counts_once",
    LosesTheEnd: "test_every_part_of_a_document_is_found",
    DropsSources: "test_a_hit_is_a_passage_of_its_document",
}


class GoesTooFar(GraphKnowledgeBase):
    async def search_graph(self, query, *, max_hops=2, **more):
        return await super().search_graph(query, max_hops=max_hops + 1, **more)


class StaysAtHome(GraphKnowledgeBase):
    async def search_graph(self, query, *, max_hops=2, **more):
        return await super().search_graph(query, max_hops=min(max_hops, 1), **more)


class FollowsInEveryMode(GraphKnowledgeBase):
    async def search_graph(self, query, *, mode="hybrid", **more):
        return await super().search_graph(query, mode="hybrid" if mode == "vector" else mode, **more)


class _Unforgetting(Network):
    def remove(self, document_id):
        """Relations stay."""


class KeepsRelations(GraphKnowledgeBase):
    def __init__(self):
        super().__init__()
        self._network = _Unforgetting()


GRAPH_CAUGHT_BY = {
    GoesTooFar: "test_the_graph_goes_max_hops_and_no_further",
    StaysAtHome: "test_the_graph_goes_max_hops_and_no_further",
    FollowsInEveryMode: "test_the_signals_are_told_apart",
    KeepsRelations: "test_relations_go_with_their_document",
}


async def broken(make, only=None):
    return await broken_laws(KnowledgeBaseSuite, lambda: {"base": make()}, only)


@pytest.mark.parametrize("sound", [InMemoryKnowledgeBase, GraphKnowledgeBase])
async def test_a_sound_base_breaks_no_law(sound):
    assert await broken(sound) == set()


@pytest.mark.parametrize(("mutant", "law"), [*CAUGHT_BY.items(), *GRAPH_CAUGHT_BY.items()])
async def test_a_planted_fault_breaks_its_law(mutant, law):
    assert await broken(mutant, only=law) == {law}


MODEL = [AddsTwice, KeepsOldPassages, LooksAtTheTextAlone, RemovesTheFirstPassageAlone, MovesOffsets, IgnoresFilters,
         OrdersByArrival, FoldsCase]  # fmt: skip


@pytest.mark.parametrize("mutant", MODEL)
def test_a_planted_fault_is_found_by_the_model(mutant):
    class Machine(KnowledgeBaseMachine):
        def make_base(self):
            return mutant(chunk_size=60, chunk_overlap=20)

    quick = settings(
        max_examples=100, stateful_step_count=15, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(Machine, settings=quick)
