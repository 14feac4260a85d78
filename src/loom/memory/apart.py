"""Hybrid search as two ranked lists (lexical, dense), for stores with or without native support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loom.core.hit import Hit, joined
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import FoundBy, HandsOver, MemoryStore, Query, SearchesApart


async def search_apart(store: MemoryStore, scope: Scope, query: Query, *, near: int) -> Sequence[Hit]:
    """The best hits by the words of a query and the `near` best by its vector, as SearchesApart defines them."""
    if isinstance(store, SearchesApart):
        return await store.search_apart(scope, query, near=near)
    by_words = await store.search(scope, replace(query, vector=None))
    by_vector = await store.search(scope, replace(query, text="", limit=near))
    cosines = {hit.item.id: hit.why["dense"] for hit in by_vector}
    far = [hit.item.id for hit in by_words if hit.item.id not in cosines]
    if far and query.vector is not None and isinstance(store, HandsOver):
        cosines |= _cosines(query.vector, await store.found_by(scope, *far))
    return joined(by_words, by_vector, cosines)


def _cosines(vector: Vector, others: Mapping[str, FoundBy]) -> dict[str, float]:
    """The cosine of each record that has a vector."""
    import numpy as np  # noqa: PLC0415 - only a search by vector pays for it

    known = {id: by.vector for id, by in others.items() if by.vector is not None}
    if not known:
        return {}
    rows = np.array([row if isinstance(row, np.ndarray) else list(row) for row in known.values()], np.float64)
    target = np.array(vector if isinstance(vector, np.ndarray) else list(vector), np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(target)
    return dict(zip(known, (rows @ target / lengths).tolist(), strict=True))
