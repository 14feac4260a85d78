"""Opening the vector index that a URL names: Chroma or Qdrant, connected at the first use."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from loom.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from loom.stores.vector_entries import VectorIndex

KEY = "QDRANT_API_KEY"
"""The variable that holds the key of a Qdrant server where its URL does not."""


EDGE = "edge:"
"""Stands before the folder of Qdrant's embedded engine."""


class Engine(NamedTuple):
    """A vector engine: its class in `loom.stores`, the package that class needs, and the usual address of a server."""

    store: str
    package: str
    server: str


ENGINES = {
    "chroma": Engine("ChromaVectorStore", "chromadb", "http://HOST:8000"),
    "qdrant": Engine("QdrantVectorStore", "qdrant_client", "http://HOST:6333"),
}


def engine_of(where: str) -> str | None:
    """The vector engine that a URL names; None where it names none."""
    name = where.partition(":")[0].partition("+")[0]
    return name if name in ENGINES else None


def is_server(where: str) -> bool:
    """Whether the URL of a vector engine is a server, and not a folder or this process's memory."""
    return "+" in where.partition(":")[0]


def folder_of(where: str) -> str:
    """The folder of a vector engine on this machine; empty where it lives in this process's memory."""
    return where.partition(":")[2].removeprefix(EDGE)


def index_at(where: str) -> VectorIndex:
    """The index at `qdrant`, `qdrant:FOLDER`, `qdrant:edge:FOLDER` or `qdrant+http://HOST:6333`; so for Chroma."""
    name = engine_of(where)
    if name is None:
        scheme = where.partition(":")[0]
        raise UsageError(f"there is no vector engine {scheme!r}; the engines are {', '.join(ENGINES)}")
    # Said now: a memory answers without its index, so the missing package would only be a note at each call.
    edge = name == "qdrant" and where.partition(":")[2].startswith(EDGE)
    if find_spec("qdrant_edge" if edge else ENGINES[name].package) is None:
        raise MissingExtra(f"the vector engine {name}", "qdrant-edge" if edge else name)
    made = _store_class(name)
    if is_server(where):
        address, secret = _address(name, where.partition("+")[2])
        return made(address, **secret)
    folder = where.partition(":")[2]
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
    return f"{name}+{ENGINES[name].server}?truth=sqlite:./memory.db"


def _address(name: str, url: str) -> tuple[str, dict[str, Any]]:
    """The URL of a server without who asks, and the options that say who asks."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"this is not the address of a {name} server; write {server_form(name)}")
    if parts.query or parts.fragment:
        raise UsageError(f"the address of a {name} server has a query here; say `truth` beside it, not inside")
    who, _, at = parts.netloc.rpartition("@")
    return parts._replace(netloc=at).geturl(), _secret(name, unquote(who))


def _secret(name: str, who: str) -> dict[str, Any]:
    if name == "qdrant":
        key = who.removeprefix(":") or os.environ.get(KEY, "").strip()
        return {"api_key": key} if key else {}
    if who:
        raise UsageError(
            f"the URL of a {name} server names a user; make the index yourself: "
            f"IndexedStore(truth, {ENGINES[name].store}(URL, headers=...))"
        )
    return {}
