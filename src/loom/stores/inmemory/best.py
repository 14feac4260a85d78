"""Taking the best of many scores without sorting them all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from loom.stores.inmemory.vector_table import VectorTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FEW = 64
_CLOSE = 1e-9
"""Sums of the same signals in another order are closer than this."""


def best_first(
    signals: Collection[Mapping[str, float]], vectors: VectorTable, cosines: NDArray[Any] | None
) -> Iterator[tuple[str, float]]:
    """Every id that a signal speaks for, and about the sum of its signals, best first."""
    import numpy as np  # noqa: PLC0415 - whoever does not search does not pay for it

    ids, totals = ([], np.zeros(0)) if cosines is None else (vectors.ids, cosines)
    spoken = _summed(signals)
    if cosines is not None and spoken:
        totals = totals.copy()
        here = [id for id in spoken if id in vectors]
        totals[vectors.rows(here)] += [spoken.pop(id) for id in here]
    if spoken:
        ids = [*ids, *spoken]
        totals = np.concatenate([totals, np.fromiter(spoken.values(), float, len(spoken))])
    for places in _falling(totals):
        yield from zip([ids[place] for place in places], totals[places].tolist(), strict=True)


def take_best(best: Iterable[tuple[str, float]], limit: int, fits: Callable[[str], bool]) -> list[str]:
    """The first ids that fit, up to `limit`, and all behind them whose score may turn out to be as good."""
    found: list[str] = []
    worst = 0.0
    for id, score in best:
        if len(found) >= limit and score < worst - _CLOSE:
            break
        if fits(id):
            found.append(id)
            if len(found) == limit:
                worst = score
    return found


def _summed(signals: Collection[Mapping[str, float]]) -> dict[str, float]:
    first, *others = signals or ({},)
    total = dict(first)
    for found in others:
        for id, score in found.items():
            total[id] = total.get(id, 0.0) + score
    return total


def _falling(totals: NDArray[Any]) -> Iterator[list[int]]:
    """The places of all numbers, from the largest to the smallest: a few first, mostly enough, then all others."""
    import numpy as np  # noqa: PLC0415

    few = np.argpartition(totals, -_FEW)[-_FEW:] if len(totals) > _FEW else np.arange(len(totals))
    yield few[np.argsort(-totals[few])].tolist()
    rest = np.delete(np.arange(len(totals)), few)
    yield rest[np.argsort(-totals[rest])].tolist()
