"""Finding texts by their words: one BM25 index."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

K1 = 1.2
B = 0.75


class WordIndex:
    """Texts under ids, and how well each fits some words.

    idf is ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative; `k1` is 1.2 and `b` 0.75.
    """

    __slots__ = ("_lengths", "_postings", "_total", "_words")

    def __init__(self) -> None:
        self._words: dict[str, tuple[str, ...]] = {}
        self._postings: dict[str, dict[str, int]] = {}
        self._lengths: dict[str, int] = {}
        self._total = 0

    def set(self, id: str, words: Iterable[str]) -> None:
        """Index these words under `id` in place of what was there."""
        self.remove(id)
        counted = Counter(words)
        if not counted:
            return
        self._words[id] = tuple(counted)
        self._lengths[id] = counted.total()
        self._total += self._lengths[id]
        for word, times in counted.items():
            self._postings.setdefault(word, {})[id] = times

    def remove(self, id: str) -> None:
        """Leave nothing of `id`."""
        words = self._words.pop(id, None)
        if words is None:
            return
        self._total -= self._lengths.pop(id)
        for word in words:
            postings = self._postings[word]
            del postings[id]
            if not postings:
                del self._postings[word]

    def scores(self, words: Iterable[str]) -> dict[str, float]:
        """The score of each id that holds one of the words."""
        found: dict[str, float] = {}
        lengths, count = self._lengths, len(self._words)
        # Sorted, so that a sum has one order of its parts and so one value.
        for word in sorted(set(words)):
            postings = self._postings.get(word)
            if not postings:
                continue
            idf = math.log(1 + (count - len(postings) + 0.5) / (len(postings) + 0.5))
            # Written out, because this is where a search by words spends its time.
            least, by_length = K1 * (1 - B), K1 * B * count / self._total
            most = idf * (K1 + 1)
            for id, times in postings.items():
                weight = most * times / (times + least + by_length * lengths[id])
                found[id] = found.get(id, 0.0) + weight
        return found
