"""Building blocks of the extraction patterns, and what counts as the name of a thing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from loom.memory.extract.dates import PAST

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
