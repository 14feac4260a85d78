"""Search parts that stores share: postings and BM25, nearest vectors, best scores, two-sided search.

A posting is one text that holds a term: its number, how often, and how long the text is. Numbers are cut into runs, and
the postings of a term lie together in one row per run: what is new changes the rows of the last, small run, and small
runs become a larger one when it is full.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, groupby, pairwise
from math import log
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from loom.core import checks
from loom.core.filter import And, Filter, In
from loom.core.record import Hit, HitItem, joined, rank_key, scored
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import MemoryStore, PrimaryStore, Query
from loom.protocols.vector_store import VectorHit
from loom.stores._record_table import DENSE
from loom.stores._sketches import Float32s, SketchWords, estimated_cosines, sketched
from loom.stores.base import DamagedData, compare
from loom.text.words import terms

OWN = "bm25"
"""The signal of a record's own text; that of a key is `bm25.KIND`."""
K1 = 1.2
B = 0.75

RUN = 256
LARGER_RUNS = (64 * RUN, 8 * RUN)
"""How many numbers a run holds, in the database: new texts arrive in a small one, and full ones become a larger one.

Small runs keep writes cheap, large ones searches.
"""

ENTRIES = np.dtype([("number", "<u4"), ("times", "<u2"), ("length", "<u2")])
_TIMES_BITS = 16
MOST = 2**_TIMES_BITS - 1
"""What an entry can count to: a term or a text with more counts as this."""
_TOGETHER = 2**18
"""How many bytes of entries are computed at once: few terms at a time are slow, and so is what no cache holds."""
_ID = "I"
"""How the ids of terms are kept while a change is made."""

Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = NDArray[np.floating[Any]]
Place: TypeAlias = tuple[int, str, str]
"""A row of a user's postings: its run, its term and its signal."""
Key: TypeAlias = tuple[str, str]
"""A term and a signal."""
_Value = TypeVar("_Value", int, str)
_Text: TypeAlias = tuple[int, str]
"""A text of a change: the number of its record and its signal."""


def run_of(number: int, size: int) -> int:
    """The first number of the run that holds this one, where there are `size` numbers."""
    for run in LARGER_RUNS:
        if number // run < size // run:
            return number // run * run
    return number // RUN * RUN


def runs_of(size: int) -> Iterator[int]:
    """The first numbers of all runs."""
    start = 0
    for run in (*LARGER_RUNS, RUN):
        end = size // run * run
        yield from range(start, end, run)
        start = end
    if start < size:
        yield start


def joined_run(before: int, size: int) -> int | None:
    """Where the run starts that is full when `before` numbers grow to `size`, and takes up all behind it; or None."""
    return next((before // run * run for run in LARGER_RUNS if before // run < size // run), None)


class TextChange:
    """Texts that come to and go from the index of one user."""

    __slots__ = ("_added", "_ids", "_lines", "_removed", "lengths")

    def __init__(self) -> None:
        self.lengths: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        """By how many texts and words each signal grows."""
        self._added: dict[_Text, array[int]] = {}
        self._removed: defaultdict[_Text, set[int]] = defaultdict(set)
        self._ids: dict[str, int] = {}
        self._lines: dict[str, array[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._added or self._removed or self.lengths)

    def add(self, signal: str, number: int, text: str) -> int:
        """Index the text, and return how many words it has. What it replaces must have been removed before."""
        found = self._added[number, signal] = self._terms_of(text)
        self._count(signal, len(found), 1)
        return len(found)

    def remove(self, signal: str, number: int, text: str) -> None:
        """Take a text out that was indexed like this, in the database or in this change."""
        found = self._terms_of(text)
        if self._added.pop((number, signal), None) is None:
            self._removed[number, signal].update(found)
        self._count(signal, len(found), -1)

    def gone(self, size: int) -> dict[Place, set[int]]:
        """The numbers that each place loses, where the user has `size` numbers."""
        names = list(self._ids)
        places: defaultdict[Place, set[int]] = defaultdict(set)
        for (number, signal), held in self._removed.items():
            run = run_of(number, size)
            for id in held:
                places[run, names[id], signal].add(number)
        return places

    def entries(self, size: int) -> dict[Place, bytes]:
        """The entries of new texts in the order of their places, so that neighbouring pages are written together."""
        return _entries(self._added, list(self._ids), size) if any(map(len, self._added.values())) else {}

    def _terms_of(self, text: str) -> array[int]:
        """The terms of a text as ids; a line that comes again, as in the keys of neighbours, is analysed once."""
        found = array(_ID)
        for line in text.splitlines():
            known = self._lines.get(line)
            if known is None:
                ids = self._ids
                known = self._lines[line] = array(_ID, [ids.setdefault(term, len(ids)) for term in terms(line)])
            found += known
        return found

    def _count(self, signal: str, length: int, sign: int) -> None:
        if length:
            self.lengths[signal][0] += sign
            self.lengths[signal][1] += sign * length


def _entries(texts: Mapping[_Text, array[int]], names: Sequence[str], size: int) -> dict[Place, bytes]:
    keys = sorted(texts)
    lengths = np.asarray([len(texts[key]) for key in keys], np.int64)
    runs, run_ids = _numbered([run_of(number, size) for number, _ in keys])
    signals, signal_ids = _numbered([signal for _, signal in keys])
    # The ids of terms are in the order they came, their ranks in that of the table.
    ordered = sorted(range(len(names)), key=names.__getitem__)
    ranks = np.empty(len(names), np.int64)
    ranks[ordered] = np.arange(len(names))
    held = ranks[np.frombuffer(b"".join([texts[key] for key in keys]), _ID)]
    # One whole number for each word: its place in the table, then its text. Sorted, they are counted.
    shape = (len(runs), len(names), len(signals), len(keys))
    of_text = np.repeat(np.arange(len(keys)), lengths)
    words = np.ravel_multi_index((run_ids[of_text], held, signal_ids[of_text], of_text), shape)
    words.sort()
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    found, times = words[starts], np.diff(starts, append=len(words))
    of_run, of_term, of_signal, of_text = np.unravel_index(found, shape)
    entries = np.empty(len(found), ENTRIES)
    entries["number"] = np.asarray([number for number, _ in keys])[of_text]
    entries["times"] = np.minimum(times, MOST)
    entries["length"] = np.minimum(lengths, MOST)[of_text]
    starts = np.flatnonzero(np.diff(found // len(keys), prepend=-1))
    run_places: list[int] = of_run[starts].tolist()
    term_ranks: list[int] = of_term[starts].tolist()
    term_list = [names[ordered[rank]] for rank in term_ranks]
    signal_places: list[int] = of_signal[starts].tolist()
    run_list, signal_list = [runs[place] for place in run_places], [signals[place] for place in signal_places]
    return dict(zip(zip(run_list, term_list, signal_list, strict=True), _cut(entries, starts), strict=True))


def _numbered(values: Sequence[_Value]) -> tuple[list[_Value], Numbers]:
    """The different values in order, and which of them each is; numpy's own function imports much at its first use."""
    different = sorted(set(values))
    places = {value: place for place, value in enumerate(different)}
    return different, np.asarray([places[value] for value in values], np.int64)


def _cut(entries: NDArray[Any], starts: Numbers) -> Iterator[bytes]:
    """The entries from each start up to the next."""
    data = entries.tobytes()
    bounds: list[int] = (starts * ENTRIES.itemsize).tolist()
    return (data[start:end] for start, end in pairwise([*bounds, len(data)]))


def without(held: Mapping[Place, bytes], gone: Mapping[Place, set[int]]) -> dict[Place, bytes]:
    """What is left of the entries of each place when it has lost these numbers."""
    entries = np.frombuffer(b"".join(held.values()), ENTRIES)
    sizes = [len(data) // ENTRIES.itemsize for data in held.values()]
    # One whole number for each entry: which place it is in, then its number.
    lost = np.asarray(
        sorted(place << 32 | number for place, name in enumerate(held) for number in gone[name]), np.int64
    )
    of_place = np.repeat(np.arange(len(held)), sizes)
    all_of_them = of_place << 32 | entries["number"]
    found = np.searchsorted(lost, all_of_them)
    is_kept = np.append(lost, -1)[found] != all_of_them
    starts = np.searchsorted(of_place[is_kept], np.arange(len(held)))
    return dict(zip(held, _cut(entries[is_kept], starts), strict=True))


class Posting(NamedTuple):
    """A term in a text: the signal that the text is of, the term, and the number of the record."""

    signal: str
    term: str
    number: int


def expected_postings(signal: str, number: int, text: str) -> tuple[dict[Posting, tuple[int, int]], int]:
    """What the index says of a text: how often each term is in it and how long it counts as; and how long it is."""
    counted = Counter(term for line in text.splitlines() for term in terms(line))
    length = min(counted.total(), MOST)
    postings = {Posting(signal, term, number): (min(times, MOST), length) for term, times in counted.items()}
    return postings, counted.total()


def unpacked(entries: bytes) -> list[tuple[int, int, int]]:
    """The number, the times and the length of each posting of a term; an entry cut short is left out."""
    whole = len(entries) // ENTRIES.itemsize * ENTRIES.itemsize
    return np.frombuffer(entries[:whole], ENTRIES).tolist()


# Texts around a text: a turn is found by the words of its neighbours too. What they say is not written a second time:
# where a term is in the texts around follows from where it is in the texts, and from who follows whom.

AROUND = f"{OWN}.around"
"""The signal of a turn's own text and those around it, as `loom.protocols.memory_store.Around` says."""
HEAD = f"{OWN}.head"
"""The beginning of a text that is longer than its neighbours quote of it; it is indexed, but no signal of a search."""
LINKS = np.dtype([("before", "<u4"), ("words", "<u4"), ("head", "<u4")])
"""What is known of a number: FIRST or the number before it, BEHIND added, or 0; how many words its text has; and how
many of them its neighbours quote, 1 added, or 0 where that is all of them."""
FIRST = 1
BEHIND = 2


_SPARSE = 5
"""Keys are sorted where they are fewer than one in so many."""


class TurnOrder:
    """Who follows whom in the conversations of one user, by number. One thread at a time may use it."""

    __slots__ = ("_around", "_is_linked", "_is_long", "_near", "_quoted", "_size", "_words", "texts", "words")

    def __init__(self, links: NDArray[Any]) -> None:
        self._size = 0
        self._near: NDArray[np.int32] = np.zeros((0, 2 * checks.REACH), np.int32)
        """The numbers before and behind each, nearest first; -1 where there is none."""
        self._words, self._quoted, self._around = np.zeros((3, 0), np.int64)
        self._is_linked, self._is_long = np.zeros((2, 0), np.bool_)
        self.texts = 0
        """How many turns have words around them; `words` is how many in all."""
        self.words = 0
        self.extend(links)

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self._near.nbytes + 3 * self._words.nbytes + 2 * self._is_long.nbytes

    def extend(self, links: NDArray[Any]) -> None:
        """Add what is known of the next numbers."""
        first = self._size
        size = self._size = first + len(links)
        for name in ("_near", "_words", "_quoted", "_around", "_is_linked", "_is_long"):
            setattr(self, name, _roomy(getattr(self, name), size, axis=0))
        new = np.arange(first, size)
        self._is_linked[new], self._is_long[new] = links["before"] > 0, links["head"] > 0
        self._words[new] = links["words"]
        self._quoted[new] = np.where(links["head"] > 0, links["head"] - np.uint32(1), links["words"])
        self._measure(self._order(new, links["before"].astype(np.int64) - BEHIND))

    def _order(self, new: Numbers, before: Numbers) -> Numbers:
        """Put new numbers behind those before them; returns all that have other neighbours now."""
        before[(before < 0) | (before >= self._size)] = -1
        near, reach = self._near, checks.REACH
        near[new] = -1
        near[new, 0] = before
        followed = before >= 0
        near[before[followed], reach] = new[followed]
        # Those behind the new ones are new: only what is before them changes as well, as far as they reach.
        numbers = new
        for _ in range(reach if len(new) < self._size else 0):
            places = near[numbers, 0]
            numbers = np.asarray(sorted({*numbers.tolist(), *places[places >= 0].tolist()}), np.int64)
        for step in (0, reach):
            for distance in range(step + 1, step + reach):
                places = near[numbers, distance - 1]
                near[numbers, distance] = np.where(places >= 0, near[places, step], -1)
        return numbers

    def _measure(self, numbers: Numbers) -> None:
        """Count the words around these anew."""
        around = self._words[numbers]
        for near in self._near[numbers].T:
            around += np.where(near >= 0, self._quoted[near], 0)
        around *= self._is_linked[numbers]
        old = self._around[numbers]
        self.texts += int(np.count_nonzero(around)) - int(np.count_nonzero(old))
        self.words += int(around.sum()) - int(old.sum())
        self._around[numbers] = around

    def around(self, numbers: Sequence[int]) -> list[list[int]]:
        """The turns around each of these and itself, in order; none where it is not linked."""
        found: list[list[int]] = []
        for number in numbers:
            before, behind = np.split(self._near[number], 2)
            places: list[int] = [*before[::-1].tolist(), number, *behind.tolist()]
            found.append([place for place in places if place >= 0] if self._is_linked[number] else [])
        return found

    def entries(self, held: Sequence[tuple[bytes, bytes]], size: int) -> list[bytes]:
        """The entries of terms around `size` numbers, made from those of their own texts and of the heads of texts."""
        ends = accumulate(len(own) + len(head) for own, head in held)
        groups = groupby(zip(held, ends, strict=True), key=lambda pair: pair[1] // _TOGETHER)
        return [data for _, group in groups for data in self._entries([each for each, _ in group], size)]

    def _entries(self, held: Sequence[tuple[bytes, bytes]], size: int) -> Iterator[bytes]:
        # One whole number for each posting: its term, then its number. The first place of a term is that of no number.
        width = len(self) + 1
        starts = np.arange(len(held) + 1) * width
        keys, times = _by_term([own for own, _ in held], starts, len(self))
        heads, head_times = _by_term([head for _, head in held], starts, len(self))
        # Of a long text, neighbours quote the head.
        is_short = ~self._is_long[(keys - 1) % width]
        quoted = np.concatenate([keys[is_short], heads])
        quoted_times = np.concatenate([times[is_short], head_times])
        numbers = (quoted - 1) % width
        near = self._near[numbers] + (quoted - numbers)[:, np.newaxis]
        keys, times = _summed(
            np.concatenate([keys, near.ravel()]),
            np.concatenate([times, np.repeat(quoted_times, near.shape[1])]),
            starts[-1],
        )
        bounds = np.searchsorted(keys, starts)
        numbers = keys - np.repeat(starts[:-1] + 1, np.diff(bounds))
        is_shown = (numbers >= 0) & (numbers < size) & self._is_linked[numbers]
        found = np.empty(np.count_nonzero(is_shown), ENTRIES)
        found["number"], found["times"] = numbers[is_shown], np.minimum(times[is_shown], MOST)
        found["length"] = np.minimum(self._around[found["number"]], MOST)
        return _cut(found, np.concatenate([[0], np.cumsum(is_shown)])[bounds[:-1]])


def _by_term(held: Sequence[bytes], starts: Numbers, size: int) -> tuple[Numbers, NDArray[Any]]:
    """The entries of several terms: the key of each, given where those of each term start, and how often."""
    entries = np.frombuffer(b"".join(held), ENTRIES)
    check_largest(entries["number"], size)
    of_term = np.repeat(starts[:-1] + 1, [len(data) // ENTRIES.itemsize for data in held])
    return of_term + entries["number"], entries["times"].astype(np.int64)


def _summed(keys: Numbers, times: NDArray[Any], size: int) -> tuple[Numbers, NDArray[Any]]:
    """Each key below `size` that occurs, in order, and the sum of its times."""
    if len(keys) * _SPARSE >= size:  # a place for each key is cheaper than sorting them
        sums = np.bincount(keys, times, minlength=size)
        found = np.flatnonzero(sums)
        return found, sums[found]
    # One whole number for each: which, then how often. Sorted, equal ones lie together.
    # They are nearly in order, which a stable sort makes use of.
    both = np.sort(keys << _TIMES_BITS | times, kind="stable")
    found = both >> _TIMES_BITS
    starts = np.flatnonzero(np.diff(found, prepend=-1))
    return found[starts], np.add.reduceat(both & MOST, starts) if len(starts) else starts


class PostingPart(NamedTuple):
    """What one term, or anything else that speaks for records, adds to the scores of these numbers."""

    signal: str
    numbers: Numbers
    scores: Scores


def parts_of(held: Mapping[Key, Sequence[bytes]], lengths: Mapping[str, tuple[int, int]]) -> list[PostingPart]:
    """What each term adds to each signal, from all of its entries and the texts and words that a signal has in all.

    By term, so that a sum has one order of its parts and so one value.
    """
    entries = [(key, b"".join(held[key])) for key in sorted(held)]
    ends = accumulate(len(data) for _, data in entries)
    groups = groupby(zip(entries, ends, strict=True), key=lambda pair: pair[1] // _TOGETHER)
    return [part for _, group in groups for part in _parts([each for each, _ in group], lengths)]


def _parts(entries: Sequence[tuple[Key, bytes]], lengths: Mapping[str, tuple[int, int]]) -> list[PostingPart]:
    found = np.frombuffer(b"".join([data for _, data in entries]), ENTRIES)
    holding = [len(data) // ENTRIES.itemsize for _, data in entries]
    signals = [signal for (_, signal), _ in entries]
    of_all = [lengths[signal] for signal in signals]
    idf = [log(1 + (texts - n + 0.5) / (n + 0.5)) for (texts, _), n in zip(of_all, holding, strict=True)]
    times = found["times"].astype(np.float64)
    length = found["length"] * np.repeat([texts / words for texts, words in of_all], holding)
    weights: Floats = times * (K1 + 1) / (times + K1 * (1 - B + B * length))
    scores = np.repeat(idf, holding) * weights
    numbers = found["number"].astype(np.int64)
    bounds = pairwise(accumulate(holding, initial=0))
    return [PostingPart(signal, numbers[a:b], scores[a:b]) for signal, (a, b) in zip(signals, bounds, strict=True)]


def check_numbers(parts: Sequence[PostingPart], size: int) -> None:
    """Refuse a number that no record has, before scores for so many are made room for."""
    for part in parts:
        check_largest(part.numbers, size)


def check_largest(numbers: NDArray[Any], size: int) -> None:
    """Refuse a number that no record has."""
    if numbers.size and numbers.max() >= size:
        raise DamagedData(f"it has a record {numbers.max():,}, and only {size:,} were written")


def total(parts: Sequence[PostingPart], size: int) -> Floats:
    """The sum of all parts for each of `size` numbers."""
    if not parts:
        return np.zeros(size)
    numbers = np.concatenate([part.numbers for part in parts])
    return np.bincount(numbers, np.concatenate([part.scores for part in parts]), size).astype(np.float64, copy=False)


def signals_of(best: Numbers, parts: Sequence[PostingPart], size: int) -> dict[str, Floats]:
    """The score of each signal for each of the best of `size` numbers: NaN where it did not speak for it."""
    place_of = np.full(size, -1, np.int64)
    place_of[best] = np.arange(len(best))
    signals: dict[str, Floats] = {}
    for signal, group in groupby(sorted(parts, key=itemgetter(0)), key=itemgetter(0)):
        _, numbers, scores = zip(*group, strict=True)
        places = place_of[np.concatenate(numbers)]
        is_best = places >= 0
        places = places[is_best]
        if len(places):
            column = signals[signal] = np.full(len(best), np.nan)
            column[places] = np.bincount(places, np.concatenate(scores)[is_best], len(best))[places]
    return signals


def whys(signals: Mapping[str, Floats]) -> Iterator[dict[str, float]]:
    """For each hit, the score of each signal that spoke for it."""
    columns: list[list[float]] = [column.tolist() for column in signals.values()]
    for values in zip(*columns, strict=True):
        yield {name: value for name, value in zip(signals, values, strict=True) if value == value}  # noqa: PLR0124 - NaN


def why_of(best: Sequence[int], parts: Sequence[PostingPart], size: int) -> dict[int, dict[str, float]]:
    """For each of the best of `size` numbers, the score of each signal that spoke for it."""
    signals = signals_of(np.asarray(best, np.int64), parts, size)
    return dict(zip(best, whys(signals) if signals else ({} for _ in best), strict=True))


def best_first(scores: Floats, ids: Sequence[str]) -> list[int]:
    """The places of falling scores; at equal scores the ids decide."""
    order = np.argsort(-scores, kind="stable")
    if (np.diff(scores[order]) != 0).all():
        return order.tolist()
    return [place for _, _, place in sorted(zip((-scores).tolist(), ids, range(len(ids)), strict=True))]


# The best of many scores first, without sorting them all.


def by_score(scores: NDArray[np.floating[Any]], size: int) -> Iterator[NDArray[np.int64]]:
    """The places of falling scores, in groups; equal scores are never parted, so that ids can decide between them."""
    # Mostly the first group is enough, or a few more are; where very few fit, groups must grow.
    places: NDArray[np.int64] | None = None
    sizes = chain([size], (max(1, size // 4) * 4**times for times in count()))
    while len(scores) > (size := next(sizes)):
        # The best of many blocks are quicker to order than all, and `size` blocks that reach a score hold as many hits.
        block = max(1, len(scores) // (8 * size))
        highest = np.maximum.reduceat(scores, np.arange(0, len(scores), block))
        is_top = scores >= np.partition(highest, len(highest) - size)[len(highest) - size]
        top = np.flatnonzero(is_top)
        yield top if places is None else places[top]
        rest = np.flatnonzero(~is_top)
        places, scores = rest if places is None else places[rest], scores[rest]
    if len(scores):
        yield np.arange(len(scores)) if places is None else places


# Cosines of many vectors to a query: exact while they are few, estimated by sketches when they are many.

_Scalar = TypeVar("_Scalar", bound=np.generic)

EXACT_NUMBERS = 2**22
"""Up to this many numbers (16,384 vectors of 256) all are compared, in 16 MiB; `benchmarks/README.md` says why."""

_DIGITS = 6


class Vectors:
    """Vectors of length 1 with a number each, in the order they came. One thread at a time may add to them."""

    __slots__ = ("_count", "_matrix", "_numbers", "_sketches", "exact_numbers")

    def __init__(self, dimension: int, *, exact_numbers: int = EXACT_NUMBERS) -> None:
        self.exact_numbers = exact_numbers
        self._count = 0
        self._numbers: Numbers = np.zeros(0, np.int64)
        self._matrix: Float32s = np.zeros((0, dimension), np.float32)
        self._sketches: SketchWords | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def is_exact(self) -> bool:
        """Whether cosines are exact; otherwise they are estimates."""
        return self._sketches is None

    @property
    def nbytes(self) -> int:
        """How much memory they take; room for later ones takes none before it is used."""
        matrix = self._matrix[: self._count]
        sketches = 0 if self._sketches is None else self._sketches[:, : self._count].nbytes
        return self.numbers.nbytes + matrix.nbytes + sketches

    @property
    def numbers(self) -> Numbers:
        """The number of each vector."""
        return self._numbers[: self._count]

    def append(self, numbers: list[int], block: Float32s) -> None:
        """Add vectors; where they are more than `exact_numbers`, the sketches of all are kept in their place."""
        first, end = self._count, self._count + len(numbers)
        if self._sketches is None and end * block.shape[1] > self.exact_numbers:
            self._sketches = sketched(self._matrix[:first])
            self._matrix = self._matrix[:0].copy()
        if self._sketches is None:
            self._matrix = _roomy(self._matrix, end, axis=0)
            self._matrix[first:end] = block
        else:
            self._sketches = _roomy(self._sketches, end, axis=1)
            self._sketches[:, first:end] = sketched(block)
        self._numbers = _roomy(self._numbers, end, axis=0)
        self._numbers[first:end] = numbers
        self._count = end

    def start_with(self, numbers: Numbers, sketches: SketchWords) -> None:
        """The first vectors, of which only the sketches are known; there may be room for more behind these."""
        self._numbers, self._sketches, self._count = numbers, sketches, len(numbers)

    def likeness(self) -> Callable[[Float32s], Float32s]:
        """A function that gives each vector's cosine to a query, as of now: what is added later does not disturb it."""
        if self._sketches is None:
            matrix = self._matrix[: self._count]
            return lambda query: cosines(matrix, query)
        sketches = self._sketches[:, : self._count]
        return lambda query: estimated_cosines(sketches, query)


def unit(vector: Vector, what: str) -> NDArray[np.float64]:
    """The direction of a vector; refuses one that has none."""
    try:
        row = np.array(vector if isinstance(vector, np.ndarray) else list(vector), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} does not hold numbers only ({error}); give a sequence of floats") from error
    if row.ndim != 1 or not len(row):
        raise UsageError(f"{what} has the shape {row.shape}; give one row of numbers")
    if not np.isfinite(row).all():
        raise UsageError(f"{what} holds a NaN or an infinity; a vector needs finite numbers")
    largest = np.abs(row).max()
    if largest == 0:
        raise UsageError(f"{what} is all zeros, which points nowhere; leave it out")
    # Dividing by the largest first keeps the squares of very large and very small numbers in range.
    row /= largest
    return row / np.linalg.norm(row)


def check_length(given: int, dimension: int, what: str) -> None:
    """Refuse a vector of another dimension than the store's."""
    if given != dimension:
        raise UsageError(f"{what} has {given} numbers, and this store holds vectors of {dimension}; use one embedder")


def cosines(matrix: Float32s, query: Float32s) -> Float32s:
    """The exact cosine of each row to the query."""
    # Row by row: a product of matrices would start threads that cost more than they save, and could differ by row.
    found: Float32s = np.vecdot(matrix, query)
    np.round(found, _DIGITS, out=found)
    return found


def _roomy(array: NDArray[_Scalar], needed: int, *, axis: int) -> NDArray[_Scalar]:
    """The array, if need be made longer by half at the least, so that many small additions stay cheap."""
    length = array.shape[axis]
    if needed <= length:
        return array
    shape = list(array.shape)
    shape[axis] = max(needed, length * 3 // 2)
    wider = np.zeros(shape, array.dtype)  # what is not used yet takes no memory
    wider[tuple(map(slice, array.shape))] = array
    return wider


# Hybrid search: words from the primary store, vectors from the index, as one list or as two.
#
# Together: each side gives its best first, deeper each time. What one side found is completed by asking the other for
# just that. It is enough when no record that neither side has shown can reach the last hit: its words score no more
# than the last of the words, and its cosine at most the last of the index.

_FIRST = 32
_TO_SPARE = 8
"""How many more than asked for are taken of the nearest first: some may not fit, and equal ones are not parted."""
_GROWTH = 4
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _Side:
    """The scores of one side by record, and the most that a record can score that is not among them."""

    scores: dict[str, float]
    rest: float | None


class FindsNearest(Protocol):
    """The one call of an index that is needed here; every VectorStore has it."""

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors, nearest first."""
        ...


async def search(
    primary: MemoryStore, index: FindsNearest, scope: Scope, query: Query, vector: Vector
) -> tuple[Hit, ...]:
    """The hits that the primary store would give by words and `vector`, with the index's cosines."""
    depth = max(_FIRST, 2 * query.limit)
    while True:
        words, texts = await _by_words(primary, scope, query, depth)
        near = await _by_vector(index, scope, vector, depth)
        hits = await _Completed(primary, index, scope, query, vector).hits(words, near)
        rest = _most_of_the_rest(texts, near)
        if rest is None or (len(hits) >= query.limit and hits[query.limit - 1].score > rest):
            return tuple(hits[: query.limit])
        depth *= _GROWTH


@runtime_checkable
class SearchesBeside(Protocol):
    """A store that completes in one go what an index beside it found."""

    async def search_beside(self, scope: Scope, query: Query, nearest: Mapping[str, float]) -> tuple[Hit, ...]:
        """The best by the words of a query, and those of `nearest` that it may show, best first.

        `nearest` holds cosines by record id; whatever else words find is compared with the vector of the query.
        """
        ...


async def search_hybrid(
    primary: PrimaryStore, index: FindsNearest, scope: Scope, query: Query, vector: Vector, *, near: int
) -> tuple[Hit, ...]:
    """The best by words, the `near` best by `vector` as the index knows them, and the cosine of each."""
    depth = near + _TO_SPARE
    while True:
        side = await _by_vector(index, scope, vector, depth)
        hits = await search_beside(primary, scope, query, side.scores)
        shown = {hit.item.id for hit in hits}
        nearest = [id for id in side.scores if id in shown]
        if side.rest is None or (len(nearest) >= near and side.scores[nearest[near - 1]] > side.rest):
            too_far = set(nearest[near:])
            return tuple(hit for hit in hits if hit.item.id not in too_far or hit.why.keys() - {DENSE})
        depth *= _GROWTH


async def search_beside(
    primary: PrimaryStore, scope: Scope, query: Query, nearest: Mapping[str, float]
) -> Sequence[Hit]:
    """SearchesBeside for any store: in one call where it can, otherwise step by step."""
    if isinstance(primary, SearchesBeside):
        return await primary.search_beside(scope, query, nearest)
    by_words = await primary.search(scope, replace(query, vector=None))
    found = {hit.item.id for hit in by_words}
    by_vector = await _among(primary, scope, replace(query, text=""), [id for id in nearest if id not in found])
    if query.vector is None:
        return joined(by_words, by_vector, nearest)
    others = await primary.search_keys(scope, *(id for id in found if id not in nearest))
    return joined(by_words, by_vector, {**nearest, **compare(query.vector, others)})


async def _by_words(primary: MemoryStore, scope: Scope, query: Query, depth: int) -> tuple[dict[str, Hit], _Side]:
    if not query.text.strip():
        return {}, _Side({}, None)
    found = await primary.search(scope, replace(query, vector=None, limit=depth))
    scores = {hit.item.id: hit.score for hit in found}
    return {hit.item.id: hit for hit in found}, _Side(scores, found[-1].score if len(found) == depth else None)


async def _by_vector(index: FindsNearest, scope: Scope, vector: Vector, depth: int) -> _Side:
    # Vectors are those of the user: which of them the scope sees, the primary store says.
    found = await index.search(scope.for_user(), vector, limit=depth)
    return _Side({hit.id: hit.score for hit in found}, found[-1].score if len(found) == depth else None)


def _most_of_the_rest(words: _Side, near: _Side) -> float | None:
    """The most that a record can score that neither side has shown; None where there is none."""
    if near.rest is None:
        return words.rest
    return near.rest if words.rest is None else words.rest + max(0.0, near.rest)


@dataclass(frozen=True, slots=True)
class _Completed:
    """The hits of one side, completed by the other."""

    primary: MemoryStore
    index: FindsNearest
    scope: Scope
    query: Query
    vector: Vector

    async def hits(self, words: dict[str, Hit], near: _Side) -> list[Hit]:
        """All that either side found and the query may show, best first."""
        only_near = [id for id in near.scores if id not in words]
        only_words = [id for id in words if id not in near.scores]
        shown = await self._shown(only_near)
        spoken = await self._spoken(only_near) | words
        cosines = near.scores | await self._cosines(only_words)
        items: dict[str, HitItem] = {id: hit.item for id, hit in words.items()} | shown
        hits: list[Hit] = []
        for id, item in items.items():
            why = dict(spoken[id].why) if id in spoken else {}
            if id in cosines:
                why[DENSE] = cosines[id]
            hits.append(scored(item, why))
        return sorted(hits, key=rank_key)

    async def _shown(self, ids: Sequence[str]) -> dict[str, HitItem]:
        """Those of these records that the scope sees and that fit the filter and the time of the query."""
        found = await _among(self.primary, self.scope, replace(self.query, text=""), ids)
        return {hit.item.id: hit.item for hit in found}

    async def _spoken(self, ids: Sequence[str]) -> dict[str, Hit]:
        """Those of these records that the words of the query find."""
        if not self.query.text.strip():
            return {}
        return {hit.item.id: hit for hit in await _among(self.primary, self.scope, self.query, ids)}

    async def _cosines(self, ids: Sequence[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for page in _pages(ids):
            hits = await self.index.search(self.scope.for_user(), self.vector, limit=len(page.values), where=page)
            found |= {hit.id: hit.score for hit in hits}
        return found


async def _among(primary: MemoryStore, scope: Scope, query: Query, ids: Sequence[str]) -> list[Hit]:
    """Those of these records that a query finds by its words alone, or that it may show if it has none."""
    found: list[Hit] = []
    for page in _pages(ids):
        where: Filter = page if query.where is None else And(page, query.where)
        found += await primary.search(scope, replace(query, vector=None, where=where, limit=len(page.values)))
    return found


def _pages(ids: Sequence[str]) -> Iterator[In]:
    for start in range(0, len(ids), _PAGE):
        yield In("id", tuple(ids[start : start + _PAGE]))
