from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.text.words import MAX_TERM, STOP_WORDS, content_terms, query_terms, stem, terms, tokens


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("cats", "cat"),
        ("feed", "feed"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("motoring", "motor"),
        ("sing", "sing"),
        ("conflated", "conflat"),
        ("troubled", "troubl"),
        ("sized", "size"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("hissing", "hiss"),
        ("filing", "file"),
        ("failing", "fail"),
        ("happy", "happi"),
        ("sky", "sky"),
        ("relational", "relat"),
        ("conditional", "condit"),
        ("rational", "ration"),
        ("digitizer", "digit"),
        ("operator", "oper"),
        ("feudalism", "feudal"),
        ("hopefulness", "hope"),
        ("formaliti", "formal"),
        ("sensibiliti", "sensibl"),
        ("triplicate", "triplic"),
        ("formative", "form"),
        ("electrical", "electr"),
        ("goodness", "good"),
        ("revival", "reviv"),
        ("replacement", "replac"),
        ("adjustment", "adjust"),
        ("adoption", "adopt"),
        ("effective", "effect"),
        ("probate", "probat"),
        ("rate", "rate"),
        ("cease", "ceas"),
        ("controll", "control"),
        ("roll", "roll"),
        ("is", "is"),
        ("2024", "2024"),
        ("größe", "größe"),
    ],
)
def test_stems_follow_porters_published_examples(word, expected):
    assert stem(word) == expected


def test_words_are_folded_and_apostrophes_close_up():
    assert tokens("Anna's café, don't O\u2019Brien snake_case 3.5") == [
        "anna", "cafe", "dont", "obrien", "snake", "case", "3", "5",
    ]  # fmt: skip


def test_scripts_without_spaces_are_cut_into_pairs():
    assert tokens("東京都に") == ["東京", "京都", "都に"]
    assert tokens("猫 a猫b") == ["猫", "a", "猫", "b"]
    assert tokens("한국어 हिन्दी।") == ["한국어", "हिन्दी"]


def test_an_index_holds_stop_words_and_a_query_drops_them():
    assert terms("Where is the Running dog") == ["where", "is", "the", "run", "dog"]
    assert query_terms("Where is the running, running dog?") == ("run", "dog")


def test_a_query_of_stop_words_alone_keeps_them():
    assert query_terms("Who are they?") == ("who", "ar", "thei")
    assert query_terms("  ?! ") == ()


def test_a_long_word_is_cut_alike_in_text_and_query():
    assert terms("x" * 500) == ["x" * MAX_TERM] == list(query_terms("x" * 300))


def test_stop_words_are_spelled_as_tokens():
    assert all(tokens(word) == [word] for word in STOP_WORDS)


@given(st.text())
def test_what_a_text_holds_is_found_by_the_text_itself(text):
    assert set(query_terms(text)) <= set(terms(text))
    assert all(0 < len(term) <= MAX_TERM + 1 for term in terms(text))
    assert not any(mark in term for term in terms(text) for mark in "\"'*():^-+ ")


def test_the_grammar_of_other_languages_does_not_count_as_content():
    assert content_terms("Wo wohnt meine Oma?") == ("wohnt", "oma")
    assert content_terms("¿Cuál es la contraseña del portátil?") == ("contrasena", "portatil")
    assert content_terms("Где живёт моя бабушка?") == ("живет", "бабушка")
    assert content_terms("Which hotel in LA did Mia book?") == query_terms("Which hotel in LA did Mia book?")
    assert content_terms("Wo ist das?") == query_terms("Wo ist das?")
