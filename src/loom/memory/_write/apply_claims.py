"""Learning: claims become facts, checked against the stored ones; retractions close them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

from loom.core.clock import TICK, Clock, RecordIds
from loom.core.filter import Eq, In
from loom.core.record import Claim, Episode, Fact, Provenance, latest_of
from loom.core.scope import Scope
from loom.core.threads import off_loop
from loom.memory._facts.entities import USER, Aliases, normalise, predicate_key
from loom.memory._facts.facts import FOREVER, Segment, assert_claim, moment, resettle, slot_of, statements_of, timeline
from loom.memory._facts.instructions import (
    PREFIX,
    StandingItem,
    candidate_facts,
    candidate_text,
    compete,
    end_conflicts,
    in_user_words,
    is_refused,
    is_standing,
    provenance_of,
    standing_items,
    topic_of,
    under_topic,
)
from loom.memory._recall.rank import role_of
from loom.memory._shared import UNCONFIRMED, every_fact, is_candidate, later_than, retry_stale
from loom.memory._write.clauses import sentences
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory._write.wishes import INSTRUCTION
from loom.protocols.extractor import Extractor
from loom.protocols.memory_store import Store
from loom.text.fence import one_line
from loom.text.words import query_terms

# The facts that a claim ends: what it retracts, its opposite, and what it replaces.
#
# Each is ended by a claim of its own, as a newer statement would end it: the fact was true until then, was believed
# until now, and stays in the history. Retracting something that is not known has no effect.

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
    # Only the user can retract what the user said.
    known = [fact for fact in facts if provenance.origin == "user" or fact.provenance.origin != "user"]
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
    """Whether a claim means the object of a fact; of an instruction, its topic."""
    if fact.predicate.startswith(PREFIX):
        return topic_of(claim.object) == topic_of(fact.object)
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


_FACT = 100
"""Cost of comparing one fact, in characters of text that take as long; decides when work moves to a thread."""
_NAMING = ("also_called", "name")
"""Predicates whose facts say that two names are one entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnResult:
    """Facts to write in one transaction, and the standing instructions before and after them.

    `unconfirmed` are instructions that the user has to confirm first; they are written too.
    """

    facts: tuple[Fact, ...] = ()
    before: tuple[StandingItem, ...] = ()
    after: tuple[StandingItem, ...] = ()
    unconfirmed: tuple[Fact, ...] = ()
    refused: tuple[str, ...] = ()
    """Instructions to act without asking, from a source that is not trusted; they are not written."""
    importance: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """Importance of the episodes that a claim rates, by id."""

    @property
    def retired(self) -> tuple[StandingItem, ...]:
        """The standing instructions that these facts end."""
        return _only(self.before, self.after)

    @property
    def instruction_notes(self) -> tuple[str, ...]:
        """Notes on instructions that were learned or wait for confirmation, and how to undo that."""
        new = [item for item in _only(self.after, self.before) if item.topic.startswith(PREFIX)]
        learned = [f"learned as a standing instruction: {i.text!r}; memory.reject({i.id!r}) takes it back" for i in new]
        asks = "waits for confirmation: {!r}; memory.confirm({!r}) accepts it, memory.reject({!r}) drops it"
        return (*learned, *(asks.format(fact.object, fact.id, fact.id) for fact in self.unconfirmed))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on retired and on refused instructions, and why."""
        newer = ", ".join(repr(item.text) for item in _only(self.after, self.before))
        because = f"{newer} was said later" if newer else "the user said that it is over"
        over = tuple(f"{item.text!r} no longer stands: {because}" for item in self.retired)
        refused = "not a standing instruction: {!r} says to act without asking, which needs trusted=True"
        return (*over, *(refused.format(text) for text in self.refused))


class Learner:
    """Extracts claims and decides which facts they change. The callers write them; only settle() writes itself."""

    def __init__(self, store: Store, extractor: Extractor | None, *, clock: Clock, ids: RecordIds) -> None:
        self._store, self._extractor, self._clock, self._ids = store, extractor, clock, ids
        self._rules = RuleExtractor()

    async def read(self, episodes: Sequence[Episode]) -> Sequence[Claim]:
        """The claims of episodes. May be slow, if the extractor asks a model."""
        if self._extractor is None or not episodes:
            return ()
        return (await self._extractor.extract(episodes)).claims

    async def learn(self, scope: Scope, episodes: Sequence[Episode], claims: Sequence[Claim]) -> LearnResult:
        """The facts that these claims change. A claim with a source outside these episodes is ignored.

        Standing instructions and preferences are accepted from the user's own words only. Where the text may be
        pasted, they become candidates, which the user has to confirm.
        """
        by_id = {episode.id: episode for episode in episodes}
        accepted: list[tuple[Claim, Provenance]] = []
        waiting: list[tuple[str, Claim]] = []
        for extracted in claims:
            if not by_id.keys() >= set(extracted.sources) or not _is_valid(extracted):
                continue
            sources = [by_id[id] for id in extracted.sources]
            claim, provenance = _about_speaker(extracted, sources), provenance_of(sources)
            if not is_standing(claim) or provenance.origin != "user":
                accepted.append((claim, provenance))
            elif (own := in_user_words(claim, sources)) is not None:
                accepted.append((own, provenance))
            elif (text := candidate_text(claim)) is not None:
                waiting.append((text, claim))
        result = await self.apply_claims(scope, accepted, episodes=episodes)
        if important := _importance(claims, by_id):
            result = replace(result, importance=important)
        if not waiting:
            return result
        facts = await every_fact(self._store, scope, Eq("subject", USER))
        known = [fact for fact in facts if is_candidate(fact) or is_standing(fact)]
        unconfirmed = candidate_facts(waiting, known, result.facts, now=self._clock.now(), ids=self._ids)
        return replace(result, unconfirmed=tuple(unconfirmed))

    async def read_instruction(self, scope: Scope, episode: Episode) -> LearnResult:
        """The facts of an instruction: each of its sentences becomes one, even if no rule matches it."""
        claims: list[tuple[Claim, Provenance]] = []
        for sentence in sentences(episode.text):
            read = await self._rules.extract([replace(episode, text=sentence)])
            plain = Claim(
                subject=USER, predicate=INSTRUCTION, object=sentence, sources=(episode.id,), valid_from=episode.at
            )
            stands = [claim for claim in read.claims if is_standing(claim)]
            stands += [plain] if all(claim.retracts for claim in stands) else []
            claims += [(claim, episode.provenance) for claim in stands]
        return await self.apply_claims(scope, claims, episodes=[episode])

    async def apply_claims(
        self, scope: Scope, claims: Sequence[tuple[Claim, Provenance]], *, episodes: Sequence[Episode] = ()
    ) -> LearnResult:
        """The facts that claims change, given the origin of each, and the episodes they were all extracted from."""
        wanted = [(placed, origin) for claim, origin in claims if (placed := under_topic(claim, origin)) is not None]
        refused = tuple(claim.object for claim, origin in claims if is_refused(claim, origin))
        if not wanted:
            return LearnResult(refused=refused)
        known = await self._known(scope, [claim for claim, _ in wanted])
        now = later_than(latest_of([*known.values(), *episodes]), self._clock.now())
        size = _FACT * (len(known) + len(wanted)) * len(wanted)
        result = await off_loop(size, partial(self._decide, wanted, known, now))
        return replace(result, refused=refused) if refused else result

    def _decide(self, wanted: Sequence[tuple[Claim, Provenance]], known: dict[str, Fact], now: datetime) -> LearnResult:
        """Assert claims one after the other; `known` grows with each, so that a later claim sees the earlier ones."""
        before = standing_items(known.values(), now=now)
        written: dict[str, Fact] = {}
        for claim, provenance in wanted:
            aliases = Aliases.of(f for f in known.values() if f.predicate in _NAMING)
            for step in expand_claim(claim, list(known.values()), now=now, provenance=provenance, aliases=aliases):
                # A step may itself name an entity ("my name is ..."), so the aliases are read again before each.
                aliases = Aliases.of(f for f in known.values() if f.predicate in _NAMING)
                now = after_ending(step, now)
                change = assert_claim(
                    list(known.values()), step, now=now, ids=self._ids, provenance=provenance, aliases=aliases
                )
                written.update({fact.id: fact for fact in change.put})
                known.update(written)
        return LearnResult(facts=tuple(written.values()), before=before, after=standing_items(known.values(), now=now))

    async def settle(self, scope: Scope, written: Sequence[Fact]) -> None:
        """Resolve conflicts with what another process wrote at the same time, after facts were written.

        The last writer sees the facts of both, and the result of all statements does not depend on their order.
        """
        written = [fact for fact in written if not is_candidate(fact)]
        if not written:
            return
        predicates = tuple(dict.fromkeys([*_NAMING, *(fact.predicate for fact in written)]))

        async def attempt(epoch: str) -> None:
            known = await every_fact(self._store, scope, In("predicate", predicates))
            aliases = Aliases.of(fact for fact in known if fact.predicate in _NAMING)
            settle = partial(resettle, known, written, now=self._clock.now(), aliases=aliases)
            put = await off_loop(_FACT * len(known) * len(written), settle)
            if put:
                await self._store.write(scope.for_user(), put=put, since=epoch)

        await retry_stale(self._store, scope, attempt)

    async def _known(self, scope: Scope, claims: Sequence[Claim]) -> dict[str, Fact]:
        """The facts that claims may touch: of their predicates, names of entities, and standing instructions."""
        predicates = tuple(dict.fromkeys([*_NAMING, *(key for claim in claims for key in predicates_of(claim))]))
        found = await every_fact(self._store, scope, In("predicate", predicates))
        if any(is_standing(claim) for claim in claims):
            found += [f for f in await every_fact(self._store, scope, Eq("subject", USER)) if is_standing(f)]
        return {fact.id: fact for fact in found}


def _about_speaker(claim: Claim, episodes: Sequence[Episode]) -> Claim:
    """The claim with the speaker as subject, if another person spoke: a model may take their `I` for the user."""
    speakers = {episode.speaker for episode in episodes if role_of(episode) is None}
    if len(speakers) != 1 or not all(role_of(episode) is None for episode in episodes):
        return claim
    (name,) = speakers
    return replace(claim, subject=name) if name and normalise(claim.subject) == USER else claim


def _importance(claims: Sequence[Claim], by_id: Mapping[str, Episode]) -> dict[str, float]:
    """The importance of each episode: that of its most important claim."""
    found: dict[str, float] = {}
    for claim in claims:
        for id in claim.sources if claim.importance else ():
            if id in by_id:
                found[id] = max(found.get(id, 0.0), claim.importance)
    return found


def _is_valid(claim: Claim) -> bool:
    """Whether a claim has visible text, and a predicate that is not reserved."""
    parts = (claim.subject, claim.predicate, *((claim.object,) if claim.object or not claim.retracts else ()))
    is_shown = all(one_line(part) for part in parts)
    return is_shown and predicate_key(claim.predicate) != UNCONFIRMED


def _only(items: Sequence[StandingItem], others: Sequence[StandingItem]) -> tuple[StandingItem, ...]:
    """The items that are not among the others."""
    known = {(item.topic, item.text) for item in others}
    return tuple(item for item in items if (item.topic, item.text) not in known)
