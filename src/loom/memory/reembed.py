"""Re-embedding: the vectors of a whole store are exchanged for those of another embedder."""

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
"""What has vectors: the turns themselves, and of what was made from them that which reached L4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reembedded:
    """What was done: how many records got a vector, of which embedder, and whether another one's were let go."""

    embedder: str
    records: int
    exchanged: bool


async def reembed(
    store: MemoryStore, embedder: Embedder | None, *, progress: ProgressCallback | None = None
) -> Reembedded:
    """Give every record of every user in the store a vector of this embedder.

    The exchange itself is one transaction. Where the work is broken off after it, records without a vector are found
    by their words, and the next call goes on with them.
    """
    if embedder is None:
        raise UsageError("this memory has no embedder; open it with embedder='wordllama' or another one")
    if not isinstance(store, KeepsVectors) or not isinstance(store, Reembeds):
        raise UsageError(f"{type(store).__name__} cannot exchange its vectors; export, and import into a new store")
    await embedder.embed(["a text to try it on"], purpose="document")  # before anything is let go
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
