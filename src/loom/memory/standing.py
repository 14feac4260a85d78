"""Standing preferences and instructions: shown in every turn until the user changes or ends them.

They are facts with predicates of their own, and only the user's own words count: a tool, a document or another speaker
can neither add nor retire one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Final

from loom.core.clock import TICK
from loom.core.record import Episode, Fact, Provenance
from loom.errors import UsageError
from loom.memory.candidates import (
    PREFERENCES,
    UNCONFIRMED,
    Unconfirmed,
    is_candidate,
    is_instruction_claim,
    unconfirmed_items,
)
from loom.memory.entities import USER, normalise, predicate_key
from loom.memory.facts import statements_of
from loom.memory.timeline import Segment, Statement, moment, timeline
from loom.memory.times import later_than, latest_of
from loom.memory.topics import PREFIX, compete, contradict, topic_of
from loom.protocols.extractor import Claim
from loom.tokens import EstimateCounter

_OWN: Final = "user"
"""The origin of the user's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingItem:
    """A standing preference or instruction. `version` counts the statements about its topic so far."""

    id: str
    """Id of the fact that holds it."""
    topic: str
    text: str
    since: datetime | None
    version: int
    sources: tuple[str, ...]
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The standing preferences and instructions, newest first, and those left out to stay within the token budget.

    `version` rises with every new and every retired one. `unconfirmed` are those that wait for the user, newest first;
    no prompt shows them.
    """

    items: tuple[StandingItem, ...]
    left_out: tuple[StandingItem, ...] = ()
    tokens: int = 0
    version: int = 0
    unconfirmed: tuple[Unconfirmed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructed:
    """The result of an instruction: what it became, and what it retired."""

    kept: tuple[StandingItem, ...]
    retired: tuple[StandingItem, ...]
    episode: Episode
    """The instruction as it was given."""
    notes: tuple[str, ...] = ()


def is_standing(fact: Fact | Claim) -> bool:
    """Whether a fact or a claim is a preference of, or an instruction by, the user."""
    is_about = predicate_key(fact.predicate) in PREFERENCES or is_instruction_claim(fact)
    return is_about and normalise(fact.subject) == USER


def provenance_of(episodes: Iterable[Episode]) -> Provenance:
    """The provenance of a claim from these episodes: the user, only if all of them are the user's own words.

    Only the role `user` counts: a speaker called `me` or `The User` is another person with that name.
    """
    parts = list(episodes)
    is_own = all(e.provenance.origin == _OWN and (e.speaker or USER).casefold() == USER for e in parts)
    made = Provenance.derived([e.provenance for e in parts])
    return replace(made, origin=_OWN) if is_own else made


def under_topic(claim: Claim, provenance: Provenance) -> Claim | None:
    """The claim with its topic as predicate, so that it competes with others; None for an instruction by others."""
    if predicate_key(claim.predicate) == UNCONFIRMED:
        raise UsageError(f"the predicate {UNCONFIRMED!r} is reserved for unconfirmed instructions; use another one")
    if is_instruction_claim(claim):
        topic = topic_of(claim.object)
        if provenance.origin != _OWN or normalise(claim.subject) != USER or topic is None:
            return None
        return replace(claim, subject=USER, predicate=topic.predicate, cardinality="single")
    return replace(claim, subject=USER) if is_standing(claim) else claim


def end_conflicts(claim: Claim, facts: Iterable[Fact], *, now: datetime) -> list[Claim]:
    """The claim, after claims that end what it contradicts under another predicate or object.

    If the contradicting statement is the later one, the claim itself ends there.
    """
    if claim.valid_from is None and claim.valid_until is not None:
        return [claim]
    start = claim.valid_from or now
    endings: list[Claim] = []
    for segment in _segments(facts, now=None):
        fact = segment.by[-1].fact
        if not _conflict(claim, fact):
            continue
        begun = moment(segment.start) or start
        if begun > start:
            claim = replace(claim, valid_from=start, valid_until=min(begun, claim.valid_until or begun))
        elif moment(segment.end) is None:
            over = replace(claim, predicate=fact.predicate, object=fact.object, cardinality=fact.cardinality)
            endings.append(replace(over, valid_from=None, valid_until=max(start, begun + TICK)))
    return [*endings, claim]


def standing_items(facts: Iterable[Fact], *, now: datetime) -> tuple[StandingItem, ...]:
    """The standing preferences and instructions at a time, newest first."""
    facts = list(facts)
    now = later_than(latest_of(facts), now)
    versions = {id: number for _, own in _slots(facts) for number, id in enumerate(_in_order(own), 1)}
    items = [_item(segment, versions) for segment in _segments(facts, now=now)]
    return tuple(sorted(items, key=lambda i: (i.since is not None, i.since, i.id), reverse=True))


def fit_budget(facts: Sequence[Fact], budget: int, *, now: datetime) -> Standing:
    """The standing items that fit the budget, newest first; one that does not fit leaves room for a shorter one."""
    counter = EstimateCounter()
    kept: list[StandingItem] = []
    left: list[StandingItem] = []
    used = 0
    for item in standing_items(facts, now=now):
        cost = counter.count(item.text)
        fits = used + cost <= budget
        (kept if fits else left).append(item)
        used += cost if fits else 0
    version = sum(1 + (f.superseded_at is not None) for f in facts if is_standing(f))
    return Standing(
        items=tuple(kept), left_out=tuple(left), tokens=used, version=version, unconfirmed=unconfirmed_items(facts)
    )


def instruction_ids(facts: Sequence[Fact], id: str) -> list[str]:
    """The ids of all statements of a standing or unconfirmed instruction, given the id of one; empty if none."""
    if any(fact.id == id and is_candidate(fact) for fact in facts):
        return [id]
    segments = ([statement.fact.id for statement in segment.by] for segment in _segments(facts, now=None))
    return next((ids for ids in segments if id in ids), list[str]())


def _conflict(claim: Claim, fact: Fact) -> bool:
    if fact.predicate.startswith(PREFIX):
        return claim.predicate.startswith(PREFIX) and contradict(claim.object, fact.object)
    both = predicate_key(claim.predicate) == predicate_key(fact.predicate) == "prefers"
    return both and compete(claim.object, fact.object, changed=claim.changes)


def _slots(facts: Iterable[Fact]) -> list[tuple[str, list[Statement]]]:
    """The user's own standing statements, by predicate."""
    own = [s for s in statements_of(facts) if is_standing(s.fact) and s.fact.provenance.origin == _OWN]
    own.sort(key=lambda s: s.fact.predicate)
    return [(predicate, list(group)) for predicate, group in groupby(own, key=lambda s: s.fact.predicate)]


def _segments(facts: Iterable[Fact], *, now: datetime | None) -> list[Segment]:
    """The timeline of the user's own standing statements: at one moment, or over all time."""
    found = [segment for _, own in _slots(facts) for segment in timeline(own)]
    return [s for s in found if now is None or _holds(s, now)]


def _holds(segment: Segment, now: datetime) -> bool:
    start, end = moment(segment.start), moment(segment.end)
    return (start is None or start <= now) and (end is None or now < end)


def _in_order(own: Sequence[Statement]) -> list[str]:
    return [s.fact.id for s in sorted(own, key=lambda s: s.order) if not s.is_ending]


def _item(segment: Segment, versions: Mapping[str, int]) -> StandingItem:
    last = segment.by[-1].fact
    label = "" if last.predicate.startswith(PREFIX) else f"{last.predicate.replace('_', ' ')}: "
    return StandingItem(
        id=last.id,
        topic=last.predicate,
        text=label + last.object,
        since=moment(segment.start),
        version=versions.get(last.id, 1),
        sources=tuple(dict.fromkeys(source for s in segment.by for source in s.fact.sources)),
        trusted=all(s.fact.provenance.trusted for s in segment.by),
    )
