"""The indexes of a SQLite file: words, the order of conversations, vectors; and what memory holds of them."""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound
from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import groupby, islice
from struct import Struct
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import apsw
import numpy as np
from numpy.typing import NDArray

from loom.core.checks import AROUND as QUOTED
from loom.core.checks import RANKED
from loom.core.record import Episode, Fact, Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.stores._record_table import no_record, unit_vector
from loom.stores._search import (
    AROUND,
    EXACT_NUMBERS,
    HEAD,
    LINKS,
    MOST,
    OWN,
    Numbers,
    Place,
    PostingPart,
    TextChange,
    TurnOrder,
    Vectors,
    check_numbers,
    cosines,
    joined_run,
    parts_of,
    runs_of,
    without,
)
from loom.stores._sketches import SKETCH_WORDS, Float32s, SketchWords, sketched
from loom.stores.base import Bound, DamagedData, check_bound, reading
from loom.stores.sqlite.connection import (
    ANALYSED_CHAR,
    READ,
    SELECTED,
    Database,
    KnownRecords,
    KnownRows,
    KnownUsers,
    Row,
    Sizes,
    each,
    find_rows,
    from_row,
    holding,
    number_of,
    one,
    row_of,
    rows,
    sizes_of,
    spend,
)
from loom.text.words import query_terms, terms

# The word index of one file: rows of postings, and BM25 over each user's own texts.
#
# A run's rows lie together in the file: what is new changes the few pages of the last, small run, and is moved on when
# a larger run is full. The newest numbers of a user are in no run: a search reads their texts, and they are indexed
# together. So a new turn writes itself and nothing else. Every statistic is of one user alone: what others write
# changes no score.

TAIL = 64
"""How many of a user's newest numbers are indexed together: with more a search is slower, with fewer a write."""
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

    __slots__ = ("_db", "_indexed", "_is_relinked", "_links", "_size", "_user", "_words", "has_replaced", "size")

    def __init__(self, db: Database, user: int) -> None:
        self._db = db
        self._user = user
        self._size, self._indexed, *_ = sizes_of(db, user)
        self.size = self._size
        """How many numbers the user has, with those of records that were added since."""
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
        self._is_relinked |= self._indexed <= number < self._size  # searches hold the texts of those

    def _add(self, signal: str, number: int, text: str) -> None:
        words = self._words.add(signal, number, text)
        if signal in {OWN, HEAD}:
            self._links[number] |= _counted(signal, words)

    def remove(self, signal: str, number: int, text: str) -> None:
        """Take a text out that was indexed like this."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the file says what it is
            raise DamagedData(f"a text of record number {number} is {text!r}")
        if number < self._indexed:
            self._words.remove(signal, number, text)
        self._is_relinked |= number >= self._indexed

    def link(self, number: int, before: int | None) -> None:
        """Say what comes before a number; None takes it out of its conversation."""
        known = self._links[number]
        known["before"] = before or 0
        self._is_relinked |= number < self._size
        if before and number < self._indexed and "words" not in known:  # an older Loom did not count its words
            for signal, _, text in texts_of(self._db, self._user, number, number + 1):
                if signal in {OWN, HEAD}:
                    known |= _counted(signal, len(_words_of(text)))

    def flush(self, until: int | None = None) -> None:
        """Write the change, after the rows that it is about; `until` says how many numbers are to be indexed then."""
        db, user, indexed = self._db, self._user, self._indexed
        size = self.size
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


def _counted(signal: str, words: int) -> dict[str, int]:
    """What the links say of a text with so many words."""
    return {"words": words} if signal == OWN else {"head": words + 1}


def _words_of(text: str) -> list[str]:
    return [term for line in text.splitlines() for term in terms(line)]


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
    wanted = query_terms(text)
    held = _held_postings(db, user, wanted, sizes)
    with reading("the word index"):
        with cache.current(db, user, sizes) as now:
            for signal, (more, words) in now.tail.lengths.items():
                count, total = lengths.get(signal, (0, 0))
                lengths[signal] = count + more, total + words
                for term in wanted:
                    if entries := now.tail.entries.get((term, signal)):
                        spend(_SCORED_BYTE * len(entries))
                        held[term, signal].append(bytes(entries))
            chain = now.chain
            if chain.texts:
                count, total = lengths.get(AROUND, (0, 0))
                lengths[AROUND] = count + chain.texts, total + chain.words
            heads = {term: b"".join(held.pop((term, HEAD), ())) for term in wanted}
            texts = {term: b"".join(own) for term in wanted if (own := held.get((term, OWN)))}
            spend(_AROUND_BYTE * sum(len(own) + len(heads[term]) for term, own in texts.items()))
            around = chain.entries([(own, heads[term]) for term, own in texts.items()], sizes.size)
            for term, entries in zip(texts, around, strict=True):
                if entries:
                    held[term, AROUND].append(entries)
        found = parts_of(held, lengths)
        check_numbers(found, sizes.size)
    return found


def _held_postings(
    db: Database, user: int, wanted: Sequence[str], sizes: Sizes
) -> defaultdict[tuple[str, str], list[bytes]]:
    """The stored entries of these terms, by term and signal."""
    held: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    given = (str(list(runs_of(sizes.indexed))), json.dumps(wanted), user)
    with reading("the word index", but=(apsw.Error,)), closing(each(db, _TERMS, *given)) as found:
        for term, signal, entries in found:
            spend(_SCORED_BYTE * len(entries))
            held[term, signal].append(entries)
    return held


_ENTRY = Struct("<IHH")
"""One of ENTRIES."""
_SCORED_BYTE, _AROUND_BYTE = 0.018, 0.008
"""What it costs to read and score the entries of a term, and to find the turns around them, in microseconds a byte."""
_LENGTHS = "SELECT signal, texts, words FROM lengths WHERE user = ?"
_TERMS = (
    "SELECT postings.term, signal, entries FROM json_each(?) AS runs CROSS JOIN json_each(?) AS terms "
    "CROSS JOIN postings WHERE user = ? AND run = runs.value AND term = terms.value"
)


class NewestTexts:
    """The newest texts of a user, which are not indexed yet, as the word index would hold them.

    Each search brings it up to its view: what was written since is added, and where older texts changed it is made
    anew.
    """

    __slots__ = ("_as_of", "chars", "entries", "lengths", "words")

    def __init__(self) -> None:
        self._as_of = Sizes(0, 0)
        self.entries: defaultdict[tuple[str, str], bytearray] = defaultdict(bytearray)
        """The entries of each term and signal."""
        self.lengths: dict[str, tuple[int, int]] = {}
        """How many texts and words each signal has."""
        self.words: dict[tuple[str, int], int] = {}
        """How many words a number has in a signal; none where it has no word."""
        self.chars = 0

    def is_before(self, sizes: Sizes) -> bool:
        """Whether it only lacks what was written since, for a view of these sizes."""
        known = self._as_of
        are_same = (known.indexed, known.relinked) == (sizes.indexed, sizes.relinked)
        return are_same and known.size <= sizes.size

    def update(self, db: Database, user: int, sizes: Sizes) -> None:
        """Add what was written since."""
        start = max(self._as_of.size, sizes.indexed)
        for signal, number, text in texts_of(db, user, start, sizes.size) if start < sizes.size else ():
            self._add(signal, number, text)
        self._as_of = sizes

    def _add(self, signal: str, number: int, text: str) -> None:
        spend(ANALYSED_CHAR * len(text))
        times = Counter(_words_of(text))
        words = times.total()
        if not words:
            return
        self.chars += len(text)
        self.words[signal, number] = words
        count, total = self.lengths.get(signal, (0, 0))
        self.lengths[signal] = count + 1, total + words
        for term, often in times.items():
            self.entries[term, signal] += _ENTRY.pack(number, min(often, MOST), min(words, MOST))


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


def links_of(db: Database, user: int, sizes: Sizes, start: int, tail: NewestTexts | None = None) -> NDArray[Any]:
    """What is known of the numbers from `start` on; `tail` holds the texts that are not indexed yet."""
    first = start // BLOCK * BLOCK
    found = np.zeros(sizes.size - first, LINKS)
    bounds = (row_of(user, first), row_of(user, sizes.indexed))
    for row, data in db.execute("SELECT row, data FROM links WHERE row >= ? AND row < ?", bounds):
        block = number_of(row) - first
        found[block : block + BLOCK] = np.frombuffer(data, LINKS)[: len(found) - block]
    for (signal, number), words in tail.words.items() if tail is not None else ():
        for name, value in _counted(signal, words).items() if signal in {OWN, HEAD} and number >= start else ():
            found[name][number - first] = value
    for number, before in befores_of(db, user, max(start, sizes.indexed), sizes.size):
        found["before"][number - first] = before
    return found[start - first :]


def texts_around(db: Database, user: int, given: Sequence[int], cache: SearchCache) -> Iterator[tuple[int, str]]:
    """The text around each of these rows of a user that is linked to others."""
    sizes = sizes_of(db, user)
    with cache.current(db, user, sizes) as now:
        around = dict(zip(given, now.chain.around([number_of(row) for row in given]), strict=True))
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
_TAIL_BYTES = 4
"""How many bytes a character of a text takes that is kept with its words, roughly."""
_ROW_BYTES = 800
"""How many bytes a row takes that is kept, without its text, roughly."""
_MOST_ROWS = 16_384
"""How many rows of a user are kept for the next searches."""
_MOST_CHARS = 32 * 2**20
"""How many characters the texts of these rows have: a text may have a million."""
_MOST_GONE = 1 / 8
"""The share of sketches that may be of vectors that are gone."""


NONE_NEW: Final[Mapping[str, int]] = MappingProxyType({})


def binding(db: Database) -> Bound | None:
    """The embedder and dimension of the file, None before bind()."""
    found = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'dimension')").fetchall())
    with reading("the embedder of the file"):
        return (found["embedder"], int(found["dimension"])) if found else None


def check_binding(db: Database, expected: Bound | None) -> Bound | None:
    """Refuse to go on where another process has bound the file anew since this one did; None: this one did not.

    Returns the embedder and dimension of the file.
    """
    bound = binding(db)
    if expected is not None:
        check_bound(bound, expected)
    return bound


def dimension(db: Database) -> int | None:
    """How many numbers a vector of this file has; None before bind()."""
    bound = binding(db)
    return None if bound is None else bound[1]


def direction(vector: Vector, size: int | None, what: str = "the vector of a query") -> Float32s:
    """The direction of a vector in 32 bits; refuses one that has none, or another dimension than the file's."""
    return np.asarray(unit_vector(vector, size, what), np.float32)


def put_vectors(
    db: Database,
    user: int | None,
    scope: Scope,
    vectors: Mapping[str, Vector],
    *,
    bound: Bound | None,
    new: Mapping[str, int] = NONE_NEW,
) -> None:
    """Set the vectors of records; `bound` is the binding of the file, `new` are rows that have no vector yet, by id."""
    size = None if bound is None else bound[1]
    units = {id: direction(vector, size, f"the vector of {id}") for id, vector in vectors.items()}
    old = {} if user is None else find_rows(db, user, scope, units.keys() - new.keys())
    found = {**new, **old}
    for id in units:
        if id not in found:
            raise no_record(id, "a vector")
    for row, _ in _held(db, old.values()) if old else ():
        drop_vector(db, row)
    made = [(user, found[id], unit.astype("<f4").tobytes()) for id, unit in units.items()]
    db.executemany("INSERT INTO vectors (user, row, data) VALUES (?, ?, ?)", made)
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


_NEW_VECTORS = "SELECT number, row, data FROM vectors WHERE user = ? AND number > ? ORDER BY number"


class _Held:
    """What is kept of one user as of a moment: their vectors, their newest texts, and who follows whom in their talk.

    `gone` changes when a vector went, `last` is the newest one held, `linked` changes with the links of old turns.
    `rows` are those that searches looked at, as of a revision of the user. `records` are those that every turn reads.
    """

    __slots__ = (
        "bound", "chain", "counted", "gone", "last", "linked", "lock", "records", "rows", "tail", "vectors",
    )  # fmt: skip

    def __init__(self, exact_numbers: int) -> None:
        self.lock = Lock()
        self.counted = 0
        """How much memory it took when that was counted last."""
        self.bound: Bound | None = None
        self.gone = 0
        self.last = 0
        self.vectors = Vectors(0, exact_numbers=exact_numbers)
        self.linked: int = -1
        self.chain = TurnOrder(np.zeros(0, LINKS))
        self.tail = NewestTexts()
        self.rows = KnownRows(0)
        self.records = KnownRecords("")

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        texts = _TAIL_BYTES * self.tail.chars + self.rows.chars + self.records.chars
        texts += _ROW_BYTES * (len(self.rows) + 2 * len(self.records))
        return self.vectors.nbytes + self.chain.nbytes + texts

    def update_words(self, db: Database, user: int, sizes: Sizes) -> None:
        """Bring in the turns that were written since; start anew where others changed."""
        tail, self.tail = self.tail, NewestTexts()  # where it fails half way, it is made anew
        tail = tail if tail.is_before(sizes) else NewestTexts()
        tail.update(db, user, sizes)
        self.tail = tail
        if sizes.relinked != self.linked:
            self.linked, self.chain = sizes.relinked, TurnOrder(links_of(db, user, sizes, 0, self.tail))
        elif len(self.chain) < sizes.size:
            self.chain.extend(links_of(db, user, sizes, len(self.chain), self.tail))

    def update(self, db: Database, user: int, bound: Bound | None, sizes: Sizes) -> None:
        """Bring in the vectors that were written since; start anew where too much of what is held is gone."""
        size, gone = bound[1] if bound else 0, sizes.gone
        # An estimate is checked against the file, so that it may be of a vector that is gone; a cosine may not.
        missing = abs(gone - self.gone)
        allowed = 0 if self.vectors.is_exact else len(self.vectors) * _MOST_GONE
        if bound != self.bound or missing > allowed:
            self.bound = None  # where it fails half way, it is made anew
            self.gone, self.last = gone, 0
            exact_numbers = self.vectors.exact_numbers
            self.vectors = Vectors(size, exact_numbers=exact_numbers)
            if sizes.indexed * size > exact_numbers:
                self._load_sketches(db, user, sizes, size)
            self.bound = bound
        for last, numbers, block in _vectors_in(each(db, _NEW_VECTORS, user, self.last), size):
            self.vectors.append(numbers, block)
            self.last = last

    def _load_sketches(self, db: Database, user: int, sizes: Sizes, size: int) -> None:
        """Bring in the sketches that are stored, and the vectors of the newest numbers and of others without one."""
        spend(READ * sizes.indexed)
        numbers: list[Numbers] = []
        until = _sketched_until(sizes.indexed)
        read, count = np.empty((SKETCH_WORDS, sizes.size * 9 // 8), np.uint64), 0  # with room for those to come
        blocks = set(range(0, until, BLOCK))
        bounds = (row_of(user, 0), row_of(user, until))
        for row, data in db.execute("SELECT row, data FROM sketches WHERE row >= ? AND row < ?", bounds):
            sketches, has = _sketches(data)
            there = np.flatnonzero(has)
            read[:, count : count + len(there)] = sketches if len(there) == BLOCK else sketches[:, there]
            count += len(there)
            numbers.append(there + number_of(row))
            blocks.remove(number_of(row))
        if numbers:
            self.vectors.start_with(np.concatenate(numbers), read)
        for start in (*sorted(blocks), until):
            end = sizes.size if start == until else start + BLOCK
            sql = "SELECT number, row, data FROM vectors WHERE row >= ? AND row < ?"
            for _, numbers_there, block in _vectors_in(each(db, sql, row_of(user, start), row_of(user, end)), size):
                self.vectors.append(numbers_there, block)
        found = one(db, "SELECT max(number) FROM vectors WHERE user = ?", user)
        self.last = found[0] or 0 if found else 0


Changes: TypeAlias = Callable[[int, int, int], Collection[int] | None]


def _unknown(user: int, after: int, until: int) -> Collection[int] | None:  # noqa: ARG001 - of any user
    return () if after == until else None


class SearchCache:
    """What searches need of the users searched last, in memory, at most `max_bytes` together. Safe between threads.

    A user's vectors are kept whole while they are few, and are searched exactly; of many, only sketches are kept.
    """

    __slots__ = ("_changes", "_exact_numbers", "_held", "_lock", "_max_bytes", "_used", "_users")

    def __init__(self, max_bytes: int, changes: Changes = _unknown, *, exact_numbers: int = EXACT_NUMBERS) -> None:
        """`changes` says which records this process has changed, as ChangeLog.between() does."""
        self._max_bytes = max_bytes
        self._changes = changes
        self._used = 0
        self._exact_numbers = exact_numbers
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._users = KnownUsers()
        self._lock = Lock()

    def find(self, db: Database, scope: Scope) -> int | None:
        """The number of the scope's user; it is the first that a view reads."""
        user, gone = self._users.find(db, scope)
        if gone is not None:
            self.drop(gone)
        return user

    def _of(self, user: int) -> _Held:
        with self._lock:
            if self._users.is_dropped(user):
                return _Held(self._exact_numbers)  # for this view alone
            held = self._held.get(user)
            if held is None:
                held = self._held[user] = _Held(self._exact_numbers)
            self._held.move_to_end(user)
        return held

    @contextmanager
    def current(self, db: Database, user: int, sizes: Sizes) -> Generator[_Held]:
        """The newest texts of the user as of this view, and who follows whom, which may be newer than the view."""
        held = self._of(user)
        with holding(held.lock):
            held.update_words(db, user, sizes)
            yield held
        self._shrink(user, held)

    @contextmanager
    def rows(self, user: int, sizes: Sizes) -> Generator[KnownRows]:
        """The rows of the user that searches looked at and that are the same in this view, to look up and to add to."""
        held = self._of(user)
        with holding(held.lock):
            known = held.rows
            gone = self._changes(user, known.revision, sizes.revision)
            if known.revision > sizes.revision:
                known = KnownRows(sizes.revision)  # what is held is newer than the view
            elif gone is None or len(known) > _MOST_ROWS or known.chars > _MOST_CHARS:
                known = held.rows = KnownRows(sizes.revision)  # any of them may have changed, or there are too many
            else:
                known.drop(gone, sizes.revision)
            yield known
        self._shrink(user, held)

    @contextmanager
    def records(self, user: int, epoch: str) -> Generator[KnownRecords]:
        """The records of the user that every turn reads, as of an epoch of theirs, to look up and to add to."""
        held = self._of(user)
        if held.records.epoch != epoch:
            held.records = KnownRecords(epoch)
        yield held.records
        self._shrink(user, held)

    def near(self, db: Database, user: int, vector: Vector, sizes: Sizes) -> NearestVectors:
        """How near each record of the user is that has a vector."""
        bound = binding(db)
        query = direction(vector, None if bound is None else bound[1])
        held = self._of(user)
        # A user with many vectors takes a while to load, and no other user has to wait for that.
        with holding(held.lock):
            held.update(db, user, bound, sizes)
            numbers, likeness, is_exact = held.vectors.numbers, held.vectors.likeness(), held.vectors.is_exact
        self._shrink(user, held)
        return NearestVectors(numbers, likeness(query), is_exact)

    def drop(self, user: int) -> None:
        """Hold nothing of the user."""
        self._users.drop(user)
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


def _vectors_in(found: Iterable[Row], size: int) -> Iterator[tuple[int, list[int], Float32s]]:
    """Vectors in pages: the place of the last one in the order they came, the numbers of their records, the rows."""
    found = iter(found)
    while page := list(islice(found, _PAGE)):
        yield page[-1][0], [number_of(row) for _, row, _ in page], _matrix([data for _, _, data in page], size)


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
