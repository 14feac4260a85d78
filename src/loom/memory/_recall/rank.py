"""The ranking of recall: a weighted sum of signals per candidate, each a reason; and what is preferred after it.

Signals are calibrated per question: each becomes its distance from the mean of the candidates, in standard deviations,
before it is weighted. Ranks are not used: with reciprocal rank fusion the weakest list counts as much as the best, and
the result was worse than plain BM25. Names of speakers are priors, not words to search for.

No single set of weights is good for all talk. People with names speak in short turns that need their neighbours to be
understood; a user who talks to an assistant says what matters in a few sentences, between answers of a page each; and a
message that continues a conversation needs what was said lately, while a question looks something up. So there is one
set for each, chosen per record by its speaker and per recall by the question. `benchmarks/fit_rank.py` fits them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from math import inf, nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from loom.core.checks import RANKED, REACH
from loom.core.clock import to_micros
from loom.core.doors import Late
from loom.core.record import Episode
from loom.protocols.memory_store import HitColumns
from loom.text.passages import sentences, stems_in
from loom.text.time_words import TimeHint
from loom.text.words import content_terms, query_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Late("numpy")

Talk: TypeAlias = Literal["people", "several", "lookup", "message"]
"""People with names, of whom a question may ask for several things; or a user with an assistant: then a question that
looks something up, or any other message."""

_STATEMENTS: Mapping[str, float] = {
    "phrase": 0.6,  # statements only, as the next two: word pairs; 1.3 in finding what a statement contradicts
    "head": 0.6,  # the same beginning: 0.8 there; tuned on half of the Letta set
    "alike": 0.3,  # the share of words in common: 0.2 there; tuned on half of the Letta set
}
_PEOPLE: Mapping[str, float] = {
    # What is lost without each, with the others tuned again: points of recall, mean of the first five and the first
    # ten hits, on LoCoMo 1-5. Facts extracted by rules were tried as a further key: they cover too few turns.
    "bm25": 0.2,  # the turn's own words; low, because `bm25.around` contains them too
    "bm25.around": 0.8,  # the turn with two turns on either side: 1.0
    "bm25.asked": 0.3,  # the question in the turn before: 1.6, most where the question names the wrong person
    "session": 0.2,  # how much of the session matches
    "dense": 0.6,  # with `dense.around` 1.3, more where the question uses other words than the answer
    "dense.around": 0.4,  # 0.3
    "speaker": 1.4,  # the turn is by the one person the question names: 1.5, most where several turns are needed
    "length": 0.5,  # BM25 penalises length, but long turns say more: 0.6
    "asks": -0.8,  # a turn that ends with a question is rarely the answer: 0.4
    "time": 3.0,  # near the time that the question names: 1.1, or 6 on the questions that name one
    "recency": 2.5,  # recent, if a message names no person or time
    **_STATEMENTS,
}
WEIGHTS: Mapping[Talk, Mapping[str, float]] = {
    "people": _PEOPLE,
    # The things that one person did or has are told in many conversations: what this person says counts more, and less
    # what is said around it. On LoCoMo 1-5 the questions that need several turns gain 2 points at ten, 6-10 gain 2.7.
    "several": {**_PEOPLE, "bm25.around": 0.6, "session": 0.0, "speaker": 1.8},
    # Fitted together on half of BEAM and half of LongMemEval; the other halves choose the signals.
    "lookup": {
        "bm25": 0.4,  # own words lead: the turns around are pages of an assistant
        "covers": 1.2,  # the share of the question's words in the best passage: finds a line in a log of 100 KB
        "bm25.around": 0.15,
        "session": 0.2,
        "dense": 0.8,
        "user": 2.4,  # said by the user, who asks about their own life: 10 points
        "brief": 0.2,  # counted up to 60 words: a short message states one thing
        "asks": -0.3,  # less than among people: most messages to an assistant end with a question
        "time": 2.7,
        **_STATEMENTS,
    },
    # Fitted on two persons of RealMem.
    "message": {
        "bm25.around": 0.6,  # a message continues an exchange as a whole
        "session": 0.15,
        "dense": 0.8,
        "time": 1.5,
        "recency": 2.1,
        **_STATEMENTS,
    },
}
"""What one standard deviation of a signal adds; for `covers` and what needs no search, what a 1 adds."""
_AROUND = tuple(distance for distance in range(-REACH, REACH + 1) if distance)

_SESSION_ROOM = 2**32
"""More places than a session has, with room for the neighbours of the first and the last one."""
_LAST_POSITION = 2**31
RECENT = timedelta(days=30)
"""After this time `recency` has fallen to 1/e, about a third."""
_LEXICAL = ("bm25", "bm25.around", "bm25.asked", "phrase", "head", "alike")
_BY_WORDS = (*_LEXICAL, "session", "length", "brief")
"""Signals that are scaled by trust_in_words(): `session` is a sum of BM25, `length` and `brief` correct BM25."""
_BRIEF = 60
"""Words up to which `brief` counts."""
_ENOUGH_SHARE, _ENOUGH_WORDS = 0.4, 3
"""The words of a question are trusted fully once one text has this share of them, or this many."""
_FADE = 0.7
"""Weight of a shared word per place from the beginning: the fifth word counts a quarter of the first."""
_MICROSECOND = timedelta(microseconds=1)
_NEAR = timedelta(days=3)
"""The least scale of closeness in time: people speak of a day for some days before and after."""
_OPEN = timedelta(days=30)
"""The length that an interval with an open end counts as."""
_SENTENCE = re.compile(r"[^.!?\n]+\??")
_ENDS = re.compile(r"[.!?]\s|[\u3002\uff01\uff1f]|\n")
"""The end of a sentence, or of a line."""
_LOOKUP_SENTENCES = 2
_BLANKS = 1_000
"""Trailing characters that asks() reads: a text may have a million."""
_NONE: Mapping[str, float] = MappingProxyType({})
_Column: TypeAlias = "NDArray[np.float64]"
"""A value for each candidate."""


class Candidates(NamedTuple):
    """Records that may be recalled, as columns: a value for each record.

    `signals` are the raw scores of each signal, NaN where it did not find the record. A missing lexical signal (`bm25`,
    `bm25.KIND`, `phrase`, `head`, `alike`) is zero: nothing matched. A missing `dense` or `dense.around` is unknown:
    it is taken as the lowest of all. A position is the number of the turn in its session; words are counted at
    blanks. A role is that of a speaker without a name. Times are whole microseconds.
    """

    ids: Sequence[str]
    signals: Mapping[str, _Column]
    speakers: Sequence[str | None]
    sessions: Sequence[str | None]
    positions: Sequence[int | None]
    times: Sequence[int | None]
    words: Sequence[int]
    asks: Sequence[bool]
    roles: Sequence[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionHints:
    """What a question says besides its words: the speakers and the time it names, and when it is asked.

    `trust` is the weight of its words, from 0 to 1: see trust_in_words(). `is_lookup` tells a question from a message
    that continues a conversation: see looks_up(). `is_several`: it asks for several things, see asks_several().
    """

    speakers: frozenset[str] = frozenset()
    when: TimeHint | None = None
    now: datetime | None = None
    trust: float = 1.0
    is_lookup: bool = True
    is_several: bool = False


class Ranked(NamedTuple):
    """A candidate with its score, the sum of what each signal in `why` adds."""

    id: str
    score: float
    why: Mapping[str, float] = _NONE


class Ranking:
    """The order of candidates: `places`, best first; what each signal added is looked up for those that are shown."""

    __slots__ = ("_candidates", "_parts", "_scores", "places")

    def __init__(self, candidates: Candidates, parts: Mapping[str, _Column], score: _Column) -> None:
        self._candidates, self._parts = candidates, parts
        self._scores: list[float] = score.tolist()
        self.places: list[int] = _best_first(score, candidates.ids)

    def ranked(self, place: int) -> Ranked:
        """The candidate at a place with its score."""
        why = _Why(self._parts, place, self._candidates.signals)
        return Ranked(self._candidates.ids[place], self._scores[place], why)


def rank(
    candidates: Candidates,
    hints: QuestionHints | None = None,
    weights: Mapping[Talk, Mapping[str, float]] = WEIGHTS,
) -> Ranking:
    """Rank the candidates, at equal score by id. Linear in the number of candidates, but for the sort."""
    hints, count = hints or QuestionHints(), len(candidates.ids)
    if not count:
        return Ranking(candidates, {}, np.zeros(0))
    people = weights["several" if hints.is_several and hints.speakers else "people"]
    roles = weights["lookup" if hints.is_lookup else "message"]
    columns, priors = _signals(candidates), _priors(candidates, hints)
    if count == 1:
        for name in ("length", "brief"):
            columns.pop(name, None)  # long and short are relative to other candidates
    signals = np.array([*columns.values()]).reshape(-1, count)
    usual = np.array([[_USUAL.get(name, nan)] for name in columns]).reshape(-1, 1)
    measured = _alone(signals) if count == 1 else _calibrated(signals, usual)
    pairs = [
        (_weight(name, columns, roles, hints.trust), _weight(name, columns, people, hints.trust)) for name in columns
    ]
    pairs += [(roles.get(name, 0.0), people.get(name, 0.0)) for name in priors]
    ours, theirs = (np.array([[pair[of]] for pair in pairs]) for of in (0, 1))
    with_roles = np.array([role is not None for role in candidates.roles], bool)
    added = np.vstack([measured, *priors.values()]) * np.where(with_roles, ours, theirs)
    is_used = [any(pair) for pair in pairs[: len(columns)]] + [True] * len(priors)
    parts = {name: part for name, part, used in zip((*columns, *priors), added, is_used, strict=True) if used}
    return Ranking(candidates, parts, added.sum(axis=0))


def _best_first(score: _Column, ids: Sequence[str]) -> list[int]:
    order = np.argsort(-score, kind="stable")
    if (np.diff(score[order]) != 0).all():
        return order.tolist()
    return [place for _, _, place in sorted(zip((-score).tolist(), ids, range(len(ids)), strict=True))]


class _Why(Mapping[str, float]):
    """What each signal adds to a score, as a mapping that is built on first use: few candidates become hits.

    A signal that found the candidate is listed even if it adds nothing because all candidates have the same value.
    """

    __slots__ = ("_built", "_parts", "_place", "_signals")

    def __init__(self, parts: Mapping[str, _Column], place: int, signals: Mapping[str, _Column]) -> None:
        self._parts = parts
        self._place = place
        self._signals = signals
        self._built: dict[str, float] | None = None

    def _added(self) -> dict[str, float]:
        if self._built is None:
            parts = {name: float(part[self._place]) for name, part in self._parts.items()}
            self._built = {name: part for name, part in parts.items() if part or self._found_by(name)} or parts
        return self._built

    def _found_by(self, name: str) -> bool:
        return name in self._signals and not np.isnan(self._signals[name][self._place])

    def __getitem__(self, name: str) -> float:
        return self._added()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._added())

    def __len__(self) -> int:
        return len(self._added())

    def items(self) -> ItemsView[str, float]:
        """All signals, without a look-up for each."""
        return self._added().items()


def named_speakers(question: str, speakers: Iterable[str]) -> frozenset[str]:
    """The speakers that the question names, by their full name or the first word of it."""
    return frozenset(s for s, pattern in _likely(question, speakers) if pattern.search(question))


def without_names(text: str, speakers: Iterable[str]) -> str:
    """The text without the speakers' names: in a small vector a name outweighs the content."""
    for _, pattern in _likely(text, speakers):
        text = pattern.sub(" ", text)
    return text


def looks_up(question: str) -> bool:
    """Whether a text looks something up: words to search for, or a question of at most two sentences.

    Anything else is a message that continues a conversation, even if it also asks something.
    """
    parts = [part for part in _ENDS.split(f"{question.strip()} ") if part.strip()]
    asks_something = "?" in question or "\uff1f" in question
    return len(parts) <= _LOOKUP_SENTENCES and (asks_something or not _ENDS.search(f"{question.strip()} "))


_ASKS_SEVERAL = re.compile(
    r"\b(?:(?:has|have)\b(?! to\b)|how (?:many|often)\b|both\b|(?:kinds?|types?|sorts?) of\b"
    r"|(?:what|which) (?:\w+ ){0,2}?(?!(?:does|this)\b)\w{2,}[^s'\W]s\b)",
    re.IGNORECASE,
)
"""What somebody has done so far, how often, or things in the plural."""


def asks_several(question: str) -> bool:
    """Whether a question asks for several things, such as the places that somebody has seen."""
    return _ASKS_SEVERAL.search(question) is not None


def questions_in(text: str) -> str:
    """The questions in a turn: the search key `asked` of the turn that follows."""
    if "?" not in text:
        return ""
    return " ".join(found.strip() for found in _SENTENCE.findall(text) if found.endswith("?"))


def asks(text: str) -> bool:
    """Whether a turn ends with a question."""
    last = text[-1:]
    return last == "?" or (last.isspace() and text[-_BLANKS:].rstrip().endswith("?"))


class Likeness(NamedTuple):
    """How much the words of a text are like those of a statement: the signals `phrase`, `head` and `alike`."""

    pairs: float = 0.0
    """The number of word pairs in sequence that both have. A question shares its word order with other questions, not
    with answers, so this is for statements alone."""
    head: float = 0.0
    """How similar the beginnings are. A statement that changes another begins like it, with the subject and the
    property; the new value comes last. Each shared word counts less the further it is from the beginning of either."""
    share: float = 0.0
    """The share of their words that both have in common."""


class StatementWords:
    """The terms of a statement that searches for similar ones, to compare with those of many texts."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words, self._pairs = frozenset(words), frozenset(pairwise(words))
        self._places: dict[str, int] = {}
        for place, word in enumerate(words):
            self._places.setdefault(word, place)
        self._repeats = any(a == b for a, b in self._pairs)

    def compare(self, text: Sequence[str]) -> Likeness:
        """How much the terms of a text are like these."""
        words = set(text)
        shared = words & self._words
        if not shared:
            return Likeness()
        # A pair that both have takes two words that both have, or one twice.
        pairs = len(self._pairs.intersection(pairwise(text))) if len(shared) > 1 or self._repeats else 0
        head = 0.0
        for word, place in self._places.items():
            if word in shared:
                head += _FADE ** max(place, text.index(word))
        return Likeness(float(pairs), head, len(shared) / (len(words) + len(self._words) - len(shared)))


def trust_in_words(words: int, found: Iterable[int]) -> float:
    """The weight of the words of a question, given how many it has and how many of them each likely text contains.

    A question in other words than its answer still matches some words somewhere by chance. Then vectors have to lead.
    """
    most = max(found, default=0)
    return min(1.0, max(most / (_ENOUGH_SHARE * words), most / _ENOUGH_WORDS)) if words else 1.0


def _likely(text: str, speakers: Iterable[str]) -> list[tuple[str, re.Pattern[str]]]:
    """The speakers whose first name is in a text, each with a pattern that matches it as a whole word.

    The plain search comes first: compiling a pattern is slower, and a memory may know hundreds of people.
    """
    folded = _folded(text)
    named = [speaker for speaker in speakers if (words := speaker.split()) and _folded(words[0]) in folded]
    return [(speaker, _name(speaker)) for speaker in named]


def _folded(text: str) -> str:
    """Case-folded text, with all forms of i made one, as re.IGNORECASE treats them."""
    return text.casefold().replace("\u0307", "").replace("\u0131", "i")


@lru_cache(maxsize=1024)
def _name(speaker: str) -> re.Pattern[str]:
    words = speaker.split()
    forms = "|".join(re.escape(form) for form in dict.fromkeys((" ".join(words), words[0])))
    return re.compile(rf"(?<!\w)(?:{forms})(?:['\u2019]s)?(?!\w)", re.IGNORECASE)


def _signals(candidates: Candidates) -> dict[str, _Column]:
    """One column for each signal that any candidate has, and the signals computed from them."""
    columns: dict[str, _Column] = {}
    for name in (*_LEXICAL, "dense", "dense.around"):
        column = candidates.signals.get(name)
        if column is None:
            continue
        is_missing = np.isnan(column)
        if is_missing.any():
            known = column[~is_missing]
            if not len(known):
                continue
            column = np.where(is_missing, 0.0 if name in _LEXICAL else known.min(), column)
        columns[name] = column
    sessions, count = _session_codes(candidates.sessions)
    if "dense" in columns and "dense.around" not in columns:
        columns["dense.around"] = _around(candidates.positions, columns["dense"], sessions)
    if "bm25" in columns:
        columns["session"] = _session(sessions, count, columns["bm25"])
    lengths = np.array(candidates.words)
    if lengths.any():
        columns["length"] = np.log1p(lengths)
        columns["brief"] = -np.log1p(np.minimum(lengths, _BRIEF))
    return columns


def _weight(name: str, columns: Mapping[str, _Column], weights: Mapping[str, float], trust: float) -> float:
    weight = weights.get(name, 0.0)
    if name == "bm25" and "bm25.around" not in columns:
        weight += weights.get("bm25.around", 0.0)  # no candidate has turns around it: its own words take that weight
    return weight * trust if name in _BY_WORDS else weight


def _session_codes(sessions: Sequence[str | None]) -> tuple[NDArray[np.int64], int]:
    """A number for the session of each candidate, -1 where it has none; and how many sessions there are."""
    codes = {session: code for code, session in enumerate(dict.fromkeys(sessions))}
    array = np.array([*map(codes.__getitem__, sessions)], np.int64)
    if None in codes:
        array[array == codes[None]] = -1
    return array, len(codes)


def _around(positions: Sequence[int | None], column: _Column, sessions: NDArray[np.int64]) -> _Column:
    """The mean of a signal over a turn and those of its neighbours that are candidates."""
    none = -1 - _AROUND[-1]
    known = [none if p is None else p for p in positions]
    if max(known) > _LAST_POSITION or min(known) < -_LAST_POSITION:
        known = [p if abs(p) <= _LAST_POSITION else -1 for p in known]
    places = np.array(known, np.int64) + _AROUND[-1]
    placed = np.flatnonzero((sessions >= 0) & (places >= 0))
    # One whole number for each turn: its session, then its place. Of two at one place, the last one counts.
    keys = sessions[placed] * _SESSION_ROOM + places[placed]
    order = np.argsort(keys, kind="stable")
    ordered, values = keys[order], column[placed[order]]
    total, count = column[placed], np.ones(len(placed))
    for distance in _AROUND:
        found = np.searchsorted(ordered, keys + distance, side="right") - 1
        is_there = ordered[found] == keys + distance
        total = total + np.where(is_there, values[found], 0.0)
        count += is_there
    means = column.copy()
    means[placed] = total / count
    return means


def _session(sessions: NDArray[np.int64], count: int, column: _Column) -> _Column:
    """How much of a session matches: the sum over its turns, divided by the square root of their number.

    A mean would hide one good turn in a long session; a plain sum would always prefer the longest one.
    """
    has_session = sessions >= 0
    known = sessions[has_session]
    damped = np.bincount(known, column[has_session], count) / np.sqrt(
        np.maximum(1, np.bincount(known, minlength=count))
    )
    matches = np.zeros(len(column))
    matches[has_session] = damped[known]
    return matches


_FEW = 4
_USUAL: Mapping[str, float] = {"dense": 0.1, "dense.around": 0.1}
"""The usual spread of cosines. If it is more, it counts as that of so many candidates: a few unrelated texts differ by
chance alone, and that must not outweigh the words."""


def _calibrated(columns: _Column, usual: _Column | None = None) -> _Column:
    """How many standard deviations above the mean of its column each value lies; `usual` is NaN where none is known."""
    above = columns - columns.mean(axis=-1, keepdims=True)
    spread = np.mean(above * above, axis=-1, keepdims=True)
    if usual is not None:
        count = above.shape[-1]
        mixed = (count * spread + _FEW * usual * usual) / (count + _FEW)
        np.fmax(spread, mixed, out=spread)
    spread = np.sqrt(spread)
    return np.divide(above, spread, out=np.zeros_like(above), where=spread >= 1e-9)


def _alone(columns: _Column) -> _Column:
    """The signals of the only candidate, from 0 to 1: with no other to compare, they cannot be calibrated."""
    value = np.maximum(columns, 0.0)
    return value / (1.0 + value)


def _priors(candidates: Candidates, hints: QuestionHints) -> dict[str, _Column]:
    """Signals that need no search, each from 0 to 1."""
    covers = candidates.signals.get("covers")
    priors = {
        "asks": np.array(candidates.asks, np.float64),
        # A question that names a person who speaks here is about what people said: messages to an assistant then keep
        # their order among themselves, but do not rise above turns of people.
        "user": np.array([role == "user" for role in candidates.roles], np.float64) - bool(hints.speakers),
        "covers": np.zeros(len(candidates.ids)) if covers is None else np.where(np.isnan(covers), 0.0, covers),
    }
    if len(hints.speakers) == 1:  # if two are named, either may be the speaker
        priors["speaker"] = np.array([speaker in hints.speakers for speaker in candidates.speakers], np.float64)
    if hints.when is not None:
        priors["time"] = _closeness(hints.when, candidates.times)
    elif hints.now is not None and not hints.speakers and not hints.is_lookup:
        # What names a person or a time looks something up, and so does a question; a message goes on with the talk.
        priors["recency"] = _recency(hints.now, candidates.times)
    return priors


def _closeness(when: TimeHint, times: Sequence[int | None]) -> _Column:
    """1 inside the interval, less the further outside, on the scale of the interval itself."""
    scale = max((when.span or _OPEN) / 2, _NEAR) / _MICROSECOND
    ats = np.array([nan if at is None else at for at in times])
    away = np.zeros(len(times))
    if when.start is not None:
        away = np.maximum(away, to_micros(when.start) - ats)
    if when.end is not None:
        away = np.maximum(away, ats - to_micros(when.end))
    return np.where(np.isnan(ats), 0.0, np.exp(-away / scale))


def _recency(now: datetime, times: Sequence[int | None]) -> _Column:
    then = now.timestamp()
    ages = np.array([inf if at is None else then - at / 1e6 for at in times])
    return np.exp(-np.maximum(ages, 0.0) / RECENT.total_seconds())


# The order among the best: of statements about the same thing, the newer one comes first.

Prefer: TypeAlias = Literal["user", "both"]
"""Whose words rank higher where a question is about talk with an assistant: the user's, or both alike."""

ROLES = frozenset({"user", "assistant", "system", "tool"})
"""Speakers that are roles, not people: the word "user" in a question names no person."""


def role_of(episode: Episode) -> str | None:
    """The role of the speaker; None for a person with a name."""
    return speaker_role(episode.speaker, episode.provenance.origin)


def speaker_role(speaker: str | None, origin: str) -> str | None:
    """The role of a speaker, or where there is none of the origin of a text; None for a person with a name."""
    return role_named(speaker) if speaker is not None else origin if origin in ROLES else None


@lru_cache(maxsize=256)
def role_named(speaker: str) -> str | None:
    """The role that a speaker is; None for a person with a name."""
    role = speaker.casefold()
    return role if role in ROLES else None


# Relevance cannot tell "she lives in Oslo" from "she lives in Bergen"; only time can. What counts as a repetition
# depends on who speaks. Notes and turns of people are short: two of the same speaker that share enough words state the
# same property. A message to an assistant holds several things, so only its best sentence counts: the later message
# comes first if its best sentence has nearly as many of the question's words as that of the earlier one.
#
# Either way, the later one must not lack a name or number of the question that the earlier one has: a question about
# Anna's key must not return the one that Ben got later. Messages change places only among the first five hits, so no
# evidence is pushed out of them; a question that asks for several things, or for an order, keeps all places.

TOP = 20
"""Number of best turns of people that are compared with each other."""
FIRST = 5
"""Number of best messages of a user that are compared with each other."""
ALIKE = 0.25
"""The least share of common words for a turn to count as a repetition of another."""
SHARED = 3
"""The least number of common words: two short turns may be alike by chance."""
PARALLEL = 0.5
"""The share of common words from which two turns, or two messages, say the same of two things, if the later one lacks a
word of the question: the morning pill and the evening pill."""
NEARER = 0.1
"""How much nearer the earlier of two such turns has to be to the question: what changes it may use a synonym. Of the
facts of Letta, 91% of those that changed come first; 88% if that did not count, and 92% if there were no such rule."""
COVERS = 0.6
"""The least share of the question's words in the earlier message that the later one has to have."""
FAR = 5.0
"""How much lower than the earlier turn the later one may score: with a larger gap it hardly answers the question."""
_STEP = 1e-6
_DIGIT = re.compile(r"\d")
_STAMP = re.compile(
    r"\W{0,3}(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|\d{1,2}:\d\d)(?:[T ,]{1,2}\d{1,2}:\d\d)?"
    r"(?::\d\d)?(?:[.,]\d{1,6})?Z?\b"
)
"""The date or the time that a line of a log begins with: shared by many lines, and not what they say."""
_PAIR = re.compile(
    "(?:(?![\u7684\u4e86\u662f\u6211\u4f60\u4ed6\u5979\u4eec\u5728\u6709\u548c\u4e0d\u8fd9\u90a3\u4ec0\u4e48\u5417])[\u30a0-\u30ff\u3400-\u9fff]){2}"
)
"""Two ideographs, none of them a Chinese word of grammar, or two katakana: as telling as a name. Scripts without
capitals and spaces have no other sign of one, and share much of their grammar between any two sentences."""
_OPENS_QUESTION = re.compile(
    r"\W*(?:what|where|when|who|which|why|how|is|are|was|do|does|did|can|could|will|would|should|have|has|any)\b",
    re.IGNORECASE,
)
"""The beginning of a plain question; "I cut the time to 25 minutes, what should I eat?" tells something."""
_SEVERAL = re.compile(
    r"\b(?:all|average|before|between|both|combined|compare|different|earliest|first|list|order|overview|progress(?:ed)?"
    r"|sum|summar(?:y|i[sz]e)|total)\b",
    re.IGNORECASE,
)
"""Words of a question whose answer takes several statements, or an early one."""


class _RankedTurn(NamedTuple):
    age: tuple[int, int, str]
    id: str
    text: str
    speaker: str | None
    role: str | None
    words: int
    asks: bool


def newest_first(question: str, ranked: Sequence[Ranked], hits: HitColumns, places: Mapping[str, int]) -> list[Ranked]:
    """The ranking with each later statement moved above the earlier ones that it repeats: the signal `newer`.

    `places` says where each id is among the hits; what is not among them, as a fact of a second hop, stays.
    """
    best = [place for r in ranked[:TOP] if (place := places.get(r.id)) is not None and _is_original(hits, place)]
    people = [place for place in best if not _is_message(hits, place)]
    ranked = [*_people(question, ranked[:TOP], hits, people), *ranked[TOP:]]
    if _SEVERAL.search(question):
        return ranked
    first = [place for r in ranked[:FIRST] if (place := places.get(r.id)) is not None and _is_original(hits, place)]
    users = [place for place in first if _is_message(hits, place) and _role(hits, place) == "user"]
    return [*_messages(question, ranked[:FIRST], hits, users), *ranked[FIRST:]]


def _people(question: str, ranked: Sequence[Ranked], hits: HitColumns, places: Sequence[int]) -> list[Ranked]:
    bits: dict[str, int] = {}
    wanted = _words(question, bits)
    turns = sorted(_turn(hits, place, _words(hits.texts[place][:RANKED], bits)) for place in places)
    stamps = {turn.id: _words(found[0], bits) for turn in turns if (found := _STAMP.match(turn.text))}
    said = {turn.id: turn.words & ~stamps.get(turn.id, 0) for turn in turns}
    cosines = hits.signals.get("dense")
    near = {} if cosines is None else {hits.ids[place]: float(cosines[place]) for place in places}

    def repeats(older: _RankedTurn, newer: _RankedTurn) -> bool:
        shared, different = (said[older.id] & said[newer.id]).bit_count(), (older.words | newer.words).bit_count()
        is_same = (older.speaker, older.role) == (newer.speaker, newer.role)
        if not is_same or shared < max(SHARED, ALIKE * different):
            return False
        if (
            older.words & wanted & ~newer.words
            and shared >= PARALLEL * different
            and _replaces(older.words, newer.words)
        ):
            nearer = near.get(older.id, 0.0) - near.get(newer.id, 0.0)
            if nearer >= NEARER:
                return False
        return not _is_of_another(older, newer, wanted, bits)

    return _moved(ranked, [turn for turn in turns if not turn.asks], turns, repeats)


def _messages(question: str, ranked: Sequence[Ranked], hits: HitColumns, places: Sequence[int]) -> list[Ranked]:
    bits: dict[str, int] = {}
    words: dict[str, int] = {}
    stems = content_terms(question)
    turns = sorted(_turn(hits, place, _told(hits.texts[place][:RANKED], stems, bits)) for place in places)
    _, *others = question.split()
    names = query_terms(" ".join(word for word in others if word != word.lower() or _DIGIT.search(word)))
    names += tuple(filter(_PAIR.fullmatch, stems))

    whole = {turn.id: _words(turn.text, words) for turn in turns}

    def repeats(older: _RankedTurn, newer: _RankedTurn) -> bool:
        before, after = whole[older.id], whole[newer.id]
        is_parallel = (before & after).bit_count() >= PARALLEL * (before | after).bit_count()
        if older.words & ~newer.words and is_parallel and _replaces(before, after):
            return False
        covers = newer.words.bit_count() >= max(1.0, COVERS * older.words.bit_count())
        return covers and stems_in(older.text, names) <= stems_in(newer.text, names)

    return _moved(ranked, turns, turns, repeats)


def _replaces(before: int, after: int) -> bool:
    """Whether later words have one of their own for each that they lack: what only says less may change all of it."""
    return (after & ~before).bit_count() >= (before & ~after).bit_count()


def _is_original(hits: HitColumns, place: int) -> bool:
    """Whether it is what happened, and was not made of other records."""
    return hits.kinds[place] == Episode.kind and not hits.derived[place]


def _role(hits: HitColumns, place: int) -> str | None:
    return speaker_role(hits.speakers[place], hits.origins[place])


def _is_message(hits: HitColumns, place: int) -> bool:
    """Whether it is part of a conversation between a user and an assistant: not a person's turn, and not a note."""
    return hits.speakers[place] is not None and _role(hits, place) is not None


def _turn(hits: HitColumns, place: int, words: int) -> _RankedTurn:
    # At equal times the order of arrival decides, which is the order of ids.
    age = (hits.times[place] or 0, hits.recorded[place] or 0, hits.ids[place])
    text, speaker = hits.texts[place], hits.speakers[place]
    return _RankedTurn(age, hits.ids[place], text[:RANKED], speaker, _role(hits, place), words, asks(text))


def _moved(
    ranked: Sequence[Ranked],
    newer_ones: Sequence[_RankedTurn],
    turns: Sequence[_RankedTurn],
    repeats: Callable[[_RankedTurn, _RankedTurn], bool],
) -> list[Ranked]:
    """The ranking with each of `newer_ones` just above the best of the earlier turns that it repeats.

    `turns` are in the order of time, and hold the newer ones.
    """
    found = {r.id: r for r in ranked}
    scores = {r.id: r.score for r in ranked}
    for newer in newer_ones:
        lowest, above = scores[newer.id], -inf
        highest = lowest + FAR
        for older in turns:
            if older is newer:
                break
            score = scores[older.id]
            if lowest <= score <= highest and score > above and repeats(older, newer):
                above = score
        if above > -inf:
            own, score = found[newer.id], above + _STEP
            found[own.id] = Ranked(own.id, score, {**own.why, "newer": score - own.score})
            scores[own.id] = score
    return sorted(found.values(), key=lambda r: (-r.score, r.id))


def _words(text: str, bits: dict[str, int]) -> int:
    """The words of a text as a bit set: one bit per word, numbered in `bits`.

    Sets of up to 20 texts are compared in pairs; `&` and bit_count() on integers are many times faster than sets.
    """
    return _bits(query_terms(text), bits)


def _bits(stems: Iterable[str], bits: dict[str, int]) -> int:
    places = [bits.setdefault(stem, len(bits)) for stem in stems]
    flags = bytearray(len(bits) // 8 + 1)
    for place in places:
        flags[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(flags, "little")


def _told(text: str, stems: tuple[str, ...], bits: dict[str, int]) -> int:
    """The words of the question in the sentence of a message that has most of them; plain questions tell nothing."""
    told = (text[span.start : span.end] for span in sentences(text))
    found = [stems_in(sentence, stems) for sentence in told if not (asks(sentence) and _OPENS_QUESTION.match(sentence))]
    return _bits(max(found, key=len, default=()), bits)


def _is_of_another(older: _RankedTurn, newer: _RankedTurn, wanted: int, bits: dict[str, int]) -> bool:
    """Whether the later turn lacks a name or number of the question that the earlier one has."""
    missing = older.words & wanted & ~newer.words
    if not missing:
        return False
    names = " ".join(word for word in older.text.split() if word != word.lower() or _DIGIT.search(word))
    pairs = () if older.text.isascii() else filter(_PAIR.fullmatch, bits)
    return bool(missing & (_words(names, bits) | _bits(list(pairs), bits)))
