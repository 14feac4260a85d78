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
        self._words: dict[str, Counter[str]] = {}
        self._postings: dict[str, set[str]] = {}
        self._lengths: dict[str, int] = {}
        self._total = 0

    def set(self, id: str, words: Iterable[str]) -> None:
        """Index these words under `id` in place of what was there."""
        self.remove(id)
        counted = Counter(words)
        if not counted:
            return
        self._words[id] = counted
        self._lengths[id] = counted.total()
        self._total += self._lengths[id]
        for word in counted:
            self._postings.setdefault(word, set()).add(id)

    def remove(self, id: str) -> None:
        """Leave nothing of `id`."""
        counted = self._words.pop(id, None)
        if counted is None:
            return
        self._total -= self._lengths.pop(id)
        for word in counted:
            ids = self._postings[word]
            ids.discard(id)
            if not ids:
                del self._postings[word]

    def scores(self, words: Iterable[str]) -> dict[str, float]:
        """The score of each id that holds one of the words."""
        found: dict[str, float] = {}
        # Sorted, so that a sum has one order of its parts and so one value.
        for word in sorted(set(words)):
            ids = self._postings.get(word)
            if not ids:
                continue
            idf = math.log(1 + (len(self._words) - len(ids) + 0.5) / (len(ids) + 0.5))
            for id in ids:
                found[id] = found.get(id, 0.0) + idf * self._weight(id, word)
        return found

    def _weight(self, id: str, word: str) -> float:
        times = self._words[id][word]
        length = self._lengths[id] * len(self._words) / self._total
        return times * (K1 + 1) / (times + K1 * (1 - B + B * length))
