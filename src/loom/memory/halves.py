"""Prefers user messages over assistant replies when the token budget is tight.

Most facts are stated by the user, and replies are many times longer. So within a budget the user's message represents
the exchange, with the better of the two scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from loom.core.record import Episode, Record
from loom.memory.neighbours import POSITION
from loom.memory.rank import Ranked

Halves: TypeAlias = Literal["user", "both"]

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
