"""Records under numbers, so that their vectors and scores can lie in arrays, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from loom.protocols.embedder import Vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Matrix: TypeAlias = NDArray[np.float32]
    Mask: TypeAlias = NDArray[np.bool_]

_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""
_CLOSE = 1e-9
"""Sums of the same signals in another order are closer than this."""


class Numbering:
    """A number for each id, from 0 on. The number of an id that is gone is given to another one."""

    __slots__ = ("_free", "_numbers", "ids")

    def __init__(self) -> None:
        self.ids: list[str] = []
        """The id of each number; empty where a number is free."""
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        """How many numbers there are, free ones included."""
        return len(self.ids)

    def find(self, id: str) -> int | None:
        """The number of an id, None where it has none."""
        return self._numbers.get(id)

    def give(self, id: str) -> int:
        """The number of an id, a new one where it has none."""
        number = self._numbers.get(id)
        if number is not None:
            return number
        if self._free:
            number = self._free.pop()
            self.ids[number] = id
        else:
            number = len(self.ids)
            self.ids.append(id)
        self._numbers[id] = number
        return number

    def drop(self, id: str) -> None:
        """Leave nothing of an id."""
        number = self._numbers.pop(id, None)
        if number is not None:
            self.ids[number] = ""
            self._free.append(number)


class Signal(NamedTuple):
    """A score for each number, and which of them have one."""

    scores: Floats
    has_score: Mask

    def of(self, numbers: Sequence[int]) -> list[float | None]:
        """The score of each of these numbers; None where it has none."""
        places = list(numbers)
        pairs = zip(self.has_score[places].tolist(), self.scores[places].tolist(), strict=True)
        return [score if has else None for has, score in pairs]


def best(signals: Collection[Signal], limit: int, fits: Callable[[int], bool]) -> list[int]:
    """The `limit` numbers with the highest sums that fit, and all behind them that may turn out to be as good."""
    import numpy as np  # noqa: PLC0415 - only a search pays for it

    from loom.stores.by_score import by_score  # noqa: PLC0415

    if not signals:
        return []
    numbers = np.flatnonzero(np.logical_or.reduce([signal.has_score for signal in signals]))
    totals: Floats = np.add.reduce([signal.scores for signal in signals])[numbers]
    found: list[int] = []
    worst = 0.0
    for group in by_score(totals, limit + _TO_SPARE):
        places = group[np.argsort(-totals[group])]
        for number, score in zip(numbers[places].tolist(), totals[places].tolist(), strict=True):
            if len(found) >= limit and score < worst - _CLOSE:
                return found
            if fits(number):
                found.append(number)
                if len(found) == limit:
                    worst = score
    return found


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
