"""Search in a SQLite file: word index, vectors, and the ranking of both."""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound
from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby, islice
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.core.checks import AROUND as QUOTED
from loom.core.checks import RANKED
from loom.core.record import Episode, Fact, Hit, Record, rank_key, scored
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import Query
from loom.stores._record_table import no_record, unit_vector
from loom.stores._search import (
    AROUND,
    EXACT_NUMBERS,
    HEAD,
    LINKS,
    MOST,
    OWN,
    SKETCH_WORDS,
    Chain,
    Float32s,
    Floats,
    Numbers,
    Place,
    PostingPart,
    Scores,
    SketchWords,
    TextChange,
    Vectors,
    by_score,
    check_numbers,
    cosines,
    joined_run,
    parts_of,
    runs_of,
    sketched,
    total,
    why_of,
    without,
)
from loom.stores._sql import Condition
from loom.stores.base import Bound, DamagedData, check_bound, reading
from loom.stores.sqlite.connection import Database, Row, one, rows
from loom.stores.sqlite.rows import (
    SELECTED,
    SQLITE,
    Sizes,
    condition,
    find_rows,
    from_row,
    number_of,
    row_of,
    seen,
    sizes_of,
)
from loom.text.words import query_terms, terms

# The word index of one file: rows of postings, and BM25 over each user's own texts.
#
# A run's rows lie together in the file: what is new changes the few pages of the last, small run, and is moved on when
# a larger run is full. The newest numbers of a user are in no run: a search reads their texts, and they are indexed
# together. So a new turn writes itself and nothing else. Every statistic is of one user alone: what others write
# changes no score.

TAIL = 64
"""How many of a user's newest numbers wait until they are indexed together: more make a search slower, fewer a write."""
BLOCK = 256
"""How many numbers share a row of links or of sketches."""
AROUND_KIND = AROUND.removeprefix(f"{OWN}.")

_Text: TypeAlias = tuple[str, int, str]
"""A signal, a number, and the text that the number is found by."""


def own_texts(number: int, kind: str, text: str) -> Iterator[_Text]:
    """What a record of a kind is found by beside its keys."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the file says what it is
        raise DamagedData(f"the text of record number {number} is {text!r}")
    yield OWN, number, text
    if kind == Episode.kind and len(text) > QUOTED:
        yield HEAD, number, text[:QUOTED]


class IndexChange:
    """Texts that come to and go from the index of one user; written by flush() in one go."""

    __slots__ = ("_db", "_indexed", "_is_relinked", "_links", "_size", "_user", "_words", "has_replaced")

    def __init__(self, db: Database, user: int) -> None:
        self._db = db
        self._user = user
        self._size, self._indexed = sizes_of(db, user)
        self._is_relinked = False
        self._words = TextChange()
        self._links: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self.has_replaced = False
        """Whether a record got another text."""

    def add_record(self, number: int, record: Record) -> None:
        """Index the texts of a record."""
        for signal, _, text in own_texts(number, record.kind, record.text):
            self.add(signal, number, text)

    def remove_record(self, number: int, record: Record) -> None:
        """Take the texts of a record out, and its place in a conversation."""
        for signal, _, text in own_texts(number, record.kind, record.text):
            self.remove(signal, number, text)
        self._links[number] |= {"words": 0, "head": 0}
        self._is_relinked = True

    def add(self, signal: str, number: int, text: str) -> None:
        """Index a text; that of a number which is not indexed yet will be."""
        if number < self._indexed:
            self._add(signal, number, text)

    def _add(self, signal: str, number: int, text: str) -> None:
        words = self._words.add(signal, number, text)
        if signal == OWN:
            self._links[number]["words"] = words
        elif signal == HEAD:
            self._links[number]["head"] = words + 1

    def remove(self, signal: str, number: int, text: str) -> None:
        """Take a text out that was indexed like this."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the file says what it is
            raise DamagedData(f"a text of record number {number} is {text!r}")
        if number < self._indexed:
            self._words.remove(signal, number, text)

    def link(self, number: int, before: int | None) -> None:
        """Say what comes before a number; None takes it out of its conversation."""
        self._links[number]["before"] = before or 0
        self._is_relinked |= number < self._size

    def flush(self, until: int | None = None) -> None:
        """Write the change, after the rows that it is about; `until` says how many numbers are to be indexed then."""
        db, user, indexed = self._db, self._user, self._indexed
        size = sizes_of(db, user).size
        if self._is_relinked:
            db.execute("UPDATE users SET relinked = relinked + 1 WHERE user = ?", (user,))
        if until is not None or size - indexed >= TAIL:
            self._index_tail(size if until is None else until)
        if self._words:
            _write_words(db, user, self._words, indexed, self._indexed)
        links = {number: known for number, known in self._links.items() if number < self._indexed}
        _write_links(db, user, links)

    def _index_tail(self, size: int) -> None:
        db, user, start = self._db, self._user, self._indexed
        for signal, number, text in texts_of(db, user, start, size):
            self._add(signal, number, text)
        for number, before in befores_of(db, user, start, size):
            self._links[number]["before"] = before
        self._indexed = size
        db.execute("UPDATE users SET indexed = ? WHERE user = ?", (size, user))
        bounds = row_of(user, _sketched_until(start)), row_of(user, _sketched_until(size))
        held = rows(db, "SELECT row, data FROM vectors WHERE row >= ? AND row < ?", *bounds)
        _write_sketches(db, user, {number_of(row): np.frombuffer(data, "<f4") for row, data in held})


def texts_of(db: Database, user: int, start: int, end: int) -> Iterator[_Text]:
    """Everything that the numbers from `start` to `end` are found by."""
    bounds = (row_of(user, start), row_of(user, end))
    for row, kind, text in db.execute("SELECT row, kind, text FROM records WHERE row >= ? AND row < ?", bounds):
        if kind == Fact.kind:
            stored = one(db, f"SELECT {SELECTED} FROM records AS r WHERE r.row = ?", row)
            text = "" if stored is None else from_row(stored).text  # noqa: PLW2901
        yield from own_texts(number_of(row), kind, text)
    for row, kind, text in db.execute("SELECT row, kind, text FROM keys WHERE row >= ? AND row < ?", bounds):
        yield f"{OWN}.{kind}", number_of(row), text


def befores_of(db: Database, user: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The numbers from `start` to `end` that are linked to the one before, and how."""
    sql = "SELECT row, before FROM records WHERE row >= ? AND row < ? AND before IS NOT NULL"
    for row, before in db.execute(sql, (row_of(user, start), row_of(user, end))):
        yield number_of(row), before


def _write_words(db: Database, user: int, change: TextChange, before: int, size: int) -> None:
    """Write changed postings, where `before` numbers were indexed and now `size` are."""
    start = joined_run(before, size)
    if start is not None:
        _join_runs(db, user, start)
    added = change.entries(size)
    _take_out(db, user, change.gone(size), added)
    db.executemany(_APPEND, ((user, *place, entries) for place, entries in added.items()))
    for signal, (texts, words) in change.lengths.items():
        db.execute(_COUNT, (user, signal, texts, words))
    db.execute("DELETE FROM lengths WHERE user = ? AND texts = 0", (user,))


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


def index_parts(db: Database, user: int, text: str, sizes: Sizes, cache: SearchCache) -> list[PostingPart]:
    """What each term of a text adds to each signal; every score is above 0."""
    lengths = {signal: (n, words) for signal, n, words in rows(db, _LENGTHS, user)}
    held: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    wanted = query_terms(text)
    for term, signal, entries in db.execute(_TERMS, (str(list(runs_of(sizes.indexed))), json.dumps(wanted), user)):
        held[term, signal].append(entries)
    for signal, number, words in tail_of(db, user, sizes):
        texts, total = lengths.get(signal, (0, 0))
        lengths[signal] = texts + 1, total + len(words)
        for term in wanted:
            if times := words.count(term):
                held[term, signal].append(_ENTRY.pack(number, min(times, MOST), min(len(words), MOST)))
    with reading("the word index"):
        with cache.chain(db, user, sizes) as chain:
            if chain.texts:
                texts, total = lengths.get(AROUND, (0, 0))
                lengths[AROUND] = texts + chain.texts, total + chain.words
            for term in wanted:
                own, head = (b"".join(held.pop((term, signal), ())) for signal in (OWN, HEAD))
                if own:
                    held[term, OWN].append(own)
                    if around := chain.entries(own, head, sizes.size):
                        held[term, AROUND].append(around)
        found = parts_of(held, lengths)
        check_numbers(found, sizes.size)
    return found


_ENTRY = Struct("<IHH")
"""One of ENTRIES."""
_LENGTHS = "SELECT signal, texts, words FROM lengths WHERE user = ?"
_TERMS = (
    "SELECT postings.term, signal, entries FROM json_each(?) AS runs CROSS JOIN json_each(?) AS terms "
    "CROSS JOIN postings WHERE user = ? AND run = runs.value AND term = terms.value"
)


def tail_of(db: Database, user: int, sizes: Sizes, start: int = 0) -> Iterator[tuple[str, int, list[str]]]:
    """The words of the texts that are not indexed yet, from `start` on; texts without any are left out."""
    for signal, number, text in texts_of(db, user, max(start, sizes.indexed), sizes.size):
        if words := [term for line in text.splitlines() for term in terms(line)]:
            yield signal, number, words


# Who follows whom in a conversation: what comes before a turn is a column of its record, and the links of indexed
# numbers lie together in rows of a block each.


def _write_links(db: Database, user: int, links: Mapping[int, Mapping[str, int]]) -> None:
    for block, numbers in groupby(sorted(links), key=lambda number: number // BLOCK * BLOCK):
        stored = one(db, "SELECT data FROM links WHERE row = ?", row_of(user, block))
        with reading("the links of turns"):
            data = np.zeros(BLOCK, LINKS) if stored is None else np.frombuffer(stored[0], LINKS).copy()
            for number in numbers:
                for name, value in links[number].items():
                    data[name][number - block] = value
        db.execute("REPLACE INTO links VALUES (?, ?)", (row_of(user, block), data.tobytes()))


def links_of(db: Database, user: int, sizes: Sizes, start: int) -> NDArray[Any]:
    """What is known of the numbers from `start` on."""
    found = np.zeros(sizes.size, LINKS)
    bounds = (row_of(user, start // BLOCK * BLOCK), row_of(user, sizes.indexed))
    for row, data in db.execute("SELECT row, data FROM links WHERE row >= ? AND row < ?", bounds):
        block = number_of(row)
        found[block : block + BLOCK] = np.frombuffer(data, LINKS)[: sizes.size - block]
    for signal, number, words in tail_of(db, user, sizes, start):
        if signal == OWN:
            found["words"][number] = len(words)
        elif signal == HEAD:
            found["head"][number] = len(words) + 1
    for number, before in befores_of(db, user, max(start, sizes.indexed), sizes.size):
        found["before"][number] = before
    return found[start:]


def texts_around(
    db: Database, user: int, given: Sequence[int], cache: SearchCache
) -> Iterator[tuple[int, str]]:
    """The text around each of these rows of a user that is linked to others."""
    sizes = sizes_of(db, user)
    with cache.chain(db, user, sizes) as chain:
        around = dict(zip(given, chain.around([number_of(row) for row in given]), strict=True))
    wanted = {row_of(user, number) for numbers in around.values() for number in numbers}
    found = rows(
        db,
        "SELECT r.row, r.text FROM json_each(?) AS given CROSS JOIN records AS r ON r.row = given.value",
        json.dumps(sorted(wanted)),
    )
    texts: dict[int, str] = dict(found)
    for row, numbers in around.items():
        if numbers:
            quoted = [(other, texts.get(row_of(user, other), "")) for other in numbers]
            own = number_of(row)
            yield row, "\n".join(text[: RANKED if other == own else QUOTED] for other, text in quoted if text)


# The vectors of records, and the cache that searches them.

_PAGE = 4096
_BYTES = 4
"""Of a number of a vector."""
_OFF = 0.01
"""How far the square of a vector's length may be off: it was 1 but for rounding when it was written."""
SKETCHES = (SKETCH_WORDS * 8 + 1) * BLOCK
"""How many bytes a row of sketches has."""
_MOST_GONE = 1 / 8
"""The share of sketches that may be of vectors that are gone."""


def binding(db: Database) -> Bound | None:
    """The embedder and dimension of the file, None before bind()."""
    found = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'dimension')").fetchall())
    with reading("the embedder of the file"):
        return (found["embedder"], int(found["dimension"])) if found else None


def check_binding(db: Database, expected: Bound | None) -> None:
    """Refuse to go on where another process has bound the file anew since this one did; None: this one did not."""
    if expected is not None:
        check_bound(binding(db), expected)


def dimension(db: Database) -> int | None:
    """How many numbers a vector of this file has; None before bind()."""
    bound = binding(db)
    return None if bound is None else bound[1]


def direction(vector: Vector, size: int | None, what: str = "the vector of a query") -> Float32s:
    """The direction of a vector in 32 bits; refuses one that has none, or another dimension than the file's."""
    return np.asarray(unit_vector(vector, size, what), np.float32)


def put_vectors(db: Database, user: int | None, scope: Scope, vectors: Mapping[str, Vector]) -> None:
    """Set the vectors of records."""
    size = dimension(db)
    units = {id: direction(vector, size, f"the vector of {id}") for id, vector in vectors.items()}
    found = {} if user is None else find_rows(db, user, scope, units)
    for id in units:
        if id not in found:
            raise no_record(id, "a vector")
    for row, _ in _held(db, found.values()):
        drop_vector(db, row)
    new = [(user, found[id], unit.astype("<f4").tobytes()) for id, unit in units.items()]
    db.executemany("INSERT INTO vectors (user, row, data) VALUES (?, ?, ?)", new)
    if user is not None:
        end = row_of(user, _sketched_until(sizes_of(db, user).indexed))
        _write_sketches(db, user, {number_of(found[id]): unit for id, unit in units.items() if found[id] < end})


def drop_vector(db: Database, row: int) -> None:
    """Take the vector of a record away, if it has one."""
    user = one(db, "DELETE FROM vectors WHERE row = ? RETURNING user", row)
    if user is not None:
        db.execute("UPDATE users SET vectors_gone = vectors_gone + 1 WHERE user = ?", user)
        if row < row_of(user[0], _sketched_until(sizes_of(db, user[0]).indexed)):
            _write_sketches(db, user[0], {number_of(row): None})


def _sketched_until(indexed: int) -> int:
    """Up to which number vectors have sketches: a block late, because vectors come later than their records."""
    return max(0, indexed // BLOCK - 1) * BLOCK


def _write_sketches(db: Database, user: int, vectors: Mapping[int, Float32s | None]) -> None:
    """Write the sketches of vectors; None takes one away.

    A row holds those of a block, as they are searched, and which of its numbers have one.
    """
    for block, numbers in groupby(sorted(vectors), key=lambda number: number // BLOCK * BLOCK):
        stored = one(db, "SELECT data FROM sketches WHERE row = ?", row_of(user, block))
        sketches, has = _sketches(bytes(SKETCHES) if stored is None else stored[0])
        sketches, has = sketches.copy(), has.copy()
        given = {number - block: vectors[number] for number in numbers}
        gone = [place for place, vector in given.items() if vector is None]
        sketches[:, gone], has[gone] = 0, 0
        there = {place: vector for place, vector in given.items() if vector is not None}
        if there:
            sketches[:, list(there)] = sketched(np.stack(list(there.values())))
            has[list(there)] = 1
        data = sketches.tobytes() + has.tobytes()
        db.execute("REPLACE INTO sketches VALUES (?, ?)", (row_of(user, block), data))


def stray_sketches(db: Database, user: int) -> list[int]:
    """The rows that have a sketch and no vector; a block that is not whole counts as one."""
    found: list[int] = []
    bounds = (row_of(user, 0), row_of(user + 1, 0))
    for first, data in rows(db, "SELECT row, data FROM sketches WHERE row >= ? AND row < ?", *bounds):
        if not isinstance(data, bytes) or len(data) != SKETCHES:
            found.append(first)
            continue
        there = {first + place for place in np.flatnonzero(_sketches(data)[1]).tolist()}
        found += there - {row for row, _ in _held(db, there)}
    return found


def _sketches(data: bytes) -> tuple[SketchWords, NDArray[np.uint8]]:
    """The sketches of a block, and which of its numbers have one."""
    with reading("the sketches of vectors"):
        if len(data) != SKETCHES:
            raise DamagedData("a block of sketches is not whole")
        words = np.frombuffer(data, "<u8", SKETCH_WORDS * BLOCK).reshape(SKETCH_WORDS, BLOCK)
        return words, np.frombuffer(data, np.uint8, BLOCK, SKETCHES - BLOCK)


class NearestVectors(NamedTuple):
    """The number of each record that has a vector, and its cosine to a query; a number may come twice.

    Estimates may also name a vector that is gone: compared() tells.
    """

    numbers: Numbers
    cosines: Float32s
    is_exact: bool


def compared(db: Database, user: int, numbers: Numbers, vector: Vector) -> tuple[Numbers, Float32s]:
    """Those of the records that have a vector, and their exact cosines, read from the file."""
    query = direction(vector, dimension(db))
    found = _held(db, (numbers + row_of(user, 0)).tolist())
    matrix = _matrix([data for _, data in found], len(query))
    return np.asarray([row for row, _ in found], np.int64) - row_of(user, 0), cosines(matrix, query)


class _Held:
    """What is kept of one user as of a moment: their vectors, and who follows whom in their conversations.

    `gone` changes when a vector went, `last` is the newest one held, `linked` changes with the links of old turns.
    """

    __slots__ = ("bound", "chain", "counted", "gone", "last", "linked", "lock", "vectors")

    def __init__(self, exact_numbers: int) -> None:
        self.lock = Lock()
        self.counted = 0
        """How much memory it took when that was counted last."""
        self.bound: Bound | None = None
        self.gone = 0
        self.last = 0
        self.vectors = Vectors(0, exact_numbers=exact_numbers)
        self.linked = -1
        self.chain = Chain(np.zeros(0, LINKS))

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.vectors.nbytes + self.chain.nbytes

    def update_chain(self, db: Database, user: int, sizes: Sizes) -> None:
        """Bring in the turns that were written since; start anew where others changed."""
        (linked,) = one(db, "SELECT relinked FROM users WHERE user = ?", user) or (0,)
        if linked != self.linked:
            self.linked, self.chain = linked, Chain(links_of(db, user, sizes, 0))
        elif len(self.chain) < sizes.size:
            self.chain.extend(links_of(db, user, sizes, len(self.chain)))

    def update(self, db: Database, user: int) -> None:
        """Bring in the vectors that were written since; start anew where too much of what is held is gone."""
        bound, gone = binding(db), _gone(db, user)
        size = 0 if bound is None else bound[1]
        # An estimate is checked against the file, so that it may be of a vector that is gone; a cosine may not.
        missing = abs(gone - self.gone)
        allowed = 0 if self.vectors.is_exact else len(self.vectors) * _MOST_GONE
        sizes = sizes_of(db, user)
        grown = self.vectors.is_exact and sizes.indexed * size > self.vectors.exact_numbers
        if bound != self.bound or missing > allowed or grown:
            self.bound, self.gone, self.last = bound, gone, 0
            self.vectors = Vectors(size, exact_numbers=self.vectors.exact_numbers)
            if grown:
                self._load_sketches(db, user, sizes)
        newest = self._append(
            db.execute(
                "SELECT number, row, data FROM vectors WHERE user = ? AND number > ? ORDER BY number", (user, self.last)
            )
        )
        self.last = max(self.last, newest)

    def _append(self, found: Iterable[Row]) -> int:
        """Bring in vectors; returns the number of the last one."""
        last, found = 0, iter(found)
        while page := list(islice(found, _PAGE)):
            block = _matrix([data for _, _, data in page], self.bound[1] if self.bound else 0)
            self.vectors.append([number_of(row) for _, row, _ in page], block)
            last = page[-1][0]
        return last

    def _load_sketches(self, db: Database, user: int, sizes: Sizes) -> None:
        """Bring in the sketches that are stored, and the vectors of the newest numbers and of others without one."""
        parts: list[SketchWords] = []
        numbers: list[Numbers] = []
        until = _sketched_until(sizes.indexed)
        blocks = set(range(0, until, BLOCK))
        bounds = (row_of(user, 0), row_of(user, until))
        for row, data in db.execute("SELECT row, data FROM sketches WHERE row >= ? AND row < ?", bounds):
            sketches, has = _sketches(data)
            there = np.flatnonzero(has)
            parts.append(sketches if len(there) == BLOCK else sketches[:, there])
            numbers.append(there + number_of(row))
            blocks.remove(number_of(row))
        if parts:
            self.vectors.append_sketches(np.concatenate(numbers), np.concatenate(parts, axis=1))
        for start in (*sorted(blocks), until):
            end = sizes.size if start == until else start + BLOCK
            sql = "SELECT number, row, data FROM vectors WHERE row >= ? AND row < ?"
            self._append(db.execute(sql, (row_of(user, start), row_of(user, end))))
        found = one(db, "SELECT max(number) FROM vectors WHERE user = ?", user)
        self.last = found[0] or 0 if found else 0


class SearchCache:
    """What searches need of the users searched last, in memory, at most `max_bytes` together. Safe between threads.

    A user's vectors are kept whole while they are few, and are searched exactly; of many, only sketches are kept.
    """

    __slots__ = ("_exact_numbers", "_held", "_lock", "_max_bytes", "_used")

    def __init__(self, max_bytes: int, *, exact_numbers: int = EXACT_NUMBERS) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._exact_numbers = exact_numbers
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._lock = Lock()

    def _of(self, user: int) -> _Held:
        with self._lock:
            held = self._held.setdefault(user, _Held(self._exact_numbers))
            self._held.move_to_end(user)
        return held

    @contextmanager
    def chain(self, db: Database, user: int, sizes: Sizes) -> Generator[Chain]:
        """Who follows whom in the conversations of the user. It may be newer than this view of the file."""
        held = self._of(user)
        with held.lock:
            held.update_chain(db, user, sizes)
            yield held.chain
        self._shrink(user, held)

    def near(self, db: Database, user: int, vector: Vector) -> NearestVectors:
        """How near each record of the user is that has a vector."""
        query = direction(vector, dimension(db))
        held = self._of(user)
        # A user with many vectors takes a while to load, and no other user has to wait for that.
        with held.lock:
            held.update(db, user)
            numbers, likeness, is_exact = held.vectors.numbers, held.vectors.likeness(), held.vectors.is_exact
        self._shrink(user, held)
        return NearestVectors(numbers, likeness(query), is_exact)

    def drop(self, user: int) -> None:
        """Hold nothing of the user."""
        with self._lock:
            dropped = self._held.pop(user, None)
            self._used -= dropped.counted if dropped else 0

    def _shrink(self, user: int, held: _Held) -> None:
        """Count what is held of a user now, and drop others until all of it is within the bound."""
        with self._lock:
            if self._held.get(user) is not held:  # dropped meanwhile
                return
            size = held.nbytes
            self._used += size - held.counted
            held.counted = size
            while self._used > self._max_bytes:
                _, dropped = self._held.popitem(last=False)
                self._used -= dropped.counted


def _held(db: Database, given: Iterable[int]) -> list[Row]:
    """Those of the rows that have a vector, with it."""
    return rows(
        db,
        "SELECT given.value, v.data FROM json_each(?) AS given CROSS JOIN vectors AS v ON v.row = given.value",
        json.dumps(list(given)),
    )


def _matrix(vectors: Sequence[bytes], size: int) -> Float32s:
    """The vectors as rows; refuses what no vector of this size is, before room is made for it."""
    with reading("a vector"):
        if set(map(len, vectors)) - {size * _BYTES}:
            raise DamagedData(f"a vector is not of {size} numbers")
        matrix = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), size)
        with np.errstate(all="ignore"):
            lengths = np.einsum("ij,ij->i", matrix, matrix)
        if not (np.abs(lengths - 1) < _OFF).all():
            raise DamagedData("a vector is not of length 1")
    return matrix


def _gone(db: Database, user: int) -> int:
    found = one(db, "SELECT vectors_gone FROM users WHERE user = ?", user)
    with reading("the count of vectors"):
        return int(found[0]) if found else 0


DENSE = "dense"
_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""

# Where cosines are estimates: how many are compared exactly, and how far ahead of them the hits must be.
_LIKELIEST = 1000
_LIKELIEST_FOR_EACH = 5
_MOST_GROUPS = 2
_AHEAD = 4

_Row: TypeAlias = tuple[Any, ...]
"""A row of the table: its columns, the first of which is the id, then which one it is."""


class _SqliteRequest(NamedTuple):
    """A query of a user, and the condition for what it may return but for its filter."""

    user: int
    scope: Scope
    shown: Condition
    query: Query


class _Rows:
    """The rows of a user that a query may return; each is read once."""

    __slots__ = ("_read", "db", "request")

    def __init__(self, db: Database, request: _SqliteRequest) -> None:
        self.db = db
        self.request = request
        self._read: dict[int, _Row | None] = {}

    def of(self, numbers: Sequence[int]) -> list[_Row | None]:
        """The row of each number; None where it may not be returned."""
        new = [number for number in numbers if number not in self._read]
        if new:
            self._read.update(dict.fromkeys(new))
            among = json.dumps([row_of(self.request.user, number) for number in new])
            for row in _fitting(self.db, self.request, f"{SELECTED}, r.row", among=among):
                self._read[number_of(row[-1])] = row
        return [self._read[number] for number in numbers]


def search(
    db: Database, user: int | None, scope: Scope, query: Query, *, now: datetime, cache: SearchCache
) -> list[Hit]:
    """The best hits, best first."""
    if query.vector is not None:
        direction(query.vector, dimension(db))
    if user is None:
        return []
    request = _SqliteRequest(user, scope, _shown(user, scope, query, now), query)
    if query.vector is None and not query.text.strip():
        return [Hit(from_row(row), 0.0) for row in _fitting(db, request, SELECTED, limit=query.limit)]
    sizes = sizes_of(db, user)
    size = sizes.size
    parts = index_parts(db, user, query.text, sizes, cache) if query.text.strip() else []
    summed = total(parts, size)
    rows_of = _Rows(db, request)
    if query.vector is None:
        best = _best(rows_of, *_with_score(rows_of, summed), query.limit)
    else:
        near = _near(cache.near(db, user, query.vector), size)
        best, dense = _best_and_near(rows_of, summed, near, query.limit)
        parts += dense
    return sorted(_hits(best, parts, size), key=rank_key)


def search_hybrid(
    db: Database, user: int, scope: Scope, query: Query, *, near: int, now: datetime, cache: SearchCache
) -> list[Hit]:
    """The best by words and the `near` best by vector, each with its cosine."""
    assert query.vector is not None
    sizes = sizes_of(db, user)
    size = sizes.size
    parts = index_parts(db, user, query.text, sizes, cache)
    rows_of = _Rows(db, _SqliteRequest(user, scope, _shown(user, scope, query, now), query))
    best = _best(rows_of, *_with_score(rows_of, total(parts, size)), query.limit)
    cosines = _near(cache.near(db, user, query.vector), size)
    if cosines.is_exact:
        nearest = _best(rows_of, *_in_scope(rows_of, cosines.numbers, cosines.cosines), near)
        dense = [PostingPart(DENSE, cosines.numbers, cosines.cosines)]
    else:
        close = np.zeros(size)
        nearest, dense = _best_and_near(rows_of, close, cosines, near)
        near_ones = np.concatenate([_numbers(()), *(part.numbers for part in dense)])
        _compared(rows_of, np.setdiff1d(_numbers(best), near_ones), close, dense)
    either = list({row[-1]: row for row in (*best, *nearest)}.values())
    return sorted(_hits(either, _of(best, parts, size) + dense, size), key=rank_key)


def search_beside(
    db: Database,
    user: int,
    scope: Scope,
    query: Query,
    nearest: Mapping[str, float],
    *,
    now: datetime,
    cache: SearchCache,
) -> list[Hit]:
    """The best by words, and those of `nearest` that are shown, each with its cosine: as given, or else compared."""
    sizes = sizes_of(db, user)
    size = sizes.size
    parts = index_parts(db, user, query.text, sizes, cache)
    rows_of = _Rows(db, _SqliteRequest(user, scope, _shown(user, scope, query, now), query))
    best = _best(rows_of, *_with_score(rows_of, total(parts, size)), query.limit)
    known = {id: number_of(row) for id, row in find_rows(db, user, scope, nearest).items()}
    given = np.asarray(list(known.values()), np.int64)
    dense = [PostingPart(DENSE, given, np.asarray([nearest[id] for id in known], np.float64))]
    _compared(rows_of, np.setdiff1d(_numbers(best), given), np.zeros(size), dense)
    close = [row for row in rows_of.of(list(known.values())) if row is not None]
    either = list({row[-1]: row for row in (*best, *close)}.values())
    return sorted(_hits(either, _of(best, parts, size) + dense, size), key=rank_key)


def _numbers(found: Sequence[_Row]) -> Numbers:
    return np.asarray([number_of(row[-1]) for row in found], np.int64)


def _of(best: list[_Row], parts: list[PostingPart], size: int) -> list[PostingPart]:
    """The parts, for these rows alone."""
    is_best = np.zeros(size, np.bool_)
    is_best[_numbers(best)] = True
    chosen = ((part, is_best[part.numbers]) for part in parts)
    return [PostingPart(part.signal, part.numbers[mask], part.scores[mask]) for part, mask in chosen]


def _in_scope(rows_of: _Rows, found: Numbers, scores: Scores) -> tuple[Numbers, Scores]:
    """Those that the scope sees, as far as that is known without their rows."""
    if rows_of.request.scope.session_id is None:
        return found, scores
    is_seen = np.isin(found, _in_session(rows_of.db, rows_of.request.user, rows_of.request.scope))
    return found[is_seen], scores[is_seen]


def _with_score(rows_of: _Rows, total: Floats) -> tuple[Numbers, Scores]:
    """The numbers that something speaks for, and their scores."""
    found = np.flatnonzero(total > 0)
    return _in_scope(rows_of, found, total[found])


def _best_and_near(
    rows_of: _Rows, total: Floats, near: NearestVectors, limit: int
) -> tuple[list[_Row], list[PostingPart]]:
    """The best when cosines are added to `total`, and the parts that they are."""
    spoke = total > 0
    spoke[near.numbers] = True
    found = np.flatnonzero(spoke)
    if not near.is_exact:
        return _best_by_estimate(rows_of, _in_scope(rows_of, found, total[found])[0], total, near, limit)
    total[near.numbers] += near.cosines
    best = _best(rows_of, *_in_scope(rows_of, found, total[found]), limit)
    return best, [PostingPart(DENSE, near.numbers, near.cosines)]


def _near(near: NearestVectors, size: int) -> NearestVectors:
    """Without numbers that this view of the file does not know: the cache may be newer."""
    known = near.numbers < size
    return near if known.all() else NearestVectors(near.numbers[known], near.cosines[known], near.is_exact)


def _shown(user: int, scope: Scope, query: Query, now: datetime) -> Condition:
    """The condition for what this query may return, but for its filter."""
    return SQLITE.shown(Condition(*seen(user, scope)), query, now)


def _fitting(
    db: Database, request: _SqliteRequest, columns: str, *, limit: int = -1, among: str | None = None
) -> list[tuple[Any, ...]]:
    """The rows that are shown and fit the filter, by id; or `among` a JSON list of rows, in any order."""
    where, shown = request.query.where, request.shown
    fits = condition(where)
    sql, values = f"{shown.sql} AND {fits.sql}", (*shown.values, *fits.values)
    source, order = "records AS r", "ORDER BY r.id"
    if among is not None:
        # A cross join is not reordered: the rows given are looked up, instead of walking all of the user's.
        source, values = "json_each(?) AS given CROSS JOIN records AS r ON r.row = given.value", (among, *values)
        order = ""
    if where is None or fits.exact:
        return rows(db, f"SELECT {columns} FROM {source} WHERE {sql} {order} LIMIT ?", *values, limit)
    found: list[tuple[Any, ...]] = []
    width = columns.count(",") + 1
    cursor = db.execute(f"SELECT {columns}, {SELECTED} FROM {source} WHERE {sql} {order}", values)
    for row in cursor:
        if where.matches(from_row(row[width:])):
            found.append(row[:width])
            if len(found) == limit:
                break
    cursor.close(True)
    return found


def _in_session(db: Database, user: int, scope: Scope) -> Numbers:
    """The numbers of all that the session sees."""
    found = rows(
        db,
        "SELECT row FROM records WHERE user = ? AND session_id = ? "
        "UNION ALL SELECT row FROM records WHERE user = ? AND layer IS NULL",
        user,
        scope.session_id,
        user,
    )
    return np.asarray([number_of(row) for (row,) in found], np.int64)


def _best(rows_of: _Rows, found: Numbers, scores: Scores, limit: int) -> list[_Row]:
    """The rows of the best that are shown: looks at the best scores first and stops when enough fit."""
    best_rows: list[tuple[float, str, _Row]] = []
    for places in by_score(scores, limit + _TO_SPARE):
        pairs = zip(scores[places].tolist(), rows_of.of(found[places].tolist()), strict=True)
        best_rows += [(-score, row[0], row) for score, row in pairs if row is not None]
        if len(best_rows) >= limit:
            break
    with reading("the id of a record"):  # a damaged one may not be text
        best_rows.sort()  # no two have one id: rows are never compared
    return [row for _, _, row in best_rows[:limit]]


def _best_by_estimate(
    rows_of: _Rows, found: Numbers, total: Floats, near: NearestVectors, limit: int
) -> tuple[list[_Row], list[PostingPart]]:
    """The same where cosines are estimates: the likeliest are compared exactly, which adds to `total` and the parts."""
    estimate = total.copy()
    estimate[near.numbers] += near.cosines
    size = max(_LIKELIEST, limit * _LIKELIEST_FOR_EACH)
    parts: list[PostingPart] = []
    looked, candidates = 0, found[:0]
    for places in islice(by_score(estimate[found], size), _MOST_GROUPS):
        group = found[places]
        looked += len(group)
        # Equal estimates are not parted; of very many equal ones, the oldest have to do.
        likeliest = group[np.argsort(-estimate[group], kind="stable")[: _LIKELIEST_FOR_EACH * size]]
        candidates = np.concatenate([candidates, _compared(rows_of, likeliest, total, parts)])
        best = _best(rows_of, candidates, total[candidates], limit)
        if looked == len(found) or _are_ahead(best, total, candidates, limit):
            return best, parts
    # Few fit. What fits is looked for first, and then the likeliest of that.
    fitting = _numbers(_fitting(rows_of.db, rows_of.request, "r.row"))
    rest = np.setdiff1d(np.intersect1d(found, fitting), candidates)
    group = rest[next(by_score(estimate[rest], size), slice(None))]
    candidates = np.concatenate([candidates, _compared(rows_of, group, total, parts)])
    return _best(rows_of, candidates, total[candidates], limit), parts


def _compared(rows_of: _Rows, numbers: Numbers, total: Floats, parts: list[PostingPart]) -> Numbers:
    """Add exact cosines to `total` and `parts`; returns those of the numbers that a word or a vector speaks for."""
    vector = rows_of.request.query.vector
    assert vector is not None
    with_words = numbers[total[numbers] > 0]
    with_vector, cosines = compared(rows_of.db, rows_of.request.user, numbers, vector)
    part = PostingPart(DENSE, with_vector, cosines.astype(np.float64))
    total[with_vector] += part.scores
    parts.append(part)
    return np.union1d(with_words, with_vector)


def _are_ahead(best: list[_Row], total: Floats, candidates: Numbers, limit: int) -> bool:
    """Whether the best are so far ahead of other candidates that one with a lower estimate hardly belongs to them."""
    if len(best) < limit:
        return False
    return int(np.count_nonzero(total[candidates] >= total[number_of(best[-1][-1])])) * _AHEAD <= len(candidates)


def _hits(best: list[_Row], parts: list[PostingPart], size: int) -> Iterator[Hit]:
    numbers = [number_of(row[-1]) for row in best]
    why = why_of(numbers, parts, size)
    for number, row in zip(numbers, best, strict=True):
        yield scored(from_row(row), why[number])
