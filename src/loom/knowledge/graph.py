"""GraphKnowledgeBase: finds passages along relations between entities, by vectors, or both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import TypeAlias, get_args

from loom.core.checks import check_share
from loom.core.filter import Filter, Where, as_filter
from loom.core.hit import Hit, rank_key
from loom.core.record import Fact, Provenance
from loom.errors import UsageError
from loom.knowledge.chunk import OVERLAP, SIZE
from loom.knowledge.document import Corpus, Draft, KnowledgeItem, chars_of, check_search
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.knowledge.items import AddedItem, QueuesItems
from loom.knowledge.network import Network, passages_near
from loom.knowledge.relations import Relation, RelationMatch, relation, relations_in
from loom.knowledge.service import GraphRagService, ask_service
from loom.knowledge.vector import VectorKnowledgeBase
from loom.protocols.embedder import Embedder
from loom.protocols.knowledge_base import Document, SearchMode
from loom.protocols.vector_store import VectorStore

Triple: TypeAlias = tuple[str, str, str]
_MODES = get_args(SearchMode)
_POOL = 200
_MOST_NAMED = 16
"""Entities of a query that are followed: a question names a few, and each one walks the whole graph."""
_DECAY = 0.5
"""Each relation on the way halves the score of a passage."""


@dataclass(frozen=True, slots=True)
class _Question:
    """The parameters of one search."""

    query: str
    mode: SearchMode
    max_hops: int
    limit: int
    where: Filter | None = None

    def __post_init__(self) -> None:
        check_search(self.query, self.limit)
        _check(self.mode, self.max_hops)

    def best(self, hits: Iterable[Hit]) -> tuple[Hit, ...]:
        """The best of the hits that match the filter."""
        fitting = [hit for hit in hits if self.where is None or self.where.matches(hit.item)]
        return tuple(sorted(fitting, key=rank_key)[: self.limit])


class GraphKnowledgeBase(QueuesItems):
    """Holds documents with the entities and relations they state, and finds passages along them.

    Relations are extracted by simple rules ("X uses Y", names in one sentence); facts are used as they are. Mode
    `graph` finds the passages that mention what the query names, or something at most `max_hops` relations away;
    `vector` follows no relation; `hybrid` adds both scores. Vectors need `embedding_provider` and `vector_store`, which
    then holds the documents; without them `hybrid` compares words, and documents are held in memory. With a
    `graph_rag_service`, that service answers every search, and documents are added there.
    """

    __slots__ = ("_base", "_graph_weight", "_max_hops", "_mode", "_network", "_service", "_vector_weight")

    def __init__(
        self,
        *,
        graph_rag_service: GraphRagService | None = None,
        search_mode: SearchMode = "hybrid",
        max_hops: int = 2,
        embedding_provider: Embedder | None = None,
        vector_store: VectorStore | None = None,
        vector_weight: float = 0.5,
        graph_weight: float = 0.5,
        name: str = "graph",
        chunk_size: int = SIZE,
        chunk_overlap: int = OVERLAP,
    ) -> None:
        _check(search_mode, max_hops)
        check_share(vector_weight, "vector_weight")
        check_share(graph_weight, "graph_weight")
        if (embedding_provider is None) != (vector_store is None):
            raise UsageError("embedding_provider and vector_store belong together; give both or neither")
        super().__init__(name)
        self._service, self._max_hops = graph_rag_service, max_hops
        self._mode: SearchMode = search_mode
        self._vector_weight, self._graph_weight = vector_weight, graph_weight
        self._base: InMemoryKnowledgeBase | VectorKnowledgeBase
        if embedding_provider is None or vector_store is None:
            self._base = InMemoryKnowledgeBase(chunk_size=chunk_size, chunk_overlap=chunk_overlap)
        else:
            self._base = VectorKnowledgeBase(
                embedding_provider=embedding_provider, vector_store=vector_store, name=name,
                chunk_size=chunk_size, chunk_overlap=chunk_overlap,
            )  # fmt: skip
        self._network = Network()

    @property
    def corpus(self) -> Corpus:
        """The documents and their passages, as of the last call."""
        return self._base.corpus

    @property
    def relations(self) -> tuple[Relation, ...]:
        """All relations between entities, in order, as of the last call."""
        return self._network.relations()

    def add_item(self, item: KnowledgeItem) -> AddedItem:
        """Add one item: now if it is awaited, else before the next search, or with flush()."""
        self._check_own("add documents to")
        return super().add_item(item)

    async def add(self, *documents: Document) -> int:
        """Add documents, all or none; returns how many were new or changed."""
        return await self._add([(document, None) for document in documents])

    async def add_facts(self, *facts: Fact | Triple) -> int:
        """Add facts, or triples of subject, predicate and object; each becomes a document `fact:...` of one line."""
        return await self._add([_stated(fact) for fact in facts])

    async def remove(self, *document_ids: str) -> int:
        """Remove documents and the relations that only they state; returns how many existed."""
        self._check_own("remove documents from")
        async with self._lock:
            await self._flush()
            corpus, size = self._base.corpus, self._base.corpus.size(document_ids)
            removed = await self._base.remove(*document_ids)
            await corpus.work(size, lambda: [self._network.remove(id) for id in document_ids])
            return removed

    async def search(self, query: str, *, limit: int = 5, where: Where | None = None) -> tuple[Hit, ...]:
        """The best passages, in the mode of this knowledge base."""
        return await self._answer(_Question(query, self._mode, self._max_hops, limit, as_filter(where)))

    async def search_graph(
        self, query: str, *, mode: SearchMode = "hybrid", max_hops: int = 2, limit: int = 5
    ) -> tuple[Hit, ...]:
        """The best passages in one of the three modes."""
        return await self._answer(_Question(query, mode, max_hops, limit))

    async def _add(self, stated: list[tuple[Document, Relation | None]]) -> int:
        self._check_own("add documents to")
        async with self._lock:
            await self._flush()
            return await self._write(stated)

    async def _write_documents(self, documents: Sequence[Document]) -> int:
        return await self._write([(document, None) for document in documents])

    async def _write(self, stated: list[tuple[Document, Relation | None]]) -> int:
        await self._follow()
        facts = {document.id: fact for document, fact in stated if fact is not None}
        corpus, documents = self._base.corpus, [document for document, _ in stated]
        chars = chars_of(documents)
        drafts = await corpus.work(chars, lambda: corpus.drafts(documents))
        changed = [draft.document for draft in drafts]
        if isinstance(self._base, VectorKnowledgeBase):
            memos = {id: json.dumps(fact, ensure_ascii=False) for id, fact in facts.items()}
            added = await self._base.add_noted(changed, memos)
        else:
            added = await self._base.add(*changed)
        await corpus.work(chars, lambda: self._index(drafts, facts))
        return added

    async def _follow(self) -> None:
        """Add to the graph what other bases wrote to the same store."""
        if not isinstance(self._base, VectorKnowledgeBase):
            return
        shared = self._base.shared
        await shared.refresh()
        if shared.changed:
            changed, shared.changed = shared.changed, {}
            chars = SIZE * sum(len(shared.corpus.ids_of(id)) for id in changed)
            await shared.corpus.work(chars, lambda: self._read_back(changed, shared.corpus, shared.memos))

    def _read_back(self, changed: Iterable[str], corpus: Corpus, memos: Mapping[str, str]) -> None:
        for id in changed:
            if (item := corpus.item(id)) is None:
                self._network.remove(id)
            else:
                memo = memos.get(id)
                self._network.put(id, _relations(item.content, Relation(*json.loads(memo)) if memo else None))

    async def _current_corpus(self) -> Corpus:
        self._check_own("ask")
        if self._queue:
            await self.flush()
        await self._follow()
        return self._base.corpus

    def _index(self, drafts: Iterable[Draft], facts: Mapping[str, Relation]) -> None:
        """Add the relations of documents to the graph."""
        for draft in drafts:
            self._network.put(draft.document.id, _relations(draft.document.text, facts.get(draft.document.id)))

    async def _answer(self, asked: _Question) -> tuple[Hit, ...]:
        if self._service is not None:
            return await self._by_service(self._service, asked)
        corpus = await self._current_corpus()
        if asked.mode == "vector":
            return await self._by_vector(asked)
        near = await corpus.work(corpus.cost(asked.query), lambda: self._by_graph(asked))
        if asked.mode == "graph":
            return asked.best(
                Hit(passage, score, {"graph": score})
                for id, score in near.items()
                if (passage := corpus.passages.get(id)) is not None
            )
        return await self._by_both(asked, near)

    async def _by_service(self, service: GraphRagService, asked: _Question) -> tuple[Hit, ...]:
        hits = await ask_service(
            service, mode=asked.mode, query=asked.query, top_k=asked.limit, max_hops=asked.max_hops,
            vector_weight=self._vector_weight, graph_weight=self._graph_weight,
        )  # fmt: skip
        return asked.best(hits)

    async def _by_vector(self, asked: _Question) -> tuple[Hit, ...]:
        if not isinstance(self._base, VectorKnowledgeBase):
            raise UsageError("mode 'vector' needs vectors; give embedding_provider= and vector_store=, or another mode")
        return await self._base.search_weighted(asked.query, limit=asked.limit, where=asked.where, words_weight=0.0)

    def _by_graph(self, asked: _Question) -> dict[str, float]:
        """How near each passage is to the entities of the query, from 0 to 1; those out of reach are left out."""
        having = cache(self._base.corpus.index.having)  # entities near one are often near the next one too
        named = self._network.named_in(asked.query)[:_MOST_NAMED]
        return passages_near(self._passages_around(entity, asked.max_hops, having) for entity in named)

    def _passages_around(self, entity: str, max_hops: int, having: Callable[[str], list[str]]) -> dict[str, float]:
        near: dict[str, float] = {}
        for other, hops in sorted(self._network.reach(entity, max_hops).items(), key=lambda pair: -pair[1]):
            # The nearest come last, so that a passage gets the score of its nearest entity.
            near.update(dict.fromkeys(having(other), _DECAY**hops))
        return near

    async def _by_both(self, asked: _Question, near: dict[str, float]) -> tuple[Hit, ...]:
        pool = max(_POOL, 4 * asked.limit)
        found = {hit.item.id: hit for hit in await self._base.search(asked.query, limit=pool, where=asked.where)}
        hits: list[Hit] = []
        for id in found.keys() | near.keys():
            if (passage := self._base.corpus.passages.get(id)) is None:
                continue
            score = self._vector_weight * found[id].score if id in found else 0.0
            why = dict(found[id].why) if id in found else {}
            if id in near:
                score += self._graph_weight * near[id]
                why["graph"] = near[id]
            hits.append(Hit(passage, score, why))
        return asked.best(hits)

    def _check_own(self, what: str) -> None:
        if self._service is not None:
            raise UsageError(f"this knowledge base asks a graph_rag_service; {what} that service instead")


def _check(mode: SearchMode, max_hops: int) -> None:
    if mode not in _MODES:
        raise UsageError(f"mode={mode!r} is not a search mode; use one of {', '.join(_MODES)}")
    if max_hops < 0:
        raise UsageError(f"max_hops={max_hops} is negative; give 0 or more")


def _relations(text: str, fact: Relation | None) -> RelationMatch:
    """The relation of a document that is a fact, or those that the rules find in its text."""
    return RelationMatch((fact,), ()) if fact is not None else relations_in(text)


def _stated(fact: Fact | Triple) -> tuple[Document, Relation | None]:
    if isinstance(fact, Fact):
        id, parts, provenance = f"fact:{fact.id}", (fact.subject, fact.predicate, fact.object), fact.provenance
    else:
        if len(fact) != 3:
            raise UsageError(f"{fact!r} is not a triple; give (subject, predicate, object)")
        digest = blake2b("\0".join(fact).encode(), digest_size=16).hexdigest()
        id, parts, provenance = f"fact:{digest}", fact, Provenance("import")
    subject, predicate, object = parts
    document = Document(id=id, text=f"{subject} {predicate.replace('_', ' ')} {object}", provenance=provenance)
    return document, relation(subject, predicate, object)
