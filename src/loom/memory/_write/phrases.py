"""Phrases that the extraction rules are made of, and retractions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from loom.text.time_words import PAST

SELF: Final = r"(?:I|i)"
WE: Final = r"(?:I|i|We|we)"
AM: Final = r"(?:(?:I|i)(?:['\u2019]m| am))"
HAVE: Final = r"(?:(?:I|i|We|we)(?:['\u2019]ve(?: got)?| have(?: got)?))"
NOW: Final = r"(?: (?:now|currently|still|also|really|actually|recently|just|already|mostly|mainly))?"
NAME: Final = (
    r"[A-Z\u00c0-\u00de][\w'\u2019.&-]*"
    r"(?: (?:(?:of|the|de|la|del|van|von|and|&) )?[A-Z\u00c0-\u00de0-9][\w'\u2019.&-]*){0,4}"
)
PLACE: Final = rf"{NAME}(?:, {NAME})?"
PERSON: Final = r"[A-Z\u00c0-\u00de][a-z\u00df-\u00ff]+"
THING: Final = r"(?!and\b)[^\W\d_][\w'\u2019&+-]*(?: (?!and\b)[\w'\u2019&+-]+){0,4}?"
LIST: Final = rf"(?P<object>{THING}(?:(?:, | and |, and ){THING})*?)"
RELATION: Final = (
    r"(?P<relation>sister|brother|mother|mom|mum|father|dad|wife|husband|partner|girlfriend|boyfriend|fianc\u00e9e?|"
    r"son|daughter|cousin|aunt|uncle|friend|best friend|boss|manager|colleague|niece|nephew|roommate|flatmate|"
    r"neighbou?r|landlord|landlady|dentist|doctor|therapist|lawyer|accountant|coach|mentor|grandmother|grandfather)"
)
PET: Final = r"(?:dog|cat|puppy|kitten|parrot|rabbit|hamster|horse|tortoise|turtle|goldfish|bird|snake|ferret|pony)"
LANGUAGE: Final = (
    r"(?:English|French|German|Spanish|Italian|Portuguese|Dutch|Polish|Czech|Russian|Ukrainian|Turkish|Arabic|Hebrew|"
    r"Hindi|Urdu|Bengali|Tamil|Chinese|Mandarin|Cantonese|Japanese|Korean|Vietnamese|Thai|Swedish|Norwegian|Danish|"
    r"Finnish|Greek|Hungarian|Romanian|Bulgarian|Croatian|Serbian|Swahili|Persian|Farsi|Indonesian|Catalan|Welsh|Irish|"
    r"Estonian|Latvian|Lithuanian|Slovak|Slovene|Icelandic|Basque|Afrikaans|Malay|Tagalog|Punjabi|Telugu|Marathi)"
)
_SOME: Final = r"(?:(?:a bit of|a little|some|basic|fluent) )?"
LANGUAGES: Final = rf"(?P<object>{_SOME}{LANGUAGE}(?:(?:, | and |, and ){_SOME}{LANGUAGE})*)"
JOB: Final = (
    r"(?:[a-zA-Z-]+ ){0,3}?(?:engineer|developer|programmer|teacher|nurse|doctor|lawyer|designer|manager|writer|"
    r"student|architect|accountant|chef|cook|pilot|dentist|scientist|researcher|professor|analyst|consultant|electrician|"
    r"plumber|carpenter|journalist|editor|photographer|musician|artist|actor|actress|translator|librarian|"
    r"pharmacist|therapist|psychologist|veterinarian|vet|farmer|baker|barista|waiter|waitress|driver|"
    r"firefighter|paramedic|surgeon|physicist|chemist|biologist|economist|mechanic|technician|administrator|"
    r"recruiter|director|founder|ceo|cto)"
)
DIET: Final = r"(?P<object>vegan|vegetarian|pescatarian|gluten[- ]free|kosher|halal)"
_KIN: Final = {"mom": "mother", "mum": "mother", "dad": "father", "wife": "married_to", "husband": "married_to"}

ASIDE: Final = (
    r"(?:,? (?:now|currently|at the moment|right now|these days|nowadays|too|as well|again|by the way|anymore|any more|"
    r"any longer|after all|instead|actually|a lot|very much|so much|with (?:my|our|two|three) \w+|"
    r"for (?:work|my job|school|university)|"
    r"for (?:a few|many|several|some|two|three|four|five|six|ten|\d{1,2}) (?:years|months)))*"
)
TAIL: Final = rf"(?:,? (?P<when>{PAST}))?{ASIDE}$"

_EMPTY: Final = frozenset(
    {"lot", "bit", "home", "work", "town", "place", "everything", "nothing", "something", "anything"}
)
_POINTING: Final = frozenset(
    {
        *("it", "that", "this", "these", "those", "them", "him", "her", "you", "your", "yours", "his", "their", "its"),
        *("how", "what", "when", "where", "why", "which", "who", "there", "here", "one", "some", "any", "my", "our"),
        *("each", "every", "neither", "being", "having", "us", "me", "everyone", "somebody", "someone", "nobody"),
        *("all", "both", "lot", "couple", "few", "bunch", "ton", "lots"),
    }
)
_NOT_IN_THINGS: Final = frozenset(
    {
        *("former", "ex", "retired", "aspiring", "terrible", "bad", "lousy", "good", "great", "decent", "better"),
        *("careful", "future", "because", "when", "while", "but", "than", "is", "are", "was", "were", "you", "your"),
        *("it", "that", "which", "who", "bit", "until", "though", "although", "except", "anymore", "he", "she"),
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern over one clause, and the predicate of the claim it makes."""

    predicate: str
    pattern: re.Pattern[str]
    ends: bool = False
    many: bool = False


def rule(predicate: str, pattern: str, *, tail: str = TAIL, ends: bool = False, many: bool = False) -> Rule:
    """A rule for clauses that begin with this pattern and end with at most a time and an aside."""
    return Rule(predicate, re.compile(f"^{pattern}{tail}"), ends=ends, many=many)


def relation_of(word: str) -> str:
    """The predicate of a relation."""
    return _KIN.get(word, word.replace(" ", "_"))


def objects_of(text: str, *, many: bool) -> list[str]:
    """The things that a clause names; empty if one of them is not the name of a thing."""
    parts = re.split(r", and |, | and ", text) if many else [text]
    things = [re.sub(rf"^{_SOME}", "", part).strip(" .,;:!") for part in parts]
    return things if all(_is_thing(thing) for thing in things) else []


def _is_thing(text: str) -> bool:
    words = text.split()
    if not words or words[0].casefold() in _POINTING or text.casefold() in _EMPTY:
        return False
    if words[0].casefold() == "the" and (len(words) < 2 or not words[1][0].isupper()):
        return False
    return not any(word.casefold() in _NOT_IN_THINGS for word in words)


# Finds retractions in a clause: denials, and phrases that say that something is over.
#
# A denial is turned into the plain statement that it denies ("I don't live in Rome anymore" into "I live in Rome"), so
# everything that the rules can learn can also be retracted.

_NOT: Final = r"(?:not|no longer) (?!(?:only|just|yet|even|sure|really|necessarily|always|exactly|so|very|that)\b)"
_BASE: Final = {
    **{f"{verb}ing": verb for verb in ("work", "speak", "enjoy", "learn")},
    **{f"{verb[:-1]}ing": verb for verb in ("live", "drive", "use", "like", "love", "hate")},
    "preferring": "prefer",
}
_REGULAR: Final = ("live", "work", "use", "like", "love", "prefer", "speak", "drive", "run", "hate", "depend")
_THIRD: Final = {**{verb: f"{verb}s" for verb in _REGULAR}, "have": "has"}
_STOPPED: Final = r"(?:(?:have |has |['\u2019](?:ve|s) )?(?:just |recently |now )?(?:stopped|quit|gave up|given up))"
_DENIALS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(rf"^{AM}{NOW} {_NOT}(?P<rest>.+)$"), "I'm"),
    (re.compile(rf"^(?:I|i|We|we)(?: {_STOPPED}|['\u2019]ve stopped) being (?P<rest>.+)$"), "I'm"),
    (re.compile(r"^(?:[Pp]lease )?(?:[Ff]orget|[Ii]gnore|[Dd]isregard) that (?P<rest>(?:I|my)\b.+)$"), ""),
    (re.compile(r"^(?:I|i|We|we)(?: really)? (?:don['\u2019]t|do not|no longer) (?P<rest>.+)$"), "I"),
)
_STOPS_DOING: Final = re.compile(
    rf"^(?P<subject>(?:I|i|We|we)|{NAME}) {_STOPPED} (?P<verb>{'|'.join(_BASE)}) (?P<rest>.+)$"
)
_OTHER_IS_NOT: Final = re.compile(rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) (?:isn['\u2019]t |is {_NOT})(?P<rest>.+)$")
_OTHER_DOES_NOT: Final = re.compile(
    rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) (?:doesn['\u2019]t|does not) (?P<verb>{'|'.join(_THIRD)}) (?P<rest>.+)$"
)
_OTHER_NO_LONGER: Final = re.compile(
    rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) no longer (?P<verb>{'|'.join(_THIRD.values())}) (?P<rest>.+)$"
)
_FIRM: Final = re.compile(
    r"\b(?:any ?more|any longer|no longer|stopped|quit|gave up|given up|after all|turns out)\b", re.IGNORECASE
)
"""Words that imply that something was true before; a bare `not` may only mean today."""


@dataclass(frozen=True, slots=True)
class Denial:
    """The plain statement that a clause denies. `is_firm` if the clause also says that it was true before."""

    clause: str
    is_firm: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """What a clause says is over: this object under each of these predicates, or all objects if it is empty."""

    predicates: tuple[str, ...]
    object: str
    match: re.Match[str]


def denial_in(clause: str) -> Denial | None:
    """The plain statement that a clause denies, or None."""
    is_firm = _FIRM.search(clause) is not None
    for pattern, head in _DENIALS:
        if found := pattern.match(clause):
            return Denial(f"{head} {found['rest']}".strip(), is_firm)
    if found := _STOPS_DOING.match(clause):
        verb = _BASE[found["verb"]]
        is_own = found["subject"].casefold() in {"i", "we"}
        return Denial(f"{found['subject']} {verb if is_own else _THIRD.get(verb, verb)} {found['rest']}", is_firm)
    if found := _OTHER_IS_NOT.match(clause):
        return Denial(f"{found['subject']} is {found['rest']}", is_firm)
    if found := _OTHER_DOES_NOT.match(clause):
        return Denial(f"{found['subject']} {_THIRD[found['verb']]} {found['rest']}", is_firm)
    if found := _OTHER_NO_LONGER.match(clause):
        return Denial(f"{found['subject']} {found['verb']} {found['rest']}", is_firm)
    return None


def _form(predicates: str, pattern: str, *, tail: str = TAIL) -> tuple[tuple[str, ...], re.Pattern[str]]:
    return tuple(predicates.split()), re.compile(f"^{pattern}{tail}")


_DID: Final = rf"(?:{WE}|{HAVE}){NOW}"
_TASTE: Final = "likes prefers uses"
_FORMS: Final = (
    _form(
        "works_at", rf"{_DID} (?:left|quit|resigned from) (?:my (?:job|position|role) (?:at|with) )?(?P<object>{NAME})"
    ),
    _form("works_at", rf"{SELF} (?:was|got|have been) (?:fired|laid off|let go)(?: (?:from|by) (?P<object>{NAME}))?"),
    _form("works_at", rf"{_DID} (?:left|quit|lost) my job"),
    _form("works_at", rf"{AM}{NOW} (?:unemployed|between jobs|out of work|jobless)"),
    _form("works_at works_as", rf"(?:{AM}|{_DID}){NOW} retired"),
    _form("lives_in", rf"{_DID} moved (?:away from|out of) (?P<object>{PLACE})"),
    _form("lives_in", rf"{_DID} left (?P<object>{PLACE}) for good"),
    _form(
        "drives owns",
        rf"{_DID} (?:sold|gave away|got rid of|traded in|scrapped|totall?ed) (?:my|our) (?P<object>{THING})",
    ),
    _form("has_pet", rf"(?:[Mm]y|[Oo]ur) {PET},? (?P<object>{PERSON}),? (?:died|passed away|is dead)"),
    _form(
        "married_to partner girlfriend boyfriend engaged_to",
        rf"(?:{WE}|{PERSON} and I)(?: got| are|['\u2019]re)?(?: now)? "
        rf"(?:divorced|broke up|broken up|split up|separated)(?: with (?P<object>{PERSON}))?",
    ),
    _form("married_to", rf"{AM}{NOW} (?:divorced|widowed)(?: from (?P<object>{PERSON}))?"),
    _form(_TASTE, rf"{AM}{NOW} (?:done|through|finished) with (?P<object>{THING})"),
    _form(_TASTE, rf"{_DID} (?:gone|went) off (?P<object>{THING})"),
    _form(
        _TASTE,
        rf"{_DID} (?:quit|gave up|given up|stopped)"
        rf"(?: on)?(?: (?:drinking|eating|using|wearing|playing|watching|reading|buying))? (?P<object>{THING})",
    ),
    _form(f"{_TASTE} drives", rf"{_DID} switched from (?P<object>{THING}) to {THING}"),
)
_THEY_LEFT: Final = re.compile(
    rf"^(?P<subject>{NAME}) (?:has )?(?:just |recently )?(?:left|quit|resigned from) (?P<object>{NAME}){TAIL}"
)
_EATS: Final = re.compile(
    rf"^{WE}(?: (?:now|actually|do|can))? eat "
    rf"(?P<object>meat|beef|chicken|pork|fish|seafood|dairy|cheese|eggs|gluten|bread){TAIL}"
)
_MEAT: Final = ("vegan", "vegetarian", "pescatarian")
_RULED_OUT: Final = {
    **dict.fromkeys(("meat", "beef", "chicken", "pork"), _MEAT),
    **dict.fromkeys(("fish", "seafood"), ("vegan", "vegetarian")),
    **dict.fromkeys(("dairy", "cheese", "eggs"), ("vegan",)),
    **dict.fromkeys(("gluten", "bread"), ("gluten-free", "gluten free")),
}
"""The diets that exclude a food."""


def endings_in(clause: str) -> Iterator[Ending]:
    """What is over for the speaker, according to a clause."""
    for predicates, pattern in _FORMS:
        if found := pattern.match(clause):
            yield Ending(predicates, found.groupdict().get("object") or "", found)
    if found := _EATS.match(clause):
        yield from (Ending(("diet",), diet, found) for diet in _RULED_OUT[found["object"]])
        yield Ending(("does_not_eat",), found["object"], found)


def employer_left(clause: str) -> Ending | None:
    """The employer that another person left; the group `subject` of the match is the person."""
    found = _THEY_LEFT.match(clause)
    return Ending(("works_at",), found["object"], found) if found else None
