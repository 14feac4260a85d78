"""The vectors of records, and the matrices in memory that search them exactly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, NotFound, UsageError
from loom.protocols.embedder import Vector
from loom.stores.sqlite.connection import Database, Rows, one
from loom.stores.sqlite.users import NUMBER_BITS, find_row

Matrix: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.int64]

_MASK = (1 << NUMBER_BITS) - 1
_PAGE = 4096


def bind(db: Database, identity: str, dimension: int) -> None:
    """Fix whose vectors the file holds."""
    bound = binding(db)
    if bound is None:
        db.executemany("INSERT INTO meta VALUES (?, ?)", [("embedder", identity), ("dimension", str(dimension))])
    elif bound != (identity, dimension):
        raise EmbedderMismatch(_spoken(*bound), _spoken(identity, dimension))


def binding(db: Database) -> tuple[str, int] | None:
    """The embedder and dimension of the file, None before bind()."""
    found = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'dimension')").fetchall())
    return (found["embedder"], int(found["dimension"])) if found else None


def dimension(db: Database) -> int:
    """How many numbers a vector of this file has."""
    bound = binding(db)
    if bound is None:
        raise UsageError("nobody said whose vectors these are; call bind(identity, dimension) first")
    return bound[1]


def unit_vector(vector: Vector, size: int, what: str) -> Matrix:
    """The direction of a vector; refuses one that has none, or another dimension."""
    numbers = np.asarray(tuple(vector), dtype=np.float64)
    if numbers.shape != (size,):
        raise UsageError(f"{what} has {len(numbers)} numbers; this store keeps vectors of {size}")
    largest = np.abs(numbers).max()
    if not np.isfinite(largest) or largest == 0:
        raise UsageError(f"{what} has {largest} as its largest number; give finite numbers that are not all zero")
    numbers = numbers / largest  # so that squares neither overflow nor vanish
    return (numbers / np.linalg.norm(numbers)).astype(np.float32)


def put_vectors(db: Database, user: int | None, scope: Scope, vectors: Mapping[str, Vector]) -> None:
    """Set the vectors of records."""
    size = dimension(db)
    for id, vector in vectors.items():
        data = unit_vector(vector, size, f"the vector of {id}").astype("<f4").tobytes()
        row = None if user is None else find_row(db, user, scope, id)
        if user is None or row is None:
            raise NotFound(f"there is no record {id!r} to give a vector to; put it first")
        drop_vector(db, user, row)
        db.execute("INSERT INTO vectors (user, row, data) VALUES (?, ?, ?)", (user, row, data))


def drop_vector(db: Database, user: int, row: int) -> None:
    """Take the vector of a record away, if it has one."""
    if one(db, "DELETE FROM vectors WHERE row = ? RETURNING 1", row) is not None:
        db.execute("UPDATE users SET vectors_gone = vectors_gone + 1 WHERE user = ?", (user,))


@dataclass(slots=True)
class _Held:
    """The matrix of one user as of a moment: `gone` changes when a vector went, `last` is the newest one held."""

    gone: int
    last: int
    numbers: Numbers
    matrix: Matrix
    count: int = 0

    def append(self, numbers: list[int], block: Matrix) -> None:
        needed = self.count + len(numbers)
        if needed > len(self.numbers):
            room = max(needed, len(self.numbers) * 3 // 2)
            self.numbers = np.concatenate([self.numbers[: self.count], np.zeros(room - self.count, np.int64)])
            spare = np.zeros((room - self.count, block.shape[1]), np.float32)
            self.matrix = np.concatenate([self.matrix[: self.count], spare])
        self.numbers[self.count : needed] = numbers
        self.matrix[self.count : needed] = block
        self.count = needed


class VectorCache:
    """Matrices of the users searched last, at most `max_bytes` together. Safe to share between threads."""

    __slots__ = ("_held", "_lock", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._lock = Lock()

    def cosines(self, db: Database, user: int, vector: Vector) -> tuple[Numbers, Matrix]:
        """The number of each record of the user that has a vector, and its cosine."""
        size = dimension(db)
        query = unit_vector(vector, size, "the vector of a query")
        numbers, matrix = self._matrix(db, user, size)
        # A matrix product may differ in the last bits by row; equal vectors must score equal.
        return numbers, (matrix @ query).round(6)

    def drop(self, user: int) -> None:
        """Hold nothing of the user."""
        with self._lock:
            self._held.pop(user, None)

    def _matrix(self, db: Database, user: int, size: int) -> tuple[Numbers, Matrix]:
        found = one(db, "SELECT vectors_gone FROM users WHERE user = ?", user)
        gone = found[0] if found else 0
        with self._lock:
            held = self._held.pop(user, None)
            if held is None or held.gone != gone:
                held = _Held(gone, 0, np.zeros(0, np.int64), np.zeros((0, size), np.float32))
            _load(db, user, held)
            numbers, matrix = held.numbers[: held.count], held.matrix[: held.count]
            self._keep(user, held)
        return numbers, matrix

    def _keep(self, user: int, held: _Held) -> None:
        self._held[user] = held
        used = sum(other.matrix.nbytes for other in self._held.values())
        while used > self._max_bytes:
            _, dropped = self._held.popitem(last=False)
            used -= dropped.matrix.nbytes


def _load(db: Database, user: int, held: _Held) -> None:
    """Bring in what was written since."""
    found = db.execute(
        "SELECT number, row, data FROM vectors WHERE user = ? AND number > ? ORDER BY number", (user, held.last)
    )
    while page := _page(found):
        block = np.frombuffer(b"".join(data for _, _, data in page), "<f4").reshape(len(page), -1)
        held.append([row & _MASK for _, row, _ in page], block)
        held.last = page[-1][0]


def _page(cursor: Rows) -> list[Any]:
    return [row for _, row in zip(range(_PAGE), cursor, strict=False)]


def _spoken(identity: str, size: int) -> str:
    return f"{identity} ({size} numbers)"
