"""The records of one user in memory, with their word index and vectors."""

from __future__ import annotations

import math
import secrets
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from loom.core.codec import record_from_dict, record_to_dict
from loom.core.filter import And, Eq, Filter, In, Not, Range
from loom.core.record import Episode, Fact, Hit, Layer, Record, WorkingBlock, changed, rank_key, scored
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import DeadLetter, HitColumns, Job, Lease, Query, SearchKeys
from loom.text.words import query_terms, terms

# Records under numbers, so that their vectors and scores can lie in arrays, and the best of them.

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Matrix: TypeAlias = NDArray[np.float32]
    Mask: TypeAlias = NDArray[np.bool_]
    Counts: TypeAlias = NDArray[np.uintc]

_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""
_CLOSE = 1e-9
"""Sums of the same signals in another order are closer than this."""


class Numbering:
    """A number for each id, from 0 on. The number of an id that is gone is given to another one."""

    __slots__ = ("_free", "_numbers", "ids")

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.ids: list[str] = list(ids)
        """The id of each number; empty where a number is free."""
        self._numbers: dict[str, int] = {id: number for number, id in enumerate(self.ids) if id}
        self._free: list[int] = [number for number, id in enumerate(self.ids) if not id]

    def __len__(self) -> int:
        """How many numbers there are, free ones included."""
        return len(self.ids)

    def find(self, id: str) -> int | None:
        return self._numbers.get(id)

    def give(self, id: str) -> int:
        """The number of an id, a new one where it has none."""
        number = self._numbers.get(id)
        if number is not None:
            return number
        if self._free:
            number = self._free.pop()
            self.ids[number] = id
        else:
            number = len(self.ids)
            self.ids.append(id)
        self._numbers[id] = number
        return number

    def drop(self, id: str) -> None:
        """Leave nothing of an id."""
        number = self._numbers.pop(id, None)
        if number is not None:
            self.ids[number] = ""
            self._free.append(number)


class Signal(NamedTuple):
    """A score for each number, and which of them have one."""

    scores: Floats
    has_score: Mask

    def of(self, numbers: Sequence[int]) -> list[float | None]:
        """The score of each of these numbers; None where it has none."""
        places = list(numbers)
        pairs = zip(self.has_score[places].tolist(), self.scores[places].tolist(), strict=True)
        return [score if has else None for has, score in pairs]


def best(signals: Collection[Signal], limit: int, fits: Callable[[int], bool]) -> list[int]:
    """The `limit` numbers with the highest sums that fit, and all behind them that may turn out to be as good."""
    import numpy as np  # noqa: PLC0415 - only a search pays for it

    from loom.stores._search import by_score  # noqa: PLC0415

    if not signals:
        return []
    numbers = np.flatnonzero(np.logical_or.reduce([signal.has_score for signal in signals]))
    totals: Floats = np.add.reduce([signal.scores for signal in signals])[numbers]
    found: list[int] = []
    worst = 0.0
    for group in by_score(totals, limit + _TO_SPARE):
        places = group[np.argsort(-totals[group])]
        for number, score in zip(numbers[places].tolist(), totals[places].tolist(), strict=True):
            if len(found) >= limit and score < worst - _CLOSE:
                return found
            if fits(number):
                found.append(number)
                if len(found) == limit:
                    worst = score
    return found


class VectorTable:
    """Vectors of one dimension and of length 1, kept in 32 bits. The row of each is the number of its record."""

    __slots__ = ("_has", "_matrix", "_numbering")

    def __init__(self, numbering: Numbering, matrix: Matrix | None = None, has: Mask | None = None) -> None:
        self._numbering = numbering
        self._matrix: Matrix | None = matrix
        self._has: Mask | None = has
        """Which rows are vectors; all others are 0."""

    def __contains__(self, id: str) -> bool:
        return self._row(id) is not None

    def get(self, id: str) -> Vector | None:
        """The vector of a record."""
        row = self._row(id)
        return None if row is None else tuple(row.tolist())

    def set(self, vectors: Mapping[str, Vector]) -> None:
        """Give records their vectors, in place of those they had."""
        if not vectors:
            return
        numbers = [self._numbering.give(id) for id in vectors]
        matrix, has = self._roomy(max(numbers) + 1, dimension=len(next(iter(vectors.values()))))
        has[numbers] = True
        for number, vector in zip(numbers, vectors.values(), strict=True):
            matrix[number] = tuple(vector)

    def discard(self, id: str) -> None:
        """Leave nothing of a record."""
        row, number = self._row(id), self._numbering.find(id)
        if row is not None and self._has is not None:
            row[:] = 0.0
            self._has[number] = False

    def clear(self) -> None:
        """Leave nothing."""
        self._matrix = self._has = None

    def rows(self) -> tuple[Matrix, Mask] | None:
        """The row of each number, and which of them are vectors; None where there are none."""
        if self._matrix is None:
            return None
        matrix, has = self._roomy(len(self._numbering), dimension=self._matrix.shape[1])
        return matrix[: len(self._numbering)], has[: len(self._numbering)]

    def cosines(self, vector: Vector) -> Signal | None:
        """How like each vector is to one of length 1; equal ones are equally like it. None where there are none."""
        import numpy as np  # noqa: PLC0415 - only a search by vector pays for it

        from loom.stores._search import cosines  # noqa: PLC0415

        found = self.rows()
        if found is None:
            return None
        return Signal(cosines(found[0], np.asarray(vector, np.float32)).astype(np.float64), found[1])

    def _row(self, id: str) -> Matrix | None:
        number = self._numbering.find(id)
        if number is None or self._matrix is None or self._has is None or number >= len(self._has):
            return None
        return self._matrix[number] if self._has[number] else None

    def _roomy(self, needed: int, *, dimension: int) -> tuple[Matrix, Mask]:
        """Room for so many rows; made longer by half at the least, so that additions stay cheap."""
        import numpy as np  # noqa: PLC0415

        if self._matrix is None or self._has is None:
            self._matrix, self._has = np.zeros((needed, dimension), np.float32), np.zeros(needed, np.bool_)
        missing = max(needed, len(self._has) * 3 // 2) - len(self._has) if len(self._has) < needed else 0
        if missing:
            self._matrix = np.pad(self._matrix, ((0, missing), (0, 0)))
            self._has = np.pad(self._has, (0, missing))
        return self._matrix, self._has


# Finding texts by their words: one BM25 index.

K1 = 1.2
B = 0.75
_COUNTS = "I"


class _Postings(NamedTuple):
    """The texts that hold a word, by number, and how often each does: read by numpy as they lie there."""

    numbers: array[int]
    times: array[int]

    def put(self, number: int, times: int) -> None:
        """Note that a text holds the word so often. New texts have the highest numbers, mostly."""
        place = len(self.numbers)
        if place and self.numbers[-1] > number:
            place = bisect_left(self.numbers, number)
        self.numbers.insert(place, number)
        self.times.insert(place, times)

    def remove(self, number: int) -> None:
        """Forget a text that holds the word."""
        place = bisect_left(self.numbers, number)
        del self.numbers[place], self.times[place]


class WordIndex:
    """Texts under numbers, and how well each fits some words.

    idf is ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative; `k1` is 1.2 and `b` 0.75.
    """

    __slots__ = ("_lengths", "_postings", "_total", "_words")

    def __init__(self) -> None:
        self._words: dict[int, tuple[str, ...]] = {}
        self._postings: dict[str, _Postings] = {}
        self._lengths = array(_COUNTS)
        self._total = 0

    def set(self, number: int, words: Iterable[str]) -> None:
        """Index these words under `number` in place of what was there."""
        self.remove(number)
        counted = Counter(words)
        if not counted:
            return
        self._words[number] = tuple(counted)
        self._lengths.extend([0] * (number + 1 - len(self._lengths)))
        self._lengths[number] = counted.total()
        self._total += counted.total()
        for word, times in counted.items():
            postings = self._postings.get(word)
            if postings is None:
                postings = self._postings[word] = _Postings(array(_COUNTS), array(_COUNTS))
            postings.put(number, times)

    def remove(self, number: int) -> None:
        """Leave nothing of `number`."""
        words = self._words.pop(number, None)
        if words is None:
            return
        self._total -= self._lengths[number]
        self._lengths[number] = 0
        for word in words:
            postings = self._postings[word]
            postings.remove(number)
            if not postings.numbers:
                del self._postings[word]

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self._words)

    @property
    def words(self) -> Collection[str]:
        """Every word of a text, and maybe some that no text has any more."""
        return self._postings.keys()

    @property
    def lengths(self) -> array[int]:
        """How many words the text of each number has; numbers behind the last text are left out."""
        return self._lengths

    def postings(self, word: str) -> tuple[Counts, Counts] | None:
        """The numbers of the texts that hold a word, and how often each does; None where none does."""
        import numpy as np  # noqa: PLC0415

        held = self._postings.get(word)
        return None if held is None else (np.frombuffer(held.numbers, np.uintc), np.frombuffer(held.times, np.uintc))

    def scores(self, words: Iterable[str], size: int) -> Floats | None:
        """The score of each of `size` numbers, 0 for one that holds none of the words; None where none does."""
        import numpy as np  # noqa: PLC0415 - only a search pays for it

        # Sorted, so that a sum has one order of its parts and so one value.
        held = [postings for word in sorted(set(words)) if (postings := self.postings(word)) is not None]
        if not held:
            return None
        found, lengths, count = np.zeros(size), np.frombuffer(self._lengths, np.uintc), len(self)
        least, by_length = K1 * (1 - B), K1 * B * count / self._total
        for numbers, times in held:
            idf = math.log(1 + (count - len(numbers) + 0.5) / (len(numbers) + 0.5))
            found[numbers] += idf * (K1 + 1) * times / (times + least + by_length * lengths[numbers])
        return found


OWN = "bm25"
DENSE = "dense"

Keys: TypeAlias = Mapping[str, Mapping[str, str]]
"""Texts under which records are found: by record id, then by kind."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """The changes of a write to the records of a user, checked in full: applying them cannot fail.

    `deleted` are the ids it removes first; one that is in `records` too is put again, with nothing of the old record.
    """

    records: Mapping[str, Record]
    keys: Keys = field(default_factory=dict[str, Mapping[str, str]])
    deleted: frozenset[str] = frozenset()


def _place(record: Record) -> int | None:
    """The layer of a living record, 0 for facts and blocks, None for what is archived."""
    if not isinstance(record, Episode):
        return 0
    return None if record.archived_at is not None else int(record.layer)


def listed_place(where: Filter | None) -> int | None:
    """Where the records that a filter lists are: a layer, if it asks for living ones, or 0 for facts and blocks."""
    parts = where.filters if isinstance(where, And) else (where,)
    equal = {part.field: part.value for part in parts if isinstance(part, Eq)}
    kinds = [part.values for part in parts if isinstance(part, In) and part.field == "kind"]
    if equal.get("kind") in {"fact", "block"} or any({*values} <= {"fact", "block"} for values in kinds):
        return 0
    layer = equal.get("layer")
    return (
        layer if type(layer) is int and layer > 0 and "archived_at" in equal and equal["archived_at"] is None else None
    )


_ONE_TEXT = ("id", "kind", "session_id")


def _all_of(where: Filter) -> list[Filter]:
    """The filters that all have to fit."""
    return [part for one in where.filters for part in _all_of(one)] if isinstance(where, And) else [where]


def _matching(where: Filter) -> Callable[[Record], bool]:
    """What `matches` of a filter says; quicker where a field is one text or not there."""
    if isinstance(where, Not):
        matches = _matching(where.filter)
        return lambda record: not matches(record)
    if isinstance(where, Eq) and where.field in _ONE_TEXT and isinstance(where.value, str):
        field, value = where.field, where.value
        return lambda record: getattr(record, field, None) == value
    if isinstance(where, Range) and where.field == "id" and isinstance(where.low, str) and isinstance(where.high, str):
        low, high = where.low, where.high
        return lambda record: low <= record.id < high
    return where.matches


@dataclass(slots=True)
class UserRecords:
    """The records of one user. Callers never share objects with it: records are copied on the way in and out.

    `dimension` is the length of vectors, None while no embedder is bound.
    """

    records: MutableMapping[str, Record] = field(default_factory=dict[str, Record])
    keys: MutableMapping[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    dimension: int | None = None
    numbering: Numbering = field(init=False, default_factory=Numbering)
    vectors: VectorTable = field(init=False)
    indexes: dict[str, WordIndex] = field(init=False, default_factory=dict[str, WordIndex])
    places: dict[int, dict[str, None]] = field(init=False, default_factory=dict[int, dict[str, None]])
    """Ids of the living records of each layer, and of facts and blocks (0): what is listed without being searched."""
    life: int = field(init=False, default=0)
    """Tells the user from the one who had this name before they were forgotten."""
    removed: int = field(init=False, default=0)
    """How often text of the user was removed."""

    def __post_init__(self) -> None:
        self.vectors = VectorTable(self.numbering)
        for record in self.records.values():
            self._move(None, record)

    def plan(
        self, scope: Scope, *, put: Sequence[Record] = (), delete: Iterable[str] = (), keys: Keys | None = None
    ) -> RecordChange:
        """Check a write, deletions first, against what is stored; nothing is changed yet."""
        deleted = frozenset(id for id in delete if self.get(scope, id) is not None)
        planned: dict[str, Record] = {}
        for record in put:
            if isinstance(record, WorkingBlock):
                stored = None if record.id in deleted else self.records.get(record.id)
                check_version(record, planned.get(record.id) or stored)
            planned[record.id] = copied(record)
        for id in keys or ():
            record = planned.get(id) or (None if id in deleted else self.records.get(id))
            if record is None or not sees(scope, record):
                raise no_record(id, "keys")
        return RecordChange(planned, {id: dict(texts) for id, texts in (keys or {}).items()}, deleted)

    def chars(self, change: RecordChange) -> int:
        """How many characters of text a change brings and removes."""
        ids = {*change.records, *change.deleted, *change.keys}
        records = [found for id in ids for found in (change.records.get(id), self.records.get(id)) if found]
        texts = [text for id in ids for keys in (change.keys, self.keys) for text in keys.get(id, {}).values()]
        return sum(len(record.text) for record in records) + sum(map(len, texts))

    def apply(self, change: RecordChange) -> None:
        for id in change.deleted:
            self._remove(id)
        for record in change.records.values():
            self._set(record)
        for id, texts in change.keys.items():
            self._set_keys(id, texts)

    def _set(self, record: Record) -> None:
        old = self.records.get(record.id)
        self.records[record.id] = record
        self._move(old, record)
        if old is None or old.text != record.text:
            # The vector of another text would find the record for words it no longer says.
            self.vectors.discard(record.id)
            self.removed += old is not None
            self._index(OWN).set(self.numbering.give(record.id), terms(record.text))

    def _move(self, old: Record | None, new: Record | None) -> None:
        """Note that a record moved, was added or was removed."""
        left, joined = (None if record is None else _place(record) for record in (old, new))
        if left != joined:
            if old is not None and left is not None:
                del self.places[left][old.id]
            if new is not None and joined is not None:
                self.places.setdefault(joined, {})[new.id] = None

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
        self._move(self.records.pop(id), None)
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

    def select(self, scope: Scope, where: Filter | None, *, after: str = "", limit: int | None = None) -> list[Record]:
        """The first records behind the id `after` that the scope sees and the filter fits, by id; not copied."""
        later = (self.records[id] for id in sorted(id for id in self._named(where) if id > after))
        found = (r for r in later if sees(scope, r) and (where is None or where.matches(r)))
        return list(islice(found, limit))

    def _named(self, where: Filter | None) -> Iterable[str]:
        """The ids among which those that fit are: a few where the filter names them, or where they are."""
        if isinstance(where, In) and where.field == "id":
            return [id for id in dict.fromkeys(str(id) for id in where.values) if id in self.records]
        place = listed_place(where)
        return self.records if place is None else self.places.get(place, ())

    def count(self, scope: Scope, where: Filter | None) -> int:
        """How many records the scope sees and the filter fits."""
        everything = scope.session_id is None and where is None
        return len(self.records) if everything else len(self.select(scope, where))

    def set_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Give records their vectors, all or none."""
        self.vectors.set(self.units(scope, vectors))

    def units(self, scope: Scope, vectors: Mapping[str, Vector]) -> dict[str, Vector]:
        """The directions of vectors that are to be set; refuses those of records that the scope does not see."""
        found = {id: unit_vector(vector, self.dimension, f"the vector of {id}") for id, vector in vectors.items()}
        for id in found:
            if self.get(scope, id) is None:
                raise no_record(id, "a vector")
        return found

    def search_keys(self, scope: Scope, ids: Iterable[str]) -> dict[str, SearchKeys]:
        """The keys and the vector of each of these records that the scope sees."""
        seen = [id for id in ids if self.get(scope, id) is not None]
        return {id: SearchKeys(dict(self.keys.get(id, {})), self.vectors.get(id)) for id in seen}

    def search(self, scope: Scope, query: Query, *, now: datetime) -> list[Hit]:
        """The best hits, best first; only what is returned is looked at in full."""
        fits, vector = self._fitting(scope, query, now), self._vector(query)
        if vector is None and not query.text.strip():
            ids = nsmallest(query.limit, (id for id in self._named(query.where) if fits(self.records[id])))
            return [Hit(copied(self.records[id]), 0.0) for id in ids]
        signals = self._words(query.text)
        dense = None if vector is None else self.vectors.cosines(vector)
        if dense is not None:
            signals[DENSE] = dense
        return self._hits(self._ranked(signals, query.limit, fits))

    def search_hybrid(self, scope: Scope, query: Query, near: int, *, now: datetime) -> list[Hit]:
        """The best by words and the `near` best by vector, each with its cosine."""
        return self._hits(self._both(scope, query, near, now))

    def _both(self, scope: Scope, query: Query, near: int, now: datetime) -> dict[int, dict[str, float]]:
        """The numbers of search_hybrid(), each with what every signal says of it."""
        fits, vector = self._fitting(scope, query, now), self._vector(query)
        by_words = self._ranked(self._words(query.text), query.limit, fits)
        dense = None if vector is None else self.vectors.cosines(vector)
        if dense is None:
            return by_words
        by_vector = self._ranked({DENSE: dense}, near, fits)
        near_too = self._why(list(by_words), {DENSE: dense})
        return by_vector | {number: why | near_too[number] for number, why in by_words.items()}

    def search_columns(self, scope: Scope, query: Query, near: int, *, now: datetime) -> HitColumns:
        """The hits of search_hybrid() in its order; only those that are read are copied."""
        found = self._both(scope, query, near, now)
        ids, records = self.numbering.ids, self.records
        order = sorted(found, key=lambda number: (-math.fsum(found[number].values()), ids[number]))
        held = len(records) if scope.session_id is None else None
        return columns_of([records[ids[number]] for number in order], [found[number] for number in order], held=held)

    def _vector(self, query: Query) -> Vector | None:
        return None if query.vector is None else unit_vector(query.vector, self.dimension, "the vector of a query")

    def beside(self, scope: Scope, query: Query, ids: Iterable[str], *, now: datetime) -> tuple[list[Hit], list[Hit]]:
        """The best by words alone, and those of these records that the query may show."""
        fits = self._fitting(scope, query, now)
        by_words = self._hits(self._ranked(self._words(query.text), query.limit, fits))
        there = [record for id in ids if (record := self.records.get(id)) is not None]
        return by_words, [Hit(copied(record), 0.0) for record in there if fits(record)]

    def _fitting(self, scope: Scope, query: Query, now: datetime) -> Callable[[Record], bool]:
        """Whether a query may return a record."""
        at, known_at, where = query.at or now, query.known_at or now, query.where
        parts = [] if where is None else [_matching(part) for part in _all_of(where)]

        def fits(record: Record) -> bool:
            if isinstance(record, Fact):
                shown = query.history or record.is_current(at, known_at)
            else:
                shown = not isinstance(record, Episode) or query.archived or record.archived_at is None
            return shown and sees(scope, record) and all(matches(record) for matches in parts)

        return fits

    def _words(self, text: str) -> dict[str, Signal]:
        """The scores of the words of a text, by the kind of key that they are in."""
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
            archived = replace(record, archived_at=now)
            self._move(record, archived)
            self.records[record.id] = archived
        return tuple(record.id for record in sorted((*old, *excess), key=_eviction_order))


def columns_of(
    records: Sequence[Record], whys: Sequence[Mapping[str, float]], *, held: int | None = None
) -> HitColumns:
    """Records as the columns of hits, each with what every signal says of it; one that is read is copied."""
    import numpy as np  # noqa: PLC0415 - only a search pays for it

    names = dict.fromkeys(name for why in whys for name in why)
    signals = {name: np.array([why.get(name, np.nan) for why in whys]) for name in names}
    return HitColumns.of(records, signals, lambda place: copied(records[place]), held=held)


def copied(record: Record) -> Record:
    """A record that shares nothing that can change."""
    if not isinstance(record, Episode):
        return record
    return changed(record, attributes=dict(record.attributes))


def sees(scope: Scope, record: Record) -> bool:
    """Whether the record lies inside the scope of its user; facts and blocks belong to no session."""
    return scope.session_id is None or not isinstance(record, Episode) or record.session_id == scope.session_id


def check_version(block: WorkingBlock, stored: Record | None) -> None:
    """Refuse a block that does not follow the stored one."""
    if block == stored:
        return
    current = stored.version if isinstance(stored, WorkingBlock) else 0
    if block.version != current + 1:
        raise StoreConflict(
            f"block {block.name!r} is stored with version {current}, so version {block.version} cannot follow; "
            f"read it again and write version {current + 1}"
        )


def no_record(id: str, what: str) -> NotFound:
    """The error of a record that is given keys or a vector and is not there."""
    return NotFound(f"record {id!r} does not exist, so it cannot get {what}; put it first")


def unit_vector(vector: Vector, dimension: int | None, what: str) -> Vector:
    """The direction of a vector; refuses one without a direction or of another dimension than the store's."""
    from loom.stores._search import check_length, unit  # noqa: PLC0415 - numpy is loaded when vectors are used

    if dimension is None:
        raise UsageError("no embedder is bound to this store; call bind(identity, dimension) before you use vectors")
    row = unit(vector, what)
    check_length(len(row), dimension, what)
    return row


def _eviction_order(episode: Episode) -> tuple[datetime, datetime, str]:
    # What was never accessed counts as accessed when it came, or every new record would be the first to go.
    return (episode.accessed_at or episode.recorded_at, episode.recorded_at, episode.id)


@dataclass(frozen=True, slots=True)
class HeldJob:
    """An open job, and who holds it until when."""

    job: Job
    token: str | None = None
    until: datetime | None = None

    def is_due(self, now: datetime, kinds: Sequence[str] | None = None) -> bool:
        """Whether it may be leased, as a job of one of these kinds."""
        is_free = self.until is None or self.until <= now
        return is_free and self.job.run_at <= now and (kinds is None or self.job.kind in kinds)

    def taken(self, until: datetime) -> HeldJob:
        """The job leased once more, under a new token."""
        job = replace(self.job, attempts=self.job.attempts + 1)
        return HeldJob(job, secrets.token_hex(8), until)

    def lease(self) -> Lease:
        assert self.token is not None
        assert self.until is not None
        return Lease(job=copied_job(self.job), token=self.token, until=self.until)


@dataclass(slots=True)
class UserState:
    """Everything of one user. `vectors_of` counts the embedders before the one that the vectors come from."""

    records: UserRecords = field(default_factory=UserRecords)
    jobs: dict[str, HeldJob] = field(default_factory=dict[str, HeldJob])
    dead: list[DeadLetter] = field(default_factory=list[DeadLetter])
    vectors_of: int = 0

    def held(self, lease: Lease) -> HeldJob:
        """The job of a lease; refuses one that is not the newest of an open job."""
        found = self.jobs.get(lease.job.id)
        if found is None or found.token != lease.token:
            raise lease_lost(lease)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; from_dict() reads them back."""
        records, numbers = self.records, {id: self.records.vectors.get(id) for id in self.records.records}
        return {
            "records": [record_to_dict(record) for record in records.records.values()],
            "keys": {id: dict(texts) for id, texts in records.keys.items() if texts},
            "vectors": {id: list(vector) for id, vector in numbers.items() if vector is not None},
            "epoch": [records.life, records.removed, self.vectors_of],
            "jobs": [
                [job_to_dict(held.job), held.token, held.until and held.until.isoformat()]
                for held in self.jobs.values()
            ],
            "dead": [[job_to_dict(dead.job), dead.reason, dead.at.isoformat()] for dead in self.dead],
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> UserState:
        records = UserRecords()
        read = [record_from_dict(record) for record in found["records"]]
        records.apply(RecordChange({record.id: record for record in read}, found["keys"]))
        records.vectors.set(found["vectors"])
        records.life, records.removed, vectors_of = found["epoch"]
        jobs = [(job_from_dict(job), token, until) for job, token, until in found["jobs"]]
        held = {job.id: HeldJob(job, token, until and datetime.fromisoformat(until)) for job, token, until in jobs}
        dead = [(job_from_dict(job), reason, datetime.fromisoformat(at)) for job, reason, at in found["dead"]]
        return cls(records, held, [DeadLetter(job=job, reason=why, at=at) for job, why, at in dead], vectors_of)


def new_jobs(jobs: Iterable[Job], keys: set[str], ids: set[str]) -> list[Job]:
    """The jobs of a write whose key is not open yet; refuses an id that is open with another key.

    `keys` and `ids` are those of open jobs, and grow by those of the new ones.
    """
    new: list[Job] = []
    for job in jobs:
        if job.key in keys:
            continue
        if job.id in ids:
            raise UsageError(f"job {job.id} is open already, with another key than {job.key!r}; use a new id")
        keys.add(job.key)
        ids.add(job.id)
        new.append(job)
    return new


def lease_lost(lease: Lease) -> StoreConflict:
    """The error of a lease that is not the newest of an open job."""
    return StoreConflict(
        f"the lease on job {lease.job.id} has ended: the job was leased again, closed or forgotten; "
        f"drop what you did and lease again"
    )


def job_to_dict(job: Job) -> dict[str, Any]:
    """A job as plain values; its payload as it is."""
    scope = [job.scope.namespace, job.scope.user_id, job.scope.session_id]
    plain = {"id": job.id, "kind": job.kind, "key": job.key, "run_at": job.run_at.isoformat()}
    return {"scope": scope, **plain, "payload": dict(job.payload), "attempts": job.attempts}


def job_from_dict(found: Mapping[str, Any]) -> Job:
    plain = {name: found[name] for name in ("id", "kind", "key", "payload", "attempts")}
    return Job(scope=Scope(*found["scope"]), run_at=datetime.fromisoformat(found["run_at"]), **plain)


def payload_error(job: Job, error: Exception) -> UsageError:
    return UsageError(f"the payload of job {job.id} is not a JSON object ({error}); use plain values")


def copied_job(job: Job) -> Job:
    """A job that shares nothing that can change."""
    return replace(job, payload=deepcopy(dict(job.payload)))
