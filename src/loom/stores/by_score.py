"""The best of many scores first, without sorting them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def by_score(scores: NDArray[np.floating[Any]], size: int) -> Iterator[NDArray[np.int64]]:
    """The places of falling scores, in groups; equal scores are never parted, so that ids can decide between them."""
    places: NDArray[np.int64] | None = None
    while len(scores) > size:
        # The best of many blocks are quicker to order than all, and `size` blocks that reach a score hold as many hits.
        block = max(1, len(scores) // (8 * size))
        highest = np.maximum.reduceat(scores, np.arange(0, len(scores), block))
        is_top = scores >= np.partition(highest, len(highest) - size)[len(highest) - size]
        top = np.flatnonzero(is_top)
        yield top if places is None else places[top]
        rest = np.flatnonzero(~is_top)
        places, scores = rest if places is None else places[rest], scores[rest]
        size *= 4
    if len(scores):
        yield np.arange(len(scores)) if places is None else places
