"""Store URLs: which store, vector index or checkpoint store each names.

A URL names one store (`sqlite:PATH`, `postgres://...`), a store with a vector engine beside it (`qdrant:FOLDER`,
`chroma+http://HOST:8000?primary=...`), or several stores put together (`composite:?primary=...&vectors=...&l2=...`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from loom.core.checks import did_you_mean
from loom.core.clock import Clock
from loom.core.record import Layer
from loom.errors import MissingExtra, NotFound, UsageError
from loom.protocols.memory_store import MemoryStore
from loom.stores import inmemory, sqlite

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    from loom.stores._vector_entries import VectorIndex
    from loom.stores.sqlite.connection import Durability


# The registry of stores, models and embedders: the built-in ones, and those that installed packages add.
#
# A package adds one with an entry point in the group `loom.stores` (the scheme of a URL), `loom.models` (a provider) or
# `loom.embedders` (a name). A built-in name cannot be replaced.

_T = TypeVar("_T")


class Registry(Mapping[str, _T]):
    """The openers of one group by name. Entry points are read only for a name that is not built in."""

    def __init__(self, group: str, built_in: Mapping[str, _T]) -> None:
        self.group = group
        self.built_in = dict(built_in)

    def __getitem__(self, name: str) -> _T:
        if name in self.built_in:
            return self.built_in[name]
        found = self._points.select(name=name)
        if not found:
            raise KeyError(name)
        if len(found) > 1:
            packages = ", ".join(sorted(map(_package, found)))
            raise UsageError(f"several packages register {name!r} in {self.group}: {packages}; uninstall all but one")
        (point,) = found
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"the package {_package(point)} registers {name!r} as {point.value}, which cannot be loaded: {error}"
            ) from error

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.added

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.added

    @property
    def added(self) -> tuple[str, ...]:
        """The names that installed packages add."""
        return tuple(sorted(self._points.names - self.built_in.keys()))

    @property
    def _points(self) -> EntryPoints:
        from importlib.metadata import entry_points  # noqa: PLC0415  (slow to import, and rarely needed)

        return entry_points(group=self.group)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


# How URLs may be written: capitals in the scheme, `~` for the home folder, and hints for mistyped ones.

_LOCAL = ("sqlite", "files", "chroma", "qdrant")
"""Schemes with a path behind them."""
_BEFORE_PATH = ("//", "edge:")
_FILE_ENDS = (".db", ".sqlite", ".sqlite3")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
"""How a path of Windows begins."""
_OTHER_WORDS = {"memory": "inmemory", "mem": "inmemory", "ram": "inmemory", "file": "sqlite", "pg": "postgres"}
"""Schemes of other programs."""


def written_out(url: str) -> str:
    """A URL in its plain form: with a small scheme, and the home folder in place of `~`."""
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower() if colon and not _DRIVE.match(url) else scheme
    if scheme == "sqlite":
        _check_file(rest)
    if scheme in _LOCAL:
        start = next((start for start in _BEFORE_PATH if rest.startswith(start)), "")
        # Path.expanduser() raises where a user is not known, and drops a leading `./`.
        path = os.path.expanduser(rest.removeprefix(start))  # noqa: PTH111
        rest = path if scheme == "sqlite" else start + path
    return scheme + colon + rest


def _check_file(path: str) -> None:
    """Refuse spellings that would make another file than the one that is meant."""
    if path.startswith("///"):
        # Elsewhere three slashes are a file in this folder, and four an absolute path.
        name = path.lstrip("/")
        if not name or _DRIVE.match(name):
            forms = f"sqlite:{name or './memory.db'}"
        elif path.startswith("////"):
            forms = f"sqlite:/{name}"
        else:
            forms = f"sqlite:./{name} for a file in this folder, or sqlite:/{name} for an absolute path"
        raise UsageError(f"sqlite:{path} has slashes before the path; write {forms}")
    if os.name != "nt" and _DRIVE.match(path.removeprefix("//")):
        raise UsageError(
            f"sqlite:{path} is a path of Windows, and this is another system; write sqlite:./memory.db, say"
        )


def meant_by(url: str) -> str:
    """A hint for the end of an error: the URL of a path that was given alone; empty where it is not a path."""
    if _DRIVE.match(url) or url.startswith((".\\", "~\\")) or (":" not in url and "\\" in url):
        return f"; for a file write sqlite:{url}"
    is_rooted = url.startswith(("~", ".", "/"))
    if ":" in url or not (is_rooted or "/" in url or url.endswith(_FILE_ENDS)):
        return ""  # a password may follow a colon
    return f"; for a file write sqlite:{url if is_rooted else './' + url}"


# Opening the vector index that a URL names: Chroma or Qdrant, connected at the first use.

KEY = "QDRANT_API_KEY"
"""The variable that holds the key of a Qdrant server where its URL does not."""


EDGE = "edge:"
"""Stands before the folder of Qdrant's embedded engine."""


class VectorEngine(NamedTuple):
    """A vector engine: its class in `loom.stores`, the package that class needs, and the usual address of a server."""

    store: str
    package: str
    server: str


ENGINES = {
    "chroma": VectorEngine("ChromaVectorStore", "chromadb", "http://HOST:8000"),
    "qdrant": VectorEngine("QdrantVectorStore", "qdrant_client", "http://HOST:6333"),
}


def engine_of(url: str) -> str | None:
    """The vector engine that a URL names; None where it names none."""
    name = url.partition(":")[0].partition("+")[0]
    return name if name in ENGINES else None


def is_server(url: str) -> bool:
    """Whether the URL of a vector engine is a server, and not a folder or this process's memory."""
    return "+" in url.partition(":")[0]


def folder_of(url: str) -> str:
    """The folder of a vector engine on this machine; empty where it lives in this process's memory."""
    return url.partition(":")[2].removeprefix(EDGE)


def index_at(url: str) -> VectorIndex:
    """The index at `qdrant`, `qdrant:FOLDER`, `qdrant:edge:FOLDER` or `qdrant+http://HOST:6333`; so for Chroma."""
    name = engine_of(url)
    if name is None:
        scheme = url.partition(":")[0]
        raise UsageError(f"there is no vector engine {scheme!r}; the engines are {', '.join(ENGINES)}")
    # Said now: a memory answers without its index, so the missing package would only be a note at each call.
    edge = name == "qdrant" and url.partition(":")[2].startswith(EDGE)
    if find_spec("qdrant_edge" if edge else ENGINES[name].package) is None:
        raise MissingExtra(f"the vector engine {name}", "qdrant-edge" if edge else name)
    made = _store_class(name)
    if is_server(url):
        address, secret = _address(name, url.partition("+")[2])
        return made(address, **secret)
    folder = url.partition(":")[2]
    if folder.startswith(("http:", "https:", "//")):
        raise UsageError(f"{name} takes a folder here; a server is written {server_form(name)}")
    return made(folder) if folder else made()


def _store_class(name: str) -> Callable[..., VectorIndex]:
    if name == "chroma":
        from loom.stores.chroma import ChromaVectorStore  # noqa: PLC0415  (its client is an extra)

        return ChromaVectorStore
    from loom.stores.qdrant import QdrantVectorStore  # noqa: PLC0415  (its client is an extra)

    return QdrantVectorStore


def server_form(name: str) -> str:
    """The form of a URL of a server, with the store for everything else in its query."""
    return f"{name}+{ENGINES[name].server}?primary=sqlite:./memory.db"


def _address(name: str, url: str) -> tuple[str, dict[str, Any]]:
    """The URL of a server without who asks, and the options that say who asks."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"this is not the address of a {name} server; write {server_form(name)}")
    if parts.query or parts.fragment:
        raise UsageError(f"the address of a {name} server has a query here; say `primary` beside it, not inside")
    who, _, at = parts.netloc.rpartition("@")
    address = parts._replace(netloc=at).geturl()
    if name == "qdrant":
        key = unquote(who).removeprefix(":") or os.environ.get(KEY, "").strip()
        return address, {"api_key": key} if key else {}
    if who:
        raise UsageError(
            f"the URL of a {name} server names a user; make the index yourself: "
            f"IndexedStore(primary, {ENGINES[name].store}(URL, headers=...))"
        )
    return address, {}


BACKENDS = ("inmemory", "sqlite", "postgres", "redis", "chroma", "qdrant", "composite")
PLACE_OPTIONS = ("backend", "path", "url", "primary", "vectors", "layers", "durable", "ttl")
"""The options of a mapping that name a store; see open_memory."""
TRUTH = "memory.db"
"""The file beside the vectors in a folder of a vector engine: all records, and the vectors too."""
MEMORY = ":memory:"
"""SQLite's name for a file that is none."""
COMPOSITE_FORM = "composite:?primary=postgres://...&vectors=qdrant+http://...&l2=redis://..."

_POSTGRES = ("postgres", "postgresql")
REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_LAYERS = {layer.label.lower(): layer for layer in Layer}


class Opening(NamedTuple):
    """The options for opening a store."""

    clock: Clock | None = None
    durability: Durability = "full"
    makes: bool = True
    """Whether the store may create what it needs on a server, such as a schema; False for reading only."""


OpensStore: TypeAlias = Callable[[str, Opening], MemoryStore]
"""Makes the store that a URL of its scheme names; it connects at its first use."""


def store_at(url: object, how: Opening) -> Any:
    """The store that a URL or a mapping names; a store is itself."""
    if isinstance(url, MemoryStore):
        return url
    if isinstance(url, Mapping):
        return _mapped(url, how)  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(url, str):
        hint = f"; for a file write {f'sqlite:{url}'!r}" if isinstance(url, os.PathLike) else ""
        raise UsageError(f"{url!r} names no memory; give a URL, a mapping, a store or a memory{hint}")
    url = written_out(url)
    opens = STORES.get(engine_of(url) or url.partition(":")[0])
    if opens is None:
        raise _unknown(url)
    return opens(url, how)


def _unknown(url: str) -> UsageError:
    if url == MEMORY:
        return UsageError(f"{url!r} names no memory; write inmemory")
    # Only the scheme is repeated: what follows may hold a password.
    known = ", ".join((*BACKENDS, *STORES.added))
    backend = url.partition(":")[0]
    return UsageError(f"there is no memory backend {backend!r}; the backends are {known}{scheme_hint(url)}")


def scheme_hint(url: str) -> str:
    """A hint for the end of an error about a URL: the path that it may be, or the scheme that is almost its own."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    other = _OTHER_WORDS.get(scheme)
    almost = f"; did you mean {other!r}?" if other else did_you_mean(scheme, (*STORES, "files"))
    return meant_by(url) or almost


def places_of(url: str) -> dict[str, str]:
    """The URLs of the parts of a URL, by their purpose; a single store is `store`."""
    url = written_out(url)
    found = {"store": url}
    if url.partition(":")[0] == "composite":
        found = _queried(url, ("primary", "vectors", *_LAYERS))
    elif engine_of(url) is not None and is_server(url):
        found = {**_queried(url, ("primary",)), "vectors": url.partition("?")[0]}
    return {name: written_out(place) for name, place in found.items()}


def without_secrets(url: str) -> str:
    """A URL as it may be shown: a server without who signs in and without options, several stores one by one."""

    def bare(place: str) -> str:
        scheme, mark, rest = place.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}" if mark else place

    return " + ".join(map(bare, dict.fromkeys(places_of(url).values())))


def sessions_place(url: str) -> str | None:
    """The URL of the checkpoints beside a memory: that of its primary store; None if that saves no sessions."""
    places = places_of(url)
    primary = places.get("store") or places.get("primary") or ""
    backend, _, rest = primary.partition(":")
    if backend in ENGINES and rest:
        return f"sqlite:{Path(folder_of(primary)) / TRUTH}"
    return primary if backend in {"sqlite", *_POSTGRES, *REDIS_SCHEMES} else None


def check_is_there(url: str) -> None:
    """Refuse the URL of a file or a folder that is not there, as opening it would make it."""
    for place in places_of(url).values():
        backend, _, path = place.partition(":")
        path = folder_of(place) if backend in ENGINES else path.removeprefix("//")
        is_local = bool(path) and backend in {"sqlite", "files", *ENGINES}
        if is_local and path != MEMORY and not Path(path).exists():
            raise NotFound(f"there is nothing at {path!r}; give the URL of a store that was used before")


def check_folder(url: str) -> None:
    """Refuse the URL of a file in a folder that is not there, before a server starts that could only answer so."""
    for place in places_of(url).values():
        backend, _, path = place.partition(":")
        folder = Path(path.removeprefix("//")).parent
        if backend == "sqlite" and path and path != MEMORY and not folder.is_dir():
            raise NotFound(f"there is no folder {str(folder)!r}; make it first")


def indexed_at(primary: object, vectors: str, how: Opening) -> Any:
    """A store with the vector engine that `vectors` names beside it."""
    from loom.wrappers.indexed import IndexedStore  # noqa: PLC0415 - only who has an index needs it

    return IndexedStore(store_at(primary, how), index_at(written_out(vectors)), clock=how.clock)


def _inmemory(url: str, how: Opening) -> MemoryStore:
    if url.partition(":")[2]:
        raise _unknown(url)
    return inmemory.InMemoryStore(clock=how.clock)


def _sqlite(url: str, how: Opening) -> MemoryStore:
    path = url.partition(":")[2]
    if not path:
        raise UsageError("sqlite needs a file; write sqlite:./memory.db")
    return sqlite.SqliteStore(path.removeprefix("//"), clock=how.clock, durability=how.durability)


def _postgres(url: str, how: Opening) -> MemoryStore:
    from loom.stores.postgres import PostgresStore  # noqa: PLC0415  (its driver is an extra)

    return PostgresStore(url, clock=how.clock, make_schema=how.makes)


def _redis(url: str, how: Opening) -> MemoryStore:
    from loom.stores.redis import RedisStore  # noqa: PLC0415  (its driver is an extra)

    return RedisStore(url, clock=how.clock)


def _composite_url(url: str, how: Opening) -> MemoryStore:
    given = _queried(url, ("primary", "vectors", *_LAYERS))
    return _composite(given.pop("primary", None), given.pop("vectors", None), given, how)


def _indexed(url: str, how: Opening) -> Any:
    """A vector engine with everything else in a file of its folder, or where `primary` says."""
    if is_server(url):
        primary = _queried(url, ("primary",)).get("primary")
        if primary is None:
            name = str(engine_of(url))
            raise UsageError(f"{name} keeps vectors alone; say where everything else is: {server_form(name)}")
        return indexed_at(primary, url.partition("?")[0], how)
    folder = folder_of(url)
    file = Path(folder) / TRUTH if folder else MEMORY
    primary = sqlite.SqliteStore(file, clock=how.clock, durability=how.durability, make_folder=bool(folder))
    return indexed_at(primary, url, how)


def _queried(url: str, allowed: tuple[str, ...]) -> dict[str, str]:
    """The query of a URL; in a value, `&` and `%` are written %26 and %25."""
    found: dict[str, str] = {}
    for pair in filter(None, url.partition("?")[2].split("&")):
        name, _, value = pair.partition("=")
        if name not in allowed or not value or name in found:
            # What is not understood is not repeated: it may be the rest of a password that holds a `&`.
            hint = did_you_mean(name, allowed) if name not in allowed else ""
            raise UsageError(
                f"the query of this URL cannot be read: it takes each of {', '.join(allowed)} once, "
                f"with a URL as its value, in which & is written %26{hint}"
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
    if scheme not in REDIS_SCHEMES:
        raise UsageError(f"`{'` and `'.join(options)}` is for Redis; {scheme} takes neither")
    from loom.stores.redis.connection import with_options  # noqa: PLC0415 - only who uses Redis needs it

    return with_options(written_out(place), **options)


def _mapped(given: Mapping[str, Any], how: Opening) -> Any:
    """The store that a mapping names."""
    backend, path, url, primary = str(given.get("backend", "inmemory")), *map(given.get, ("path", "url", "primary"))
    layers: Mapping[str, object] = given.get("layers") or {}
    if not isinstance(layers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError("`layers` is a mapping from l1, l2, l3, l4 to stores")
    if backend == "composite":
        if path is not None or url is not None:
            raise UsageError("the backend 'composite' has no path of its own; its parts have")
        return _composite(primary, given.get("vectors"), layers, how)
    if layers or given.get("vectors") is not None:
        raise UsageError("the backend 'composite', and no other, takes `layers` and `vectors`")
    if backend in ENGINES:
        return _mapped_index(backend, path, url, primary, how)
    if primary is not None:
        raise UsageError(f"`primary` is for vector engines and the backend 'composite'; {backend} is its own")
    if path is not None and url is None and "backend" not in given:
        raise UsageError(f"memory has a path and no backend; write {{'backend': 'sqlite', 'path': {str(path)!r}}}")
    return store_at(place_in(given), how)


def _mapped_index(engine: str, path: object, url: object, primary: object, how: Opening) -> Any:
    if path is not None and url is not None:
        raise UsageError(f"{engine} is given a path and a url; give one of them")
    server = None if url is None else str(url)
    if server is not None and not server.startswith(f"{engine}+"):
        server = f"{engine}+{server}"
    place = written_out(server or (engine if path is None else f"{engine}:{path}"))
    return _indexed(place, how) if primary is None else indexed_at(primary, place, how)


def _composite(primary: object, vectors: object, layers: Mapping[str, object], how: Opening) -> Any:
    """Stores put together: the primary store, an engine for its vectors, and stores of their own for some layers."""
    if primary is None and (vectors is not None or not layers):
        raise UsageError(f"the backend 'composite' needs `primary`, or `layers` alone; as one URL: {COMPOSITE_FORM}")
    below = None
    if primary is not None:
        below = store_at(primary, how) if vectors is None else indexed_at(primary, str(vectors), how)
    # A place that is named twice is one store: two on the same data would take each other's records away.
    opened: dict[str, Any] = {primary: below} if isinstance(primary, str) else {}
    named: dict[Layer, Any] = {}
    for name, at in layers.items():
        if name not in _LAYERS:
            raise UsageError(f"there is no layer {name!r}; the layers are {', '.join(_LAYERS)}")
        store = opened[at] if isinstance(at, str) and at in opened else store_at(at, how)
        named[_LAYERS[name]] = store
        if isinstance(at, str):
            opened[at] = store
    if not named:
        return below
    from loom.wrappers.composite import composed  # noqa: PLC0415 - only who puts stores together needs it

    return composed(named, primary=below)


STORES: Registry[OpensStore] = Registry(
    "loom.stores",
    {
        "inmemory": _inmemory,
        "sqlite": _sqlite,
        **dict.fromkeys(_POSTGRES, _postgres),
        **dict.fromkeys(REDIS_SCHEMES, _redis),
        **dict.fromkeys(ENGINES, _indexed),
        "composite": _composite_url,
    },
)
