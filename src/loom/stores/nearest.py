"""Cosines of many vectors to a query: exact while they are few, estimated by sketches when they are many.

A sketch says on which side of 768 fixed planes a vector lies, in 96 bytes. Two vectors at an angle of `a` lie on
different sides of a share `a / pi` of all planes, so the bits that differ tell the cosine, give or take a few
hundredths: enough to choose candidates, whose vectors are then compared exactly. The planes do not depend on what is
stored, so that a sketch never has to be made again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from loom.errors import UsageError
from loom.protocols.embedder import Vector

Floats: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.int64]
_Words: TypeAlias = NDArray[np.uint64]
_Scalar = TypeVar("_Scalar", bound=np.generic)

EXACT_NUMBERS = 2**25
"""Up to this many numbers (131,072 vectors of 256) all are compared, in 128 MiB; `benchmarks/README.md` says why."""

_BITS = 768
_WORDS = _BITS // 64
_BLOCK = 4096
_COSINES = np.cos(np.pi * np.arange(_BITS + 1) / _BITS).astype(np.float32)
_DIGITS = 6


class Vectors:
    """Vectors of length 1 with a number each, in the order they came. One thread at a time may add to them."""

    __slots__ = ("_count", "_matrix", "_numbers", "_sketches", "exact_numbers")

    def __init__(self, dimension: int, *, exact_numbers: int = EXACT_NUMBERS) -> None:
        self.exact_numbers = exact_numbers
        self._count = 0
        self._numbers: Numbers = np.zeros(0, np.int64)
        self._matrix: Floats = np.zeros((0, dimension), np.float32)
        self._sketches: _Words | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def is_exact(self) -> bool:
        """Whether cosines are exact; otherwise they are estimates."""
        return self._sketches is None

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return self._numbers.nbytes + self._matrix.nbytes + (0 if self._sketches is None else self._sketches.nbytes)

    @property
    def numbers(self) -> Numbers:
        """The number of each vector."""
        return self._numbers[: self._count]

    def append(self, numbers: list[int], block: Floats) -> None:
        """Add vectors; where they are more than `exact_numbers`, the sketches of all are kept in their place."""
        first, end = self._count, self._count + len(numbers)
        if self._sketches is None and end * block.shape[1] > self.exact_numbers:
            self._sketches = _sketched(self._matrix[:first])
            self._matrix = self._matrix[:0].copy()
        if self._sketches is None:
            self._matrix = _roomy(self._matrix, end, axis=0)
            self._matrix[first:end] = block
        else:
            self._sketches = _roomy(self._sketches, end, axis=1)
            self._sketches[:, first:end] = _sketched(block)
        self._numbers = _roomy(self._numbers, end, axis=0)
        self._numbers[first:end] = numbers
        self._count = end

    def likeness(self) -> Callable[[Floats], Floats]:
        """A function that gives each vector's cosine to a query, as of now: what is added later does not disturb it."""
        if self._sketches is None:
            matrix = self._matrix[: self._count]
            return lambda query: cosines(matrix, query)
        sketches = self._sketches[:, : self._count]
        return lambda query: _COSINES[_differing(sketches, query)]


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


def cosines(matrix: Floats, query: Floats) -> Floats:
    """The exact cosine of each row to the query."""
    # Row by row: a product of matrices would start threads that cost more than they save, and could differ by row.
    found: Floats = np.vecdot(matrix, query)
    np.round(found, _DIGITS, out=found)
    return found


def _roomy(array: NDArray[_Scalar], needed: int, *, axis: int) -> NDArray[_Scalar]:
    """The array, if need be made longer by half at the least, so that many small additions stay cheap."""
    length = array.shape[axis]
    if needed <= length:
        return array
    wider = [(0, 0)] * array.ndim
    wider[axis] = (0, max(needed, length * 3 // 2) - length)
    return np.pad(array, wider)


def _differing(sketches: _Words, query: Floats) -> NDArray[np.uint16]:
    """In how many bits each sketch differs from that of the query."""
    differing = np.zeros(sketches.shape[1], np.uint16)
    asked = _packed(np.vecdot(_planes(len(query)), query)[np.newaxis])
    for words, word in zip(sketches, asked[:, 0], strict=True):
        differing += np.bitwise_count(words ^ word)
    return differing


def _sketched(matrix: Floats) -> _Words:
    """The sketch of each row, as a column of words."""
    planes = _planes(matrix.shape[1])
    parts = [_packed(matrix[first : first + _BLOCK] @ planes.T) for first in range(0, len(matrix), _BLOCK)]
    return np.concatenate([np.zeros((_WORDS, 0), np.uint64), *parts], axis=1)


def _packed(products: Floats) -> _Words:
    return np.packbits(products > 0, axis=1).view(np.uint64).T


@lru_cache(maxsize=4)
def _planes(dimension: int) -> Floats:
    """The normals of the planes, always the same: as many as can be at right angles, then others, turned at random.

    At right angles they tell more than if each were drawn by itself.
    """
    chance = np.random.default_rng(0)
    turned = [np.linalg.qr(chance.standard_normal((dimension, dimension)))[0] for _ in range(-(-_BITS // dimension))]
    return np.concatenate(turned)[:_BITS].astype(np.float32)
