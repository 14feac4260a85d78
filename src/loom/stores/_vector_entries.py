"""What vector engines share: vectors as flat entries, filters, and the lock of a folder.

An engine is given text values under fixed keys and asked for equal ones, nothing else; whatever a filter says beyond
that is decided here, on what comes back. So no character of an id, a name or a value means anything to an engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO, TypeAlias, runtime_checkable
from uuid import UUID

from loom.core.checks import check_text
from loom.core.codec import attributes_from_json, attributes_to_json
from loom.core.filter import ATTRIBUTE, And, Eq, Filter, In
from loom.core.record import Scalar
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, StoreUnavailable, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit, VectorItem, VectorStore
from loom.stores._search import check_length, unit
from loom.stores.base import lock_handle

ID, SESSION, TENANT, NAMESPACE, USER = "id", "session", "tenant", "namespace", "user_id"
PAYLOAD = "payload"
_ATTRIBUTES, _NO_ATTRIBUTES = "attributes", "{}"
# Engines compare 32-bit numbers: what differs past this digit is rounding.
_DIGITS = 6
_MORE_THAN_ASKED = 8
_GROWTH = 4


Binding: TypeAlias = tuple[str | None, int]
"""The embedder of the vectors, None if it was not named, and how many numbers a vector has."""


@runtime_checkable
class VectorIndex(VectorStore, Protocol):
    """A vector store that can be compared with, and rebuilt from, the store whose records it indexes."""

    async def bound(self) -> tuple[str, int] | None:
        """The embedder and dimension of the vectors; None before bind(), and where vectors came without a name."""
        ...

    @property
    def place(self) -> str:
        """The engine and where it is, in words that hold no secret."""
        ...

    @property
    def residue(self) -> str:
        """What may stay of removed vectors in the files of the engine, in words; empty where nothing does."""
        ...

    async def clear(self) -> None:
        """Remove the vectors of all users, and the name of their embedder."""
        ...

    async def users(self) -> tuple[Scope, ...]:
        """All users who have vectors."""
        ...

    async def ids(self, scope: Scope) -> tuple[str, ...]:
        """The ids of the scope's vectors."""
        ...

    async def vectors(self, scope: Scope, *ids: str) -> Mapping[str, Vector]:
        """The directions of those of these vectors that are there."""
        ...


class Found(NamedTuple):
    """The nearest entries of an engine, and whether it has no others."""

    entries: Sequence[VectorEntry]
    is_all: bool


class Wanted(NamedTuple):
    """A condition for an engine: the text under `key` is one of `values`."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VectorEntry:
    """A vector that an engine found; `id`, `session_id` and `attributes` are what a filter may ask for."""

    id: str
    session_id: str | None
    attributes: Mapping[str, Scalar]
    score: float


def check_embedder(identity: str, dimension: int) -> None:
    """Refuse an embedder without a name or a size."""
    check_text(identity, "the identity of an embedder")
    if dimension < 1:
        raise UsageError(f"dimension={dimension} is not a size; give 1 or more")


def check_binding(bound: Binding, identity: str, dimension: int) -> None:
    """Refuse another embedder than the one whose vectors are held."""
    if bound[0] not in {None, identity}:
        raise EmbedderMismatch(str(bound[0]), identity)
    check_length(dimension, bound[1], f"bind({identity!r})")


def checked_rows(items: Sequence[VectorItem], bound: Binding | None) -> dict[str, tuple[VectorItem, list[float]]]:
    """The items by id, the last of equal ones, each with its direction; refuses all of them if one is bad."""
    dimension = None if bound is None else bound[1]
    rows: dict[str, tuple[VectorItem, list[float]]] = {}
    for item in items:
        row = unit(item.vector, f"vector {item.id}")
        dimension = dimension or len(row)
        check_length(len(row), dimension, f"vector {item.id}")
        rows[item.id] = (item, row.tolist())
    return rows


def checked_query(vector: Vector, bound: Binding | None) -> list[float]:
    """The direction of a vector that is searched for."""
    asked = unit(vector, "the vector to search for")
    if bound is not None:
        check_length(len(asked), bound[1], "the vector to search for")
    return asked.tolist()


def tenant_of(scope: Scope) -> str:
    """The user as text of fixed length, in which no character of their id is left."""
    return sha256(scope.for_user().key().encode()).hexdigest()


def entry_id(scope: Scope, id: str) -> str:
    """The engine's id for a vector: one for each user, session and id."""
    return str(UUID(bytes=sha256(f"{scope.key()}{id}".encode()).digest()[:16]))


def fields_of(scope: Scope, item: VectorItem) -> dict[str, str]:
    """The fields that an engine keeps beside a vector, all of it text."""
    found = {ID: item.id, _ATTRIBUTES: json.dumps(attributes_to_json(item.attributes))}
    if scope.session_id is not None:
        found[SESSION] = scope.session_id
    if item.payload:
        found[PAYLOAD] = item.payload
    tokens = {name: _token(value) for name, value in item.attributes.items()}
    return found | {_key(name): token for name, token in tokens.items() if token is not None}


def entry_of(fields: Mapping[str, Any], score: float) -> VectorEntry:
    """The entry of the fields that fields_of() made."""
    written = fields[_ATTRIBUTES]
    attributes = {} if written == _NO_ATTRIBUTES else attributes_from_json(json.loads(written))
    return VectorEntry(str(fields[ID]), fields.get(SESSION), attributes, round(min(1.0, max(-1.0, score)), _DIGITS))


def wanted_by(scope: Scope, where: Filter | None) -> list[Wanted]:
    """The conditions for an engine: as much of a filter as engines understand."""
    session = [] if scope.session_id is None else [Wanted(SESSION, (scope.session_id,))]
    return [*session, *_pushed(where)]


async def nearest(
    ask: Callable[[int, Sequence[Wanted]], Awaitable[Found]], scope: Scope, *, limit: int, where: Filter | None
) -> tuple[VectorHit, ...]:
    """The best hits of an engine that gives so many of its nearest entries, nearest first, equal ones in any order.

    It is asked for more until the limit is reached by what fits, and nothing that is left can tie with the last hit.
    """
    if limit < 1:
        raise UsageError(f"limit={limit} asks for nothing; give 1 or more")
    wanted = wanted_by(scope, where)
    if not all(condition.values for condition in wanted):
        return ()
    asked = limit + _MORE_THAN_ASKED
    while True:
        found, is_all = await ask(asked, wanted)
        fit = [entry for entry in found if _sees(scope, entry) and (where is None or where.matches(entry))]
        fit.sort(key=lambda entry: (-entry.score, entry.id))
        if is_all or (len(fit) >= limit and fit[limit - 1].score > found[-1].score):
            return tuple(VectorHit(entry.id, entry.score, entry.attributes) for entry in fit[:limit])
        asked *= _GROWTH


def _sees(scope: Scope, entry: VectorEntry) -> bool:
    return scope.session_id is None or scope.session_id == entry.session_id


def _pushed(where: Filter | None) -> list[Wanted]:
    if isinstance(where, And):
        return [wanted for part in where.filters for wanted in _pushed(part)]
    if not isinstance(where, Eq | In):
        return []
    values = (where.value,) if isinstance(where, Eq) else where.values
    if where.field == ID:
        return [Wanted(ID, tuple(value for value in values if isinstance(value, str)))]
    tokens = [_token(value) for value in values]
    if not where.field.startswith(ATTRIBUTE) or None in tokens:
        return []
    return [Wanted(_key(where.field.removeprefix(ATTRIBUTE)), tuple(token for token in tokens if token is not None))]


def _key(name: str) -> str:
    return f"a_{name.encode().hex()}"


def _token(value: Scalar) -> str | None:
    """A value as text: equal for equal values only; None for None, which is the same as no value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return f"b:{value}"
    if isinstance(value, datetime):
        return f"t:{value.isoformat()}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"s:{value}" if isinstance(value, str) else f"n:{value!r}"


# A folder that one process has for itself, for engines that lose what two write to one folder at a time.


def locked(path: Path, what: str, instead: str) -> TextIO:
    """Lock `what` by the file at `path` until that is closed; refused with its holder, and what to do `instead`."""
    file = path.open("a+", encoding="utf-8")
    try:
        lock_handle(file.fileno(), exclusive=True)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise StoreUnavailable(
            f"{what} is open in process {holder}, and one process may use it at a time; {instead}"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
