"""The vectors of records, and the cache that searches them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import NamedTuple

import numpy as np

from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.stores.base import Bound, check_bound
from loom.stores.damage import DamagedData, reading
from loom.stores.nearest import EXACT_NUMBERS, Floats, Numbers, Vectors, cosines
from loom.stores.sqlite.connection import Database, Row, one, rows
from loom.stores.sqlite.users import find_rows, number_of, row_of
from loom.stores.user_records import no_record, unit_vector

_PAGE = 4096
_BYTES = 4
"""Of a number of a vector."""
_OFF = 0.01
"""How far the square of a vector's length may be off: it was 1 but for rounding when it was written."""
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


def direction(vector: Vector, size: int | None, what: str = "the vector of a query") -> Floats:
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


def drop_vector(db: Database, row: int) -> None:
    """Take the vector of a record away, if it has one."""
    user = one(db, "DELETE FROM vectors WHERE row = ? RETURNING user", row)
    if user is not None:
        db.execute("UPDATE users SET vectors_gone = vectors_gone + 1 WHERE user = ?", user)


class Near(NamedTuple):
    """The number of each record that has a vector, and its cosine to a query; a number may come twice.

    Estimates may also name a vector that is gone: compared() tells.
    """

    numbers: Numbers
    cosines: Floats
    is_exact: bool


def compared(db: Database, user: int, numbers: Numbers, vector: Vector) -> tuple[Numbers, Floats]:
    """Those of the records that have a vector, and their exact cosines, read from the file."""
    query = direction(vector, dimension(db))
    found = _held(db, [row_of(user, number) for number in numbers.tolist()])
    matrix = _matrix([data for _, data in found], len(query))
    return np.asarray([number_of(row) for row, _ in found], np.int64), cosines(matrix, query)


class _Held:
    """The vectors of one user as of a moment; `gone` changes when a vector went, `last` is the newest one held."""

    __slots__ = ("bound", "gone", "last", "lock", "vectors")

    def __init__(self, exact_numbers: int) -> None:
        self.lock = Lock()
        self.bound: Bound | None = None
        self.gone = 0
        self.last = 0
        self.vectors = Vectors(0, exact_numbers=exact_numbers)

    def update(self, db: Database, user: int) -> None:
        """Bring in what was written since; start anew where too much of what is held is gone."""
        bound, gone = binding(db), _gone(db, user)
        # An estimate is checked against the file, so that it may be of a vector that is gone; a cosine may not.
        missing = abs(gone - self.gone)
        allowed = 0 if self.vectors.is_exact else len(self.vectors) * _MOST_GONE
        if bound != self.bound or missing > allowed:
            self.bound, self.gone, self.last = bound, gone, 0
            self.vectors = Vectors(dimension(db) or 0, exact_numbers=self.vectors.exact_numbers)
        found = db.execute(
            "SELECT number, row, data FROM vectors WHERE user = ? AND number > ? ORDER BY number", (user, self.last)
        )
        while page := list(islice(found, _PAGE)):
            block = _matrix([data for _, _, data in page], dimension(db) or 0)
            self.vectors.append([number_of(row) for _, row, _ in page], block)
            self.last = page[-1][0]


class VectorCache:
    """The vectors of the users searched last, in memory, at most `max_bytes` together. Safe to share between threads.

    A user's vectors are kept whole while they are few, and are searched exactly; of many, only sketches are kept.
    """

    __slots__ = ("_exact_numbers", "_held", "_lock", "_max_bytes")

    def __init__(self, max_bytes: int, *, exact_numbers: int = EXACT_NUMBERS) -> None:
        self._max_bytes = max_bytes
        self._exact_numbers = exact_numbers
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._lock = Lock()

    def near(self, db: Database, user: int, vector: Vector) -> Near:
        """How near each record of the user is that has a vector."""
        query = direction(vector, dimension(db))
        with self._lock:
            held = self._held.setdefault(user, _Held(self._exact_numbers))
            self._held.move_to_end(user)
        # A user with many vectors takes a while to load, and no other user has to wait for that.
        with held.lock:
            held.update(db, user)
            numbers, likeness, is_exact = held.vectors.numbers, held.vectors.likeness(), held.vectors.is_exact
        self._shrink()
        return Near(numbers, likeness(query), is_exact)

    def drop(self, user: int) -> None:
        """Hold nothing of the user."""
        with self._lock:
            self._held.pop(user, None)

    def _shrink(self) -> None:
        with self._lock:
            used = sum(held.vectors.nbytes for held in self._held.values())
            while used > self._max_bytes:
                _, dropped = self._held.popitem(last=False)
                used -= dropped.vectors.nbytes


def _held(db: Database, given: Iterable[int]) -> list[Row]:
    """Those of the rows that have a vector, with it."""
    return rows(
        db,
        "SELECT given.value, v.data FROM json_each(?) AS given CROSS JOIN vectors AS v ON v.row = given.value",
        json.dumps(list(given)),
    )


def _matrix(vectors: Sequence[bytes], size: int) -> Floats:
    """The vectors as rows; refuses what no vector of this size is, before room is made for it."""
    with reading("a vector"):
        if any(len(data) != size * _BYTES for data in vectors):
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
