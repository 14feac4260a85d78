"""The records of one user, with their keys and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import nsmallest

from loom.core.checks import check_text
from loom.core.filter import Filter, In
from loom.core.hit import Hit, rank_key, scored
from loom.core.record import Episode, Fact, Layer, Record, WorkingBlock, changed
from loom.core.scope import Scope
from loom.core.words import query_terms, terms
from loom.errors import NotFound, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import FoundBy, Query
from loom.stores.inmemory.best import Signal, best
from loom.stores.inmemory.lexical import WordIndex
from loom.stores.inmemory.numbering import Numbering
from loom.stores.inmemory.vector_table import VectorTable
from loom.stores.record_rules import check_record, check_version

OWN = "bm25"
DENSE = "dense"

Keys = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Change:
    """What a write will do to a shelf, checked in full: applying it cannot fail.

    What is `anew` is removed first: nothing of the old record stays.
    """

    records: Mapping[str, Record | None]
    keys: Keys
    anew: frozenset[str] = frozenset()


@dataclass(slots=True)
class Shelf:
    """What one user has. Callers never hold what the shelf holds: records are copied on the way in and out."""

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    keys: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    numbering: Numbering = field(init=False, default_factory=Numbering)
    vectors: VectorTable = field(init=False)
    indexes: dict[str, WordIndex] = field(init=False, default_factory=dict[str, WordIndex])
    life: int = field(init=False, default=0)
    """Tells the user from the one who had this name before they were forgotten."""
    removed: int = field(init=False, default=0)
    """How often text of the user was removed."""

    def __post_init__(self) -> None:
        self.vectors = VectorTable(self.numbering)

    def plan(
        self, scope: Scope, *, put: Sequence[Record] = (), delete: Iterable[str] = (), keys: Keys | None = None
    ) -> Change:
        """Check a write, deletions first; nothing is changed yet."""
        removed = {id for id in delete if self.get(scope, id) is not None}
        planned: dict[str, Record | None] = dict.fromkeys(removed)
        for record in put:
            check_record(scope, record)
            stored = planned[record.id] if record.id in planned else self.records.get(record.id)
            if isinstance(record, WorkingBlock):
                check_version(record, stored)
            planned[record.id] = copied(record)
        anew = frozenset(id for id in removed if planned[id] is not None)
        return Change(planned, self._checked_keys(scope, keys or {}, planned), anew)

    def _checked_keys(self, scope: Scope, keys: Keys, planned: Mapping[str, Record | None]) -> Keys:
        for id, texts in keys.items():
            record = planned[id] if id in planned else self.records.get(id)
            if record is None or not sees(scope, record):
                raise NotFound(f"there is no record {id!r} to give keys to; put it first")
            for kind, text in texts.items():
                check_text(kind, f"the kind of a key of {id}")
                check_text(text, f"the key {kind} of {id}", may_be_empty=True)
        return {id: dict(texts) for id, texts in keys.items()}

    def chars(self, change: Change) -> int:
        """How many characters of text a change brings and takes away."""
        records = (record for id, new in change.records.items() for record in (new, self.records.get(id)))
        texts = (texts for id in {*change.records, *change.keys} for texts in (change.keys.get(id), self.keys.get(id)))
        whole = sum(len(record.text) for record in records if record is not None)
        return whole + sum(len(text) for found in texts if found is not None for text in found.values())

    def apply(self, change: Change) -> None:
        """Do what was planned."""
        for id, record in change.records.items():
            if record is None or id in change.anew:
                self._remove(id)
            if record is not None:
                self._set(record)
        for id, texts in change.keys.items():
            self._set_keys(id, texts)

    def _set(self, record: Record) -> None:
        old = self.records.get(record.id)
        self.records[record.id] = record
        if old is None or old.text != record.text:
            # The vector of another text would find the record for words it no longer says.
            self.vectors.discard(record.id)
            self.removed += old is not None
            self._index(OWN).set(self.numbering.give(record.id), terms(record.text))

    def _set_keys(self, id: str, texts: Mapping[str, str]) -> None:
        kept = self.keys.setdefault(id, {})
        for kind, text in texts.items():
            kept.pop(kind, None)
            if text.strip():
                kept[kind] = text
            self._index(f"{OWN}.{kind}").set(self.numbering.give(id), terms(text))

    def _index(self, kind: str) -> WordIndex:
        return self.indexes.setdefault(kind, WordIndex())

    def _remove(self, id: str) -> None:
        del self.records[id]
        self.removed += 1
        self.keys.pop(id, None)
        self.vectors.discard(id)
        number = self.numbering.give(id)
        for index in self.indexes.values():
            index.remove(number)
        self.numbering.drop(id)

    def get(self, scope: Scope, id: str) -> Record | None:
        """The record, if the scope sees it."""
        record = self.records.get(id)
        return copied(record) if record is not None and sees(scope, record) else None

    def select(self, scope: Scope, where: Filter | None, *, after: str = "") -> list[Record]:
        """The records behind the id `after` that the scope sees and the filter fits, by id; not copied."""
        later = [r for r in self._named(where) if r.id > after]
        found = [r for r in later if sees(scope, r) and (where is None or where.matches(r))]
        return sorted(found, key=lambda record: record.id)

    def _named(self, where: Filter | None) -> Iterable[Record]:
        """The records among which those that fit are: a few where the filter names their ids."""
        if not isinstance(where, In) or where.field != "id":
            return self.records.values()
        return [record for id in dict.fromkeys(where.values) if (record := self.records.get(str(id))) is not None]

    def count(self, scope: Scope, where: Filter | None) -> int:
        """How many records the scope sees and the filter fits."""
        everything = scope.session_id is None and where is None
        return len(self.records) if everything else len(self.select(scope, where))

    def set_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Give records their vectors, all or none."""
        self.check_seen(scope, vectors)
        self.vectors.set(vectors)

    def check_seen(self, scope: Scope, ids: Iterable[str]) -> None:
        """Refuse to give vectors to records that the scope does not see."""
        for id in ids:
            if self.get(scope, id) is None:
                raise NotFound(f"there is no record {id!r} to give a vector to; put it first")

    def found_by(self, scope: Scope, ids: Iterable[str]) -> dict[str, FoundBy]:
        """The keys and the vector of each of these records that the scope sees."""
        seen = [id for id in ids if self.get(scope, id) is not None]
        return {id: FoundBy(dict(self.keys.get(id, {})), self.vectors.get(id)) for id in seen}

    def search(self, scope: Scope, query: Query, *, now: datetime, vector: tuple[float, ...] | None) -> list[Hit]:
        """The best hits, best first; only what is returned is looked at in full."""
        fits = self._fitting(scope, query, now)
        if vector is None and not query.text.strip():
            ids = nsmallest(query.limit, (id for id, record in self.records.items() if fits(record)))
            return [Hit(copied(self.records[id]), 0.0) for id in ids]
        signals = self._words(query.text)
        dense = None if vector is None else self.vectors.cosines(vector)
        if dense is not None:
            signals[DENSE] = dense
        return self._hits(self._ranked(signals, query.limit, fits))

    def search_apart(
        self, scope: Scope, query: Query, *, near: int, now: datetime, vector: tuple[float, ...]
    ) -> list[Hit]:
        """The best by words and the `near` best by vector, each with its cosine."""
        fits = self._fitting(scope, query, now)
        by_words = self._ranked(self._words(query.text), query.limit, fits)
        dense = self.vectors.cosines(vector)
        if dense is None:
            return self._hits(by_words)
        by_vector = self._ranked({DENSE: dense}, near, fits)
        near_too = self._why(list(by_words), {DENSE: dense})
        return self._hits(by_vector | {number: why | near_too[number] for number, why in by_words.items()})

    def beside(self, scope: Scope, query: Query, ids: Iterable[str], *, now: datetime) -> tuple[list[Hit], list[Hit]]:
        """The best by words alone, and those of these records that the query may show."""
        fits = self._fitting(scope, query, now)
        by_words = self._hits(self._ranked(self._words(query.text), query.limit, fits))
        there = [record for id in ids if (record := self.records.get(id)) is not None]
        return by_words, [Hit(copied(record), 0.0) for record in there if fits(record)]

    def _fitting(self, scope: Scope, query: Query, now: datetime) -> Callable[[Record], bool]:
        """Whether a query may return a record."""
        at, known_at, where = query.at or now, query.known_at or now, query.where

        def fits(record: Record) -> bool:
            if isinstance(record, Fact):
                shown = query.history or record.is_current(at, known_at)
            else:
                shown = not isinstance(record, Episode) or query.archived or record.archived_at is None
            return shown and sees(scope, record) and (where is None or where.matches(record))

        return fits

    def _words(self, text: str) -> dict[str, Signal]:
        """What the words of a text say, by the kind of key that they are in."""
        words = query_terms(text)
        found = {kind: index.scores(words, len(self.numbering)) for kind, index in sorted(self.indexes.items())}
        return {kind: Signal(scores, scores > 0) for kind, scores in found.items() if scores is not None}

    def _ranked(
        self, signals: Mapping[str, Signal], limit: int, fits: Callable[[Record], bool]
    ) -> dict[int, dict[str, float]]:
        """The best numbers that fit, best first, each with what every signal says of it."""
        ids, records = self.numbering.ids, self.records
        why = self._why(best(signals.values(), limit, lambda number: fits(records[ids[number]])), signals)
        order = sorted(why, key=lambda number: (-math.fsum(why[number].values()), ids[number]))
        return {number: why[number] for number in order[:limit]}

    def _why(self, numbers: Sequence[int], signals: Mapping[str, Signal]) -> dict[int, dict[str, float]]:
        why: dict[int, dict[str, float]] = {number: {} for number in numbers}
        for kind, signal in signals.items():
            for number, score in zip(numbers, signal.of(numbers), strict=True):
                if score is not None:
                    why[number][kind] = score
        return why

    def _hits(self, found: Mapping[int, dict[str, float]]) -> list[Hit]:
        records, ids = self.records, self.numbering.ids
        return sorted((scored(copied(records[ids[number]]), why) for number, why in found.items()), key=rank_key)

    def touch(self, scope: Scope, ids: Iterable[str], at: datetime) -> None:
        """Count an access of each episode that is there."""
        for id in ids:
            record = self.records.get(id)
            if isinstance(record, Episode) and sees(scope, record):
                last = at if record.accessed_at is None else max(at, record.accessed_at)
                self.records[id] = replace(record, accesses=record.accesses + 1, accessed_at=last)

    def prune(
        self, scope: Scope, layer: Layer, *, keep: int | None, before: datetime | None, now: datetime
    ) -> tuple[str, ...]:
        """Archive what is too much or too old, least recently accessed first."""
        live = [r for r in self.records.values() if isinstance(r, Episode) and r.layer is layer]
        live = sorted((r for r in live if r.archived_at is None and sees(scope, r)), key=_eviction_order)
        old = [r for r in live if before is not None and r.recorded_at < before]
        rest = [r for r in live if before is None or r.recorded_at >= before]
        excess = rest[: max(0, len(rest) - keep)] if keep is not None else []
        for record in (*old, *excess):
            self.records[record.id] = replace(record, archived_at=now)
        return tuple(record.id for record in sorted((*old, *excess), key=_eviction_order))


def copied(record: Record) -> Record:
    """A record that shares nothing that can change."""
    if not isinstance(record, Episode):
        return record
    return changed(record, attributes=dict(record.attributes))


def sees(scope: Scope, record: Record) -> bool:
    """Whether the record lies inside the scope of its user; facts and blocks belong to no session."""
    return scope.session_id is None or not isinstance(record, Episode) or record.session_id == scope.session_id


def unit_vector(vector: Vector, dimension: int, what: str) -> tuple[float, ...]:
    """The direction of a vector; refuses one that has none, or another dimension."""
    numbers = tuple(float(number) for number in vector)
    if len(numbers) != dimension:
        raise UsageError(f"{what} has {len(numbers)} numbers; this store keeps vectors of {dimension}")
    length = math.hypot(*numbers)
    if not math.isfinite(length) or length == 0:
        raise UsageError(f"{what} has the length {length}; give finite numbers that are not all zero")
    return tuple(number / length for number in numbers)


def _eviction_order(episode: Episode) -> tuple[datetime, datetime, str]:
    # What was never accessed counts as accessed when it came, or every new record would be the first to go.
    return (episode.accessed_at or episode.recorded_at, episode.recorded_at, episode.id)
