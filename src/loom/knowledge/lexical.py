"""An incremental BM25 index over passages."""

from __future__ import annotations

from collections import Counter
from math import log

from loom.core.words import query_terms, terms

# The usual constants of BM25, k1 and b.
_SATURATION = 1.2
_LENGTH_SHARE = 0.75


class LexicalIndex:
    """The stems of texts, by id."""

    __slots__ = ("_lengths", "_postings", "_stems", "_total")

    def __init__(self) -> None:
        self._postings: dict[str, dict[str, int]] = {}
        self._stems: dict[str, str] = {}
        self._lengths: dict[str, int] = {}
        self._total = 0

    def add(self, id: str, text: str) -> None:
        """Index a text under an id that is not in use."""
        stems = terms(text)
        self._stems[id] = _phrase(stems)
        self._lengths[id] = len(stems)
        self._total += len(stems)
        for stem, count in Counter(stems).items():
            self._postings.setdefault(stem, {})[id] = count

    def remove(self, id: str) -> None:
        """Remove a text from the index."""
        self._total -= self._lengths.pop(id)
        for stem in set(self._stems.pop(id).split()):
            posting = self._postings[stem]
            del posting[id]
            if not posting:
                del self._postings[stem]

    def scores(self, query: str) -> dict[str, float]:
        """BM25 of every text that shares a word with the query."""
        found: dict[str, float] = {}
        mean = self._total / len(self._lengths) if self._total else 1.0
        for stem in query_terms(query):
            rarity = self._rarity(stem)
            for id, count in self._postings.get(stem, {}).items():
                length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * self._lengths[id] / mean
                weight = count * (_SATURATION + 1) / (count + _SATURATION * length)
                found[id] = found.get(id, 0.0) + rarity * weight
        return found

    def ceiling(self, query: str) -> float:
        """The upper limit of BM25 for this query. Words that no text contains count too, so they lower every share."""
        return sum(self._rarity(stem) for stem in query_terms(query)) * (_SATURATION + 1)

    def having(self, phrase: str) -> list[str]:
        """The ids of the texts that contain these stems in sequence, sorted."""
        stems = phrase.split()
        postings = [self._postings.get(stem, {}) for stem in stems]
        if not postings:
            return []
        shortest = min(postings, key=len)
        wanted = _phrase(stems)
        return sorted(id for id in shortest if wanted in self._stems[id])

    def _rarity(self, stem: str) -> float:
        holding = len(self._postings.get(stem, {}))
        return log(1 + (len(self._lengths) - holding + 0.5) / (holding + 0.5))


def _phrase(stems: list[str]) -> str:
    return f" {' '.join(stems)} "
