"""Counting tokens."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from loom.core.message import Part


@runtime_checkable
class TokenCounter(Protocol):
    """Says how many tokens a text or a part takes, with no network.

    Laws:
    - never negative; the empty text is 0; deterministic;
    - additive over parts within the declared error;
    - a trigger that decides and a plan that predicts use the same counter.
    """

    @property
    def name(self) -> str:
        """What counts, for people: `o200k (exact)` or `estimate for claude`."""
        ...

    @property
    def error(self) -> float:
        """The expected relative error, 0 where exact."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...

    def count_part(self, part: Part) -> int:
        """Tokens of any part, pictures and documents by their own rules."""
        ...
