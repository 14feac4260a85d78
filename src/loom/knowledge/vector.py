"""VectorKnowledgeBase: hybrid search over passages, by vectors and by words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from loom.core.checks import check_share
from loom.core.filter import Filter, In, Where, as_filter
from loom.core.record import Hit, rank_key
from loom.knowledge._shared import SharedCorpus
from loom.knowledge.document import OVERLAP, SIZE, Corpus, QueuesItems, chars_of, check_search
from loom.protocols.embedder import Embedder, Vector
from loom.protocols.knowledge_base import Document
from loom.protocols.vector_store import VectorStore

_POOL = 200
"""Candidates of each search before both are combined: enough that the best sum is rarely outside."""
WORDS_WEIGHT = 0.4
"""Share of the words in a score; the vectors have the rest. Below half, because vectors also find other wordings."""


class VectorKnowledgeBase(QueuesItems):
    """Holds passages and their vectors in a VectorStore; ranks by cosine and BM25 together.

    All bases with this `name` on one store, in any process, find what any of them added: passages are read back from
    the store, and an index of their words is held in memory. On a store without `payloads` (see KeepsPayloads), each
    base finds only what it added itself.

    `name` separates knowledge bases on one vector store. `words_weight` is the share of words in a score, from 0
    (vectors alone) to 1 (words alone). In `why`, `vector` is the cosine and `bm25` the BM25.
    """

    __slots__ = ("_embedder", "_vectors", "_words_weight", "shared")

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
        super().__init__(name)
        self._embedder, self._vectors, self._words_weight = embedding_provider, vector_store, words_weight
        corpus = Corpus(size=chunk_size, overlap=chunk_overlap)
        self.shared = SharedCorpus(vector_store, name, embedding_provider.dimension, corpus)
        """The corpus with its state in the store."""

    @property
    def corpus(self) -> Corpus:
        """The documents and their passages, as of the last call."""
        return self.shared.corpus

    async def add(self, *documents: Document) -> int:
        """Add documents, all or none; returns how many were new or changed."""
        return await self.add_noted(documents, {})

    async def add_noted(self, documents: Sequence[Document], memos: Mapping[str, str]) -> int:
        """Add documents, each with a text to store beside it, by document id."""
        async with self._lock:
            await self._flush()
            return await self._write(documents, memos)

    async def _write_documents(self, documents: Sequence[Document]) -> int:
        return await self._write(documents, {})

    async def _write(self, documents: Sequence[Document], memos: Mapping[str, str]) -> int:
        await self.shared.refresh()
        drafts = await self.corpus.work(chars_of(documents), lambda: self.corpus.drafts(documents))
        passages = [passage for draft in drafts for passage in draft.passages]
        if documents:
            await self._vectors.bind(self._embedder.identity, self._embedder.dimension)
        if not passages:
            return 0
        vectors = await self._embedder.embed([passage.text for passage in passages], purpose="document")
        await self.shared.put(drafts, vectors, memos)
        return len(drafts)

    async def remove(self, *document_ids: str) -> int:
        """Remove documents; returns how many existed."""
        async with self._lock:
            await self._flush()
            return await self.shared.remove(document_ids) if document_ids else 0

    async def search(self, query: str, *, limit: int = 5, where: Where | None = None) -> tuple[Hit, ...]:
        """The best passages, best first."""
        return await self.search_weighted(query, limit=limit, where=as_filter(where), words_weight=self._words_weight)

    async def search_weighted(
        self, query: str, *, limit: int, where: Filter | None = None, words_weight: float
    ) -> tuple[Hit, ...]:
        """The best passages, with another weight of words than that of this knowledge base."""
        check_search(query, limit)
        await self._current_corpus()
        if not self.corpus.passages or not query.strip():
            return ()
        pool = max(_POOL, 4 * limit)
        vector = None
        if words_weight < 1:
            await self._vectors.bind(self._embedder.identity, self._embedder.dimension)
            (vector,) = await self._embedder.embed([query], purpose="query")
        words, cosines = await self._find(query, vector, pool, where, words_weight)
        # BM25 has no upper bound of its own; divided by that of a perfect match it is from 0 to 1 like a cosine, so the
        # two can be added. A negative cosine says "unrelated", no more than 0 does.
        ceiling = self.corpus.index.ceiling(query)
        hits: list[Hit] = []
        for id in words.keys() | cosines.keys():
            if (passage := self.corpus.passages.get(id)) is None:
                continue
            why = {name: found[id] for name, found in (("bm25", words), ("vector", cosines)) if id in found}
            share = words[id] / ceiling if id in words else 0.0
            hits.append(Hit(passage, words_weight * share + (1 - words_weight) * max(0.0, cosines.get(id, 0.0)), why))
        return tuple(sorted(hits, key=rank_key)[:limit])

    async def _current_corpus(self) -> Corpus:
        if self._queue:
            await self.flush()
        await self.shared.refresh()
        return self.corpus

    async def _find(
        self, query: str, vector: Vector | None, pool: int, where: Filter | None, words_weight: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """The BM25 and the cosine of the passages found; searched once more if another base wrote meanwhile."""
        for is_last in (False, True):
            by_words = partial(self._by_words, query, where)
            words = await self.corpus.work(self.corpus.cost(query), by_words) if words_weight > 0 else {}
            best = dict(list(words.items())[:pool])
            if vector is None:
                return best, {}
            cosines, is_current = await self._by_vector(vector, pool, best, where)
            if is_current or is_last:
                # A passage found by its vector needs its BM25 too, even outside the pool: without it, its sum would not
                # be comparable with the others.
                return best | {id: words[id] for id in cosines if id in words}, cosines
            await self.shared.refresh(anyway=True)
        raise AssertionError("the last try returns")

    def _by_words(self, query: str, where: Filter | None) -> dict[str, float]:
        """The BM25 of the passages that share words with a query and match the filter, best first."""
        found = self.corpus.index.scores(query).items()
        fitting = [(id, score) for id, score in found if where is None or where.matches(self.corpus.passages[id])]
        return dict(sorted(fitting, key=lambda pair: (-pair[1], pair[0])))

    async def _by_vector(
        self, vector: Vector, pool: int, words: dict[str, float], where: Filter | None
    ) -> tuple[dict[str, float], bool]:
        """The cosine of each passage that is near or was found by words, and whether no other base wrote meanwhile."""
        found, is_current = await self._nearest(vector, pool, where)
        entries = [entry for id in words if id not in found and (entry := self.shared.entry_of(id)) is not None]
        if entries:
            # A passage found by its words needs its cosine too, for the same reason.
            wanted = In("id", tuple(entries))
            rest = await self._vectors.search(self.shared.scope, vector, limit=len(entries), where=wanted)
            is_current &= len(rest) == len(entries)
            found |= {id: hit.score for hit in rest if (id := self.shared.passage_of(hit.id)) is not None}
        return found, is_current

    async def _nearest(self, vector: Vector, pool: int, where: Filter | None) -> tuple[dict[str, float], bool]:
        """The nearest passages that match the filter, and whether all of them are known here.

        The filter is applied after the search, and other bases may have vectors in the store. So the limit grows by
        four until the pool is full or the store has no more: a few searches at most.
        """
        limit = pool
        while True:
            hits = await self._vectors.search(self.shared.scope, vector, limit=limit)
            fitting = {id: hit.score for hit in hits if (id := self._fitting(hit.id, where)) is not None}
            if len(fitting) >= pool or len(hits) < limit:
                return fitting, not any(self.shared.is_news(hit.id) for hit in hits)
            limit *= 4

    def _fitting(self, entry_id: str, where: Filter | None) -> str | None:
        """The passage of an entry, if it matches the filter."""
        id = self.shared.passage_of(entry_id)
        passage = None if id is None else self.corpus.passages.get(id)
        return id if passage is not None and (where is None or where.matches(passage)) else None
