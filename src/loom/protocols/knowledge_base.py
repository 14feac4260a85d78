"""Reading a corpus of documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from loom.core.checks import check_id, check_text
from loom.core.filter import Filter
from loom.core.record import Hit, Provenance, Scalar, checked_attributes

SearchMode: TypeAlias = Literal["vector", "graph", "hybrid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text to be searched. `source` says where it comes from, for people."""

    id: str
    text: str
    source: str = ""
    provenance: Provenance = field(default_factory=lambda: Provenance("file"))
    attributes: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar], hash=False)

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a document")
        check_text(self.text, f"the text of document {self.id}")
        object.__setattr__(self, "attributes", checked_attributes(self.attributes))


@runtime_checkable
class KnowledgeBase(Protocol):
    """One corpus of documents, the same for all users; so it takes no scope.

    Laws:
    - adding the same document again adds nothing; other text under its id replaces all of its passages;
    - removing a document removes its passages;
    - a hit is a Passage with the document's id, source and provenance, and `text` is the document's text
      from `start` to `end`;
    - hits are ordered by loom.core.record.rank_key, each with its `why`; filters come before the limit;
    - searching an empty corpus gives nothing and raises nothing.
    """

    async def add(self, *documents: Document) -> int:
        """Add documents, all or none; returns how many were new or changed."""
        ...

    async def remove(self, *document_ids: str) -> int:
        """Remove documents; returns how many were there."""
        ...

    async def search(self, query: str, *, limit: int = 5, where: Filter | None = None) -> tuple[Hit, ...]:
        """The best passages, best first."""
        ...


@runtime_checkable
class SearchesGraph(Protocol):
    """A knowledge base that also follows relations.

    Laws: nothing further than `max_hops` relations from what the query names is returned by the graph;
    `why` tells the signals `vector` and `graph` apart; `vector` mode follows no relation.
    """

    async def search_graph(
        self, query: str, *, mode: SearchMode = "hybrid", max_hops: int = 2, limit: int = 5
    ) -> tuple[Hit, ...]:
        """The best passages in one of the three modes."""
        ...
