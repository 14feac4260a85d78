"""What memory answers: what was kept and what was not, what was found and why, what the jobs did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loom.core.hit import Hit
from loom.core.message import Usage
from loom.core.record import Record
from loom.core.scope import Scope

REPEATED = "remembered before under this key"
"""Why what is kept already is not kept again."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was not kept, and why."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a write kept, and what it left out. What is kept is durable and can be recalled at once."""

    kept: tuple[Record, ...]
    skipped: tuple[Skip, ...] = ()
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What was found, best first, and what a reader should know about the search.

    An empty answer says whose memory was searched and how many records it holds; they are counted only for that.
    """

    hits: tuple[Hit, ...]
    scope: Scope
    searched: int | None = None
    tokens: int = 0
    notes: tuple[str, ...] = ()

    def __iter__(self):  # noqa: ANN204  (an iterator of hits, as a tuple gives it)
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def text(self) -> str:
        """The found texts, one to a line."""
        return "\n".join(hit.item.text for hit in self.hits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metabolized:
    """What the jobs of a run did, counted by what happened."""

    jobs: int = 0
    counts: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    notes: tuple[str, ...] = ()
    """Which instructions were learnt or wait to be confirmed, and what no longer stands because of something newer."""
    failed: tuple[str, ...] = ()
    """Reasons of jobs that did not work; they are tried again, or stand among the dead letters."""
