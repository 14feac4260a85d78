"""A word index as rows that a database keeps: BM25 over the texts of one user.

A posting is one text that holds a term: its number, how often, and how long the text is. Numbers are cut into runs, and
the postings of a term lie together in one row per run: what is new changes the rows of the last, small run, and small
runs become a larger one when it is full.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from math import log
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.core.words import terms
from loom.stores.damage import DamagedData

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
MOST = 2**16 - 1
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

    def add(self, signal: str, number: int, text: str) -> None:
        """Index the text. What it replaces must have been removed before."""
        found = self._added[number, signal] = self._terms_of(text)
        self._count(signal, len(found), 1)

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
    runs, run_ids = np.unique([run_of(number, size) for number, _ in keys], return_inverse=True)
    signals, signal_ids = np.unique([signal for _, signal in keys], return_inverse=True)
    # The ids of terms are in the order they came, their ranks in that of the table.
    ordered = sorted(range(len(names)), key=names.__getitem__)
    ranks = np.empty(len(names), np.int64)
    ranks[ordered] = np.arange(len(names))
    held = ranks[np.frombuffer(b"".join([texts[key] for key in keys]), _ID)]
    # One whole number for each word: its place in the table, then its text. Sorted, they are counted.
    shape = (len(runs), len(names), len(signals), len(keys))
    of_text = np.repeat(np.arange(len(keys)), lengths)
    words = np.ravel_multi_index((run_ids[of_text], held, signal_ids[of_text], of_text), shape)
    found, times = np.unique(words, return_counts=True)
    of_run, of_term, of_signal, of_text = np.unravel_index(found, shape)
    entries = np.empty(len(found), ENTRIES)
    entries["number"] = np.asarray([number for number, _ in keys])[of_text]
    entries["times"] = np.minimum(times, MOST)
    entries["length"] = np.minimum(lengths, MOST)[of_text]
    starts = np.flatnonzero(np.diff(found // len(keys), prepend=-1))
    run_list: list[int] = runs[of_run[starts]].tolist()
    term_ranks: list[int] = of_term[starts].tolist()
    term_list = [names[ordered[rank]] for rank in term_ranks]
    signal_list: list[str] = signals[of_signal[starts]].tolist()
    return dict(zip(zip(run_list, term_list, signal_list, strict=True), _cut(entries, starts), strict=True))


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
    lost = [place << 32 | number for place, name in enumerate(held) for number in gone[name]]
    of_place = np.repeat(np.arange(len(held)), sizes)
    is_kept = ~np.isin(of_place << 32 | entries["number"], lost)
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


class Part(NamedTuple):
    """What one term, or anything else that speaks for records, adds to the scores of these numbers."""

    signal: str
    numbers: Numbers
    scores: Scores


def parts_of(held: Mapping[Key, Sequence[bytes]], lengths: Mapping[str, tuple[int, int]]) -> list[Part]:
    """What each term adds to each signal, from all of its entries and the texts and words that a signal has in all.

    By term, so that a sum has one order of its parts and so one value.
    """
    entries = [(key, b"".join(held[key])) for key in sorted(held)]
    ends = accumulate(len(data) for _, data in entries)
    groups = groupby(zip(entries, ends, strict=True), key=lambda pair: pair[1] // _TOGETHER)
    return [part for _, group in groups for part in _parts([each for each, _ in group], lengths)]


def _parts(entries: Sequence[tuple[Key, bytes]], lengths: Mapping[str, tuple[int, int]]) -> list[Part]:
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
    return [Part(signal, numbers[a:b], scores[a:b]) for signal, (a, b) in zip(signals, bounds, strict=True)]


def check_numbers(parts: Sequence[Part], size: int) -> None:
    """Refuse a number that no record has, before scores for so many are made room for."""
    for part in parts:
        if part.numbers.size and part.numbers.max() >= size:
            raise DamagedData(f"it has a record {part.numbers.max():,}, and only {size:,} were written")


def total(parts: Sequence[Part], size: int) -> Floats:
    """The sum of all parts for each of `size` numbers."""
    if not parts:
        return np.zeros(size)
    numbers = np.concatenate([part.numbers for part in parts])
    return np.bincount(numbers, np.concatenate([part.scores for part in parts]), size).astype(np.float64, copy=False)


def why_of(best: Sequence[int], parts: Sequence[Part], size: int) -> dict[int, dict[str, float]]:
    """For each of the best of `size` numbers, the score of each signal that spoke for it."""
    is_best = np.zeros(size, np.bool_)
    is_best[best] = True
    place_of = np.empty(size, np.int64)
    place_of[best] = np.arange(len(best))
    why: list[dict[str, float]] = [{} for _ in best]
    for signal, group in groupby(sorted(parts, key=itemgetter(0)), key=itemgetter(0)):
        chosen = [(numbers, scores, is_best[numbers]) for _, numbers, scores in group]
        places = np.concatenate([place_of[numbers[mask]] for numbers, _, mask in chosen])
        added = np.bincount(places, np.concatenate([scores[mask] for _, scores, mask in chosen]), len(best)).tolist()
        for place in set(places.tolist()):
            why[place][signal] = added[place]
    return dict(zip(best, why, strict=True))
