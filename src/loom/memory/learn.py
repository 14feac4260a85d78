"""Learning: what episodes state becomes facts, checked against what is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from loom.core.clock import Clock
from loom.core.filter import Eq, In
from loom.core.heavy import off_loop
from loom.core.ids import RecordIds
from loom.core.plain import one_line
from loom.core.record import Episode, Fact, Provenance
from loom.core.scope import Scope
from loom.memory.candidates import UNCONFIRMED, candidate_facts, candidate_text, is_candidate, in_user_words
from loom.memory.entities import USER, Aliases, normalise, predicate_key
from loom.memory.extract.instructions import INSTRUCTION
from loom.memory.extract.rules import RuleExtractor, sentences
from loom.memory.facts import assert_claim, resettle
from loom.memory.guarded import retry_stale
from loom.memory.halves import role_of
from loom.memory.listing import every_fact
from loom.memory.neighbours import Store
from loom.memory.retraction import after_ending, predicates_of, expand_claim
from loom.memory.standing import StandingItem, is_standing, provenance_of, under_topic, standing_items
from loom.memory.times import later_than, latest_of
from loom.memory.topics import PREFIX
from loom.protocols.extractor import Claim, Extractor

_FACT = 100
"""How many characters of text take as long as comparing one fact."""
_NAMING = ("also_called", "name")
"""Predicates whose facts say that two names are one entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnResult:
    """Facts to write, all together, and what stands before and after them.

    `waiting` are the wishes among what was heard that the user has to confirm; they are written, too.
    """

    facts: tuple[Fact, ...] = ()
    before: tuple[StandingItem, ...] = ()
    after: tuple[StandingItem, ...] = ()
    waiting: tuple[Fact, ...] = ()
    importance: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """How important the episodes are that a claim calls so, by id."""

    @property
    def retired(self) -> tuple[StandingItem, ...]:
        """What no longer stands."""
        return _only(self.before, self.after)

    @property
    def instruction_notes(self) -> tuple[str, ...]:
        """Which instructions stand from now on and which wait, in words, and how to take that back."""
        new = [item for item in _only(self.after, self.before) if item.topic.startswith(PREFIX)]
        stands = [f"learnt as a standing instruction: {i.text!r}; memory.reject({i.id!r}) takes it back" for i in new]
        asks = "waits for confirmation: {!r}; memory.confirm({!r}) makes it stand, memory.reject({!r}) drops it"
        return (*stands, *(asks.format(fact.object, fact.id, fact.id) for fact in self.waiting))

    @property
    def notes(self) -> tuple[str, ...]:
        """What no longer stands, and because of what, in words."""
        because = ", ".join(repr(item.text) for item in _only(self.after, self.before))
        said = f"{because} was said later" if because else "the user said that it is over"
        return tuple(f"{item.text!r} no longer stands: {said}" for item in self.retired)


class Learner:
    """Finds claims and decides what they change. What they decide others write; settle() alone writes."""

    def __init__(self, store: Store, extractor: Extractor | None, *, clock: Clock, ids: RecordIds) -> None:
        self._store = store
        self._extractor = extractor
        self._clock = clock
        self._ids = ids
        self._rules = RuleExtractor()

    async def read(self, episodes: Sequence[Episode]) -> Sequence[Claim]:
        """What episodes state. A model may be asked, so it can take a while."""
        if self._extractor is None or not episodes:
            return ()
        return (await self._extractor.extract(episodes)).claims

    async def learn(self, scope: Scope, episodes: Sequence[Episode], claims: Sequence[Claim]) -> LearnResult:
        """The facts that claims of these episodes become; what claims an episode that is not among them is left out."""
        there = {episode.id: episode for episode in episodes}
        ready: list[tuple[Claim, Provenance]] = []
        waiting: list[tuple[str, Claim]] = []
        for said in claims:
            if not there.keys() >= set(said.sources) or not _is_sayable(said):
                continue
            sources = [there[id] for id in said.sources]
            claim, provenance = _of_speaker(said, sources), provenance_of(sources)
            if not is_standing(claim) or provenance.origin != "user":
                ready.append((claim, provenance))
            elif (own := in_user_words(claim, sources)) is not None:
                ready.append((own, provenance))
            elif (text := candidate_text(claim)) is not None:
                waiting.append((text, claim))
        learnt = await self.apply_claims(scope, ready, episodes=episodes)
        if important := _importance(claims, there):
            learnt = replace(learnt, importance=important)
        return replace(learnt, waiting=await self._candidates(scope, waiting, learnt)) if waiting else learnt

    async def read_instruction(self, scope: Scope, episode: Episode) -> LearnResult:
        """The facts of an instruction: each of its sentences stands, whether or not a rule knows its form."""
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
        """What claims change, given where each comes from, and the episodes that all of them were learnt from."""
        wanted = [(made, origin) for claim, origin in claims if (made := under_topic(claim, origin)) is not None]
        if not wanted:
            return LearnResult()
        known = await self._known(scope, [claim for claim, _ in wanted])
        now = later_than(latest_of([*known.values(), *episodes]), self._clock.now())
        size = _FACT * (len(known) + len(wanted)) * len(wanted)
        return await off_loop(size, partial(self._decided, wanted, known, now))

    def _decided(
        self, wanted: Sequence[tuple[Claim, Provenance]], known: dict[str, Fact], now: datetime
    ) -> LearnResult:
        """What claims change in what is known, one after the other."""
        before = standing_items(known.values(), now=now)
        written: dict[str, Fact] = {}
        for claim, provenance in wanted:
            aliases = Aliases.of(f for f in known.values() if f.predicate in _NAMING)
            for made in expand_claim(claim, list(known.values()), now=now, provenance=provenance, aliases=aliases):
                aliases = Aliases.of(f for f in known.values() if f.predicate in _NAMING)
                now = after_ending(made, now)
                change = assert_claim(
                    list(known.values()), made, now=now, ids=self._ids, provenance=provenance, aliases=aliases
                )
                written.update({fact.id: fact for fact in change.put})
                known.update(written)
        return LearnResult(facts=tuple(written.values()), before=before, after=standing_items(known.values(), now=now))

    async def _candidates(
        self, scope: Scope, found: Sequence[tuple[str, Claim]], learnt: LearnResult
    ) -> tuple[Fact, ...]:
        """The candidates to write for wishes that may be somebody else's words."""
        facts = await every_fact(self._store, scope, Eq("subject", USER))
        known = [fact for fact in facts if is_candidate(fact) or is_standing(fact)]
        return tuple(candidate_facts(found, known, learnt.facts, now=self._clock.now(), ids=self._ids))

    async def settle(self, scope: Scope, written: Sequence[Fact]) -> None:
        """Put right what another process decided at the same time, after facts were written.

        Whoever writes last sees what both wrote, and what all statements add up to does not depend on their order.
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
        """The facts that claims may touch: those of their predicates, those that name things, and what stands."""
        predicates = tuple(dict.fromkeys([*_NAMING, *(key for claim in claims for key in predicates_of(claim))]))
        found = await every_fact(self._store, scope, In("predicate", predicates))
        if any(is_standing(claim) for claim in claims):
            found += [f for f in await every_fact(self._store, scope, Eq("subject", USER)) if is_standing(f)]
        return {fact.id: fact for fact in found}


def _of_speaker(claim: Claim, episodes: Sequence[Episode]) -> Claim:
    """A claim about the user that somebody else made is about that person: a model may take `I` for the user."""
    speakers = {episode.speaker for episode in episodes if role_of(episode) is None}
    if len(speakers) != 1 or not all(role_of(episode) is None for episode in episodes):
        return claim
    (name,) = speakers
    return replace(claim, subject=name) if name and normalise(claim.subject) == USER else claim


def _importance(claims: Sequence[Claim], there: Mapping[str, Episode]) -> dict[str, float]:
    """How important each episode is by the most important of its claims."""
    found: dict[str, float] = {}
    for claim in claims:
        for id in claim.sources if claim.importance else ():
            if id in there:
                found[id] = max(found.get(id, 0.0), claim.importance)
    return found


def _is_sayable(claim: Claim) -> bool:
    """Whether a claim says something that can be shown, under a predicate that is free to use."""
    parts = (claim.subject, claim.predicate, *((claim.object,) if claim.object or not claim.retracts else ()))
    is_shown = all(one_line(part) for part in parts)
    return is_shown and predicate_key(claim.predicate) != UNCONFIRMED


def _only(items: Sequence[StandingItem], others: Sequence[StandingItem]) -> tuple[StandingItem, ...]:
    """The items that are not among the others."""
    there = {(item.topic, item.text) for item in others}
    return tuple(item for item in items if (item.topic, item.text) not in there)
