"""Clauses: which of them the user states, and which take something back.

What is asked, supposed, reported, quoted or played states nothing; `I no longer ...` and `not any more` end a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from loom.memory._write.phrases import (
    AM,
    CLOSED,
    DIET,
    HAVE,
    JOB,
    NAME,
    NOW,
    PERSON,
    PET,
    PLACE,
    RELATION,
    SELF,
    TAIL,
    THING,
    WE,
    LazyPattern,
    opening_of,
)
from loom.memory._write.wishes import PICTURES
from loom.text.time_words import PAST

# Statements: which clauses of a sentence the user states.

_WHEN_APART: Final = LazyPattern(rf"^(?P<when>{PAST}), (?=[Ii]\b)")

_IN_QUOTES: Final = r"(?:[^'\u2018\u2019]|(?<=\w)['\u2019](?=\w))"
"""A character between single quotation marks; an apostrophe is inside a word."""
_REPORTED: Final = LazyPattern(
    r"\b(?:wish|imagine|imagining|suppose|supposing|pretend|hypothetically|said|says|saying|used to say|tells|thinks|"
    r"believes|claims|claimed|dreamed|dreamt|role-?play|quote|e\.g|lyrics|joke|joking|kidding|as though|as if|"
    r"let['\u2019]s say|"
    r"(?:in|for|of) (?:my|the|an?|our|this|that|his|her) (?:\w+ )?(?:story|novel|film|movie|game|dream|script|play)|"
    r"character)\b|[\"\u201c\u00ab][^\"\u201d\u00bb]*\b(?:I|my|My|me)\b"
    rf"|(?<!\w)['\u2018](?:{_IN_QUOTES}*\b)?(?:I|my|My)\b{_IN_QUOTES}*['\u2019](?!\w)"
    r"|^(?:oh|yeah|yes|sure)?,? ?(?:oh|yeah|sure|great|joy|wonderful|right|brilliant|fantastic),? "
    r"(?:great|sure|right|joy|wonderful|brilliant|fantastic|and)\b,?(?= (?:I|my)\b)"
    r"|, obviously\W*$|(?<!\w)/s\W*$|\b(?:jk|jks)\b|\bin my dreams\b",
    re.IGNORECASE,
)
"""Nothing in such a sentence is stated: it is reported, made up, quoted or a joke."""
_DOUBTED: Final = LazyPattern(
    r"[\"\u201c\u201d\u00ab\u00bb]|(?<!\w)'[^']+'(?!\w)|\b(?:if|unless|told|(?<!second )thought|asked|heard|"
    r"for example|"
    r"for instance|whether|once|why|how)\b",
    re.IGNORECASE,
)
"""A clause that does not state what it says, and neither do the clauses behind it."""
_ASKS: Final = LazyPattern(
    r"(?:(?:so|and|but|then|also),? )?(?:please |maybe |do you know )?(?:can|could|would|will|do|does|did|is|are|was|"
    r"were|should|"
    r"shall|have you|has|what|what['\u2019]s|whats|how|which|where|when|who|why|any|got any|know any|know of|may i|"
    r"am i)\b",
    re.IGNORECASE,
)
_WONDERS: Final = LazyPattern(
    r"\b(?:not sure|unsure|wonder\w*|don['\u2019]?t know|curious|if|whether)\b",
    re.IGNORECASE,
)
_GIVES_A_REASON: Final = LazyPattern(r"(?:since|because|as|given(?: that)?|considering(?: that)?) (?:I|i)\b")
_ROLE_PLAY: Final = LazyPattern(
    r"\b(?:you are (?:an?|now|my|the|going to be)\b|act as\b|act like\b|acting as\b|pretend|role-?play|language model|"
    r"in character\b|as the character|your name is|you will be\b|persona\b|let['\u2019]?s play\b|dungeon|npc\b|"
    r"(?-i:\bI(?:['\u2019]m| am) [A-Z]\w+,? (?:and|but) you(?:['\u2019]re| are) [A-Z])|"
    r"fanfic|screenplay|monologue|chapter \d|cover letter|write an? |script\b|essay\b|prompt\b|fellow (?:ai|language|"
    r"bot))",
    re.IGNORECASE,
)
"""A message in which the `I` may be a part that the user plays, or a text that is to be written."""

_TEXT_WORK: Final = LazyPattern(
    r"^\W*(?:please |can you |could you )*(?:translate|rewrite|proofread|correct|paraphrase|summari[sz]e|edit|"
    r"write(?! down)|"
    r"draft|complete|continue|rephrase|improve|act as|respond as|answer as|you are|here is|here's|this is)\b",
    re.IGNORECASE,
)
_SENTENCE: Final = LazyPattern(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bSt\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bProf\.)\s+|\n+"
)
_STARTS: Final = (
    r"(?:now )?(?:I|i|im|Im|ive|not|my|My|our|we|We|it|they|he|she|this|that|these|those|there|you|can|could|would|"
    r"will|do|does|is|are|what|how|which|where|who|any|please|should|have you|especially|particularly|like|such as|"
    r"though|although|even|then|maybe|"
    r"hopefully|right|thanks|just)(?:['\u2019]\w+)?\b"
)
_CLAUSE: Final = LazyPattern(
    rf"(?<!\s)\s*(?:[;:\u2014\u2013]|,(?: and| but| so)?| and| but| so)\s+(?={_STARTS})"
    r"|\s[-\u2013\u2014]\s|(?<!,)\s(?=(?:which|because|although|though|while|when|whenever|where|except) |since (?:I|"
    r"i|my|we|it|they|he|she)\b)"
    r"|\s(?=(?:can|could|would) you |what (?:should|would|are|is|do) |any (?:tips|ideas|suggestions|recommendations|"
    r"advice)\b"
    r"|do you |how (?:do|can|should) i\b|how (?:do|can|should) I\b)|, (?=(?:since|because|as|given) (?:I|i)\b)"
)
_OPENING: Final = LazyPattern(
    r"^(?:(?:hi|hello|hey|well|so|and|but|oh|ok|okay|yes|yeah|actually|also|btw|by the way|fyi|just so you know|"
    r"as of (?:today|now)|now|these days|nowadays|(?:it )?turns out(?: that)?|on second thoughts?|correction:?|sorry|"
    r"(?:the|my) (?:doctor|tests?|results?) (?:confirmed|showed|found)(?: that)?|"
    r"(?:please )?(?:note|remember)(?: that(?= )|(?= (?:I|i|my)\b))|"
    r"(?:from now on|going forward)(?=,? (?:I|i|my)\b)|for context|for reference|anyway|lol|honestly|"
    r"speaking of which|yep|yup|nah|nope|haha|wow|thanks|thank you|mate|dude|(?:since|because|as|given(?: that)?|"
    r"considering(?: that)?|seeing as|even though|although|though|while)(?= (?:I|i|my)\b))[,!]? )+",
    re.IGNORECASE,
)
LONGEST_SENTENCE: Final = 300
"""Maximum characters of a sentence that is read; of a longer one, the whole clauses at its beginning."""


def is_text_work(text: str) -> bool:
    """Whether a message gives a text to be translated, corrected or written."""
    return _TEXT_WORK.search(text) is not None


def is_role_play(text: str) -> bool:
    """Whether the `I` of a message may be a part that the user plays, or that of a text to be written."""
    return _ROLE_PLAY.search(text) is not None


def is_reported(sentence: str) -> bool:
    """Whether a sentence reports, quotes or makes up what it says."""
    return _REPORTED.search(sentence) is not None


_CORRECTS: Final = LazyPattern(
    r"(?:,|;|\.\.\.|\u2026|\s[-\u2013\u2014])\s(?:(?:oh|oops|ah|um|uh|no),? )?"
    r"(?:i mean,?|or rather,?|make that|scratch that,?|(?:no|(?:no )?wait|sorry|oops|well|correction)[,:])\s",
    re.IGNORECASE,
)
"""Words that take back what a sentence has said so far: `I live in Porto, I mean Braga`."""
_TAKES_BACK: Final = LazyPattern(
    r"(?:(?:oh|oops|ah|no),? )?(?:(?:sorry|wait|no|oops|correction)[,:]|i mean,?) "
    r"(?!thank|that|not? |i\b|my\b|really\b)"
    r"[\w'\u2019-]+(?: [\w'\u2019-]+){0,2}[.!]?",
    re.IGNORECASE,
)
"""A sentence that takes back the one before it, and says but a few words: `Sorry, Braga.`"""
_JOKED: Final = LazyPattern(
    r"(?:ha(?:ha)*,? |lol,? |no,? )?"
    r"(?:(?:i['\u2019]?m |i am )?(?:just |only )?(?:kidding|joking)|jk|not really|gotcha)\b",
    re.IGNORECASE,
)
"""The beginning of a sentence that says that the one before it was not meant."""


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, without what is corrected at once."""
    plain = [stripped for sentence in _SENTENCE.split(text) if (stripped := sentence.strip())]
    for sentence, following in zip_longest(plain, plain[1:], fillvalue=""):
        is_over = len(following) <= LONGEST_SENTENCE and _TAKES_BACK.fullmatch(following)
        if not is_over and not _JOKED.match(following):
            yield _CORRECTS.split(sentence)[-1]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SMALL: Final = LazyPattern(r"^[^\w]*[a-z]|\b(?:i|im|ive|i['\u2019]m|i['\u2019]ve)\b")
_BIG_WORD: Final = LazyPattern(r"(?<!^)\b(?!I\b)[^\W\d_a-z]\w*")
_KIN_OR_PET: Final = rf"(?:{RELATION.replace('?P<relation>', '?:')}|{PET})"
_NAME_BELONGS: Final = tuple(
    LazyPattern(rf"\b(?:{'|'.join(leads)}) (?=[a-z])")
    for leads in (
        # "moved from berlin" first, because the rule behind it needs the name: "moved from Berlin to hamburg".
        ("(?:moved|relocated) from",),
        (
            r"my (?:real |full |first )?name(?:['\u2019]?s| is)|i go by|you can call me",
            rf"my (?:\w+ )?{_KIN_OR_PET}(?: is (?:called|named)| called| named|['\u2019]?s name is)",
            rf"an? {_KIN_OR_PET} (?:called|named)",
            r"(?:i|we) (?:now |currently |still |just |also )?live in|i['\u2019]?m (?:living|based) in|been living in",
            r"(?:moved|relocated)(?: back)?(?: from [A-Z]\w+(?: [A-Z]\w+)?)? to|grew up in|i was born in",
            r"i['\u2019]?m (?:originally )?from|i['\u2019]?m married to",
            r"i (?:now |currently |still )?work (?:at|for)|my (?:new )?job at",
        ),
    )
)
_NEW_PLACES: Final = _words("york jersey zealand orleans delhi mexico haven hampshire")
_IN_S: Final = _words(
    "paris texas dallas vegas athens brussels angeles memphis honduras minneapolis louis leeds naples cannes reims "
    "wales illinois kansas massachusetts arkansas aires caracas cyprus seychelles maldives cairns laos mauritius "
    "barbados damascus tunis columbus indianapolis annapolis states alps pines falls springs rapids plains moines "
    "tours nantes arles nimes versailles les los las des mcdonalds starbucks sainsburys siemens airbus walmart's "
    "james thomas charles chris lucas nicolas nicholas marcus carlos luis jesus jonas andreas hans klaus lars agnes "
    "ines alexis iris doris francis dennis curtis travis atlas zeus otis elvis biscuits mathias matthias tobias elias "
    "silas miles giles wes les jess tess bess ross moss russ gus angus magnus linus rufus marius julius lois"
)
"""Names that end in an s. Other words that do are things: `i live in leggings`."""
_NO_NAMES: Final = _words(
    f"{CLOSED.replace('|', ' ')} the new hope fear denial terror pain poverty luxury sin peace harmony silence squalor "
    "misery isolation exile regret exposure wedlock spirit mud legion "
    "constant separate town college dorm student shared house flat city village suburbia "
    "countryside rural urban downtown different another two three second small big large tiny old hot cold warm humid "
    "dry nice quiet busy fast good bad night home work scale free money charity sea speed school hospital government "
    "construction nonprofit retail spelled misspelled spelt mispronounced pronounced wrong right hard long short "
    "unique common pretty blank missing empty unknown private confidential secret cool weird written stupid boring "
    "hyphenated listed taken changed used mentioned irrelevant important difficult easy fine okay whatever god life "
    "law support management accounting marketing nothing nowhere somewhere abroad trailer tent van car bed people "
    "agency myself family bank hotel restaurant tech minimum food fun present lunch scratch heaven hell paradise limbo "
    "interesting funny similar super quite less like"
)
_LONGEST_NAME: Final = 3
_RUNS_ON: Final = LazyPattern(
    r"((?<=[a-z] )[A-Z]\w*(?: [A-Z]\w*){0,3}|^(?:(?:hi|hey|hello),? )?(?:im|i['\u2019]m|i am) \w+)"
    r" (?=(?:i (?:live|work|am|moved|have|love|like)|im|i['\u2019]m|my)\b)"
)
"""A name, and the next statement right behind it, without a mark: `my name is Tom i live in leeds`."""
_HESITATION: Final = LazyPattern(r"\b(?:u+h+m*|u+m+|erm|hmm+),? |\b([Ii]) (?=\1 )")


def in_one_case(text: str) -> bool:
    """Whether a text is written without capitals, as on a phone, or in capitals only."""
    if not any(letter.islower() for letter in text):
        return len(text.split()) > 2
    return _SMALL.search(text) is not None and _BIG_WORD.search(text) is None


def with_capitals(sentence: str) -> str:
    """A sentence of a text in one case, with capitals where a name belongs: `i live in leeds`."""
    text = sentence if any(letter.islower() for letter in sentence) else sentence.lower()
    for leads in _NAME_BELONGS:
        place = 0
        while found := leads.compiled.search(text, place):
            name = _name_at(text[found.end() :])
            place = found.end() + len(name)
            text = text[: found.end()] + " ".join(word.capitalize() for word in name.split()) + text[place:]
    return _RUNS_ON.sub(r"\1, ", text)


def without_hesitation(sentence: str) -> str:
    """A sentence without the sounds of one that was dictated."""
    return _HESITATION.sub("", sentence)


def _name_at(text: str) -> str:
    """The words of a name that a text begins with; empty if it begins with other words."""
    words: list[str] = []
    for word in text.split()[:_LONGEST_NAME]:
        bare = word.rstrip(".,!?;:)")
        is_new = bare == "new" and text.split()[1:] and text.split()[1].strip(".,!?") in _NEW_PLACES
        is_thing = bare.endswith("s") and bare not in _IN_S
        if (bare in _NO_NAMES and not is_new) or is_thing or not bare.replace("-", "").isalpha():
            break
        words.append(bare)
        if bare != word:
            break
    return " ".join(words)


def stated_clauses(plain: str) -> Iterator[str]:
    """The clauses of a sentence that state something: those in front of a question and of a doubt."""
    if _TEXT_WORK.search(plain) or _REPORTED.search(plain):
        return
    is_long = len(plain) > LONGEST_SENTENCE
    parts = [part for part in _CLAUSE.split(_WHEN_APART.sub(r"\g<when> ", plain[:LONGEST_SENTENCE])) if part.strip()]
    parts = parts[:-1] if is_long else parts
    if "?" in plain:
        asked = next((place for place, part in enumerate(parts) if _ASKS.match(part) or _WONDERS.search(part)), None)
        if asked is None and not is_long:
            return
        asked = len(parts) if asked is None else asked
        parts = [*parts[:asked], *(part.rstrip("? ") for part in parts[asked:] if _GIVES_A_REASON.match(part))]
    for part in parts:
        if _DOUBTED.search(part):
            return
        yield _OPENING.sub("", PICTURES.sub("", part).strip(" \t.!?,;:()")).strip()


_NOT_SURE: Final = LazyPattern(
    r"\b(?:could|should|might|may be|maybe|perhaps|possibly|probably|hardly|barely|almost|nearly|allegedly|reportedly|"
    r"hope|hoping|want|wanted|consider|considering|thinking|someday|one day|guess|sometimes|temporarily)\b"
    r"|\bwould\b(?!(?: now)? rather )|\baccording to\b",
    re.IGNORECASE,
)
_NOT_SO: Final = LazyPattern(r"\b(?:never|not|n't)\b|n['\u2019]t\b", re.IGNORECASE)
_CHANGED: Final = LazyPattern(
    r"\b(?:now|actually|instead|these days|nowadays|lately|from now on|any ?more|no longer|changed my mind|switched|"
    r"on second thoughts?|correction|turns out|recently|just)\b",
    re.IGNORECASE,
)
"""Words that imply that something else was true before."""
_MADE_UP: Final = LazyPattern(
    r"\b(?:story|novel|character|hero|heroine|protagonist|plot|fiction\w*|fanfic\w*|film|movie|episode|chapter|scene|"
    r"poem|"
    r"write|writing|imagine|suppose|assume|pretend|scenario|riddle|puzzle|exercise|homework|quiz|maths?|example|"
    r"hypothetical\w*|role-?play|game|dnd|campaign|translate|article|headline|quote|sentence|grammar|test data)\b",
    re.IGNORECASE,
)
_LONGEST_OF_OTHERS: Final = 300
"""Maximum characters of a message whose statements about others are used: a longer one may be any text."""


def is_unsure(clause: str) -> bool:
    """Whether a clause says what may be, or shall be, and not what is."""
    return _NOT_SURE.search(clause) is not None


def is_denied(clause: str) -> bool:
    """Whether a clause contains a `not`."""
    return _NOT_SO.search(clause) is not None


def is_change(sentence: str) -> bool:
    """Whether a sentence implies that something else was true before."""
    return _CHANGED.search(sentence) is not None


def tells_of_others(text: str) -> bool:
    """Whether a message may state facts about others: short, one paragraph, and without signs of fiction."""
    return len(text) <= _LONGEST_OF_OTHERS and "\n" not in text.strip() and not _MADE_UP.search(text)


_ADJECTIVES: Final = (
    rf"(?:(?:not|no longer|still|also|severely) )?(?:allergic to |(?:vegan|vegetarian|pescatarian)\b|\w+[- ]intolerant|"
    rf"married to |based in |living in |working (?:at|for|as) |an? {JOB}\b|\d{{1,3}} years old|from [A-Z])"
)
_STATES: Final = (
    r"(?:(?:also|now|still|really) )?(?:live in |work (?:at|for|as) |speak [A-Z]|prefer |drive an? |own an? |"
    rf"have an? (?:{PET}|{RELATION.replace('?P<relation>', '?:')})\b|moved to |joined [A-Z]|"
    r"started (?:working )?(?:at|for) [A-Z]|was born in |use [A-Z]|"
    r"don['\u2019]t |no longer )"
)
_GOES_ON: Final = LazyPattern(
    rf"(?:,? and|,? but)(?: also)? (?:(?={_ADJECTIVES})|(?=(?P<does>{_STATES})))"
    rf"|, (?=working (?:at|for|as) |living in |based in |allergic to |\w+[- ]intolerant\b|married to |an? {JOB}\b)"
)
"""Where a second statement about the same person begins, whose `I` or `I'm` is omitted."""
_INTENDS: Final = LazyPattern(
    r"^(?:I|i|We|we)(?:['\u2019]ll|['\u2019]d| will| would| could| can| should| plan| want| think| need)\b"
)
_BEING: Final = LazyPattern(rf"^{AM} ")
_OWN: Final = LazyPattern(rf"^{WE}(?:['\u2019]\w+)? ")


def unfolded(clause: str) -> list[str]:
    """A clause about the speaker, split into one clause per statement."""
    if not _OWN.match(clause) or _INTENDS.match(clause):
        return [clause]
    parts: list[str] = []
    head, start = "", 0
    is_being = _BEING.match(clause) is not None
    for found in _GOES_ON.finditer(clause):
        if not (is_being or found["does"]):
            continue  # "I met Ann, a nurse" says nothing of the speaker
        parts.append(head + clause[start : found.start()])
        head, start = ("I " if found["does"] else "I'm "), found.end()
    return [*parts, head + clause[start:]]


# Finds retractions in a clause: denials, and phrases that say that something is over.
#
# A denial is turned into the plain statement that it denies ("I don't live in Rome anymore" into "I live in Rome"), so
# everything that the rules can learn can also be retracted.

_NOT: Final = (
    r"(?:not|no longer) (?!(?:only|just|yet|even|sure|really|necessarily|always|exactly|so|very|that"
    r"|(?:an? )?(?:strict|complete|full|full-time|total|pure|real|true|proper))\b)"
)
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
    return tuple(predicates.split()), LazyPattern(f"^{pattern}{tail}", opening=opening_of(f"^{pattern}"))


_DID: Final = rf"(?:{WE}|{HAVE}){NOW}"
_TASTE: Final = "likes prefers uses"
_COUPLE: Final = r"(?:married|together|engaged|a couple)"
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
        rf"{_DID} (?:sold|gave away|got rid of|traded in|scrapped|totall?ed) (?:my|our|the) (?P<object>{THING})",
    ),
    _form("has_pet", rf"(?:[Mm]y|[Oo]ur) {PET},? (?P<object>{PERSON}),? (?:died|passed away|is dead)"),
    _form(
        "married_to partner girlfriend boyfriend engaged_to",
        rf"(?:{WE}|{PERSON} and I)(?: got| are|['\u2019]re)?(?: now)? "
        rf"(?:divorced|broke up|broken up|split up|separated)(?: with (?P<object>{PERSON}))?",
    ),
    _form("has_pet", rf"(?P<object>{PERSON}) (?:(?:has )?(?:died|passed away)|is dead|is no longer with us)"),
    _form(
        "married_to partner girlfriend boyfriend engaged_to",
        rf"(?:{WE}|{PERSON} and I)(?:(?: are|['\u2019]re) no longer {_COUPLE}"
        rf"|(?: are not| aren['\u2019]t|['\u2019]re not) {_COUPLE} (?:any ?more|any longer))",
    ),
    _form("diet", rf"(?:[Bb]eing|[Gg]oing) (?:an? )?{DIET} (?:didn['\u2019]t|did not) work(?: out)?(?: for me)?"),
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
_HAS: Final = r"(?:has )?(?:just |recently )?"
_OF_OTHERS: Final = (
    _form("works_at", rf"{_HAS}(?:left|quit|resigned from) (?P<object>{NAME})"),
    _form("works_at", rf"(?:was|got|has been) (?:fired|laid off|let go)(?: (?:from|by) (?P<object>{NAME}))?"),
    _form("lives_in", rf"{_HAS}moved (?:(?:away from|out of) (?P<object>{PLACE})|from (?P<left>{PLACE}) to {PLACE})"),
    _form(
        "uses runs runs_on written_in built_with hosted_on",
        rf"{_HAS}(?:switched|migrated|moved) from (?P<object>{NAME}) to {NAME}",
    ),
)
_EATS: Final = LazyPattern(
    rf"^(?:{WE}(?: (?:now|actually|do|can))? eat"
    rf"|{_DID} (?:started|began|begun|resumed|went back to|gone back to) (?:eating|to eat)) "
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


def endings_of(rest: str) -> Iterator[Ending]:
    """What is over for another person or thing, according to the rest of a clause that begins with it."""
    for predicates, pattern in _OF_OTHERS:
        if found := pattern.match(rest):
            groups = found.groupdict()
            yield Ending(predicates, groups.get("object") or groups.get("left") or "", found)
