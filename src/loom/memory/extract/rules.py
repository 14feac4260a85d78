"""Extracts facts by rules from plain sentences. Precision before recall.

A sentence is read only if it is a plain statement: not a question, a supposition, reported speech, a quotation, or text
to be translated or rewritten. A clause then has to match a rule from its first word. A message that looks pasted states
nothing: its `I` may be any person. Denials retract what was known (loom.memory.extract.retractions); statements about
others are in loom.memory.extract.others. Instructions are found in any message (loom.memory.extract.instructions);
whether they are accepted is decided where claims become facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from loom.core.heavy import off_loop
from loom.core.limits import RULES_FIND, RULES_READ
from loom.core.record import Cardinality, Episode, Fact
from loom.memory.entities import USER, normalise
from loom.memory.extract.dates import PAST, interval_of
from loom.memory.extract.instructions import INSTRUCTION, instructions_in
from loom.memory.extract.others import matches_about, matches_in, relative_in, subject_in, tells_of_others
from loom.memory.extract.others import unfolded as unfolded_of
from loom.memory.extract.own import AT_WORK, COMPANY, KINSHIP, RULES, unfolded
from loom.memory.extract.phrases import Rule, objects_of, relation_of
from loom.memory.extract.plain_wish import looks_pasted
from loom.memory.extract.retractions import Ending, denial_in, employer_left, endings_in
from loom.protocols.extractor import Claim, Extraction

_SLOWER: Final = 10
"""The cost of the rules, relative to splitting a text into words."""
_LONGEST: Final = 300
"""Maximum characters of a sentence that is read: a longer one is not a plain statement."""
_SPEAKS_FOR_ITSELF: Final = frozenset({"user", "import"})
_ROLES: Final = frozenset({"assistant", "ai", "bot", "model", "system", "tool", "agent", "developer", "function"})
_WHEN_FIRST: Final = re.compile(rf"^(?P<when>{PAST}) (?P<rest>(?:I|i)(?:['\u2019]\w+)? .*)$")
_WHEN_APART: Final = re.compile(rf"^(?P<when>{PAST}), (?=[Ii]\b)")
_OF_LATE: Final = re.compile(r"^(?i:since\b|yesterday|today|(?:last|this) (?:week|month)|\w+ (?:day|week|month)s? ago)")
"""A recent time: what began then is still true at the time of the message. A full date only tells of the past."""

_NOT_A_STATEMENT: Final = re.compile(
    r"\?|[\"\u201c\u201d\u00ab\u00bb]|(?<!\w)'[^']+'(?!\w)|\b(?:if|wish|imagine|imagining|suppose|supposing|pretend|unless|"
    r"hypothetically|said|says|saying|told|tells|thinks|(?<!second )thought|believes|claims|claimed|asked|heard|"
    r"dreamed|dreamt|dream|story|novel|character|role-?play|quote|for example|for instance|e\.g|lyrics|joke|joking|"
    r"kidding|as though|as if|let's say|whether)\b",
    re.IGNORECASE,
)
_NOT_SURE: Final = re.compile(
    r"\b(?:could|should|might|may be|maybe|perhaps|possibly|probably|hardly|barely|almost|nearly|allegedly|reportedly|"
    r"hope|hoping|want|wanted|consider|considering|thinking|someday|one day|guess|sometimes|temporarily)\b"
    r"|\bwould\b(?! rather have)|\baccording to\b",
    re.IGNORECASE,
)
_NOT_SO: Final = re.compile(r"\b(?:never|not|n't)\b|n['\u2019]t\b", re.IGNORECASE)
_NEGATIVE: Final = frozenset({"dislikes", "does_not_eat"})
"""Predicates whose statements contain a `not`."""
_CHANGED: Final = re.compile(
    r"\b(?:now|actually|instead|these days|nowadays|lately|from now on|any ?more|no longer|changed my mind|switched|"
    r"on second thoughts?|correction|turns out|recently|just)\b",
    re.IGNORECASE,
)
"""Words that imply that something else was true before."""
_TEXT_WORK: Final = re.compile(
    r"^\W*(?:please |can you |could you )*(?:translate|rewrite|proofread|correct|paraphrase|summari[sz]e|edit|write|"
    r"draft|complete|continue|rephrase|improve|act as|respond as|answer as|you are|here is|here's|this is)\b",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bSt\.)(?<!\bMrs\.)\s+|\n+")
_CLAUSE: Final = re.compile(
    r"(?<!\s)\s*(?:[;:\u2014\u2013]|,(?: and| but| so)?| and| but| so)\s+"
    r"(?=(?:now )?(?:I|i|my|My|we|We)(?:['\u2019]\w+)?\s)"
)
_OPENING: Final = re.compile(
    r"^(?:(?:hi|hello|hey|well|so|and|but|oh|ok|okay|yes|yeah|actually|also|btw|by the way|fyi|just so you know|"
    r"as of (?:today|now)|now|these days|nowadays|(?:it )?turns out(?: that)?|on second thoughts?|correction:?|sorry|"
    r"(?:the|my) (?:doctor|tests?|results?) (?:confirmed|showed|found)(?: that)?|"
    r"remember that|please remember that|please note that|note that)[,!]? )+",
    re.IGNORECASE,
)
_PICTURES: Final = re.compile("[\u2600-\u27bf\U0001f000-\U0001faff\ufe0f\u200d]+")
_NOT_A_NAME: Final = re.compile(
    r"^(?:.*(?:ish|ese|ian|ean|ican|ist)|French|German|Greek|Dutch|Czech|Swiss|Thai|Turk|Pole|Dane|Jew|Muslim|Hindu|"
    r"Sorry|Busy|Back|Ok|Okay|Fine|Good|Done|Ready|Sure|Home|Here|Late|Sick|Happy|Tired|Single|Married|Vegan)",
    re.IGNORECASE,
)


class RuleExtractor:
    """An Extractor without a model, for plain statements in the first person."""

    __slots__ = ()

    async def extract(self, episodes: Sequence[Episode], *, known: Sequence[Fact] = ()) -> Extraction:  # noqa: ARG002
        """The claims of these episodes, in order."""
        short = [episode for episode in episodes if len(episode.text) <= RULES_READ]
        chars = _SLOWER * sum(len(episode.text) for episode in short)
        claims = await off_loop(chars, lambda: [c for episode in short for c in islice(_claims(episode), RULES_FIND)])
        skipped = tuple(
            f"episode {episode.id} has {len(episode.text):,} characters; rules read messages of at most {RULES_READ:,}"
            for episode in episodes
            if len(episode.text) > RULES_READ
        )
        return Extraction(claims=tuple(dict.fromkeys(claims)), skipped=skipped)


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
    if "```" in episode.text or _TEXT_WORK.search(episode.text):
        return
    reader = _Reader(episode, subject, of_others=tells_of_others(episode.text))
    still: dict[tuple[str, str], Claim] = {}
    for sentence in sentences(episode.text):
        if len(sentence) > _LONGEST or sentence.startswith(">"):
            continue
        for instruction in instructions_in(sentence):
            yield _claim(episode, subject, INSTRUCTION, instruction)
        for claim, is_of_late in reader.read(sentence):
            yield claim
            if is_of_late:
                slot = (claim.subject, claim.predicate)
                still[slot] = max(still.get(slot, claim), claim, key=_start)
    # "I moved to Berlin last week" also says where they live now, whatever else was said since last week.
    yield from (replace(claim, valid_from=episode.at) for claim in still.values() if _start(claim) < episode.at)


def _start(claim: Claim) -> datetime:
    assert claim.valid_from is not None
    return claim.valid_from


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text."""
    return (plain for sentence in _SENTENCE.split(text) if (plain := sentence.strip()))


def _clauses(plain: str) -> Iterator[str]:
    """The clauses of a sentence, if it is a plain statement."""
    if not _TEXT_WORK.search(plain) and not _NOT_A_STATEMENT.search(plain):
        for clause in _CLAUSE.split(_WHEN_APART.sub(r"\g<when> ", plain)):
            yield _OPENING.sub("", _PICTURES.sub("", clause).strip(" \t.!,;:()")).strip()


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the sentences of an episode. Each claim comes with a flag: it began recently and is still true."""

    episode: Episode
    subject: str
    of_others: bool

    def read(self, sentence: str) -> Iterator[tuple[Claim, bool]]:
        """The claims of a sentence."""
        is_change = _CHANGED.search(sentence) is not None
        left_job = False
        for clause in (part for whole in _clauses(sentence) for part in self._parts(whole)):
            found = list(self._clause(clause))
            if not found and left_job and (at_work := AT_WORK.pattern.match(clause)):
                found = list(self._made(AT_WORK, at_work, self.subject))
            left_job |= any(claim.predicate == "works_at" and claim.retracts for claim, _ in found)
            yield from ((replace(claim, changes=is_change and not claim.retracts), late) for claim, late in found)

    def _parts(self, clause: str) -> list[str]:
        if when := _WHEN_FIRST.match(clause):
            clause = f"{when['rest']} {when['when'].lower()}"
        if kin := KINSHIP.match(clause):
            return unfolded_of(clause, clause[: kin.start("rest")].strip())
        if self.of_others and (name := subject_in(clause)):
            return unfolded_of(clause, name)
        return unfolded(clause)

    def _clause(self, clause: str) -> Iterator[tuple[Claim, bool]]:
        if _NOT_SURE.search(clause):
            return
        if company := COMPANY.match(clause):
            yield self._related(relation_of(company["relation"]), company["object"])
            clause = company["rest"]
        found = list(self._plain(clause))
        yield from found
        stated = {_triple(claim) for claim, _ in found}
        yield from (one for one in self._retracted(clause) if _triple(one[0]) not in stated)

    def _plain(self, clause: str) -> Iterator[tuple[Claim, bool]]:
        """The claims that a clause states."""
        is_denied = _NOT_SO.search(clause) is not None
        if kin := KINSHIP.match(clause):
            yield self._related(relation_of(kin["relation"]), kin["object"])
            for other in matches_about(kin["object"], kin["rest"]):
                if not is_denied or other.rule.predicate in _NEGATIVE:
                    yield from self._made(other.rule, other.match, other.subject)
            return
        for rule in RULES:
            found = rule.pattern.match(clause)
            if found and (not is_denied or rule.predicate in _NEGATIVE):
                yield from self._made(rule, found, self.subject)
        if self.of_others and not is_denied:
            if relative := relative_in(clause):
                yield self._related(*relative)
            for other in matches_in(clause):
                yield from self._made(other.rule, other.match, other.subject)

    def _retracted(self, clause: str) -> Iterator[tuple[Claim, bool]]:
        """The claims that a clause retracts."""
        for ending in endings_in(clause):
            yield from self._ended(ending, self.subject)
        if self.of_others and (left := employer_left(clause)):
            yield from self._ended(left, left.match["subject"])
        if (denial := denial_in(clause)) is None:
            return
        for claim in (claim for claim, _ in self._plain(denial.clause) if not claim.retracts):
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

    def _made(self, rule: Rule, found: re.Match[str], subject: str) -> Iterator[tuple[Claim, bool]]:
        """The claims of a rule that matched."""
        groups = found.groupdict()
        predicate = rule.predicate
        if predicate == "relation":
            predicate = relation_of(groups["relation"])
        elif predicate == "favourite_":
            predicate += groups["kind"].casefold().replace(" ", "_")
        elif predicate == "name" and _NOT_A_NAME.fullmatch(groups["object"]):
            return
        start, end = _when(groups, self.episode.at, ends=rule.ends)
        changed = predicate == "drives" and re.search(r"\b(?:now|recently|just)\b", found[0])
        cardinality: Cardinality = "single" if changed else "inferred"
        is_of_late = end is None and not rule.many and _OF_LATE.match(groups.get("when") or "") is not None
        for object in objects_of(groups["object"].replace(" than ", " over "), many=rule.many):
            made = _claim(self.episode, subject, predicate, object, start=start, end=end, cardinality=cardinality)
            yield made, is_of_late
            if predicate == "dislikes":
                yield self._retraction(subject, "prefers", object, self.episode.at)


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
