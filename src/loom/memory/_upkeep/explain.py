"""Explaining a record (its sources, results and hits), and the timeline of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, TypeAlias

from loom.core.checks import MAX_QUERY, as_utc, check_id, check_length
from loom.core.filter import And, Eq, Filter, In
from loom.core.record import Episode, Fact, Record, WorkingBlock
from loom.core.scope import Scope
from loom.core.threads import off_loop
from loom.errors import NotFound, UsageError
from loom.memory._facts.entities import predicate_key
from loom.memory._shared import every, every_fact, is_candidate
from loom.protocols.memory_store import DeadLetter, MemoryStore, Query, Store
from loom.text.words import query_terms, terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The provenance of a record.

    `sources` are the records it was derived from, down to the original turns; `made` are those derived from it.
    `history` are the other facts with its subject and predicate, including retired ones. `why` is the score of a hit,
    signal by signal.
    """

    record: Record
    sources: tuple[Record, ...] = ()
    missing: tuple[str, ...] = ()
    """Sources that do not exist: forgotten, or never a record."""
    made: tuple[Record, ...] = ()
    history: tuple[Fact, ...] = ()
    given_up: tuple[DeadLetter, ...] = ()
    """Jobs about it that failed for good."""
    why: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)

    def __str__(self) -> str:
        lines = [f"{self.record.kind} {self.record.id}: {self.record.text}", *(f"  {line}" for line in self._state())]
        lines += [f"found by {name}: {score:.3f}" for name, score in self.why.items()]
        lines += [f"from {_line(source)}" for source in self.sources]
        lines += [f"from {id}, which is not there" for id in self.missing]
        lines += [f"made {_line(record)}" for record in self.made]
        lines += [f"beside {_line(fact)}{_believed(fact)}" for fact in self.history]
        lines += [f"job {dead.job.kind} was given up: {dead.reason}" for dead in self.given_up]
        return "\n".join(lines)

    def _state(self) -> list[str]:
        record = self.record
        origin = f"origin {record.provenance.origin}{', trusted' if record.provenance.trusted else ''}"
        if isinstance(record, Episode):
            layer = f"in {record.layer.label}, recalled {record.accesses} time(s)"
            gone = [f"archived at {record.archived_at:%Y-%m-%d %H:%M}"] if record.archived_at else []
            return [f"{origin}, at {record.at:%Y-%m-%d %H:%M}", layer, *gone]
        if isinstance(record, Fact):
            return [f"{origin}{_believed(record)}"]
        return [f"{origin}, version {record.version}"]


async def explain(store: Store, scope: Scope, id: str, *, why: Mapping[str, float] | None = None) -> Explained:
    """The provenance of a record of a user; raises NotFound if the user has no such record."""
    check_id(id, "the id of a record")
    record = await store.get(scope, id)
    if record is None:
        raise NotFound(f"user {scope.user_id!r} has no record {id!r}; recall() and facts() give the ids")
    sources, missing = await _sources(store, scope, record)
    dead = [d for d in await store.dead_letters(scope) if id in d.job.payload.get("episodes", ())]
    return Explained(
        record=record,
        sources=sources,
        missing=missing,
        made=tuple([r async for r in every(store, scope, Eq("sources", id))]),
        history=await _history(store, scope, record),
        given_up=tuple(dead),
        why=dict(why or {}),
    )


async def _sources(store: Store, scope: Scope, record: Record) -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The sources of a record, nearest first, down to the original turns; and ids of sources that do not exist."""
    found: dict[str, Record | None] = {}
    open_ = list(_named(record))
    while open_:
        id = open_.pop(0)
        if id not in found and id != record.id:
            found[id] = await store.get(scope, id)
            open_ += _named(found[id])
    there = tuple(r for r in found.values() if r is not None)
    return there, tuple(id for id, r in found.items() if r is None)


def _named(record: Record | None) -> Sequence[str]:
    return () if record is None or isinstance(record, WorkingBlock) else record.sources


async def _history(store: Store, scope: Scope, record: Record) -> tuple[Fact, ...]:
    if not isinstance(record, Fact):
        return ()
    predicates = (record.predicate, predicate_key(record.predicate))
    found = await every_fact(store, scope, In("predicate", predicates), Eq("subject", record.subject))
    return tuple(fact for fact in found if fact.id != record.id)


def _line(record: Record) -> str:
    return f"{record.kind} {record.id}: {record.text}"


def _believed(fact: Fact) -> str:
    ends = [f"{word} {at:%Y-%m-%d}" for word, at in (("true from", fact.valid_from), ("until", fact.valid_until)) if at]
    by = f" by {fact.superseded_by}" if fact.superseded_by else ""
    retired = [f"retired {fact.superseded_at:%Y-%m-%d}{by}"] if fact.superseded_at else []
    return "".join(f", {part}" for part in [*ends, *retired])


# Timeline: dated records in order, for exact answers to first, last, how often and when.

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
