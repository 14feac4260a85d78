from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.clock import to_micros
from loom.memory._recall import rank as ranking
from loom.memory._recall.rank import (
    WEIGHTS,
    Candidates,
    QuestionHints,
    StatementWords,
    asks_several,
    looks_up,
    named_speakers,
    questions_in,
    trust_in_words,
    without_names,
)
from loom.text.time_words import time_hint

NOW = datetime(2023, 6, 14, tzinfo=UTC)


class Candidate(NamedTuple):
    """A row of Candidates."""

    id: str
    signals: Mapping[str, float] = MappingProxyType({})
    speaker: str | None = None
    session: str | None = None
    position: int | None = None
    at: datetime | None = None
    words: int = 0
    asks: bool = False
    role: str | None = None


def rank(candidates, *args, **kwargs):
    columns = zip(*candidates, strict=True) if candidates else [[]] * len(Candidate._fields)
    ids, signals, speakers, sessions, positions, times, words, are_asking, roles = columns
    names = {name for found in signals for name in found}
    ranked = ranking.rank(
        Candidates(
            ids=ids,
            signals={name: np.array([found.get(name, np.nan) for found in signals]) for name in names},
            speakers=speakers,
            sessions=sessions,
            positions=positions,
            times=[at and to_micros(at) for at in times],
            words=words,
            asks=are_asking,
            roles=roles,
        ),
        *args,
        **kwargs,
    )
    return [ranked.ranked(place) for place in ranked.places]


def order(candidates, asked=None, **kwargs):
    return [r.id for r in rank(candidates, asked, **kwargs)]


def lexical(id, score, **fields):
    return Candidate(id=id, signals={"bm25": score}, **fields)


def test_no_candidates_rank_to_nothing():
    assert rank([]) == []


def test_the_score_is_the_sum_of_its_reasons():
    found = rank([lexical("a", 3, words=4), lexical("b", 1, words=9), lexical("c", 0)], QuestionHints(now=NOW))
    assert [r.score for r in found] == pytest.approx([sum(r.why.values()) for r in found])
    assert set(found[0].why) <= set(WEIGHTS["people"])
    assert found[0].why["bm25"] > 0


def test_signals_are_calibrated_so_that_their_scale_does_not_matter():
    def candidates(scale):
        signals = [(5, 0.1), (4, 0.9), (0, 0.2), (1, 0.1)]
        return [Candidate(id=str(i), signals={"bm25": scale * b, "dense": d}) for i, (b, d) in enumerate(signals)]

    assert order(candidates(1)) == order(candidates(1000)) == ["1", "0", "3", "2"]


def test_a_few_low_cosines_do_not_outweigh_the_words():
    told = Candidate(id="told", signals={"bm25": 1.0, "dense": 0.006, "covers": 1.0}, role="user")
    rest = [Candidate(id=str(n), signals={"dense": d}, role="user") for n, d in enumerate((0.043, 0.138, 0.025))]
    assert order([told, *rest])[0] == "told"
    alike = [Candidate(id=str(n), signals={"dense": 0.1 * (n % 2)}) for n in range(2)]
    apart = {r.id: r.score for r in rank(alike)}
    assert 0 < apart["1"] - apart["0"] < 2 * 0.8, "two cosines say little about what is much"


def test_equal_scores_go_by_id():
    assert order([lexical("b", 1), lexical("a", 1)]) == ["a", "b"]


def test_an_unknown_vector_counts_as_the_lowest_and_a_missing_word_as_zero():
    known = Candidate(id="known", signals={"dense": 0.9})
    low = Candidate(id="low", signals={"dense": 0.1})
    unknown = Candidate(id="unknown")
    scores = {r.id: r.score for r in rank([known, low, unknown])}
    assert scores["known"] > scores["low"] == scores["unknown"]
    words = {r.id: r.score for r in rank([lexical("hit", 2), lexical("zero", 0), Candidate(id="none")])}
    assert words["hit"] > words["zero"] == words["none"]


def test_the_one_named_speaker_is_preferred_and_two_are_not():
    turns = [lexical("a", 1, speaker="Ann"), lexical("b", 1, speaker="Bob")]
    assert order(turns, QuestionHints(speakers=frozenset({"Bob"}))) == ["b", "a"]
    assert order(turns, QuestionHints(speakers=frozenset({"Ann", "Bob"}))) == ["a", "b"]


def test_a_turn_near_the_time_asked_for_goes_first():
    then = [lexical("a", 1, at=NOW - timedelta(days=90)), lexical("b", 1, at=datetime(2023, 5, 5, tzinfo=UTC))]
    found = rank(then, QuestionHints(when=time_hint("in May", NOW), now=NOW))
    assert [r.id for r in found] == ["b", "a"]
    assert found[0].why["time"] == WEIGHTS["people"]["time"]
    assert 0 < found[1].why["time"] < WEIGHTS["people"]["time"]


def test_what_was_said_lately_counts_only_where_nothing_is_looked_up():
    turns = [lexical("a", 1, at=NOW - timedelta(days=60)), lexical("b", 1, at=NOW - timedelta(days=1))]
    assert order(turns, QuestionHints(now=NOW, is_lookup=False)) == ["b", "a"]
    assert order(turns, QuestionHints(now=NOW, is_lookup=False, speakers=frozenset({"Ann"}))) == ["a", "b"]
    assert order(turns, QuestionHints(now=NOW)) == ["a", "b"]
    assert order(turns) == ["a", "b"]


def test_a_turn_that_asks_yields_to_one_that_tells():
    assert order([lexical("a", 1, asks=True), lexical("b", 1)]) == ["b", "a"]


def test_the_answer_is_found_by_the_question_before_it():
    asked = Candidate(id="asked", signals={"bm25": 2.0, "bm25.around": 2.0}, session="s", position=0, asks=True)
    answer = Candidate(id="answer", signals={"bm25.around": 2.0, "bm25.asked": 2.0}, session="s", position=1)
    rest = [Candidate(id=f"z{i}", session="t", position=i) for i in range(8)]
    assert order([asked, answer, *rest])[:2] == ["answer", "asked"]


def test_vectors_of_neighbours_speak_for_a_turn_of_the_same_session_only():
    def turn(id, session, position, dense):
        return Candidate(id=id, signals={"dense": dense}, session=session, position=position)

    turns = [turn("hit", "s", 4, 0.9), turn("beside", "s", 5, 0.1), turn("far", "s", 9, 0.1), turn("b", "t", 5, 0.1)]
    found = {r.id: r.why["dense.around"] for r in rank(turns)}
    assert found["beside"] > found["far"] == found["b"]


def test_a_session_that_matches_lifts_its_turns():
    turns = [lexical("a", 1, session="one"), lexical("b", 1, session="two"), lexical("c", 5, session="two")]
    assert order(turns) == ["c", "b", "a"]


def test_weights_can_be_given():
    turns = [Candidate(id="a", signals={"bm25": 1.0}), Candidate(id="b", signals={"dense": 1.0, "bm25": 0.0})]

    def by(signal):
        return {"people": {signal: 1.0}, "several": {}, "lookup": {}, "message": {}}

    assert order(turns, weights=by("bm25")) == ["a", "b"]
    assert order([*turns, Candidate(id="c", signals={"dense": 0.0})], weights=by("dense"))[0] == "b"


def test_talk_with_an_assistant_has_weights_of_its_own():
    page = Candidate(id="page", signals={"bm25": 2.0}, role="assistant", words=400)
    told = Candidate(id="told", signals={"bm25": 1.5}, role="user", words=20, asks=True)
    rest = [Candidate(id=f"z{n}", role="assistant", words=100) for n in range(4)]
    assert order([page, told, *rest])[0] == "told"
    assert order([page, told, *rest], QuestionHints(is_lookup=False))[0] == "page"
    assert order([page._replace(role=None), told._replace(role=None), *(z._replace(role=None) for z in rest)])[0] == (
        "page"
    )


def test_a_question_that_names_a_person_prefers_what_people_said():
    told = Candidate(id="told", signals={"bm25": 1, "dense": 0.3}, speaker="Anna")
    mine = Candidate(id="mine", signals={"bm25": 1, "dense": 0.3}, speaker="user", role="user")
    answer = Candidate(id="answer", signals={"bm25": 1, "dense": 0.3}, speaker="assistant", role="assistant")
    assert order([told, mine, answer])[0] == "mine"
    assert order([told, mine, answer], QuestionHints(speakers=frozenset({"Anna"}))) == ["told", "mine", "answer"]


def test_of_several_things_what_the_named_person_says_counts_more_than_what_is_said_around():
    bob = QuestionHints(speakers=frozenset({"Bob"}))
    turns = [
        Candidate(id="around", signals={"bm25": 1.0, "bm25.around": 4.0}, speaker="Ann", session="one"),
        Candidate(id="same", signals={"bm25": 1.0, "bm25.around": 3.9}, speaker="Ann", session="one"),
        Candidate(id="bob", signals={"bm25": 1.0, "bm25.around": 1.5}, speaker="Bob", session="two"),
        Candidate(id="far", signals={"bm25": 0.0, "bm25.around": 1.0}, speaker="Ann", session="three"),
    ]
    assert order(turns, bob)[0] == "around"
    assert order(turns, replace(bob, is_several=True))[0] == "bob"
    assert order(turns, QuestionHints(is_several=True)) == order(turns), "nobody is named"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Which cities has Jon visited?", True),
        ("How often does Melanie run?", True),
        ("What kind of art does Caroline make?", True),
        ("What martial arts does John do?", True),
        ("What did both of them paint?", True),
        ("What did Ann buy in March?", False),
        ("When does Ann have to leave?", False),
        ("Where did Bob's brother live?", False),
        ("What was Bob's first job?", False),
        ("What does Ann do?", False),
        ("What is this?", False),
    ],
)
def test_a_question_for_several_things_is_told_by_its_words(text, expected):
    assert asks_several(text) is expected


def test_each_record_is_weighed_by_its_own_speaker():
    ann = Candidate(id="ann", signals={"bm25": 1.0}, speaker="Ann", words=10)
    user = Candidate(id="user", signals={"bm25": 1.0}, role="user", words=10)
    found = {r.id: r.why for r in rank([ann, user, Candidate(id="z", role="assistant")])}
    assert "user" in found["user"]
    assert "user" not in found["ann"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is the gate code?", True),
        ("gate code", True),
        ("I mentioned a museum two months ago. Did I visit it with a friend?", True),
        ("\u6211\u7684\u72d7\u53eb\u4ec0\u4e48\uff1f", True),
        ("G'day. Ready to get stuck into this training. What's the go?", False),
        ("Let's continue with the budget.", False),
        ("I'm back. The malaria is over! Ready when you are.\nWhat is next?", False),
    ],
)
def test_a_question_looks_something_up_and_a_message_goes_on_with_the_talk(text, expected):
    assert looks_up(text) is expected


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(-1, 1)), max_size=30), st.randoms())
def test_the_order_of_the_candidates_changes_nothing(rows, dice):
    candidates = [
        Candidate(id=f"{i:02}", signals={"bm25": b, "dense": d}, session=str(i % 3), position=i // 3, words=i)
        for i, (b, d) in enumerate(rows)
    ]
    mixed = dice.sample(candidates, len(candidates))
    first, second = rank(candidates), rank(mixed)
    scores = {r.id: r.score for r in second}
    assert [r.score for r in first] == pytest.approx([scores[r.id] for r in first])
    assert sorted(scores) == [c.id for c in candidates]


def test_names_are_whole_words_first_names_included():
    people = ["Ann", "Bob Stone", "User"]
    assert named_speakers("What did bob's sister tell Anna?", people) == {"Bob Stone"}
    assert named_speakers("Ann or Bob Stone?", people) == {"Ann", "Bob Stone"}
    assert named_speakers("", ["", " "]) == frozenset()


def test_names_are_taken_out_with_their_genitive():
    assert without_names("Ann's dog met Bob Stone and Anna", ["Ann", "Bob Stone"]).split() == [
        "dog", "met", "and", "Anna",
    ]  # fmt: skip


def test_questions_in_a_turn():
    assert questions_in("Nice! Where is it? I forgot. And when?") == "Where is it? And when?"
    assert questions_in("No. Never!") == ""
    assert questions_in("?") == ""


def test_a_long_turn_without_an_end_is_searched_for_questions_once():
    assert questions_in("Why? " + "and then " * 100_000) == "Why?"


def test_pairs_count_once_and_in_order():
    assert (
        StatementWords(["the", "red", "car", "is", "red"])
        .compare(["a", "red", "car", "and", "the", "red", "one"])
        .pairs
        == 2
    )
    assert StatementWords(["red", "car"]).compare(["car", "red"]).pairs == 0
    assert StatementWords(["very", "very", "red"]).compare(["a", "very", "very"]).pairs == 1
    assert order([lexical("a", 1), Candidate(id="b", signals={"bm25": 1, "phrase": 2.0})]) == ["b", "a"]


def test_a_shared_head_counts_the_more_the_earlier_it_stands():
    said = StatementWords(["mia", "goes", "to", "school", "in", "bergen"])
    assert said.compare(["mia", "goes", "to", "work"]).head > said.compare(["a", "school", "in", "bergen"]).head > 0
    assert said.compare(["else"]).head == 0
    assert StatementWords(["a", "a"]).compare(["a"]).head == 1
    assert order([lexical("a", 1), Candidate(id="b", signals={"bm25": 1, "head": 2.0})]) == ["b", "a"]


def test_words_are_trusted_by_how_many_of_them_one_text_holds():
    assert trust_in_words(10, [1, 3]) == 1
    assert trust_in_words(10, [1, 1]) == pytest.approx(1 / 3)
    assert trust_in_words(2, [1]) == 1
    assert trust_in_words(10, [0]) == trust_in_words(10, []) == 0
    assert trust_in_words(0, [1]) == 1


def test_words_that_are_not_trusted_yield_to_meaning():
    turns = [
        Candidate(id="words", signals={"bm25": 5.0, "dense": 0.5}),
        Candidate(id="meaning", signals={"bm25": 0.0, "dense": 0.9}),
        Candidate(id="neither", signals={"bm25": 0.0, "dense": 0.1}),
    ]
    assert order(turns, QuestionHints(trust=1.0))[0] == "words"
    assert order(turns, QuestionHints(trust=0.0))[0] == "meaning"


def test_the_share_of_words_in_common():
    assert StatementWords(["a", "b", "b"]).compare(["b", "c"]).share == pytest.approx(1 / 3)
    assert StatementWords(["a"]).compare(["a"]).share == 1
    assert StatementWords([]).compare([]).share == 0
    assert order([lexical("a", 1), Candidate(id="b", signals={"bm25": 1, "alike": 0.5})]) == ["b", "a"]
