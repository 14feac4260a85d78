"""Client of an external graph RAG service: sends the query, and reads the answer as hits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol, cast

from anyio import to_thread

from loom.core.hit import Hit, Passage, rank_key
from loom.core.record import Provenance, Scalar
from loom.errors import BadResponse, LoomError, ProviderUnavailable
from loom.protocols.knowledge_base import SearchMode


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
    metadata = fields.get("metadata")
    score = fields.get("score", fields.get("relevance"))
    try:
        # Without a score, the order of the answer decides.
        value = 1.0 / (place + 1) if score is None else float(score)
        return Hit(_passage(id, text, str(fields.get("source") or ""), metadata), value, {mode: value})
    except (TypeError, ValueError) as error:
        raise BadResponse(f"result {place} of the graph service cannot be read ({error})") from error


def _passage(id: str, text: str, source: str, metadata: Any) -> Passage:
    attributes: dict[str, Scalar] = {}
    if isinstance(metadata, Mapping):
        items = cast("Mapping[Any, Any]", metadata).items()
        attributes = {str(key): value for key, value in items if isinstance(value, str | int | float | bool)}
    return Passage(
        id=id, document_id=id, text=text, start=0, end=len(text), source=source, attributes=attributes,
        provenance=Provenance("import"),
    )  # fmt: skip
