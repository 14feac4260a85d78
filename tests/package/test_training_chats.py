"""The chats that a reranker is trained on: enough of them, the same each time, and every question has its evidence."""

import random
from collections import Counter

import pytest

from loom.text.words import query_terms, terms
from tools.rerank.chats import all_chats, life_chat, people_chat, project_chat


@pytest.fixture(scope="module")
def chats():
    return list(all_chats())


def test_there_are_enough_chats_of_three_kinds_and_questions_over_them(chats):
    kinds = Counter(chat.kind for chat in chats)
    assert len(chats) >= 150
    assert min(kinds[kind] for kind in ("project", "life", "people")) >= 50
    assert sum(len(chat.questions) for chat in chats) >= 2000


def test_every_question_is_asked_once_and_names_turns_that_were_said(chats):
    for chat in chats:
        assert len({question["text"] for question in chat.questions}) == len(chat.questions)
        for question in chat.questions:
            assert question["evidence"], question
            assert 0 <= min(question["evidence"]) <= max(question["evidence"]) < len(chat.turns)


def test_no_slot_is_left_open(chats):
    texts = (part["text"] for chat in chats for part in (*chat.turns, *chat.questions))
    assert [text for text in texts if "{" in text or "}" in text] == []


def test_most_questions_use_other_words_than_their_evidence(chats):
    shares: list[float] = []
    for chat in chats:
        for question in chat.questions:
            if stems := {*query_terms(question["text"])}:
                said = {stem for turn in question["evidence"] for stem in terms(chat.turns[turn]["text"])}
                shares.append(len(stems & said) / len(stems))
    assert sum(share <= 0.5 for share in shares) > len(shares) / 2


@pytest.mark.parametrize("make", [project_chat, life_chat, people_chat])
def test_a_seed_makes_the_same_chat(make):
    one, two = (make(7, random.Random("seed")) for _ in range(2))
    assert (one.turns, one.questions) == (two.turns, two.questions)
    assert make(7, random.Random("other")).turns != one.turns
