"""The word index of one file: BM25 over each user's own texts.

A posting is one text that holds a term: its number inside a chunk of 512, how often, and how long the text is.
The postings of a term lie together in one blob per chunk, so that a search reads few rows, and every statistic
is of one user alone: what others write changes no score.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from math import log
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.core.words import query_terms, terms
from loom.stores.sqlite.connection import Database, one, rows

OWN = "bm25"
"""The signal of a record's own text; that of a key is `bm25.KIND`."""
K1 = 1.2
B = 0.75

CHUNK = 512
_ENTRY = struct.Struct("<HHI")
_ENTRIES = np.dtype([("offset", "<u2"), ("times", "<u2"), ("length", "<u4")])
_MOST_TIMES = 2**16 - 1

Floats: TypeAlias = NDArray[np.float64]
_Place: TypeAlias = tuple[str, str, int]


class IndexChange:
    """Texts that come to and go from the index of one user; written by flush() in one go."""

    __slots__ = ("_added", "_lengths", "_removed", "_user")

    def __init__(self, user: int) -> None:
        self._user = user
        self._added: defaultdict[_Place, list[bytes]] = defaultdict(list)
        self._removed: defaultdict[_Place, set[int]] = defaultdict(set)
        self._lengths: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, signal: str, number: int, text: str) -> None:
        """Index the text. What it replaces must have been removed before."""
        counted = Counter(terms(text))
        length = counted.total()
        chunk, offset = divmod(number, CHUNK)
        for term, times in counted.items():
            entry = _ENTRY.pack(offset, min(times, _MOST_TIMES), length)
            self._added[term, signal, chunk].append(entry)
        self._count(signal, length, 1)

    def remove(self, signal: str, number: int, text: str) -> None:
        """Take a text out that was indexed like this, in the file or in this change."""
        found = terms(text)
        chunk, offset = divmod(number, CHUNK)
        for term in set(found):
            place = (term, signal, chunk)
            self._removed[place].add(offset)
            self._added[place] = [entry for entry in self._added[place] if _ENTRY.unpack(entry)[0] != offset]
        self._count(signal, len(found), -1)

    def _count(self, signal: str, length: int, sign: int) -> None:
        if length:
            self._lengths[signal][0] += sign
            self._lengths[signal][1] += sign * length

    def flush(self, db: Database) -> None:
        """Write the change."""
        kept: list[tuple[Any, ...]] = []
        gone: list[tuple[Any, ...]] = []
        # In the order of the table, so that neighbouring pages are written together.
        for place in sorted(self._added.keys() | self._removed.keys()):
            entries = self._merged(db, place)
            if entries:
                kept.append((self._user, *place, entries))
            else:
                gone.append((self._user, *place))
        db.executemany("REPLACE INTO postings VALUES (?, ?, ?, ?, ?)", kept)
        db.executemany("DELETE FROM postings WHERE user = ? AND term = ? AND signal = ? AND chunk = ?", gone)
        self._write_lengths(db)

    def _merged(self, db: Database, place: _Place) -> bytes:
        found = one(
            db,
            "SELECT entries FROM postings WHERE user = ? AND term = ? AND signal = ? AND chunk = ?",
            self._user,
            *place,
        )
        old: bytes = found[0] if found else b""
        removed = self._removed.get(place)
        if old and removed:
            old = b"".join(_ENTRY.pack(*entry) for entry in _ENTRY.iter_unpack(old) if entry[0] not in removed)
        return old + b"".join(self._added.get(place, ()))

    def _write_lengths(self, db: Database) -> None:
        for signal, (texts, words) in self._lengths.items():
            db.execute(
                "INSERT INTO lengths VALUES (?, ?, ?, ?) ON CONFLICT (user, signal) "
                "DO UPDATE SET texts = texts + excluded.texts, words = words + excluded.words",
                (self._user, signal, texts, words),
            )
        db.execute("DELETE FROM lengths WHERE user = ? AND texts = 0", (self._user,))


def scores(db: Database, user: int, text: str, size: int) -> dict[str, Floats]:
    """For each signal that matched, the score of every number below `size`; 0 where no word fits."""
    lengths = {signal: (n, words) for signal, n, words in rows(db, _LENGTHS, user)}
    found: dict[str, Floats] = {}
    # Sorted, so that a sum has one order of its parts and so one value.
    for term in sorted(query_terms(text)):
        for signal, (chunks, blobs) in _postings(db, user, term).items():
            entries = np.frombuffer(b"".join(blobs), _ENTRIES)
            counts = [len(blob) // _ENTRY.size for blob in blobs]
            numbers = np.repeat(np.asarray(chunks) * CHUNK, counts) + entries["offset"]
            total = found.setdefault(signal, np.zeros(size))
            total[numbers] += _weights(entries, *lengths[signal])
    return found


_LENGTHS = "SELECT signal, texts, words FROM lengths WHERE user = ?"
_TERM = "SELECT signal, chunk, entries FROM postings WHERE user = ? AND term = ? ORDER BY signal, chunk"


def _postings(db: Database, user: int, term: str) -> dict[str, tuple[list[int], list[bytes]]]:
    found: dict[str, tuple[list[int], list[bytes]]] = {}
    for signal, chunk, entries in db.execute(_TERM, (user, term)):
        chunks, blobs = found.setdefault(signal, ([], []))
        chunks.append(chunk)
        blobs.append(entries)
    return found


def _weights(entries: NDArray[Any], texts: int, words: int) -> Floats:
    holding = len(entries)
    idf = log(1 + (texts - holding + 0.5) / (holding + 0.5))
    times = entries["times"].astype(np.float64)
    length = entries["length"] * texts / words
    weights: Floats = idf * (times * (K1 + 1) / (times + K1 * (1 - B + B * length)))
    return weights
