from math import log

import pytest

from loom.knowledge.document import LexicalIndex


@pytest.fixture
def index():
    made = LexicalIndex()
    made.add("short", "Green tea")
    made.add("long", "Green tea is what they drink there in the morning")
    made.add("apart", "Tea that is green")
    return made


def test_the_score_is_bm25(index):
    scores = index.scores("greens")
    mean = (2 + 10 + 4) / 3
    expected = {
        id: log(1 + 0.5 / 3.5) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * length / mean))
        for id, length in (("short", 2), ("long", 10), ("apart", 4))
    }
    assert scores == pytest.approx(expected)
    assert scores["short"] > scores["apart"] > scores["long"]


def test_no_score_reaches_the_ceiling_and_unknown_words_raise_it(index):
    assert max(index.scores("green tea").values()) < index.ceiling("green tea") < index.ceiling("green tea cups")
    assert index.ceiling("!!!") == 0


def test_a_phrase_is_its_words_side_by_side(index):
    assert index.having("green tea") == ["long", "short"]
    assert index.having("tea green") == []
    assert index.having("") == index.having("coffe") == []


def test_what_was_removed_leaves_nothing(index):
    for id in ("short", "long", "apart"):
        index.remove(id)
    assert (index.scores("green tea"), index.having("tea")) == ({}, [])
    index.add("short", "Green tea")
    assert list(index.scores("tea")) == ["short"]
