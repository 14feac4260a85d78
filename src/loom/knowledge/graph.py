"""Graph knowledge base: relations read from text, hops along them, or a service of the user's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from inspect import isawaitable, iscoroutinefunction
from itertools import dropwhile, pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, get_args

from anyio import to_thread

from loom.core.checks import check_share
from loom.core.filter import Filter, Where, as_filter
from loom.core.record import Fact, Hit, Passage, Provenance, Scalar, rank_key
from loom.errors import BadResponse, LoomError, ProviderUnavailable, UsageError
from loom.knowledge.document import (
    OVERLAP,
    SIZE,
    AddedItem,
    Corpus,
    KnowledgeItem,
    QueuesItems,
    chars_of,
    check_search,
)
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.knowledge.vector import VectorKnowledgeBase
from loom.protocols.embedder import Embedder
from loom.protocols.knowledge_base import Document, SearchMode
from loom.protocols.vector_store import VectorStore
from loom.text.passages import sentences
from loom.text.words import STOP_WORDS, stem, terms, tokens

# Extracts entities and relations from plain text by rules: the same text always gives the same relations.

_MAX_BETWEEN = 6
_MAX_PHRASE = 6
_WORD = re.compile(r"[^\W_][\w'\u2019.-]*(?<![.'\u2019-])|[,;:()\u2014]")
_ARTICLES = frozenset("a an the this that these those our my your its their his her".split())  # noqa: SIM905
_CONJUNCTIONS = frozenset({"and", "or", "nor", "but", "as", "then"})
_BREAKS = frozenset({",", ";", ":", "(", ")", "\u2014"})
_NAME_JOINTS = frozenset({"of", "de", "van", "von", "der", "da", "la"})
_VERBS = frozenset(
    """
    is are was were has have had uses use used using needs need needed requires require required contains contain
    contained includes include included supports support supported provides provide provided owns own owned runs run
    ran calls call called stores store stored sends send sent reads read writes wrote manages manage managed leads lead
    led likes like liked prefers prefer preferred speaks speak spoke studies study studied lives lived works worked
    joined founded built builds created creates replaced replaces depends depended belongs belonged connects reports
    moved married knows met bought sells sold makes made holds held keeps kept means equals
    """.split()  # noqa: SIM905
)
_PARTICLES = frozenset({"in", "at", "on", "to", "with", "for", "by", "from", "of", "into", "as"})
_PHRASE_ENDS = _BREAKS | _PARTICLES | _CONJUNCTIONS | _VERBS


class Relation(NamedTuple):
    """`subject` and `object` are entity keys, see entity_key()."""

    subject: str
    predicate: str
    object: str


class RelationMatch(NamedTuple):
    """The relations of one text, and the keys of the names in it."""

    relations: tuple[Relation, ...]
    names: tuple[str, ...]


def entity_key(name: str) -> str:
    """The key of an entity: its stems without a leading article; empty if only stop words are left."""
    words = list(dropwhile(lambda word: word.lower() in _ARTICLES, name.split()))
    if all(word.lower() in STOP_WORDS for word in words):
        return ""
    return " ".join(terms(" ".join(words)))


def relations_in(text: str) -> RelationMatch:
    """The relations of each sentence: between names, and those of the form "X uses Y"."""
    relations: dict[Relation, None] = {}
    names: dict[str, None] = {}
    for start, end in sentences(text):
        words = _WORD.findall(text[start:end])
        spans = list(_names(words))
        names.update((key, None) for first, last in spans if (key := entity_key(" ".join(words[first:last]))))
        for relation in (*_between_names(words, spans), *_by_verb(words)):
            relations[relation] = None
    return RelationMatch(tuple(relations), tuple(names))


def relation(subject: str, predicate: str, object: str) -> Relation | None:
    """A relation between two different entities, or None if they are not two."""
    one, other = entity_key(subject), entity_key(object)
    if not one or not other or one == other:
        return None
    return Relation(one, predicate.lower(), other)


def _names(words: list[str]) -> Iterator[tuple[int, int]]:
    """The start and end of each capitalised name, in words."""
    at = 0
    while at < len(words):
        if not _is_name(words[at]):
            at += 1
            continue
        end = at + 1
        while end < len(words):
            if _is_name(words[end]):
                end += 1
            elif words[end] in _NAME_JOINTS and end + 1 < len(words) and _is_name(words[end + 1]):
                end += 2
            else:
                break
        yield at, end
        at = end


def _is_name(word: str) -> bool:
    # A sentence begins with a capital letter too: "The" and "We" are stop words, other first words count as names.
    return word[0].isupper() and word.lower() not in STOP_WORDS


def _between_names(words: list[str], spans: list[tuple[int, int]]) -> Iterator[Relation]:
    for (first, after), (second, end) in pairwise(spans):
        between = words[after:second]
        is_near = 1 <= len(between) <= _MAX_BETWEEN and _BREAKS.isdisjoint(between)
        if not is_near or between[0].lower() in _CONJUNCTIONS:
            continue
        subject, other = " ".join(words[first:after]), " ".join(words[second:end])
        if (found := relation(subject, " ".join(between), other)) is not None:
            yield found


def _by_verb(words: list[str]) -> Iterator[Relation]:
    """The first verb of a sentence, with the phrase before it and the phrase behind it."""
    place = next((at for at, word in enumerate(words) if at and word.lower() in _VERBS), None)
    if place is None or place > _MAX_PHRASE or not _BREAKS.isdisjoint(words[:place]):
        return
    start = place + 1
    if start < len(words) and words[start].lower() in _PARTICLES:
        start += 1
    end = start
    while end < len(words) and end - start < _MAX_PHRASE and words[end].lower() not in _PHRASE_ENDS:
        end += 1
    found = relation(" ".join(words[:place]), " ".join(words[place:start]), " ".join(words[start:end]))
    if found is not None:
        yield found


# The entity graph of a corpus: the relations that its documents state, and distances between entities.

_MAX_NAME = 6


class Network:
    """Entities and relations, counted by the documents that state them."""

    __slots__ = ("_aliases", "_documents", "_neighbours", "_nodes")

    def __init__(self) -> None:
        self._documents: dict[str, RelationMatch] = {}
        self._nodes: dict[str, int] = {}
        self._neighbours: dict[str, dict[str, int]] = {}
        self._aliases: dict[str, dict[str, int]] = {}

    def put(self, document_id: str, found: RelationMatch) -> None:
        """Set the relations of a document, replacing its former ones."""
        self.remove(document_id)
        self._documents[document_id] = found
        self._count(found, 1)

    def remove(self, document_id: str) -> None:
        """Remove the relations of a document, except those that others state too."""
        if (found := self._documents.pop(document_id, None)) is not None:
            self._count(found, -1)

    def relations(self) -> tuple[Relation, ...]:
        """All relations, each once, in order."""
        return tuple(sorted({relation for found in self._documents.values() for relation in found.relations}))

    def named_in(self, query: str) -> tuple[str, ...]:
        """The entities that a query names, by the longest matching name or by one word of a longer name."""
        words = tokens(query)
        stems = [stem(word) for word in words]
        named: dict[str, None] = {}
        at = 0
        while at < len(stems):
            length = self._longest_name(stems, at)
            if length:
                named[" ".join(stems[at : at + length])] = None
            if length <= 1 and words[at] not in STOP_WORDS:
                named.update(dict.fromkeys(sorted(self._aliases.get(stems[at], ()))))
            at += length or 1
        return tuple(named)

    def reach(self, start: str, max_hops: int) -> dict[str, int]:
        """The entities at most `max_hops` relations from `start`, with their distance."""
        distance = {start: 0}
        edge = [start]
        for hop in range(1, max_hops + 1):
            found = {other for entity in edge for other in self._neighbours.get(entity, ()) if other not in distance}
            distance.update(dict.fromkeys(found, hop))
            edge = list(found)
            if not edge:
                break
        return distance

    def _longest_name(self, stems: list[str], at: int) -> int:
        for length in range(min(_MAX_NAME, len(stems) - at), 0, -1):
            if " ".join(stems[at : at + length]) in self._nodes:
                return length
        return 0

    def _count(self, found: RelationMatch, by: int) -> None:
        for name in found.names:
            _add(self._nodes, name, by)
            parts = name.split()
            for part in parts if len(parts) > 1 else ():
                _add_nested(self._aliases, part, name, by)
        for subject, _, object in found.relations:
            for one, other in ((subject, object), (object, subject)):
                _add(self._nodes, one, by)
                _add_nested(self._neighbours, one, other, by)


def _add(counts: dict[str, int], key: str, by: int) -> None:
    counts[key] = counts.get(key, 0) + by
    if counts[key] == 0:
        del counts[key]


def _add_nested(counts: dict[str, dict[str, int]], key: str, inner: str, by: int) -> None:
    nested = counts.setdefault(key, {})
    _add(nested, inner, by)
    if not nested:
        del counts[key]


# Client of an external graph RAG service: sends the query, and reads the answer as hits.


class GraphRagService(Protocol):
    """A service that searches a graph. It may be blocking or async.

    It answers with a mapping whose `results` are mappings: `content` (or `text`), and where known `id`,
    `source`, `score` and `metadata`.
    """

    def search(
        self, *, query: str, top_k: int, max_hops: int, search_mode: SearchMode, rerank_enabled: bool,
        vector_weight: float, graph_weight: float,
    ) -> Any:  # fmt: skip
        """The best results, as a mapping or an awaitable of one."""
        ...


async def ask_service(service: GraphRagService, *, mode: SearchMode, **question: Any) -> tuple[Hit, ...]:
    """The service's results as hits, best first. They are never trusted as instructions."""
    call = partial(service.search, search_mode=mode, rerank_enabled=True, **question)
    try:
        answer = call() if iscoroutinefunction(service.search) else await to_thread.run_sync(call)
        if isawaitable(answer):
            answer = await answer
    except LoomError:
        raise
    except Exception as error:
        raise ProviderUnavailable(f"the graph service failed ({type(error).__name__}: {error}); try again") from error
    results = cast("Mapping[str, Any]", answer).get("results") if isinstance(answer, Mapping) else None
    if not isinstance(results, list | tuple):
        raise BadResponse(f"the graph service answered {answer!r:.200}; it must give a mapping with a list `results`")
    rows = cast("Iterable[Any]", results)
    return tuple(sorted((_hit(row, place, mode) for place, row in enumerate(rows)), key=rank_key))


def _hit(row: Any, place: int, mode: SearchMode) -> Hit:
    if not isinstance(row, Mapping):
        raise BadResponse(f"result {place} of the graph service is {row!r:.200}; it must be a mapping")
    fields = cast("Mapping[str, Any]", row)
    text = fields.get("content") or fields.get("text")
    if not isinstance(text, str) or not text.strip():
        raise BadResponse(f"result {place} of the graph service has no text; it needs `content` or `text`")
    id = str(fields.get("id") or fields.get("chunk_id") or f"result#{place}")
    attributes: dict[str, Scalar] = {}
    if isinstance(metadata := fields.get("metadata"), Mapping):
        items = cast("Mapping[Any, Any]", metadata).items()
        attributes = {str(key): value for key, value in items if isinstance(value, str | int | float | bool)}
    score = fields.get("score", fields.get("relevance"))
    try:
        # Without a score, the order of the answer decides.
        value = 1.0 / (place + 1) if score is None else float(score)
        passage = Passage(
            id=id, document_id=id, text=text, start=0, end=len(text), source=str(fields.get("source") or ""),
            attributes=attributes, provenance=Provenance("import"),
        )  # fmt: skip
        return Hit(passage, value, {mode: value})
    except (TypeError, ValueError) as error:
        raise BadResponse(f"result {place} of the graph service cannot be read ({error})") from error


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

        def index() -> None:
            for draft in drafts:
                self._network.put(draft.document.id, _relations(draft.document.text, facts.get(draft.document.id)))

        await corpus.work(chars, index)
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

    async def _answer(self, asked: _Question) -> tuple[Hit, ...]:
        if self._service is not None:
            hits = await ask_service(
                self._service, mode=asked.mode, query=asked.query, top_k=asked.limit, max_hops=asked.max_hops,
                vector_weight=self._vector_weight, graph_weight=self._graph_weight,
            )  # fmt: skip
            return asked.best(hits)
        corpus = await self._current_corpus()
        if asked.mode == "vector":
            if not isinstance(self._base, VectorKnowledgeBase):
                raise UsageError(
                    "mode 'vector' needs vectors; give embedding_provider= and vector_store=, or another mode"
                )
            return await self._base.search_weighted(asked.query, limit=asked.limit, where=asked.where, words_weight=0.0)
        near = await corpus.work(corpus.cost(asked.query), lambda: self._by_graph(asked))
        if asked.mode == "graph":
            return asked.best(
                Hit(passage, score, {"graph": score})
                for id, score in near.items()
                if (passage := corpus.passages.get(id)) is not None
            )
        return await self._by_both(asked, near)

    def _by_graph(self, asked: _Question) -> dict[str, float]:
        """How near each passage is to the entities of the query, from 0 to 1; those out of reach are left out."""
        having = cache(self._base.corpus.index.having)  # entities near one are often near the next one too
        named = self._network.named_in(asked.query)[:_MOST_NAMED]
        total: dict[str, float] = {}
        for entity in named:
            near: dict[str, float] = {}
            for other, hops in sorted(self._network.reach(entity, asked.max_hops).items(), key=lambda pair: -pair[1]):
                # The nearest come last, so that a passage gets the score of its nearest entity.
                near.update(dict.fromkeys(having(other), _DECAY**hops))
            for id, nearness in near.items():
                total[id] = total.get(id, 0.0) + nearness
        return {id: nearness / len(named) for id, nearness in total.items()}

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
