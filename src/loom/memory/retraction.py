"""The facts that a claim ends: what it retracts, its opposite, and what it replaces.

Each is ended by a claim of its own, as a newer statement would end it: the fact was true until then, was believed until
now, and stays in the history. Retracting something that is not known has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from loom.core.clock import TICK
from loom.core.record import Fact, Provenance
from loom.core.words import query_terms
from loom.memory.entities import Aliases, predicate_key
from loom.memory.facts import slot_of, statements_of
from loom.memory.standing import end_conflicts, is_standing
from loom.memory.timeline import FOREVER, Segment, moment, timeline
from loom.memory.topics import compete
from loom.protocols.extractor import Claim

_OPPOSITES: Final = {"likes": "dislikes", "dislikes": "likes"}
_COMPETING: Final = frozenset({"uses", "runs", "runs_on", "drives", "built_with", "hosted_on", "written_in"})
"""Multi-valued predicates where two versions of one thing, or two alternatives, replace each other."""
_NAMED_IN_SHORT: Final = frozenset({"works_at", "works_as", "lives_in", "drives", "owns", "has_pet"})
"""Predicates whose object is often retracted by a part of its name: the Honda, of a 2018 Honda Civic."""


def predicates_of(claim: Claim) -> Iterator[str]:
    """The predicates whose facts a claim may touch."""
    key = predicate_key(claim.predicate)
    yield key
    if key in _OPPOSITES:
        yield _OPPOSITES[key]


def expand_claim(
    claim: Claim, facts: Iterable[Fact], *, now: datetime, provenance: Provenance, aliases: Aliases
) -> list[Claim]:
    """The claims to assert for a claim, in order: endings of what it closes, then itself, unless it only retracts.

    Endings come first, so that the new statement is compared with a slot that is already free.
    """
    known = [fact for fact in facts if _may_touch(fact, provenance)]
    if claim.retracts:
        return list(_retracted(claim, known, now, aliases))
    if claim.valid_from is None and claim.valid_until is not None:
        return [_by_known_name(claim, known, now, aliases)]
    closed = [*_opposite(claim, known, now, aliases), *_replaced(claim, known, now, aliases)]
    return [*closed, *(end_conflicts(claim, facts, now=now) if is_standing(claim) else [claim])]


def after_ending(claim: Claim, now: datetime) -> datetime:
    """The time at which a claim is recorded: now, or one tick later if it ends a fact that began just now.

    Readers ask for a time after everything that is stored, so they see the fact ended even if the clock stands still.
    """
    until = claim.valid_until if claim.valid_from is None else None
    return until if until is not None and now < until <= now + TICK else now


def _may_touch(fact: Fact, provenance: Provenance) -> bool:
    """Only the user can retract what the user said."""
    return provenance.origin == "user" or fact.provenance.origin != "user"


def _retracted(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Iterator[Claim]:
    at = claim.valid_from or claim.valid_until or now
    until = min(claim.valid_until or at, at)
    for segment in _holding(claim, facts, at, aliases):
        if not claim.object or _is_named(claim, segment.by[-1].fact):
            yield _ending(claim, segment, until)


def _by_known_name(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Claim:
    """An ending, with the object spelled as in the fact it ends."""
    named = (s.by[-1].fact for s in _holding(claim, facts, now, aliases) if _is_named(claim, s.by[-1].fact))
    fact = next(named, None)
    return claim if fact is None else replace(claim, object=fact.object)


def _opposite(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Iterator[Claim]:
    other = _OPPOSITES.get(predicate_key(claim.predicate))
    if other is not None:
        yield from _retracted(replace(claim, predicate=other, retracts=True, valid_until=None), facts, now, aliases)


def _replaced(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Iterator[Claim]:
    if predicate_key(claim.predicate) in _COMPETING:
        at = claim.valid_from or now
        for segment in _holding(claim, facts, at, aliases):
            if compete(claim.object, segment.by[-1].fact.object, changed=claim.changes):
                yield _ending(claim, segment, at)


def _holding(claim: Claim, facts: list[Fact], at: datetime, aliases: Aliases) -> list[Segment]:
    """What is true in the slot of a claim at a time."""
    slot = slot_of(claim, aliases)
    segments = timeline(statements_of(fact for fact in facts if slot_of(fact, aliases) == slot))
    return [s for s in segments if (moment(s.start) or at) <= at and (s.end == FOREVER or (moment(s.end) or at) > at)]


def _is_named(claim: Claim, fact: Fact) -> bool:
    """Whether a claim means the object of a fact."""
    terms, known = set(query_terms(claim.object)), set(query_terms(fact.object))
    return terms == known or (terms < known and predicate_key(claim.predicate) in _NAMED_IN_SHORT)


def _ending(claim: Claim, segment: Segment, until: datetime) -> Claim:
    """The claim that a segment has ended; one that began at that very moment lasts one tick, the shortest interval."""
    fact = segment.by[-1].fact
    start = moment(segment.start)
    end = until if start is None else max(until, start + TICK)
    return replace(
        claim,
        subject=fact.subject,
        predicate=fact.predicate,
        object=fact.object,
        valid_from=None,
        valid_until=end,
        cardinality=fact.cardinality,
        retracts=False,
    )
