"""The word index of one file: BM25 over each user's own texts.

A posting is one text that holds a term: its number, how often, and how long the text is. Numbers are cut into runs,
and the postings of a term lie together in one blob per run. A run's rows lie together in the file: what is new
changes the few pages of the last, small run, and is moved on when a larger run is full. Every statistic is of one
user alone: what others write changes no score.
"""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.core.words import query_terms, terms
from loom.stores.sqlite.connection import Database, one, rows

OWN = "bm25"
"""The signal of a record's own text; that of a key is `bm25.KIND`."""
K1 = 1.2
B = 0.75

RUN = 256
LARGER_RUNS = (64 * RUN, 8 * RUN)
"""How many numbers a run holds, in the file: new texts arrive in a small one, and full ones become a larger one.

Small runs keep writes cheap, large ones searches; a larger step would make the write that joins them wait longer.
"""

_ENTRIES = np.dtype([("number", "<u4"), ("times", "<u2"), ("length", "<u2")])
_MOST = 2**16 - 1
"""What an entry can count to: a term or a text with more counts as this."""

_ID = "I"
"""How the ids of terms are kept while a change is made."""
_Text: TypeAlias = tuple[int, str]
"""A text of a change: the number of its record and its signal."""
_Place: TypeAlias = tuple[int, str, str]
"""A row of postings of a user: its run, its term and its signal."""

Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = NDArray[np.floating[Any]]


class Posting(NamedTuple):
    """A term in a text: the signal that the text is of, the term, and the number of the record."""

    signal: str
    term: str
    number: int


def expected_postings(signal: str, number: int, text: str) -> tuple[dict[Posting, tuple[int, int]], int]:
    """What the index says of a text: how often each term is in it and how long it counts as; and how long it is."""
    counted = Counter(term for line in text.splitlines() for term in terms(line))
    length = min(counted.total(), _MOST)
    postings = {Posting(signal, term, number): (min(times, _MOST), length) for term, times in counted.items()}
    return postings, counted.total()


def unpacked(entries: bytes) -> list[tuple[int, int, int]]:
    """The number, the times and the length of each posting of a term; what is no whole entry is left out."""
    whole = len(entries) // _ENTRIES.itemsize * _ENTRIES.itemsize
    return np.frombuffer(entries[:whole], _ENTRIES).tolist()


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


class IndexChange:
    """Texts that come to and go from the index of one user; written by flush() in one go."""

    __slots__ = ("_added", "_ids", "_lengths", "_lines", "_removed", "_user")

    def __init__(self, user: int) -> None:
        self._user = user
        self._added: dict[_Text, array[int]] = {}
        self._removed: defaultdict[_Text, set[int]] = defaultdict(set)
        self._lengths: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._ids: dict[str, int] = {}
        self._lines: dict[str, array[int]] = {}

    def add(self, signal: str, number: int, text: str) -> None:
        """Index the text. What it replaces must have been removed before."""
        found = self._added[number, signal] = self._terms_of(text)
        self._count(signal, len(found), 1)

    def remove(self, signal: str, number: int, text: str) -> None:
        """Take a text out that was indexed like this, in the file or in this change."""
        found = self._terms_of(text)
        if self._added.pop((number, signal), None) is None:
            self._removed[number, signal].update(found)
        self._count(signal, len(found), -1)

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
            self._lengths[signal][0] += sign
            self._lengths[signal][1] += sign * length

    def flush(self, db: Database, before: int, size: int) -> None:
        """Write the change, where the user had `before` numbers and now has `size`."""
        _join_runs(db, self._user, before, size)
        names = list(self._ids)
        added = _entries(self._added, names, size) if self._added else {}
        _take_out(db, self._user, self._gone(names, size), added)
        db.executemany(_APPEND, ((self._user, *place, entries) for place, entries in added.items()))
        self._write_lengths(db)

    def _gone(self, names: Sequence[str], size: int) -> dict[_Place, set[int]]:
        """The numbers that each place loses."""
        places: defaultdict[_Place, set[int]] = defaultdict(set)
        for (number, signal), held in self._removed.items():
            run = run_of(number, size)
            for id in held:
                places[run, names[id], signal].add(number)
        return places

    def _write_lengths(self, db: Database) -> None:
        for signal, (texts, words) in self._lengths.items():
            db.execute(
                "INSERT INTO lengths VALUES (?, ?, ?, ?) ON CONFLICT (user, signal) "
                "DO UPDATE SET texts = texts + excluded.texts, words = words + excluded.words",
                (self._user, signal, texts, words),
            )
        db.execute("DELETE FROM lengths WHERE user = ? AND texts = 0", (self._user,))


# Two blobs put together are text to SQLite, unless it is told.
_APPEND = (
    "INSERT INTO postings VALUES (?, ?, ?, ?, ?) ON CONFLICT (user, run, term, signal) "
    "DO UPDATE SET entries = CAST(entries || excluded.entries AS BLOB)"
)
_PLACE = "user = ? AND run = ? AND term = ? AND signal = ?"


def _join_runs(db: Database, user: int, before: int, size: int) -> None:
    """Make one run of the small ones that fill a larger run now."""
    start = next((before // run * run for run in LARGER_RUNS if before // run < size // run), None)
    if start is None:
        return
    joined: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    for term, signal, entries in db.execute(
        "SELECT term, signal, entries FROM postings WHERE user = ? AND run >= ? ORDER BY run", (user, start)
    ):
        joined[term, signal].append(entries)
    db.execute("DELETE FROM postings WHERE user = ? AND run >= ?", (user, start))
    places = ((user, start, *place, b"".join(joined[place])) for place in sorted(joined))
    db.executemany("INSERT INTO postings VALUES (?, ?, ?, ?, ?)", places)


def _take_out(db: Database, user: int, gone: Mapping[_Place, set[int]], added: dict[_Place, bytes]) -> None:
    """Take these numbers out of these places; what is added to such a place is written with it, and taken away."""
    for place, numbers in sorted(gone.items(), key=itemgetter(0)):
        found = one(db, f"SELECT entries FROM postings WHERE {_PLACE}", user, *place)
        if found is None:
            continue
        entries = np.frombuffer(found[0], _ENTRIES)
        kept = entries[[number not in numbers for number in entries["number"].tolist()]].tobytes()
        kept += added.pop(place, b"")
        if kept:
            db.execute(f"UPDATE postings SET entries = ? WHERE {_PLACE}", (kept, user, *place))
        else:
            db.execute(f"DELETE FROM postings WHERE {_PLACE}", (user, *place))


def _entries(texts: Mapping[_Text, array[int]], names: Sequence[str], size: int) -> dict[_Place, bytes]:
    """The entries of new texts, in the order of the table, so that neighbouring pages are written together."""
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
    entries = np.empty(len(found), _ENTRIES)
    entries["number"] = np.asarray([number for number, _ in keys])[of_text]
    entries["times"] = np.minimum(times, _MOST)
    entries["length"] = np.minimum(lengths, _MOST)[of_text]
    data = entries.tobytes()
    starts = np.flatnonzero(np.diff(found // len(keys), prepend=-1))
    bounds = pairwise([*(starts * _ENTRIES.itemsize).tolist(), len(data)])
    at_runs: list[int] = runs[of_run[starts]].tolist()
    at_terms: list[int] = of_term[starts].tolist()
    at_signals: list[str] = signals[of_signal[starts]].tolist()
    places = zip(at_runs, [names[ordered[rank]] for rank in at_terms], at_signals, strict=True)
    return {place: data[start:end] for place, (start, end) in zip(places, bounds, strict=True)}


class Part(NamedTuple):
    """What one term, or anything else that speaks for records, adds to the scores of these numbers."""

    signal: str
    numbers: Numbers
    scores: Scores


def parts(db: Database, user: int, text: str, size: int) -> list[Part]:
    """What each term of a text adds to each signal, where the user has `size` numbers; every score is above 0."""
    lengths = {signal: (n, words) for signal, n, words in rows(db, _LENGTHS, user)}
    runs = str(list(runs_of(size)))
    found: list[Part] = []
    # Sorted, so that a sum has one order of its parts and so one value.
    for term in sorted(query_terms(text)):
        for signal, blobs in _postings(db, user, term, runs).items():
            entries = np.frombuffer(b"".join(blobs), _ENTRIES)
            found.append(Part(signal, entries["number"].astype(np.int64), _weights(entries, *lengths[signal])))
    return found


def total(parts: Sequence[Part], size: int) -> Floats:
    """The sum of all parts for each of `size` numbers."""
    if not parts:
        return np.zeros(size)
    numbers = np.concatenate([part.numbers for part in parts])
    return np.bincount(numbers, np.concatenate([part.scores for part in parts]), size).astype(np.float64, copy=False)


_LENGTHS = "SELECT signal, texts, words FROM lengths WHERE user = ?"
_TERM = (
    "SELECT signal, entries FROM json_each(?) AS runs CROSS JOIN postings "
    "WHERE user = ? AND run = runs.value AND term = ?"
)


def _postings(db: Database, user: int, term: str, runs: str) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for signal, entries in db.execute(_TERM, (runs, user, term)):
        found.setdefault(signal, []).append(entries)
    return found


def _weights(entries: NDArray[Any], texts: int, words: int) -> Floats:
    holding = len(entries)
    idf = log(1 + (texts - holding + 0.5) / (holding + 0.5))
    times = entries["times"].astype(np.float64)
    length = entries["length"] * (texts / words)
    weights: Floats = idf * (times * (K1 + 1) / (times + K1 * (1 - B + B * length)))
    return weights
