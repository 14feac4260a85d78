"""A search looks at little and finds the same as one that looks at everything."""

import random
from math import fsum, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.filter import Eq
from loom.core.record import rank_key
from loom.protocols.memory_store import Query
from loom.stores._record_table import Numbering, RecordChange, UserRecords, VectorTable, WordIndex, unit_vector
from loom.testing.conformance.suite import ALICE, an_episode
from loom.testing.fakes import START
from loom.text.words import query_terms, terms

COUNT = 300
TEXTS = ("tea", "tea and milk", "milk", "green tea with milk and honey", "a piano", "tea tea tea")
VECTORS = [unit_vector(v, 3, "v").tolist() for v in ((1, 0, 0), (0, 1, 0), (0.6, 0.8, 0), (-1, 0, 0.1), (1, 1, 1))]


@pytest.fixture(scope="module")
def user():
    """Many records, most of which score the same as others."""
    chance = random.Random(7)
    user = UserRecords(dimension=3)
    records = [an_episode(f"e{n:03}", chance.choice(TEXTS), importance=chance.choice((0.1, 0.9))) for n in range(COUNT)]
    chance.shuffle(records)
    keys = {r.id: {"around": chance.choice(TEXTS)} for r in records if chance.random() < 0.3}
    user.apply(RecordChange({record.id: record for record in records}, keys))
    user.set_vectors(ALICE, {r.id: chance.choice(VECTORS) for r in records if chance.random() < 0.7})
    for record in records[: COUNT // 10]:
        user.apply(RecordChange({}, deleted=frozenset([record.id])))
    return user


def speaks(user, record, query, vector):
    """Whether anything speaks for a record."""
    said = terms(" ".join([record.text, *user.keys.get(record.id, {}).values()]))
    has_word = not set(said).isdisjoint(query_terms(query.text))
    return has_word or (record.id in user.vectors if vector is not None else not query.text)


def everything(user, query, vector):
    """All hits in order, each found by itself."""
    found = []
    for record in user.select(ALICE, query.where):
        alone = Query(text=query.text, vector=vector, where=Eq("id", record.id), limit=1)
        for hit in user.search(ALICE, alone, now=START):
            assert hit.score == fsum(hit.why.values())
            found.append((hit.item.id, hit.score, hit.why))
    assert {id for id, _, _ in found} == {
        r.id for r in user.select(ALICE, query.where) if speaks(user, r, query, vector)
    }
    return sorted(found, key=lambda one: (-one[1], one[0]))


@pytest.mark.parametrize("text", ["", "tea", "milk honey piano", "nowhere"])
@pytest.mark.parametrize("vector", [None, VECTORS[2], VECTORS[4]])
@pytest.mark.parametrize("where", [None, Eq("importance", 0.9), Eq("id", "e150")])
def test_the_best_are_the_first_of_all(user, text, vector, where):
    query = Query(text=text, where=where, limit=COUNT)
    due = everything(user, query, vector)
    for limit in (1, 7, 64, 65, 200, COUNT):
        hits = user.search(ALICE, Query(text=text, vector=vector, where=where, limit=limit), now=START)
        assert [(hit.item.id, hit.score, hit.why) for hit in hits] == due[:limit]
        assert hits == sorted(hits, key=rank_key)


def test_user_records_keep_nothing_of_what_is_gone():
    user = UserRecords(dimension=3)
    user.apply(RecordChange({id: an_episode(id, "tea") for id in ("gone", "here")}, {"gone": {"around": "a secret"}}))
    user.set_vectors(ALICE, {"gone": VECTORS[0], "here": VECTORS[1]})
    user.apply(RecordChange({}, deleted=frozenset(["gone"])))
    assert (list(user.records), user.keys, sorted(user.numbering.ids)) == (["here"], {}, ["", "here"])
    assert (user.numbering.find("gone"), user.vectors.get("gone")) == (None, None)
    assert user.vectors._matrix.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    user.apply(RecordChange({"new": an_episode("new", "milk")}))
    assert user.numbering.ids == ["new", "here"]
    assert [hit.item.id for hit in user.search(ALICE, Query(vector=VECTORS[0]), now=START)] == ["here"]


def test_an_index_keeps_no_word_of_what_is_gone():
    index = WordIndex()
    index.set(0, ["secret", "tea"])
    index.set(1, ["tea"])
    index.remove(0)
    assert list(index._postings) == ["tea"]
    assert index.scores(["secret"], 2) is None
    index.remove(1)
    assert (index._postings, index._words, sum(index._lengths), index._total) == ({}, {}, 0, 0)


WORDS = st.lists(st.sampled_from(["tea", "milk", "piano", "honey"]), max_size=6)


@given(st.lists(st.tuples(st.integers(0, 7), WORDS), max_size=30), WORDS)
@settings(deadline=None)
def test_an_index_scores_what_it_holds_by_bm25(texts, words):
    """Whatever was set in whichever order, and whatever of it was set again or taken away."""
    index, held = WordIndex(), {}
    for number, text in texts:
        index.set(number, text)
        held[number] = text
    held = {number: text for number, text in held.items() if text}
    expected = dict.fromkeys(range(8), 0.0)
    for word in set(words):
        holding = {number: text.count(word) for number, text in held.items() if word in text}
        idf = log(1 + (len(held) - len(holding) + 0.5) / (len(holding) + 0.5))
        for number, times in holding.items():
            length = len(held[number]) * len(held) / sum(map(len, held.values()))
            expected[number] += idf * 2.2 * times / (times + 1.2 * (0.25 + 0.75 * length))
    scores = index.scores(words, 8)
    assert ([0.0] * 8 if scores is None else scores.tolist()) == pytest.approx(list(expected.values()))


def test_the_number_of_what_is_gone_is_given_to_another():
    numbering = Numbering()
    assert [numbering.give(id) for id in "abab"] == [0, 1, 0, 1]
    numbering.drop("a")
    numbering.drop("a")
    assert (numbering.find("a"), numbering.ids) == (None, ["", "b"])
    assert [numbering.give(id) for id in "cd"] == [0, 2]
    assert (numbering.ids, len(numbering)) == (["c", "b", "d"], 3)


OPS = st.lists(
    st.tuples(st.sampled_from("sdc"), st.sampled_from("abcdef"), st.sampled_from(range(len(VECTORS)))), max_size=40
)


@given(OPS)
@settings(deadline=None)
def test_a_table_holds_what_a_dict_holds(ops):
    numbering = Numbering()
    table, due = VectorTable(numbering), {}
    numbering.give("y")  # it never has a vector
    for op, id, number in ops:
        if op == "s":
            table.set({id: VECTORS[number], "z": VECTORS[0]})
            due |= {id: VECTORS[number], "z": VECTORS[0]}
        elif op == "d":
            table.discard(id)
            numbering.drop(id)
            due.pop(id, None)
        elif number == 0:
            table.clear()
            due.clear()
        numbering.give("x")
        assert {id: table.get(id) for id in "abcdefxyz" if id in table} == {
            id: pytest.approx(vector) for id, vector in due.items()
        }
        found = table.cosines(VECTORS[4])
        scores = {} if found is None else dict(zip(numbering.ids, found.of(range(len(numbering))), strict=True))
        expected = {id: fsum(map(lambda a, b: a * b, vector, VECTORS[4])) for id, vector in due.items()}
        assert {id: score for id, score in scores.items() if score is not None} == pytest.approx(expected, abs=1e-6)


def test_a_table_that_was_cleared_takes_another_dimension():
    numbering = Numbering()
    table = VectorTable(numbering)
    table.set({"a": (1.0, 0.0)})
    table.clear()
    assert table.cosines((1.0, 0.0)) is None
    table.set({"a": (0.0, 1.0, 0.0)})
    assert table.get("a") == (0.0, 1.0, 0.0)
    assert table.cosines((0.0, 1.0, 0.0)).of([0]) == [1.0]
