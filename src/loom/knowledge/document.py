"""Documents: chunking, passages, their word index, and adding single items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import log
from threading import Lock
from typing import Any, Protocol, TypeVar
from warnings import warn

from anyio import Lock as AsyncLock
from anyio import to_thread

from loom.core.checks import MAX_DOCUMENT, MAX_ID_BYTES, MAX_QUERY, MAX_VALUE, ON_LOOP, check_attributes, check_length
from loom.core.filter import Where
from loom.core.record import Hit, Passage, Provenance, Scalar
from loom.errors import UsageError
from loom.protocols.knowledge_base import Document
from loom.text.passages import OVERLAP, SIZE, chunks
from loom.text.words import query_terms, terms

# An incremental BM25 index over passages.

# The usual constants of BM25, k1 and b.
_SATURATION = 1.2
_LENGTH_SHARE = 0.75


class LexicalIndex:
    """The stems of texts, by id."""

    __slots__ = ("_lengths", "_postings", "_stems", "_total")

    def __init__(self) -> None:
        self._postings: dict[str, dict[str, int]] = {}
        self._stems: dict[str, str] = {}
        self._lengths: dict[str, int] = {}
        self._total = 0

    def add(self, id: str, text: str) -> None:
        """Index a text under an id that is not in use."""
        stems = terms(text)
        self._stems[id] = _phrase(stems)
        self._lengths[id] = len(stems)
        self._total += len(stems)
        for stem, count in Counter(stems).items():
            self._postings.setdefault(stem, {})[id] = count

    def remove(self, id: str) -> None:
        """Remove a text from the index."""
        self._total -= self._lengths.pop(id)
        for stem in set(self._stems.pop(id).split()):
            posting = self._postings[stem]
            del posting[id]
            if not posting:
                del self._postings[stem]

    def scores(self, query: str) -> dict[str, float]:
        """BM25 of every text that shares a word with the query."""
        found: dict[str, float] = {}
        mean = self._total / len(self._lengths) if self._total else 1.0
        for stem in query_terms(query):
            rarity = self._rarity(stem)
            for id, count in self._postings.get(stem, {}).items():
                length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * self._lengths[id] / mean
                weight = count * (_SATURATION + 1) / (count + _SATURATION * length)
                found[id] = found.get(id, 0.0) + rarity * weight
        return found

    def ceiling(self, query: str) -> float:
        """The upper limit of BM25 for this query. Words that no text contains count too, so they lower every share."""
        return sum(self._rarity(stem) for stem in query_terms(query)) * (_SATURATION + 1)

    def having(self, phrase: str) -> list[str]:
        """The ids of the texts that contain these stems in sequence, sorted."""
        stems = phrase.split()
        postings = [self._postings.get(stem, {}) for stem in stems]
        if not postings:
            return []
        shortest = min(postings, key=len)
        wanted = _phrase(stems)
        return sorted(id for id in shortest if wanted in self._stems[id])

    def _rarity(self, stem: str) -> float:
        holding = len(self._postings.get(stem, {}))
        return log(1 + (len(self._lengths) - holding + 0.5) / (holding + 0.5))


def _phrase(stems: list[str]) -> str:
    return f" {' '.join(stems)} "


_T = TypeVar("_T")
_SHARE = 50
"""Divisor of the search cost: few passages contain a given word, and each costs about two characters."""


def chars_of(documents: Iterable[Document]) -> int:
    """The number of characters of documents."""
    return sum(len(document.text) for document in documents if isinstance(document, Document))  # pyright: ignore[reportUnnecessaryIsInstance]


@dataclass(frozen=True, slots=True)
class KnowledgeItem:
    """One piece of knowledge in short form; `document()` converts it to a Document."""

    id: str
    content: str
    source: str = ""
    relevance: float = 0.0
    metadata: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar], hash=False)

    def document(self) -> Document:
        """The item as a document; its text is not trusted, like that of any file."""
        return Document(id=self.id, text=self.content, source=self.source, attributes=self.metadata)


@dataclass(frozen=True, slots=True)
class Draft:
    """A new or changed document with its passages."""

    document: Document
    fingerprint: str
    passages: tuple[Passage, ...]


class Corpus:
    """The documents of one knowledge base, as passages with an index of their words."""

    __slots__ = ("_documents", "_fingerprints", "_guard", "_overlap", "_size", "index", "passages")

    def __init__(self, *, size: int = SIZE, overlap: int = OVERLAP) -> None:
        chunks("", size=size, overlap=overlap)
        self._size, self._overlap = size, overlap
        self._fingerprints: dict[str, str] = {}
        self._documents: dict[str, tuple[str, ...]] = {}
        self.passages: dict[str, Passage] = {}
        self.index = LexicalIndex()
        self._guard = Lock()

    async def work(self, chars: int, work: Callable[[], _T]) -> _T:
        """Run work with exclusive access to the corpus: in a thread if it is long, or if the lock is taken."""
        if chars > ON_LOOP or not self._guard.acquire(blocking=False):
            return await to_thread.run_sync(self.alone, work)
        try:
            return work()
        finally:
            self._guard.release()

    def alone(self, work: Callable[[], _T]) -> _T:
        """The same for callers without an event loop."""
        with self._guard:
            return work()

    def size(self, document_ids: Iterable[str]) -> int:
        """The maximum number of characters of documents."""
        return self._size * sum(len(self.ids_of(id)) for id in document_ids)

    def cost(self, query: str) -> int:
        """The cost of a search, in characters of text that take as long: each word is looked up in every passage."""
        return len(query) * len(self.passages) // _SHARE

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, document_id: str) -> bool:
        return document_id in self._documents

    def drafts(self, documents: Iterable[Document]) -> list[Draft]:
        """The new and changed documents among these; of two with one id, the later counts."""
        latest: dict[str, Document] = {}
        for document in documents:
            if not isinstance(document, Document):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{document!r:.200} is not a document; give Document(id=..., text=...)")
            check_document(document)
            latest[document.id] = document
        found: list[Draft] = []
        for document in latest.values():
            fingerprint = _fingerprint(document, self._size, self._overlap)
            if self._fingerprints.get(document.id) != fingerprint:
                found.append(Draft(document, fingerprint, self._cut(document)))
        return found

    def put(self, draft: Draft) -> tuple[str, ...]:
        """Add a draft; returns the ids of passages that no longer exist."""
        return self.restore(draft.document.id, draft.fingerprint, draft.passages)

    def restore(self, document_id: str, fingerprint: str, passages: Sequence[Passage]) -> tuple[str, ...]:
        """Set the passages of a document; returns the ids of passages that no longer exist."""
        old = self.remove(document_id)
        for passage in passages:
            self.passages[passage.id] = passage
            self.index.add(passage.id, passage.text)
        self._fingerprints[document_id] = fingerprint
        self._documents[document_id] = tuple(passage.id for passage in passages)
        return tuple(id for id in old if id not in self.passages)

    def item(self, id: str) -> KnowledgeItem | None:
        """A document with all of its text, or a passage; blanks between passages may differ from the original."""
        ids = self._documents.get(id) or ((id,) if id in self.passages else ())
        if not ids:
            return None
        first = self.passages[ids[0]]
        content = _joined([self.passages[one] for one in ids])
        return KnowledgeItem(id=id, content=content, source=first.source, metadata=first.attributes)

    def remove(self, document_id: str) -> tuple[str, ...]:
        """Remove a document; returns the ids of its passages."""
        ids = self._documents.pop(document_id, ())
        self._fingerprints.pop(document_id, None)
        for id in ids:
            del self.passages[id]
            self.index.remove(id)
        return ids

    def ids_of(self, document_id: str) -> tuple[str, ...]:
        """The ids of the passages of a document."""
        return self._documents.get(document_id, ())

    def _cut(self, document: Document) -> tuple[Passage, ...]:
        spans = chunks(document.text, size=self._size, overlap=self._overlap)
        return tuple(
            Passage(
                id=_passage_id(document.id, place),
                document_id=document.id,
                text=document.text[start:end],
                start=start,
                end=end,
                provenance=document.provenance,
                source=document.source,
                attributes=document.attributes,
            )
            for place, (start, end) in enumerate(spans)
        )


def check_document(document: Document) -> None:
    """Raise UsageError if a document, its source or its attributes are too long."""
    what = f"document {document.id!r}"
    check_length(document.text, what, MAX_DOCUMENT, "split it")
    check_length(document.source, f"the source of {what}", MAX_VALUE, "name it in fewer words")
    check_attributes(document.attributes, what)


def _joined(passages: Sequence[Passage]) -> str:
    """The text of consecutive passages, with their overlaps once."""
    pieces, end = [passages[0].text], passages[0].end
    for passage in passages[1:]:
        gap = passage.start - end
        between = "" if gap <= 0 else " " if gap == 1 else "\n\n"
        pieces += [between, passage.text[max(0, -gap) :]]
        end = passage.end
    return "".join(pieces)


def check_search(query: str, limit: int) -> None:
    """Raise UsageError for an invalid query or limit."""
    if not isinstance(query, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"the query is {query!r}, a {type(query).__name__}; give text")
    check_length(query, "the query", MAX_QUERY, "ask in fewer words")
    if limit < 1:
        raise UsageError(f"limit must be at least 1; got {limit}")


def _passage_id(document_id: str, place: int) -> str:
    id = f"{document_id}#{place}"
    if len(id.encode()) > MAX_ID_BYTES:
        id = f"{blake2b(document_id.encode(), digest_size=32).hexdigest()}#{place}"
    return id


def _fingerprint(document: Document, size: int, overlap: int) -> str:
    """A digest of everything that a hit shows of a document, and of how it is split."""
    provenance: Provenance = document.provenance
    parts: Sequence[object] = (
        document.text,
        document.source,
        provenance.origin,
        provenance.trusted,
        sorted(document.attributes.items()),
        (size, overlap),
    )
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


# Knowledge items: add one without awaiting it, query them, or get one by id.


class AddedItem:
    """The result of add_item(). It need not be awaited: queued items are added before the next search.

    Awaited, it is whether the item was new or changed, or True if a search has added it already; an error of the
    embedder is raised here.
    """

    __slots__ = ("_add", "_result")

    def __init__(self, *, result: bool | None = None, add: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._result, self._add = result, add

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._wait().__await__()

    async def _wait(self) -> bool:
        if self._result is None and self._add is not None:
            self._result = await self._add()
        return bool(self._result)

    def __bool__(self) -> bool:
        if self._result is None:
            raise UsageError("the item was not added yet; write `await kb.add_item(...)`")
        return self._result


class _Searches(Protocol):
    @property
    def corpus(self) -> Corpus: ...

    async def search(self, query: str, *, limit: int = 5, where: Where | None = None) -> tuple[Hit, ...]: ...

    async def _current_corpus(self) -> Corpus: ...


class AnswersInItems:
    """query() and get_by_id() for a knowledge base that searches a corpus."""

    __slots__ = ()

    async def query(self: _Searches, query: str, limit: int = 5, filters: Where | None = None) -> list[KnowledgeItem]:
        """The best items, each with its relevance.

        A document of one passage keeps its id; each passage of a longer one has its own id, which get_by_id() accepts.
        """
        items: list[KnowledgeItem] = []
        for hit in await self.search(query, limit=limit, where=filters):
            if isinstance(found := hit.item, Passage):
                id = found.document_id if len(self.corpus.ids_of(found.document_id)) <= 1 else found.id
                items.append(KnowledgeItem(id, found.text, found.source, hit.score, found.attributes))
        return items

    async def get_by_id(self: _Searches, id: str) -> KnowledgeItem | None:
        """The document or passage with this id, or None."""
        corpus = await self._current_corpus()
        return await corpus.work(0, lambda: corpus.item(id))


class QueuesItems(AnswersInItems, ABC):
    """add_item() and flush() for a knowledge base that adds documents asynchronously."""

    __slots__ = ("_lock", "_name", "_queue")

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: dict[str, Document] = {}  # of two items with one id, the later
        self._lock = AsyncLock()

    def __del__(self) -> None:
        if queue := getattr(self, "_queue", None):  # there is none where the arguments were refused
            what = f"{len(queue)} item(s) of the knowledge base {self._name!r} were never added"
            warn(f"{what}; await kb.flush() before the knowledge base is dropped", RuntimeWarning, stacklevel=2)

    @abstractmethod
    async def add(self, *documents: Document) -> int:
        """Add documents, all or none; returns how many were new or changed."""

    @abstractmethod
    async def _write_documents(self, documents: Sequence[Document]) -> int:
        """Add documents while the lock is held."""

    def add_item(self, item: KnowledgeItem) -> AddedItem:
        """Add one item: now if it is awaited, else before the next search, or with flush()."""
        document = item.document()
        check_document(document)
        self._queue[document.id] = document

        async def added() -> bool:
            if self._queue.get(document.id) is not document:
                return True  # a search, or a later item of this id, was faster
            # A failure is raised to the caller, so the item must not stay queued and fail the next search too.
            del self._queue[document.id]
            return await self.add(document) == 1

        return AddedItem(add=added)

    async def flush(self) -> int:
        """Add the queued items; returns how many were new or changed. If it fails, they stay queued."""
        async with self._lock:
            return await self._flush()

    async def _flush(self) -> int:
        queued = tuple(self._queue.values())
        added = await self._write_documents(queued) if queued else 0
        for document in queued:
            if self._queue.get(document.id) is document:
                del self._queue[document.id]
        return added
