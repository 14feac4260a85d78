"""What a claim closes beside what it states: what it takes back, its opposite, and what it stands in the place of.

Everything is closed as a newer statement would close it, by an ending: the fact is true until then, believed until
now, and stays in the history. A claim that takes back what is not known closes nothing and leaves nothing.
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
"""Predicates of several values where two versions of one thing, or two alternatives, take turns."""
_NAMED_IN_SHORT: Final = frozenset({"works_at", "works_as", "lives_in", "drives", "owns", "has_pet"})
"""Predicates whose object is often taken back by a part of its name: the Honda, of a 2018 Honda Civic."""


def predicates_of(claim: Claim) -> Iterator[str]:
    """The predicates whose facts a claim may touch."""
    key = predicate_key(claim.predicate)
    yield key
    if key in _OPPOSITES:
        yield _OPPOSITES[key]


def expand_claim(
    claim: Claim, facts: Iterable[Fact], *, now: datetime, provenance: Provenance, aliases: Aliases
) -> list[Claim]:
    """The claims to assert for a claim, one after the other: the ends of what it closes, and itself if it states."""
    known = [fact for fact in facts if _may_touch(fact, provenance)]
    if claim.retracts:
        return list(_taken_back(claim, known, now, aliases))
    if claim.valid_from is None and claim.valid_until is not None:
        return [_as_known(claim, known, now, aliases)]
    closed = [*_opposite(claim, known, now, aliases), *_replaced(claim, known, now, aliases)]
    return [*closed, *(end_conflicts(claim, facts, now=now) if is_standing(claim) else [claim])]


def after_ending(claim: Claim, now: datetime) -> datetime:
    """When a claim is believed: now, or the moment after, where it closes what began just now.

    Who reads later asks for a time behind all that is stored, and finds it closed, also where the clock stands still.
    """
    until = claim.valid_until if claim.valid_from is None else None
    return until if until is not None and now < until <= now + TICK else now


def _may_touch(fact: Fact, provenance: Provenance) -> bool:
    """Only the user takes back what the user said."""
    return provenance.origin == "user" or fact.provenance.origin != "user"


def _taken_back(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Iterator[Claim]:
    at = claim.valid_from or claim.valid_until or now
    until = min(claim.valid_until or at, at)
    for segment in _holding(claim, facts, at, aliases):
        if not claim.object or _is_named(claim, segment.by[-1].fact):
            yield _ending(claim, segment, until)


def _as_known(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Claim:
    """An ending under the name that what it ends is known by."""
    named = (s.by[-1].fact for s in _holding(claim, facts, now, aliases) if _is_named(claim, s.by[-1].fact))
    fact = next(named, None)
    return claim if fact is None else replace(claim, object=fact.object)


def _opposite(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Iterator[Claim]:
    other = _OPPOSITES.get(predicate_key(claim.predicate))
    if other is not None:
        over = replace(claim, predicate=other, retracts=True, valid_until=None)
        yield from _taken_back(over, facts, now, aliases)


def _replaced(claim: Claim, facts: list[Fact], now: datetime, aliases: Aliases) -> Iterator[Claim]:
    if predicate_key(claim.predicate) in _COMPETING:
        at = claim.valid_from or now
        for segment in _holding(claim, facts, at, aliases):
            if compete(claim.object, segment.by[-1].fact.object, changed=claim.changes):
                yield _ending(claim, segment, at)


def _holding(claim: Claim, facts: list[Fact], at: datetime, aliases: Aliases) -> list[Segment]:
    """What holds in the slot of a claim when it is made."""
    slot = slot_of(claim, aliases)
    segments = timeline(statements_of(fact for fact in facts if slot_of(fact, aliases) == slot))
    return [s for s in segments if (moment(s.start) or at) <= at and (s.end == FOREVER or (moment(s.end) or at) > at)]


def _is_named(claim: Claim, fact: Fact) -> bool:
    """Whether a claim means the object of a fact."""
    said, known = set(query_terms(claim.object)), set(query_terms(fact.object))
    return said == known or (said < known and predicate_key(claim.predicate) in _NAMED_IN_SHORT)


def _ending(claim: Claim, segment: Segment, until: datetime) -> Claim:
    """The claim that a segment is over; what began at that very moment holds for as short as can be told."""
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
