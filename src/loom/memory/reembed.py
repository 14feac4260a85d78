"""Re-embedding: replaces the vectors of a whole store by those of another embedder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from loom.core.filter import And, Eq, Or
from loom.core.record import Layer, Record
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.memory.keep import BATCH, ProgressCallback, put_vectors
from loom.protocols.embedder import Embedder, Vector
from loom.protocols.memory_store import KeepsVectors, MemoryStore, Reembeds

_WITH_VECTORS = And(Eq("kind", "episode"), Or(Eq("sources", None), Eq("layer", int(Layer.L4))))
"""Records with vectors: original turns, and derived records in L4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reembedded:
    """The result: the embedder, how many records were embedded, and whether other vectors were dropped before."""

    embedder: str
    records: int
    exchanged: bool


async def reembed(
    store: MemoryStore, embedder: Embedder | None, *, progress: ProgressCallback | None = None
) -> Reembedded:
    """Embed every record of every user in the store with this embedder.

    Dropping the old vectors is one transaction. If the work is interrupted after it, records without a vector are
    still found by words, and the next call continues with them.
    """
    if embedder is None:
        raise UsageError("this memory has no embedder; open it with embedder='wordllama' or another one")
    if not isinstance(store, KeepsVectors) or not isinstance(store, Reembeds):
        raise UsageError(f"{type(store).__name__} cannot replace its vectors; export, and import into a new store")
    await embedder.embed(["a text to try it on"], purpose="document")  # fails before the old vectors are dropped
    exchanged = await store.rebind(embedder.identity, embedder.dimension)
    total = await store.count_unembedded(where=_WITH_VECTORS)
    done, seen = 0, 0
    after: tuple[Scope, str] | None = None
    while page := await store.unembedded(where=_WITH_VECTORS, after=after, limit=BATCH):
        vectors = await embedder.embed([record.text for _, record in page], purpose="document")
        done += await _put(store, page, vectors)
        seen += len(page)
        if progress is not None:
            progress(seen, max(seen, total))
        after = (page[-1][0], page[-1][1].id)
    return Reembedded(embedder=embedder.identity, records=done, exchanged=exchanged)


async def _put(store: KeepsVectors, page: Sequence[tuple[Scope, Record]], vectors: Sequence[Vector]) -> int:
    done = 0
    pairs = zip(page, vectors, strict=True)
    for scope, group in groupby(pairs, key=lambda pair: pair[0][0]):
        done += await put_vectors(store, scope, {record.id: vector for (_, record), vector in group})
    return done
