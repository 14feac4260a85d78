"""Knowledge items: add one without awaiting it, query them, or get one by id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol
from warnings import warn

from anyio import Lock

from loom.core.filter import Where
from loom.core.hit import Hit, Passage
from loom.errors import UsageError
from loom.knowledge.document import Corpus, KnowledgeItem, check_document
from loom.protocols.knowledge_base import Document


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


class ItemQueue:
    """Items that were given to add_item() and are not in the base yet; of two with one id, the later."""

    __slots__ = ("_base", "_documents")

    def __init__(self, base: str) -> None:
        self._documents: dict[str, Document] = {}
        self._base = base

    def put(self, item: KnowledgeItem, add: Callable[[Document], Awaitable[int]]) -> AddedItem:
        """Check an item now, and queue it; `add` runs if the caller awaits the result."""
        document = item.document()
        check_document(document)
        self._documents[document.id] = document

        async def added() -> bool:
            if self._documents.get(document.id) is not document:
                return True  # a search, or a later item of this id, was faster
            # A failure is raised to the caller, so the item must not stay queued and fail the next search too.
            del self._documents[document.id]
            return await add(document) == 1

        return AddedItem(add=added)

    def documents(self) -> tuple[Document, ...]:
        """The queued documents, in order."""
        return tuple(self._documents.values())

    def done(self, documents: Sequence[Document]) -> None:
        """Remove documents that are in the base now."""
        for document in documents:
            if self._documents.get(document.id) is document:
                del self._documents[document.id]

    def __len__(self) -> int:
        return len(self._documents)

    def __del__(self) -> None:
        if self._documents:
            what = f"{len(self._documents)} item(s) of {self._base} were never added"
            warn(f"{what}; await kb.flush() before the knowledge base is dropped", RuntimeWarning, stacklevel=2)


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
        hits = await self.search(query, limit=limit, where=filters)
        return [_item(hit.item, hit.score, self.corpus) for hit in hits if isinstance(hit.item, Passage)]

    async def get_by_id(self: _Searches, id: str) -> KnowledgeItem | None:
        """The document or passage with this id, or None."""
        corpus = await self._current_corpus()
        return await corpus.work(0, lambda: corpus.item(id))


class QueuesItems(AnswersInItems, ABC):
    """add_item() and flush() for a knowledge base that adds documents asynchronously."""

    __slots__ = ("_lock", "_queue")

    def __init__(self, name: str) -> None:
        self._queue = ItemQueue(f"the knowledge base {name!r}")
        self._lock = Lock()

    @abstractmethod
    async def add(self, *documents: Document) -> int:
        """Add documents, all or none; returns how many were new or changed."""

    @abstractmethod
    async def _write_documents(self, documents: Sequence[Document]) -> int:
        """Add documents while the lock is held."""

    def add_item(self, item: KnowledgeItem) -> AddedItem:
        """Add one item: now if it is awaited, else before the next search, or with flush()."""
        return self._queue.put(item, self.add)

    async def flush(self) -> int:
        """Add the queued items; returns how many were new or changed. If it fails, they stay queued."""
        async with self._lock:
            return await self._flush()

    async def _flush(self) -> int:
        queued = self._queue.documents()
        added = await self._write_documents(queued) if queued else 0
        self._queue.done(queued)
        return added


def _item(passage: Passage, relevance: float, corpus: Corpus) -> KnowledgeItem:
    is_whole = len(corpus.ids_of(passage.document_id)) <= 1
    id = passage.document_id if is_whole else passage.id
    return KnowledgeItem(id, passage.text, passage.source, relevance, passage.attributes)
