"""Opening a memory: a URL, a mapping or an instance becomes stores, an embedder and an extractor that fit."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from loom.core.clock import Clock
from loom.core.record import Layer
from loom.errors import UsageError
from loom.memory.composite import composed
from loom.memory.composite_change import Part
from loom.memory.config import MemoryConfig
from loom.memory.extract.rules import RuleExtractor
from loom.memory.memory import Memory
from loom.memory.metabolism import Store
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Extractor
from loom.protocols.memory_store import MemoryStore
from loom.protocols.reranker import Reranker
from loom.providers.embedding.auto import pick_embedder
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.connection import Durability

if TYPE_CHECKING:
    from loom.stores.indexed import IndexedStore
    from loom.stores.postgres import PostgresStore
    from loom.stores.redis import RedisStore

_BACKENDS = ("inmemory", "sqlite", "postgres", "redis", "chroma", "composite")
_OPTIONS = ("backend", "path", "url", "layers", "namespace", "embedder", "with_facts", "config", "durability")
_SERVERS = {
    "postgres": ("postgres", "PostgresStore"),
    "postgresql": ("postgres", "PostgresStore"),
    "redis": ("redis", "RedisStore"),
    "rediss": ("redis", "RedisStore"),
    "unix": ("redis", "RedisStore"),
}
"""Which class of `loom.stores` a URL with this scheme names; its driver is an extra, so it is loaded when asked for."""
_S = TypeVar("_S", bound=MemoryStore)
_LAYERS = {layer.label.lower(): layer for layer in Layer}


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
        where: `inmemory`, `sqlite:PATH`, `chroma:FOLDER`, a URL (`postgres://...`, `redis://...`), a store, a memory,
            or a mapping with `backend`, `path` or `url` and any of the options below, which count more than those
            beside it. The backend `composite` takes `layers` in place of a path, such as
            `{"l2": "inmemory", "l4": "sqlite:./bot.db"}`; see CompositeMemory.
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
        _store(where, clock, durability),
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
    unknown = set(given) - set(_OPTIONS)
    if unknown:
        raise UsageError(f"memory has no option {', '.join(sorted(unknown))}; the options are {', '.join(_OPTIONS)}")
    options = {**beside, **{name: given[name] for name in beside if name in given}}
    where = _place(given, clock, options["durability"])
    return open_memory(where, extractor=extractor, clock=clock, **options)


def _place(given: Mapping[str, Any], clock: Clock | None, durability: Durability) -> str | Store:
    """The URL or the store that a mapping names."""
    backend, path = given.get("backend", "inmemory"), given.get("path")
    layers: Mapping[str, str | Part] | None = given.get("layers")
    if (backend == "composite") != isinstance(layers, Mapping):
        raise UsageError(
            "the backend 'composite', and no other, takes `layers`: a mapping from l1, l2, l3, l4 to stores"
        )
    if layers is None and "url" in given:
        return str(given["url"])
    if layers is None:
        return str(backend) if path is None else f"{backend}:{path}"
    if path is not None:
        raise UsageError("the backend 'composite' has no path of its own; its layers have")
    return composed({_layer(name): _store(at, clock, durability) for name, at in layers.items()})


def _layer(name: str) -> Layer:
    if name not in _LAYERS:
        raise UsageError(f"there is no layer {name!r}; the layers are {', '.join(_LAYERS)}")
    return _LAYERS[name]


def _store(
    where: str | _S, clock: Clock | None, durability: Durability
) -> InMemoryStore | SqliteStore | PostgresStore | RedisStore | IndexedStore | _S:
    if isinstance(where, MemoryStore):
        return where
    if not isinstance(where, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{where!r} names no memory; give a URL, a mapping, a store or a memory")
    backend, _, path = where.partition(":")
    if backend == "inmemory" and not path:
        return InMemoryStore(clock=clock)
    if backend == "sqlite":
        if not path:
            raise UsageError("sqlite needs a file; write sqlite:./memory.db")
        return SqliteStore(path.removeprefix("//"), clock=clock, durability=durability)
    if backend == "chroma":
        return import_module("loom.engine.chroma").chroma_store(path or None, clock=clock, durability=durability)
    if backend in _SERVERS:
        module, name = _SERVERS[backend]
        return getattr(import_module(f"loom.stores.{module}"), name)(where, clock=clock)
    raise UsageError(f"there is no memory backend {where!r}; the backends are {', '.join(_BACKENDS)}")
