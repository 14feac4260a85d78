"""Verifying a file: indexes against records, and finding damaged rows.

The records and their keys decide. The index is read run by run, so that a check takes the memory of one run.
"""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import apsw
import numpy as np
from numpy.typing import NDArray

from loom.core.scope import Scope
from loom.protocols.memory_store import IndexDifference, UserDifference, summed
from loom.stores._search import HEAD, LINKS, OWN, Posting, expected_postings, runs_of, unpacked
from loom.stores.base import UNREADABLE, DamagedData, described, reading
from loom.stores.sqlite import checkpoints
from loom.stores.sqlite import records as jobs
from loom.stores.sqlite.connection import (
    MOST_NUMBERS,
    SELECTED,
    Database,
    Sizes,
    count_removal,
    from_row,
    number_of,
    one,
    row_of,
    rows,
)
from loom.stores.sqlite.index import (
    IndexChange,
    befores_of,
    binding,
    drop_vector,
    links_of,
    own_texts,
    stray_sketches,
)

# Records, keys and jobs of a file that cannot be read: found one by one, and removed.

_KEYS = "SELECT row, CAST(kind AS BLOB), kind, text FROM keys WHERE row >= ? AND row < ?"


@dataclass(slots=True)
class Damage:
    """Unreadable data of one user: rows of records, keys by row and kind, numbers of jobs; and all of it in words."""

    records: set[int] = field(default_factory=set[int])
    keys: set[tuple[int, bytes]] = field(default_factory=set[tuple[int, bytes]])
    jobs: set[int] = field(default_factory=set[int])
    words: list[str] = field(default_factory=list[str])


def find(db: Database, user: int, scope: Scope) -> Damage:
    """Everything of a user that cannot be read."""
    damage = Damage()
    whose = f"of user {scope.user_id!r}"
    bounds = (row_of(user, 0), row_of(user + 1, 0))
    there = [] if _are_readable(db, bounds) else rows(db, "SELECT row FROM records WHERE row >= ? AND row < ?", *bounds)
    for (row,) in there:
        if reason := _unreadable(db, row):
            damage.records.add(row)
            damage.words.append(f"{reason}, {whose}")
    for row, kind in _unreadable_keys(db, bounds):
        damage.keys.add((row, kind))
        damage.words.append(f"the key {kind.decode(errors='replace')!r} of record number {row - bounds[0]}, {whose}")
    for number, reason in jobs.unreadable(db, user):
        damage.jobs.add(number)
        damage.words.append(f"{reason}, {whose}")
    return damage


def remove(db: Database, user: int, damage: Damage) -> None:
    """Remove what cannot be read."""
    if damage.records:
        # An index may still have the value from before the damage, and a row is deleted from it by its value.
        db.execute("REINDEX records")
        count_removal(db, user)
    for row in damage.records:
        drop_vector(db, row)
        db.execute("DELETE FROM records WHERE row = ?", (row,))
    for key in damage.keys:
        db.execute("DELETE FROM keys WHERE row = ? AND CAST(kind AS BLOB) = ?", key)
    for number in damage.jobs:
        db.execute("DELETE FROM jobs WHERE number = ?", (number,))


def _are_readable(db: Database, bounds: tuple[int, int]) -> bool:
    """Whether all records of the user can be read; much faster than to look at them one by one."""
    cursor = db.execute(f"SELECT {SELECTED} FROM records AS r WHERE r.row >= ? AND r.row < ?", bounds)
    try:
        for row in cursor:
            from_row(row)
    except UNREADABLE:
        return False
    finally:
        cursor.close(True)
    return True


def _unreadable(db: Database, row: int) -> str | None:
    """Why a record cannot be read; None where it can."""
    try:
        stored = one(db, f"SELECT {SELECTED} FROM records AS r WHERE r.row = ?", row)
        if stored is not None:
            from_row(stored)
    except DamagedData as error:
        return error.what
    except UNREADABLE as error:
        (id,) = one(db, "SELECT CAST(id AS BLOB) FROM records WHERE row = ?", row) or (b"",)
        return f"record {(id or b'').decode(errors='replace')!r} cannot be read ({described(error)})"
    return None


def _unreadable_keys(db: Database, bounds: tuple[int, int]) -> list[tuple[int, bytes]]:
    try:
        found = rows(db, _KEYS, *bounds)
        return [(row, raw) for row, raw, *texts in found if not all(isinstance(text, str) for text in texts)]
    except UNREADABLE:
        read = rows(db, _KEYS.replace("kind, text FROM", "CAST(text AS BLOB) FROM"), *bounds)
        return [(row, raw) for row, raw, text in read if not (_is_utf8(raw) and _is_utf8(text))]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_PAGE = 4096
_BYTES = 4
"""Of a number of a vector."""
_COUNTS = ("revision", "relinked", "vectors_gone", "removed")
"""Columns of users that only count: by them processes know whether what they hold is still so."""
_USERS = f"SELECT user, namespace, user_id, next_number, indexed, {', '.join(_COUNTS)} FROM users ORDER BY 2, 3"
_NOW = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
"""A count that no process holds."""
_BAD_VECTORS = "SELECT row FROM vectors WHERE user = ? AND (length(data) != ? OR row >> 32 != user)"


def check(db: Database, *, repair: bool) -> IndexDifference:
    """How the indexes of all users differ from their records; with `repair` they do not any longer.

    What cannot be read is left out of the comparison, and removed by a repair. Where the file itself is broken, that
    is said of each user whom it concerns; nothing is repaired then.
    """
    problems = [str(problem) for (problem,) in rows(db, "PRAGMA integrity_check") if problem != "ok"]
    problems += [f"{table}: a row points to nothing" for table, *_ in rows(db, "PRAGMA foreign_key_check")]
    found: list[UserDifference] = []
    damaged: list[str] = []
    users = rows(db, _USERS)
    for user, namespace, user_id, size, indexed, *counts in users:
        with reading("the name of a user"):
            scope = Scope(namespace, user_id)
        with _broken(problems, f"the records of user {user_id!r}", repair=repair):
            damage = find(db, user, scope)
            damaged += damage.words
            uncounted = [name for name, count in zip(_COUNTS, counts, strict=True) if not isinstance(count, int)]
            found += _compare(db, scope, _User(user, size, indexed, damage, uncounted), repair=repair)
    with _broken(problems, "the conversations", repair=repair):
        problems += checkpoints.damaged(db)
    total = None
    with _broken(problems, "the vectors", repair=repair):
        total = one(db, "SELECT count(*) FROM vectors")
    there = {"users": len(users), "vectors": int(total[0]) if total else 0}
    return summed(found, **there, repair=repair, problems=problems, damaged=damaged)


@contextmanager
def _broken(problems: list[str], what: str, *, repair: bool) -> Generator[None]:
    """Add to the problems that the file is broken where `what` is; a repair cannot go on there."""
    try:
        with reading(what, but=(apsw.Error,)):
            yield
    except (apsw.CorruptError, DamagedData) as error:
        if repair:
            raise
        problems.append(error.what if isinstance(error, DamagedData) else f"{what}: {error}")


class _User(NamedTuple):
    """A user's number, how many numbers their records and the index have by the table of users, and unreadable data.

    `uncounted` are the counts in that table that are no numbers.
    """

    number: int
    size: Any
    indexed: Any
    damage: Damage
    uncounted: list[str]


def _compare(db: Database, scope: Scope, user: _User, *, repair: bool) -> list[UserDifference]:
    """How the indexes of one user differ."""
    if repair:
        remove(db, user.number, user.damage)
    size = _size(db, user.number, user.size)
    there = "SELECT count(*) FROM records AS r WHERE r.user = u.user"
    miscounted = one(db, f"SELECT 1 FROM users AS u WHERE user = ? AND records != ({there})", user.number)
    indexed = user.indexed if isinstance(user.indexed, int) and 0 <= user.indexed <= size else size
    wrong = (size != user.size) + (indexed != user.indexed) + (miscounted is not None) + len(user.uncounted)
    words = _words(db, scope, user._replace(size=size, indexed=indexed), wrong=wrong)
    vectors, bad = _vectors(db, user.number, scope)
    if repair and (not words.is_equal or vectors.extra):
        anew = "".join([f", {name} = {_NOW}" for name in user.uncounted])
        db.execute(f"UPDATE users SET next_number = ?{anew} WHERE user = ?", (size, user.number))
        _build(db, user.number, size)
    for row in bad if repair else ():
        drop_vector(db, row)
    return [words, vectors]


def _size(db: Database, user: int, stored: Any) -> int:
    """How many numbers the user's records have; what is stored, unless that cannot be."""
    last = one(db, "SELECT max(row) FROM records WHERE row >= ? AND row < ?", row_of(user, 0), row_of(user + 1, 0))
    least = 0 if last is None or last[0] is None else number_of(last[0]) + 1
    return stored if isinstance(stored, int) and least <= stored <= MOST_NUMBERS else least


def _words(db: Database, scope: Scope, whose: _User, *, wrong: int) -> UserDifference:
    user, _, indexed, damage, _ = whose
    counted: Counter[str] = Counter(wrong=wrong)
    lengths: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for start, end in pairwise([*runs_of(indexed), indexed]):
        due: dict[Posting, tuple[int, int]] = {}
        links = np.zeros(end - start, LINKS)
        for signal, number, text in _texts(db, user, start, end, damage):
            postings, words = expected_postings(signal, number, text)
            due |= postings
            if signal == OWN:
                links["words"][number - start] = words
            elif signal == HEAD:
                links["head"][number - start] = words + 1
            if words:
                lengths[signal][0] += 1
                lengths[signal][1] += words
        counted += _compared(db, user, start, due)
        counted["wrong"] += _wrong_links(db, user, start, links)
    runs = set(runs_of(indexed))
    stray = rows(db, "SELECT run, count(*) FROM postings WHERE user = ? GROUP BY run", user)
    counted["extra"] += sum(amount for run, amount in stray if run not in runs)
    stored = {
        signal: [texts, words]
        for signal, texts, words in rows(db, "SELECT signal, texts, words FROM lengths WHERE user = ?", user)
    }
    counted["wrong"] += sum(stored.get(signal) != lengths.get(signal) for signal in {*stored, *lengths})
    return UserDifference(
        user=scope, what="words", missing=counted["missing"], extra=counted["extra"], wrong=counted["wrong"]
    )


def _compared(db: Database, user: int, run: int, due: dict[Posting, tuple[int, int]]) -> Counter[str]:
    """How the postings of one run differ from those that are due."""
    found: dict[Posting, tuple[int, int]] = {}
    counted: Counter[str] = Counter()
    for signal, term, entries in rows(
        db, "SELECT signal, term, entries FROM postings WHERE user = ? AND run = ?", user, run
    ):
        read = unpacked(entries) if isinstance(entries, bytes) else []
        found |= {Posting(signal, term, number): (times, length) for number, times, length in read}
        # What is there twice, or only in part, would be read by a search as well.
        is_whole = isinstance(entries, bytes) and len(read) * 8 == len(entries)
        counted["extra"] += len(read) - len({number for number, _, _ in read}) + (not is_whole)
    counted["missing"] += sum(1 for posting in due if posting not in found)
    counted["extra"] += sum(1 for posting in found if posting not in due)
    counted["wrong"] += sum(1 for posting, says in due.items() if found.get(posting, says) != says)
    return counted


def _wrong_links(db: Database, user: int, start: int, due: NDArray[Any]) -> int:
    """How many numbers from `start` on are linked in another way than their records say."""
    end = start + len(due)
    for number, before in befores_of(db, user, start, end):
        due["before"][number - start] = before
    stored = links_of(db, user, Sizes(end, end), start)
    # Numbers that an older Loom indexed have no links: that is known by what they would be compared with, 0.
    unknown = (due["before"] == 0) & (stored == np.zeros((), LINKS))
    return int(np.count_nonzero((stored != due) & ~unknown))


def _vectors(db: Database, user: int, scope: Scope) -> tuple[UserDifference, list[int]]:
    """Vectors that are of another size than the embedder's; also their rows."""
    bound = binding(db)
    size = 0 if bound is None else bound[1] * _BYTES
    bad = [int(row) for (row,) in rows(db, _BAD_VECTORS, user, size)]
    return UserDifference(user=scope, what="vectors", wrong=len(bad), extra=len(stray_sketches(db, user))), bad


def _build(db: Database, user: int, size: int) -> None:
    """Build the word index of a user anew from their records, with links and sketches."""
    for table in ("postings", "lengths"):
        db.execute(f"DELETE FROM {table} WHERE user = ?", (user,))
    for table in ("links", "sketches"):
        db.execute(f"DELETE FROM {table} WHERE row >= ? AND row < ?", (row_of(user, 0), row_of(user + 1, 0)))
    there = "SELECT count(*) FROM records AS r WHERE r.user = users.user"
    db.execute(f"UPDATE users SET indexed = 0, relinked = relinked + 1, records = ({there}) WHERE user = ?", (user,))
    for end in (*range(_PAGE, size, _PAGE), size):
        IndexChange(db, user).flush(end)


def _texts(db: Database, user: int, start: int, end: int, damage: Damage) -> Iterator[tuple[str, int, str]]:
    """Everything readable that the numbers from `start` to `end` are found by: the signal, the number and the text."""
    bounds = (row_of(user, start), row_of(user, end))
    # One query stops at what cannot be read; so where something is, the rows are read one by one.
    sql = f"SELECT {SELECTED}, r.row FROM records AS r WHERE r.row >= ? AND r.row < ?"
    pages = [bounds]
    if damage.records:
        there = rows(db, "SELECT row FROM records WHERE row >= ? AND row < ?", *bounds)
        pages = [(row, row + 1) for (row,) in there if row not in damage.records]
    for page in pages:
        for stored in rows(db, sql, *page):
            record = from_row(stored)
            yield from own_texts(number_of(stored[-1]), record.kind, record.text)
    for row, kind, text in rows(
        db, "SELECT row, CAST(kind AS BLOB), CAST(text AS BLOB) FROM keys WHERE row >= ? AND row < ?", *bounds
    ):
        if (row, kind) not in damage.keys:
            yield f"{OWN}.{kind.decode()}", number_of(row), text.decode()
