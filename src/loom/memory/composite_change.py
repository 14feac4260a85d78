"""One transaction over several stores: its part in each, and how it is undone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from anyio import CancelScope

from loom.core.filter import In
from loom.core.record import Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import (
    FoundBy,
    HandsOver,
    KeepsKeys,
    KeepsVectors,
    MemoryStore,
    Prunes,
    Reembeds,
    Touches,
)
from loom.protocols.whole_store import ListsUsers

_PAGE = 500


@runtime_checkable
class Part(MemoryStore, Prunes, Touches, KeepsVectors, Reembeds, KeepsKeys, HandsOver, ListsUsers, Protocol):
    """A store that can keep a layer: every power but jobs."""


class Location(NamedTuple):
    """A record and the store it is in."""

    store: Part
    record: Record


@dataclass(slots=True)
class Change:
    """The part of one store: deletions, then records, keys and vectors. `leave` goes when all of it is safe."""

    delete: list[str] = field(default_factory=list[str])
    put: list[Record] = field(default_factory=list[Record])
    keys: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    vectors: dict[str, Vector] = field(default_factory=dict[str, Vector])
    leave: list[str] = field(default_factory=list[str])

    def is_empty(self) -> bool:
        """Whether nothing is written."""
        return not (self.delete or self.put or self.keys or self.vectors)

    async def write(self, part: Part, scope: Scope) -> None:
        """Do it, but for what leaves."""
        if self.delete:
            await part.delete(scope, *self.delete)
        if self.put:
            await part.put(scope, *self.put)
        if self.keys:
            await part.put_keys(scope, self.keys)
        if self.vectors:
            await part.put_vectors(scope, self.vectors)

    def ids(self) -> list[str]:
        """The records that write() touches."""
        return list(dict.fromkeys([*self.delete, *(record.id for record in self.put), *self.keys, *self.vectors]))


Changes: TypeAlias = dict[Part, Change]


async def records_in(store: MemoryStore, user: Scope, ids: Iterable[str]) -> dict[str, Record]:
    """Those of these records that a store has."""
    wanted = list(dict.fromkeys(ids))
    found: dict[str, Record] = {}
    for start in range(0, len(wanted), _PAGE):
        page = wanted[start : start + _PAGE]
        records = await store.list(user, where=In("id", tuple(page)), limit=len(page))
        found.update({record.id: record for record in records})
    return found


@asynccontextmanager
async def set_back_on_error(user: Scope, at: Mapping[str, Location], changes: Changes) -> AsyncGenerator[None]:
    """Undo what the body does to these stores if it fails or is cancelled."""
    before: dict[Part, dict[str, FoundBy]] = {}
    for part, change in changes.items():
        old = [id for id in change.ids() if id in at and at[id].store is part]
        before[part] = dict(await part.found_by(user, *old)) if old else {}
    try:
        yield
    except BaseException:
        with CancelScope(shield=True):
            for part, change in changes.items():
                await _set_back(part, user, change, {id: (at[id].record, how) for id, how in before[part].items()})
        raise


async def _set_back(part: Part, user: Scope, change: Change, old: Mapping[str, tuple[Record, FoundBy]]) -> None:
    await part.delete(user, *change.ids())
    was = Change(
        put=[record for record, _ in old.values()],
        keys={id: how.keys for id, (_, how) in old.items() if how.keys},
        vectors={id: how.vector for id, (_, how) in old.items() if how.vector is not None},
    )
    await was.write(part, user)
