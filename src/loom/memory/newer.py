"""Newer statements first: where two of the best candidates say the same of the same, the later one leads.

Relevance cannot tell "she lives in Oslo" from "she lives in Bergen"; only time can. Two turns count as one statement
said again when they share enough of their words and were said by the same speaker, and the later one lacks no name or
number of the question that the earlier one has: who asks for Anna's key is not given the one that Ben got later. That
is rare between turns that merely touch one topic, so that the order of everything else stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from loom.core.limits import RANKED
from loom.core.record import Episode, Record
from loom.core.words import query_terms
from loom.memory.rank import Ranked, asks

TOP = 20
"""How many of the best candidates are compared with each other."""

ALIKE = 0.25
"""The share of their words that two turns have in common when one says the other again."""

SHARED = 3
"""And how many words at the least: two short turns are alike by chance."""

FAR = 5.0
"""How much less than the earlier one a later one may score: where it is more, it hardly answers the question."""

_STEP = 1e-6
_DIGIT = re.compile(r"\d")


class _RankedTurn(NamedTuple):
    age: tuple[datetime, datetime, str]
    id: str
    text: str
    speaker: str | None
    words: int
    asks: bool


def newest_first(question: str, ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    """The ranking with each later statement lifted above the earlier ones that it says again: the signal `newer`."""
    found = {r.id: r for r in ranked[:TOP]}
    bits: dict[str, int] = {}
    asked = _words(question, bits)
    told = (record for id in found if isinstance(record := records[id], Episode) and not record.sources)
    said = sorted(_said(record, bits) for record in told)
    for place, newer in enumerate(said):
        if newer.asks:
            continue
        own = found[newer.id]
        ahead = (older for older in said[:place] if own.score <= found[older.id].score <= own.score + FAR)
        same = (older for older in ahead if _is_same(older, newer) and not _is_of_another(older, newer, asked, bits))
        above = max((found[older.id].score for older in same), default=None)
        if above is not None:
            score = above + _STEP
            found[own.id] = Ranked(own.id, score, {**own.why, "newer": score - own.score})
    return [*sorted(found.values(), key=lambda r: (-r.score, r.id)), *ranked[TOP:]]


def _words(text: str, bits: dict[str, int]) -> int:
    """The words of a text as the bits of a number, each word one that all share."""
    places = [bits.setdefault(word, len(bits)) for word in query_terms(text)]
    flags = bytearray(len(bits) // 8 + 1)
    for place in places:
        flags[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(flags, "little")


def _said(episode: Episode, bits: dict[str, int]) -> _RankedTurn:
    """What is compared of an episode."""
    # At one instant the order of arrival decides: ids are made in that order.
    return _RankedTurn(
        (episode.at, episode.recorded_at, episode.id),
        episode.id,
        episode.text[:RANKED],
        episode.speaker,
        _words(episode.text[:RANKED], bits),
        asks(episode.text),
    )


def _is_same(older: _RankedTurn, newer: _RankedTurn) -> bool:
    if older.speaker != newer.speaker:
        return False
    shared = (older.words & newer.words).bit_count()
    return shared >= SHARED and shared >= ALIKE * (older.words | newer.words).bit_count()


def _is_of_another(older: _RankedTurn, newer: _RankedTurn, asked: int, bits: dict[str, int]) -> bool:
    """Whether the later one lacks a name or a number that is asked for and that the earlier one has."""
    missing = older.words & asked & ~newer.words
    if not missing:
        return False
    names = " ".join(word for word in older.text.split() if word != word.lower() or _DIGIT.search(word))
    return bool(missing & _words(names, bits))
