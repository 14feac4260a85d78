"""Recall: candidates from words, vectors, facts and time, ranked and packed into a budget."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from math import exp, isnan
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from loom.core.checks import MAX_QUERY, RANKED
from loom.core.clock import Clock, from_micros
from loom.core.doors import Late
from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.record import Episode, Excerpt, Fact, Hit, Layer, Record, WorkingBlock, layers_of
from loom.core.scope import Scope
from loom.core.threads import off_loop
from loom.errors import LoomError, ProviderError, UsageError
from loom.memory._recall.rank import (
    TOP,
    WEIGHTS,
    Candidates,
    Prefer,
    QuestionHints,
    Ranked,
    StatementWords,
    Talk,
    asks,
    asks_several,
    looks_up,
    named_speakers,
    newest_first,
    rank,
    role_named,
    speaker_role,
    trust_in_words,
    without_names,
)
from loom.memory._recall.search import (
    FoundRecords,
    add_hops,
    as_columns,
    asks_about_last_time,
    chosen,
    facts_first,
    latest_episodes,
    search_hybrid,
    without_questions,
)
from loom.memory._shared import ARE_CURRENT, POSITION, EmbedderBinding, is_candidate, list_together
from loom.memory._upkeep.summaries import ARE_EPISODES, is_summary
from loom.memory.config import MemoryLayerConfig
from loom.memory.results import Recalled
from loom.protocols.knowledge_base import KnowledgeBase
from loom.protocols.memory_store import HitColumns, KeepsVectors, MemoryStore, Newest, Query
from loom.protocols.reranker import Reranker
from loom.text.passages import best_passage, looking_cost, most_together, stems_in
from loom.text.time_words import TimeHint, time_hint
from loom.text.tokens import EstimateCounter
from loom.text.words import content_terms, query_terms, terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Late("numpy")

# Packs hits into a token budget, best first, each source once.

Reason: TypeAlias = Literal["repeats", "too long"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackItem:
    """A text to pack. `sources` are the ids it was derived from; empty if it is a source itself.

    A `lossy` item leaves out most of its sources, so it does not replace them.
    """

    id: str
    text: str
    tokens: int
    sources: tuple[str, ...] = ()
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An item that was not packed, and why: for `repeats`, `by` is the packed item that contains it."""

    id: str
    reason: Reason
    by: str | None = None


@dataclass(frozen=True, slots=True)
class PackResult:
    """The items that fit, in the order given, their tokens, and what was left out before the last of them."""

    pieces: tuple[PackItem, ...]
    tokens: int
    left_out: tuple[LeftOut, ...]


def pack(pieces: Iterable[PackItem], *, budget: int | None = None, limit: int | None = None) -> PackResult:
    """Take items in the order given, best first, while they fit into `budget` tokens and `limit` items.

    An item repeats others if all its sources are covered by packed ones, or if its text is equal. One that is too long
    for what is left is skipped for shorter ones. Nothing is read beyond the last item that is packed.
    """
    for name, value in (("budget", budget), ("limit", limit)):
        if value is not None and value < 0:
            raise UsageError(f"pack() was given {name}={value}; give 0 or more, or None for no limit")
    kept: list[PackItem] = []
    left_out: list[LeftOut] = []
    covered: dict[str, str] = {}
    texts: dict[str, str] = {}
    used = 0
    for piece in pieces if limit != 0 else ():
        roots, text = piece.sources or (piece.id,), _folded(piece.text)
        if by := texts.get(text) or _covering(roots, covered):
            left_out.append(LeftOut(piece.id, "repeats", by))
        elif budget is not None and used + piece.tokens > budget:
            left_out.append(LeftOut(piece.id, "too long"))
        else:
            kept.append(piece)
            used += piece.tokens
            texts[text] = piece.id
            for root in () if piece.lossy else roots:
                covered.setdefault(root, piece.id)
            if len(kept) == limit:
                break
    return PackResult(tuple(kept), used, tuple(left_out))


def _folded(text: str) -> str:
    """The words of a text. How it ends does not matter, but for a question: that says something else."""
    return " ".join(text.split()).casefold().rstrip(" .!\u2026")


def _covering(roots: tuple[str, ...], covered: dict[str, str]) -> str | None:
    """The packed item that covers the first root, if all of them are covered."""
    return covered[roots[0]] if all(root in covered for root in roots) else None


BY_WORDS = 200
"""Candidates by words; more than that does not change the first twenty hits."""
BY_VECTOR = 100
"""Candidates by vector."""
RERANKED = 50
"""Hits that a reranker sees: the best ones."""
_LIKELIEST = 20
"""The best candidates by words, which decide how far the words of the question are trusted."""
_MOST_NAMED = 10_000
_CLOSING = " \t\n\"'\u201d\u2019)]"
"""Characters that may follow the end of a sentence."""
_GOES_ON = re.compile(r"(?<!\b[A-Z][a-z])(?<!\b[A-Z][a-z]{2})[.!?][\"')\]]*+\s(?![a-z])|\n")
"""The start of a second sentence; not after a title such as `Dr.` or before a lower-case letter.

Only the last sign of a run is matched: a pattern for the whole run would walk it again from each of its signs.
"""

_ALIKE: Mapping[Talk, Mapping[str, float]] = {**WEIGHTS, "lookup": {**WEIGHTS["lookup"], "user": 0.0}}
"""The weights where the words of user and assistant count alike."""

_Notes: TypeAlias = tuple[str, ...]


class Recall:
    """Searches the memory of one user. It only reads; Accesses counts the hits."""

    def __init__(
        self,
        store: MemoryStore,
        binding: EmbedderBinding,
        *,
        clock: Clock,
        reranker: Reranker | None = None,
        knowledge_base: KnowledgeBase | None = None,
    ) -> None:
        self._store, self._binding, self._clock = store, binding, clock
        self._reranker, self._knowledge_base = reranker, knowledge_base
        self._counter = EstimateCounter()
        self._keeps_vectors = isinstance(store, KeepsVectors)
        self._named = set[Scope]()  # users with a question that named a speaker; only a hint, see _search()

    async def find(
        self,
        scope: Scope,
        question: str,
        *,
        limit: int,
        budget: int | None = None,
        prefer: Prefer = "user",
        layers: Sequence[Layer] | None = None,
        where: Filter | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
        min_score: float | None = None,
        min_confidence: float | None = None,
    ) -> Recalled:
        """The best hits, each with what every signal added to its score; passages of the knowledge base come last."""
        _check(question, limit, prefer, min_score, min_confidence)
        question, cut = _shortened(question)
        fits = _filter(layers, where)
        # Session episodes are searched separately, so that a summary does not change the ranking of its own turns.
        query = Query(
            where=And(fits, Not(ARE_EPISODES)),
            limit=max(BY_WORDS, limit),
            at=at,
            known_at=known_at,
            history=history,
            archived=layers is None,
        )
        found, hints, notes = await self._candidates(scope, question, query)
        records = FoundRecords(found)
        weights = WEIGHTS if prefer == "user" else _ALIKE
        ranking = rank(_as_candidates(found, is_statement=_is_statement(question)), hints, weights)
        ranked = without_questions(question, ranking, found, enough=max(RERANKED, _packed(limit)))
        ranked, failed = await self._reranked(question, ranked, records)
        ranked = await add_hops(self._store, scope, ranked, records, question=question, query=query)
        # Newer statements win, except if the question names a time of the talk, or if it is a statement itself: that
        # searches for the older statements which it contradicts.
        if not _is_statement(question) and not _told_then(hints.when, ranked[:TOP], records):
            size = _compared(records.text_of(r.id) for r in ranked[:TOP])
            ranked = await off_loop(size, partial(newest_first, question, ranked, found, records.place_of))
            best, rest = ranked[:TOP], ranked[TOP:]
            best = await facts_first(self._store, scope, best, records, question=question, query=query)
            ranked = [*best, *rest]
        if min_score is not None:
            ranked = [r for r in ranked if r.score >= min_score]
        stems = content_terms(question)
        confidence = await _confidence(stems, ranked, records)
        passages: Sequence[Hit] = ()
        if is_left_out := min_confidence is not None and confidence < min_confidence:
            ranked = []
        else:
            episode_query = replace(query, where=fits, limit=max(1, limit))
            ranked, episodes = await self._with_episodes(scope, question, episode_query, ranked, hints=hints)
            records |= episodes
            if layers is None and scope.session_id is None:
                passages, unread = await self._passages(question, limit, where)
                failed += unread
                passages = [hit for hit in passages if min_score is None or hit.score >= min_score]
        pack_hits = partial(self._pack, ranked, records, passages, stems=stems, limit=limit, budget=budget)
        size = sum(looking_cost(records.text_of(r.id), stems) for r in ranked[: _packed(limit)])
        hits, used, unfit = await off_loop(size, pack_hits)
        problems, absent = (*cut, *notes, *failed), _by_meaning_alone(found.signals, hits)
        searched = None
        if not hits or confidence < UNLIKELY:
            searched = await self._store.count(scope) if found.held is None else found.held
        if searched is not None and not (unfit and not hits):
            rest = "; the nearest are returned" if hits else "; min_confidence left out the nearest"
            chosen = fits if layers is not None or where is not None else None
            known = hits or is_left_out
            absent += _unlike(scope, searched, rest) if known else await why_empty(self._store, scope, searched, chosen)
        return Recalled(
            hits=hits,
            scope=scope,
            searched=found.held if searched is None else searched,
            tokens=used,
            confidence=confidence,
            problems=problems,
            notes=(*problems, *unfit, *absent),
        )

    async def _candidates(self, scope: Scope, question: str, query: Query) -> tuple[HitColumns, QuestionHints, _Notes]:
        """The candidates by words and vectors with the raw score of each signal, and the hints in the question."""
        now = self._clock.now()
        hits, speakers, notes = await self._search(scope, question, replace(query, text=question))
        found = chosen(
            hits, [place for place, kind in enumerate(hits.kinds) if kind == Episode.kind or _is_fact(hits, place)]
        )
        trust, signals = 1.0, dict(found.signals)
        if _is_statement(question):
            signals |= await off_loop(_compared(found.texts), partial(_as_statement, found.texts, terms(question)))
        elif found.ids and (stems := content_terms(question)):  # a question may have no words: "?", an emoji
            likeliest = _likeliest(signals.get("bm25"), len(found))
            covered = await _together([found.texts[place] for place in likeliest], stems)
            trust = trust_in_words(len(stems), covered)
            covers = signals["covers"] = np.full(len(found), np.nan)
            covers[likeliest] = np.array(covered) / len(stems)
        hints = QuestionHints(
            speakers=named_speakers(question, speakers),
            when=time_hint(question, now),
            now=now,
            trust=trust,
            is_lookup=looks_up(question) or _is_statement(question),
            is_several=asks_several(question),
        )
        return replace(found, signals=signals), hints, notes

    async def _search(self, scope: Scope, question: str, query: Query) -> tuple[HitColumns, set[str], _Notes]:
        """The hits by words and vectors, the speakers among the hits by words, and a note if vectors failed.

        The vector is that of the question without the names of these speakers, so it needs the search by words first.
        If no question about this user named a speaker yet, this one probably does not either: both searches run in one
        call, and only if it does name one, the vector search is repeated without the name.
        """
        hits: HitColumns | None = None
        note: _Notes = ()
        try:
            if self._binding.embedder is not None and self._keeps_vectors:
                await self._binding.bind()
                if scope.for_user() not in self._named:
                    both = await self._search_both(scope, question, query)
                    speakers = _speakers(both)
                    if without_names(question, speakers) == question:
                        return both, speakers, ()
                    if len(self._named) >= _MOST_NAMED:
                        self._named.clear()
                    self._named.add(scope.for_user())
                hits = as_columns(await self._store.search(scope, query))
                meant = without_names(question, _speakers(hits))
                hits = await self._search_both(scope, meant, query) if meant.strip() else hits
        except Exception as error:  # noqa: BLE001 - embedders are third-party code; recall falls back to words
            note = (f"searched by words only: {error}",)
        if hits is None:
            hits = as_columns(await self._store.search(scope, query))
        return hits, _speakers(hits), note

    async def _search_both(self, scope: Scope, text: str, query: Query) -> HitColumns:
        """The hits by the words of a query, and by the vector of a text."""
        assert self._binding.embedder is not None
        (vector,) = await self._binding.embedder.embed([text], purpose="query")
        near = BY_VECTOR if query.limit <= BY_WORDS else query.limit  # not fewer than the caller asked for
        return await search_hybrid(self._store, scope, replace(query, vector=vector), near=near)

    async def _reranked(
        self, question: str, ranked: list[Ranked], records: dict[str, Record]
    ) -> tuple[list[Ranked], _Notes]:
        """The ranking with its best hits in the order of the reranker, if there is one and it works."""
        if self._reranker is None or not ranked:
            return ranked, ()
        hits = [Hit(records[r.id], r.score, r.why) for r in ranked[:RERANKED]]
        try:
            better = await self._reranker.rerank(question, hits, limit=len(hits))
        except ProviderError as error:
            return ranked, (f"not reranked: {error}",)
        first = [Ranked(hit.item.id, hit.score, hit.why) for hit in better]
        named = {r.id for r in first}
        return [*first, *(r for r in ranked if r.id not in named)], ()

    async def _with_episodes(
        self, scope: Scope, question: str, query: Query, ranked: list[Ranked], *, hints: QuestionHints
    ) -> tuple[list[Ranked], dict[str, Record]]:
        """The ranking with session episodes at the end, if there is room, and their records.

        If the question asks about earlier conversations as such, the latest episodes come first.
        """
        fits, episodes, latest = query.where or And(), dict[str, Record](), tuple[Episode, ...]()
        if len(ranked) < query.limit:
            near = replace(query, text=question, where=And(fits, ARE_EPISODES))
            hits = [hit for hit in await self._store.search(scope, near) if isinstance(hit.item, Episode)]
            episodes = {hit.item.id: hit.item for hit in hits if isinstance(hit.item, Episode)}
            ranking = rank(_as_candidates(as_columns(hits)), hints)
            ranked = [*ranked, *map(ranking.ranked, ranking.places)]
        if asks_about_last_time(question):
            latest = await latest_episodes(self._store, scope, fits, hints.when, archived=query.archived)
        return _in_front(latest, ranked), {**episodes, **{episode.id: episode for episode in latest}}

    async def _passages(self, question: str, limit: int, where: Filter | None) -> tuple[Sequence[Hit], _Notes]:
        """The passages of the knowledge base, if there is one."""
        if self._knowledge_base is None:
            return (), ()
        try:
            return await self._knowledge_base.search(question, limit=limit, where=where), ()
        except LoomError as error:
            return (), (f"the knowledge base was not searched: {error}",)

    def _pack(
        self,
        ranked: Sequence[Ranked],
        records: Mapping[str, Record],
        passages: Sequence[Hit],
        *,
        stems: tuple[str, ...],
        limit: int,
        budget: int | None,
    ) -> tuple[tuple[Hit, ...], int, _Notes]:
        """The hits that fit: of memory first, then passages, which get a quarter of the places and what is left over.

        Scores of the two are not comparable, so they are not mixed. Of a long record the part that matches is packed.
        """
        made: dict[str, Hit] = {}

        def of_memory() -> Iterator[PackItem]:
            for r in ranked[: _packed(limit)]:
                made[r.id] = _hit(r, records[r.id], stems)
                yield self._piece(made[r.id])

        kept = pack(of_memory(), budget=budget, limit=limit)
        unfit = sum(left.reason == "too long" for left in kept.left_out)
        room = max(limit // 4, limit - len(kept.pieces))
        chosen = [piece.id for piece in kept.pieces[: limit - min(room, len(passages))]]
        hits = [made[id] for id in chosen]
        if passages and room:
            hits += passages
            kept = pack((self._piece(hit) for hit in hits), budget=budget, limit=limit)
        by_id = {hit.item.id: hit for hit in hits}
        note = (f"{unfit} of the best hits did not fit into {budget} tokens",) if unfit and len(chosen) < limit else ()
        return tuple(by_id[piece.id] for piece in kept.pieces), kept.tokens, note

    def _piece(self, hit: Hit) -> PackItem:
        # A fact has no `sources` here: it adds to the turn it came from, so both are shown.
        item = hit.item
        tokens, sources = self._counter.count(hit.text), item.sources if isinstance(item, Episode) else ()
        return PackItem(id=item.id, text=item.text, tokens=tokens, sources=sources, lossy=is_summary(item))


def _hit(ranked: Ranked, record: Record, stems: tuple[str, ...]) -> Hit:
    span = best_passage(record.text, stems)
    passage = None if span is None else Excerpt(record.text[span.start : span.end], span.start, span.end)
    return Hit(record, ranked.score, ranked.why, passage)


# How sure it is that the memory holds anything like the question.

_LIKE, _SHARE, _NEAR = -6.7, 6.15, 9.45
"""A logistic curve over the share of the question's words and the cosine, fitted on questions about this memory and
about another one (`benchmarks/recall.py` prints what each threshold keeps and loses)."""
_LIKE_WORDS = -3.0
"""Where the curve begins if there are no vectors: half of the words is as likely as not."""
UNLIKELY = 0.1
"""Below this confidence a note says that nothing like the question is stored."""
_SURE_OF = 5
"""Best hits whose words are compared with the question."""


async def _confidence(stems: tuple[str, ...], ranked: Sequence[Ranked], records: FoundRecords) -> float:
    """How likely it is that the memory holds something about the question, from 0 to 1."""
    if not ranked:
        return 0.0
    found = records.hits
    covers, dense = (found.signals.get(name, np.full(len(found), np.nan)) for name in ("covers", "dense"))
    first = [place for r in ranked[:_SURE_OF] if (place := records.place_of.get(r.id)) is not None]
    share = await _share(covers[first], [found.texts[place] for place in first], stems) if stems else 0.0
    known = dense[~np.isnan(dense)]
    likely = _LIKE + _SHARE * share + _NEAR * float(known.max()) if len(known) else _LIKE_WORDS + _SHARE * share
    return 1 / (1 + exp(-likely))


async def _share(covers: NDArray[np.float64], texts: Sequence[str], stems: tuple[str, ...]) -> float:
    """The largest share of the question's words in a passage of a text; `covers` has it where one was looked at."""
    new = [text for text, share in zip(texts, covers.tolist(), strict=True) if isnan(share)]
    shares = [together / len(stems) for together in await _together(new, stems)]
    return max([*shares, *covers[~np.isnan(covers)].tolist()], default=0.0)


async def _together(texts: Sequence[str], stems: tuple[str, ...]) -> list[int]:
    """How many of the stems stand together in one passage, of each text."""
    size = sum(looking_cost(text, stems) for text in texts)
    return await off_loop(size, lambda: [most_together(text, stems) for text in texts])


def _by_meaning_alone(signals: Iterable[str], hits: Sequence[Hit]) -> _Notes:
    """A note if no record shares a word with the question, as in another language: then vectors alone decide."""
    by_words = any(signal.startswith("bm25") for signal in signals)
    return (
        ("no record has a word of the question: found by meaning alone",) if hits and signals and not by_words else ()
    )


def _unlike(scope: Scope, searched: int, rest: str) -> _Notes:
    """The note that nothing stored is like the question."""
    if not searched:
        return (f"nothing is stored for {_owner(scope)}",)
    return (f"nothing like this is among the {searched:,} records of {_owner(scope)}{rest}",)


async def why_empty(store: MemoryStore, scope: Scope, held: int, chosen: Filter | None = None) -> _Notes:
    """A note for a recall that found nothing at all: how many records of each kind were searched.

    `held` is the number of records in the scope, `chosen` the filter of the caller, if there is one. Only records of
    the scope's own user are counted: nobody learns here which other users there are.
    """
    if not held:
        elsewhere = await store.count(scope.for_user()) if scope.session_id else 0
        rest = f"; {_number(elsewhere, 'record')} of this user {_are(elsewhere)} outside it" if elsewhere else ""
        return (f"nothing is stored for {_owner(scope)}{rest}",)
    # Stores keep facts and blocks apart from episodes, of which there are many more: those are not counted one by one.
    ((*others,),) = await list_together(store, scope, In("kind", ("fact", "block")))
    facts = sum(isinstance(record, Fact) for record in others)
    searched = f"{_number(held - len(others), 'episode')}, {_number(facts, 'fact')}"
    if chosen is not None:
        among = (
            "what fits the filter" if await store.list(scope, where=chosen, limit=1) else "them: none fits the filter"
        )
        return (f"{_owner(scope)} has {searched}; nothing like this is among {among}",)
    pinned = sum(isinstance(record, WorkingBlock) and ARE_CURRENT.matches(record) for record in others)
    rest = f"; {_number(pinned, 'block')} {_are(pinned)} not searched" if pinned else ""
    return (f"nothing like this is among the records of {_owner(scope)}: {searched}{rest}",)


def _owner(scope: Scope) -> str:
    return f"user {scope.user_id!r}" + (f" in session {scope.session_id!r}" if scope.session_id else "")


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


# Which hits count as recalled.

_QUESTION = 2_000
"""Characters of a question whose words are compared."""
_ABOUT = ("dense", "time", "speaker")
_CLEARLY = 1.4
"""What one of these signals adds to the score of a hit that stands out by it: for `dense`, two standard deviations."""


def recalled(question: str, hits: Sequence[Hit]) -> Iterator[Episode]:
    """The episodes that a question recalled: the best hit, and those that have a word of it or stand out otherwise.

    A small memory fills the places of an answer with all it has; what only fills them must not move up.
    """
    stems = query_terms(question[:_QUESTION])
    for place, hit in enumerate(hits):
        if not isinstance(hit.item, Episode):
            continue
        stands_out = any(hit.why.get(name, 0.0) >= _CLEARLY for name in _ABOUT)
        if not place or stands_out or stems_in(hit.text, stems):
            yield hit.item


def _check(question: str, limit: int, prefer: Prefer, min_score: float | None, min_confidence: float | None) -> None:
    if not isinstance(question, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recall was given {question!r} as a question; pass text")
    if not question.strip():
        raise UsageError("recall was given an empty question; pass text, or use export() to see everything")
    if not isinstance(limit, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recall was given limit={limit!r}; give a whole number")
    if limit < 0:
        raise UsageError(f"recall was given limit={limit}; give 0 or more")
    if prefer not in get_args(Prefer):
        raise UsageError(f"prefer={prefer!r} is not known; use one of {', '.join(get_args(Prefer))}")
    if min_score is not None and (not isinstance(min_score, float | int) or isnan(min_score)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recall was given min_score={min_score!r}; give a number")
    if min_confidence is not None and not 0 <= min_confidence <= 1:
        raise UsageError(f"recall was given min_confidence={min_confidence!r}; give a number from 0 to 1")


def _filter(layers: Sequence[Layer] | None, where: Filter | None) -> Filter:
    parts: list[Filter] = [Not(Eq("kind", "block"))]
    if layers is not None:
        wanted = layers_of(layers)
        episodes = In("layer", tuple(map(int, wanted)))
        parts.append(Or(episodes, Eq("kind", "fact")) if Layer.L4 in wanted else episodes)
    if where is not None:
        parts.append(where)
    return And(*parts)


def _speakers(hits: HitColumns) -> set[str]:
    """The speakers of the hits that words found."""
    by_words = [~np.isnan(column) for name, column in hits.signals.items() if name != "dense"]
    if not by_words:
        return set()
    names = {hits.speakers[place] for place in np.flatnonzero(np.logical_or.reduce(by_words)).tolist()}
    return {name for name in names if name and role_named(name) is None}  # roles such as `user` are not persons


def _told_then(when: TimeHint | None, ranked: Sequence[Ranked], records: FoundRecords) -> bool:
    """Whether one of these was told at the time that a question names: else that is a time in what is told."""
    if when is None:
        return False
    places = (records.place_of.get(r.id) for r in ranked)
    times = (records.hits.times[place] for place in places if place is not None)
    return any(at is not None and not when.distance(from_micros(at)) for at in times)


def _is_fact(hits: HitColumns, place: int) -> bool:
    """Whether the hit at a place is a fact, and no candidate for one."""
    return hits.kinds[place] == Fact.kind and not is_candidate(hits.read(place))


def _likeliest(by_words: NDArray[np.float64] | None, count: int) -> list[int]:
    """The places of the best candidates by their own words."""
    if by_words is None:
        return list(range(min(_LIKELIEST, count)))
    return np.argsort(np.where(np.isnan(by_words), 0.0, -by_words), kind="stable")[:_LIKELIEST].tolist()


def _shortened(question: str) -> tuple[str, _Notes]:
    """The part of a question that is searched for, and a note if that is not all of it."""
    if len(question) <= MAX_QUERY:
        return question, ()
    start = question.lstrip()[:MAX_QUERY]
    return start, (f"searched for the first {MAX_QUERY:,} of {len(question):,} characters: ask in fewer words",)


def _compared(texts: Iterable[str]) -> int:
    """The number of characters of these texts that are compared with a question."""
    return sum(min(RANKED, len(text)) for text in texts)


def _packed(limit: int) -> int:
    """How many of the best hits are tried: a budget may skip long ones, but not reach for the hundredth best."""
    return max(40, 4 * limit)


def _in_front(latest: Sequence[Episode], ranked: Sequence[Ranked]) -> list[Ranked]:
    """The ranking with some records in front of it, in their order."""
    best = max([0.0, *(r.score for r in ranked)])
    scores = [best + len(latest) - n for n in range(len(latest))]
    first = [Ranked(e.id, score, {"last": score}) for e, score in zip(latest, scores, strict=True)]
    named = {r.id for r in first}
    return [*first, *(r for r in ranked if r.id not in named)] if first else list(ranked)


def _is_statement(question: str) -> bool:
    """Whether the text is one whole sentence that is not a question: it may change an earlier, similar statement."""
    return question.rstrip(_CLOSING).endswith((".", "!")) and not _GOES_ON.search(question.strip())


def _as_statement(texts: Sequence[str], statement: list[str]) -> dict[str, NDArray[np.float64]]:
    """The signals that only apply to a statement."""
    words = StatementWords(statement)
    found = [words.compare(terms(text[:RANKED])) for text in texts]
    return dict(zip(("phrase", "head", "alike"), np.array(found, np.float64).reshape(-1, 3).T.copy(), strict=True))


def _as_candidates(hits: HitColumns, *, is_statement: bool = False) -> Candidates:
    """The candidates for rank(). What has no speaker, a note or a fact, counts as the user's among turns with roles.

    Among turns of people it does not, nor if a statement asks for what it contradicts: that compares single sentences,
    which the weights of people were tuned on.
    """
    role_by = {pair: speaker_role(*pair) for pair in {*zip(hits.speakers, hits.origins, strict=True)}}
    roles = [role_by[pair] for pair in zip(hits.speakers, hits.origins, strict=True)]
    turns = [kind == Episode.kind for kind in hits.kinds]
    of_people = sum(
        is_turn and role is None and speaker is not None
        for is_turn, role, speaker in zip(turns, roles, hits.speakers, strict=True)
    )
    default = None if is_statement or 2 * of_people > sum(turns) else "user"
    return Candidates(
        ids=hits.ids,
        signals=hits.signals,
        speakers=hits.speakers,
        sessions=hits.sessions,
        positions=[p if isinstance(p := known.get(POSITION), int) else None for known in hits.attributes],
        times=hits.times,
        words=[text.count(" ", 0, RANKED) + 1 for text in hits.texts],
        asks=[is_turn and asks(text) for is_turn, text in zip(turns, hits.texts, strict=True)],
        roles=[
            role if is_turn and not (speaker is None and role in (None, "user")) else default
            for is_turn, role, speaker in zip(turns, roles, hits.speakers, strict=True)
        ],
    )


# Working memory: the recent turns of a user in other conversations.


_TO_SPARE = 64
"""How many more of the records that were written last are read than are shown: they may tell of earlier times."""


def recent(scope: Scope, layer: MemoryLayerConfig, *, now: datetime) -> Filter | Newest:
    """What to read of a user's records in L1, without those of the conversation in `scope`.

    The retention and the capacity of L1 apply, even if the jobs that enforce them have not run.
    """
    wanted: list[Filter] = [Eq("kind", "episode"), Eq("layer", int(Layer.L1)), Eq("archived_at", None)]
    if layer.retention_hours is not None:
        wanted.append(Range("recorded_at", low=now - timedelta(hours=layer.retention_hours)))
    if scope.session_id is not None:
        wanted.append(Not(Eq("session_id", scope.session_id)))
    return And(*wanted) if layer.capacity is None else Newest(And(*wanted), layer.capacity + _TO_SPARE)


def latest_turns(found: Iterable[Record], layer: MemoryLayerConfig) -> tuple[Episode, ...]:
    """The newest records of L1, as many as fit into it, oldest first."""
    turns = [record for record in found if isinstance(record, Episode)]
    turns.sort(key=lambda episode: (episode.at, episode.recorded_at, episode.id))
    return tuple(turns if layer.capacity is None else turns[-layer.capacity :])
