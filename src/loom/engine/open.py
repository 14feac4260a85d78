"""Opening a memory: a URL, a mapping or an instance becomes stores, an embedder and an extractor that fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loom.core.clock import Clock
from loom.engine.places import PLACE_OPTIONS, Opening, store_at
from loom.errors import UsageError
from loom.memory.config import MemoryConfig
from loom.memory.extract.rules import RuleExtractor
from loom.memory.memory import Memory
from loom.memory.metabolism import Store
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Extractor
from loom.protocols.reranker import Reranker
from loom.providers.embedding.auto import pick_embedder
from loom.stores.sqlite.connection import Durability

_OPTIONS = ("namespace", "embedder", "with_facts", "config", "durability")


def open_memory(
    where: str | Mapping[str, Any] | Memory | Store = "inmemory",
    *,
    namespace: str = "default",
    embedder: str | Embedder | None = None,
    with_facts: bool = True,
    extractor: Extractor | None = None,
    config: MemoryConfig | None = None,
    reranker: Reranker | None = None,
    clock: Clock | None = None,
    durability: Durability = "full",
) -> Memory:
    """A memory on the store that `where` names. Nothing is read or written before the first call.

    Args:
        where: `inmemory`, `sqlite:PATH`, `chroma:FOLDER`, `qdrant:FOLDER`, a URL (`postgres://...`, `redis://...`,
            `qdrant+http://HOST:6333?truth=postgres://...`, the same for Chroma), a store, a memory, or a mapping with
            `backend`, `path` or `url` and any of the options below, which count more than those beside it. The
            backend `composite` puts stores together: `truth` keeps everything that no other part does, `vectors` is
            a vector engine for what the truth keeps, and `layers` gives layers stores of their own, such as
            `{"l2": "redis://..."}`; see CompositeMemory. As a URL: `composite:?truth=...&vectors=...&l2=...`.
        namespace: keeps applications on one store apart.
        embedder: a name (`wordllama`, `openai`, `hash`), an embedder, or None to take the best that is there.
        with_facts: whether facts are drawn from what is remembered.
        extractor: who draws them; plain rules if not given.
        config: the four layers.
        reranker: who looks at the best hits once more; nobody if not given.
        clock: what time it is.
        durability: of SQLite: `full` survives a power cut, `fast` may lose the last writes to one.
    """
    if isinstance(where, Memory):
        return where
    if isinstance(where, Mapping):
        beside: dict[str, Any] = {
            "namespace": namespace,
            "embedder": embedder,
            "with_facts": with_facts,
            "config": config,
        }
        beside |= {"reranker": reranker, "durability": durability}
        return _from_mapping(where, beside, extractor=extractor, clock=clock)
    chosen, why = pick_embedder(embedder)
    return Memory(
        store_at(where, Opening(clock, durability)),
        embedder=chosen,
        extractor=extractor or (RuleExtractor() if with_facts else None),
        config=config,
        namespace=namespace,
        clock=clock,
        embedder_note=why,
        reranker=reranker,
    )


def _from_mapping(
    given: Mapping[str, Any], beside: Mapping[str, Any], *, extractor: Extractor | None, clock: Clock | None
) -> Memory:
    known = (*PLACE_OPTIONS, *_OPTIONS)
    unknown = set(given) - set(known)
    if unknown:
        raise UsageError(f"memory has no option {', '.join(sorted(unknown))}; the options are {', '.join(known)}")
    options = {**beside, **{name: given[name] for name in beside if name in given}}
    place = {name: given[name] for name in PLACE_OPTIONS if name in given}
    store = store_at(place, Opening(clock, options["durability"]))
    return open_memory(store, extractor=extractor, clock=clock, **options)
