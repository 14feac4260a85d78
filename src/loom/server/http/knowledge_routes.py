"""The routes of the knowledge base: documents that belong to no user, which every recall reads too.

Who may read at all may search it; changing it needs the right to operate, because all users are shown what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Protocol, runtime_checkable

from fastapi import APIRouter, Depends, Request

from loom.core.filter import as_filter
from loom.core.record import Hit, Passage
from loom.errors import NotFound, UsageError
from loom.knowledge.document import KnowledgeItem
from loom.protocols.knowledge_base import Document, KnowledgeBase, SearchesGraph
from loom.server.http import shapes
from loom.server.http.caller import Place, operator, token_of
from loom.server.http.guard import Refusal
from loom.text.fence import plain_text

router = APIRouter(prefix="/v1/knowledge", tags=["knowledge"])

_NONE: Final = "this server has no knowledge base; start it with --knowledge FOLDER"


@runtime_checkable
class GivesItems(Protocol):
    """A knowledge base that gives a document by its id, as all of Loom's own do."""

    async def get_by_id(self, id: str) -> KnowledgeItem | None:
        """The document or passage with this id, or None."""
        ...


async def _readable(request: Request) -> KnowledgeBase:
    if not token_of(request).may("read"):
        raise Refusal(403, "forbidden", "this token does not allow that", "use one with the right to read")
    return _base(request)


async def _changeable(request: Request) -> KnowledgeBase:
    operator(request)
    return _base(request)


def _base(request: Request) -> KnowledgeBase:
    place: Place = request.app.state.place
    found = place.memory.config.knowledge_base
    if found is None:
        raise NotFound(_NONE)
    return found


Readable = Annotated[KnowledgeBase, Depends(_readable)]
Changeable = Annotated[KnowledgeBase, Depends(_changeable)]


@router.post("/documents", status_code=201)
async def add(base: Changeable, body: shapes.DocumentsIn) -> shapes.KnowledgeCount:
    """Add documents, all or none. One that is there already is replaced, unless it is the same."""
    documents = [
        Document(id=one.id, text=one.text, source=one.source, attributes=shapes.attributes_of(one.attributes))
        for one in body.documents
    ]
    return shapes.KnowledgeCount(documents=await base.add(*documents))


@router.get("/documents/{id:name}")
async def get_by_id(base: Readable, id: str) -> shapes.DocumentOut:
    """A document, or one passage of a long one."""
    if not isinstance(base, GivesItems):
        raise UsageError("this knowledge base does not give documents by id; search it")
    found = await base.get_by_id(id)
    if found is None:
        raise NotFound(f"the knowledge base has no document {id!r:.200}; search it for ids")
    return shapes.DocumentOut(
        id=found.id, text=plain_text(found.content), source=found.source, attributes=dict(found.metadata)
    )


@router.delete("/documents/{id:name}")
async def remove(base: Changeable, id: str) -> shapes.KnowledgeCount:
    """Remove a document with its passages."""
    removed = await base.remove(id)
    if not removed:
        raise NotFound(f"the knowledge base has no document {id!r:.200}; search it for ids")
    return shapes.KnowledgeCount(documents=removed)


@router.post("/search")
async def search(base: Readable, body: shapes.KnowledgeIn) -> shapes.PassagesOut:
    """The best passages, best first."""
    where = shapes.attributes_of(body.where) if body.where else None
    found = await base.search(body.query, limit=body.limit, where=as_filter(where))
    return _passages(found)


@router.post("/search_graph")
async def search_graph(base: Readable, body: shapes.GraphIn) -> shapes.PassagesOut:
    """The best passages of a knowledge base that follows relations, at most `max_hops` of them."""
    if not isinstance(base, SearchesGraph):
        raise UsageError("this knowledge base follows no relations; use search")
    return _passages(await base.search_graph(body.query, mode=body.mode, max_hops=body.max_hops, limit=body.limit))


def _passages(hits: Sequence[Hit]) -> shapes.PassagesOut:
    return shapes.PassagesOut(
        hits=[
            shapes.PassageOut(
                id=item.id,
                document=item.document_id,
                text=plain_text(item.text),
                start=item.start,
                end=item.end,
                source=item.source,
                attributes=dict(item.attributes),
                score=hit.score,
                why=dict(hit.why),
            )
            for hit in hits
            if isinstance(item := hit.item, Passage)
        ]
    )
