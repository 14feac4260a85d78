"""Extracting facts by rules from plain sentences.

A clause that states something (loom.memory._write.wishes) has to match a rule from its first word; what people mention
of themselves (`my sister Anna`) counts wherever it is. A message that looks pasted states nothing: its `I` may be any
person. Instructions are found in any message; whether they are accepted is decided where claims become facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from loom.core.checks import ON_LOOP, RULES_FIND, RULES_READ
from loom.core.record import Cardinality, Claim, Episode, Fact
from loom.core.threads import off_loop
from loom.memory._facts.entities import USER, normalise
from loom.memory._write.clauses import (
    LONGEST_SENTENCE,
    Ending,
    denial_in,
    endings_in,
    endings_of,
    in_one_case,
    is_change,
    is_denied,
    is_reported,
    is_role_play,
    is_text_work,
    is_unsure,
    sentences,
    stated_clauses,
    tells_of_others,
    unfolded,
    with_capitals,
    without_hesitation,
)
from loom.memory._write.phrases import (
    LEADS,
    TAIL,
    LazyPattern,
    Lead,
    Rule,
    is_liking,
    is_meant,
    objects_of,
    owned_in,
    relation_of,
)
from loom.memory._write.statements import (
    AT_WORK,
    COMPANY,
    KINSHIP,
    MENTIONED,
    MENTIONS,
    RULES,
    SUBJECT,
    matches_about,
    matches_in,
    relative_in,
    split_clauses_about,
    subject_in,
)
from loom.memory._write.wishes import (
    INSTRUCTION,
    instructions_in,
    looks_pasted,
    orders_in_others,
    releases_in,
)
from loom.protocols.extractor import Extraction
from loom.text.time_words import PAST, interval_of

_FOR_LIFE: Final = frozenset({"relation", "family", "has_children", "from", "degree"})
_MY: Final = LazyPattern(r"\b[Mm]y ")
_TOLD: Final = LazyPattern(r"(?<!I )\b(?:told|wrote|writes|asked me|texted)\b")
_LONG_AGO: Final = LazyPattern(
    r"\b(?:when I was (?:an?|little|young|\d)|as a (?:kid|child|teen\w*)|growing up|back (?:then|when)|"
    r"(?<!getting )(?<!get )used to)\b",
    re.IGNORECASE,
)
_GONE: Final = LazyPattern(
    r"^ (?:was|were|got|has been|have been) (?:stolen|totall?ed|sold|destroyed|scrapped|towed|taken)\b"
)
_SWAPPED: Final = LazyPattern(r"\b(?:upgrad|swap|switch|chang)\w* $", re.IGNORECASE)
_GIVEN_AWAY: Final = LazyPattern(
    r"\b(?:quit|left|leave|leaving|resign\w*|fired|sold|sell|selling|lost|lose|return(?:ed|ing)?|stolen|stole|"
    r"trad(?:e|ed|ing)|gave|give|giving|donat\w+|replac\w+|rid of"
    r"|exchang\w+|scrap\w*|total(?:l?ed)|borrow\w*|rent\w*)\b[^.,;]*$",
    re.IGNORECASE,
)

_SLOWER: Final = 20
"""The cost of the rules, relative to splitting a text into words."""
_SPEAKS_FOR_ITSELF: Final = frozenset({"user", "import"})
_ROLES: Final = frozenset({"assistant", "ai", "bot", "model", "system", "tool", "agent", "developer", "function"})
_WHEN_FIRST: Final = LazyPattern(rf"^(?P<when>{PAST}) (?P<rest>(?:I|i)(?:['\u2019]\w+)? .*)$")
_OF_LATE: Final = LazyPattern(
    r"^(?i:since\b|yesterday|today|(?:last|this) (?:week|month)|\w+ (?:day|week|month)s? ago)"
)
"""A recent time: what began then is still true at the time of the message. A full date only tells of the past."""

_TASTES: Final = frozenset({"likes", "dislikes"})
_NEGATIVE: Final = frozenset({"dislikes", "does_not_eat"})
"""Predicates whose statements contain a `not`."""
_ENDS: Final = LazyPattern(TAIL)
_BEHIND: Final = LazyPattern(rf"^,? (?P<when>{PAST})\b")
_LIMITS: Final = LazyPattern(r"(?:when|whenever|while|where|except|if|unless|as long as)\b", re.IGNORECASE)


class RuleExtractor:
    """An Extractor without a model, for plain statements in the first person."""

    __slots__ = ("_compiled",)

    def __init__(self) -> None:
        self._compiled = 0  # patterns that were compiled before the last call

    async def extract(self, episodes: Sequence[Episode], *, known: Sequence[Fact] = ()) -> Extraction:  # noqa: ARG002
        """The claims of these episodes, in order."""
        short = [episode for episode in episodes if len(episode.text) <= RULES_READ]
        chars = _SLOWER * sum(len(episode.text) for episode in short)
        # A pattern is compiled when a text first needs it: in a thread, until a call needed no new one.
        compiled = LazyPattern.used
        is_warm, self._compiled = not short or 0 < compiled == self._compiled, compiled
        claims = await off_loop(chars if is_warm else ON_LOOP + 1, lambda: _read(short))
        skipped = tuple(
            f"episode {episode.id} has {len(episode.text):,} characters; rules read messages of at most {RULES_READ:,}"
            for episode in episodes
            if len(episode.text) > RULES_READ
        )
        return Extraction(claims=tuple(dict.fromkeys(claims)), skipped=skipped)


def _read(episodes: Sequence[Episode]) -> list[Claim]:
    """The claims of episodes. Patterns that it needs are compiled, the first call for 50 ms: so it is off the loop."""
    return [claim for episode in episodes for claim in islice(_claims(episode), RULES_FIND)]


def _claims(episode: Episode) -> Sequence[Claim]:
    """The claims of an episode; looks_pasted() is slow, so it only runs if there are claims."""
    found = list(_stated(episode))
    if any(claim.predicate != INSTRUCTION for claim in found) and looks_pasted(episode.text):
        return [claim for claim in found if claim.predicate == INSTRUCTION]
    return found


def _stated(episode: Episode) -> Iterator[Claim]:
    speaker = normalise(episode.speaker or USER)
    if episode.provenance.origin not in _SPEAKS_FOR_ITSELF or speaker in _ROLES:
        return
    subject = USER if speaker == USER else (episode.speaker or USER)
    if "```" in episode.text or is_text_work(episode.text):
        return
    is_played = is_role_play(episode.text)
    for instruction in releases_in(episode.text) if not is_played else ():
        yield _claim(episode, subject, INSTRUCTION, instruction, start=episode.at, end=episode.at, retracts=True)
    for instruction in orders_in_others(episode.text) if not is_played else ():
        yield _claim(episode, subject, INSTRUCTION, instruction)
    reader = _Reader(episode, subject, of_others=tells_of_others(episode.text))
    still: dict[tuple[str, str], Claim] = {}
    is_in_one_case = in_one_case(episode.text)
    for sentence in sentences(episode.text):
        if sentence.startswith(">"):
            continue
        for instruction in instructions_in(sentence) if len(sentence) <= LONGEST_SENTENCE and not is_played else ():
            yield _claim(episode, subject, INSTRUCTION, instruction)
        spoken = without_hesitation(with_capitals(sentence) if is_in_one_case else sentence)
        for claim, is_of_late in () if is_played else reader.read(spoken):
            yield claim
            if is_of_late:
                slot = (claim.subject, claim.predicate)
                still[slot] = max(still.get(slot, claim), claim, key=_start)
    # "I moved to Berlin last week" also says where they live now, whatever else was said since last week.
    yield from (replace(claim, valid_from=episode.at) for claim in still.values() if _start(claim) < episode.at)


def _start(claim: Claim) -> datetime:
    assert claim.valid_from is not None
    return claim.valid_from


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the sentences of an episode. Each claim comes with a flag: it began recently and is still true."""

    episode: Episode
    subject: str
    of_others: bool

    def read(self, sentence: str) -> Iterator[tuple[Claim, bool]]:
        """The claims of a sentence."""
        left_job = False
        yield from self._mentioned(sentence)
        wholes = list(stated_clauses(sentence))
        for clause, following in (
            (part, following)
            for whole, following in zip(wholes, [*wholes[1:], ""], strict=False)
            for part in self._parts(whole)
        ):
            found = list(self._clause(clause, is_limited=_LIMITS.match(following) is not None))
            if not found and left_job and (at_work := AT_WORK.pattern.match(clause)):
                found = list(self._made(AT_WORK, at_work, self.subject))
            left_job |= any(claim.predicate == "works_at" and claim.retracts for claim, _ in found)
            changes = bool(found) and is_change(sentence)
            yield from ((replace(claim, changes=changes and not claim.retracts), late) for claim, late in found)

    def _mentioned(self, sentence: str) -> Iterator[tuple[Claim, bool]]:
        """What a sentence mentions of the speaker, whatever it is about."""
        if not MENTIONED.search(sentence) or is_reported(sentence) or _TOLD.search(sentence):
            return
        sentence = sentence[:LONGEST_SENTENCE]
        is_past = _LONG_AGO.search(sentence) is not None
        for known in MENTIONS:
            for found in known.pattern.finditer(sentence):
                if known.predicate in _FOR_LIFE or not (is_past or _GIVEN_AWAY.search(sentence[: found.start()])):
                    yield from self._made(known, found, self.subject)
        for found in _MY.finditer(sentence):
            if not _GIVEN_AWAY.search(sentence[: found.start()]):
                things, rest = owned_in(sentence[found.end() :])
                is_swapped = _SWAPPED.search(sentence[: found.start()]) is not None and rest.startswith(" to ")
                things = [] if is_swapped or is_past or _GONE.match(rest) else things
                yield from ((_claim(self.episode, self.subject, "owns", thing), False) for thing in things)

    def _parts(self, clause: str) -> list[str]:
        if when := _WHEN_FIRST.match(clause):
            clause = f"{when['rest']} {when['when'].lower()}"
        if kin := KINSHIP.match(clause):
            return split_clauses_about(clause, clause[: kin.start("rest")].strip())
        if self.of_others and (name := subject_in(clause)):
            return split_clauses_about(clause, name)
        return unfolded(clause)

    def _clause(self, clause: str, *, is_limited: bool) -> Iterator[tuple[Claim, bool]]:
        if is_unsure(clause):
            return
        if company := COMPANY.match(clause):
            yield self._related(relation_of(company["relation"]), company["object"])
            clause = company["rest"]
        found = list(self._plain(clause))
        yield from found
        stated = {_triple(claim) for claim, _ in found}
        over = self._retracted(clause, is_limited=is_limited)
        yield from (one for one in over if _triple(one[0]) not in stated)

    def _plain(self, clause: str, *, whole: bool = False) -> Iterator[tuple[Claim, bool]]:
        """The claims that a clause states; with `whole`, only if it states nothing else."""
        is_negative = is_denied(clause)
        if kin := KINSHIP.match(clause):
            yield self._related(relation_of(kin["relation"]), kin["object"])
            for subject, other, match in matches_about(kin["object"], kin["rest"]):
                if not is_negative or other.predicate in _NEGATIVE:
                    yield from self._made(other, match, subject)
            return
        for known in RULES:
            found = known.pattern.match(clause)
            if (
                found
                and (not is_negative or known.predicate in _NEGATIVE)
                and not (whole and _goes_on(clause[found.end() :]))
            ):
                yield from self._made(known, found, self.subject)
        for opening in LEADS:
            if (found := opening.pattern.match(clause)) and (not is_negative or opening.predicate in _NEGATIVE):
                yield from self._led(opening, clause[found.end() :], whole=whole)
        if self.of_others and not is_negative:
            if relative := relative_in(clause):
                yield self._related(*relative)
            for subject, other, match in matches_in(clause):
                yield from self._made(other, match, subject)

    def _retracted(self, clause: str, *, is_limited: bool) -> Iterator[tuple[Claim, bool]]:
        """The claims that a clause retracts; a bare `not` that `is_limited` ("when I travel") retracts nothing."""
        for ending in endings_in(clause):
            yield from self._ended(ending, self.subject)
        if self.of_others and (named := SUBJECT.match(clause)):
            for ending in endings_of(named["rest"]):
                yield from self._ended(ending, named["who"] or named["system"])
        if (denial := denial_in(clause)) is None or (is_limited and not denial.is_firm):
            return
        for claim in (claim for claim, _ in self._plain(denial.clause, whole=True) if not claim.retracts):
            # A bare `not` with a time may be about that time alone: "I'm not working at Acme today".
            if denial.is_firm or claim.valid_from == self.episode.at:
                end = self.episode.at if claim.valid_from is None else claim.valid_from
                yield self._retraction(claim.subject, claim.predicate, claim.object, end)

    def _ended(self, ending: Ending, subject: str) -> Iterator[tuple[Claim, bool]]:
        _, end = _when(ending.match.groupdict(), self.episode.at, ends=True)
        for predicate in ending.predicates:
            yield self._retraction(subject, predicate, ending.object, end or self.episode.at)

    def _related(self, relation: str, name: str) -> tuple[Claim, bool]:
        return _claim(self.episode, self.subject, relation, name), False

    def _retraction(self, subject: str, predicate: str, object: str, end: datetime) -> tuple[Claim, bool]:
        """The claim that something ended then, or was never true."""
        return _claim(self.episode, subject, predicate, object, start=self.episode.at, end=end, retracts=True), False

    def _led(self, opening: Lead, text: str, *, whole: bool) -> Iterator[tuple[Claim, bool]]:
        """The claims of a rule whose object is a noun phrase."""
        predicate = opening.predicate
        objects, rest = opening.read(text)
        if whole and _goes_on(rest):
            return
        when = _BEHIND.match(rest)
        start, _ = _when({"when": when["when"] if when else None}, self.episode.at, ends=False)
        for object in objects:
            yield _claim(self.episode, self.subject, predicate, object, start=start), False
            if predicate == "dislikes":
                yield self._retraction(self.subject, "prefers", object, self.episode.at)

    def _made(self, rule: Rule, found: re.Match[str], subject: str) -> Iterator[tuple[Claim, bool]]:
        """The claims of a rule that matched."""
        groups = found.groupdict()
        predicate = rule.predicate
        if predicate == "relation":
            predicate = relation_of(groups["relation"])
        elif predicate == "favourite_":
            predicate += groups["kind"].casefold().replace(" ", "_")
        elif predicate == "own_":
            predicate = groups["kind"].casefold().replace(" ", "_")
        elif not is_meant(predicate, groups.get("object") or ""):
            return
        start, end = _when(groups, self.episode.at, ends=rule.ends)
        changed = predicate == "drives" and re.search(r"\b(?:now|recently|just)\b", found[0])
        cardinality: Cardinality = "single" if changed else "inferred"
        is_of_late = end is None and not rule.many and _OF_LATE.match(groups.get("when") or "") is not None
        text = (
            f"{groups['what']} {groups['soon']}" if groups.get("what") else groups["object"].replace(" than ", " over ")
        )
        objects = objects_of(text, many=rule.many)
        for object in objects if predicate not in _TASTES or all(map(is_liking, objects)) else ():
            made = _claim(self.episode, subject, predicate, object, start=start, end=end, cardinality=cardinality)
            yield made, is_of_late
            if predicate == "dislikes":
                yield self._retraction(subject, "prefers", object, self.episode.at)


def _goes_on(rest: str) -> bool:
    """Whether a clause says more behind its object than a time and an aside."""
    return _ENDS.match(rest) is None


def _triple(claim: Claim) -> tuple[str, str, str]:
    return (claim.subject, claim.predicate, claim.object)


def _claim(
    episode: Episode,
    subject: str,
    predicate: str,
    object: str,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    cardinality: Cardinality = "inferred",
    retracts: bool = False,
) -> Claim:
    return Claim(
        subject=subject,
        predicate=predicate,
        object=object,
        sources=(episode.id,),
        valid_from=episode.at if start is None and end is None else start,
        valid_until=end,
        confidence=0.9,
        cardinality=cardinality,
        retracts=retracts,
    )


def _when(groups: dict[str, str | None], at: datetime, *, ends: bool) -> tuple[datetime | None, datetime | None]:
    """The start and end that a clause states."""
    if soon := groups.get("soon"):
        span = interval_of(re.sub(r"^(?:on|in|this) ", "", soon) if " " in soon else soon, at)
        return at, span[1] if span and span[1] > at else None
    words = (groups.get("when") or "").casefold()
    span = interval_of(re.sub(r"^(?:since|in|on) ", "", words), at) if words else None
    if span and span[0] > at and not re.search(r"\d{4}", words):
        span = (span[0] - timedelta(days=365), span[1] - timedelta(days=365))
    if ends:
        end = at if span is None else span[0] if words.startswith("since") else span[1]
        return None, min(end, at)
    return (at if span is None else min(span[0], at)), None
