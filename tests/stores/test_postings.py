"""Postings in runs: every number is in one run, joining loses nothing, and what is left is what was never removed."""

from collections import Counter
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.stores import _search
from loom.stores._search import K1, OWN, B, TextChange, joined_run, parts_of, run_of, runs_of, total, without
from loom.text.words import terms

SIZES = st.integers(0, 70_000)
TEXTS = st.dictionaries(
    st.integers(0, 40), st.lists(st.sampled_from(["tea", "milk", "the", "sugar\n", "cup"])).map(" ".join)
)


@given(st.integers(1, 70_000), st.data())
def test_every_number_is_in_the_run_that_starts_last_before_it(size, data):
    number = data.draw(st.integers(0, size - 1))
    starts = list(runs_of(size))
    assert starts == sorted(set(starts))
    assert run_of(number, size) == max(start for start in starts if start <= number)


@given(SIZES, SIZES, st.data())
def test_growing_moves_numbers_only_into_the_run_that_is_joined(before, grown, data):
    size = before + grown
    number = data.draw(st.integers(0, max(0, before - 1)))
    start = joined_run(before, size)
    if before and run_of(number, before) != run_of(number, size):
        assert start is not None
        assert run_of(number, size) == start <= run_of(number, before)
    if start is not None:
        assert all(run_of(other, size) == start for other in range(start, before, 97))


def indexed(texts):
    change = TextChange()
    for number, text in texts.items():
        change.add(OWN, number, text)
    return change


@given(TEXTS)
def test_scores_are_those_of_the_formula(texts):
    change = indexed(texts)
    amount, words = change.lengths[OWN]
    held = {}
    for (run, term, signal), entries in change.entries(41).items():
        assert (run, signal) == (0, OWN)
        held[term, signal] = [entries]
    found = dict(zip(sorted(term for term, _ in held), parts_of(held, {OWN: (amount, words)}), strict=True))
    found = {term: dict(zip(part.numbers.tolist(), part.scores.tolist(), strict=True)) for term, part in found.items()}
    counted = {number: Counter(terms(text)) for number, text in texts.items()}
    assert words == sum(count.total() for count in counted.values())
    for term in {term for count in counted.values() for term in count}:
        holding = {number: count for number, count in counted.items() if term in count}
        idf = log(1 + (amount - len(holding) + 0.5) / (len(holding) + 0.5))
        for number, count in holding.items():
            length = 1 - B + B * count.total() * amount / words
            expected = idf * count[term] * (K1 + 1) / (count[term] + K1 * length)
            assert found[term].pop(number) == pytest.approx(expected)
    assert not any(found.values())


@given(TEXTS, st.data())
def test_what_is_left_is_what_was_never_removed(texts, data):
    removed = data.draw(st.sets(st.sampled_from(sorted(texts)))) if texts else set()
    held = indexed(texts).entries(41)
    change = TextChange()
    for number in removed:
        change.remove(OWN, number, texts[number])
    gone = change.gone(41)
    left = held | without({place: held[place] for place in gone}, gone)
    assert {place: data for place, data in left.items() if data} == indexed(
        {number: text for number, text in texts.items() if number not in removed}
    ).entries(41)


def test_a_text_that_comes_and_goes_in_one_change_leaves_nothing():
    change = TextChange()
    change.add(OWN, 1, "green tea")
    change.remove(OWN, 1, "green tea")
    change.add(OWN, 2, "...")
    assert (change.entries(9), change.gone(9), list(change.lengths[OWN])) == ({}, {}, [0, 0])


def test_what_is_counted_too_often_counts_as_the_most():
    change = TextChange()
    change.add(OWN, 1, "tea " * 70_000)
    ((_, entries),) = change.entries(9).items()
    assert _search.ENTRIES.itemsize == len(entries)
    found = parts_of({("tea", OWN): [entries]}, {OWN: (1, 70_000)})
    assert found[0].scores[0] > 0
    assert total(found, 5).nonzero()[0].tolist() == [1]


def test_many_entries_are_computed_in_groups_and_say_the_same(monkeypatch):
    texts = {number: f"green tea number{number % 7} and{number % 3}" for number in range(300)}
    change = indexed(texts)
    held = {(term, signal): [data] for (_, term, signal), data in change.entries(300).items()}
    lengths = {OWN: tuple(change.lengths[OWN])}
    whole = parts_of(held, lengths)
    monkeypatch.setattr(_search, "_TOGETHER", 100)
    for one, other in zip(whole, parts_of(held, lengths), strict=True):
        assert one.signal == other.signal
        assert (one.numbers.tolist(), one.scores.tolist()) == (other.numbers.tolist(), other.scores.tolist())
