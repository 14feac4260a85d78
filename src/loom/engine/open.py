"""Opening a memory: a URL, a mapping or an instance becomes stores, an embedder and an extractor that fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loom.core.clock import Clock
from loom.errors import UsageError
from loom.memory.config import MemoryConfig
from loom.memory.extract.rules import RuleExtractor
from loom.memory.memory import Memory
from loom.memory.metabolism import Store
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Extractor
from loom.providers.embedding.auto import pick_embedder
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.connection import Durability

_BACKENDS = ("inmemory", "sqlite")
_OPTIONS = ("backend", "path", "namespace", "embedder", "with_facts", "config", "durability")


def open_memory(
    where: str | Mapping[str, Any] | Memory = "inmemory",
    *,
    namespace: str = "default",
    embedder: str | Embedder | None = None,
    with_facts: bool = True,
    extractor: Extractor | None = None,
    config: MemoryConfig | None = None,
    clock: Clock | None = None,
    durability: Durability = "full",
) -> Memory:
    """A memory on the store that `where` names. Nothing is read or written before the first call.

    Args:
        where: `inmemory`, `sqlite:PATH`, a mapping with `backend`, `path` and any of the options below, or a memory.
        namespace: keeps applications on one store apart.
        embedder: a name (`wordllama`, `openai`, `hash`), an embedder, or None to take the best that is there.
        with_facts: whether facts are drawn from what is remembered.
        extractor: who draws them; plain rules if not given.
        config: the four layers.
        clock: what time it is.
        durability: of SQLite: `full` survives a power cut, `fast` may lose the last writes to one.
    """
    if isinstance(where, Memory):
        return where
    if isinstance(where, Mapping):
        return _from_mapping(where, extractor=extractor, clock=clock)
    chosen, _ = pick_embedder(embedder)
    return Memory(
        _store(where, clock=clock, durability=durability),
        embedder=chosen,
        extractor=extractor or (RuleExtractor() if with_facts else None),
        config=config,
        namespace=namespace,
        clock=clock,
    )


def _from_mapping(given: Mapping[str, Any], *, extractor: Extractor | None, clock: Clock | None) -> Memory:
    unknown = set(given) - set(_OPTIONS)
    if unknown:
        raise UsageError(f"memory has no option {', '.join(sorted(unknown))}; the options are {', '.join(_OPTIONS)}")
    backend = given.get("backend", "inmemory")
    path = given.get("path")
    where = f"{backend}:{path}" if path is not None else str(backend)
    options = {name: given[name] for name in _OPTIONS[2:] if name in given}
    return open_memory(where, extractor=extractor, clock=clock, **options)


def _store(where: str, *, clock: Clock | None, durability: Durability) -> Store:
    backend, _, path = where.partition(":")
    if backend == "inmemory" and not path:
        return InMemoryStore(clock=clock)
    if backend == "sqlite":
        if not path:
            raise UsageError("sqlite needs a file; write sqlite:./memory.db")
        return SqliteStore(path.removeprefix("//"), clock=clock, durability=durability)
    raise UsageError(f"there is no memory backend {where!r}; the backends are {', '.join(_BACKENDS)}")
