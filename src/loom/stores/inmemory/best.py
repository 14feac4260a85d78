"""What speaks for records, and taking the best of them without looking at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Mask: TypeAlias = NDArray[np.bool_]

_TO_SPARE = 20
"""How many more than asked for are looked at first: some may not fit."""
_CLOSE = 1e-9
"""Sums of the same signals in another order are closer than this."""


class Signal(NamedTuple):
    """A score for each number, and for which of them it speaks at all."""

    scores: Floats
    speaks: Mask

    def of(self, numbers: Sequence[int]) -> list[float | None]:
        """The score of each of these numbers; None where it does not speak for one."""
        places = list(numbers)
        pairs = zip(self.speaks[places].tolist(), self.scores[places].tolist(), strict=True)
        return [score if speaks else None for speaks, score in pairs]


def best(signals: Collection[Signal], limit: int, fits: Callable[[int], bool]) -> list[int]:
    """The `limit` numbers with the highest sums that fit, and all behind them that may turn out to be as good."""
    import numpy as np  # noqa: PLC0415 - whoever does not search does not pay for it

    from loom.stores.by_score import by_score  # noqa: PLC0415

    if not signals:
        return []
    spoken_for = np.flatnonzero(np.logical_or.reduce([signal.speaks for signal in signals]))
    totals: Floats = np.add.reduce([signal.scores for signal in signals])[spoken_for]
    found: list[int] = []
    worst = 0.0
    for group in by_score(totals, limit + _TO_SPARE):
        places = group[np.argsort(-totals[group])]
        for number, score in zip(spoken_for[places].tolist(), totals[places].tolist(), strict=True):
            if len(found) >= limit and score < worst - _CLOSE:
                return found
            if fits(number):
                found.append(number)
                if len(found) == limit:
                    worst = score
    return found
