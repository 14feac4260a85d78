"""Explains a record: its sources, what was derived from it, its history, and why it was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loom.core.checks import check_id
from loom.core.filter import Eq, In
from loom.core.record import Episode, Fact, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import NotFound
from loom.memory.entities import predicate_key
from loom.memory.listing import every, every_fact
from loom.memory.metabolism import Store
from loom.protocols.jobs import DeadLetter


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
