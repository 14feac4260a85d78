"""The vectors of records, in one matrix that a query is compared with at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from loom.protocols.embedder import Vector
from loom.stores.inmemory.best import Signal
from loom.stores.inmemory.numbering import Numbering

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix: TypeAlias = NDArray[np.float32]
    Mask: TypeAlias = NDArray[np.bool_]


class VectorTable:
    """Vectors of one dimension and of length 1, kept in 32 bits. The row of each is the number of its record."""

    __slots__ = ("_has", "_matrix", "_numbering")

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._matrix: Matrix | None = None
        self._has: Mask | None = None
        """Which rows are vectors; all others are 0."""

    def __contains__(self, id: str) -> bool:
        return self._row(id) is not None

    def get(self, id: str) -> Vector | None:
        """The vector of a record."""
        row = self._row(id)
        return None if row is None else tuple(row.tolist())

    def set(self, vectors: Mapping[str, Vector]) -> None:
        """Give records their vectors, in place of those they had."""
        if not vectors:
            return
        numbers = [self._numbering.give(id) for id in vectors]
        matrix, has = self._roomy(max(numbers) + 1, dimension=len(next(iter(vectors.values()))))
        has[numbers] = True
        for number, vector in zip(numbers, vectors.values(), strict=True):
            matrix[number] = tuple(vector)

    def discard(self, id: str) -> None:
        """Leave nothing of a record."""
        row, number = self._row(id), self._numbering.find(id)
        if row is not None and self._has is not None:
            row[:] = 0.0
            self._has[number] = False

    def clear(self) -> None:
        """Leave nothing."""
        self._matrix = self._has = None

    def cosines(self, vector: Vector) -> Signal | None:
        """How like each vector is to one of length 1; equal ones are equally like it. None where there are none."""
        import numpy as np  # noqa: PLC0415 - only a search by vector pays for it

        from loom.stores.nearest import cosines  # noqa: PLC0415

        if self._matrix is None or self._has is None:
            return None
        size = len(self._numbering)
        matrix, has = self._roomy(size, dimension=self._matrix.shape[1])
        likeness = cosines(matrix[:size], np.asarray(vector, np.float32))
        return Signal(likeness.astype(np.float64), has[:size])

    def _row(self, id: str) -> Matrix | None:
        number = self._numbering.find(id)
        if number is None or self._matrix is None or self._has is None or number >= len(self._has):
            return None
        return self._matrix[number] if self._has[number] else None

    def _roomy(self, needed: int, *, dimension: int) -> tuple[Matrix, Mask]:
        """Room for so many rows; made longer by half at the least, so that additions stay cheap."""
        import numpy as np  # noqa: PLC0415

        if self._matrix is None or self._has is None:
            self._matrix, self._has = np.zeros((needed, dimension), np.float32), np.zeros(needed, np.bool_)
        missing = max(needed, len(self._has) * 3 // 2) - len(self._has) if len(self._has) < needed else 0
        if missing:
            self._matrix = np.pad(self._matrix, ((0, missing), (0, 0)))
            self._has = np.pad(self._has, (0, missing))
        return self._matrix, self._has
