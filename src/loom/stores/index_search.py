"""Hybrid search: words from the truth, vectors from the index, as one list or as two.

Together: each side gives its best first, deeper each time. What one side found is completed by asking the other for
just that. It is enough when no record that neither side has shown can reach the last hit: its words score no more than
the last of the words, and its cosine at most the last of the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from loom.core.filter import And, Filter, In
from loom.core.hit import Hit, HitItem, joined, rank_key, scored
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import MemoryStore, Query
from loom.protocols.vector_store import VectorHit
from loom.stores.base import compare
from loom.stores.delegating import Truth
from loom.stores.user_records import DENSE

_FIRST = 32
_TO_SPARE = 8
"""How many more than asked for are taken of the nearest first: some may not fit, and equal ones are not parted."""
_GROWTH = 4
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _Side:
    """The scores of one side by record, and the most that a record can score that is not among them."""

    scores: dict[str, float]
    rest: float | None


class FindsNearest(Protocol):
    """The one call of an index that is needed here; every VectorStore has it."""

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors, nearest first."""
        ...


async def search(
    truth: MemoryStore, index: FindsNearest, scope: Scope, query: Query, vector: Vector
) -> tuple[Hit, ...]:
    """The hits that the truth would give by words and `vector`, with the index's cosines."""
    depth = max(_FIRST, 2 * query.limit)
    while True:
        words, texts = await _by_words(truth, scope, query, depth)
        near = await _by_vector(index, scope, vector, depth)
        hits = await _Completed(truth, index, scope, query, vector).hits(words, near)
        rest = _most_of_the_rest(texts, near)
        if rest is None or (len(hits) >= query.limit and hits[query.limit - 1].score > rest):
            return tuple(hits[: query.limit])
        depth *= _GROWTH


@runtime_checkable
class SearchesBeside(Protocol):
    """A store that completes in one go what an index beside it found."""

    async def search_beside(self, scope: Scope, query: Query, nearest: Mapping[str, float]) -> tuple[Hit, ...]:
        """The best by the words of a query, and those of `nearest` that it may show, best first.

        `nearest` holds cosines by record id; whatever else words find is compared with the vector of the query.
        """
        ...


async def search_apart(
    truth: Truth, index: FindsNearest, scope: Scope, query: Query, vector: Vector, *, near: int
) -> tuple[Hit, ...]:
    """The best by words, the `near` best by `vector` as the index knows them, and the cosine of each."""
    depth = near + _TO_SPARE
    while True:
        side = await _by_vector(index, scope, vector, depth)
        hits = await search_beside(truth, scope, query, side.scores)
        shown = {hit.item.id for hit in hits}
        nearest = [id for id in side.scores if id in shown]
        if side.rest is None or (len(nearest) >= near and side.scores[nearest[near - 1]] > side.rest):
            too_far = set(nearest[near:])
            return tuple(hit for hit in hits if hit.item.id not in too_far or hit.why.keys() - {DENSE})
        depth *= _GROWTH


async def search_beside(truth: Truth, scope: Scope, query: Query, nearest: Mapping[str, float]) -> Sequence[Hit]:
    """SearchesBeside for any store: in one call where it can, otherwise step by step."""
    if isinstance(truth, SearchesBeside):
        return await truth.search_beside(scope, query, nearest)
    by_words = await truth.search(scope, replace(query, vector=None))
    found = {hit.item.id for hit in by_words}
    by_vector = await _among(truth, scope, replace(query, text=""), [id for id in nearest if id not in found])
    if query.vector is None:
        return joined(by_words, by_vector, nearest)
    others = await truth.found_by(scope, *(id for id in found if id not in nearest))
    return joined(by_words, by_vector, {**nearest, **compare(query.vector, others)})


async def _by_words(truth: MemoryStore, scope: Scope, query: Query, depth: int) -> tuple[dict[str, Hit], _Side]:
    if not query.text.strip():
        return {}, _Side({}, None)
    found = await truth.search(scope, replace(query, vector=None, limit=depth))
    scores = {hit.item.id: hit.score for hit in found}
    return {hit.item.id: hit for hit in found}, _Side(scores, found[-1].score if len(found) == depth else None)


async def _by_vector(index: FindsNearest, scope: Scope, vector: Vector, depth: int) -> _Side:
    # Vectors are those of the user: which of them the scope sees, the truth says.
    found = await index.search(scope.for_user(), vector, limit=depth)
    return _Side({hit.id: hit.score for hit in found}, found[-1].score if len(found) == depth else None)


def _most_of_the_rest(words: _Side, near: _Side) -> float | None:
    """The most that a record can score that neither side has shown; None where there is none."""
    if near.rest is None:
        return words.rest
    return near.rest if words.rest is None else words.rest + max(0.0, near.rest)


@dataclass(frozen=True, slots=True)
class _Completed:
    """The hits of one side, completed by the other."""

    truth: MemoryStore
    index: FindsNearest
    scope: Scope
    query: Query
    vector: Vector

    async def hits(self, words: dict[str, Hit], near: _Side) -> list[Hit]:
        """All that either side found and the query may show, best first."""
        only_near = [id for id in near.scores if id not in words]
        only_words = [id for id in words if id not in near.scores]
        shown = await self._shown(only_near)
        spoken = await self._spoken(only_near) | words
        cosines = near.scores | await self._cosines(only_words)
        items: dict[str, HitItem] = {id: hit.item for id, hit in words.items()} | shown
        hits: list[Hit] = []
        for id, item in items.items():
            why = dict(spoken[id].why) if id in spoken else {}
            if id in cosines:
                why[DENSE] = cosines[id]
            hits.append(scored(item, why))
        return sorted(hits, key=rank_key)

    async def _shown(self, ids: Sequence[str]) -> dict[str, HitItem]:
        """Those of these records that the scope sees and that fit the filter and the time of the query."""
        found = await _among(self.truth, self.scope, replace(self.query, text=""), ids)
        return {hit.item.id: hit.item for hit in found}

    async def _spoken(self, ids: Sequence[str]) -> dict[str, Hit]:
        """Those of these records that the words of the query find."""
        if not self.query.text.strip():
            return {}
        return {hit.item.id: hit for hit in await _among(self.truth, self.scope, self.query, ids)}

    async def _cosines(self, ids: Sequence[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for page in _pages(ids):
            hits = await self.index.search(self.scope.for_user(), self.vector, limit=len(page.values), where=page)
            found |= {hit.id: hit.score for hit in hits}
        return found


async def _among(truth: MemoryStore, scope: Scope, query: Query, ids: Sequence[str]) -> list[Hit]:
    """Those of these records that a query finds by its words alone, or that it may show if it has none."""
    found: list[Hit] = []
    for page in _pages(ids):
        where: Filter = page if query.where is None else And(page, query.where)
        found += await truth.search(scope, replace(query, vector=None, where=where, limit=len(page.values)))
    return found


def _pages(ids: Sequence[str]) -> Iterator[In]:
    for start in range(0, len(ids), _PAGE):
        yield In("id", tuple(ids[start : start + _PAGE]))
