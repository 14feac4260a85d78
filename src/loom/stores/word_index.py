"""Finding texts by their words: one BM25 index."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

K1 = 1.2
B = 0.75
_COUNTS = "I"


class _Postings(NamedTuple):
    """The texts that hold a word, by number, and how often each does: read by numpy as they lie there."""

    numbers: array[int]
    times: array[int]

    def put(self, number: int, times: int) -> None:
        """Note that a text holds the word so often. New texts have the highest numbers, mostly."""
        place = len(self.numbers)
        if place and self.numbers[-1] > number:
            place = bisect_left(self.numbers, number)
        self.numbers.insert(place, number)
        self.times.insert(place, times)

    def remove(self, number: int) -> None:
        """Forget a text that holds the word."""
        place = bisect_left(self.numbers, number)
        del self.numbers[place], self.times[place]


class WordIndex:
    """Texts under numbers, and how well each fits some words.

    idf is ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative; `k1` is 1.2 and `b` 0.75.
    """

    __slots__ = ("_lengths", "_postings", "_total", "_words")

    def __init__(self) -> None:
        self._words: dict[int, tuple[str, ...]] = {}
        self._postings: dict[str, _Postings] = {}
        self._lengths = array(_COUNTS)
        self._total = 0

    def set(self, number: int, words: Iterable[str]) -> None:
        """Index these words under `number` in place of what was there."""
        self.remove(number)
        counted = Counter(words)
        if not counted:
            return
        self._words[number] = tuple(counted)
        self._lengths.extend([0] * (number + 1 - len(self._lengths)))
        self._lengths[number] = counted.total()
        self._total += counted.total()
        for word, times in counted.items():
            postings = self._postings.get(word)
            if postings is None:
                postings = self._postings[word] = _Postings(array(_COUNTS), array(_COUNTS))
            postings.put(number, times)

    def remove(self, number: int) -> None:
        """Leave nothing of `number`."""
        words = self._words.pop(number, None)
        if words is None:
            return
        self._total -= self._lengths[number]
        self._lengths[number] = 0
        for word in words:
            postings = self._postings[word]
            postings.remove(number)
            if not postings.numbers:
                del self._postings[word]

    def scores(self, words: Iterable[str], size: int) -> Floats | None:
        """The score of each of `size` numbers, 0 for one that holds none of the words; None where none does."""
        import numpy as np  # noqa: PLC0415 - only a search pays for it

        # Sorted, so that a sum has one order of its parts and so one value.
        held = [postings for word in sorted(set(words)) if (postings := self._postings.get(word))]
        if not held:
            return None
        found, lengths, count = np.zeros(size), np.frombuffer(self._lengths, np.uintc), len(self._words)
        least, by_length = K1 * (1 - B), K1 * B * count / self._total
        for postings in held:
            numbers, times = (np.frombuffer(part, np.uintc) for part in postings)
            idf = math.log(1 + (count - len(numbers) + 0.5) / (len(numbers) + 0.5))
            found[numbers] += idf * (K1 + 1) * times / (times + least + by_length * lengths[numbers])
        return found
