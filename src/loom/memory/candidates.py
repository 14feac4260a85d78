"""Candidates: wishes that were found in a message but may be somebody else's words, so the user has to confirm them.

A candidate is a fact under a predicate of its own. It is listed by standing() and shown in no prompt: neither in a
profile nor among facts or recalled records. It goes with the episodes it was found in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeGuard

from loom.core.ids import RecordIds
from loom.core.limits import MAX_INSTRUCTION
from loom.core.plain import one_line
from loom.core.record import Episode, Fact, Provenance
from loom.errors import NotFound
from loom.memory.entities import USER, normalise, predicate_key
from loom.memory.extract.instructions import INSTRUCTION
from loom.memory.extract.plain_wish import looks_pasted, wishes_in
from loom.memory.topics import PREFIX, topic_of
from loom.protocols.extractor import Claim

UNCONFIRMED: Final = "unconfirmed"
"""The predicate of candidates."""
PREFERENCES: Final = frozenset({"diet", "does_not_eat", "allergic_to", "intolerant_to", "prefers", "pronouns"})
"""Facts about the user that are worth a place in every turn."""
MOST: Final = 5
"""Candidates that are kept of the episodes that are learnt from together: a pasted page may hold hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """A wish that waits: `Memory.confirm(id)` makes it stand, `Memory.reject(id)` drops it."""

    id: str
    text: str
    sources: tuple[str, ...]
    """The episodes it was found in."""
    since: datetime


def is_candidate(record: object) -> TypeGuard[Fact]:
    """Whether a record is a wish that waits for the user."""
    return isinstance(record, Fact) and record.predicate == UNCONFIRMED


def unconfirmed_items(facts: Iterable[Fact]) -> tuple[Unconfirmed, ...]:
    """The candidates among some facts, the newest first."""
    found = sorted((fact for fact in facts if is_candidate(fact)), key=lambda f: (f.recorded_at, f.id), reverse=True)
    return tuple(Unconfirmed(id=f.id, text=f.object, sources=f.sources, since=f.recorded_at) for f in found)


def is_instruction_claim(claim: Claim | Fact) -> bool:
    """Whether a claim says what the assistant has to do."""
    predicate = predicate_key(claim.predicate)
    return predicate == INSTRUCTION or predicate.startswith(PREFIX)


def in_user_words(claim: Claim, episodes: Sequence[Episode]) -> Claim | None:
    """A standing matter of the user's as the messages behind it put it; None where the user has to confirm it first.

    An instruction counts if one of the messages is nothing but wishes and this is among them; its words are then those
    of the message, whatever the extractor made of them. A preference counts unless a message looks pasted.
    """
    if not is_instruction_claim(claim):
        return None if any(looks_pasted(episode.text) for episode in episodes) else claim
    if len(claim.object) > MAX_INSTRUCTION or (topic := topic_of(claim.object)) is None:
        return None
    said = (wish for episode in episodes for wish in wishes_in(episode.text) if topic_of(wish) == topic)
    wish = next(said, None)
    return None if wish is None else replace(claim, object=wish)


def candidate_text(claim: Claim) -> str | None:
    """What a claim asks for, as a candidate shows it; None where there is nothing to confirm.

    What only says that something is over asks for nothing.
    """
    text = one_line(_text_of(claim))
    is_over = claim.retracts or (claim.valid_from is None and claim.valid_until is not None)
    return None if is_over or len(text) > MAX_INSTRUCTION or topic_of(text) is None else text


def candidate_claim(candidate: Fact, episode: Episode) -> Claim:
    """The claim that a candidate becomes when an episode confirms it."""
    label, mark, value = candidate.object.partition(": ")
    predicate = label.replace(" ", "_")
    is_preference = bool(mark) and predicate in PREFERENCES
    return Claim(
        subject=USER,
        predicate=predicate if is_preference else INSTRUCTION,
        object=value if is_preference else candidate.object,
        sources=(episode.id, *candidate.sources),
        valid_from=episode.at,
    )


def candidate_facts(
    found: Sequence[tuple[str, Claim]], known: Sequence[Fact], learnt: Sequence[Fact], *, now: datetime, ids: RecordIds
) -> Iterator[Fact]:
    """The candidates to write for what was found, up to MOST of them.

    One that waits already gets another source. What stands already, or comes from a message that was given as an
    instruction before, needs no confirmation. `learnt` are the facts that are written beside them.
    """
    waiting = {normalise(fact.object): fact for fact in known if is_candidate(fact)}
    stated = [fact for fact in (*known, *learnt) if fact.superseded_at is None and not is_candidate(fact)]
    standing = {normalise(_text_of(fact)) for fact in stated}
    given = {source for fact in known if fact.predicate.startswith(PREFIX) for source in fact.sources}
    written: dict[str, Fact] = {}
    for text, claim in found:
        key = normalise(text)
        if key in standing or not given.isdisjoint(claim.sources) or (key not in written and len(written) == MOST):
            continue
        old = written.get(key) or waiting.get(key)
        sources = tuple(dict.fromkeys((*(old.sources if old else ()), *claim.sources)))
        written[key] = replace(old, sources=sources) if old else _new(text, sources, now, ids)
    yield from (fact for key, fact in written.items() if fact != waiting.get(key))


def require_candidate(fact: object, id: str, user_id: str) -> Fact:
    """A stored record as a candidate.

    Raises:
        NotFound: there is no candidate of this id.
    """
    if not is_candidate(fact):
        raise NotFound(f"user {user_id!r} has no unconfirmed wish {id!r}; standing() lists them")
    return fact


def _text_of(claim: Claim | Fact) -> str:
    """What a standing matter says; a preference names itself in front."""
    label = "" if is_instruction_claim(claim) else f"{predicate_key(claim.predicate).replace('_', ' ')}: "
    return label + claim.object


def _new(text: str, sources: tuple[str, ...], now: datetime, ids: RecordIds) -> Fact:
    return Fact(
        id=ids.next_id(),
        subject=USER,
        predicate=UNCONFIRMED,
        object=text,
        recorded_at=now,
        provenance=Provenance("derived"),
        valid_from=now,
        cardinality="multi",
        sources=sources,
    )
