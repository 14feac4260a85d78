"""Rules for plain statements about other people and things: "Alice lives in Tokyo", "Project X uses Python 3.11"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from loom.memory.extract.phrases import (
    ASIDE,
    DIET,
    JOB,
    LANGUAGES,
    LIST,
    NAME,
    PERSON,
    PET,
    PLACE,
    RELATION,
    THING,
    Rule,
    relation_of,
    rule,
)

LONGEST: Final = 300
"""Maximum characters of a message whose statements about others are used: a longer one may be any text."""
_NOT_A_NAME: Final = (
    r"(?:I|He|She|It|We|You|They|This|That|These|Those|There|Here|Someone|Somebody|Something|Everyone|Everybody|"
    r"Everything|Nobody|Nothing|None|Anyone|Anybody|Most|Many|Some|Any|All|Each|Every|Both|Few|No|Not|Neither|Either|One|"
    r"Who|Whoever|What|Whatever|When|Where|Which|Why|How|If|While|Because|Since|And|But|Or|So|Yes|Ok|Okay|Hi|Hello|"
    r"Hey|Dear|My|Our|Your|His|Her|Their|Its|The|An?|People|Maybe|Perhaps|Then|Now|Today|Yesterday|Tomorrow|According|"
    r"In|At|On|For|From|With|Also|Please|Only|Even|Never|Always|Imagine|Suppose|Let|Say|God|Bet|User|Assistant)\b"
)
_WORD: Final = r"[A-Z\u00c0-\u00de][\w\u2019'&-]*"
_WHO: Final = (
    rf"(?!{_NOT_A_NAME})(?:(?:Dr|Mr|Mrs|Ms|Prof)\.? )?{_WORD}"
    r"(?: (?:(?:de|la|van|von|der) )?[A-Z\u00c0-\u00de0-9][\w\u2019'&-]*){0,3}"
)
_SYSTEM: Final = (
    r"(?:[Tt]he|[Oo]ur|[Mm]y) (?P<system>(?:[\w-]+ ){0,2}?(?i:server|backend|frontend|project|app|application|site|"
    r"service|api|database|cluster|pipeline|repo|repository|codebase|stack|laptop|team|company|bot|game|library|"
    r"client|machine|website)\b)"
)
_SUBJECT: Final = re.compile(
    rf"^(?:(?P<who>{_WHO})|{_SYSTEM})(?: (?:now|currently|still|also|recently|just|actually))? (?P<rest>[a-z].*)$"
)
_TOOL: Final = rf"(?P<object>{NAME}|[\w.+#-]*[\d+#][\w.+#-]*)"
_OF_SYSTEMS: Final = (
    rule("uses", rf"(?:(?:now )?uses|is (?:now )?using) {_TOOL}"),
    rule("runs_on", rf"(?:now )?runs on {_TOOL}"),
    rule("runs", rf"(?:now )?runs {_TOOL}"),
    rule("written_in", rf"is (?:now )?written in {_TOOL}"),
    rule("built_with", rf"is (?:now )?built (?:with|on|in) {_TOOL}"),
    rule("hosted_on", rf"is (?:now )?hosted (?:on|at|by) {_TOOL}"),
    rule("depends_on", rf"depends on {_TOOL}"),
)
_PLACED: Final = rule("lives_in", rf"is (?:now )?(?:based|headquartered|located) in (?P<object>{PLACE})")
_OF_PEOPLE: Final = (
    rule("lives_in", rf"(?:now )?(?:lives in|moved to|relocated to|is living in) (?P<object>{PLACE})"),
    rule("works_at", rf"(?:now )?(?:works at|works for|is working (?:at|for)) (?P<object>{NAME})(?: as an? {JOB})?"),
    rule("works_at", rf"(?:is|works as) an? {JOB} (?:at|for) (?P<object>{NAME})"),
    rule("works_as", rf"(?:is|works as) an? (?P<object>{JOB})(?: (?:at|for|in) {NAME})?"),
    rule("works_as", rf"works (?:at|for) {NAME} as an? (?P<object>{JOB})"),
    rule("age", r"is (?:now )?(?P<object>\d{1,3}) years old"),
    rule("age", r"(?:just )?turned (?P<object>\d{1,3})"),
    rule("born_in", rf"was born in (?P<object>{PLACE})"),
    rule("diet", rf"is (?:now )?(?:an? )?{DIET}"),
    rule("allergic_to", rf"is (?:severely )?allergic to {LIST}", many=True),
    rule("speaks", rf"speaks {LANGUAGES}", many=True),
    rule("married_to", rf"is married to (?P<object>{NAME})"),
    rule("likes", rf"(?:really )?(?:likes|loves|enjoys) (?!to\b){LIST}", many=True),
    rule(
        "dislikes",
        rf"(?:really )?(?:hates|dislikes|can['\u2019]t stand|doesn['\u2019]t like) (?!to\b){LIST}",
        many=True,
    ),
    rule("prefers", rf"prefers (?!to\b)(?P<object>{THING}(?: (?:over|to) {THING})?)"),
    rule("has_pet", rf"has an? {PET} (?:called|named) (?P<object>{PERSON})"),
    rule("drives", rf"drives an? (?P<object>{THING})"),
)
_IS_MINE: Final = re.compile(
    rf"^(?P<object>{_WHO}) is (?:my|our) (?:(?:older|younger|elder|new|twin|big|little) )?{RELATION}{ASIDE}$"
)
_GOES_ON: Final = re.compile(
    r"(?:,? and|,? but)(?: also)? (?=(?:lives in|works (?:at|for|as)|speaks [A-Z]|is (?:an?|allergic|vegan|vegetarian|"
    r"based|married|\d)|uses |runs |was born in|likes |loves |hates |prefers |drives an? |has an? )"
    rf"|{_WORD} (?:lives in|works (?:at|for|as)|is (?:based|an?|my) |uses ))"
)
"""Where a second statement begins: about the same subject, whose name is omitted, or about another."""
_MADE_UP: Final = re.compile(
    r"\b(?:story|novel|character|hero|heroine|protagonist|plot|fiction\w*|fanfic\w*|film|movie|episode|chapter|scene|poem|"
    r"write|writing|imagine|suppose|assume|pretend|scenario|riddle|puzzle|exercise|homework|quiz|maths?|example|"
    r"hypothetical\w*|role-?play|game|dnd|campaign|translate|article|headline|quote|sentence|grammar|test data)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A statement about `subject` that a rule matched."""

    subject: str
    rule: Rule
    match: re.Match[str]


def tells_of_others(text: str) -> bool:
    """Whether a message may state facts about others: short, one paragraph, and without signs of fiction."""
    return len(text) <= LONGEST and "\n" not in text.strip() and not _MADE_UP.search(text)


def matches_in(clause: str) -> Iterator[RuleMatch]:
    """The statements of a clause about the person or thing that it names first."""
    found = _SUBJECT.match(clause)
    if found is None:
        return
    rules = (*_OF_PEOPLE, *_OF_SYSTEMS) if found["who"] else _OF_SYSTEMS
    yield from _matches(found["who"] or found["system"], found["rest"], (*rules, _PLACED))


def matches_about(person: str, rest: str) -> Iterator[RuleMatch]:
    """The statements about a person in the rest of a clause."""
    return _matches(person, rest, (*_OF_PEOPLE, _PLACED))


def relative_in(clause: str) -> tuple[str, str] | None:
    """The relation and the name in `Maria is my sister`."""
    found = _IS_MINE.match(clause)
    return (relation_of(found["relation"]), found["object"]) if found else None


def unfolded(clause: str, subject: str) -> list[str]:
    """A clause about a subject, split into one clause per statement."""
    first, *others = _GOES_ON.split(clause)
    return [first, *(part if part[:1].isupper() else f"{subject} {part}" for part in others)]


def subject_in(clause: str) -> str | None:
    """The person or thing that a clause names first, as spelled there."""
    found = _SUBJECT.match(clause)
    return clause[: found.end("who" if found["who"] else "system")] if found else None


def _matches(subject: str, rest: str, rules: tuple[Rule, ...]) -> Iterator[RuleMatch]:
    return (RuleMatch(subject, rule, found) for rule in rules if (found := rule.pattern.match(rest)))
