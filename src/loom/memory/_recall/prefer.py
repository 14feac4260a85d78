"""Preferences after ranking: user messages first, newer statements first.

Most facts are stated by the user, and replies are many times longer. So within a budget the user's message represents
the exchange, with the better of the two scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from loom.core.checks import RANKED
from loom.core.record import Episode, Record
from loom.memory._recall.rank import Ranked, asks
from loom.memory._shared import POSITION
from loom.text.words import query_terms

Prefer: TypeAlias = Literal["user", "both"]

ROLES = frozenset({"user", "assistant", "system", "tool"})
"""Speakers that are roles, not people: the word "user" in a question names no person."""


def role_of(episode: Episode) -> str | None:
    """The role of the speaker; None for a person with a name."""
    if episode.speaker is not None:
        role = episode.speaker.casefold()
        return role if role in ROLES else None
    return episode.provenance.origin if episode.provenance.origin in ROLES else None


def user_first(ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    """The ranking with each reply moved to the end if its user message is ranked too, which takes the better score."""
    messages = {place: id for id, record in records.items() if (place := _place(record, "user"))}
    replies: dict[str, str] = {}
    for r in ranked:
        place = _place(records[r.id], "assistant")
        if place and (user := messages.get((place[0], place[1] - 1))):
            replies[r.id] = user
    best = {user: r for r in reversed(ranked) if (user := replies.get(r.id))}
    first = [_at_least(r, best.get(r.id)) for r in ranked if r.id not in replies]
    return [*sorted(first, key=lambda r: (-r.score, r.id)), *(r for r in ranked if r.id in replies)]


def _place(record: Record, role: str) -> tuple[str, int] | None:
    """The session and position of a turn in this role."""
    if not isinstance(record, Episode) or record.session_id is None or role_of(record) != role:
        return None
    position = record.attributes.get(POSITION)
    return (record.session_id, position) if isinstance(position, int) else None


def _at_least(own: Ranked, answer: Ranked | None) -> Ranked:
    """The hit with the score of its reply, if that is better."""
    if answer is None or answer.score <= own.score:
        return own
    return Ranked(own.id, answer.score, {**own.why, "answer": answer.score - own.score})


# Newer statements first: if two of the best candidates state the same property, the later one ranks higher.
#
# Relevance cannot tell "she lives in Oslo" from "she lives in Bergen"; only time can. Two turns count as one statement
# repeated if they share enough words, have the same speaker, and the later one lacks no name or number of the question
# that the earlier one has: a question about Anna's key must not return the one that Ben got later. That is rare between
# turns that merely share a topic, so the order of everything else stays the same.

TOP = 20
"""Number of best candidates that are compared with each other."""
ALIKE = 0.25
"""The least share of common words for a turn to count as a repetition of another."""
SHARED = 3
"""The least number of common words: two short turns may be alike by chance."""
FAR = 5.0
"""How much lower than the earlier turn the later one may score: with a larger gap it hardly answers the question."""
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
    """The ranking with each later statement moved above the earlier ones that it repeats: the signal `newer`."""
    found = {r.id: r for r in ranked[:TOP]}
    bits: dict[str, int] = {}
    wanted = _words(question, bits)
    originals = (record for id in found if isinstance(record := records[id], Episode) and not record.sources)
    turns = sorted(_turn(record, bits) for record in originals)
    for place, newer in enumerate(turns):
        if newer.asks:
            continue
        own = found[newer.id]
        ahead = (older for older in turns[:place] if own.score <= found[older.id].score <= own.score + FAR)
        same = (older for older in ahead if _is_same(older, newer) and not _is_of_another(older, newer, wanted, bits))
        above = max((found[older.id].score for older in same), default=None)
        if above is not None:
            score = above + _STEP
            found[own.id] = Ranked(own.id, score, {**own.why, "newer": score - own.score})
    return [*sorted(found.values(), key=lambda r: (-r.score, r.id)), *ranked[TOP:]]


def _words(text: str, bits: dict[str, int]) -> int:
    """The words of a text as a bit set: one bit per word, numbered in `bits`.

    Sets of up to 20 texts are compared in pairs; `&` and bit_count() on integers are many times faster than sets.
    """
    places = [bits.setdefault(word, len(bits)) for word in query_terms(text)]
    flags = bytearray(len(bits) // 8 + 1)
    for place in places:
        flags[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(flags, "little")


def _turn(episode: Episode, bits: dict[str, int]) -> _RankedTurn:
    # At equal times the order of arrival decides, which is the order of ids.
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


def _is_of_another(older: _RankedTurn, newer: _RankedTurn, wanted: int, bits: dict[str, int]) -> bool:
    """Whether the later turn lacks a name or number of the question that the earlier one has."""
    missing = older.words & wanted & ~newer.words
    if not missing:
        return False
    names = " ".join(word for word in older.text.split() if word != word.lower() or _DIGIT.search(word))
    return bool(missing & _words(names, bits))
