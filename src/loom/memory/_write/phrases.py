"""Phrases that the extraction rules are made of, noun phrases, and retractions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from loom.text.time_words import PAST


class LazyPattern:
    """A regular expression that is compiled when it is first used: most processes never extract a fact."""

    __slots__ = ("_compiled", "flags", "source")

    def __init__(self, source: str, flags: int = 0) -> None:
        self.source, self.flags = source, flags
        self._compiled: re.Pattern[str] | None = None

    @property
    def compiled(self) -> re.Pattern[str]:
        """The pattern itself."""
        if self._compiled is None:
            self._compiled = re.compile(self.source, self.flags)
        return self._compiled

    def match(self, text: str) -> re.Match[str] | None:
        """A match at the beginning of a text."""
        return self.compiled.match(text)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        """A match of a whole text."""
        return self.compiled.fullmatch(text)

    def search(self, text: str) -> re.Match[str] | None:
        """The first match in a text."""
        return self.compiled.search(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """All matches in a text."""
        return self.compiled.finditer(text)

    def split(self, text: str) -> list[str]:
        """The parts of a text between matches."""
        return self.compiled.split(text)

    def sub(self, replacement: str, text: str) -> str:
        """A text with every match replaced."""
        return self.compiled.sub(replacement, text)


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
    r"co-worker|grandma|grandpa|grandson|granddaughter|housemate|trainer|tutor|babysitter|classmate|teammate|fianc[e]e?)"
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
    r"student|architect|accountant|chef|cook|pilot|dentist|scientist|researcher|professor|analyst|consultant|electrician|"
    r"plumber|carpenter|journalist|editor|photographer|musician|artist|actor|actress|translator|librarian|"
    r"pharmacist|therapist|psychologist|veterinarian|vet|farmer|baker|barista|waiter|waitress|driver|"
    r"firefighter|paramedic|surgeon|physicist|chemist|biologist|economist|mechanic|technician|administrator|"
    r"recruiter|director|founder|ceo|cto|specialist|marketer|coordinator|strategist|instructor|trainer|contractor|builder|"
    r"freelancer|entrepreneur|producer|realtor|bartender|hairdresser|welder|tutor|principal|counsell?or|social worker|"
    r"caregiver|midwife|physiotherapist|radiographer|bricklayer|roofer|optician|bookkeeper|paralegal|receptionist|"
    r"firefighter|police officer|flight attendant|professional|business owner|shop owner|lecturer|surveyor|colourist|"
    r"colorist|sculptor|novelist|blogger|zookeeper|beekeeper|geologist|statistician|actuary|auditor|cashier|postman|"
    r"gardener|landscaper|joiner|tiler|decorator|seamstress|tailor|butcher|fisherman|sailor|soldier|pastor|priest|imam)"
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


NOT_A_JOB: Final = frozenset(
    {
        *(
            "funny",
            "huge",
            "big",
            "passionate",
            "proud",
            "natural",
            "born",
            "amateur",
            "wannabe",
            "casual",
            "keen",
            "of",
        ),
        *("real", "fellow", "fake", "virtual", "fictional", "potential", "first-time", "would-be", "budding", "new"),
        *(
            "slow",
            "fast",
            "quick",
            "visual",
            "hands-on",
            "happy",
            "busy",
            "night-time",
            "poor",
            "lazy",
            "hobby",
            "home",
        ),
        *("strong", "solid", "confident", "beginner", "true", "horrible", "fictional", "ai", "self-taught", "keen"),
    }
)
"""Words with which `I'm a ... cook` does not name a job."""


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
    return Rule(predicate, LazyPattern(f"^{pattern}{tail}"), ends=ends, many=many)


def mention(predicate: str, pattern: str, *, tail: str) -> Rule:
    """A rule for a pattern anywhere in a sentence."""
    return Rule(predicate, LazyPattern(f"{pattern}{tail}"))


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

_CLOSED: Final = frozenset(
    {
        *("about", "above", "across", "after", "against", "along", "among", "around", "as", "at", "before", "behind"),
        *("below", "beside", "between", "beyond", "by", "despite", "down", "during", "except", "for", "from", "in"),
        *(
            "inside",
            "into",
            "like",
            "near",
            "of",
            "off",
            "on",
            "onto",
            "out",
            "outside",
            "over",
            "past",
            "per",
            "since",
        ),
        *("through", "throughout", "till", "to", "toward", "towards", "under", "until", "up", "upon", "via", "with"),
        *("within", "without", "and", "but", "so", "because", "although", "though", "while", "when", "whenever"),
        *("where", "whereas", "that", "which", "who", "whom", "whose", "what", "how", "why", "whether", "i", "i'm"),
        *("i've", "i'd", "i'll", "im", "ive", "you", "your", "he", "she", "it", "it's", "they", "they're", "we", "me"),
        *("him", "her", "them", "us", "my", "our", "their", "its", "this", "these", "those", "there", "here", "is"),
        *("are", "was", "were", "am", "be", "been", "being", "has", "have", "had", "do", "does", "did", "can", "could"),
        *("will", "would", "should", "may", "might", "must", "need", "now", "then", "today", "tomorrow", "yesterday"),
        *("lately", "recently", "currently", "too", "also", "again", "still", "already", "soon", "always", "usually"),
        *("often", "sometimes", "never", "just", "really", "very", "even", "only", "online", "anyway", "anymore"),
        *("instead", "together", "regularly", "frequently", "daily", "weekly", "mostly", "especially", "particularly"),
        *(
            "specifically",
            "actually",
            "honestly",
            "anyways",
            "any",
            "plus",
            "please",
            "thanks",
            "every",
            "each",
            "last",
        ),
        *("next", "both", "all", "most", "more", "nowadays", "nonstop", "originally", "myself", "ago", "once", "twice"),
        *("not", "personally", "lot", "ever", "yet", "first", "alone", "back", "away", "anywhere", "everywhere"),
        *("serviced", "fixed", "repaired", "cleaned", "microchipped", "polished", "tuned", "signed", "washed"),
        *("stolen", "broke", "needs", "makes", "helps", "works", "or", "lol", "tbh", "btw", "thx"),
        *(
            "a",
            "an",
            "using",
            "including",
            "based",
            "called",
            "named",
            "made",
            "got",
            "went",
            "going",
            "trying",
            "looking",
        ),
    }
)
"""Words that end a noun phrase: a statement may go on behind them, the name of its object does not."""
_SPOILERS: Final = frozenset({"or", "if", "unless", "than", "nor", "either"})
"""Words behind an object that take it back or make it one of several."""
CLOSED: Final = "|".join(sorted(_CLOSED))
OPEN_END: Final = rf"(?=$|[,;:!?)]|\. |\.$|['\u2019]s\b| [-\u2013\u2014] | (?i:{CLOSED})\b)"
"""Behind an object: the end of the clause, or a word with which something else begins."""
OPEN: Final = rf"(?:,? (?P<when>{PAST}))?{OPEN_END}"
"""The same, with a time in front."""
_TOKEN: Final = LazyPattern(r"[^\W_][\w'\u2019&+#/.-]*")
_MOST_WORDS: Final = 7
PRONOUNS: Final = frozenset(
    {
        *("i", "me", "my", "mine", "myself", "you", "your", "yours", "yourself", "he", "him", "she", "her", "hers"),
        *("it", "its", "itself", "we", "us", "our", "ours", "they", "them", "their", "theirs", "themselves", "himself"),
        *("this", "that", "these", "those", "one", "ones", "something", "anything", "everything", "nothing", "someone"),
        *("each", "another", "other", "others", "same", "such", "both", "some", "any", "all", "no", "not", "herself"),
    }
)
_CHOICES: Final = frozenset(
    {
        *("option", "options", "number", "idea", "ideas", "plan", "plans", "choice", "version", "suggestion", "answer"),
        *(
            "suggestions",
            "approach",
            "concept",
            "way",
            "ways",
            "part",
            "parts",
            "sound",
            "look",
            "looks",
            "feel",
            "vibe",
        ),
        *(
            "thing",
            "things",
            "stuff",
            "name",
            "title",
            "draft",
            "point",
            "points",
            "thought",
            "feature",
            "fact",
            "case",
        ),
        *("design", "layout", "theme", "format", "list", "table", "step", "phase", "section", "example", "response"),
        *("recommendation", "recommendations", "pick", "angle", "mix", "structure", "style", "tone", "proposal", "bit"),
        *("lot", "lots", "kind", "sort", "type", "couple", "few", "bunch", "variety", "touch", "combination", "blend"),
        *("challenge", "process", "progress", "energy", "result", "results", "reply", "question", "questions", "text"),
    }
)
"""Heads of what is chosen or praised at the moment: `I like option 2`, `I love the idea`."""
_ADJECTIVE: Final = LazyPattern(
    r".*(?:ful|ous|ive|able|ible|less|ical|ional)|unique|new|old|good|great|nice|big|small|different|certain|best|better"
    r"|own|many|much|several|various|quick|easy|simple|hard|clear|real|sure|ready|simpler|easier|cool|fun|funny|honest",
    re.IGNORECASE,
)
_ACTIVITY: Final = LazyPattern(
    r"(?:bak|bik|bowl|box|camp|climb|cook|cycl|danc|draw|driv|fish|garden|gam|golf|hik|hunt|jogg|kayak|knitt|meditat|paint"
    r"|photograph|read|rid|runn|sail|sew|shopp|sing|skat|ski|snorkel|snowboard|surf|swimm|teach|travell?|train|volunteer"
    r"|walk|writ|craft|brew|journal|sketch|fenc|row|div|canoe|crochet|quilt|weld|woodwork|stargaz|birdwatch|thrift"
    r"|backpack|sightsee|curl(?!ing up)|weightlift|acroyoga|bouldering|roller-?skat)ing",
    re.IGNORECASE,
)
"""Activities that people like in general; `seeing you smile` is not one."""
_ACTIVITY_WITH: Final = LazyPattern(
    r"(?:collect|explor|listen|learn|play|practic|practis|spend|try|visit|watch|work|mak|do|wear|drink|eat|org[ae]ni[sz]|us"
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
    goes_on = (found := _SEPARATOR.match(rest)) is not None and noun_phrase(rest[found.end() :]) is not None
    if not is_list or goes_on:
        return items[:1], first.rest
    one, other = (items[0], items[1]) if len(items) == 2 else ("", "")
    if one and " " not in one and " " in other and not one.endswith(("s", "ing")) and not other[0].isupper():
        return [f"{one} and {other}"], rest  # `sweet and savoury snacks`
    return items, rest


_SEPARATOR: Final = LazyPattern(r",? and |, ")
_HAS_PLACE: Final = LazyPattern(r" (?:in|on|of|about|with|from|for|at|to|by|over|instead of|rather than) ")
_PLACED_IN: Final = LazyPattern(r"^ (?:in|on|of|about|with|from|for|at) (?:the )?")
_LISTENING: Final = LazyPattern(r"^(?:(?:listening|going|travell?ing) to|learning about) ")
_NARROWED: Final = LazyPattern(r"^ (?:that|who|whom|whose|which|I|you|he|she|we|they|being|is|are|was|were)\b")
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


_NOUNS_IN_ING: Final = frozenset(
    "morning evening spring string wedding building clothing ring king ceiling pudding stuffing seating lighting".split()
)


def preferred_in(text: str) -> tuple[list[str], str]:
    """What a text begins with that somebody prefers, with what they prefer it to; a way of doing things, too."""
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


_DOING: Final = LazyPattern(
    r"^(?!being|having|seeing|going|something|anything|nothing|everything)[a-z]{2,}ing (?=[a-z])"
)
_TO_WHAT: Final = LazyPattern(r"^ (?:over|rather than|instead of) ")

_DURABLE: Final = frozenset(
    (
        "car truck van suv motorcycle motorbike scooter bike bicycle e-bike ebike boat kayak canoe paddleboard surfboard "
        "skateboard snowboard skis caravan campervan rv trailer phone smartphone iphone ipad tablet laptop macbook "
        "computer pc desktop monitor keyboard printer scanner router tv television projector console playstation xbox "
        "switch camera lens tripod drone telescope binoculars microphone headphones earbuds speaker soundbar turntable "
        "smartwatch watch fitbit kindle e-reader guitar ukulele violin viola cello piano drums saxophone trumpet "
        "flute clarinet harmonica banjo mandolin synthesizer accordion amp amplifier mixer blender fryer cooker oven "
        "microwave toaster fridge refrigerator freezer dishwasher washer dryer vacuum thermostat smoker grill barbecue "
        "bbq kettle grinder espresso-maker machine couch sofa mattress desk armchair bookshelf dresser wardrobe lamp "
        "treadmill dumbbells kettlebell barbell elliptical racket racquet tent backpack sneakers boots bracelet necklace "
        "earrings typewriter aquarium greenhouse trampoline hammock helmet"
    ).split()
)
"""Things that people keep for years; what is eaten, given away or used up is not a possession."""
_TELLING: Final = frozenset(
    (
        "car truck van suv motorcycle motorbike scooter bike bicycle e-bike ebike boat kayak canoe paddleboard surfboard "
        "caravan campervan rv drone telescope smartwatch fitbit kindle ipad macbook playstation xbox guitar ukulele violin "
        "viola cello piano saxophone trumpet flute clarinet banjo mandolin accordion smoker treadmill aquarium greenhouse "
        "trampoline typewriter snowboard skateboard projector turntable"
    ).split()
)
"""Those that say something about their owner without any further word; everybody has a phone."""
_BRANDS: Final = frozenset(
    (
        "samsung apple iphone ipad macbook pixel sony canon nikon fujifilm leica gopro dji bose sennheiser logitech "
        "dell lenovo thinkpad hp asus acer kindle fitbit garmin roland yamaha fender gibson taylor ibanez steinway kawai "
        "korg casio toyota honda ford tesla volvo bmw audi mercedes volkswagen mazda subaru nissan hyundai kia jeep "
        "chevrolet chevy lexus porsche renault peugeot fiat skoda harley vespa trek specialized giant brompton cannondale "
        "kitchenaid dyson roomba instant keurig nespresso breville traeger weber peloton nintendo playstation xbox ikea "
        "casper manfrotto herman fossil seiko rolex patagonia osprey"
    ).split()
)
_NOT_OWNED: Final = frozenset(
    (
        "old previous former ex last dream next future rental rented borrowed stolen lost company work school office local "
        "favorite favourite first potential ideal current-gen friend parents neighbor neighbour hotel whole entire own "
        "other second-choice fake virtual broken late"
    ).split()
)
_PRAISE: Final = LazyPattern(
    r"^(?:(?:brand[- ]new|new|really|very|super|nice|great|beautiful|lovely|cute|amazing|gorgeous|stunning|cool|fancy|"
    r"little|good|awesome|fantastic|trusty|beloved|pair of|set of|set|current|own|sturdy|decent|used|second-hand)\b ?)++"
)


_WHOSE: Final = LazyPattern(r"^((?:[\w-]+ ){0,2}[\w-]+)['\u2019]s ")
_COLLECTED: Final = frozenset(
    (
        "coin stamp vinyl record jewelry jewellery shoe sneaker camera watch book comic art doll figurine plant card "
        "postcard perfume whisky whiskey wine toy music movie film vintage baseball memorabilia guitar cookbook"
    ).split()
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
    if folded[0] in _BRANDS and 1 < len(named) < len(words) and folded[len(named)].endswith(("s", "ed")):
        if folded[-1] not in _DURABLE:  # `my Nissan Leaf needs oil`
            words, folded = named, folded[: len(named)]
            phrase = Phrase(" ".join(named), "")
    is_model = folded[0] in _BRANDS and words[0][0].isupper() and (len(words) > 1 or folded[0] in _DURABLE)
    is_kind = folded[-1] in _DURABLE and (len(words) > 1 or folded[-1] in _TELLING)
    is_kind = is_kind or (folded[-1] == "collection" and len(words) > 1 and folded[-2] in _COLLECTED)
    if not (is_model or is_kind) or _NOT_OWNED.intersection(folded) or PRONOUNS.intersection(folded):
        return [], text
    if is_model and not is_kind and any(word[0].islower() for word in words):
        return [], text  # `Samsung store`
    if any(_ADJECTIVE.fullmatch(word) for word in folded[:-1]) and not is_model:
        return [], text
    return [phrase.text], phrase.rest


_TOOL_KINDS: Final = frozenset("app apps software website extension platform planner spreadsheet".split())


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


_NOT_TOOLS: Final = frozenset("wi-fi wifi english google-fu i internet option plan version ai".split())


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
_DENIALS: Final[tuple[tuple[LazyPattern, str], ...]] = (
    (LazyPattern(rf"^{AM}{NOW} {_NOT}(?P<rest>.+)$"), "I'm"),
    (LazyPattern(rf"^(?:I|i|We|we)(?: {_STOPPED}|['\u2019]ve stopped) being (?P<rest>.+)$"), "I'm"),
    (LazyPattern(r"^(?:[Pp]lease )?(?:[Ff]orget|[Ii]gnore|[Dd]isregard) that (?P<rest>(?:I|my)\b.+)$"), ""),
    (LazyPattern(r"^(?:I|i|We|we)(?: really)? (?:don['\u2019]t|do not|no longer) (?P<rest>.+)$"), "I"),
)
_STOPS_DOING: Final = LazyPattern(
    rf"^(?P<subject>(?:I|i|We|we)|{NAME}) {_STOPPED} (?P<verb>{'|'.join(_BASE)}) (?P<rest>.+)$"
)
_OTHER_IS_NOT: Final = LazyPattern(rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) (?:isn['\u2019]t |is {_NOT})(?P<rest>.+)$")
_OTHER_DOES_NOT: Final = LazyPattern(
    rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) (?:doesn['\u2019]t|does not) (?P<verb>{'|'.join(_THIRD)}) (?P<rest>.+)$"
)
_OTHER_NO_LONGER: Final = LazyPattern(
    rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) no longer (?P<verb>{'|'.join(_THIRD.values())}) (?P<rest>.+)$"
)
_FIRM: Final = LazyPattern(
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


def _form(predicates: str, pattern: str, *, tail: str = TAIL) -> tuple[tuple[str, ...], LazyPattern]:
    return tuple(predicates.split()), LazyPattern(f"^{pattern}{tail}")


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
_THEY_LEFT: Final = LazyPattern(
    rf"^(?P<subject>{NAME}) (?:has )?(?:just |recently )?(?:left|quit|resigned from) (?P<object>{NAME}){TAIL}"
)
_EATS: Final = LazyPattern(
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
