"""The word index of one file: rows of postings, and BM25 over each user's own texts.

A run's rows lie together in the file: what is new changes the few pages of the last, small run, and is moved on when a
larger run is full. Every statistic is of one user alone: what others write changes no score.
"""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from loom.core.words import query_terms
from loom.stores.damage import DamagedData, reading
from loom.stores.postings import Part, Place, TextChange, check_numbers, joined_run, parts_of, runs_of, without
from loom.stores.sqlite.connection import Database, one, rows


class IndexChange(TextChange):
    """Texts that come to and go from the index of one user; written by flush() in one go."""

    __slots__ = ("_user", "has_replaced")

    def __init__(self, user: int) -> None:
        super().__init__()
        self._user = user
        self.has_replaced = False
        """Whether a record got another text."""

    def remove(self, signal: str, number: int, text: str) -> None:
        """Take a text out that was indexed like this."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the file says what it is
            raise DamagedData(f"a text of record number {number} is {text!r}")
        super().remove(signal, number, text)

    def flush(self, db: Database, before: int, size: int) -> None:
        """Write the change, where the user had `before` numbers and now has `size`."""
        start = joined_run(before, size)
        if start is not None:
            _join_runs(db, self._user, start)
        added = self.entries(size)
        _take_out(db, self._user, self.gone(size), added)
        db.executemany(_APPEND, ((self._user, *place, entries) for place, entries in added.items()))
        for signal, (texts, words) in self.lengths.items():
            db.execute(_COUNT, (self._user, signal, texts, words))
        db.execute("DELETE FROM lengths WHERE user = ? AND texts = 0", (self._user,))


# Two blobs put together are text to SQLite, unless it is told.
_APPEND = (
    "INSERT INTO postings VALUES (?, ?, ?, ?, ?) ON CONFLICT (user, run, term, signal) "
    "DO UPDATE SET entries = CAST(entries || excluded.entries AS BLOB)"
)
_COUNT = (
    "INSERT INTO lengths VALUES (?, ?, ?, ?) ON CONFLICT (user, signal) "
    "DO UPDATE SET texts = texts + excluded.texts, words = words + excluded.words"
)
_PLACE = "user = ? AND run = ? AND term = ? AND signal = ?"


def _join_runs(db: Database, user: int, start: int) -> None:
    """Make one run of all that begin here or later."""
    joined: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    for term, signal, entries in db.execute(
        "SELECT term, signal, entries FROM postings WHERE user = ? AND run >= ? ORDER BY run", (user, start)
    ):
        joined[term, signal].append(entries)
    db.execute("DELETE FROM postings WHERE user = ? AND run >= ?", (user, start))
    places = ((user, start, *place, b"".join(joined[place])) for place in sorted(joined))
    db.executemany("INSERT INTO postings VALUES (?, ?, ?, ?, ?)", places)


def _take_out(db: Database, user: int, gone: Mapping[Place, set[int]], added: dict[Place, bytes]) -> None:
    """Take these numbers out of these places; what is added to such a place is written with it, and taken away."""
    held: dict[Place, bytes] = {}
    for place in sorted(gone):
        found = one(db, f"SELECT entries FROM postings WHERE {_PLACE}", user, *place)
        if found is not None:
            held[place] = found[0]
    with reading("the word index"):
        left_over = without(held, gone)
    for place, left in left_over.items():
        kept = left + added.pop(place, b"")
        if kept:
            db.execute(f"UPDATE postings SET entries = ? WHERE {_PLACE}", (kept, user, *place))
        else:
            db.execute(f"DELETE FROM postings WHERE {_PLACE}", (user, *place))


def parts(db: Database, user: int, text: str, size: int) -> list[Part]:
    """What each term of a text adds to each signal, where the user has `size` numbers; every score is above 0."""
    lengths = {signal: (n, words) for signal, n, words in rows(db, _LENGTHS, user)}
    held: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    for term, signal, entries in db.execute(_TERMS, (str(list(runs_of(size))), json.dumps(query_terms(text)), user)):
        held[term, signal].append(entries)
    with reading("the word index"):
        found = parts_of(held, lengths)
        check_numbers(found, size)
    return found


_LENGTHS = "SELECT signal, texts, words FROM lengths WHERE user = ?"
_TERMS = (
    "SELECT postings.term, signal, entries FROM json_each(?) AS runs CROSS JOIN json_each(?) AS terms "
    "CROSS JOIN postings WHERE user = ? AND run = runs.value AND term = terms.value"
)
