"""A knowledge base that finds passages by meaning and by words together."""

from __future__ import annotations

from functools import partial

from anyio import Lock

from loom.core.checks import check_share
from loom.core.filter import Filter, In
from loom.core.hit import Hit, rank_key
from loom.core.scope import Scope
from loom.knowledge.chunk import OVERLAP, SIZE
from loom.knowledge.document import Corpus, chars_of, check_search
from loom.protocols.embedder import Embedder, Vector
from loom.protocols.knowledge_base import Document
from loom.protocols.vector_store import VectorItem, VectorStore

_POOL = 50
WORDS_WEIGHT = 0.4
"""How much of a score the words decide; the vectors decide the rest."""


class VectorKnowledgeBase:
    """Keeps passages in memory and their vectors in a VectorStore; ranks by cosine and BM25 together.

    `name` tells apart the knowledge bases that share one vector store. `words_weight` says how much of a
    score the words decide, from 0 (vectors alone) to 1 (words alone). In `why`, `vector` is the cosine and
    `bm25` the BM25.
    """

    __slots__ = ("_corpus", "_embedder", "_lock", "_scope", "_vectors", "_words_weight")

    def __init__(
        self,
        *,
        embedding_provider: Embedder,
        vector_store: VectorStore,
        name: str = "default",
        words_weight: float = WORDS_WEIGHT,
        chunk_size: int = SIZE,
        chunk_overlap: int = OVERLAP,
    ) -> None:
        check_share(words_weight, "words_weight")
        self._embedder, self._vectors = embedding_provider, vector_store
        self._scope = Scope(namespace="knowledge", user_id=name)
        self._words_weight = words_weight
        self._corpus = Corpus(size=chunk_size, overlap=chunk_overlap)
        self._lock = Lock()

    @property
    def corpus(self) -> Corpus:
        """The documents and passages it holds."""
        return self._corpus

    async def add(self, *documents: Document) -> int:
        """Add documents, all or none; returns how many were new or changed."""
        async with self._lock:
            chars = chars_of(documents)
            drafts = await self._corpus.work(chars, lambda: self._corpus.drafts(documents))
            passages = [passage for draft in drafts for passage in draft.passages]
            if not passages:
                return 0
            await self._vectors.bind(self._embedder.identity, self._embedder.dimension)
            vectors = await self._embedder.embed([passage.text for passage in passages], purpose="document")
            items = [VectorItem(one.id, vector) for one, vector in zip(passages, vectors, strict=True)]
            # The store takes all of them or none, and the rest cannot fail. A vector without its passage,
            # which a crash in between could leave, is never shown.
            await self._vectors.upsert(self._scope, items)
            gone = await self._corpus.work(chars, lambda: [id for draft in drafts for id in self._corpus.put(draft)])
            if gone:
                await self._vectors.delete(self._scope, *gone)
            return len(drafts)

    async def remove(self, *document_ids: str) -> int:
        """Remove documents; returns how many were there."""
        async with self._lock:
            there = [id for id in dict.fromkeys(document_ids) if id in self._corpus]
            gone = [passage_id for id in there for passage_id in self._corpus.ids_of(id)]
            if gone:
                # Vectors first: if the store fails, the documents are still there, and removing them again is possible.
                await self._vectors.delete(self._scope, *gone)
            await self._corpus.work(self._corpus.size(there), lambda: [self._corpus.remove(id) for id in there])
            return len(there)

    async def search(self, query: str, *, limit: int = 5, where: Filter | None = None) -> tuple[Hit, ...]:
        """The best passages, best first."""
        return await self.search_weighted(query, limit=limit, where=where, words_weight=self._words_weight)

    async def search_weighted(
        self, query: str, *, limit: int, where: Filter | None = None, words_weight: float
    ) -> tuple[Hit, ...]:
        """The best passages, with another say for the words than this knowledge base was made with."""
        check_search(query, limit)
        if not self._corpus.passages or not query.strip():
            return ()
        pool = max(_POOL, 4 * limit)
        by_words = partial(self._by_words, query, pool, where)
        words = await self._corpus.work(self._corpus.cost(query), by_words) if words_weight > 0 else {}
        cosines = await self._by_vector(query, pool, words, where) if words_weight < 1 else {}
        ceiling = self._corpus.index.ceiling(query)
        hits: list[Hit] = []
        for id in words.keys() | cosines.keys():
            if (passage := self._corpus.passages.get(id)) is None:
                continue
            why = {name: found[id] for name, found in (("bm25", words), ("vector", cosines)) if id in found}
            share = words[id] / ceiling if id in words else 0.0
            hits.append(Hit(passage, words_weight * share + (1 - words_weight) * max(0.0, cosines.get(id, 0.0)), why))
        return tuple(sorted(hits, key=rank_key)[:limit])

    def _by_words(self, query: str, pool: int, where: Filter | None) -> dict[str, float]:
        found = self._corpus.index.scores(query).items()
        fitting = [(id, score) for id, score in found if where is None or where.matches(self._corpus.passages[id])]
        return dict(sorted(fitting, key=lambda pair: (-pair[1], pair[0]))[:pool])

    async def _by_vector(
        self, query: str, pool: int, words: dict[str, float], where: Filter | None
    ) -> dict[str, float]:
        await self._vectors.bind(self._embedder.identity, self._embedder.dimension)
        (vector,) = await self._embedder.embed([query], purpose="query")
        found = await self._nearest(vector, pool, where)
        if missing := tuple(id for id in words if id not in found):
            # A passage found by its words has a cosine too; without it the two lists could not be compared.
            rest = await self._vectors.search(self._scope, vector, limit=len(missing), where=In("id", missing))
            found |= {hit.id: hit.score for hit in rest}
        return found

    async def _nearest(self, vector: Vector, pool: int, where: Filter | None) -> dict[str, float]:
        """The nearest passages that fit; asks for more while the filter or foreign vectors take the places."""
        asked = pool
        while True:
            hits = await self._vectors.search(self._scope, vector, limit=asked)
            fitting = {hit.id: hit.score for hit in hits if self._fits(hit.id, where)}
            if len(fitting) >= pool or len(hits) < asked:
                return fitting
            asked *= 4

    def _fits(self, id: str, where: Filter | None) -> bool:
        passage = self._corpus.passages.get(id)
        return passage is not None and (where is None or where.matches(passage))
