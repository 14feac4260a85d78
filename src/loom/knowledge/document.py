"""Documents and their passages: the corpus of a knowledge base, with change detection and passage ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import TypeVar

from anyio import to_thread

from loom.core.checks import MAX_ID_BYTES
from loom.core.hit import Passage
from loom.core.limits import MAX_DOCUMENT, MAX_QUERY, MAX_VALUE, ON_LOOP, check_attributes, check_length
from loom.core.record import Provenance, Scalar
from loom.errors import UsageError
from loom.knowledge.chunk import OVERLAP, SIZE, chunks
from loom.knowledge.lexical import LexicalIndex
from loom.protocols.knowledge_base import Document

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
