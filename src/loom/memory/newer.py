"""Newer statements first: where two of the best candidates say the same of the same, the later one leads.

Relevance cannot tell "she lives in Oslo" from "she lives in Bergen"; only time can. Two turns count as one statement
said again when they share enough of their words and were said by the same speaker. That is rare between turns that
merely touch one topic, so that the order of everything else stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from loom.core.record import Episode, Record
from loom.core.words import query_terms
from loom.memory.rank import Ranked

TOP = 20
"""How many of the best candidates are compared with each other."""

ALIKE = 0.25
"""The share of their words that two turns have in common when one says the other again."""

SHARED = 3
"""And how many words at the least: two short turns are alike by chance."""

_STEP = 1e-6


class _Said(NamedTuple):
    age: tuple[datetime, datetime, str]
    id: str
    speaker: str | None
    words: int
    asks: bool


def newest_first(ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    """The ranking with each later statement lifted above the earlier ones that it says again: the signal `newer`."""
    found = {r.id: r for r in ranked[:TOP]}
    bits: dict[str, int] = {}
    told = (record for id in found if isinstance(record := records[id], Episode) and not record.sources)
    said = sorted(_said(record, bits) for record in told)
    for place, newer in enumerate(said):
        if newer.asks:
            continue
        own = found[newer.id]
        ahead = (older for older in said[:place] if found[older.id].score >= own.score)
        above = max((found[older.id].score for older in ahead if _is_same(older, newer)), default=None)
        if above is not None:
            score = above + _STEP
            found[own.id] = Ranked(own.id, score, {**own.why, "newer": score - own.score})
    return [*sorted(found.values(), key=lambda r: (-r.score, r.id)), *ranked[TOP:]]


def _said(episode: Episode, bits: dict[str, int]) -> _Said:
    """What is compared of an episode; its words are the bits of a number, each word one that all share."""
    words = 0
    for word in query_terms(episode.text):
        bit = bits.get(word)
        if bit is None:
            bit = bits[word] = 1 << len(bits)
        words |= bit
    # At one instant the order of arrival decides: ids are made in that order.
    return _Said(
        (episode.at, episode.recorded_at, episode.id),
        episode.id,
        episode.speaker,
        words,
        episode.text.rstrip().endswith("?"),
    )


def _is_same(older: _Said, newer: _Said) -> bool:
    if older.speaker != newer.speaker:
        return False
    shared = (older.words & newer.words).bit_count()
    return shared >= SHARED and shared >= ALIKE * (older.words | newer.words).bit_count()
