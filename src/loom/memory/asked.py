"""Drops recalled questions that contain no information of their own.

"Where do I live?" asked six times says nothing about where the user lives. A question that states something ("Can you
help me choose paint for my 2018 Honda Civic?") stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from loom.core.record import Episode, Record
from loom.core.words import STOP_WORDS, query_terms, stem, tokens
from loom.memory.rank import Ranked, asks

_LONGEST: Final = 300
"""Characters; a longer question states something as well."""
_PLAIN: Final = 8
"""Maximum words of a plain question."""
_OPENS: Final = frozenset(
    """
    what whats where wheres when whens who whos whom whose which why how hows is are am was were do does did can could
    will would should shall may might have has had dont doesnt didnt isnt arent cant
    """.split()  # noqa: SIM905
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_DETAIL: Final = re.compile(r"[\d\"\u201c\u201d\u00ab\u00bb`]|(?<=\S)\s+(?!I\b)[A-Z\u00c0-\u00de]")
"""A number, a quotation, or a name."""
_ABOUT_ASKING: Final = re.compile(r"\b(?:ask|asks|asked|asking|questions?|wonder(?:ed|ing)?)\b", re.IGNORECASE)


def without_questions(question: str, ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    """The ranking without questions that add no word to the current one, or are plain questions.

    A query about questions ("what did I ask?") gets the full ranking.
    """
    if _ABOUT_ASKING.search(question):
        return list(ranked)
    known = set(query_terms(question))
    return [r for r in ranked if not _tells_nothing(records[r.id], known)]


def _tells_nothing(record: Record, known: set[str]) -> bool:
    text = record.text
    if not isinstance(record, Episode) or len(text) > _LONGEST or not asks(text):
        return False
    sentences = _SENTENCE.split(text.strip())
    if not all(sentence.endswith("?") for sentence in sentences):
        return False
    words = tokens(text)
    if {stem(word) for word in words if word not in STOP_WORDS} <= known:
        return True
    is_plain = len(sentences) == 1 and len(words) <= _PLAIN and words[0] in _OPENS
    return is_plain and not _DETAIL.search(text.strip())
