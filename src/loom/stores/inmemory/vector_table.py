"""Vectors by record id, in one matrix that a query is compared with at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from loom.protocols.embedder import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray


class VectorTable:
    """Vectors of one dimension and of length 1. A vector that is removed leaves its row to the last one."""

    __slots__ = ("_matrix", "_rows", "ids")

    def __init__(self) -> None:
        self.ids: list[str] = []
        """The id of each row."""
        self._rows: dict[str, int] = {}
        self._matrix: NDArray[Any] | None = None

    def __contains__(self, id: object) -> bool:
        return id in self._rows

    def __len__(self) -> int:
        return len(self.ids)

    def get(self, id: str) -> Vector | None:
        """The vector of a record, exactly as it was given."""
        row = self._rows.get(id)
        return None if row is None or self._matrix is None else tuple(self._matrix[row].tolist())

    def row(self, id: str) -> int | None:
        """Where the vector of a record is."""
        return self._rows.get(id)

    def rows(self, ids: Iterable[str]) -> list[int]:
        """Where the vectors of records are that all have one."""
        return [self._rows[id] for id in ids]

    def set(self, vectors: Mapping[str, Vector]) -> None:
        """Give records their vectors, in place of those they had."""
        if not vectors:
            return
        new = [id for id in vectors if id not in self._rows]
        matrix = self._roomy(len(self.ids) + len(new), dimension=len(next(iter(vectors.values()))))
        for id in new:
            self._rows[id] = len(self.ids)
            self.ids.append(id)
        for id, vector in vectors.items():
            matrix[self._rows[id]] = vector

    def discard(self, id: str) -> None:
        """Leave nothing of a record."""
        row = self._rows.pop(id, None)
        if row is None or self._matrix is None:
            return
        last = self.ids.pop()
        if last != id:
            self._matrix[row] = self._matrix[len(self.ids)]
            self.ids[row], self._rows[last] = last, row

    def clear(self) -> None:
        """Leave nothing."""
        self.ids, self._rows, self._matrix = [], {}, None

    def cosines(self, vector: Vector) -> NDArray[Any]:
        """How like each row is to a vector of length 1; equal rows may differ in the last bits."""
        import numpy as np  # noqa: PLC0415 - only a search by vector pays for it

        if self._matrix is None:
            return np.zeros(0)
        # Row by row: a product of matrices would start threads that cost more than they save.
        return np.vecdot(self._matrix[: len(self.ids)], np.asarray(vector))

    def cosines_of(self, ids: Iterable[str], vector: Vector) -> dict[str, float]:
        """How like each of these is to a vector of length 1, of those that have one."""
        import numpy as np  # noqa: PLC0415

        known = [id for id in dict.fromkeys(ids) if id in self._rows]
        if self._matrix is None or not known:
            return {}
        likeness = np.vecdot(self._matrix[self.rows(known)], np.asarray(vector))
        return dict(zip(known, likeness.tolist(), strict=True))

    def _roomy(self, needed: int, *, dimension: int) -> NDArray[Any]:
        """The matrix with room for so many rows; made longer by half at the least, so that additions stay cheap."""
        import numpy as np  # noqa: PLC0415

        held = self._matrix if self.ids else None
        if held is None or len(held) < needed:
            length = 0 if held is None else len(held)
            longer = np.zeros((max(needed, length * 3 // 2), dimension))
            if held is not None:
                longer[:length] = held
            self._matrix = held = longer
        return held
