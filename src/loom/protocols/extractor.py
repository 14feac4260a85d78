"""Extracting facts from episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from loom.core.checks import check_share, check_text
from loom.core.message import Usage
from loom.core.record import Cardinality, Episode, Fact
from loom.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A stated fact, before memory decides what to do with it. `sources` are the episodes that say it.

    With `retracts` it takes a fact back: what is known of the subject under the predicate with this object, or with any
    where the object is empty, is over since `valid_until`; `valid_from` is the time of that statement. A fact that is
    not known is not retracted. `changes` says that something else was so before, in the words of the claim.
    `importance` is that of the episodes: they become at least as important.
    """

    subject: str
    predicate: str
    object: str
    sources: tuple[str, ...]
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    confidence: float = 1.0
    cardinality: Cardinality = "inferred"
    retracts: bool = False
    changes: bool = False
    importance: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("subject", self.subject), ("predicate", self.predicate)):
            check_text(value, f"the {name} of a claim")
        check_text(self.object, "the object of a claim", may_be_empty=self.retracts)
        check_share(self.confidence, "the confidence of a claim")
        check_share(self.importance, "the importance of a claim")
        if not self.sources:
            raise UsageError(
                f"the claim {self.subject} {self.predicate} {self.object} has no source; name the episodes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The result of an extraction: claims, what was skipped and why, and usage."""

    claims: tuple[Claim, ...]
    skipped: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    unread: int = 0
    """Replies that could not be read at all: their episodes are worth another try."""


@runtime_checkable
class Extractor(Protocol):
    """Reads episodes and states the facts in them.

    Laws:
    - every claim names at least one source, and every source is one of the episodes given;
    - nothing is taken from `known`: it is there to be matched, never to be stated again;
    - a reply that cannot be read is a line in `skipped` and counts as `unread`, never an exception and never a
      made-up claim;
      a model that cannot be reached raises its ProviderError, so that the job is tried again;
    - no episodes, no claims; it writes nothing, and never changes an episode.
    """

    async def extract(self, episodes: Sequence[Episode], *, known: Sequence[Fact] = ()) -> Extraction:
        """The claims that these episodes make."""
        ...
