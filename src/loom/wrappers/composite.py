"""A memory store made of several: each layer in its own, one of them the primary."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from anyio import CancelScope

from loom.core.filter import Filter
from loom.core.record import Episode, Hit, Layer, Receipt, Record, rank_key
from loom.core.scope import Scope
from loom.core.threads import Locks
from loom.errors import StaleWrite, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import (
    Describes,
    ExportsKeys,
    KeepsJobs,
    KeepsKeys,
    KeepsVectors,
    ListsUsers,
    MemoryStore,
    PrimaryStore,
    Prunes,
    Query,
    Reembeds,
    Scrubs,
    SearchKeys,
    Touches,
)
from loom.stores._record_table import sees
from loom.stores.base import After, Bound, Owned, Write, Written, owner
from loom.wrappers.delegating import DelegatingStore, records_in

# One transaction over several stores: its part in each, and how it is undone.


@runtime_checkable
class StorePart(MemoryStore, Prunes, Touches, KeepsVectors, Reembeds, KeepsKeys, ExportsKeys, ListsUsers, Protocol):
    """A store that can keep a layer: every power but jobs."""


class Location(NamedTuple):
    """A record and the store it is in."""

    store: StorePart
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

    async def write(self, part: StorePart, scope: Scope) -> None:
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


Changes: TypeAlias = dict[StorePart, Change]


@asynccontextmanager
async def set_back_on_error(user: Scope, at: Mapping[str, Location], changes: Changes) -> AsyncGenerator[None]:
    """Undo what the body does to these stores if it fails or is cancelled."""
    before: dict[StorePart, dict[str, SearchKeys]] = {}
    for part, change in changes.items():
        old = [id for id in change.ids() if id in at and at[id].store is part]
        before[part] = dict(await part.search_keys(user, *old)) if old else {}
    try:
        yield
    except BaseException:
        with CancelScope(shield=True):
            for part, change in changes.items():
                await _set_back(part, user, change, {id: (at[id].record, how) for id, how in before[part].items()})
        raise


async def _set_back(part: StorePart, user: Scope, change: Change, old: Mapping[str, tuple[Record, SearchKeys]]) -> None:
    await part.delete(user, *change.ids())
    was = Change(
        put=[record for record, _ in old.values()],
        keys={id: how.keys for id, (_, how) in old.items() if how.keys},
        vectors={id: how.vector for id, (_, how) in old.items() if how.vector is not None},
    )
    await was.write(part, user)


_T = TypeVar("_T")
_Commit: TypeAlias = Callable[[Change], Awaitable[_T]]
_BETWEEN = "|"


class CompositeStore(DelegatingStore):
    """Keeps the live episodes of some layers in stores of their own, and everything else in the primary store.

    The primary store has the other layers, the archive, facts, blocks and jobs. A record that changes its layer, or is
    archived, moves with its keys and its vector: it is written to the new store, then deleted from the old one. What a
    crash leaves twice is one record all the same: the primary's copy counts, or else that of the higher layer.

    A write goes to the layers first and to the primary store last. If it refuses, the layers are set back; a crash
    in between may leave records of a write that was never acknowledged. What was acknowledged is as durable as the
    store of its layer.

    Hits of all stores are ordered by their scores as they are. A store weighs words by its own texts, so a rare word
    counts less in a small store than in a large one; cosines compare exactly.
    """

    def __init__(self, primary: PrimaryStore, layers: Mapping[Layer, StorePart]) -> None:
        if not isinstance(primary, PrimaryStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{type(primary).__name__} cannot be the primary store: that needs every power, jobs too")
        for layer, part in layers.items():
            if not isinstance(part, StorePart):  # pyright: ignore[reportUnnecessaryIsInstance]
                label = Layer(layer).label
                raise UsageError(f"{type(part).__name__} cannot keep {label}: that needs every power but jobs")
        super().__init__(primary)
        self._layers: dict[Layer, StorePart] = {Layer(layer): part for layer, part in layers.items()}
        highest_first = [self._layers[layer] for layer in sorted(self._layers, reverse=True)]
        # The strongest first: of two copies of a record, that in the stronger store counts.
        self._stores: tuple[StorePart, ...] = tuple(dict.fromkeys([primary, *highest_first]))
        self._locks = Locks()

    # -- reading: the primary store comes last, so that a record that moves up meanwhile is seen there -------------

    async def _get(self, scope: Scope, id: str) -> Record | None:
        found: Record | None = None
        for store in reversed(self._stores):
            found = await store.get(scope.for_user(), id) or found
        return found if found is not None and sees(scope, found) else None

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        found = [hit for place in self._places() for hit in await self._search_at(place, scope, query)]
        return sorted(found, key=rank_key)[: query.limit]

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        # Over all stores, not the primary store alone.
        return await super(DelegatingStore, self)._search_apart(scope, query, near)

    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]:
        found = [record for place in self._places() for record in await self._page(place, scope, where, after, limit)]
        return sorted(found, key=lambda record: record.id)[:limit]

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        total = 0
        for place in self._places():
            counted = await self._stores[place].count(scope, where=where)
            if place and counted:
                counted = len(await self._page(place, scope, where, None, counted))
            total += counted
        return total

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, SearchKeys]:
        found: dict[str, SearchKeys] = {}
        for place in self._places():
            left = await self._left_over(place, scope, ids)
            found.update(await self._stores[place].search_keys(scope, *(id for id in ids if id not in left)))
        return found

    async def _search_at(self, place: int, scope: Scope, query: Query) -> Sequence[Hit]:
        limit = query.limit
        while True:
            hits = await self._stores[place].search(scope, replace(query, limit=limit))
            left = await self._left_over(place, scope, [hit.item.id for hit in hits])
            shown = [hit for hit in hits if hit.item.id not in left]
            if len(hits) < limit or len(shown) >= query.limit:
                return shown[: query.limit]
            limit *= 2

    async def _page(
        self, place: int, scope: Scope, where: Filter | None, after: str | None, limit: int
    ) -> Sequence[Record]:
        shown: list[Record] = []
        while True:
            page = await self._stores[place].list(scope, where=where, after=after, limit=limit)
            left = await self._left_over(place, scope, [record.id for record in page])
            shown += [record for record in page if record.id not in left]
            if len(page) < limit or len(shown) >= limit:
                return shown[:limit]
            after = page[-1].id

    async def _unembedded_at(
        self, place: int, where: Filter | None, after: After, limit: int | None
    ) -> Sequence[Owned]:
        shown: list[Owned] = []
        while True:
            page = await self._stores[place].unembedded(where=where, after=after, limit=limit or sys.maxsize)
            for scope, group in groupby(page, key=lambda one: one[0]):
                records = [record for _, record in group]
                left = await self._left_over(place, scope, [record.id for record in records])
                shown += [(scope, record) for record in records if record.id not in left]
            if limit is None or len(page) < limit or len(shown) >= limit:
                return shown[:limit]
            after = (page[-1][0], page[-1][1].id)

    def _places(self) -> Iterable[int]:
        return reversed(range(len(self._stores)))

    async def _left_over(self, place: int, scope: Scope, ids: Sequence[str]) -> set[str]:
        """Which of the ids that a store has belong to a stronger one."""
        return {id for store in self._stores[:place] for id in await records_in(store, scope.for_user(), ids)}

    # -- writing ------------------------------------------------------------------------------------------

    async def _epoch(self, scope: Scope) -> str:
        return _BETWEEN.join([await store.epoch(scope) for store in self._stores if isinstance(store, KeepsJobs)])

    async def _checked_epoch(self, scope: Scope, since: str | None) -> str | None:
        """The primary's epoch alone, which its transaction checks again; refuses a write of another epoch."""
        if since is None:
            return None
        if since != await self._epoch(scope):
            raise StaleWrite(scope.user_id)
        return since.partition(_BETWEEN)[0]  # the primary store is the first of the stores

    async def _write(self, scope: Scope, write: Write) -> Written:
        async with self._changing(scope):
            since = await self._checked_epoch(scope, write.since)
            return await self._change(scope, replace(write, since=since))

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        async def commit(_: Change) -> None:
            await self._primary.put_vectors(scope, in_primary)

        async with self._changing(scope):
            at = await self._located(scope, vectors)
            in_primary = {id: vector for id, vector in vectors.items() if self._store_of(at, id) is self._primary}
            changes: Changes = defaultdict(Change)
            for id, vector in vectors.items():
                if id not in in_primary:
                    changes[at[id].store].vectors[id] = vector
            await self._apply(scope, at, changes, commit)

    async def _forget(self, scope: Scope) -> Receipt:
        removed: Counter[str] = Counter()
        pending: list[str] = []
        async with self._changing(scope):
            for store in reversed(self._stores):
                receipt = await store.forget(scope)
                removed.update(receipt.removed)
                pending += receipt.pending
        return Receipt(removed=removed, pending=tuple(pending))

    async def scrub(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted in any store; returns what is pending, in words."""
        return tuple([left for store in self._stores if isinstance(store, Scrubs) for left in await store.scrub()])

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        part = self._layers.get(layer, self._primary)
        async with self._changing(scope):
            pruned = await part.prune(scope, layer=layer, keep=keep, before=before)
            at = await self._located(scope, pruned)
            here = [id for id in pruned if at[id].store is part]
            if part is not self._primary:
                await self._change(scope, Write(put=[at[id].record for id in here]))
            return here

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        async with self._changing(scope):
            for store in self._stores:
                await store.touch(scope, *ids, at=at)

    async def _bind(self, wanted: Bound) -> None:
        for store in self._stores:
            await store.bind(*wanted)

    async def _rebind(self, wanted: Bound) -> bool:
        return any([await store.rebind(*wanted) for store in self._stores])

    async def _unembedded(self, where: Filter | None, after: After, limit: int | None) -> Collection[Owned]:
        found = [one for place in self._places() for one in await self._unembedded_at(place, where, after, limit)]
        return sorted(found, key=lambda one: (*owner(one[0]), one[1].id))[:limit]

    async def _count_unembedded(self, where: Filter | None) -> int:
        return await self._primary.count_unembedded(where=where) + sum(
            [len(await self._unembedded_at(place, where, None, None)) for place in self._places() if place]
        )

    # -- the store ----------------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, StorePart]:
        """The stores by what they are for, the primary first; one that keeps several layers is named by all of them."""
        labels: dict[StorePart, list[str]] = {self._primary: ["primary"]}
        for layer in sorted(self._layers):
            if self._layers[layer] is not self._primary:
                labels.setdefault(self._layers[layer], []).append(layer.label.lower())
        return {"+".join(names): part for part, names in labels.items()}

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        found = {user for store in self._stores for user in await store.users(after=after, limit=limit)}
        return sorted(found, key=owner)[:limit]

    async def _describe(self) -> dict[str, str]:
        return {
            f"{name}.{label}": text
            for name, part in self.parts.items()
            if isinstance(part, Describes)
            for label, text in (await part.describe()).items()
        }

    async def _close(self) -> None:
        for store in self._stores:
            await store.aclose()

    # -- one change over several stores -------------------------------------------------------------------

    @asynccontextmanager
    async def _changing(self, scope: Scope) -> AsyncGenerator[None]:
        """One change of a user at a time."""
        async with self._locks.of(scope.for_user()):
            yield

    async def _located(self, scope: Scope, ids: Iterable[str]) -> dict[str, Location]:
        """Where each of these records is; a copy that a crash left in a weaker store is deleted."""
        at: dict[str, Location] = {}
        wanted = list(ids)
        for store in self._stores:
            found = await records_in(store, scope.for_user(), wanted)
            if left := [id for id in found if id in at]:
                await store.delete(scope.for_user(), *left)
            at.update({id: Location(store, record) for id, record in found.items() if id not in at})
        return at

    def _home(self, record: Record) -> StorePart:
        if isinstance(record, Episode) and record.archived_at is None:
            return self._layers.get(record.layer, self._primary)
        return self._primary

    def _store_of(self, at: Mapping[str, Location], id: str) -> StorePart:
        return at[id].store if id in at else self._primary  # which refuses what is nowhere

    async def _change(self, scope: Scope, write: Write) -> Written:
        """Delete, put and set keys, wherever the records are and belong."""
        last = {record.id: record for record in write.put}
        at = await self._located(scope, [*write.delete, *last, *write.keys])
        gone = [id for id in dict.fromkeys(write.delete) if id in at and sees(scope, at[id].record)]
        stays = {id: location for id, location in at.items() if id not in gone}
        changes: Changes = defaultdict(Change)
        for id in gone:
            old = at[id].store
            is_replaced = id in last and self._home(last[id]) is old
            (changes[old].delete if is_replaced or old is self._primary else changes[old].leave).append(id)
        for record in write.put:
            changes[self._home(last[record.id])].put.append(record)
        for record in last.values():
            if record.id in stays and stays[record.id].store is not self._home(record):
                await self._move(scope, stays[record.id], record, changes)
        for id, texts in write.keys.items():
            store = self._home(last[id]) if id in last else self._store_of(stays, id)
            changes[store].keys[id] = {**changes[store].keys.get(id, {}), **texts}

        async def commit(change: Change) -> int:
            in_primary = replace(write, put=change.put, delete=change.delete, keys=change.keys)
            is_needed = write.closing or write.jobs or write.since is not None or not change.is_empty()
            return (await super(CompositeStore, self)._write(scope, in_primary)).jobs if is_needed else 0

        return Written(len(gone), await self._apply(scope, at, changes, commit))

    async def _move(self, scope: Scope, old: Location, record: Record, changes: Changes) -> None:
        """A record changes its store with all that finds it; the vector of another text stays behind."""
        found = (await old.store.search_keys(scope.for_user(), record.id))[record.id]
        new = changes[self._home(record)]
        if found.keys:
            new.keys[record.id] = found.keys
        if found.vector is not None and record.text == old.record.text:
            new.vectors[record.id] = found.vector
        changes[old.store].leave.append(record.id)

    async def _apply(self, scope: Scope, at: Mapping[str, Location], changes: Changes, commit: _Commit[_T]) -> _T:
        user, primary = scope.for_user(), changes.pop(self._primary, Change())
        async with set_back_on_error(user, at, changes):
            for part, change in changes.items():
                await change.write(part, scope)
            done = await commit(primary)
        if primary.vectors:
            await self._primary.put_vectors(scope, primary.vectors)
        for store, change in ((self._primary, primary), *changes.items()):
            if change.leave:
                await store.delete(user, *change.leave)
        return done


def composed(named: Mapping[Layer, StorePart], *, primary: Any = None) -> CompositeStore:
    """One store of several, by the rule of CompositeMemory; `primary` is that of the highest layer if not given."""
    if not named:
        raise UsageError("no layer was given a store; name at least that of l4")
    primary = named[max(named)] if primary is None else primary  # CompositeStore says so if it cannot be
    store, layers = primary, dict[Layer, StorePart]()
    for layer in sorted(Layer, reverse=True):
        store = layers[layer] = named.get(layer, store)
    return CompositeStore(primary, layers)
