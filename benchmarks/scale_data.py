"""Texts in any number, and questions about them: the sentences of real conversations, put together anew.

Each text is two or three sentences of LoCoMo, drawn at random, and one made-up name. Names come by Zipf's law out of
a list that grows with the texts, so that new words keep turning up, as they do in life; the rest of the words are as
frequent as people use them. The questions are the real ones.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from recall_data import Corpus, locomo

SEED = 7
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "ta", "ve", "wo", "xi", "yu", "za", "pe", "go")


@cache
def _conversations(folder: Path) -> tuple[Corpus, ...]:
    return tuple(locomo(folder))


def texts(folder: Path, start: int = 0) -> Iterator[str]:
    """Texts without end, the same every time; each depends on its place alone."""
    said = [turn.text for corpus in _conversations(folder) for turn in corpus.turns]
    sentences = [part for text in said for part in _SENTENCE_END.split(text) if len(part.split()) > 2]
    place = start
    while True:
        chance = random.Random(f"{SEED} {place}")
        drawn = chance.choices(sentences, k=chance.choice((2, 2, 3)))
        yield f"{_name(chance, place)}: {' '.join(drawn)}"
        place += 1


def questions(folder: Path, count: int) -> list[str]:
    """Questions that people asked, spread over all conversations."""
    asked = [question.text for corpus in _conversations(folder) for question in corpus.questions]
    return random.Random(SEED).sample(asked, count)


def _name(chance: random.Random, place: int) -> str:
    """One of as many names as a tenth of the texts so far, the first ones often and most of them seldom."""
    number = int((place / 10 + 10) ** chance.random())
    letters = [_SYLLABLES[number >> shift & 15] for shift in (0, 4, 8, 12, 16)]
    return "".join(letters[: 2 + number % 4]).title() + ("" if number < 16**5 else str(number))
