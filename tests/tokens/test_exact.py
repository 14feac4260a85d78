"""Exact counts, with and without the package that brings the vocabularies."""

from __future__ import annotations

import sys

import pytest

from loom.core.message import TextPart
from loom.errors import MissingExtra, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import ExactCounter


@pytest.fixture
def o200k() -> ExactCounter:
    pytest.importorskip("splintr")
    return ExactCounter("o200k")


def test_known_counts(o200k: ExactCounter) -> None:
    assert o200k.count("") == 0
    assert o200k.count("hello world") == 2
    assert o200k.count_part(TextPart("hello world")) == 2
    assert o200k.count("hello world") == 2


def test_a_spelled_out_control_token_is_text(o200k: ExactCounter) -> None:
    assert o200k.count("<|endoftext|>") == 7


def test_half_a_surrogate_pair_is_counted(o200k: ExactCounter) -> None:
    assert o200k.count("\ud800 broken") >= 2


def test_vocabularies_differ(o200k: ExactCounter) -> None:
    text = "Сегодня мы ходили в музей и видели много старых книг."
    assert ExactCounter("cl100k").count(text) > o200k.count(text)


def test_it_is_a_token_counter_and_says_so(o200k: ExactCounter) -> None:
    assert isinstance(o200k, TokenCounter)
    assert (o200k.name, o200k.error) == ("o200k (exact)", 0.0)


def test_an_unknown_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no vocabulary 'o300k'; use one of o200k"):
        ExactCounter("o300k")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    with pytest.raises(MissingExtra, match=r"exact token counts needs .*\[tokens\]"):
        ExactCounter("o200k")
