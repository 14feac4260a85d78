"""Opening the store that a URL or a mapping names; it connects at its first use.

A URL names one store (`sqlite:PATH`, `postgres://...`), a store with a vector engine beside it (`qdrant:FOLDER`,
`chroma+http://HOST:8000?truth=...`), or several stores put together (`composite:?truth=...&vectors=...&l2=...`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from loom.core.clock import Clock
from loom.core.record import Layer
from loom.engine.place_names import meant_by, written_out
from loom.engine.registry import Registry
from loom.engine.vector_places import ENGINES, engine_of, folder_of, index_at, is_server, server_form
from loom.errors import NotFound, UsageError
from loom.memory.composite import composed
from loom.protocols.memory_store import MemoryStore
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.connection import Durability

BACKENDS = ("inmemory", "sqlite", "postgres", "redis", "chroma", "qdrant", "composite")
PLACE_OPTIONS = ("backend", "path", "url", "truth", "vectors", "layers", "durable", "ttl")
"""The options of a mapping that name a store; see open_memory."""
TRUTH = "memory.db"
"""The file beside the vectors in a folder of a vector engine: all records, and the vectors too."""
MEMORY = ":memory:"
"""SQLite's name for a file that is none."""
COMPOSITE_FORM = "composite:?truth=postgres://...&vectors=qdrant+http://...&l2=redis://..."

_POSTGRES = ("postgres", "postgresql")
_REDIS = ("redis", "rediss", "unix")
_LAYERS = {layer.label.lower(): layer for layer in Layer}


class Opening(NamedTuple):
    """The options for opening a store."""

    clock: Clock | None = None
    durability: Durability = "full"
    makes: bool = True
    """Whether the store may create what it needs on a server, such as a schema; False for reading only."""


OpensStore: TypeAlias = Callable[[str, Opening], MemoryStore]
"""Makes the store that a URL of its scheme names; it connects at its first use."""


def store_at(where: object, how: Opening) -> Any:
    """The store that a URL or a mapping names; a store is itself."""
    if isinstance(where, MemoryStore):
        return where
    if isinstance(where, Mapping):
        return _mapped(where, how)  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(where, str):
        raise UsageError(f"{where!r} names no memory; give a URL, a mapping, a store or a memory")
    where = written_out(where)
    opens = STORES.get(engine_of(where) or where.partition(":")[0])
    if opens is None:
        raise _unknown(where)
    return opens(where, how)


def _unknown(where: str) -> UsageError:
    if where == MEMORY:
        return UsageError(f"{where!r} names no memory; write inmemory")
    # Only the scheme is repeated: what follows may hold a password.
    known = ", ".join((*BACKENDS, *STORES.added))
    backend = where.partition(":")[0]
    return UsageError(f"there is no memory backend {backend!r}; the backends are {known}{meant_by(where)}")


def places_of(where: str) -> dict[str, str]:
    """The URLs of the parts of a URL, by their purpose; a single store is `store`."""
    where = written_out(where)
    found = {"store": where}
    if where.partition(":")[0] == "composite":
        found = _queried(where, ("truth", "vectors", *_LAYERS))
    elif engine_of(where) is not None and is_server(where):
        found = {**_queried(where, ("truth",)), "vectors": where.partition("?")[0]}
    return {name: written_out(place) for name, place in found.items()}


def sessions_place(where: str) -> str | None:
    """The URL of the checkpoints beside a memory: that of its primary store; None if that saves no sessions."""
    places = places_of(where)
    truth = places.get("store") or places.get("truth") or ""
    backend, _, rest = truth.partition(":")
    if backend in ENGINES and rest:
        return f"sqlite:{Path(folder_of(truth)) / TRUTH}"
    return truth if backend in {"sqlite", *_POSTGRES, *_REDIS} else None


def check_is_there(where: str) -> None:
    """Refuse the URL of a file or a folder that is not there, as opening it would make it."""
    for place in places_of(where).values():
        backend, _, path = place.partition(":")
        path = folder_of(place) if backend in ENGINES else path.removeprefix("//")
        is_local = bool(path) and backend in {"sqlite", "files", *ENGINES}
        if is_local and path != MEMORY and not Path(path).exists():
            raise NotFound(f"there is nothing at {path!r}; give the URL of a store that was used before")


def indexed_at(truth: object, vectors: str, how: Opening) -> Any:
    """A store with the vector engine that `vectors` names beside it."""
    from loom.stores.indexed import IndexedStore  # noqa: PLC0415 - only who has an index needs it

    return IndexedStore(store_at(truth, how), index_at(written_out(vectors)), clock=how.clock)


def _inmemory(where: str, how: Opening) -> MemoryStore:
    if where.partition(":")[2]:
        raise _unknown(where)
    return InMemoryStore(clock=how.clock)


def _sqlite(where: str, how: Opening) -> MemoryStore:
    path = where.partition(":")[2]
    if not path:
        raise UsageError("sqlite needs a file; write sqlite:./memory.db")
    return SqliteStore(path.removeprefix("//"), clock=how.clock, durability=how.durability)


def _postgres(where: str, how: Opening) -> MemoryStore:
    from loom.stores.postgres import PostgresStore  # noqa: PLC0415  (its driver is an extra)

    return PostgresStore(where, clock=how.clock, make_schema=how.makes)


def _redis(where: str, how: Opening) -> MemoryStore:
    from loom.stores.redis import RedisStore  # noqa: PLC0415  (its driver is an extra)

    return RedisStore(where, clock=how.clock)


def _composite_url(where: str, how: Opening) -> MemoryStore:
    given = _queried(where, ("truth", "vectors", *_LAYERS))
    return _composite(given.pop("truth", None), given.pop("vectors", None), given, how)


def _indexed(where: str, how: Opening) -> Any:
    """A vector engine with everything else in a file of its folder, or where `truth` says."""
    if is_server(where):
        truth = _queried(where, ("truth",)).get("truth")
        if truth is None:
            name = str(engine_of(where))
            raise UsageError(f"{name} keeps vectors alone; say where everything else is: {server_form(name)}")
        return indexed_at(truth, where.partition("?")[0], how)
    folder = folder_of(where)
    file = Path(folder) / TRUTH if folder else MEMORY
    truth = SqliteStore(file, clock=how.clock, durability=how.durability, make_folder=bool(folder))
    return indexed_at(truth, where, how)


def _queried(where: str, allowed: tuple[str, ...]) -> dict[str, str]:
    """The query of a URL; in a value, `&` and `%` are written %26 and %25."""
    found: dict[str, str] = {}
    for pair in filter(None, where.partition("?")[2].split("&")):
        name, _, value = pair.partition("=")
        if name not in allowed or not value or name in found:
            # What is not understood is not repeated: it may be the rest of a password that holds a `&`.
            raise UsageError(
                f"the query of this URL cannot be read: it takes each of {', '.join(allowed)} once, "
                "with a URL as its value, in which & is written %26"
            )
        found[name] = unquote(value)
    return found


def place_in(given: Mapping[str, Any]) -> str:
    """The URL that a mapping of one store stands for; what it says of durability and of ends is for Redis."""
    url, path, backend = given.get("url"), given.get("path"), str(given.get("backend", "inmemory"))
    place = str(url) if url is not None else backend if path is None else f"{backend}:{path}"
    options = {name: given[name] for name in ("durable", "ttl") if given.get(name) is not None}
    if not options:
        return place
    scheme = written_out(place).partition(":")[0]
    if scheme not in _REDIS:
        raise UsageError(f"`{'` and `'.join(options)}` is for Redis; {scheme} takes neither")
    from loom.stores.redis.options import with_options  # noqa: PLC0415 - only who uses Redis needs it

    return with_options(written_out(place), **options)


def _mapped(given: Mapping[str, Any], how: Opening) -> Any:
    """The store that a mapping names."""
    backend, path, url, truth = str(given.get("backend", "inmemory")), *map(given.get, ("path", "url", "truth"))
    layers: Mapping[str, object] = given.get("layers") or {}
    if not isinstance(layers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError("`layers` is a mapping from l1, l2, l3, l4 to stores")
    if backend == "composite":
        if path is not None or url is not None:
            raise UsageError("the backend 'composite' has no path of its own; its parts have")
        return _composite(truth, given.get("vectors"), layers, how)
    if layers or given.get("vectors") is not None:
        raise UsageError("the backend 'composite', and no other, takes `layers` and `vectors`")
    if backend in ENGINES:
        return _mapped_index(backend, path, url, truth, how)
    if truth is not None:
        raise UsageError(f"`truth` is for vector engines and the backend 'composite'; {backend} is its own")
    return store_at(place_in(given), how)


def _mapped_index(engine: str, path: object, url: object, truth: object, how: Opening) -> Any:
    if path is not None and url is not None:
        raise UsageError(f"{engine} is given a path and a url; give one of them")
    server = None if url is None else str(url)
    if server is not None and not server.startswith(f"{engine}+"):
        server = f"{engine}+{server}"
    place = written_out(server or (engine if path is None else f"{engine}:{path}"))
    return _indexed(place, how) if truth is None else indexed_at(truth, place, how)


def _composite(truth: object, vectors: object, layers: Mapping[str, object], how: Opening) -> Any:
    """Stores put together: the truth, an engine for its vectors, and stores of their own for some layers."""
    if truth is None and (vectors is not None or not layers):
        raise UsageError(f"the backend 'composite' needs `truth`, or `layers` alone; as one URL: {COMPOSITE_FORM}")
    below = None
    if truth is not None:
        below = store_at(truth, how) if vectors is None else indexed_at(truth, str(vectors), how)
    # A place that is named twice is one store: two on the same data would take each other's records away.
    opened: dict[str, Any] = {truth: below} if isinstance(truth, str) else {}
    named: dict[Layer, Any] = {}
    for name, at in layers.items():
        store = opened[at] if isinstance(at, str) and at in opened else store_at(at, how)
        named[_layer(name)] = store
        if isinstance(at, str):
            opened[at] = store
    return composed(named, truth=below) if named else below


def _layer(name: str) -> Layer:
    if name not in _LAYERS:
        raise UsageError(f"there is no layer {name!r}; the layers are {', '.join(_LAYERS)}")
    return _LAYERS[name]


STORES: Registry[OpensStore] = Registry(
    "loom.stores",
    {
        "inmemory": _inmemory,
        "sqlite": _sqlite,
        **dict.fromkeys(_POSTGRES, _postgres),
        **dict.fromkeys(_REDIS, _redis),
        **dict.fromkeys(ENGINES, _indexed),
        "composite": _composite_url,
    },
)
