"""A search looks at little and finds the same as one that looks at everything."""

import random
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.filter import Eq
from loom.core.hit import rank_key
from loom.core.words import query_terms, terms
from loom.protocols.memory_store import Query
from loom.stores.inmemory.lexical import WordIndex
from loom.stores.inmemory.shelf import Change, Shelf, unit_vector
from loom.stores.inmemory.vector_table import VectorTable
from loom.testing.conformance.samples import ALICE, START, an_episode

COUNT = 300
TEXTS = ("tea", "tea and milk", "milk", "green tea with milk and honey", "a piano", "tea tea tea")
VECTORS = [unit_vector(v, 3, "v") for v in ((1, 0, 0), (0, 1, 0), (0.6, 0.8, 0), (-1, 0, 0.1), (1, 1, 1))]


@pytest.fixture(scope="module")
def shelf():
    """Many records, most of which score the same as others."""
    chance = random.Random(7)
    shelf = Shelf()
    records = [an_episode(f"e{n:03}", chance.choice(TEXTS), importance=chance.choice((0.1, 0.9))) for n in range(COUNT)]
    chance.shuffle(records)
    keys = {r.id: {"around": chance.choice(TEXTS)} for r in records if chance.random() < 0.3}
    shelf.apply(Change({record.id: record for record in records}, keys))
    shelf.set_vectors(ALICE, {r.id: chance.choice(VECTORS) for r in records if chance.random() < 0.7})
    for record in records[: COUNT // 10]:
        shelf.apply(Change({record.id: None}, {}))
    return shelf


def speaks(shelf, record, query, vector):
    """Whether anything speaks for a record."""
    said = terms(" ".join([record.text, *shelf.keys.get(record.id, {}).values()]))
    has_word = not set(said).isdisjoint(query_terms(query.text))
    return has_word or (record.id in shelf.vectors if vector is not None else not query.text)


def everything(shelf, query, vector):
    """All hits in order, each found by itself."""
    found = []
    for record in shelf.select(ALICE, query.where):
        alone = Query(text=query.text, where=Eq("id", record.id), limit=1)
        for hit in shelf.search(ALICE, alone, now=START, vector=vector):
            assert hit.score == fsum(hit.why.values())
            found.append((hit.item.id, hit.score, hit.why))
    assert {id for id, _, _ in found} == {
        r.id for r in shelf.select(ALICE, query.where) if speaks(shelf, r, query, vector)
    }
    return sorted(found, key=lambda one: (-one[1], one[0]))


@pytest.mark.parametrize("text", ["", "tea", "milk honey piano", "nowhere"])
@pytest.mark.parametrize("vector", [None, VECTORS[2], VECTORS[4]])
@pytest.mark.parametrize("where", [None, Eq("importance", 0.9), Eq("id", "e150")])
def test_the_best_are_the_first_of_all(shelf, text, vector, where):
    query = Query(text=text, where=where, limit=COUNT)
    due = everything(shelf, query, vector)
    for limit in (1, 7, 64, 65, 200, COUNT):
        hits = shelf.search(ALICE, Query(text=text, where=where, limit=limit), now=START, vector=vector)
        assert [(hit.item.id, hit.score, hit.why) for hit in hits] == due[:limit]
        assert hits == sorted(hits, key=rank_key)


def test_an_index_keeps_no_word_of_what_is_gone():
    index = WordIndex()
    index.set("a", ["secret", "tea"])
    index.set("b", ["tea"])
    index.remove("a")
    assert list(index._postings) == ["tea"]
    assert index.scores(["secret"]) == {}
    index.remove("b")
    assert (index._postings, index._words, index._lengths, index._total) == ({}, {}, {}, 0)


OPS = st.lists(
    st.tuples(st.sampled_from("sdc"), st.sampled_from("abcdef"), st.sampled_from(range(len(VECTORS)))), max_size=40
)


@given(OPS)
@settings(deadline=None)
def test_a_table_holds_what_a_dict_holds(ops):
    table, due = VectorTable(), {}
    for op, id, number in ops:
        if op == "s":
            table.set({id: VECTORS[number], "z": VECTORS[0]})
            due |= {id: VECTORS[number], "z": VECTORS[0]}
        elif op == "d":
            table.discard(id)
            due.pop(id, None)
        elif number == 0:
            table.clear()
            due.clear()
        assert {id: table.get(id) for id in table.ids} == due
        assert len(table) == len(due)
        assert all((id in table) is (id in due) for id in "abcdefz")
        cosines = dict(zip(table.ids, table.cosines(VECTORS[4]).tolist(), strict=True))
        assert cosines == pytest.approx({id: fsum(map(lambda a, b: a * b, v, VECTORS[4])) for id, v in due.items()})


def test_a_table_that_was_emptied_takes_another_dimension():
    table = VectorTable()
    table.set({"a": (1.0, 0.0)})
    table.discard("a")
    table.set({"a": (0.0, 1.0, 0.0)})
    assert table.get("a") == (0.0, 1.0, 0.0)
    assert table.cosines((0.0, 1.0, 0.0)).tolist() == [1.0]
