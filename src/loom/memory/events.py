"""Timeline: dated records in order, for exact answers to first, last, how often and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, TypeAlias

from loom.core.checks import as_utc
from loom.core.filter import And, Eq, Filter
from loom.core.heavy import off_loop
from loom.core.limits import MAX_QUERY, check_length
from loom.core.record import Episode, Fact
from loom.core.scope import Scope
from loom.core.words import query_terms, terms
from loom.errors import UsageError
from loom.memory.candidates import is_candidate
from loom.memory.listing import every
from loom.protocols.memory_store import MemoryStore, Query

EventKind: TypeAlias = Literal["episode", "fact"]


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A record and its time: when an episode happened, or since when a fact is true."""

    at: datetime
    record: Episode | Fact


@dataclass(frozen=True, slots=True)
class Timeline:
    """Dated records, earliest first; at equal times by id."""

    events: tuple[TimelineEvent, ...] = field(default=())

    def __iter__(self) -> Iterator[TimelineEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def count(self) -> int:
        """The exact number of records."""
        return len(self.events)

    @property
    def first(self) -> TimelineEvent | None:
        """The earliest record."""
        return self.events[0] if self.events else None

    @property
    def last(self) -> TimelineEvent | None:
        """The latest record."""
        return self.events[-1] if self.events else None

    def between(self, start: datetime | None = None, end: datetime | None = None) -> Timeline:
        """The records from `start` up to, and not including, `end`; None leaves a side open."""
        low = None if start is None else as_utc(start, "the start of between()")
        high = None if end is None else as_utc(end, "the end of between()")
        inside = [e for e in self.events if (low is None or low <= e.at) and (high is None or e.at < high)]
        return replace(self, events=tuple(inside))


async def read_timeline(
    store: MemoryStore, scope: Scope, *, about: str | None, where: Filter | None, kind: EventKind | None
) -> Timeline:
    """The dated records of a scope, each once: original turns without derived records, facts as believed now."""
    kinds = {"episode": Eq("sources", None), "fact": Eq("superseded_at", None)}
    if kind is not None and kind not in kinds:
        raise UsageError(f"kind={kind!r} is not a kind of event; use 'episode', 'fact' or None for both")
    chosen = [Eq("kind", kind), kinds[kind]] if kind else []
    fits = And(*chosen, *([where] if where else []))
    found = _all_about(store, scope, about, fits) if about is not None else every(store, scope, fits)
    events = [event async for record in found if (event := _event(record)) is not None]
    return Timeline(tuple(sorted(events, key=lambda e: (e.at, e.record.id))))


async def _all_about(store: MemoryStore, scope: Scope, about: str, where: Filter):  # noqa: ANN202  (records)
    """Every record that contains all words of `about`, compared by stem, ignoring stop words."""
    check_length(about, "about", MAX_QUERY, "give the words that every record has to contain")
    wanted = set(query_terms(about))
    if not wanted:
        raise UsageError(f"about={about!r} has no words; leave it out to see everything")
    # The search returns records with any of the words; its limit is the size of the memory, so none is cut off.
    query = Query(text=about, where=where, limit=max(1, await store.count(scope)), history=True, archived=True)
    found = [hit.item for hit in await store.search(scope, query)]
    chars = sum(len(item.text) for item in found)
    for fitting in await off_loop(chars, lambda: [item for item in found if wanted <= set(terms(item.text))]):
        yield fitting


def _event(record: object) -> TimelineEvent | None:
    if isinstance(record, Episode) and not record.sources:
        return TimelineEvent(record.at, record)
    if is_candidate(record):
        return None
    if isinstance(record, Fact) and record.superseded_at is None and record.valid_from is not None:
        return TimelineEvent(record.valid_from, record)
    return None
