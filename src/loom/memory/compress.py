"""Compression without a model: real sentences, chosen for what they say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from loom.core.limits import RANKED

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(\[])|\n+")
_WORD = re.compile(r"[^\W_]+(?:'\w+)?")
_DETAIL = re.compile(r"\d|/\w|[A-Z][a-z]+|\"[^\"]+\"")
"""Numbers, paths, names and quotations: what a reader would miss most."""

STATEMENT_CHARS = 240


class ContextCompressor:
    """Shortens texts by keeping whole sentences of them, in their order.

    A sentence is worth the words it shares with the rest (so that it speaks for the whole) and the details it
    holds. Nothing is rewritten, so nothing can be made up. Of a long text the beginning is read.
    """

    def __init__(self, *, max_chars: int = STATEMENT_CHARS) -> None:
        self.max_chars = max_chars

    def statement(self, text: str) -> str:
        """The text as one short statement."""
        return self.summary([text], max_chars=self.max_chars)

    @staticmethod
    def read(texts: Sequence[str]) -> int:
        """How many characters of these texts are looked at."""
        return sum(min(len(text), RANKED) for text in texts)

    def summary(self, texts: Sequence[str], *, max_chars: int | None = None) -> str:
        """The sentences of all texts that say most, within a number of characters."""
        limit = max_chars or self.max_chars * 4
        sentences = [s.strip() for text in texts for s in _SENTENCE.split(text[:RANKED]) if s.strip()]
        if sum(len(s) + 1 for s in sentences) <= limit:
            return " ".join(sentences)
        sentences = list(dict.fromkeys(sentences))  # what was said again says nothing more
        counts = Counter(w for s in sentences for w in set(_words(s)))
        ranked = sorted(range(len(sentences)), key=lambda i: (-_worth(sentences[i], counts), i))
        chosen: list[int] = []
        room = limit
        for i in ranked:
            if len(sentences[i]) < room:
                chosen.append(i)
                room -= len(sentences[i]) + 1
        if not chosen:
            return _cut(sentences[ranked[0]], limit)
        return " ".join(sentences[i] for i in sorted(chosen))


def _words(sentence: str) -> list[str]:
    return [w.lower() for w in _WORD.findall(sentence) if len(w) > 3]


def _worth(sentence: str, counts: Counter[str]) -> float:
    words = _words(sentence)
    shared = sum(counts[w] - 1 for w in words) / (len(words) or 1)
    return shared + len(_DETAIL.findall(sentence)) / (1 + len(sentence) / 80)


def _cut(sentence: str, limit: int) -> str:
    head = sentence[: limit - 1].rsplit(" ", 1)[0]
    return f"{head or sentence[: limit - 1]}…"
