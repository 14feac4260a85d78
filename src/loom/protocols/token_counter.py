"""Counting tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loom.core.message import Part


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of tokens and how far off it may be.

    `error` is a share: the truth is expected within `tokens * (1 ± error)` in 95 of 100 cases; 0 where the
    count is exact.
    """

    tokens: int
    error: float = 0.0


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
