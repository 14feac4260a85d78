"""Candidate search: two ranked lists, a second hop over facts, earlier conversations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Final, TypeGuard

from loom.core.clock import to_micros
from loom.core.doors import Late
from loom.core.filter import And, Eq, Filter, In, Range
from loom.core.record import Episode, Fact, Hit, Passage, Record, joined
from loom.core.scope import Scope
from loom.memory._facts.entities import USER, normalise
from loom.memory._recall.rank import Ranked, Ranking
from loom.memory._shared import every, every_fact, is_candidate
from loom.memory._upkeep.summaries import ARE_EPISODES, is_session_episode
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import (
    ColumnSearch,
    ExportsKeys,
    HitColumns,
    HybridSearch,
    MemoryStore,
    Query,
    SearchKeys,
)
from loom.text.time_words import TimeHint
from loom.text.words import STOP_WORDS, query_terms, stem, tokens

if TYPE_CHECKING:
    import numpy as np
else:
    np = Late("numpy")


class FoundRecords(dict[str, Record]):
    """The records of hits by id, each read at its first use: hundreds are ranked, and a few returned."""

    def __init__(self, hits: HitColumns) -> None:
        super().__init__()
        self.hits = hits
        self.place_of = {id: place for place, id in enumerate(hits.ids)}

    def __missing__(self, id: str) -> Record:
        record = self[id] = self.hits.read(self.place_of[id])
        return record

    def kind_of(self, id: str) -> str:
        """The kind of a record, which is not read for it."""
        place = self.place_of.get(id)
        return self[id].kind if place is None else self.hits.kinds[place]

    def time_of(self, id: str) -> int | None:
        """When a record happened, in microseconds, where that is known without reading it."""
        place = self.place_of.get(id)
        return None if place is None else self.hits.times[place]

    def text_of(self, id: str) -> str:
        """The text of a record, which is not read for it."""
        place = self.place_of.get(id)
        return self[id].text if place is None else self.hits.texts[place]


def as_columns(hits: Sequence[Hit]) -> HitColumns:
    """The columns of hits that have their records."""
    found = [(hit.item, hit.why) for hit in hits if not isinstance(hit.item, Passage)]
    records = [record for record, _ in found]
    names = dict.fromkeys(name for _, why in found for name in why)
    signals = {name: np.array([why.get(name, np.nan) for _, why in found]) for name in names}
    return HitColumns.of(records, signals, records.__getitem__)


def chosen(hits: HitColumns, places: Sequence[int]) -> HitColumns:
    """The hits at these places."""
    if len(places) == len(hits):
        return hits
    signals = {name: part for name, c in hits.signals.items() if not np.isnan(part := c[list(places)]).all()}
    return HitColumns(
        ids=[hits.ids[place] for place in places],
        kinds=[hits.kinds[place] for place in places],
        texts=[hits.texts[place] for place in places],
        origins=[hits.origins[place] for place in places],
        speakers=[hits.speakers[place] for place in places],
        sessions=[hits.sessions[place] for place in places],
        times=[hits.times[place] for place in places],
        recorded=[hits.recorded[place] for place in places],
        derived=[hits.derived[place] for place in places],
        attributes=[hits.attributes[place] for place in places],
        signals=signals,
        read=lambda place: hits.read(places[place]),
        held=hits.held,
    )


async def search_hybrid(store: MemoryStore, scope: Scope, query: Query, *, near: int) -> HitColumns:
    """The best hits by the words of a query and the `near` best by its vector, as HybridSearch defines them."""
    if _searches_columns(store):
        return await store.search_columns(scope, query, near=near)
    if isinstance(store, HybridSearch):
        return as_columns(await store.search_hybrid(scope, query, near=near))
    by_words = await store.search(scope, replace(query, vector=None))
    by_vector = await store.search(scope, replace(query, text="", limit=near))
    cosines = {hit.item.id: hit.why["dense"] for hit in by_vector}
    far = [hit.item.id for hit in by_words if hit.item.id not in cosines]
    if far and query.vector is not None and isinstance(store, ExportsKeys):
        cosines |= _cosines(query.vector, await store.search_keys(scope, *far))
    return as_columns(joined(by_words, by_vector, cosines))


def _searches_columns(store: object) -> TypeGuard[ColumnSearch]:
    """Whether a store is one; isinstance() of a protocol takes longer than many a search by words."""
    return hasattr(store, "search_columns")


def _cosines(vector: Vector, others: Mapping[str, SearchKeys]) -> dict[str, float]:
    """The cosine of each record that has a vector."""
    known = {id: by.vector for id, by in others.items() if by.vector is not None}
    if not known:
        return {}
    rows = np.array([row if isinstance(row, np.ndarray) else list(row) for row in known.values()], np.float64)
    target = np.array(vector if isinstance(vector, np.ndarray) else list(vector), np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(target)
    return dict(zip(known, (rows @ target / lengths).tolist(), strict=True))


# A second hop over facts: from a fact about the subject of the question to facts about its object.
#
# "In which city does Alice work?" finds that Alice works at Acme; that Acme is in Berlin shares no word with the
# question and is found through the first fact. Only facts whose subject the question names are followed, one step.

ENTITIES: Final = 16
"""Objects that are followed at most."""
FACTS: Final = 32
"""Facts about them that are read at most."""
_BEHIND: Final = 1e-3
"""How much lower a fact scores than the one that leads to it: just enough to rank right behind it."""
_SELF: Final = frozenset({"i", "im", "ive", "id", "me", "my", "mine", "we", "our", "us"})
_PLACES: Final = ("lives_in", "born_in", "from", "grew_up_in")
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    stem(word): predicates
    for words, predicates in (
        ("where city town country place located based headquarters region capital", _PLACES),
        ("work company employer job firm profession", ("works_at", "works_as")),
        ("language speak", ("speaks", "native_language", "written_in")),
        ("old age", ("age", "birthday")),
        ("birthday born", ("birthday", "born_in")),
        ("pet dog cat", ("has_pet",)),
        ("car drive", ("drives",)),
        ("eat diet food allergy", ("diet", "does_not_eat", "allergic_to", "intolerant_to", "likes", "dislikes")),
        ("wife husband spouse married partner", ("married_to", "partner")),
        ("tool software version technology database stack", ("uses", "runs", "runs_on", "built_with", "hosted_on")),
    )
    for word in words.split()
}
"""The predicates that a word of a question asks for."""


async def add_hops(
    store: MemoryStore,
    scope: Scope,
    ranked: Sequence[Ranked],
    records: FoundRecords,
    *,
    question: str,
    query: Query,
) -> list[Ranked]:
    """The ranking with the facts of a second hop, which are added to `records`: the signal `hop`.

    The first hop is the ranking itself, so a question that names no known subject costs nothing; otherwise the hop
    costs one search. A fact that the question asks for ranks right behind the one that leads to it, others at the end.
    """
    leads = {} if query.history else _leads(question, ranked, records)
    if not leads:
        return list(ranked)
    names = tuple(dict.fromkeys(name for object in leads for name in (object, object.lower())))
    where = And(*([query.where] if query.where else []), Eq("kind", "fact"), In("subject", names))
    found = await store.search(scope, replace(query, text="", vector=None, where=where, limit=FACTS))
    facts = [hit.item for hit in found if isinstance(hit.item, Fact) and not is_candidate(hit.item)]
    by_name = {normalise(object): lead for object, lead in leads.items()}
    led = [(fact, lead) for fact in facts if (lead := by_name.get(normalise(fact.subject))) is not None]
    records |= {fact.id: fact for fact, _ in led}
    return _merge(ranked, list(_score(question, led, ranked)))


def _leads(question: str, ranked: Iterable[Ranked], records: FoundRecords) -> dict[str, Ranked]:
    """The objects of facts about the subjects that the question names, each with the best of these facts."""
    words = tokens(question)
    stems = {stem(word) for word in words}
    is_own = not _SELF.isdisjoint(words)
    leads: dict[str, Ranked] = {}
    for one in ranked:
        if records.kind_of(one.id) != Fact.kind:
            continue
        fact = records[one.id]
        if not isinstance(fact, Fact) or not fact.object[:1].isupper():
            continue  # names begin with a capital letter
        is_named = is_own if normalise(fact.subject) == USER else stems.issuperset(query_terms(fact.subject))
        if is_named and normalise(fact.object) != normalise(fact.subject):
            leads.setdefault(fact.object, one)
        if len(leads) == ENTITIES:
            break
    return leads


def _score(question: str, led: Iterable[tuple[Fact, Ranked]], ranked: Sequence[Ranked]) -> Iterator[Ranked]:
    stems = {stem(word) for word in tokens(question)}
    wanted = {predicate for word in stems for predicate in _KINDS.get(word, ())}
    lowest = min(r.score for r in ranked) - _BEHIND
    for fact, lead in led:
        is_wanted = fact.predicate in wanted or not stems.isdisjoint(query_terms(fact.predicate))
        score = lead.score - _BEHIND if is_wanted else lowest
        yield Ranked(fact.id, score, {"hop": score})


def _merge(ranked: Sequence[Ranked], hops: Sequence[Ranked]) -> list[Ranked]:
    """Both lists in one order; a fact in both keeps the better score."""
    best = {r.id: r for r in ranked}
    for hop in hops:
        known = best.get(hop.id)
        if known is None:
            best[hop.id] = hop
        elif known.score < hop.score:
            best[hop.id] = Ranked(hop.id, hop.score, {**known.why, "hop": hop.score - known.score})
    return sorted(best.values(), key=lambda r: -r.score)


# A fact that holds now comes before the turns that told what it replaced.

_STEP: Final = 1e-6
_PAST: Final = re.compile(
    r"\b(?:before|did|earlier|first|former(?:ly)?|originally|previous(?:ly)?|used|was|were)\b", re.IGNORECASE
)


async def facts_first(
    store: MemoryStore,
    scope: Scope,
    ranked: Sequence[Ranked],
    records: FoundRecords,
    *,
    question: str,
    query: Query,
) -> list[Ranked]:
    """The ranking with each fact above the episodes from which only facts were learned that it replaced: `newer`.

    A question about the past gets the ranking as it is. Facts are read only where an older episode is above a fact.
    """
    at, known_at = query.at, query.known_at
    if query.history or at is None or known_at is None or _PAST.search(question):
        return list(ranked)
    facts = {one.id: fact for one in ranked if (fact := _fact_below_older(one, ranked, records)) is not None}
    if not facts:
        return list(ranked)
    subjects = tuple({fact.subject for fact in facts.values()})
    predicates = tuple({fact.predicate for fact in facts.values()})
    told: dict[tuple[str, str], set[str]] = {}
    holds = set[str]()
    for fact in await every_fact(store, scope, In("subject", subjects), In("predicate", predicates)):
        if fact.is_current(at, known_at):
            holds.update(fact.sources)
        elif fact.recorded_at <= known_at and (fact.valid_from is None or fact.valid_from <= at):
            told.setdefault((fact.subject, fact.predicate), set()).update(fact.sources)
    best = {one.id: one for one in ranked}
    for id, fact in facts.items():
        replaced = told.get((fact.subject, fact.predicate), set()) - holds
        own, score = best[id], max((best[over].score + _STEP for over in replaced if over in best), default=-inf)
        if score > own.score:
            best[id] = Ranked(id, score, {**own.why, "newer": score - own.score})
    return sorted(best.values(), key=lambda r: -r.score)


def _fact_below_older(one: Ranked, ranked: Sequence[Ranked], records: FoundRecords) -> Fact | None:
    """The fact of a hit, where an episode from before it ranks above it."""
    fact = records[one.id] if records.kind_of(one.id) == Fact.kind else None
    if not isinstance(fact, Fact):
        return None
    since = to_micros(fact.valid_from or fact.recorded_at)
    above = takewhile(lambda other: other is not one, ranked)
    times = (records.time_of(other.id) for other in above if records.kind_of(other.id) == Episode.kind)
    return fact if any(at is not None and at < since for at in times) else None


# Drops recalled questions that contain no information of their own.
#
# "Where do I live?" asked six times says nothing about where the user lives. A question that states something ("Can you
# help me choose paint for my 2018 Honda Civic?") stays.

_LONGEST: Final = 300
"""Characters; a longer question states something as well."""
_PLAIN: Final = 8
"""Maximum words of a plain question."""
_OPENS: Final = frozenset(
    """
    what whats where wheres when whens who whos whom whose which why how hows is are am was were do does did can could
    will would should shall may might have has had dont doesnt didnt isnt arent cant
    wo was wann wer wem wen wie warum wieso welche welcher welches ou quand qui que quel quelle comment pourquoi combien
    donde cuando quien cual como cuanto dove quando chi che quale come perche onde quem qual waar wanneer wat welke
    waarom hoe
    """.split()  # noqa: SIM905
)
_ASKED: Final = r"(?:what|where|when|who|whom|whose|which|why|how)"
_VERB: Final = r"(?:is|are|am|was|were|do|does|did|can|could|will|would|should|have|has|had)"
_WHO: Final = r"(?:i|you|we|he|she|they|it|my|our|your|the|this|that)"
_UNMARKED: Final = re.compile(
    rf"(?:(?:and|so|but|ok|okay|hey|hi|please|again|just) )*(?:"
    rf"{_ASKED}(?:['\u2019]?s|(?: (?!{_WHO}\b)\w+){{0,3}} {_VERB}) {_WHO}\b"
    rf"|(?:(?:can|could|would) you )?(?:please )?(?:tell|remind) me (?:again )?(?!when\b){_ASKED}\b"
    rf"|(?:(?:can|could|would) you )?(?:please )?"
    rf"(?:tell me (?:(?:a bit|a little|some|something) )?(?:more|about)|explain|describe)\b"
    rf")[^.!?,:;\n]*[.!?]?",
    re.IGNORECASE,
)
"""A question without a question mark, by its word order, or a request to be told: `where do i live`, `Tell me where I
live.`, `Explain the rules.` A reminder (`Tell me when the pasta is done`) is not one."""
_REQUEST: Final = frozenset("bit could describe explain little more please remind tell".split())  # noqa: SIM905
"""Words of a request to be told that are none of its topic."""
_NEVER_ASKS: Final = frozenset("fgiklmnquvxyzFGIKLMNQUVXYZ0123456789")
"""Characters that no question without a question mark begins with: most turns need no look at the pattern."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_DETAIL: Final = re.compile(r"[\d\"\u201c\u201d\u00ab\u00bb`]|(?<=\S)\s+(?!I\b)[A-Z\u00c0-\u00de]")
"""A number, a quotation, or a name."""
_ABOUT_ASKING: Final = re.compile(r"\b(?:ask|asks|asked|asking|questions?|wonder(?:ed|ing)?)\b", re.IGNORECASE)


def without_questions(question: str, ranking: Ranking, hits: HitColumns, *, enough: int) -> list[Ranked]:
    """The best `enough` hits but for questions that add no word to the current one, or are plain questions.

    A query about questions ("what did I ask?") gets them as well. Behind the best come all facts: they may lead to
    others. Nothing else that ranks lower is looked at.
    """
    drops_none = bool(_ABOUT_ASKING.search(question))
    known, kinds, texts = set(query_terms(question)), hits.kinds, hits.texts
    kept: list[int] = []
    for place in ranking.places:
        if kinds[place] != Episode.kind:
            kept.append(place)
        elif len(kept) < enough:
            text = texts[place]
            if drops_none or not (_may_ask(text) and _tells_nothing(text, known)):
                kept.append(place)
    return [ranking.ranked(place) for place in kept]


def _may_ask(text: str) -> bool:
    """Whether a text may be a question, as its first and last characters tell: most are not, and need no more."""
    last = text[-1:]
    return last == "?" or text[:1] not in _NEVER_ASKS or last.isspace()


def _tells_nothing(text: str, known: set[str]) -> bool:
    text = text.strip()
    if len(text) > _LONGEST:
        return False
    is_unmarked = _UNMARKED.fullmatch(text) is not None
    if not is_unmarked and not text.endswith("?"):
        return False
    sentences = _SENTENCE.split(text)
    if not is_unmarked and not all(sentence.endswith("?") for sentence in sentences):
        return False
    words = tokens(text)
    said = STOP_WORDS | _REQUEST if is_unmarked else STOP_WORDS
    if {stem(word) for word in words if word not in said} <= known:
        return True
    is_plain = len(sentences) == 1 and len(words) <= _PLAIN and (is_unmarked or words[0] in _OPENS)
    return is_plain and not _DETAIL.search(text)


# Questions about earlier conversations, such as `What did we talk about last time?`, and the episodes that answer.

FIRST: Final = 3
"""Episodes that rank first if a question asks about earlier conversations."""
_LAST_TIME_LONGEST: Final = 200
"""Characters; a longer question names a topic."""
_WORD: Final = re.compile(r"[a-z']+|\d+")

_OTHER: Final = re.compile(r"[^\W\d_a-zA-Z]")
"""A non-Latin letter: the word lists below contain none."""
_TALK_WORDS: Final = """
    chat chats chatted chatting conversation conversations cover covered discuss discussed discussing discussion
    discussions leave left said say session sessions speak speaking spoke talk talked talking talks
"""
_ASK_WORDS: Final = """
    catch happened recap remember remind summarise summarize summary tell what what's when where which
"""
_NAME_WORDS: Final = """
    chat chats conversation conversations discussion last latest most my our previous recent session sessions the time
"""
_TIME_WORDS: Final = """
    a ago an and apr april at aug august before between day days dec december during eight evening feb february few five
    four friday from in jan january jul july jun june lately mar march may monday month months morning nd night nine nov
    november oct october of on one other past rd recently saturday sep sept september seven several since six st sunday
    ten th this three thursday to today tonight tuesday two wednesday week weekend weeks year years yesterday
"""
_FILLERS: Final = """
    about again all any anything can could did do for hey hi i is it just know me off ok okay please quick quickly so
    stop stopped that things think topic topics up was were with would you your
"""
_US: Final = frozenset(["our", "us", "we"])
_LATEST: Final = frozenset(["last", "latest", "previous", "recent"])
_PERIODS: Final = frozenset(
    "friday monday month saturday sunday thursday tuesday wednesday week weekend yesterday".split()  # noqa: SIM905
)
_TALK, _ASKS, _NAMES = (frozenset(words.split()) for words in (_TALK_WORDS, _ASK_WORDS, _NAME_WORDS))
_ALL: Final = _TALK | _US | _ASKS | _NAMES | frozenset((_TIME_WORDS + _FILLERS).split())


def asks_about_last_time(question: str) -> bool:
    """Whether a question asks about an earlier conversation and names no topic.

    All of its words have to be in the lists above: any other word is a topic, and turns about that answer it.
    """
    if len(question) > _LAST_TIME_LONGEST:
        return False
    words = {word for word in _WORD.findall(question.lower().replace("\u2019", "'")) if not word.isdigit()}
    if not words or not words <= _ALL or _OTHER.search(question):
        return False
    if words <= _NAMES:
        return bool(words & _TALK)
    asks = bool(words & _ASKS) or question.rstrip().endswith(("?", "...", "\u2026"))
    means_it = (words & _TALK and words & (_US | _LATEST)) or ("happened" in words and words & _PERIODS)
    return asks and bool(means_it or "recap" in words or {"catch", "up"} <= words or {"last", "time"} <= words)


async def latest_episodes(
    store: MemoryStore, scope: Scope, fits: Filter, when: TimeHint | None, *, archived: bool
) -> tuple[Episode, ...]:
    """The episodes of the latest sessions, newest first; only of the time that the question names, if it names one."""
    parts: list[Filter] = [fits, ARE_EPISODES]
    parts += [] if archived else [Eq("archived_at", None)]
    if when is not None and (when.start is not None or when.end is not None):
        parts.append(Range("at", low=when.start, high=when.end))
    found = [r async for r in every(store, scope, And(*parts)) if isinstance(r, Episode) and is_session_episode(r)]
    return tuple(sorted(found, key=lambda episode: (episode.at, episode.id), reverse=True)[:FIRST])
