"""InMemoryKnowledgeBase: finds passages by words, without a store or an embedder."""

from __future__ import annotations

from loom.core.filter import Filter, Where, as_filter
from loom.core.record import Hit, rank_key
from loom.knowledge.document import (
    OVERLAP,
    SIZE,
    AddedItem,
    AnswersInItems,
    Corpus,
    KnowledgeItem,
    chars_of,
    check_search,
)
from loom.protocols.knowledge_base import Document


class InMemoryKnowledgeBase(AnswersInItems):
    """Holds documents in memory and ranks their passages by BM25 over stems.

    The score of a hit is its BM25 divided by that of a perfect match, from 0 to 1; `why` has the BM25 itself.
    """

    __slots__ = ("corpus",)

    def __init__(self, *, chunk_size: int = SIZE, chunk_overlap: int = OVERLAP) -> None:
        self.corpus = Corpus(size=chunk_size, overlap=chunk_overlap)
        """The documents and their passages."""

    def add_item(self, item: KnowledgeItem) -> AddedItem:
        """Add one item at once; the result is true if it was new or changed, awaited or not."""
        return AddedItem(result=self.corpus.alone(lambda: self._add((item.document(),))) == 1)

    async def add(self, *documents: Document) -> int:
        """Add documents, all or none; returns how many were new or changed."""
        return await self.corpus.work(chars_of(documents), lambda: self._add(documents))

    async def remove(self, *document_ids: str) -> int:
        """Remove documents; returns how many existed."""
        return await self.corpus.work(self.corpus.size(document_ids), lambda: self._remove(document_ids))

    async def search(self, query: str, *, limit: int = 5, where: Where | None = None) -> tuple[Hit, ...]:
        """The best passages by words, best first."""
        check_search(query, limit)
        wanted = as_filter(where)
        return await self.corpus.work(self.corpus.cost(query), lambda: self._found(query, limit, wanted))

    def _found(self, query: str, limit: int, where: Filter | None) -> tuple[Hit, ...]:
        ceiling = self.corpus.index.ceiling(query)
        hits = [
            Hit(passage, score / ceiling, {"bm25": score})
            for id, score in self.corpus.index.scores(query).items()
            if (passage := self.corpus.passages[id]) and (where is None or where.matches(passage))
        ]
        return tuple(sorted(hits, key=rank_key)[:limit])

    def _remove(self, document_ids: tuple[str, ...]) -> int:
        known = [id for id in dict.fromkeys(document_ids) if id in self.corpus]
        for id in known:
            self.corpus.remove(id)
        return len(known)

    def _add(self, documents: tuple[Document, ...]) -> int:
        drafts = self.corpus.drafts(documents)
        for draft in drafts:
            self.corpus.put(draft)
        return len(drafts)

    async def _current_corpus(self) -> Corpus:
        return self.corpus
