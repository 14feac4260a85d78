"""The bounded memory of counts."""

from __future__ import annotations

from loom.tokens.memo import Memo


def test_it_remembers() -> None:
    memo = Memo()
    assert memo.get("a") is None
    memo.put("a", 3)
    assert memo.get("a") == 3


def test_it_keeps_at_most_two_generations() -> None:
    memo = Memo(entries=10)
    for i in range(1000):
        memo.put(str(i), i)
    assert len(memo) <= 20
    assert memo.get("999") == 999
    assert memo.get("0") is None


def test_what_is_asked_for_stays() -> None:
    memo = Memo(entries=10)
    memo.put("kept", 7)
    for i in range(100):
        memo.put(str(i), i)
        assert memo.get("kept") == 7


def test_the_characters_are_bounded_too() -> None:
    memo = Memo(chars=100)
    memo.put("x" * 101, 1)
    assert len(memo) == 0
    for letter in "abcdefghij":
        memo.put(letter * 60, 1)
    assert len(memo) == 2
