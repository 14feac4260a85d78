"""Standing instructions and the profile: what is shown in every turn.

They are facts with predicates of their own, and only the user's own words count: a tool, a document or another speaker
can neither add nor retire one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Final

from loom.core.clock import TICK
from loom.core.record import Claim, Episode, Fact, Provenance, WorkingBlock
from loom.errors import UsageError
from loom.memory._facts.candidates import (
    PREFERENCES,
    PREFIX,
    Unconfirmed,
    compete,
    contradict,
    is_instruction_claim,
    topic_of,
    unconfirmed_items,
)
from loom.memory._facts.entities import USER, Aliases, normalise, predicate_key
from loom.memory._facts.facts import Segment, Statement, moment, statements_of, timeline
from loom.memory._shared import UNCONFIRMED, is_candidate, later_than, latest_of
from loom.memory._write.wishes import acts_unasked
from loom.text.fence import fenced, in_brackets, one_line, plain_text
from loom.text.tokens import EstimateCounter

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


def is_refused(claim: Claim, provenance: Provenance) -> bool:
    """Whether a standing claim is to act without asking, and the caller does not vouch for its source.

    Who can put such a sentence into a conversation can make an agent pay, send or delete; so trust has to be given.
    """
    is_over = claim.retracts or (claim.valid_from is None and claim.valid_until is not None)
    return not (provenance.trusted or is_over) and is_standing(claim) and acts_unasked(claim.object)


def under_topic(claim: Claim, provenance: Provenance) -> Claim | None:
    """The claim with its topic as predicate, so that it competes with others; None if it may not be a standing one."""
    if predicate_key(claim.predicate) == UNCONFIRMED:
        raise UsageError(f"the predicate {UNCONFIRMED!r} is reserved for unconfirmed instructions; use another one")
    if is_refused(claim, provenance):
        return None
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


# A user's profile: standing instructions, facts and pinned blocks, as text for a prompt.

STANDING = "Standing preferences and instructions of the user"
FACTS = "Known facts"
PINNED = "Pinned"
_NAME = 120
"""Maximum characters shown of a speaker, a subject, a predicate or a block name."""
GroupedFacts = Mapping[str, Mapping[str, tuple[Fact, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a prompt shows of a user in every turn.

    `facts` are the current facts by subject, then by predicate, standing ones included. `str()` is fenced text for a
    prompt: it contains no time, id or count, so it stays the same until its content changes, and no stored text can
    close its fence or begin a line of its own.
    """

    standing: Standing
    facts: GroupedFacts = field(default_factory=dict[str, Mapping[str, tuple[Fact, ...]]], hash=False)
    blocks: tuple[WorkingBlock, ...] = ()

    def __str__(self) -> str:
        body = "\n\n".join("\n".join([f"{title}:", *lines]) for title, lines in self.groups().items())
        return fenced("memory", body) if body else ""

    def groups(self) -> dict[str, list[str]]:
        """The lines of the text by title; a title without lines is left out."""
        pinned: dict[str, list[str]] = {}
        for block in self.blocks:
            pinned.setdefault(_title(block), []).extend(_indented(block.text))
        standing = [f"- {text}" for item in self.standing.items if (text := one_line(item.text))]
        found = {STANDING: standing, FACTS: self._fact_lines(), **pinned}
        return {title: lines for title, lines in found.items() if lines}

    def _fact_lines(self) -> list[str]:
        lines: list[str] = []
        for subject, predicates in self.facts.items():
            for predicate, facts in predicates.items():
                objects = [one_line(fact.object) for fact in facts if not is_standing(fact)]
                if objects := [object for object in objects if object]:
                    about = f"{one_line(subject, _NAME)} {one_line(predicate.replace('_', ' '), _NAME)}"
                    lines.append(f"- {about}: {', '.join(objects)}")
        return lines


def said_by(episode: Episode) -> str:
    """The speaker as a prompt names it; empty for the user, and for records derived from several."""
    if episode.speaker is None:
        origin = episode.provenance.origin
        return origin if origin in ("tool", "file", "web") else ""
    return "" if episode.speaker == "user" else in_brackets(episode.speaker, _NAME) or "someone"


def grouped(facts: Iterable[Fact]) -> dict[str, dict[str, tuple[Fact, ...]]]:
    """Facts by subject and predicate; all names of one entity are one subject, under the first spelling."""
    current = sorted(facts, key=lambda f: f.id)
    aliases = Aliases.of(current)
    spelled: dict[str, str] = {}
    found: dict[str, dict[str, tuple[Fact, ...]]] = {}
    for fact in current:
        subject = spelled.setdefault(aliases.key(fact.subject), fact.subject)
        predicates = found.setdefault(subject, {})
        predicate = predicate_key(fact.predicate)
        predicates[predicate] = (*predicates.get(predicate, ()), fact)
    return found


def _title(block: WorkingBlock) -> str:
    """The title of a pinned block, with its author unless that is the user or the operator."""
    origin = block.provenance.origin
    writer = "" if origin in ("user", "operator") else f" by {'the assistant' if origin == 'assistant' else origin}"
    return f"{PINNED}{writer}: {one_line(block.name, _NAME)}"


def _indented(text: str) -> list[str]:
    plain = plain_text(text)
    return [f"  {line}" for line in plain.splitlines()] if plain.strip() else []
