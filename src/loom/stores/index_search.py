"""Answering a query from two sides: words from the truth, nearness from the index, and their best together.

Each side gives its best first, deeper each time. What one side found is completed by asking the other for just that.
It is enough when no record that neither side has shown can reach the last hit: its words score no more than the last
of the words, and its cosine is no more than the last of the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

from loom.core.filter import And, Filter, In
from loom.core.hit import Found, Hit, rank_key
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import MemoryStore, Query
from loom.protocols.vector_store import VectorStore

DENSE = "dense"
_FIRST = 32
_GROWTH = 4
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side gave: scores by record, and the most that a record can score that is not among them."""

    scores: dict[str, float]
    rest: float | None


async def search(truth: MemoryStore, index: VectorStore, scope: Scope, query: Query, vector: Vector) -> tuple[Hit, ...]:
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


async def _by_words(truth: MemoryStore, scope: Scope, query: Query, depth: int) -> tuple[dict[str, Hit], _Side]:
    if not query.text.strip():
        return {}, _Side({}, None)
    found = await truth.search(scope, replace(query, vector=None, limit=depth))
    scores = {hit.item.id: hit.score for hit in found}
    return {hit.item.id: hit for hit in found}, _Side(scores, found[-1].score if len(found) == depth else None)


async def _by_vector(index: VectorStore, scope: Scope, vector: Vector, depth: int) -> _Side:
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
    """What one side found, completed by the other."""

    truth: MemoryStore
    index: VectorStore
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
        items: dict[str, Found] = {id: hit.item for id, hit in words.items()} | shown
        hits: list[Hit] = []
        for id, item in items.items():
            why = dict(spoken[id].why) if id in spoken else {}
            if id in cosines:
                why[DENSE] = cosines[id]
            hits.append(Hit(item, fsum(why.values()), why))
        return sorted(hits, key=rank_key)

    async def _shown(self, ids: Sequence[str]) -> dict[str, Found]:
        """Those of these records that the scope sees and that fit the filter and the time of the query."""
        found = await self._asked(ids, text="")
        return {hit.item.id: hit.item for hit in found}

    async def _spoken(self, ids: Sequence[str]) -> dict[str, Hit]:
        """Those of these records that the words of the query find."""
        if not self.query.text.strip():
            return {}
        return {hit.item.id: hit for hit in await self._asked(ids, text=self.query.text)}

    async def _asked(self, ids: Sequence[str], *, text: str) -> list[Hit]:
        found: list[Hit] = []
        for among in _among(ids):
            where: Filter = among if self.query.where is None else And(among, self.query.where)
            asked = replace(self.query, text=text, vector=None, where=where, limit=len(among.values))
            found += await self.truth.search(self.scope, asked)
        return found

    async def _cosines(self, ids: Sequence[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for among in _among(ids):
            hits = await self.index.search(self.scope.for_user(), self.vector, limit=len(among.values), where=among)
            found |= {hit.id: hit.score for hit in hits}
        return found


def _among(ids: Sequence[str]) -> Iterator[In]:
    for start in range(0, len(ids), _PAGE):
        yield In("id", tuple(ids[start : start + _PAGE]))
