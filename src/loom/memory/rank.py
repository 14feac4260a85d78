"""The ranking of recall: many signals about each candidate become one score, and a reason for it.

Signals are calibrated within a question: each becomes its distance from the mean of the candidates, in standard
deviations, before they are weighted and added. Ranks are not used: adding reciprocal ranks lets the weakest list
speak as loud as the best, and falls below plain BM25. Names of speakers are priors, not words to look for.

Beside each weight stands what is lost without it and the other weights set anew: points of recall, mean of the first
five and the first ten hits, on the conversations that settings were chosen on (`benchmarks/recall.py`, LoCoMo 1-5).
Facts drawn by rules were tried as a further key: they speak for so few turns that they mislead more than they find.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from math import exp, inf, sqrt
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loom.memory.timewords import TimeHint

WEIGHTS: Mapping[str, float] = {
    "bm25": 0.2,  # the own words; most of their weight is in `bm25.around`, which holds them too
    "bm25.around": 0.8,  # the turn with two turns on either side: 1.0
    "bm25.asked": 0.3,  # the question that the turn before asked: 1.6, most where the wrong person is named
    "phrase": 0.6,  # for statements only, as the next two: pairs of words, 1.3 in finding what a new one contradicts
    "head": 0.6,  # how it begins: 0.8 there; chosen on half of the Letta set
    "alike": 0.3,  # the share of words in common: 0.2 there; chosen on half of the Letta set
    "session": 0.3,  # how much of the session matches: 0 here, 0.3 of the sessions of RealMem
    "dense": 0.7,  # with `dense.around` 1.3, more where the question uses other words
    "dense.around": 0.4,  # 0.3
    "speaker": 1.4,  # the one person the question names: 1.5, most where several turns are needed
    "length": 0.5,  # BM25 holds length against a turn, but long turns say more: 0.6
    "asks": -0.5,  # a turn that asks is rarely the answer: 0.4
    "time": 3.0,  # said around the time the question names: 1.1, or 6 on the questions that name one
    "recency": 2.5,  # said lately, where the question looks nothing up: 3 of the sessions of RealMem, chosen on it
}
"""What a standard deviation of each signal adds; for `speaker`, `asks`, `time` and `recency`, what a full yes adds."""

REACH = 2
"""How many turns on either side count as around."""

_AROUND = tuple(distance for distance in range(-REACH, REACH + 1) if distance)

RECENT = timedelta(days=30)
"""In this time the weight of having been said lately falls to a third."""

_LEXICAL = ("bm25", "bm25.around", "bm25.asked", "phrase", "head", "alike")
_BY_WORDS = (*_LEXICAL, "session", "length")
_ENOUGH_SHARE, _ENOUGH_WORDS = 0.4, 3
_FADE = 0.7
_NEAR = timedelta(days=3)
_OPEN = timedelta(days=30)
_SENTENCE = re.compile(r"[^.!?\n]+\??")
_BLANKS = 1_000
_NONE: Mapping[str, float] = MappingProxyType({})
_Column: TypeAlias = NDArray[np.float64]
"""A value for each candidate."""


class Candidate(NamedTuple):
    """Something that may be recalled, with the raw score of each signal that found it.

    Signals are `bm25`, `bm25.KIND`, `phrase`, `head` and `alike` (missing is zero: nothing matched), `dense` and
    `dense.around` (missing is unknown: taken as the lowest). `position` counts the turns of a session; `words` are
    those of the text that blanks part.
    """

    id: str
    signals: Mapping[str, float] = _NONE
    speaker: str | None = None
    session: str | None = None
    position: int | None = None
    at: datetime | None = None
    words: int = 0
    asks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionHints:
    """What the question says beside its words: the speakers it names, the time it names, and when it is asked.

    `trust` is how much the words of the question are worth, from 0 to 1: see trust_in_words().
    """

    speakers: frozenset[str] = frozenset()
    when: TimeHint | None = None
    now: datetime | None = None
    trust: float = 1.0


class Ranked(NamedTuple):
    """A candidate with its score, the sum of what each signal in `why` adds."""

    id: str
    score: float
    why: Mapping[str, float] = _NONE


def rank(
    candidates: Sequence[Candidate], asked: QuestionHints | None = None, weights: Mapping[str, float] = WEIGHTS
) -> list[Ranked]:
    """The candidates, best first; at equal score by id. Time and memory grow with their number alone."""
    asked = asked or QuestionHints()
    columns = _signals(candidates)
    parts: dict[str, _Column] = {}
    measured = _alone if len(candidates) == 1 else _calibrated
    if len(candidates) == 1:
        columns.pop("length", None)  # it is long or short beside others only
    for name, column in columns.items():
        if weight := _weight(name, columns, weights, asked.trust):
            parts[name] = measured(column, weight)
    for name, column in _priors(candidates, asked).items():
        parts[name] = weights.get(name, 0.0) * column
    score = np.zeros(len(candidates))
    for part in parts.values():
        score += part
    scores: list[float] = score.tolist()
    order = sorted(range(len(candidates)), key=lambda place: (-scores[place], candidates[place].id))
    return [Ranked((c := candidates[place]).id, scores[place], _Why(parts, place, c.signals)) for place in order]


class _Why(Mapping[str, float]):
    """What each signal adds, as a mapping that is only made of the few candidates that somebody asks about.

    What found a candidate is named also where it adds nothing, because all candidates have it alike.
    """

    __slots__ = ("_made", "_parts", "_place", "_signals")

    def __init__(self, parts: Mapping[str, _Column], place: int, signals: Mapping[str, float]) -> None:
        self._parts = parts
        self._place = place
        self._signals = signals
        self._made: dict[str, float] | None = None

    def _added(self) -> dict[str, float]:
        if self._made is None:
            parts = {name: float(part[self._place]) for name, part in self._parts.items()}
            self._made = {name: part for name, part in parts.items() if part or name in self._signals} or parts
        return self._made

    def __getitem__(self, name: str) -> float:
        return self._added()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._added())

    def __len__(self) -> int:
        return len(self._added())


def named_speakers(question: str, speakers: Iterable[str]) -> frozenset[str]:
    """Those of the speakers whom the question names, by the whole name or the first word of it."""
    return frozenset(s for s, pattern in _likely(question, speakers) if pattern.search(question))


def without_names(text: str, speakers: Iterable[str]) -> str:
    """The text without the speakers' names: in a small vector a name drowns what is said."""
    for _, pattern in _likely(text, speakers):
        text = pattern.sub(" ", text)
    return text


def questions_in(text: str) -> str:
    """The sentences of a turn that ask something: the key `asked` of the turn that follows."""
    if "?" not in text:
        return ""
    return " ".join(found.strip() for found in _SENTENCE.findall(text) if found.endswith("?"))


def asks(text: str) -> bool:
    """Whether a turn ends with a question; of the blanks at its end only so many are looked at."""
    return text[-_BLANKS:].rstrip().endswith("?")


def shared_pairs(question: Sequence[str], text: Sequence[str]) -> int:
    """How many pairs of words that follow each other two texts share, given as terms: the signal `phrase`.

    For a statement that looks for one like it. A question shares its order with other questions, not with answers.
    """
    return len(set(pairwise(question)) & set(pairwise(text)))


def shared_head(question: Sequence[str], text: Sequence[str]) -> float:
    """How much of the beginning of two texts is the same, given as terms: the signal `head`.

    A statement that changes another begins as that did, with whom it is about and what of him; the new value comes
    last. Each shared word counts the less, the further it stands from the beginning of either.
    """
    places = _places(text)
    return sum(_FADE ** max(place, places[term]) for term, place in _places(question).items() if term in places)


def shared_share(question: Sequence[str], text: Sequence[str]) -> float:
    """The share of their words that two texts have in common, given as terms: the signal `alike`."""
    return len({*question} & {*text}) / max(1, len({*question, *text}))


def trust_in_words(question: Sequence[str], texts: Iterable[Sequence[str]]) -> float:
    """How much the words of a question are worth, given as terms: little where no text holds more than a few of them.

    A question that is asked in other words than the answer was given in still meets some of its words somewhere, by
    chance. Then its meaning has to lead.
    """
    words = set(question)
    trust = 0.0 if words else 1.0
    for text in texts:
        if trust >= 1.0:  # no text can add to it
            break
        shared = len(words.intersection(text))
        trust = max(trust, min(1.0, max(shared / (_ENOUGH_SHARE * len(words)), shared / _ENOUGH_WORDS)))
    return trust


def _places(words: Sequence[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, word in enumerate(words):
        places.setdefault(word, place)
    return places


def _likely(text: str, speakers: Iterable[str]) -> list[tuple[str, re.Pattern[str]]]:
    """The speakers whose first name is in a text, each with a pattern that says whether it is a word of its own.

    To make a pattern takes longer than to search with it, and a memory may know hundreds of people.
    """
    folded = _folded(text)
    named = [speaker for speaker in speakers if (words := speaker.split()) and _folded(words[0]) in folded]
    return [(speaker, _name(speaker)) for speaker in named]


def _folded(text: str) -> str:
    """What is equal here may be equal to a pattern that ignores case, which takes every kind of i for the same."""
    return text.casefold().replace("\u0307", "").replace("\u0131", "i")


@lru_cache(maxsize=1024)
def _name(speaker: str) -> re.Pattern[str]:
    words = speaker.split()
    forms = "|".join(re.escape(form) for form in dict.fromkeys((" ".join(words), words[0])))
    return re.compile(rf"(?<!\w)(?:{forms})(?:['\u2019]s)?(?!\w)", re.IGNORECASE)


def _signals(candidates: Sequence[Candidate]) -> dict[str, _Column]:
    """One column for each signal that anybody has, with those that follow from the others."""
    columns: dict[str, _Column] = {}
    spoken = set[str]().union(*(c.signals for c in candidates))
    for name in _LEXICAL:
        if name in spoken:
            columns[name] = np.array([c.signals.get(name, 0.0) for c in candidates])
    for name in ("dense", "dense.around"):
        if name in spoken:
            lowest = min(c.signals[name] for c in candidates if name in c.signals)
            columns[name] = np.array([c.signals.get(name, lowest) for c in candidates])
    if "dense" in columns and "dense.around" not in columns:
        columns["dense.around"] = _around(candidates, columns["dense"].tolist())
    if "bm25" in columns:
        columns["session"] = _session(candidates, columns["bm25"].tolist())
    lengths = [c.words for c in candidates]
    if any(lengths):
        columns["length"] = np.log1p(lengths)
    return columns


def _weight(name: str, columns: Mapping[str, _Column], weights: Mapping[str, float], trust: float) -> float:
    weight = weights.get(name, 0.0)
    if name == "bm25" and "bm25.around" not in columns:
        weight += weights.get("bm25.around", 0.0)  # nothing stands around anything: the own words are all there is
    return weight * trust if name in _BY_WORDS else weight


def _around(candidates: Sequence[Candidate], column: list[float]) -> _Column:
    """The mean of a signal over a turn and its neighbours, as far as they are candidates."""
    sessions: dict[str | None, dict[int, float]] = defaultdict(dict)
    for candidate, value in zip(candidates, column, strict=True):
        if candidate.position is not None:
            sessions[candidate.session][candidate.position] = value
    sessions.pop(None, None)
    means = list(column)
    for place, candidate in enumerate(candidates):
        placed = sessions.get(candidate.session)
        if placed is None or len(placed) == 1 or (middle := candidate.position) is None:
            continue
        total, count = column[place], 1
        for distance in _AROUND:
            value = placed.get(middle + distance)
            if value is not None:
                total += value
                count += 1
        means[place] = total / count
    return np.array(means)


def _session(candidates: Sequence[Candidate], column: list[float]) -> _Column:
    """How much of a session matches: the sum over its turns, damped by how many there are."""
    total: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for candidate, value in zip(candidates, column, strict=True):
        if candidate.session is not None:
            total[candidate.session] += value
            count[candidate.session] += 1
    damped = {session: total[session] / sqrt(count[session]) for session in total}
    return np.array([0.0 if c.session is None else damped[c.session] for c in candidates])


def _calibrated(column: _Column, weight: float) -> _Column:
    """How many standard deviations above the mean each value lies, times the weight."""
    above = column - column.mean()
    spread = sqrt(above @ above / len(above))
    return above * (weight / spread) if spread >= 1e-9 else np.zeros(len(above))


def _alone(column: _Column, weight: float) -> _Column:
    """What a signal says of the only candidate, as there is no other to compare it with: from 0 to the weight."""
    value = np.maximum(column, 0.0)
    return weight * value / (1.0 + value)


def _priors(candidates: Sequence[Candidate], asked: QuestionHints) -> dict[str, _Column]:
    """What is known without a search, each from 0 to 1."""
    priors = {"asks": np.array([c.asks for c in candidates], np.float64)}
    if len(asked.speakers) == 1:  # with two named, either may have said it
        priors["speaker"] = np.array([c.speaker in asked.speakers for c in candidates], np.float64)
    if asked.when is not None:
        priors["time"] = np.array([_closeness(asked.when, c.at) for c in candidates])
    elif asked.now is not None and not asked.speakers:
        # A question that names a person or a time looks something up; any other goes on with the talk.
        priors["recency"] = _recency(asked.now, [c.at for c in candidates])
    return priors


def _closeness(when: TimeHint, at: datetime | None) -> float:
    """1 inside the interval, less the further outside, on the scale of the interval itself."""
    if at is None:
        return 0.0
    scale = max((when.span or _OPEN) / 2, _NEAR)
    return exp(-(when.distance(at) / scale))


def _recency(now: datetime, said: Sequence[datetime | None]) -> _Column:
    then = now.timestamp()
    ages = np.array([inf if at is None else then - at.timestamp() for at in said])
    return np.exp(-np.maximum(ages, 0.0) / RECENT.total_seconds())
