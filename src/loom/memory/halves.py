"""The two halves of an exchange: what the user said comes first, what the assistant answered where there is room.

What has to be remembered is mostly said by the user, and answers are many times longer. So within a budget of tokens
the user's half stands for the exchange, at the better of the two scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from loom.core.record import Episode, Record
from loom.memory.neighbours import POSITION
from loom.memory.rank import Ranked

Halves: TypeAlias = Literal["user", "both"]

ROLES = frozenset({"user", "assistant", "system", "tool"})
"""Speakers that are roles, not people: a question that says "user" names nobody."""


def role_of(episode: Episode) -> str | None:
    """The role of who spoke; None for a person with a name."""
    if episode.speaker is not None:
        role = episode.speaker.casefold()
        return role if role in ROLES else None
    return episode.provenance.origin if episode.provenance.origin in ROLES else None


def user_first(ranked: Sequence[Ranked], records: Mapping[str, Record]) -> list[Ranked]:
    """The ranking with each answer whose question is in it moved to the end; the question takes the better score."""
    asked = {place: id for id, record in records.items() if (place := _place(record, "user"))}
    answers: dict[str, str] = {}
    for r in ranked:
        place = _place(records[r.id], "assistant")
        if place and (user := asked.get((place[0], place[1] - 1))):
            answers[r.id] = user
    best = {user: r for r in reversed(ranked) if (user := answers.get(r.id))}
    first = [_lifted(r, best.get(r.id)) for r in ranked if r.id not in answers]
    return [*sorted(first, key=lambda r: (-r.score, r.id)), *(r for r in ranked if r.id in answers)]


def _place(record: Record, role: str) -> tuple[str, int] | None:
    """The session and the place in it of a turn that somebody in this role said."""
    if not isinstance(record, Episode) or record.session_id is None or role_of(record) != role:
        return None
    position = record.attributes.get(POSITION)
    return (record.session_id, position) if isinstance(position, int) else None


def _lifted(own: Ranked, answer: Ranked | None) -> Ranked:
    if answer is None or answer.score <= own.score:
        return own
    return Ranked(own.id, answer.score, {**own.why, "answer": answer.score - own.score})
