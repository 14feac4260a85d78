"""Finding facts by rules, in the plain sentences people say about themselves. Precise rather than greedy.

A sentence is read only if it is a plain statement: no question, no supposition, no report of what somebody said,
no quotation, no text that is to be translated or rewritten. A clause then has to fit a rule from its first word.
A message that looks pasted states nothing: `I` in it may be anybody. What the assistant is told to do always or never
is found by loom.memory.extract.instructions, in any message; whether it holds is decided where claims become facts.
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
from loom.memory.extract.dates import PAST, SOON, interval_of
from loom.memory.extract.instructions import INSTRUCTION, instructions_in
from loom.memory.extract.plain_wish import looks_pasted
from loom.protocols.extractor import Claim, Extraction

_SLOWER: Final = 10
"""How many times longer rules take for a text than cutting it into words."""
_LONGEST: Final = 300
"""Characters of a sentence that is read: what is longer is no plain statement."""
_SPEAKS_FOR_ITSELF: Final = frozenset({"user", "import"})
_NOBODY: Final = frozenset({"assistant", "ai", "bot", "model", "system", "tool", "agent", "developer", "function"})
_I: Final = r"(?:I|i)"
_AM: Final = r"(?:(?:I|i)(?:['\u2019]m| am))"
_HAVE: Final = r"(?:(?:I|i)(?:['\u2019]ve(?: got)?| have(?: got)?))"
_NOW: Final = r"(?: (?:now|currently|still|also|really|actually|recently|just|already|mostly|mainly))?"
_NAME: Final = (
    r"[A-Z\u00c0-\u00de][\w'\u2019.&-]*"
    r"(?: (?:(?:of|the|de|la|del|van|von|and|&) )?[A-Z\u00c0-\u00de0-9][\w'\u2019.&-]*){0,4}"
)
_PLACE: Final = rf"{_NAME}(?:, {_NAME})?"
_THING: Final = r"(?!and\b)[^\W\d_][\w'\u2019&+-]*(?: (?!and\b)[\w'\u2019&+-]+){0,4}?"
_RELATION: Final = (
    r"(?P<relation>sister|brother|mother|mom|mum|father|dad|wife|husband|partner|girlfriend|boyfriend|fianc\u00e9e?|"
    r"son|daughter|cousin|aunt|uncle|friend|best friend|boss|colleague|niece|nephew|roommate)"
)
_PET: Final = r"(?:dog|cat|puppy|kitten|parrot|rabbit|hamster|horse|tortoise|turtle|goldfish|bird|snake|ferret|pony)"
LANGUAGE: Final = (
    r"(?:English|French|German|Spanish|Italian|Portuguese|Dutch|Polish|Czech|Russian|Ukrainian|Turkish|Arabic|Hebrew|"
    r"Hindi|Urdu|Bengali|Tamil|Chinese|Mandarin|Cantonese|Japanese|Korean|Vietnamese|Thai|Swedish|Norwegian|Danish|"
    r"Finnish|Greek|Hungarian|Romanian|Bulgarian|Croatian|Serbian|Swahili|Persian|Farsi|Indonesian|Catalan|Welsh|Irish)"
)
_JOB: Final = (
    r"(?:[a-zA-Z-]+ ){0,3}?(?:engineer|developer|programmer|teacher|nurse|doctor|lawyer|designer|manager|writer|"
    r"student|architect|accountant|chef|cook|pilot|dentist|scientist|researcher|professor|analyst|consultant|electrician|"
    r"plumber|carpenter|journalist|editor|photographer|musician|artist|actor|actress|translator|librarian|"
    r"pharmacist|therapist|psychologist|veterinarian|vet|farmer|baker|barista|waiter|waitress|driver|"
    r"firefighter|paramedic|surgeon|physicist|chemist|biologist|economist|mechanic|technician|administrator|"
    r"recruiter|director|founder|ceo|cto)"
)
_DIET: Final = r"(?P<object>vegan|vegetarian|pescatarian|gluten[- ]free|kosher|halal)"
_KIN: Final = {"mom": "mother", "mum": "mother", "dad": "father", "wife": "married_to", "husband": "married_to"}

_ASIDE: Final = (
    r"(?:,? (?:now|currently|at the moment|right now|these days|nowadays|too|as well|again|by the way|anymore|any more|"
    r"any longer|instead|actually|a lot|very much|so much|with my \w+))*"
)
_TAIL: Final = rf"(?:,? (?P<when>{PAST}))?{_ASIDE}$"
_WHEN_FIRST: Final = re.compile(rf"^(?P<when>{PAST}) (?P<rest>(?:I|i)(?:['\u2019]\w+)? .*)$")
_WHEN_APART: Final = re.compile(rf"^(?P<when>{PAST}), (?=[Ii]\b)")
_OF_LATE: Final = re.compile(r"^(?i:since\b|yesterday|today|(?:last|this) (?:week|month)|\w+ (?:day|week|month)s? ago)")
"""A time from which what began then still holds when it is said. A date tells of the past, in whatever order."""

_NOT_A_STATEMENT: Final = re.compile(
    r"\?|[\"\u201c\u201d\u00ab\u00bb]|(?<!\w)'[^']+'(?!\w)|\b(?:if|wish|imagine|imagining|suppose|supposing|pretend|unless|"
    r"hypothetically|said|says|saying|told|tells|thinks|thought|believes|claims|claimed|asked|heard|dreamed|dreamt|"
    r"dream|story|novel|character|role-?play|quote|for example|for instance|e\.g|lyrics|joke|joking|kidding|"
    r"as though|as if|let's say|whether)\b",
    re.IGNORECASE,
)
_NOT_SURE: Final = re.compile(
    r"\b(?:would|could|should|might|may be|maybe|perhaps|possibly|probably|never|not|n't|hardly|barely|almost|nearly|"
    r"hope|hoping|want|wanted|consider|considering|thinking|someday|one day|guess|sometimes|temporarily)\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)
_TEXT_WORK: Final = re.compile(
    r"^\W*(?:please |can you |could you )*(?:translate|rewrite|proofread|correct|paraphrase|summari[sz]e|edit|write|"
    r"draft|complete|continue|rephrase|improve|act as|respond as|answer as|you are|here is|here's|this is)\b",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bSt\.)(?<!\bMrs\.)\s+|\n+")
_CLAUSE: Final = re.compile(
    r"(?<!\s)\s*(?:[;\u2014\u2013]|,(?: and| but| so)?| and| but| so)\s+(?=(?:I|i|my|My)(?:['\u2019]\w+)?\s)"
)
_OPENING: Final = re.compile(
    r"^(?:(?:hi|hello|hey|well|so|and|but|oh|ok|okay|yes|yeah|actually|also|btw|by the way|fyi|just so you know|"
    r"as of (?:today|now)|these days|nowadays|remember that|please remember that|please note that|note that)[,!]? )+",
    re.IGNORECASE,
)
_PICTURES: Final = re.compile("[\u2600-\u27bf\U0001f000-\U0001faff\ufe0f\u200d]+")
_EMPTY: Final = frozenset(
    {"lot", "bit", "home", "work", "town", "place", "everything", "nothing", "something", "anything"}
)
_POINTING: Final = frozenset(
    {
        *("it", "that", "this", "these", "those", "them", "him", "her", "you", "your", "yours", "his", "their", "its"),
        *("how", "what", "when", "where", "why", "which", "who", "there", "here", "one", "some", "any", "my", "our"),
        *("each", "every", "neither", "being", "having", "us", "me", "everyone", "somebody", "someone", "nobody"),
    }
)
_NOT_IN_THINGS: Final = frozenset(
    {
        *("former", "ex", "retired", "aspiring", "terrible", "bad", "lousy", "good", "great", "decent", "better"),
        *("careful", "future", "because", "when", "while", "but", "than", "is", "are", "was", "were", "you", "your"),
        *("it", "that", "which", "who", "bit", "until", "though", "although", "except", "anymore", "he", "she"),
    }
)
_NOT_A_NAME: Final = re.compile(
    r"^(?:.*(?:ish|ese|ian|ean|ican|ist)|French|German|Greek|Dutch|Czech|Swiss|Thai|Turk|Pole|Dane|Jew|Muslim|Hindu|"
    r"Sorry|Busy|Back|Ok|Okay|Fine|Good|Done|Ready|Sure|Home|Here|Late|Sick|Happy|Tired|Single|Married|Vegan)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern over one clause, and the claim that it makes of `object`."""

    predicate: str
    pattern: re.Pattern[str]
    ends: bool = False
    many: bool = False


def _rule(predicate: str, pattern: str, *, tail: str = _TAIL, ends: bool = False, many: bool = False) -> _Rule:
    return _Rule(predicate, re.compile(f"^{pattern}{tail}"), ends=ends, many=many)


_LIST: Final = rf"(?P<object>{_THING}(?:(?:, | and |, and ){_THING})*?)"
_RULES: Final = (
    _rule(
        "name",
        rf"(?:[Mm]y name(?:['\u2019]s| is)|(?:You|you) can call me|(?:Please |please )?[Cc]all me) (?P<object>{_NAME})",
    ),
    _rule("name", rf"{_AM} (?P<object>[A-Z][a-z\u00e0-\u00ff]+)", tail="$"),
    _rule("lives_in", rf"{_I}{_NOW} live in (?P<object>{_PLACE})"),
    _rule("lives_in", rf"{_AM}{_NOW} (?:living|based) in (?P<object>{_PLACE})"),
    _rule(
        "lives_in",
        rf"(?:{_I}{_NOW}|{_HAVE}{_NOW}) (?:moved|relocated)(?: back)? (?:from {_NAME} )?to (?P<object>{_PLACE})",
    ),
    _rule("lives_in", rf"{_I} used to live in (?P<object>{_PLACE})", ends=True),
    _rule("lives_in", rf"{_I} no longer live in (?P<object>{_PLACE})", ends=True),
    _rule("works_at", rf"{_I}{_NOW} work (?:at|for) (?P<object>{_NAME})"),
    _rule("works_at", rf"{_AM}{_NOW} working (?:at|for) (?P<object>{_NAME})"),
    _rule("works_at", rf"(?:{_I}|{_HAVE}){_NOW} (?:joined|started (?:working )?(?:at|for)) (?P<object>{_NAME})"),
    _rule("works_at", rf"{_I} (?:no longer|used to) work (?:at|for) (?P<object>{_NAME})", ends=True),
    _rule("works_at", rf"{_I}{_NOW} (?:left|quit) my job at (?P<object>{_NAME})", ends=True),
    _rule("works_as", rf"{_I}{_NOW} work as an? (?P<object>{_JOB})(?: (?:at|for|in) {_NAME})?"),
    _rule("works_as", rf"{_AM}{_NOW} an? (?P<object>{_JOB})(?: (?:at|for|in) {_NAME})?"),
    _rule("works_as", rf"{_I} used to (?:be|work as) an? (?P<object>{_JOB})", ends=True),
    _rule("works_at", rf"{_AM}{_NOW} an? {_JOB} at (?P<object>{_NAME})"),
    _rule("works_at", rf"{_I}{_NOW} work as an? {_JOB} (?:at|for) (?P<object>{_NAME})"),
    _rule("age", rf"{_AM}{_NOW} (?P<object>\d{{1,3}})(?: years old)", tail=f"{_ASIDE}$"),
    _rule("age", rf"{_I}{_NOW} turned (?P<object>\d{{1,3}})"),
    _rule("birthday", r"[Mm]y birthday(?:['\u2019]s| is)(?: on)? (?P<object>(?=\D*\d)[\w ,-]+)", tail="$"),
    _rule("birthday", r"(?:I|i) was born on (?P<object>(?=\D*\d)[\w ,-]+)", tail="$"),
    _rule("born_in", rf"{_I} was born in (?P<object>{_PLACE})"),
    _rule("diet", rf"{_AM}{_NOW} (?:an? )?{_DIET}"),
    _rule("diet", rf"{_AM} no longer (?:an? )?{_DIET}", ends=True),
    _rule("diet", rf"{_I} used to be (?:an? )?{_DIET}", ends=True),
    _rule("allergic_to", rf"{_AM}{_NOW} (?:severely )?allergic to {_LIST}", many=True),
    _rule("allergic_to", rf"{_HAVE} an? (?P<object>{_THING}) allergy"),
    _rule(
        "speaks", rf"{_I}{_NOW} speak (?:fluent )?(?P<object>{LANGUAGE}(?:(?:, | and |, and ){LANGUAGE})*)", many=True
    ),
    _rule("likes", rf"{_I}{_NOW} (?:like|love|enjoy|adore) (?!to\b){_LIST}", many=True),
    _rule("likes", rf"{_I} (?:no longer|used to) (?:like|love|enjoy) (?!to\b){_LIST}", ends=True, many=True),
    _rule(
        "dislikes",
        rf"{_I}{_NOW} (?:dislike|hate|can['\u2019]t stand|(?:don['\u2019]t|do not) like) (?!to\b){_LIST}",
        many=True,
    ),
    _rule("prefers", rf"{_I}{_NOW} prefer (?!to\b)(?P<object>{_THING}(?: (?:over|to) {_THING})?)"),
    _rule("favourite_", rf"[Mm]y favou?rite (?P<kind>\w+(?: \w+)?) is (?P<object>{_THING})"),
    _rule("relation", rf"[Mm]y {_RELATION}(?:['\u2019]s name is| is (?:called|named)) (?P<object>{_NAME})"),
    _rule("relation", rf"{_I}{_NOW} have an? {_RELATION} (?:called|named) (?P<object>{_NAME})"),
    _rule("married_to", rf"{_AM}{_NOW} married to (?P<object>{_NAME})"),
    _rule(
        "has_pet",
        rf"(?:{_HAVE}|{_I}{_NOW} (?:have|adopted|got)) an? (?P<kind>{_PET}) (?:called|named) (?P<object>{_NAME})",
    ),
    _rule("has_pet", rf"[Mm]y (?P<kind>{_PET})(?:['\u2019]s name is| is (?:called|named)) (?P<object>{_NAME})"),
    _rule("has_pet", rf"(?:{_HAVE}|{_I}{_NOW} (?:have|adopted|got)) an? (?P<object>{_PET})"),
    _rule("owns", rf"{_I}{_NOW} (?:own|bought) an? (?P<object>{_THING})"),
    _rule("drives", rf"{_I}{_NOW} drive an? (?P<object>{_THING})"),
    _rule(
        "plans",
        rf"{_AM} (?P<object>(?:flying to|going to|travell?ing to|visiting|moving to|getting married|meeting|"
        rf"starting at)(?: {_NAME})? (?P<soon>{SOON}))",
        tail="$",
    ),
)
_KINSHIP: Final = re.compile(rf"^[Mm]y {_RELATION},? (?P<object>[A-Z][a-z\u00e0-\u00ff]+),? (?P<rest>[a-z].*)$")
_THIRD: Final = (
    _rule("lives_in", rf"(?:now )?(?:lives in|moved to|is living in) (?P<object>{_NAME})"),
    _rule("works_at", rf"(?:now )?(?:works at|works for|is working at) (?P<object>{_NAME})"),
    _rule("works_as", rf"(?:is|works as) an? (?P<object>{_JOB})"),
)


class RuleExtractor:
    """An Extractor without a model, for plain statements in the first person."""

    __slots__ = ()

    async def extract(self, episodes: Sequence[Episode], *, known: Sequence[Fact] = ()) -> Extraction:  # noqa: ARG002
        """The claims that these episodes make, in the order they are made."""
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
    """The claims of an episode. Whether it looks pasted is only asked where it states something."""
    found = list(_stated(episode))
    if any(claim.predicate != INSTRUCTION for claim in found) and looks_pasted(episode.text):
        return [claim for claim in found if claim.predicate == INSTRUCTION]
    return found


def _stated(episode: Episode) -> Iterator[Claim]:
    speaker = normalise(episode.speaker or USER)
    if episode.provenance.origin not in _SPEAKS_FOR_ITSELF or speaker in _NOBODY:
        return
    subject = USER if speaker == USER else (episode.speaker or USER)
    if "```" in episode.text or _TEXT_WORK.search(episode.text):
        return
    still: dict[tuple[str, str], Claim] = {}
    for sentence in sentences(episode.text):
        if len(sentence) > _LONGEST or sentence.startswith(">"):
            continue
        for instruction in instructions_in(sentence):
            yield _claim(episode, subject, INSTRUCTION, instruction)
        for clause in _clauses(sentence):
            for claim, is_of_late in _read(clause, subject, episode):
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


def _read(clause: str, subject: str, episode: Episode) -> Iterator[tuple[Claim, bool]]:
    """The claims of a clause, each with whether it says of something begun of late that it still holds."""
    if when := _WHEN_FIRST.match(clause):
        clause = f"{when['rest']} {when['when'].lower()}"
    if kin := _KINSHIP.match(clause):
        yield _claim(episode, subject, _relation(kin["relation"]), kin["object"]), False
        if not _NOT_SURE.search(kin["rest"]):
            for rule in _THIRD:
                if found := rule.pattern.match(kin["rest"]):
                    yield from _made(rule, found, kin["object"], episode)
        return
    for rule in _RULES:
        found = rule.pattern.match(clause)
        if found and (rule.predicate == "dislikes" or not _NOT_SURE.search(clause)):
            yield from _made(rule, found, subject, episode)


def _made(rule: _Rule, found: re.Match[str], subject: str, episode: Episode) -> Iterator[tuple[Claim, bool]]:
    groups = found.groupdict()
    predicate = rule.predicate
    if predicate == "relation":
        predicate = _relation(groups["relation"])
    elif predicate == "favourite_":
        predicate += groups["kind"].casefold().replace(" ", "_")
    elif predicate == "name" and _NOT_A_NAME.fullmatch(groups["object"]):
        return
    start, end = _when(rule, groups, episode.at)
    changed = predicate == "drives" and re.search(r"\b(?:now|recently|just)\b", found[0])
    cardinality: Cardinality = "single" if changed else "inferred"
    is_of_late = end is None and not rule.many and _OF_LATE.match(groups.get("when") or "") is not None
    for object in _objects(groups["object"], many=rule.many):
        yield _claim(episode, subject, predicate, object, start=start, end=end, cardinality=cardinality), is_of_late


def _claim(
    episode: Episode,
    subject: str,
    predicate: str,
    object: str,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    cardinality: Cardinality = "inferred",
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
    )


def _relation(word: str) -> str:
    return _KIN.get(word, word.replace(" ", "_"))


def _when(rule: _Rule, groups: dict[str, str | None], at: datetime) -> tuple[datetime | None, datetime | None]:
    """From when and until when a clause says that it holds."""
    if soon := groups.get("soon"):
        span = interval_of(re.sub(r"^(?:on|in|this) ", "", soon) if " " in soon else soon, at)
        return at, span[1] if span and span[1] > at else None
    words = (groups.get("when") or "").casefold()
    span = interval_of(re.sub(r"^(?:since|in|on) ", "", words), at) if words else None
    if span and span[0] > at and not re.search(r"\d{4}", words):
        span = (span[0] - timedelta(days=365), span[1] - timedelta(days=365))
    if rule.ends:
        end = at if span is None else span[0] if words.startswith("since") else span[1]
        return None, min(end, at)
    return (at if span is None else min(span[0], at)), None


def _objects(text: str, *, many: bool) -> list[str]:
    """The things that a clause names; nothing where they are not names of things."""
    parts = re.split(r", and |, | and ", text) if many else [text]
    things = [part.strip(" .,;:!") for part in parts]
    return things if all(_is_thing(thing) for thing in things) else []


def _is_thing(text: str) -> bool:
    words = text.split()
    if not words or words[0].casefold() in _POINTING or text.casefold() in _EMPTY:
        return False
    if words[0].casefold() == "the" and (len(words) < 2 or not words[1][0].isupper()):
        return False
    return not any(word.casefold() in _NOT_IN_THINGS for word in words)
