"""Standing instructions, candidates that wait for confirmation, and the profile: what is shown in every turn.

They are facts with predicates of their own, and only the user's own words count: a tool, a document or another speaker
can neither add nor retire one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Final

from loom.core.checks import MAX_INSTRUCTION
from loom.core.clock import TICK, RecordIds
from loom.core.filter import And, In
from loom.core.record import Claim, Episode, Fact, Provenance, Record, WorkingBlock, latest_of
from loom.errors import NotFound, UsageError
from loom.memory._facts.entities import USER, Aliases, cardinality_of, normalise, predicate_key
from loom.memory._facts.facts import Segment, Statement, moment, statements_of, timeline
from loom.memory._shared import ARE_CURRENT, FILE, UNCONFIRMED, is_candidate, later_than
from loom.memory._write.phrases import LANGUAGE, LazyPattern
from loom.memory._write.wishes import (
    INSTRUCTION,
    acts_unasked,
    language_ordered,
    looks_pasted,
    releases_in,
    wishes_in,
)
from loom.text.fence import fenced, in_brackets, one_line, plain_text
from loom.text.tokens import EstimateCounter
from loom.text.words import query_terms

# Candidate instructions that wait for confirmation, and the topics of instructions.
#
# A candidate is a fact with the predicate `unconfirmed`. standing() lists it; no prompt, profile or recall shows it. It
# is forgotten with the episodes it was found in.

# Topics of instructions, and which instructions contradict each other: pure rules over their words.
#
# Two instructions on one topic compete, and the later one wins. A topic with one value at a time (the language of
# answers, their length) is its own name, so any two values compete; a prohibition has the value in its name too,
# because forbidding one language says nothing about another. For every other instruction all words except `always` and
# `never` are the topic, so only its own negation competes with it.

PREFIX: Final = "instruction_"
"""Prefix of the predicates of instructions; the topic follows."""

_LEAD: Final = LazyPattern(
    r"(?:(?P<no>never|do not|don['\u2019]?t|stop|no longer|no more|avoid|not|refrain from"
    r"|(?:you )?(?:must not|mustn['\u2019]t|should not|shouldn['\u2019]t))"
    r"|please|always|ever|kindly|just|only|so|and|but|also|from now on|going forward|from here on|in (?:the )?future"
    r"|remember(?: to| that)?|note that|make sure (?:to|that you|you)|be sure to"
    r"|(?:can|could|would|will) you|pls|plz"
    r"|you (?:should|must|need to|have to|can|may)|i(?:['\u2019]d| would)? (?:want|like|need) you to)\b[,:]?\s*",
    re.IGNORECASE,
)
_TRAIL: Final = LazyPattern(
    r"[,\s](?:please|pls|plz|any ?more|again|ever|at all|from now on|going forward|in (?:the )?future)$", re.IGNORECASE
)
_LONGEST_TRAIL: Final = len(" in the future")
_SAYS: Final = r"(?:answer|reply|respond|speak|talk|write|communicate)(?:ing)?"
_SAID: Final = r"(?:it|them|(?:your |the |all )*(?:answers|replies|responses|messages|explanations))"
_MAKES: Final = rf"(?:be|keep {_SAID}|make {_SAID}|give me|give|write|use|{_SAYS})"
_SHORT: Final = r"(?:short|brief|concise|terse|succinct|to the point)"
_LONG: Final = r"(?:long|detailed|thorough|verbose|in-depth|lengthy)"
_VALUED: Final = tuple(
    (name, LazyPattern(pattern, re.IGNORECASE))
    for name, pattern in (
        ("language", rf"(?:{_SAYS}\b(?: \w+){{0,3}} in|us(?:e|ing)|speak(?:ing)?) (?P<value>{LANGUAGE})(?: {_SAID})?"),
        ("length", rf"{_MAKES}(?: \w+)? (?:(?P<short>{_SHORT})|(?P<long>{_LONG}))(?: {_SAID})?"),
        ("units", r"us(?:e|ing) (?:the )?(?P<value>metric|imperial)(?: \w+)?"),
        ("temperature", r"(?:use|give \w+ in|show \w+ in|convert \w+ to) (?:degrees )?(?P<value>celsius|fahrenheit)"),
        ("tone", r"(?:be (?:more )?|use an? )(?P<value>formal|informal|casual)(?: (?:tone|language|style))?"),
        ("name", r"(?:call|address)(?:ing)? me (?:as )?(?-i:(?P<value>[A-Z][\w'-]*(?: [A-Z][\w'-]*)*))"),
    )
)
_UNWANTED: Final = LazyPattern(r"no (?P<what>.+)", re.IGNORECASE)
"""`No bullet points`, which says the same as never to use them."""
_BOUND: Final = LazyPattern(r"^(?=.+\Z)(?P<what>.+ (?:before|after|until|later than|earlier than)) \d.*", re.IGNORECASE)
"""An instruction with a time or number as bound: another bound replaces it."""
_CHOICE: Final = LazyPattern(r"^(?=.+\Z)(?P<this>.+?) (?:over|to|rather than|instead of) (?P<that>.+)", re.IGNORECASE)
_ALTERNATIVES: Final = (
    "dark light",
    "tea coffee espresso cappuccino latte matcha cocoa decaf",
    "beer wine cider",
    "red white rose",
    "window aisle middle",
    "email emails mail phone call calls text texts sms chat slack video letter",
    "metric imperial",
    "celsius fahrenheit",
    "tabs spaces",
    "vim neovim emacs nano vscode code pycharm intellij sublime zed",
    "chrome firefox safari edge brave",
    "mac macos windows linux",
    "android iphone ios",
    "morning mornings afternoon afternoons evening evenings night nights",
    "train trains plane planes flying car driving bus buses bike cycling",
    "short long brief detailed concise verbose",
    "formal informal casual",
    "summer winter spring autumn fall",
    "hot cold iced warm",
    "sweet savoury savory salty",
    "cat cats dog dogs",
    "paper digital ebook ebooks",
    "card cash",
)
"""Groups of which people prefer one. Words that can both be preferred are not listed."""


@cache
def _alternatives() -> tuple[frozenset[str], ...]:
    """The terms of each group."""
    return tuple(frozenset(query_terms(group)) for group in _ALTERNATIVES)


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic of an instruction. `value` is set if the topic takes one value at a time."""

    name: str
    value: str | None
    is_forbidden: bool

    @property
    def predicate(self) -> str:
        """The predicate under which the instruction competes with others."""
        return f"{PREFIX}{self.name}" + (f"_not_{self.value}" if self.value and self.is_forbidden else "")


def topic_of(text: str) -> Topic | None:
    """The topic of an instruction; None if it has no words."""
    action, is_forbidden = " ".join(text.split()).strip(" .!?,;:"), False
    start, end = 0, len(action)
    while lead := _LEAD.compiled.match(action, start):
        is_forbidden ^= lead["no"] is not None
        start = lead.end()
    while trail := _TRAIL.compiled.search(action, max(start, end - _LONGEST_TRAIL), end):
        end = trail.start()
        while end > start and action[end - 1] in " ,":
            end -= 1
    action = action[start:end]
    if unwanted := _UNWANTED.fullmatch(action):
        action, is_forbidden = f"use {unwanted['what']}", not is_forbidden
    for name, pattern in _VALUED:
        if found := pattern.fullmatch(action):
            groups = {key: value for key, value in found.groupdict().items() if value}
            ((key, value),) = groups.items()
            return Topic(name, value.casefold() if key == "value" else key, is_forbidden)
    if language := language_ordered(action):
        return Topic("language", language, is_forbidden)
    bound = _BOUND.fullmatch(action)
    words = (*query_terms(bound["what"]), bound["what"].split()[-1].lower()) if bound else query_terms(action)
    return Topic("_".join(words), None, is_forbidden) if words else None


def contradict(one: str, other: str) -> bool:
    """Whether two instructions with different predicates conflict: one forbids what the other demands."""
    first, second = topic_of(one), topic_of(other)
    return (
        first is not None
        and second is not None
        and first.value is not None
        and (first.name, first.value) == (second.name, second.value)
        and first.is_forbidden != second.is_forbidden
    )


def compete(one: str, other: str, *, changed: bool = False) -> bool:
    """Whether two preferences, or two things in use, exclude each other, so that the later one replaces the other.

    They do if they are alternatives, or two versions of one thing. If the text says that something changed, being of
    one kind is enough: dark mode and sepia mode.
    """
    (first, beside), (second, besides) = _choice(one), _choice(other)
    if first == second:
        return False
    if first == besides or beside == second:
        return True
    only, only_other = set(first) - set(second), set(second) - set(first)
    if not only or not only_other:
        return False
    if any(only <= group and only_other <= group for group in _alternatives()):
        return True
    is_version = all(word.isdigit() for word in only | only_other)
    is_kind = changed and first[-1:] == second[-1:] and max(len(only), len(only_other)) <= 2
    return is_kind or (is_version and first[:1] == second[:1])


def _choice(text: str) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The terms of what is preferred, and of what it is preferred to."""
    found = _CHOICE.fullmatch(text)
    return (query_terms(found["this"]), query_terms(found["that"])) if found else (query_terms(text), None)


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
    then that of the message, not the extractor's. The same holds for taking one back. A preference is accepted unless a
    message looks pasted.
    """
    if not is_instruction_claim(claim):
        return None if any(looks_pasted(episode.text) for episode in episodes) else claim
    if len(claim.object) > MAX_INSTRUCTION or (topic := topic_of(claim.object)) is None:
        return None
    stated = releases_in if claim.retracts else wishes_in
    own = (text for episode in episodes for text in stated(episode.text) if topic_of(text) == topic)
    text = next(own, None)
    return None if text is None else replace(claim, object=text)


def candidate_text(claim: Claim) -> str | None:
    """The text of a claim as a candidate; None if there is nothing to confirm, such as a claim that only ends one."""
    text = one_line(_text_of(claim))
    is_over = claim.retracts or (claim.valid_from is None and claim.valid_until is not None)
    is_wrong = is_over or acts_unasked(text) or len(text) > MAX_INSTRUCTION
    return None if is_wrong or topic_of(text) is None else text


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


NOT_A_WISH = "nothing waits for the user: it stands already, says nothing lasting, or asks to act without asking"
"""Why an instruction that was proposed became no candidate."""


def proposed(episode: Episode, known: Sequence[Fact], *, now: datetime, ids: RecordIds) -> list[Fact]:
    """The candidate for an instruction that somebody says the user wishes; none if it is one to act without asking."""
    claim = Claim(subject=USER, predicate=INSTRUCTION, object=episode.text, sources=(episode.id,), valid_from=now)
    text = candidate_text(claim)
    return [] if text is None else list(candidate_facts([(text, claim)], known, (), now=now, ids=ids))


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
    waiting: tuple[Unconfirmed, ...] = ()
    """What it became if it waits for the user: confirm() takes the id."""
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


def may_replace(new: Fact, old: Fact) -> bool:
    """Whether one standing statement contradicts an older one, so that it may have taken its place."""
    if predicate_key(new.predicate) == predicate_key(old.predicate) != "prefers":
        return cardinality_of(new.predicate, new.cardinality) == "single"
    if new.predicate.startswith(PREFIX) and old.predicate.startswith(PREFIX):
        return contradict(new.object, old.object)
    both = predicate_key(new.predicate) == predicate_key(old.predicate)
    return both and compete(new.object, old.object, changed=True)


def standing_segments(facts: Iterable[Fact]) -> list[Segment]:
    """The user's own standing statements over all time, those that ended included."""
    return _segments(facts, now=None)


def item_text(fact: Fact) -> str:
    """A standing statement as it is shown."""
    label = "" if fact.predicate.startswith(PREFIX) else f"{fact.predicate.replace('_', ' ')}: "
    return label + fact.object


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
    return StandingItem(
        id=last.id,
        topic=last.predicate,
        text=item_text(last),
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


OF_PROFILE: Final = And(In("kind", ("fact", "block")), ARE_CURRENT)
"""The records that a profile is made of."""


def profile_of(records: Sequence[Record], *, standing_tokens: int, now: datetime) -> Profile:
    """The profile that facts and blocks make."""
    facts = [record for record in records if isinstance(record, Fact)]
    standing = fit_budget([fact for fact in facts if fact.subject == USER], standing_tokens, now=now)
    now = later_than(latest_of(facts), now)
    return Profile(
        standing=replace(standing, unconfirmed=()),
        facts=grouped(fact for fact in facts if not is_candidate(fact) and fact.is_current(now, now)),
        blocks=shown_blocks(records),
    )


def shown_blocks(records: Iterable[Record]) -> tuple[WorkingBlock, ...]:
    """The pinned blocks among some records; files of the memory tool are none."""
    return tuple(r for r in records if isinstance(r, WorkingBlock) and not r.name.startswith(FILE))


@dataclass(frozen=True, slots=True)
class Overview:
    """What every turn is shown of a user, as of `epoch`: the profile, and recent turns of other conversations."""

    epoch: str
    profile: Profile
    recent: tuple[Episode, ...]


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
