"""Adding one piece of knowledge without waiting for it, and asking for pieces by query or by id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol
from warnings import warn

from loom.core.filter import Where
from loom.core.hit import Hit, Passage
from loom.errors import UsageError
from loom.knowledge.document import Corpus, KnowledgeItem, check_document
from loom.protocols.knowledge_base import Document


class AddedItem:
    """What add_item() returns. It need not be awaited: what waits is added before the next search.

    Awaited, it is whether the item was new or changed, or True if a search has added it by then; an error of the
    embedder is raised here.
    """

    __slots__ = ("_add", "_result")

    def __init__(self, *, result: bool | None = None, add: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._result = result
        self._add = add

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._wait().__await__()

    async def _wait(self) -> bool:
        if self._result is None and self._add is not None:
            self._result = await self._add()
        return bool(self._result)

    def __bool__(self) -> bool:
        if self._result is None:
            raise UsageError("whether the item is new is not known yet; write `await kb.add_item(...)`")
        return self._result


class ItemQueue:
    """The items that add_item() took and that are not in the base yet; of two under one id, the later."""

    __slots__ = ("_documents", "_who")

    def __init__(self, who: str) -> None:
        self._documents: dict[str, Document] = {}
        self._who = who

    def take(self, item: KnowledgeItem, add: Callable[[Document], Awaitable[int]]) -> AddedItem:
        """Check an item now, and let it wait; `add` is for one who awaits it."""
        document = item.document()
        check_document(document)
        self._documents[document.id] = document

        async def added() -> bool:
            if self._documents.get(document.id) is not document:
                return True  # a search, or a later item of this id, was faster
            # Whoever awaits is told of a failure, so that it does not have to wait for the next search too.
            del self._documents[document.id]
            return await add(document) == 1

        return AddedItem(add=added)

    def documents(self) -> tuple[Document, ...]:
        """What waits, in the order it came."""
        return tuple(self._documents.values())

    def done(self, documents: Sequence[Document]) -> None:
        """These are in the base now."""
        for document in documents:
            if self._documents.get(document.id) is document:
                del self._documents[document.id]

    def __len__(self) -> int:
        return len(self._documents)

    def __del__(self) -> None:
        if self._documents:
            what = f"{len(self._documents)} item(s) of {self._who} were never added"
            warn(f"{what}; await kb.flush() before it goes away", RuntimeWarning, stacklevel=2)


class _Searches(Protocol):
    @property
    def corpus(self) -> Corpus: ...

    async def search(self, query: str, *, limit: int = 5, where: Where | None = None) -> tuple[Hit, ...]: ...

    async def _looked_up(self) -> Corpus: ...


class AnswersInItems:
    """query() and get_by_id() for a knowledge base that searches a corpus."""

    __slots__ = ()

    async def query(self: _Searches, query: str, limit: int = 5, filters: Where | None = None) -> list[KnowledgeItem]:
        """The best pieces of knowledge, best first, each with its relevance.

        A document of one passage has its own id; of a longer one, each passage has an id that get_by_id() knows, too.
        """
        hits = await self.search(query, limit=limit, where=filters)
        return [_item(hit.item, hit.score, self.corpus) for hit in hits if isinstance(hit.item, Passage)]

    async def get_by_id(self: _Searches, id: str) -> KnowledgeItem | None:
        """The document, or the passage, with this id; None where there is none."""
        corpus = await self._looked_up()
        return await corpus.work(0, lambda: corpus.item(id))


def _item(passage: Passage, relevance: float, corpus: Corpus) -> KnowledgeItem:
    is_whole = len(corpus.ids_of(passage.document_id)) <= 1
    id = passage.document_id if is_whole else passage.id
    return KnowledgeItem(id, passage.text, passage.source, relevance, passage.attributes)
