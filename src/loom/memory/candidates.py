"""Candidates: instructions and preferences found in text that the user may have pasted, so they have to confirm them.

A candidate is a fact with the predicate `unconfirmed`. standing() lists it; no prompt, profile or recall shows it. It
is forgotten with the episodes it was found in.
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
"""Predicates of facts about the user that are shown in every turn."""
MOST: Final = 5
"""Candidates per batch of episodes: a pasted page may contain hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """An instruction that waits for the user: `Memory.confirm(id)` accepts it, `Memory.reject(id)` drops it."""

    id: str
    text: str
    sources: tuple[str, ...]
    """The episodes it was found in."""
    since: datetime


def is_candidate(record: object) -> TypeGuard[Fact]:
    """Whether a record is an unconfirmed instruction or preference."""
    return isinstance(record, Fact) and record.predicate == UNCONFIRMED


def unconfirmed_items(facts: Iterable[Fact]) -> tuple[Unconfirmed, ...]:
    """The candidates among some facts, the newest first."""
    found = sorted((fact for fact in facts if is_candidate(fact)), key=lambda f: (f.recorded_at, f.id), reverse=True)
    return tuple(Unconfirmed(id=f.id, text=f.object, sources=f.sources, since=f.recorded_at) for f in found)


def is_instruction_claim(claim: Claim | Fact) -> bool:
    """Whether a claim is an instruction to the assistant."""
    predicate = predicate_key(claim.predicate)
    return predicate == INSTRUCTION or predicate.startswith(PREFIX)


def in_user_words(claim: Claim, episodes: Sequence[Episode]) -> Claim | None:
    """A standing claim in the words of the messages it comes from; None if the user has to confirm it first.

    An instruction is accepted if one of the messages consists of instructions only and contains this one; its text is
    then that of the message, not the extractor's. A preference is accepted unless a message looks pasted.
    """
    if not is_instruction_claim(claim):
        return None if any(looks_pasted(episode.text) for episode in episodes) else claim
    if len(claim.object) > MAX_INSTRUCTION or (topic := topic_of(claim.object)) is None:
        return None
    own = (text for episode in episodes for text in wishes_in(episode.text) if topic_of(text) == topic)
    text = next(own, None)
    return None if text is None else replace(claim, object=text)


def candidate_text(claim: Claim) -> str | None:
    """The text of a claim as a candidate; None if there is nothing to confirm, such as a claim that only ends one."""
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
    """The candidates to write for the claims found, at most MOST of them.

    A candidate that waits already gets another source. Instructions that are standing already, or come from a message
    that was given as an instruction, need no confirmation. `learnt` are the facts that are written with them.
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
    """The record as a candidate; raises NotFound if it is not one."""
    if not is_candidate(fact):
        raise NotFound(f"user {user_id!r} has no unconfirmed instruction {id!r}; standing() lists them")
    return fact


def _text_of(claim: Claim | Fact) -> str:
    """The text of an instruction, or of a preference with its predicate in front."""
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
