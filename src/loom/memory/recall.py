"""Recall: words, vectors, facts and time find candidates; one ranking orders them; a budget cuts them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from heapq import nlargest
from math import isnan
from typing import TypeAlias, get_args

from loom.core.clock import Clock
from loom.core.filter import And, Eq, Filter, In, Not, Or
from loom.core.heavy import off_loop
from loom.core.hit import Found, Hit
from loom.core.limits import MAX_QUERY, RANKED
from loom.core.record import Episode, Fact, Layer, Record
from loom.core.scope import Scope
from loom.core.words import query_terms, terms
from loom.errors import LoomError, ProviderError, UsageError
from loom.memory.apart import search_apart
from loom.memory.asked import without_questions
from loom.memory.binding import EmbedderBinding
from loom.memory.candidates import is_candidate
from loom.memory.episodes import ARE_EPISODES, is_summary
from loom.memory.halves import Halves, role_of, user_first
from loom.memory.hops import add_hops
from loom.memory.last_time import asks_about_last_time, latest_episodes
from loom.memory.neighbours import POSITION
from loom.memory.newer import TOP, newest_first
from loom.memory.pack import PackItem, pack
from loom.memory.rank import (
    Candidate,
    QuestionHints,
    Ranked,
    asks,
    named_speakers,
    rank,
    shared_head,
    shared_pairs,
    shared_share,
    trust_in_words,
    without_names,
)
from loom.memory.timewords import time_hint
from loom.memory.values import Recalled
from loom.protocols.knowledge_base import KnowledgeBase
from loom.protocols.memory_store import KeepsVectors, MemoryStore, Query
from loom.protocols.reranker import Reranker
from loom.tokens import EstimateCounter

BY_WORDS = 200
"""How many candidates words may bring; more than that changes nothing in the first twenty hits."""

BY_VECTOR = 100
"""How many candidates vectors may bring."""

RERANKED = 50
"""How many of the best a reranker looks at."""

_LIKELIEST = 20
"""How many of the best by words decide whether the words of the question are to be trusted."""

_MOST_NAMED = 10_000
_DENSE = "dense"

_CLOSING = " \t\n\"'\u201d\u2019)]"
"""What may stand behind the end of a sentence."""

_GOES_ON = re.compile(r"(?<!\b[A-Z][a-z])(?<!\b[A-Z][a-z]{2})[.!?][\"')\]]*+\s(?![a-z])|\n")
"""Where a second sentence begins; not behind a title such as `Dr.` or before a small letter.

The last sign of a run decides: a pattern for the whole run would walk it again from each of its signs.
"""

_Candidates: TypeAlias = dict[str, tuple[Record, Mapping[str, float]]]
_Notes: TypeAlias = tuple[str, ...]


class Recall:
    """Finds what answers a question in one user's memory. It reads only; Accesses counts what was found."""

    def __init__(
        self,
        store: MemoryStore,
        binding: EmbedderBinding,
        *,
        clock: Clock,
        reranker: Reranker | None = None,
        knowledge_base: KnowledgeBase | None = None,
    ) -> None:
        self._store = store
        self._binding = binding
        self._clock = clock
        self._reranker = reranker
        self._knowledge_base = knowledge_base
        self._counter = EstimateCounter()
        self._named = set[Scope]()  # users who were asked about somebody who speaks: a hint, no more

    async def find(
        self,
        scope: Scope,
        question: str,
        *,
        limit: int,
        budget: int | None = None,
        halves: Halves = "user",
        layers: Sequence[Layer] | None = None,
        where: Filter | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
        min_score: float | None = None,
    ) -> Recalled:
        """The best hits, best first, each with what every signal added to its score; passages behind them."""
        _check(question, limit, halves, min_score)
        question, cut = _searched(question)
        fits = _filter(layers, where)
        # What a conversation was about is looked for apart, so that it changes nothing about what was said in it.
        query = Query(
            where=And(fits, Not(ARE_EPISODES)),
            limit=max(BY_WORDS, limit),
            at=at,
            known_at=known_at,
            history=history,
            archived=layers is None,
        )
        found, asked, notes = await self._candidates(scope, question, query)
        records = {id: record for id, (record, _) in found.items()}
        ranked = rank([_candidate(record, signals) for record, signals in found.values()], asked)
        ranked = without_questions(question, ranked, records)
        ranked, failed = await self._reranked(question, ranked, records)
        ranked = await add_hops(self._store, scope, ranked, records, question=question, query=query)
        # A question about a time may mean what was said then; a statement looks for what it makes old.
        if asked.when is None and not _is_statement(question):
            first = _compared(records[r.id] for r in ranked[:TOP])
            ranked = await off_loop(first, partial(newest_first, question, ranked, records))
        if min_score is not None:
            ranked = [r for r in ranked if r.score >= min_score]
        if budget is not None and halves == "user":
            ranked = user_first(ranked, records)
        apart = replace(query, where=fits, limit=max(1, limit))
        ranked, told = await self._with_episodes(scope, question, apart, ranked, asked=asked)
        records |= told
        passages: Sequence[Hit] = ()
        if layers is None and scope.session_id is None:
            passages, unread = await self._passages(question, limit, where)
            failed += unread
            passages = [hit for hit in passages if min_score is None or hit.score >= min_score]
        pack_them = partial(self._packed, ranked, records, passages, limit=limit, budget=budget)
        packed, used = await off_loop(_counted(ranked, records, limit, budget), pack_them)
        searched = None if packed else await self._store.count(scope)
        return Recalled(hits=packed, scope=scope, searched=searched, tokens=used, notes=(*cut, *notes, *failed))

    async def _candidates(self, scope: Scope, question: str, query: Query) -> tuple[_Candidates, QuestionHints, _Notes]:
        """What words and vectors find, with the raw score of each signal, and what the question asks beside them."""
        now = self._clock.now()
        hits, speakers, notes = await self._found(scope, question, replace(query, text=question))
        found: _Candidates = {
            h.item.id: (h.item, h.why) for h in hits if isinstance(h.item, Episode | Fact) and not is_candidate(h.item)
        }
        trust = 1.0
        if _is_statement(question):
            size = _compared(record for record, _ in found.values())
            found = await off_loop(size, partial(_as_statement, found, terms(question)))
        else:
            likeliest = nlargest(_LIKELIEST, found.values(), key=lambda pair: pair[1].get("bm25", 0.0))
            texts = [record.text[:RANKED] for record, _ in likeliest]
            trust = await off_loop(sum(map(len, texts)), partial(_trust, question, texts))
        named = named_speakers(question, speakers)
        return found, QuestionHints(speakers=named, when=time_hint(question, now), now=now, trust=trust), notes

    async def _found(self, scope: Scope, question: str, query: Query) -> tuple[Sequence[Hit], set[str], _Notes]:
        """What words and vectors find, who speaks there, and why there are no vectors: then words have to do.

        The vector is that of the question without the names of those who speak in what the words find. Where nobody
        was named before, it is likely that nobody is now, and one search of both will do.
        """
        hits: Sequence[Hit] | None = None
        note: _Notes = ()
        try:
            if self._binding.embedder is not None and isinstance(self._store, KeepsVectors):
                await self._binding.bind()
                if scope.for_user() not in self._named:
                    both = await self._search_both(scope, question, query)
                    speakers = _speakers(both)
                    if without_names(question, speakers) == question:
                        return both, speakers, ()
                    if len(self._named) >= _MOST_NAMED:
                        self._named.clear()
                    self._named.add(scope.for_user())
                hits = await self._store.search(scope, query)
                meant = without_names(question, _speakers(hits))
                hits = await self._search_both(scope, meant, query) if meant.strip() else hits
        except Exception as error:  # noqa: BLE001 - an embedder may be anybody's; words have to do
            note = (f"searched by words only: {error}",)
        if hits is None:
            hits = await self._store.search(scope, query)
        return hits, _speakers(hits), note

    async def _search_both(self, scope: Scope, meant: str, query: Query) -> Sequence[Hit]:
        """What the words of a query find, and the vector of a text."""
        assert self._binding.embedder is not None
        (vector,) = await self._binding.embedder.embed([meant], purpose="query")
        near = BY_VECTOR if query.limit <= BY_WORDS else query.limit  # as many as were asked for
        return await search_apart(self._store, scope, replace(query, vector=vector), near=near)

    async def _reranked(
        self, question: str, ranked: list[Ranked], records: dict[str, Record]
    ) -> tuple[list[Ranked], _Notes]:
        """The best in the order of the reranker, if there is one that works; the others stay behind them."""
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
        self, scope: Scope, question: str, query: Query, ranked: list[Ranked], *, asked: QuestionHints
    ) -> tuple[list[Ranked], dict[str, Record]]:
        """The ranking with what conversations were about behind it, if there is room, and the records of these.

        Where the question asks about conversations as such, the latest of them stand in front.
        """
        fits, told, latest = query.where or And(), dict[str, Record](), tuple[Episode, ...]()
        if len(ranked) < query.limit:
            near = replace(query, text=question, where=And(fits, ARE_EPISODES))
            hits = [(h.item, h.why) for h in await self._store.search(scope, near) if isinstance(h.item, Episode)]
            told = {episode.id: episode for episode, _ in hits}
            ranked = [*ranked, *rank([_candidate(*pair) for pair in hits], asked)]
        if asks_about_last_time(question):
            latest = await latest_episodes(self._store, scope, fits, asked.when, archived=query.archived)
        return _in_front(latest, ranked), {**told, **{episode.id: episode for episode in latest}}

    async def _passages(self, question: str, limit: int, where: Filter | None) -> tuple[Sequence[Hit], _Notes]:
        """What the corpus says about it."""
        if self._knowledge_base is None:
            return (), ()
        try:
            return await self._knowledge_base.search(question, limit=limit, where=where), ()
        except LoomError as error:
            return (), (f"the knowledge base was not searched: {error}",)

    def _packed(
        self,
        ranked: Sequence[Ranked],
        records: Mapping[str, Record],
        passages: Sequence[Hit],
        *,
        limit: int,
        budget: int | None,
    ) -> tuple[tuple[Hit, ...], int]:
        """What fits: hits of memory first, then passages, which get a quarter of the places and what is left over.

        Scores of the two are not comparable, so they are not mixed.
        """
        kept = pack((self._piece(records[r.id]) for r in ranked), budget=budget, limit=limit)
        room = max(limit // 4, limit - len(kept.pieces))
        chosen = {piece.id for piece in kept.pieces[: limit - min(room, len(passages))]}
        hits = [Hit(records[r.id], r.score, r.why) for r in ranked if r.id in chosen]
        if passages and room:
            hits += passages
            kept = pack((self._piece(hit.item) for hit in hits), budget=budget, limit=limit)
        by_id = {hit.item.id: hit for hit in hits}
        return tuple(by_id[piece.id] for piece in kept.pieces), kept.tokens

    def _piece(self, item: Found) -> PackItem:
        # A fact says more than the turn it came from: it is shown beside it, never in its place.
        tokens = self._counter.count(item.text)
        return PackItem(id=item.id, text=item.text, tokens=tokens, sources=_sources(item), lossy=is_summary(item))


def _check(question: str, limit: int, halves: Halves, min_score: float | None) -> None:
    if not isinstance(question, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recall was given {question!r} for a question; ask in words")
    if not question.strip():
        raise UsageError("recall was given an empty question; ask in words, or use export() to see everything")
    if not isinstance(limit, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recall was given limit={limit!r}; give a whole number")
    if halves not in get_args(Halves):
        raise UsageError(f"halves={halves!r} is not known; use one of {', '.join(get_args(Halves))}")
    if min_score is not None and (not isinstance(min_score, float | int) or isnan(min_score)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recall was given min_score={min_score!r}; give a number")


def _sources(item: Found) -> tuple[str, ...]:
    return item.sources if isinstance(item, Episode) else ()


def _filter(layers: Sequence[Layer] | None, where: Filter | None) -> Filter:
    parts: list[Filter] = [Not(Eq("kind", "block"))]
    if layers is not None:
        episodes = In("layer", tuple(int(Layer(layer)) for layer in layers))
        parts.append(Or(episodes, Eq("kind", "fact")) if Layer.L4 in layers else episodes)
    if where is not None:
        parts.append(where)
    return And(*parts)


def _speakers(hits: Sequence[Hit]) -> set[str]:
    """Who speaks in what words found."""
    by_words = (hit.item for hit in hits if len(hit.why) > (_DENSE in hit.why))
    return {speaker for item in by_words if (speaker := _speaker(item))}


def _speaker(record: Found) -> str | None:
    """The person who spoke; None where a role did."""
    return record.speaker if isinstance(record, Episode) and role_of(record) is None else None


def _searched(question: str) -> tuple[str, _Notes]:
    """What of a question is searched for, and that it is not all of it."""
    if len(question) <= MAX_QUERY:
        return question, ()
    start = question.lstrip()[:MAX_QUERY]
    return start, (f"searched for the first {MAX_QUERY:,} of {len(question):,} characters: ask in fewer words",)


def _compared(records: Iterable[Record]) -> int:
    """How many characters of these records are compared with a question."""
    return sum(min(RANKED, len(record.text)) for record in records)


def _counted(ranked: Sequence[Ranked], records: Mapping[str, Record], limit: int, budget: int | None) -> int:
    """How much work it is to count the tokens of what may be packed: an eighth of comparing its words."""
    return sum(len(records[r.id].text) for r in ranked[: limit if budget is None else None]) // 8


def _in_front(latest: Sequence[Episode], ranked: Sequence[Ranked]) -> list[Ranked]:
    """The ranking with some records in front of it, in their order."""
    best = max([0.0, *(r.score for r in ranked)])
    scores = [best + len(latest) - n for n in range(len(latest))]
    first = [Ranked(e.id, score, {"last": score}) for e, score in zip(latest, scores, strict=True)]
    named = {r.id for r in first}
    return [*first, *(r for r in ranked if r.id not in named)]


def _trust(question: str, texts: Iterable[str]) -> float:
    return trust_in_words(query_terms(question), map(terms, texts))


def _is_statement(question: str) -> bool:
    """One whole sentence that asks nothing: perhaps it changes something, and what it changes begins as it does."""
    return question.rstrip(_CLOSING).endswith((".", "!")) and not _GOES_ON.search(question.strip())


def _as_statement(found: _Candidates, said: list[str]) -> _Candidates:
    """The candidates with the signals that only a statement has."""
    texts = {id: terms(record.text[:RANKED]) for id, (record, _) in found.items()}
    return {
        id: (
            record,
            {
                **signals,
                "phrase": float(shared_pairs(said, texts[id])),
                "head": shared_head(said, texts[id]),
                "alike": shared_share(said, texts[id]),
            },
        )
        for id, (record, signals) in found.items()
    }


def _candidate(record: Record, signals: Mapping[str, float]) -> Candidate:
    if not isinstance(record, Episode):
        return Candidate(id=record.id, signals=signals, words=record.text.count(" ", 0, RANKED) + 1)
    position = record.attributes.get(POSITION)
    return Candidate(
        record.id,
        signals,
        record.speaker,
        record.session_id,
        position if isinstance(position, int) else None,
        record.at,
        record.text.count(" ", 0, RANKED) + 1,
        asks(record.text),
    )
