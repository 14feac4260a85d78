"""The order among the best: of statements about the same thing, the newer one comes first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from loom.core.checks import RANKED
from loom.core.record import Episode, Record
from loom.memory._recall.rank import Ranked, asks
from loom.text.passages import sentences, stems_in
from loom.text.words import query_terms

Prefer: TypeAlias = Literal["user", "both"]
"""Whose words rank higher where a question is about talk with an assistant: the user's, or both alike."""

ROLES = frozenset({"user", "assistant", "system", "tool"})
"""Speakers that are roles, not people: the word "user" in a question names no person."""


def role_of(episode: Episode) -> str | None:
    """The role of the speaker; None for a person with a name."""
    if episode.speaker is not None:
        role = episode.speaker.casefold()
        return role if role in ROLES else None
    return episode.provenance.origin if episode.provenance.origin in ROLES else None


# Relevance cannot tell "she lives in Oslo" from "she lives in Bergen"; only time can. What counts as a repetition
# depends on who speaks. Notes and turns of people are short: two of the same speaker that share enough words state the
# same property. A message to an assistant holds several things, so only its best sentence counts: the later message
# comes first if its best sentence has nearly as many of the question's words as that of the earlier one.
#
# Either way, the later one must not lack a name or number of the question that the earlier one has: a question about
# Anna's key must not return the one that Ben got later. Messages change places only among the first five hits, so no
# evidence is pushed out of them; a question that asks for several things, or for an order, keeps all places.

TOP = 20
"""Number of best turns of people that are compared with each other."""
FIRST = 5
"""Number of best messages of a user that are compared with each other."""
ALIKE = 0.25
"""The least share of common words for a turn to count as a repetition of another."""
SHARED = 3
"""The least number of common words: two short turns may be alike by chance."""
COVERS = 0.6
"""The least share of the question's words in the earlier message that the later one has to have."""
FAR = 5.0
"""How much lower than the earlier turn the later one may score: with a larger gap it hardly answers the question."""
_STEP = 1e-6
_DIGIT = re.compile(r"\d")
_SEVERAL = re.compile(
    r"\b(?:all|average|before|between|both|combined|compare|different|earliest|first|list|order|overview|progress(?:ed)?"
    r"|sum|summar(?:y|i[sz]e)|total)\b",
    re.IGNORECASE,
)
"""Words of a question whose answer takes several statements, or an early one."""


class _RankedTurn(NamedTuple):
    age: tuple[datetime, datetime, str]
    id: str
    text: str
    speaker: str | None
    words: int
    asks: bool


def newest_first(question: str, ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    """The ranking with each later statement moved above the earlier ones that it repeats: the signal `newer`."""
    ranked = [*_people(question, ranked[:TOP], records), *ranked[TOP:]]
    return ranked if _SEVERAL.search(question) else [*_messages(question, ranked[:FIRST], records), *ranked[FIRST:]]


def _people(question: str, ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    bits: dict[str, int] = {}
    wanted = _words(question, bits)
    turns = sorted(_turn(e, _words(e.text[:RANKED], bits)) for e in _originals(ranked, records) if not _is_message(e))

    def repeats(older: _RankedTurn, newer: _RankedTurn) -> bool:
        shared = (older.words & newer.words).bit_count()
        is_same = older.speaker == newer.speaker and shared >= SHARED
        is_alike = is_same and shared >= ALIKE * (older.words | newer.words).bit_count()
        return is_alike and not _is_of_another(older, newer, wanted, bits)

    return _moved(ranked, [turn for turn in turns if not turn.asks], turns, repeats)


def _messages(question: str, ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    bits: dict[str, int] = {}
    wanted = _words(question, bits)
    stems = tuple(bits)
    messages = [e for e in _originals(ranked, records) if _is_message(e) and role_of(e) == "user"]
    turns = sorted(_turn(e, _told(e.text[:RANKED], stems, bits)) for e in messages)

    def repeats(older: _RankedTurn, newer: _RankedTurn) -> bool:
        covers = newer.words.bit_count() >= max(1.0, COVERS * older.words.bit_count())
        return covers and not _is_of_another(older, newer, wanted, bits)

    return _moved(ranked, turns, turns, repeats)


def _is_message(episode: Episode) -> bool:
    """Whether it is part of a conversation between a user and an assistant: not a person's turn, and not a note."""
    return episode.speaker is not None and role_of(episode) is not None


def _originals(ranked: Iterable[Ranked], records: Mapping[str, Record]) -> Iterator[Episode]:
    return (record for r in ranked if isinstance(record := records[r.id], Episode) and not record.sources)


def _moved(
    ranked: Sequence[Ranked],
    newer_ones: Sequence[_RankedTurn],
    turns: Sequence[_RankedTurn],
    repeats: Callable[[_RankedTurn, _RankedTurn], bool],
) -> list[Ranked]:
    """The ranking with each of `newer_ones` just above the best of the earlier turns that it repeats."""
    found = {r.id: r for r in ranked}
    for newer in newer_ones:
        own = found[newer.id]
        ahead = (found[older.id].score for older in turns if older.age < newer.age and repeats(older, newer))
        above = max((score for score in ahead if own.score <= score <= own.score + FAR), default=None)
        if above is not None:
            score = above + _STEP
            found[own.id] = Ranked(own.id, score, {**own.why, "newer": score - own.score})
    return sorted(found.values(), key=lambda r: (-r.score, r.id))


def _words(text: str, bits: dict[str, int]) -> int:
    """The words of a text as a bit set: one bit per word, numbered in `bits`.

    Sets of up to 20 texts are compared in pairs; `&` and bit_count() on integers are many times faster than sets.
    """
    return _bits(query_terms(text), bits)


def _bits(stems: Iterable[str], bits: dict[str, int]) -> int:
    places = [bits.setdefault(stem, len(bits)) for stem in stems]
    flags = bytearray(len(bits) // 8 + 1)
    for place in places:
        flags[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(flags, "little")


def _told(text: str, stems: tuple[str, ...], bits: dict[str, int]) -> int:
    """The words of the question in the one sentence of a message that has most of them; questions tell nothing."""
    told = (text[span.start : span.end] for span in sentences(text))
    found = [stems_in(sentence, stems) for sentence in told if not asks(sentence)]
    return _bits(max(found, key=len, default=()), bits)


def _turn(episode: Episode, words: int) -> _RankedTurn:
    # At equal times the order of arrival decides, which is the order of ids.
    age = (episode.at, episode.recorded_at, episode.id)
    text = episode.text[:RANKED]
    return _RankedTurn(age, episode.id, text, episode.speaker, words, asks(episode.text))


def _is_of_another(older: _RankedTurn, newer: _RankedTurn, wanted: int, bits: dict[str, int]) -> bool:
    """Whether the later turn lacks a name or number of the question that the earlier one has."""
    missing = older.words & wanted & ~newer.words
    if not missing:
        return False
    names = " ".join(word for word in older.text.split() if word != word.lower() or _DIGIT.search(word))
    return bool(missing & _words(names, bits))
