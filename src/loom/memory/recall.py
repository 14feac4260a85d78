"""Recall: words, vectors, facts and time find candidates; one ranking orders them; a budget cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from loom.core.clock import Clock
from loom.core.filter import And, Eq, Filter, In, Not, Or
from loom.core.hit import Hit
from loom.core.record import Episode, Fact, Layer, Record
from loom.core.scope import Scope
from loom.core.words import terms, tokens
from loom.errors import EmbedderMismatch, ProviderError
from loom.memory.neighbours import POSITION
from loom.memory.pack import Piece, pack
from loom.memory.rank import Asked, Candidate, named_speakers, rank, shared_pairs, without_names
from loom.memory.timewords import time_hint
from loom.memory.values import Recalled
from loom.protocols.embedder import Embedder, Vector
from loom.protocols.memory_store import KeepsVectors, MemoryStore, Query, Touches
from loom.tokens import EstimateCounter

POOL = 200
"""How many candidates each kind of search may bring; more than that changes nothing in the first twenty hits."""

_ROLES = frozenset({"user", "assistant", "system", "tool"})
"""Speakers that are roles, not people: a question that says "user" names nobody."""


class Recall:
    """Finds what answers a question in one user's memory. It reads only; access is counted by touch()."""

    def __init__(self, store: MemoryStore, embedder: Embedder | None, *, clock: Clock) -> None:
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._counter = EstimateCounter()

    async def find(
        self,
        scope: Scope,
        question: str,
        *,
        limit: int,
        budget: int | None = None,
        layers: Sequence[Layer] | None = None,
        where: Filter | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
    ) -> Recalled:
        """The best hits, best first, each with what every signal added to its score."""
        now = self._clock.now()
        fits = _filter(layers, where)

        def query(*, text: str = "", vector: Vector | None = None) -> Query:
            return Query(
                text=text,
                vector=vector,
                where=fits,
                limit=POOL,
                at=at,
                known_at=known_at,
                history=history,
                archived=True,
            )

        hits = list(await self._store.search(scope, query(text=question)))
        speakers = {s for h in hits if isinstance(h.item, Episode) and (s := h.item.speaker) and s not in _ROLES}
        vector, notes = await self._vector(without_names(question, speakers) if speakers else question)
        if vector is not None:
            hits += await self._store.search(scope, query(vector=vector))
        found = _merged(hits)
        if not question.rstrip().endswith("?"):  # a statement is looked for by its phrases too, to find what it changes
            _add_phrases(found, terms(question))
        asked = Asked(speakers=named_speakers(question, speakers), when=time_hint(question, now), now=now)
        return await self._packed(scope, found, asked, limit=limit, budget=budget, notes=notes)

    async def touch(self, scope: Scope, found: Recalled) -> None:
        """Count that these were recalled."""
        ids = [hit.item.id for hit in found.hits if isinstance(hit.item, Episode)]
        if ids and isinstance(self._store, Touches):
            await self._store.touch(scope, *ids, at=self._clock.now())

    async def _packed(
        self,
        scope: Scope,
        found: dict[str, tuple[Record, dict[str, float]]],
        asked: Asked,
        *,
        limit: int,
        budget: int | None,
        notes: tuple[str, ...],
    ) -> Recalled:
        ranked = rank([_candidate(record, signals) for record, signals in found.values()], asked)
        pieces = [self._piece(found[r.id][0]) for r in ranked]
        packed = pack(pieces, budget=budget, limit=limit)
        scores = {r.id: r for r in ranked}
        return Recalled(
            hits=tuple(Hit(found[p.id][0], scores[p.id].score, scores[p.id].why) for p in packed.pieces),
            scope=scope,
            searched=await self._store.count(scope),
            tokens=packed.tokens,
            notes=notes,
        )

    async def _vector(self, question: str) -> tuple[Vector | None, tuple[str, ...]]:
        """The vector of a question, or why there is none: then words have to do."""
        if self._embedder is None or not isinstance(self._store, KeepsVectors) or not question.strip():
            return None, ()
        try:
            await self._store.bind(self._embedder.identity, self._embedder.dimension)
            (vector,) = await self._embedder.embed([question], purpose="query")
        except (ProviderError, EmbedderMismatch) as error:
            return None, (f"searched by words only: {error}",)
        return vector, ()

    def _piece(self, record: Record) -> Piece:
        # A fact says more than the turn it came from: it is shown beside it, never in its place.
        sources = record.sources if isinstance(record, Episode) else ()
        return Piece(id=record.id, text=record.text, tokens=self._counter.count(record.text), sources=sources)


def _filter(layers: Sequence[Layer] | None, where: Filter | None) -> Filter:
    parts: list[Filter] = [Not(Eq("kind", "block"))]
    if layers is not None:
        episodes = In("layer", tuple(int(layer) for layer in layers))
        parts.append(Or(episodes, Eq("kind", "fact")) if Layer.L4 in layers else episodes)
    if where is not None:
        parts.append(where)
    return And(*parts)


def _merged(hits: Sequence[Hit]) -> dict[str, tuple[Record, dict[str, float]]]:
    found: dict[str, tuple[Record, dict[str, float]]] = {}
    for hit in hits:
        if isinstance(hit.item, Episode | Fact):
            found.setdefault(hit.item.id, (hit.item, {}))[1].update(hit.why)
    return found


def _add_phrases(found: dict[str, tuple[Record, dict[str, float]]], said: list[str]) -> None:
    for record, signals in found.values():
        shared = shared_pairs(said, terms(record.text))
        if shared:
            signals["phrase"] = float(shared)


def _candidate(record: Record, signals: dict[str, float]) -> Candidate:
    if not isinstance(record, Episode):
        return Candidate(id=record.id, signals=signals, words=len(tokens(record.text)))
    position = record.attributes.get(POSITION)
    return Candidate(
        id=record.id,
        signals=signals,
        speaker=record.speaker,
        session=record.session_id,
        position=position if isinstance(position, int) else None,
        at=record.at,
        words=len(tokens(record.text)),
        asks=record.text.rstrip().endswith("?"),
    )
