"""Extracting facts from episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from loom.core.message import Usage
from loom.core.record import Claim, Episode, Fact


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
