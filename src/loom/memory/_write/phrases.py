"""Phrases that the extraction rules are made of, and noun phrases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import ClassVar, Final

from loom.text.time_words import PAST


class LazyPattern:
    """A regular expression that is compiled when it is first used: most processes never extract a fact.

    With `opening`, it is compiled at the first text in which the opening is found, which every match begins with. To
    compile the openings of all rules takes a tenth of the time that the rules themselves take.
    """

    __slots__ = ("_compiled", "flags", "opening", "source")
    all: ClassVar[list[LazyPattern]] = []
    used: ClassVar[int] = 0
    """How many of them were compiled."""

    def __init__(self, source: str, flags: int = 0, *, opening: str = "") -> None:
        self.source, self.flags, self.opening = source, flags, opening
        self._compiled: re.Pattern[str] | None = None
        self.all.append(self)

    @property
    def is_compiled(self) -> bool:
        """Whether it was used before."""
        return self._compiled is not None

    @property
    def compiled(self) -> re.Pattern[str]:
        """The pattern itself."""
        if self._compiled is None:
            self._compiled = re.compile(self.source, self.flags)
            LazyPattern.used += 1
        return self._compiled

    def match(self, text: str) -> re.Match[str] | None:
        """A match at the beginning of a text."""
        if self._compiled is None and self.opening and _opening(self.opening, self.flags).match(text) is None:
            return None
        return self.compiled.match(text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """A match of a whole text."""
        return self.compiled.fullmatch(text)

    def search(self, text: str) -> re.Match[str] | None:
        """The first match in a text."""
        return self.compiled.search(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """All matches in a text."""
        if self._compiled is None and self.opening and _opening(self.opening, self.flags).search(text) is None:
            return iter(())
        return self.compiled.finditer(text)

    def split(self, text: str) -> list[str]:
        """The parts of a text between matches."""
        return self.compiled.split(text)

    def sub(self, replacement: str, text: str) -> str:
        """A text with every match replaced."""
        return self.compiled.sub(replacement, text)


@cache
def _opening(pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(pattern, flags)


SELF: Final = r"(?:I|i)"
WE: Final = r"(?:I|i|We|we)"
AM: Final = r"(?:(?:I|i)(?:['\u2019]m|m| am))"
HAVE: Final = r"(?:(?:I|i|We|we)(?:['\u2019]ve(?: got)?|ve(?: got)?| have(?: got)?))"
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
    r"neighbou?r|landlord|landlady|dentist|doctor|therapist|lawyer|accountant|coach|mentor|grandmother|grandfather|"
    r"(?:sister|brother|mother|father|son|daughter)-in-law|step(?:mother|father|sister|brother|son|daughter)|coworker|"
    r"co-worker|grandma|grandpa|grandson|granddaughter|housemate|trainer|tutor|babysitter|classmate|teammate|"
    r"fianc[e]e?)"
)
PET: Final = (
    r"(?:dog|cat|puppy|kitten|parrot|rabbit|hamster|horse|tortoise|turtle|goldfish|bird|snake|ferret|pony|pup|kitty|"
    r"guinea pig|gecko|iguana|lizard|budgie|cockatiel|chinchilla|hedgehog|bunny|poodle|labrador|lab|beagle|corgi|"
    r"[Gg]olden [Rr]etriever|[Gg]erman [Ss]hepherd|dachshund|terrier|husky|bulldog|collie|greyhound|tabby)"
)
LANGUAGE: Final = (
    r"(?:English|French|German|Spanish|Italian|Portuguese|Dutch|Polish|Czech|Russian|Ukrainian|Turkish|Arabic|Hebrew|"
    r"Hindi|Urdu|Bengali|Tamil|Chinese|Mandarin|Cantonese|Japanese|Korean|Vietnamese|Thai|Swedish|Norwegian|Danish|"
    r"Finnish|Greek|Hungarian|Romanian|Bulgarian|Croatian|Serbian|Swahili|Persian|Farsi|Indonesian|Catalan|Welsh|Irish|"
    r"Estonian|Latvian|Lithuanian|Slovak|Slovene|Icelandic|Basque|Afrikaans|Malay|Tagalog|Punjabi|Telugu|Marathi)"
)
_SOME: Final = r"(?:(?:a bit of|a little|some|basic|fluent) )?"
LANGUAGES: Final = rf"(?P<object>{_SOME}{LANGUAGE}(?:(?:, | and |, and ){_SOME}{LANGUAGE})*)"
JOB: Final = (
    r"(?:[a-zA-Z-]+ ){0,3}?(?i:engineer|developer|programmer|teacher|nurse|doctor|lawyer|designer|manager|writer|"
    r"student|architect|accountant|chef|cook|pilot|dentist|scientist|researcher|professor|analyst|consultant|"
    r"electrician|"
    r"plumber|carpenter|journalist|editor|photographer|musician|artist|actor|actress|translator|librarian|"
    r"pharmacist|therapist|psychologist|veterinarian|vet|farmer|baker|barista|waiter|waitress|driver|"
    r"firefighter|paramedic|surgeon|physicist|chemist|biologist|economist|mechanic|technician|administrator|"
    r"recruiter|director|founder|ceo|cto|specialist|marketer|coordinator|strategist|instructor|trainer|contractor|"
    r"builder|"
    r"freelancer|entrepreneur|producer|realtor|bartender|hairdresser|welder|tutor|principal|counsell?or|social worker|"
    r"caregiver|midwife|physiotherapist|radiographer|bricklayer|roofer|optician|bookkeeper|paralegal|receptionist|"
    r"firefighter|police officer|flight attendant|professional|business owner|shop owner|lecturer|surveyor|colourist|"
    r"colorist|sculptor|novelist|blogger|zookeeper|beekeeper|geologist|statistician|actuary|auditor|cashier|postman|"
    r"gardener|landscaper|joiner|tiler|decorator|seamstress|tailor|butcher|fisherman|sailor|soldier|pastor|priest|"
    r"imam|businessman|businesswoman|tradie|handyman|banker|trader|civil servant|salesman|"
    r"saleswoman|dev|devops|sysadmin)"
)
DIET: Final = r"(?P<object>vegan|vegetarian|pescatarian|gluten[- ]free|kosher|halal)"
_KIN: Final = {"mom": "mother", "mum": "mother", "dad": "father", "wife": "married_to", "husband": "married_to"}

ASIDE: Final = (
    r"(?:,? (?:now|currently|at the moment|right now|these days|nowadays|too|as well|again|by the way|anymore|any more|"
    r"any longer|after all|instead|actually|from now on|going forward|a lot|very much|so much|"
    r"with (?:my|our|two|three) \w+|for (?:work|my job|school|university)|"
    r"for (?:a few|many|several|some|two|three|four|five|six|ten|\d{1,2}) (?:years|months)))*"
)
TAIL: Final = rf"(?:,? (?P<when>{PAST}))?{ASIDE}$"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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


NOT_A_JOB: Final = _words(
    "funny huge big passionate proud natural born amateur wannabe casual keen of real fellow fake virtual "
    "fictional potential first-time would-be budding new slow fast quick visual hands-on happy busy night-time "
    "poor lazy hobby home strong solid confident beginner true horrible ai self-taught"
)
"""Words with which `I'm a ... cook` does not name a job."""
_NOT_A_NAME: Final = LazyPattern(
    r"^(?:Admin|Administrator|Root|User|System|Assistant|Bot|Agent|Support|Guest|Customer|Operator|Moderator|"
    r"Developer|Tool|Anonymous|French|German|Greek|Dutch|Czech|Swiss|Thai|Turk|Pole|Dane|Jew|Muslim|Hindu|"
    r"Sorry|Busy|Back|Ok|Okay|Fine|Good|Done|Ready|Sure|Home|Here|Late|Sick|Happy|Tired|Single|Married|Vegan)",
    re.IGNORECASE,
)
_NOT_A_PLACE: Final = _words(
    "plan phase step option version level january february march april may june july august september october november "
    "december year monday tuesday wednesday thursday friday saturday sunday marketing sales hr finance engineering it "
    "accounting support legal slack teams notion linux windows android ios python rust go postgres postgresql mysql "
    "kubernetes aws azure github gitlab jira trello firefox chrome "
    "gmail outlook react vue angular svelte vim vscode neovim zed zoom discord"
)
"""First words of what people move to, or are from, that is not a place."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern over one clause, and the predicate of the claim it makes."""

    predicate: str
    pattern: LazyPattern
    ends: bool = False
    many: bool = False


@dataclass(frozen=True, slots=True)
class Lead:
    """The words in front of an object, and the reader that says which words behind them are the object."""

    predicate: str
    pattern: LazyPattern
    read: Callable[[str], tuple[list[str], str]]


def lead(predicate: str, pattern: str, read: Callable[[str], tuple[list[str], str]]) -> Lead:
    """A rule for clauses that begin with this pattern, followed by an object."""
    return Lead(predicate, LazyPattern(f"^{pattern} "), read)


def rule(predicate: str, pattern: str, *, tail: str = TAIL, ends: bool = False, many: bool = False) -> Rule:
    """A rule for clauses that begin with this pattern and end with at most a time and an aside."""
    return Rule(predicate, LazyPattern(f"^{pattern}{tail}", opening=opening_of(f"^{pattern}")), ends=ends, many=many)


def opening_of(pattern: str) -> str:
    """What a pattern begins with, up to its first named group; the whole pattern if that is inside another group."""
    start = pattern.partition("(?P<")[0]
    return start if start.count("(") == start.count(")") else pattern


def is_meant(predicate: str, object: str) -> bool:
    """Whether an object is a name, a job, a place or a habit, if that is what its rule is about."""
    words = object.casefold().removeprefix("the ").split()
    if predicate == "name":
        return _NOT_A_NAME.fullmatch(object) is None
    if predicate == "works_as":
        return NOT_A_JOB.isdisjoint(words)
    if predicate in ("lives_in", "from", "born_in", "grew_up_in"):
        return _NOT_A_PLACE.isdisjoint(words[:1])
    return predicate != "habit" or (PRONOUNS - {"my", "our", "each", "other"}).isdisjoint(words)


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


# Noun phrases: which words behind a verb are its object, and where the object ends.

_CLOSED: Final = _words(
    "about above across after against along among around as at before behind below beside between beyond by "
    "despite down during except for from in inside into like near of off on onto out outside over past per since "
    "through throughout till to toward towards under until up upon via with within without and but so because "
    "although though while when whenever where whereas that which who whom whose what how why whether i i'm i've "
    "i'd i'll im ive you your he she it it's they they're we me him her them us my our their its this these those "
    "there here is are was were am be been being has have had do does did can could will would should may might "
    "must need now then today tomorrow yesterday lately recently currently too also again still already soon "
    "always usually often sometimes never just really very even only online anyway anymore instead together "
    "regularly frequently daily weekly mostly especially particularly specifically actually honestly anyways any "
    "plus please thanks every each last next both all most more nowadays nonstop originally myself ago once twice "
    "not personally lot ever yet first alone back away anywhere everywhere serviced fixed repaired cleaned "
    "microchipped polished tuned signed washed stolen broke needs makes helps works or lol tbh btw thx a an using "
    "including based called named made got went going trying looking"
)
"""Words that end a noun phrase: a statement may go on behind them, the name of its object does not."""
_SPOILERS: Final = frozenset({"or", "if", "unless", "than", "nor", "either"})
"""Words behind an object that take it back or make it one of several."""
CLOSED: Final = "|".join(sorted({*_CLOSED, "I"}))
OPEN_END: Final = rf"(?=$|[,;:!?)]|\. |\.$|['\u2019]s\b| [-\u2013\u2014] | (?:{CLOSED})\b)"
"""Behind an object: the end of the clause, or a word with which something else begins."""
OPEN: Final = rf"(?:,? (?P<when>{PAST}))?{OPEN_END}"
"""The same, with a time in front."""


def passing(predicate: str, pattern: str, *, ends: bool = False, many: bool = False) -> Rule:
    """A rule for clauses that begin with this pattern, whatever they say behind it."""
    return rule(predicate, pattern, tail=OPEN, ends=ends, many=many)


def mention(predicate: str, pattern: str, *, tail: str = OPEN) -> Rule:
    """A rule for a pattern anywhere in a sentence."""
    return Rule(predicate, LazyPattern(f"{pattern}{tail}", opening=opening_of(pattern)))


_TOKEN: Final = LazyPattern(r"[^\W_][\w'\u2019&+#/.-]*")
_MOST_WORDS: Final = 7
PRONOUNS: Final = _words(
    "i me my mine myself you your yours yourself he him she her hers it its itself we us our ours they them their "
    "theirs themselves himself this that these those one ones something anything everything nothing someone each "
    "another other others same such both some any all no not herself"
)
_CHOICES: Final = _words(
    "option options number idea ideas plan plans choice version suggestion answer suggestions approach concept "
    "way ways part parts sound look looks feel vibe thing things stuff name title draft point points thought "
    "feature fact case design layout theme format list table step phase section example response recommendation "
    "recommendations pick angle mix structure style tone proposal bit lot lots kind sort type couple few bunch "
    "variety touch combination blend challenge process progress energy result results reply question questions "
    "text time moment moments opportunity"
)
"""Heads of what is chosen or praised at the moment: `I like option 2`, `I love the idea`."""
_ADJECTIVE: Final = LazyPattern(
    r".*(?:ful|ous|ive|able|ible|less|ical|ional)|unique|new|old|good|great|nice|big|small|different|certain|best|"
    r"better"
    r"|own|many|much|several|various|quick|easy|simple|hard|clear|real|sure|ready|simpler|easier|cool|fun|funny|honest",
    re.IGNORECASE,
)
_ACTIVITY: Final = LazyPattern(
    r"(?:bak|bik|bowl|box|camp|climb|cook|cycl|danc|draw|driv|fish|garden|gam|golf|hik|hunt|jogg|kayak|knitt|meditat|"
    r"paint"
    r"|photograph|read|rid|runn|sail|sew|shopp|sing|skat|ski|snorkel|snowboard|surf|swimm|teach|travell?|train|"
    r"volunteer"
    r"|walk|writ|craft|brew|journal|sketch|fenc|row|div|canoe|crochet|quilt|weld|woodwork|stargaz|birdwatch|thrift"
    r"|backpack|sightsee|weightlift|boulder|roller-?skat)ing",
    re.IGNORECASE,
)
"""Activities that people like in general; `seeing you smile` is not one."""
_ACTIVITY_WITH: Final = LazyPattern(
    r"(?:collect|explor|listen|learn|play|practic|practis|spend|try|visit|watch|work|mak|do|wear|drink|eat|"
    r"org[ae]ni[sz]|us"
    r"|discover|experiment|attend|host|go)ing",
    re.IGNORECASE,
)
"""Activities that need an object: `playing chess`."""
_PAIRS: Final = LazyPattern(
    r"(?:rock and roll|mac and cheese|fish and chips|peanut butter and jelly|arts and crafts|dungeons and dragons"
    r"|salt and pepper|black and white|drum and bass|rhythm and blues|bed and breakfasts?|gin and tonics?)\b",
    re.IGNORECASE,
)
"""Names with an `and` inside."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase, and the text behind it."""

    text: str
    rest: str


def noun_phrase(text: str) -> Phrase | None:
    """The words at the beginning of a text up to one that cannot belong to them; None if the words do not end."""
    words: list[str] = []
    position = end = 0
    while found := _TOKEN.compiled.match(text, position):
        word = found[0].rstrip(".'\u2019-/")
        if not word or (word.casefold() in _CLOSED and (words or word.casefold() != "using")):
            break
        words.append(word)
        end = position + len(word)
        if len(words) > _MOST_WORDS:
            return None
        if text[end : end + 1] != " ":
            break
        position = end + 1
    rest = text[end:]
    following = rest.split(maxsplit=1)[0].casefold() if rest.strip() else ""
    return Phrase(" ".join(words), rest) if words and following not in _SPOILERS else None


def liked_in(text: str) -> tuple[list[str], str]:
    """What a text begins with that somebody likes, dislikes or prefers, and the text behind; lists item by item.

    A list is taken apart only if each of its items is a noun phrase by itself: `jazz, hiking and board games`. Where
    it is not one, only its first item counts.
    """
    if pair := _PAIRS.match(text):
        return [pair[0]], text[pair.end() :]
    first = _with_place(text)
    if first is None or _NARROWED.match(first.rest):
        return [], text
    items, separators, rest = [first.text], list[str](), first.rest
    while not _HAS_PLACE.search(items[-1]) and (found := _SEPARATOR.match(rest)):
        following = _with_place(rest[found.end() :])
        if following is None or _NARROWED.match(following.rest):
            break
        items, rest = [*items, following.text], following.rest
        separators.append(found[0])
        if "and" in found[0]:
            break
    is_list = all("and" not in mark for mark in separators[:-1]) and all("and" in mark for mark in separators[-1:])
    after = noun_phrase(rest[found.end() :]) if (found := _SEPARATOR.match(rest)) else None
    is_list = is_list and (after is None or after.text.startswith("the "))
    if len(items) == 2 and _share_a_word(*items):
        return ([f"{items[0]} and {items[1]}"], rest) if is_list else ([], text)
    return (items, rest) if is_list else (items[:1], first.rest)


def _share_a_word(one: str, other: str) -> bool:
    """Whether two items have a word in common that is said once: `sweet and savoury snacks`, `making jam and bread`."""
    if _ACTIVITY_WITH.fullmatch(one.partition(" ")[0]):
        return not other.partition(" ")[0].endswith("ing")
    return " " not in one and " " in other and not one.endswith(("s", "ing")) and not other[0].isupper()


_SEPARATOR: Final = LazyPattern(r",? and |, ")
_HAS_PLACE: Final = LazyPattern(r" (?:in|on|of|about|with|from|for|at|to|by|over|instead of|rather than) ")
_PLACED_IN: Final = LazyPattern(r"^ (?:in|on|of|about|with|from|for|at) (?:the )?")
_LISTENING: Final = LazyPattern(
    r"^(?:(?:listening|going|travell?ing) to|learning about|spending (?:quality )?time (?:in|with)) (?:the )?"
)
_NARROWED: Final = LazyPattern(
    r"^ (?:that|who|whom|whose|which|I|you|he|she|we|they|being|is|are|was|were|my|our|your|his|her|their|it|him|them|"
    r"us|(?:like|such as) (?:this|that|these|those|it|yours?)|(?:with|of|about|in) an?)\b"
)
"""Words behind a phrase that make it mean less: `games that test my patience` are not games."""


def _with_place(text: str) -> Phrase | None:
    """A noun phrase with what is said of it behind a preposition: `books about birds`."""
    if heard := _LISTENING.match(text):
        what = noun_phrase(text[heard.end() :])
        return Phrase(heard[0] + what.text, what.rest) if what and is_liking(what.text) else None
    first = noun_phrase(text)
    if first is None or not is_liking(first.text):
        return None
    if not (found := _PLACED_IN.match(first.rest)):
        return first
    second = noun_phrase(first.rest[found.end() :])
    if second is None or not is_liking(second.text, choices=frozenset()) or _NARROWED.match(second.rest):
        return first
    if len(first.text.split()) + len(second.text.split()) > _MOST_WORDS:
        return first
    return Phrase(first.text + found[0] + second.text, second.rest)


def is_liking(text: str, *, choices: frozenset[str] = _CHOICES) -> bool:
    """Whether a phrase names a thing or an activity that can be liked in general, and not a choice of the moment."""
    words = text.split()
    folded = [word.casefold() for word in words]
    if words[0] in ("the", "The"):
        return len(words) > 1 and all(word[0].isupper() for word in words[1:])
    if folded[0].endswith("ing") and not (
        folded[0] in _NOUNS_IN_ING
        or _ACTIVITY.fullmatch(folded[0])
        or (len(words) > 1 and _ACTIVITY_WITH.fullmatch(folded[0]))
    ):
        return False
    last = folded[-1]
    if last in choices or _ADJECTIVE.fullmatch(last) or any(word in choices for word in folded[:1]):
        return False
    if PRONOUNS.intersection(folded) or _POINTING.intersection(folded[:1]) or not words[0][0].isalpha():
        return False
    return not any(word in _NOT_IN_THINGS or word.endswith(("n't", "n\u2019t")) for word in folded)


_NOUNS_IN_ING: Final = _words(
    "morning evening spring string wedding building clothing ring king ceiling pudding stuffing seating lighting"
)


_ABSTRACT: Final = LazyPattern(
    r"(?:\w+(?:ness|ity|tion|ism|cracy|ship|(?<!st)ings?)|\w{3,}(?<!pig)(?<!oint)ments?|mondays?|mornings?|work|math|maths|"
    r"drama|fun|people|humans|nonsense|bullshit|exercise|sports?|email|emails|politics|small talk|bad (?:code|music))",
    re.IGNORECASE,
)
"""The last word of what people are allergic to in jest: `meetings`, `stupidity`; but not `bee stings`, `ointments`."""


def allergens_in(text: str) -> tuple[list[str], str]:
    """What a text begins with that somebody is allergic to."""
    items, rest = liked_in(text)
    return [item for item in items if not _ABSTRACT.fullmatch(item.split()[-1])], rest


_IN_GENERAL: Final = LazyPattern(
    r"^ (?:(?:on|for|in|at) (?:all |most |long |short )?[\w-]+s\b|in general|usually\b|over an? )"
)
"""Words behind a thing that is preferred each time."""


def preferred_in(text: str) -> tuple[list[str], str]:
    """What a text begins with that somebody prefers, with what they prefer it to; a way of doing things, too.

    One thing (`an aisle seat`) may be a choice of the moment, unless it is told for what in general (`on flights`).
    """
    if (one := _ONE.match(text)) and (thing := noun_phrase(text[one.end() :])) and _IN_GENERAL.match(thing.rest):
        text = text[one.end() :]
    doing = _DOING.match(text)
    start = doing.end() if doing and noun_phrase(text[doing.end() :]) else 0
    first = _with_place(text[start:])
    if first is None or _NARROWED.match(first.rest):
        return [], text
    first = Phrase(text[:start] + first.text, first.rest)
    if found := _TO_WHAT.match(first.rest):
        second = noun_phrase(first.rest[found.end() :])
        if second is not None and is_liking(second.text):
            return [first.text + found[0] + second.text], second.rest
    return [first.text], first.rest


_ONE: Final = LazyPattern(r"^an? (?=[a-z])")
_DOING: Final = LazyPattern(
    r"^(?!being|having|seeing|going|something|anything|nothing|everything)[a-z]{2,}ing (?=[a-z])"
)
_TO_WHAT: Final = LazyPattern(r"^ (?:over|rather than|instead of) ")

_DURABLE: Final = _words(
    "car truck van suv motorcycle motorbike scooter bike bicycle e-bike ebike boat kayak canoe paddleboard "
    "surfboard "
    "skateboard snowboard skis caravan campervan rv trailer phone smartphone iphone ipad tablet laptop macbook "
    "computer pc desktop monitor keyboard printer scanner router tv television projector console playstation xbox "
    "switch camera lens tripod drone telescope binoculars microphone headphones earbuds speaker soundbar turntable "
    "smartwatch watch fitbit kindle e-reader guitar ukulele violin viola cello piano drums saxophone trumpet "
    "flute clarinet harmonica banjo mandolin synthesizer accordion amp amplifier mixer blender fryer cooker oven "
    "microwave toaster fridge refrigerator freezer dishwasher washer dryer vacuum thermostat smoker grill barbecue "
    "bbq kettle grinder espresso-maker machine couch sofa mattress desk armchair bookshelf dresser wardrobe lamp "
    "treadmill dumbbells kettlebell barbell elliptical racket racquet tent backpack sneakers boots bracelet "
    "necklace "
    "earrings typewriter aquarium greenhouse trampoline hammock helmet"
)
"""Things that people keep for years; what is eaten, given away or used up is not a possession."""
_TELLING: Final = _words(
    "car truck van suv motorcycle motorbike scooter bike bicycle e-bike ebike boat kayak canoe paddleboard "
    "surfboard "
    "caravan campervan rv drone telescope smartwatch fitbit kindle ipad macbook playstation xbox guitar ukulele "
    "violin "
    "viola cello piano saxophone trumpet flute clarinet banjo mandolin accordion smoker treadmill aquarium "
    "greenhouse "
    "trampoline typewriter snowboard skateboard projector turntable"
)
"""Those that say something about their owner without any further word; everybody has a phone."""
_BRANDS: Final = _words(
    "samsung apple iphone ipad macbook pixel sony canon nikon fujifilm leica gopro dji bose sennheiser logitech "
    "dell lenovo thinkpad hp asus acer kindle fitbit garmin roland yamaha fender gibson taylor ibanez steinway "
    "kawai "
    "korg casio toyota honda ford tesla volvo bmw audi mercedes volkswagen mazda subaru nissan hyundai kia jeep "
    "chevrolet chevy lexus porsche renault peugeot fiat skoda harley vespa trek specialized giant brompton "
    "cannondale "
    "kitchenaid dyson roomba instant keurig nespresso breville traeger weber peloton nintendo playstation xbox "
    "ikea "
    "casper manfrotto herman fossil seiko rolex patagonia osprey"
)
_NOT_OWNED: Final = _words(
    "old previous former ex last dream next future rental rented borrowed stolen lost company work school office "
    "local "
    "favorite favourite first potential ideal current-gen friend parents neighbor neighbour hotel whole entire own "
    "other second-choice fake virtual broken late"
)
_PRAISE: Final = LazyPattern(
    r"^(?:(?:brand[- ]new|new|really|very|super|nice|great|beautiful|lovely|cute|amazing|gorgeous|stunning|cool|fancy|"
    r"little|existing|good|awesome|fantastic|trusty|beloved|pair of|set of|set|current|own|sturdy|decent|used|"
    r"second-hand)\b ?)++"
)


_SOMEBODY: Final = LazyPattern(
    rf"(?:{RELATION}|teacher|professor|client|guest|kids?|child|boy|girl|{PET})s?", re.IGNORECASE
)
_IN_NO_THING: Final = _words("the a an")
_MATERIALS: Final = _words("sports canvas gas brass glass bass wireless cordless tennis christmas business fitness")


def _is_clause(words: list[str]) -> bool:
    """Whether words that end in a thing say what somebody does with it: `son Leo plays the cello`."""
    does = any(word.endswith("s") and word.islower() and word not in _MATERIALS for word in words[1:-1])
    return does or _SOMEBODY.fullmatch(words[0]) is not None or not _IN_NO_THING.isdisjoint(words)


_WHOSE: Final = LazyPattern(r"^((?:[\w-]+ ){0,2}[\w-]+)['\u2019]s ")
_COLLECTED: Final = _words(
    "coin stamp vinyl record jewelry jewellery shoe sneaker camera watch book comic art doll figurine plant card "
    "postcard perfume whisky whiskey wine toy music movie film vintage baseball memorabilia guitar cookbook"
)


def owned_in(text: str) -> tuple[list[str], str]:
    """The lasting thing that a text begins with, without praise: `road bike`, of `great new road bike for winter`."""
    start = found.end() if (found := _PRAISE.match(text)) else 0
    whose = _WHOSE.match(text[start:])
    phrase = Phrase(whose[1], "") if whose else noun_phrase(text[start:])
    if phrase is None or "\u2019" in phrase.text or "'" in phrase.text or phrase.rest[:1] in ("'", "\u2019", "/", "-"):
        return [], text
    words = phrase.text.split()
    folded = [word.casefold() for word in words]
    named = list(takewhile(lambda word: not word[0].islower(), words))
    is_cut = folded[0] in _BRANDS and folded[-1] not in _DURABLE and 1 < len(named) < len(words)
    if is_cut and folded[len(named)].endswith(("s", "ed")):  # `my Nissan Leaf needs oil`
        words, folded = named, folded[: len(named)]
        phrase = Phrase(" ".join(named), "")
    is_model = folded[0] in _BRANDS and words[0][0].isupper() and (len(words) > 1 or folded[0] in _DURABLE)
    is_kind = folded[-1] in _DURABLE and (len(words) > 1 or folded[-1] in _TELLING)
    is_kind = is_kind or (folded[-1] == "collection" and len(words) > 1 and folded[-2] in _COLLECTED)
    if not (is_model or is_kind) or _NOT_OWNED.intersection(folded) or PRONOUNS.intersection(folded):
        return [], text
    if len(words) > 1 and _is_clause(words):
        return [], text
    if is_model and not is_kind and any(word[0].islower() for word in words):
        return [], text  # `Samsung store`
    if any(_ADJECTIVE.fullmatch(word) for word in folded[:-1]) and not is_model:
        return [], text
    return [phrase.text], phrase.rest


_TOOL_KINDS: Final = _words("app apps software website extension platform planner spreadsheet")


def tool_in(text: str) -> tuple[list[str], str]:
    """The named tool that a text begins with: `Notion`, `the Notes app`."""
    start = 4 if text.startswith("the ") else 0
    phrase = noun_phrase(text[start:])
    if phrase is None or phrase.rest[:1] in ("'", "\u2019"):
        return [], text
    words = phrase.text.split()
    small = [word for word in words if not (word[0].isupper() or word[0].isdigit())]
    if not words[0][0].isupper() or words[0].casefold() in _NOT_TOOLS or any(w not in _TOOL_KINDS for w in small):
        return [], text
    if start and not small:
        return [], text
    return [phrase.text], phrase.rest


_NOT_TOOLS: Final = _words("wi-fi wifi english google-fu i internet option plan version ai")


# Vocabulary of the rules about the speaker: places, jobs, illnesses, habits, events.

FOOD: Final = (
    r"(?:(?:red |white |raw |processed )?(?:meat|pork|beef|lamb|chicken|poultry|fish|seafood|shellfish|dairy|milk|"
    r"cheese|eggs|gluten|wheat|bread|sugar|nuts|peanuts|soy|mushrooms|onions|garlic|carbs))"
)
MODEL: Final = rf"(?P<object>(?:(?:19|20)\d\d )?{THING})"
WORK: Final = rf"(?:{SELF}{NOW} work|{AM}{NOW} working|{HAVE} been working)"
COUNTRY: Final = rf"(?:the )?{PLACE}"
FIRM: Final = rf"(?:the )?{NAME}"
HOME: Final = rf"{OPEN}(?! for (?:an?|one|two|three|\d|work next|the (?:week|summer|winter|month))\b)"
MUCH: Final = (
    r"(?: (?:really|also|still|absolutely|just|do|personally|truly|generally|definitely|always|particularly|actually|"
    r"now|currently|mostly|mainly)\b)*+"
)
COUNT: Final = r"(?:one|two|three|four|five|six|seven|\d)"
KIDS: Final = (
    r"(?:(?:young|little|teenage|adult|grown|older|younger|small|beautiful) )?"
    r"(?:kids|children|sons|daughters|boys|girls|grandchildren|grandkids|twins)"
)
STUDY_SUBJECT: Final = (
    r"(?:[A-Z][\w&-]*(?: (?:and |of )?[A-Z][\w&-]*){0,3}|(?:computer|data|political|environmental|veterinary) science|"
    r"biology|chemistry|physics|law|medicine|nursing|economics|history|psychology|(?:\w+ )?engineering|marketing|"
    r"finance|"
    r"accounting|philosophy|art history|linguistics|mathematics|maths?|business(?: administration)?|architecture|"
    r"(?:graphic )?design|journalism|education|sociology|anthropology|literature|social work|pharmacy|music|fine arts?)"
)
DEGREE: Final = (
    r"(?:(?:[Bb]achelor|[Mm]aster|[Aa]ssociate)(?:['\u2019]?s)?(?: degree| of \w+)?|degree|doctorate|diploma|BA|BS|"
    r"BSc|MA|MS"
    r"|MSc|MBA|PhD|Ph\.D\.?)"
)
ILLNESS: Final = (
    r"(?:(?:chronic|severe|mild|seasonal|acute|type [12]|high|low|rheumatoid|ulcerative) )?(?:diabetes|asthma|"
    r"arthritis|"
    r"adhd|ADHD|celiac disease|coeliac disease|ibs|IBS|migraines?|sinusitis|eczema|blood pressure|hypertension|"
    r"sleep apn(?:o)?ea"
    r"|gerd|GERD|acid reflux|endometriosis|hypothyroidism|an[a]?emia|dyslexia|tinnitus|pcos|PCOS|epilepsy|psoriasis"
    r"|scoliosis|gout|fibromyalgia|crohn's disease|Crohn's disease|colitis|back pain|hay fever|rosacea|osteoporosis"
    r"|plantar fasciitis|vertigo|lupus|multiple sclerosis|autism)"
)
FIELD: Final = (
    r"(?:the )?(?:finance|marketing|tech|IT|healthcare|education|hospitality|retail|construction|real estate|insurance|"
    r"banking|advertising|publishing|logistics|manufacturing|sales|HR|human resources|customer service|cybersecurity|"
    r"software|fashion|film|media|law|consulting|agriculture|biotech|accounting|engineering|social work)"
    r"(?: (?:industry|sector|field|business))?"
)
INSTRUMENT: Final = (
    r"(?:(?:acoustic |electric |classical |bass )*(?:guitar|piano|violin|viola|cello|ukulele|flute|clarinet|saxophone|"
    r"trumpet|trombone|drums|banjo|harp|accordion|harmonica|mandolin|keyboard|organ|oboe))"
)
SPORT: Final = (
    r"(?:(?:indoor |beach |table |co-ed )?(?:tennis|soccer|football|basketball|volleyball|badminton|golf|cricket|"
    r"rugby|hockey"
    r"|squash|chess|baseball|softball|poker|padel|pickleball|bridge|netball))"
)
WEEKDAY: Final = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
CLOCK: Final = (
    r"(?:at|around|by) (?:about |around )?\d{1,2}(?::\d\d)?(?:-\d{1,2}(?::\d\d)?)? ?(?:am|pm|AM|PM|a\.m|p\.m)\b\.?"
)
EVERY: Final = (
    rf"(?:every (?:single |other )?(?:day|morning|evening|night|week|weekend|month|weekday|{WEEKDAY})(?: (?:morning|"
    rf"evening|"
    rf"afternoon|night))?|on (?:weekdays|weekends|{WEEKDAY}s)(?:(?:,| and|, and) {WEEKDAY}s)*|(?:once|twice|"
    rf"{COUNT} times|"
    rf"{COUNT} days) (?:a|per) (?:day|week|month)|\d{{1,2}} hours (?:a|per) (?:day|week))(?: {CLOCK})?"
)
SOMETIME: Final = (
    rf"(?:{CLOCK}(?: {EVERY})?|{EVERY}|in the (?:mornings?|evenings?|afternoons?)|before bed|at night|"
    r"during my (?:lunch break|(?:daily |morning )?commute)|after (?:work|dinner|school))"
)
ROUTINE: Final = (
    r"(?:wake up|get up|go|run|jog|swim|cycle|bike|ride|walk|train|work out|work|exercise|meditate|practi[cs]e|play|"
    r"read|"
    r"drink|eat|cook|watch|listen to|attend|take|do|study|visit|call|teach|volunteer|commute|drive|have|start|finish|"
    r"get home|leave|write|journal|stretch|shop|meet|post|sleep|tutor|coach|host|lift)"
)
ROUTINELY: Final = (
    r"(?:going|running|jogging|swimming|cycling|biking|riding|walking|training|working out|exercising|meditating|"
    r"practi[cs]ing|playing|attending|taking|doing|volunteering|waking up|getting up|reading|teaching|meeting)"
)
DO: Final = r"(?:[\w'\u2019&+/-]+ ){0,8}?"
THEN: Final = r"(?=$|[,;.!]| (?:and|but|so|because|which|when|while|to|with|for|since)\b)"
EVENT: Final = (
    r"(?:trip|vacation|holiday|honeymoon|getaway|wedding|appointment|interview|exam|surgery|flight|marathon|conference|"
    r"presentation|recital|graduation|reunion|concert|tournament|move|road trip|cruise|deadline|ceremony|race|"
    r"triathlon)"
)
DAY: Final = (
    r"(?:(?:January|February|March|April|May|June|July|August|September|October|November|December) \d{1,2}(?:st|nd|"
    r"rd|th)?"
    r"|\d{1,2}(?:st|nd|rd|th)?(?: of)? (?:January|February|March|April|May|June|July|August|September|October|November"
    r"|December))(?:,? (?:19|20)\d\d)?"
)
HELPED: Final = (
    rf"(?:the |a |an |our |my )?(?P<object>(?:(?:local|nearby|community) )?(?:animal shelter|food bank|soup kitchen|"
    rf"library|"
    rf"hospital|homeless shelter|school|church|museum|hospice|charity shop|nursing home)|{NAME})"
)
MINE: Final = r"\b(?:[Mm]y|[Oo]ur)"
NEAR: Final = r"(?:(?:close|old|good|dear|older|younger|little|big|twin|late|eldest|oldest|youngest|college|work) )*"
NAMED: Final = (
    r"(?P<object>(?:(?:Mr|Mrs|Ms|Dr|Prof)\.? )?(?!(?:Mr|Mrs|Ms|Dr|Prof|Miss|Sir|Madam|God|Thanks|The|And|But|So|What|"
    r"How|Can|Could|Do|Is|It|We|You|Hey|Hi|Oh|Happy|Christmas|Easter|Thanksgiving|Halloween|January|February|March|"
    r"April|June|July|August|September|October|November|December|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b)"
    r"[A-Z\u00c0-\u00de][a-z\u00df-\u00ff]+(?: [A-Z\u00c0-\u00de][a-z\u00df-\u00ff]+)?)"
)
CALLED: Final = r"(?: | named | called |, (?=[A-Z]\w+(?: [A-Z]\w+)?(?:,(?! and I\b)|[.?!]|$|['\u2019]s| who| is)))"
UNNAMED: Final = r"(?!['\u2019]s name| (?:is )?(?:called|named)|, [A-Z]| of\b)"
HOBBY: Final = (
    r"(?:painting|running|surfing|swimming|cycling|climbing|hiking|dancing|knitting|gardening|photography|pottery|yoga|"
    r"woodworking|fishing|sailing|skiing|boxing|kickboxing|archery|fencing|crocheting|quilting|bouldering|baking|"
    r"lifting "
    r"weights|doing yoga|doing pottery|practi[cs]ing yoga|playing (?:chess|tennis|guitar|piano|violin))"
)
FAVOURED: Final = (
    r"(?:colou?r|food|dish|band|singer|author|book|novel|film|movie|show|series|season|sport|team|player|restaurant|"
    r"city|"
    r"country|drink|dessert|cuisine|artist|genre|song|album|game|animal|flower|holiday|cafe|coffee shop|park|museum|"
    r"composer|director|poet|podcast|beach|recipe|snack|fruit|brand)"
)
DOCTOR: Final = (
    r"(?P<relation>doctor|physician|dentist|dermatologist|therapist|specialist|surgeon|cardiologist|neurologist|"
    r"gyn(?:a)?ecologist|p(?:a)?ediatrician|vet|psychiatrist|oncologist|optometrist|orthodontist)"
)
LEADS: Final = (
    lead("likes", rf"{SELF}{MUCH} (?:like|love|enjoy|adore)", liked_in),
    lead(
        "likes",
        rf"(?:{HAVE} (?:come|grown|learn(?:ed|t))|{SELF} (?:came|grew|learn(?:ed|t))) to (?:like|love|enjoy)",
        liked_in,
    ),
    lead("likes", rf"{AM}{NOW} an? (?:(?:big|huge|massive|avid|lifelong|real|long-time) )?fan of", liked_in),
    lead("likes", rf"{AM}{NOW}(?: (?:really|very|super|pretty|quite|big))? into", liked_in),
    lead(
        "likes",
        rf"{HAVE} (?:(?:always|recently|lately) )?(?:been (?:really |pretty |super |getting )?into|loved)",
        liked_in,
    ),
    lead("likes", rf"{HAVE} always been an? (?:(?:big|huge) )?fan of", liked_in),
    lead(
        "interested_in",
        rf"{HAVE} always been (?:really |very |deeply )?(?:interested in|fascinated (?:by|with)|passionate about)",
        liked_in,
    ),
    lead("interested_in", rf"{AM}{NOW} (?:really |very |deeply )?(?:passionate about|obsessed with)", liked_in),
    lead(
        "dislikes",
        rf"{SELF}{MUCH} (?:dislike|hate|can['\u2019]?t stand|(?:don['\u2019]?t|do not)(?: really)? like)",
        liked_in,
    ),
    lead("prefers", rf"{SELF}{MUCH} prefer", preferred_in),
    lead("allergic_to", rf"{AM}{NOW} (?:(?:severely|very|highly|deathly|mildly) )?allergic to", allergens_in),
    lead("collects", rf"(?:{SELF}{NOW} collect|{AM}{NOW} collecting)", liked_in),
    lead("owns", rf"(?:{SELF}{NOW} have|{HAVE}{NOW}) (?:an?|my own)", owned_in),
    lead(
        "owns",
        rf"(?:{WE}|{HAVE}){NOW}(?: finally)? (?:bought|got|purchased|picked up|invested in|"
        rf"upgraded to)(?: myself)? (?:an?|my)",
        owned_in,
    ),
    lead(
        "uses",
        rf"(?:{SELF}{NOW}(?: (?:usually|mostly|mainly|always|often|normally))? use|{AM}{NOW} using|"
        rf"{HAVE}{NOW} been using|(?:{SELF}|{HAVE}){NOW} switched to)",
        tool_in,
    ),
)
"""Rules whose object is a noun phrase of any kind."""
