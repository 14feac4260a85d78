"""The bounded memory of counts."""

from __future__ import annotations

from loom.text.tokens import Memo


def never(_text: str) -> int:
    raise AssertionError("a remembered text is not measured again")


def test_it_remembers() -> None:
    memo = Memo()
    assert memo.count("a", lambda _: 3) == 3
    assert memo.count("a", never) == 3


def test_it_keeps_at_most_two_generations() -> None:
    memo = Memo(entries=10)
    for i in range(1000):
        memo.count(str(i), int)
    assert len(memo) <= 20
    assert memo.count("999", never) == 999
    assert memo.count("0", lambda _: 7) == 7


def test_what_is_asked_for_stays() -> None:
    memo = Memo(entries=10)
    memo.count("kept", lambda _: 7)
    for i in range(100):
        memo.count(str(i), int)
        assert memo.count("kept", never) == 7


def test_the_characters_are_bounded_too() -> None:
    memo = Memo(chars=100)
    memo.count("x" * 101, len)
    assert len(memo) == 0
    for letter in "abcdefghij":
        memo.count(letter * 60, len)
    assert len(memo) == 2
