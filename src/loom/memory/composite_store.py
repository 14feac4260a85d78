"""A memory store made of several: each layer in its own, and one of them the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import TypeAlias, TypeVar

from loom.core.filter import Filter
from loom.core.hit import Hit, rank_key
from loom.core.record import Episode, Fact, Layer, Receipt, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import StaleWrite, UsageError
from loom.memory import composite_whole
from loom.memory.composite_change import Change, Changes, Part, Placed, Truth, held, set_back_on_error
from loom.memory.locks import Locks
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, KeepsJobs, Lease
from loom.protocols.memory_store import FoundBy, Query, Scrubs, SeesSessions

_T = TypeVar("_T")
_RECORD = Episode | Fact | WorkingBlock
_Keys: TypeAlias = Mapping[str, Mapping[str, str]]
_Commit: TypeAlias = Callable[[Change], Awaitable[_T]]
_BETWEEN = "|"


class CompositeStore:
    """Keeps the live episodes of some layers in stores of their own, and everything else in the truth.

    The truth has the other layers, the archive, facts, blocks and jobs. A record that changes its layer, or is
    archived, moves with its keys and its vector: it is written to the new store, then deleted from the old one. What a
    crash leaves twice is one record all the same: the copy in the truth counts, or else that of the higher layer.

    A write goes to the layers first and to the truth last. If the truth refuses it, the layers are set back; a crash
    in between may leave records of a write that nobody was told about. What was acknowledged is as durable as the
    store of its layer.

    Hits of all stores are ordered by their scores as they are. A store weighs words by its own texts, so a rare word
    counts less in a small store than in a large one; cosines compare exactly.
    """

    def __init__(self, truth: Truth, layers: Mapping[Layer, Part]) -> None:
        if not isinstance(truth, Truth):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{type(truth).__name__} cannot be the truth: that needs every power, jobs too")
        for layer, part in layers.items():
            if not isinstance(part, Part):  # pyright: ignore[reportUnnecessaryIsInstance]
                label = Layer(layer).label
                raise UsageError(f"{type(part).__name__} cannot keep {label}: that needs every power but jobs")
        self._truth = truth
        self._layers: dict[Layer, Part] = {Layer(layer): part for layer, part in layers.items()}
        highest_first = [self._layers[layer] for layer in sorted(self._layers, reverse=True)]
        # The strongest first: of two copies of a record, that in the stronger store counts.
        self._stores: tuple[Part, ...] = tuple(dict.fromkeys([truth, *highest_first]))
        self._locks = Locks()

    # -- reading: the truth comes last, so that what moves up meanwhile is seen there ----------------------

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, None where there is none."""
        found: Record | None = None
        for store in reversed(self._stores):
            found = await store.get(scope.for_user(), id) or found
        return found if found is not None and _sees(scope, found) else None

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits of all stores, best first."""
        found = [hit for place in self._places() for hit in await self._search(place, scope, query)]
        return tuple(sorted(found, key=rank_key)[: query.limit])

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, from behind `after`."""
        found = [record for place in self._places() for record in await self._page(place, scope, where, after, limit)]
        return tuple(sorted(found, key=lambda record: record.id)[:limit])

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        total = 0
        for place in self._places():
            counted = await self._stores[place].count(scope, where=where)
            if place and counted:
                counted = len(await self._page(place, scope, where, None, counted))
            total += counted
        return total

    async def found_by(self, scope: Scope, *ids: str) -> Mapping[str, FoundBy]:
        """The keys and the vector of each of these records that is there."""
        found: dict[str, FoundBy] = {}
        for place in self._places():
            left = await self._left_over(place, scope, ids)
            found.update(await self._stores[place].found_by(scope, *(id for id in ids if id not in left)))
        return found

    async def _search(self, place: int, scope: Scope, query: Query) -> Sequence[Hit]:
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

    async def _unembedded(
        self, place: int, where: Filter | None, after: tuple[Scope, str] | None, limit: int
    ) -> Sequence[tuple[Scope, Record]]:
        shown: list[tuple[Scope, Record]] = []
        while True:
            page = await self._stores[place].unembedded(where=where, after=after, limit=limit)
            for scope, group in groupby(page, key=lambda one: one[0]):
                records = [record for _, record in group]
                left = await self._left_over(place, scope, [record.id for record in records])
                shown += [(scope, record) for record in records if record.id not in left]
            if len(page) < limit or len(shown) >= limit:
                return shown[:limit]
            after = (page[-1][0], page[-1][1].id)

    def _places(self) -> Iterable[int]:
        return reversed(range(len(self._stores)))

    async def _left_over(self, place: int, scope: Scope, ids: Sequence[str]) -> set[str]:
        """Which of the ids that a store has belong to a stronger one."""
        return {id for store in self._stores[:place] for id in await held(store, scope.for_user(), ids)}

    # -- writing ------------------------------------------------------------------------------------------

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        await self.write(scope, put=records)

    async def put_keys(self, scope: Scope, keys: _Keys) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        await self.write(scope, keys=keys)

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed, in any of the stores."""
        return _BETWEEN.join([await store.epoch(scope) for store in self._stores if isinstance(store, KeepsJobs)])

    async def _checked_epoch(self, scope: Scope, since: str | None) -> str | None:
        """The epoch of the truth alone, which its transaction checks again; refuses a write of another epoch."""
        if since is None:
            return None
        if since != await self.epoch(scope):
            raise StaleWrite(scope.user_id)
        return since.partition(_BETWEEN)[0]  # the truth is the first of the stores

    async def write(
        self,
        scope: Scope,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: _Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Delete, put, set keys and queue jobs, in this order, all or none; returns how many jobs are new."""
        async with self._changing(scope):
            now = await self._checked_epoch(scope, since)
            return await self._change(scope, put, delete, keys or {}, self._commit(scope, jobs, now))

    async def finish(
        self,
        lease: Lease,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: _Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> None:
        """Apply what the job did and close it; a job it queues may have the same key."""
        now: str | None = None

        async def commit(change: Change) -> None:
            await self._truth.finish(
                lease, put=change.put, delete=change.delete, keys=change.keys, jobs=jobs, since=now
            )

        async with self._changing(lease.job.scope):
            now = await self._checked_epoch(lease.job.scope, since)
            await self._change(lease.job.scope, put, delete, keys or {}, commit)

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""

        async def commit(_: Change) -> None:
            await self._truth.put_vectors(scope, in_truth)

        async with self._changing(scope):
            at = await self._located(scope, vectors)
            in_truth = {id: vector for id, vector in vectors.items() if self._store_of(at, id) is self._truth}
            changes: Changes = defaultdict(Change)
            for id, vector in vectors.items():
                if id not in in_truth:
                    changes[at[id].store].vectors[id] = vector
            await self._apply(scope, at, changes, commit)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        async with self._changing(scope):
            at = await self._located(scope, ids)
            there = [id for id, placed in at.items() if _sees(scope, placed.record)]
            for store in self._stores:
                await store.delete(scope.for_user(), *(id for id in there if at[id].store is store))
            return len(there)

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session."""
        removed: Counter[str] = Counter()
        pending: list[str] = []
        async with self._changing(scope):
            for store in reversed(self._stores):
                receipt = await store.forget(scope)
                removed.update(receipt.removed)
                pending += receipt.pending
        return Receipt(removed=dict(removed), pending=tuple(pending))

    async def scrub(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted in any store; returns what is pending, in words."""
        return tuple([left for store in self._stores if isinstance(store, Scrubs) for left in await store.scrub()])

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved with the truth, where an agent puts them."""
        return await self._truth.saved_sessions(scope) if isinstance(self._truth, SeesSessions) else 0

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        part = self._layers.get(Layer(layer), self._truth)
        async with self._changing(scope):
            pruned = await part.prune(scope, layer=layer, keep=keep, before=before)
            at = await self._located(scope, pruned)
            here = [id for id in pruned if at[id].store is part]
            if part is not self._truth:
                await self._change(scope, [at[id].record for id in here], (), {}, self._commit(scope))
            return tuple(here)

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode."""
        async with self._changing(scope):
            for store in self._stores:
                await store.touch(scope, *ids, at=at)

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        for store in self._stores:
            await store.bind(identity, dimension)

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        return any([await store.rebind(identity, dimension) for store in self._stores])

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records without a vector, by namespace, user and id."""
        found = [one for place in self._places() for one in await self._unembedded(place, where, after, limit)]
        return tuple(sorted(found, key=lambda one: (one[0].namespace, one[0].user_id, one[1].id))[:limit])

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        total = 0
        for place in self._places():
            counted = await self._stores[place].count_unembedded(where=where)
            if place and counted:
                counted = len(await self._unembedded(place, where, None, counted))
            total += counted
        return total

    # -- as a whole ---------------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, Part]:
        """The stores by what they are for, the truth first."""
        return composite_whole.named_parts(self._truth, self._layers)

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        return await composite_whole.all_users(self._stores, after, limit)

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension; None before bind()."""
        return await self._truth.bound()

    async def describe(self) -> dict[str, str]:
        """What each part says of itself."""
        return await composite_whole.described(self.parts)

    async def aclose(self) -> None:
        """Close all stores. Closing twice is allowed."""
        for store in self._stores:
            await store.aclose()

    # -- jobs, which are the truth's ----------------------------------------------------------------------

    async def lease(
        self,
        *,
        now: datetime,
        until: datetime,
        limit: int = 1,
        scope: Scope | None = None,
        kinds: Sequence[str] | None = None,
    ) -> tuple[Lease, ...]:
        """Take jobs that are due, oldest first; of one user, and of some kinds, only, if these are given."""
        return await self._truth.lease(now=now, until=until, limit=limit, scope=scope, kinds=kinds)

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back for `retry_at`, or make it a dead letter."""
        await self._truth.fail(lease, reason=reason, now=now, retry_at=retry_at)

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up, the earliest first."""
        return await self._truth.dead_letters(scope)

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id."""
        return await self._truth.open_jobs(scope)

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        return await self._truth.pending(scope)

    # -- one change over several stores -------------------------------------------------------------------

    @asynccontextmanager
    async def _changing(self, scope: Scope) -> AsyncGenerator[None]:
        """One change of a user at a time."""
        async with self._locks.of(scope.for_user()):
            yield

    async def _located(self, scope: Scope, ids: Iterable[str]) -> dict[str, Placed]:
        """Where each of these records is; a copy that a crash left in a weaker store is deleted."""
        at: dict[str, Placed] = {}
        wanted = list(ids)
        for store in self._stores:
            found = await held(store, scope.for_user(), wanted)
            if left := [id for id in found if id in at]:
                await store.delete(scope.for_user(), *left)
            at.update({id: Placed(store, record) for id, record in found.items() if id not in at})
        return at

    def _home(self, record: Record) -> Part:
        if isinstance(record, Episode) and record.archived_at is None:
            return self._layers.get(record.layer, self._truth)
        return self._truth

    def _store_of(self, at: Mapping[str, Placed], id: str) -> Part:
        return at[id].store if id in at else self._truth  # which refuses what is nowhere

    def _commit(self, scope: Scope, jobs: Sequence[Job] = (), since: str | None = None) -> _Commit[int]:
        async def commit(change: Change) -> int:
            if change.is_empty() and not jobs and since is None:
                return 0
            return await self._truth.write(
                scope, put=change.put, delete=change.delete, keys=change.keys, jobs=jobs, since=since
            )

        return commit

    async def _change(
        self, scope: Scope, put: Sequence[Record], delete: Sequence[str], keys: _Keys, commit: _Commit[_T]
    ) -> _T:
        """Delete, put and set keys, wherever the records are and belong."""
        last = {record.id: record for record in put if isinstance(record, _RECORD)}  # pyright: ignore[reportUnnecessaryIsInstance]
        at = await self._located(scope, [*delete, *last, *keys])
        gone = [id for id in dict.fromkeys(delete) if id in at and _sees(scope, at[id].record)]
        stays = {id: placed for id, placed in at.items() if id not in gone}
        changes: Changes = defaultdict(Change)
        for id in gone:
            old = at[id].store
            is_replaced = id in last and self._home(last[id]) is old
            (changes[old].delete if is_replaced or old is self._truth else changes[old].leave).append(id)
        for record in put:
            # What is no record goes to the truth, which refuses it.
            changes[self._home(last.get(getattr(record, "id", ""), record))].put.append(record)
        for record in last.values():
            if record.id in stays and stays[record.id].store is not self._home(record):
                await self._move(scope, stays[record.id], record, changes)
        for id, texts in keys.items():
            store = self._home(last[id]) if id in last else self._store_of(stays, id)
            changes[store].keys[id] = {**changes[store].keys.get(id, {}), **texts}
        return await self._apply(scope, at, changes, commit)

    async def _move(self, scope: Scope, old: Placed, record: Record, changes: Changes) -> None:
        """A record changes its store with all that finds it; the vector of another text stays behind."""
        found = (await old.store.found_by(scope.for_user(), record.id))[record.id]
        new = changes[self._home(record)]
        if found.keys:
            new.keys[record.id] = found.keys
        if found.vector is not None and record.text == old.record.text:
            new.vectors[record.id] = found.vector
        changes[old.store].leave.append(record.id)

    async def _apply(self, scope: Scope, at: Mapping[str, Placed], changes: Changes, commit: _Commit[_T]) -> _T:
        user, truth = scope.for_user(), changes.pop(self._truth, Change())
        async with set_back_on_error(user, at, changes):
            for part, change in changes.items():
                await change.write(part, scope)
            done = await commit(truth)
        if truth.vectors:
            await self._truth.put_vectors(scope, truth.vectors)
        for store, change in ((self._truth, truth), *changes.items()):
            if change.leave:
                await store.delete(user, *change.leave)
        return done


def _sees(scope: Scope, record: Record) -> bool:
    """Whether the record lies inside the scope of its user; facts and blocks belong to no session."""
    return scope.session_id is None or not isinstance(record, Episode) or record.session_id == scope.session_id
