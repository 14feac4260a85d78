"""Base of every memory store: public verbs, checks, damage reports, and index differences.

`BaseMemoryStore` is for a backend with an engine of its own. `LocalSearchStore` answers reads from a `UserRecords` in
memory. `SimpleMemoryStore` derives everything from five hooks that load and save a user as a whole.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from loom.core.checks import as_utc, check_id, check_text
from loom.core.clock import Clock, SystemClock
from loom.core.filter import Filter
from loom.core.record import Episode, Fact, Hit, Layer, Receipt, Record, WorkingBlock, joined
from loom.core.scope import Scope
from loom.core.threads import Locks
from loom.errors import EmbedderMismatch, LoomError, StaleWrite, StoreError, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import DeadLetter, Job, Lease, Query, SearchKeys
from loom.stores._record_table import HeldJob, Keys, RecordChange, UserRecords, UserState, copied, copied_job, new_jobs

_T = TypeVar("_T")
Bound: TypeAlias = tuple[str, int]
"""The identity of an embedder and the dimension of its vectors."""
After: TypeAlias = tuple[Scope, str] | None
"""The record behind which a list goes on: its user and its id."""
Owned: TypeAlias = tuple[Scope, Record]
"""A record and its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One transaction on what a user has: deletions first, then records, keys, vectors and jobs.

    `closing` is the lease whose job it finishes; `since` is the epoch that must still be the user's.
    """

    put: Sequence[Record] = ()
    delete: Sequence[str] = ()
    keys: Keys = field(default_factory=dict[str, Mapping[str, str]])
    jobs: Sequence[Job] = ()
    since: str | None = None
    closing: Lease | None = None
    vectors: Mapping[str, Vector] = field(default_factory=dict[str, Vector])
    """Only of stores that have `write_embedded`."""


class Written(NamedTuple):
    """How many records a write deleted, and how many of its jobs are new."""

    deleted: int = 0
    jobs: int = 0


class LeaseRequest(NamedTuple):
    """The jobs to lease: at most `limit` that are due, of one user or of some kinds if given.

    With `in_order`, one of a user at most, and none while an older one of these kinds is leased.
    """

    now: datetime
    until: datetime
    limit: int = 1
    scope: Scope | None = None
    kinds: Sequence[str] | None = None
    in_order: bool = False

    def due_of(self, jobs: Iterable[HeldJob]) -> list[HeldJob]:
        """Those of a user's open jobs that may be leased, the oldest first."""
        ordered = sorted(jobs, key=lambda held: (held.job.run_at, held.job.id))
        if not self.in_order:
            return [held for held in ordered if held.is_due(self.now, self.kinds)]
        for held in ordered:
            if self.kinds is None or held.job.kind in self.kinds:
                if held.is_due(self.now):
                    return [held]
                if held.until is not None and held.until > self.now:
                    return []
        return []


class BaseMemoryStore(ABC):
    """The public verbs of a memory store; a backend gives the hooks, which get checked arguments and times in UTC."""

    _max_kind_bytes: int | None = None
    """The longest kind of a key that the backend can hold."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- reading ------------------------------------------------------------------------------------------

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, or None."""
        return await self._get(scope, id)

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first; the score is the sum of the signals in `why`."""
        return tuple(await self._search(scope, query))

    async def search_hybrid(self, scope: Scope, query: Query, *, near: int) -> tuple[Hit, ...]:
        """The best by the words of a query and the `near` best by its vector."""
        check_hybrid(query, near)
        return tuple(await self._search_apart(scope, query, near))

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, starting after the id `after`."""
        check_limit(limit)
        return tuple(await self._list(scope, where, after, limit))

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        return await self._count(scope, where)

    async def search_keys(self, scope: Scope, *ids: str) -> Mapping[str, SearchKeys]:
        """The keys and the vector of each of these records that is there."""
        return await self._found_by(scope, ids) if ids else {}

    # -- writing ------------------------------------------------------------------------------------------

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        await self._checked_write(scope, Write(put=records))

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        return (await self._write(scope, Write(delete=ids))).deleted

    async def put_keys(self, scope: Scope, keys: Keys) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        await self._checked_write(scope, Write(keys=keys))

    async def write(
        self,
        scope: Scope,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Delete, put, set keys and queue jobs, in this order, all or none; returns how many jobs are new."""
        made = Write(put=put, delete=delete, keys=keys or {}, jobs=jobs, since=since)
        return (await self._checked_write(scope, made)).jobs

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session."""
        receipt = await self._forget(scope)
        return replace(receipt, removed={kind: count for kind, count in receipt.removed.items() if count})

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        if keep is not None and keep < 0:
            raise UsageError(f"keep must be 0 or more, or None for no limit; got keep={keep}")
        before = None if before is None else as_utc(before, "before of a prune")
        return tuple(await self._prune(scope, Layer(layer), keep, before))

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode."""
        for id in ids:
            check_id(id, "an id to touch")
        await self._touch(scope, ids, as_utc(at, "the time of an access"))

    async def _checked_write(self, scope: Scope, write: Write) -> Written:
        for record in write.put:
            check_record(scope, record)
        for id, texts in write.keys.items():
            for kind, text in texts.items():
                check_text(kind, f"the kind of a key of {id}", max_bytes=self._max_kind_bytes)
                check_text(text, f"the key {kind} of {id}", may_be_empty=True)
        for job in write.jobs:
            if not scope.covers(job.scope):
                raise UsageError(f"job {job.id} is for {job.scope}, but the write is for {scope}; use one scope")
        return await self._write(scope, write)

    # -- vectors ------------------------------------------------------------------------------------------

    async def bound(self) -> Bound | None:
        """The embedder of the vectors and their dimension; None before bind()."""
        return await self._bound()

    async def bind(self, identity: str, dimension: int) -> None:
        """Name the embedder that the vectors come from; the same again changes nothing."""
        check_embedder("bind", identity, dimension)
        await self._bind((identity, dimension))

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Remove another embedder's vectors and take this one's from now on; False if it was bound to it already."""
        check_embedder("rebind", identity, dimension)
        return await self._rebind((identity, dimension))

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        await self._put_vectors(scope, dict(vectors))

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records of all users without a vector, by namespace, user and id."""
        check_limit(limit)
        return tuple(await self._unembedded(where, after, limit))

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        return await self._count_unembedded(where)

    # -- jobs ---------------------------------------------------------------------------------------------

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed."""
        return await self._epoch(scope)

    async def lease(
        self,
        *,
        now: datetime,
        until: datetime,
        limit: int = 1,
        scope: Scope | None = None,
        kinds: Sequence[str] | None = None,
        in_order: bool = False,
    ) -> tuple[Lease, ...]:
        """Take jobs that are due, oldest first; only those of one user, or of some kinds, if given.

        With `in_order`, one of a user at most, and none of a user for whom another holder works: what a user said last
        is then not read before what they said first.
        """
        check_limit(limit)
        now, until = as_utc(now, "now of a lease"), as_utc(until, "until of a lease")
        if until <= now:
            raise UsageError(f"lease ends before it starts (now={now}, until={until}); pass a later `until`")
        return tuple(await self._lease(LeaseRequest(now, until, limit, scope, kinds, in_order)))

    async def finish(
        self,
        lease: Lease,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> None:
        """Apply what the job did and close it; a job it queues may have the same key."""
        made = Write(put=put, delete=delete, keys=keys or {}, jobs=jobs, since=since, closing=lease)
        await self._checked_write(lease.job.scope, made)

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back for `retry_at`, or make it a dead letter."""
        retry_at = None if retry_at is None else as_utc(retry_at, "retry_at of a failed job")
        await self._fail(lease, reason, as_utc(now, "now of a failed job"), retry_at)

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up, the earliest first."""
        return tuple(await self._dead_letters(scope))

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id."""
        return tuple(await self._open_jobs(scope))

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        return await self._pending(scope)

    # -- the store ----------------------------------------------------------------------------------------

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users who have something here, by namespace and user, starting after `after`."""
        check_limit(limit)
        return tuple(await self._users(after, limit))

    async def describe(self) -> dict[str, str]:
        """A description of this store and its guarantees, by label."""
        return await self._describe()

    async def aclose(self) -> None:
        """Finish writing and release the store. Closing twice is allowed."""
        await self._close()

    # -- hooks that a backend gives -----------------------------------------------------------------------

    @abstractmethod
    async def _get(self, scope: Scope, id: str) -> Record | None: ...

    @abstractmethod
    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]: ...

    @abstractmethod
    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]: ...

    @abstractmethod
    async def _count(self, scope: Scope, where: Filter | None) -> int: ...

    @abstractmethod
    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, SearchKeys]: ...

    @abstractmethod
    async def _write(self, scope: Scope, write: Write) -> Written: ...

    @abstractmethod
    async def _forget(self, scope: Scope) -> Receipt: ...

    @abstractmethod
    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]: ...

    @abstractmethod
    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None: ...

    @abstractmethod
    async def _bound(self) -> Bound | None: ...

    async def _set_embedder(self, old: Bound | None, new: Bound) -> bool:
        """Bind the store to `new` and remove all vectors; False, with nothing changed, if not bound to `old`."""
        raise NotImplementedError(f"{type(self).__name__} gives neither _set_embedder nor _bind and _rebind")

    @abstractmethod
    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None: ...

    @abstractmethod
    async def _unembedded(self, where: Filter | None, after: After, limit: int | None) -> Collection[Owned]: ...

    @abstractmethod
    async def _epoch(self, scope: Scope) -> str: ...

    @abstractmethod
    async def _lease(self, asked: LeaseRequest) -> Iterable[Lease]: ...

    @abstractmethod
    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None: ...

    @abstractmethod
    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]: ...

    @abstractmethod
    async def _open_jobs(self, scope: Scope) -> Collection[Job]: ...

    @abstractmethod
    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]: ...

    # -- hooks that are derived, for a backend that has nothing better ------------------------------------

    async def _open(self) -> None:
        return

    async def _close(self) -> None:
        return

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        assert query.vector is not None
        by_words = await self.search(scope, replace(query, vector=None))
        by_vector = await self.search(scope, replace(query, text="", limit=near))
        cosines = {hit.item.id: hit.score for hit in by_vector}
        far = await self.search_keys(scope, *(hit.item.id for hit in by_words if hit.item.id not in cosines))
        return joined(by_words, by_vector, cosines | compare(query.vector, far))

    async def _bind(self, wanted: Bound) -> None:
        while (bound := await self._bound()) is None:
            await self._set_embedder(None, wanted)
        check_bound(bound, wanted)

    async def _rebind(self, wanted: Bound) -> bool:
        while (bound := await self._bound()) != wanted:
            if await self._set_embedder(bound, wanted):
                return True
        await self._bind(wanted)
        return False

    async def _count_unembedded(self, where: Filter | None) -> int:
        return len(await self._unembedded(where, None, None))

    async def _pending(self, scope: Scope) -> int:
        return len(await self._open_jobs(scope))

    async def _describe(self) -> dict[str, str]:
        return {"server": type(self).__name__, "embedder": embedder_label(await self._bound())}


class LocalSearchStore(BaseMemoryStore):
    """A store that answers reads from the records of a user in memory, which `_view` brings up to date."""

    @abstractmethod
    async def _view(self, scope: Scope, question: Callable[[UserRecords], _T]) -> _T:
        """The question's answer about the scope's user, as the store is now."""

    async def _get(self, scope: Scope, id: str) -> Record | None:
        return await self._view(scope, lambda user: user.get(scope, id))

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        now = self._clock.now()
        return await self._view(scope, lambda user: user.search(scope, query, now=now))

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        now = self._clock.now()
        return await self._view(scope, lambda user: user.search_hybrid(scope, query, near, now=now))

    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]:
        def page(user: UserRecords) -> list[Record]:
            return [copied(record) for record in user.select(scope, where, after=after or "", limit=limit)]

        return await self._view(scope, page)

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        return await self._view(scope, lambda user: user.count(scope, where))

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, SearchKeys]:
        return await self._view(scope, lambda user: user.search_keys(scope, ids))

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        start = None if after is None else owner(after)
        found = sorted({owner(user) for user in await self._owners()})
        return [Scope(*user) for user in found if start is None or user > start][:limit]

    @abstractmethod
    async def _owners(self) -> Iterable[Scope]:
        """Every user who has something in the store."""

    async def _unembedded(self, where: Filter | None, after: After, limit: int | None) -> Collection[Owned]:
        found: list[Owned] = []
        for scope in sorted(await self._owners(), key=owner):
            if after is not None and owner(scope) < owner(after[0]):
                continue
            start = after[1] if after is not None and owner(scope) == owner(after[0]) else ""
            found += [(scope, copied(record)) for record in await self._without_vector(scope, where, start)]
            if limit is not None and len(found) >= limit:
                break
        return found[:limit]

    async def _without_vector(self, scope: Scope, where: Filter | None, after: str) -> Sequence[Record]:
        def found(user: UserRecords) -> list[Record]:
            return [record for record in user.select(scope, where, after=after) if record.id not in user.vectors]

        return await self._view(scope, found)


@dataclass(frozen=True, slots=True)
class Settings:
    """The state of a store beside its users: its embedder, how many it had before, how many users were forgotten."""

    bound: Bound | None = None
    rebinds: int = 0
    forgotten: int = 0


class SimpleMemoryStore(LocalSearchStore):
    """A memory store with every power, derived from five hooks that load and save a user as a whole.

    Calls about one user take turns within this object. A backend that several processes share needs more than that.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._locks = Locks(fast_acquire=True)  # of users; that of None is of the settings, and taken last

    @abstractmethod
    async def _load(self, user: Scope) -> UserState | None:
        """Everything of a user; None for an unknown one."""

    @abstractmethod
    async def _save(self, user: Scope, state: UserState | None) -> None:
        """Write everything of a user in one step; None removes the user."""

    @abstractmethod
    async def _settings(self) -> Settings:
        """The settings that were saved last; Settings() before that."""

    @abstractmethod
    async def _save_settings(self, settings: Settings) -> None: ...

    async def _apply(self, user: UserRecords, change: RecordChange) -> None:
        user.apply(change)

    @asynccontextmanager
    async def _user(self, scope: Scope, *, saves: bool = False) -> AsyncGenerator[UserState]:
        """The state of a user, in turn with others; saved after the body, unless that raised, if it `saves`."""
        async with self._locks.of(scope.for_user()):
            user = scope if scope.session_id is None else scope.for_user()
            state, settings = await self._load(user) or UserState(), await self._settings()
            if state.vectors_of != settings.rebinds:
                state.records.vectors.clear()
                state.vectors_of = settings.rebinds
            state.records.dimension = None if settings.bound is None else settings.bound[1]
            had_records = bool(state.records.records)
            if not had_records:
                state.records.life = settings.forgotten
            yield state
            if saves:
                await self._keep(user, state, had_records=had_records)

    async def _keep(self, user: Scope, state: UserState, *, had_records: bool) -> None:
        if had_records and not state.records.records:
            # A user who came and went while another call prepared a write is not the user who was never there.
            async with self._locks.of(None):
                settings = await self._settings()
                await self._save_settings(replace(settings, forgotten=settings.forgotten + 1))
            state.records = UserRecords()
        # Nothing of a user who has nothing is kept, their name included.
        is_empty = not (state.records.records or state.jobs or state.dead)
        await self._save(user, None if is_empty else state)

    async def _view(self, scope: Scope, question: Callable[[UserRecords], _T]) -> _T:
        async with self._user(scope) as state:
            return question(state.records)

    async def _epoch(self, scope: Scope) -> str:
        async with self._user(scope) as state:
            return _epoch_of(state)

    async def _write(self, scope: Scope, write: Write) -> Written:
        async with self._user(scope, saves=True) as state:
            closing = None if write.closing is None else state.held(write.closing)
            if write.since is not None and _epoch_of(state) != write.since:
                raise StaleWrite(scope.user_id)
            planned = state.records.plan(scope, put=write.put, delete=write.delete, keys=write.keys)
            still_open = [held.job for held in state.jobs.values() if held is not closing]
            new = new_jobs(write.jobs, {job.key for job in still_open}, {job.id for job in still_open})
            # All of it was checked: nothing from here on is refused, so that it happens as a whole.
            if closing is not None:
                del state.jobs[closing.job.id]
            state.jobs |= {job.id: HeldJob(copied_job(job)) for job in new}
            await self._apply(state.records, planned)
        return Written(len(planned.deleted), len(new))

    async def _forget(self, scope: Scope) -> Receipt:
        async with self._user(scope, saves=True) as state:
            gone = state.records.select(scope, None)
            if scope.session_id is None:
                state.records = UserRecords()  # much quicker than to take every word out of the index
            else:
                gone = [record for record in gone if isinstance(record, Episode)]
                await self._apply(state.records, state.records.plan(scope, delete=[record.id for record in gone]))
            before = len(state.jobs), len(state.dead)
            state.jobs = {id: held for id, held in state.jobs.items() if not scope.covers(held.job.scope)}
            state.dead = [letter for letter in state.dead if not scope.covers(letter.job.scope)]
            jobs, dead = before[0] - len(state.jobs), before[1] - len(state.dead)
        kinds = Counter(record.kind for record in gone)
        return Receipt(removed={**kinds, "job": jobs, "dead_letter": dead})

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        async with self._user(scope, saves=True) as state:
            return state.records.prune(scope, layer, keep=keep, before=before, now=self._clock.now())

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        async with self._user(scope, saves=True) as state:
            state.records.touch(scope, ids, at)

    async def _bound(self) -> Bound | None:
        return (await self._settings()).bound

    async def _set_embedder(self, old: Bound | None, new: Bound) -> bool:
        async with self._locks.of(None):
            settings = await self._settings()
            if settings.bound != old:
                return False
            # Vectors of earlier embedders are no longer read from this moment on; then they are removed.
            await self._save_settings(replace(settings, bound=new, rebinds=settings.rebinds + 1))
        for scope in () if old is None else await self._owners():
            async with self._user(scope, saves=True):
                pass
        return True

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        async with self._user(scope, saves=True) as state:
            state.records.set_vectors(scope, vectors)

    async def _busy(self) -> Iterable[Scope]:
        """Users who may have open jobs."""
        return await self._owners()

    async def _lease(self, asked: LeaseRequest) -> Iterable[Lease]:
        leases: list[Lease] = []
        while len(leases) < asked.limit:
            users = await self._busy() if asked.scope is None else [asked.scope]
            due = [held for user in users for held in asked.due_of(await self._open_of(user))]
            if not due:
                break
            due.sort(key=lambda held: (held.job.run_at, held.job.id))
            for held in due[: asked.limit - len(leases)]:
                async with self._user(held.job.scope, saves=True) as state:
                    if held in asked.due_of(state.jobs.values()):  # otherwise another call was faster
                        state.jobs[held.job.id] = taken = held.taken(asked.until)
                        leases.append(taken.lease())
        return leases

    async def _open_of(self, scope: Scope) -> Sequence[HeldJob]:
        async with self._user(scope) as state:
            return [held for held in state.jobs.values() if scope.covers(held.job.scope)]

    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        async with self._user(lease.job.scope, saves=True) as state:
            job = state.held(lease).job
            if retry_at is None:
                del state.jobs[job.id]
                state.dead.append(DeadLetter(job=job, reason=reason, at=now))
            else:
                state.jobs[job.id] = HeldJob(replace(job, run_at=retry_at))

    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]:
        async with self._user(scope) as state:
            letters = [letter for letter in state.dead if scope.covers(letter.job.scope)]
        return [replace(letter, job=copied_job(letter.job)) for letter in letters]

    async def _open_jobs(self, scope: Scope) -> Collection[Job]:
        found = [copied_job(held.job) for held in await self._open_of(scope)]
        return sorted(found, key=lambda job: job.id)


# -- rules and texts that backends share ------------------------------------------------------------------


def owner(scope: Scope) -> tuple[str, str]:
    """The user of a scope; users are ordered by it."""
    return (scope.namespace, scope.user_id)


def check_record(scope: Scope, record: Record) -> None:
    """Refuse what is not a record, and an episode that the scope would not see."""
    if not isinstance(record, Episode | Fact | WorkingBlock):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{record!r} is not a record; put an Episode, a Fact or a WorkingBlock")
    if isinstance(record, Episode) and scope.session_id not in {None, record.session_id}:
        raise UsageError(
            f"episode {record.id} is of session {record.session_id!r}, but the scope names session "
            f"{scope.session_id!r}; use scope.for_user() or the episode's own session"
        )


def check_hybrid(query: Query, near: int) -> None:
    """Refuse a hybrid search without words, a vector, or a limit for the latter."""
    if query.vector is None or not query.text.strip():
        raise UsageError("search_hybrid() was given no words or no vector; use search()")
    if near < 1:
        raise UsageError(f"near must be at least 1; got near={near}")


def check_limit(limit: int) -> None:
    """Refuse a limit below 1."""
    if limit < 1:
        raise UsageError(f"limit must be at least 1; got limit={limit}")


def check_embedder(call: str, identity: str, dimension: int) -> None:
    """Refuse an embedder without a name or a dimension."""
    if dimension < 1:
        raise UsageError(f"{call}() was given dimension={dimension}; a vector has at least one number")
    check_text(identity, "the identity of an embedder")


def check_bound(bound: Bound | None, wanted: Bound) -> None:
    """Refuse another embedder than the one that the store is bound to, if there is one."""
    if bound is not None and bound != wanted:
        raise EmbedderMismatch(embedder_label(bound), embedder_label(wanted))


def embedder_label(bound: Bound | None) -> str:
    """The embedder of a store, for people."""
    return "none yet: nothing was embedded" if bound is None else f"{bound[0]} ({bound[1]} numbers)"


def compare(vector: Vector, others: Mapping[str, SearchKeys]) -> dict[str, float]:
    """The cosine of each of these to a vector, of those that have one."""
    known = {id: by.vector for id, by in others.items() if by.vector is not None}
    if not known:
        return {}
    import numpy as np  # noqa: PLC0415 - only a search by vector pays for it

    rows = np.stack([np.fromiter(row, np.float64) for row in known.values()])
    asked = np.fromiter(vector, np.float64)
    likeness = np.vecdot(rows, asked) / (np.linalg.norm(rows, axis=1) * np.linalg.norm(asked))
    return dict(zip(known, likeness.round(6).tolist(), strict=True))


def _epoch_of(state: UserState) -> str:
    records = state.records
    return f"{records.life}.{records.removed}" if records.records else f"-{records.life}"


# Errors of stored data that cannot be read.


class DamagedData(StoreError):
    """Stored data was damaged. The store that reads it knows its place: see damage_error()."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; restore it from a copy")
        self.what = what


UNREADABLE: Final = (
    DamagedData,
    UnicodeDecodeError,
    json.JSONDecodeError,
    LookupError,
    struct.error,
    RecursionError,
    MemoryError,
)
"""What reading damaged data ends in, once other errors of Loom are let through, some of which are LookupErrors.

Errors that a wrong call ends in as well are not among them: see reading().
"""


@contextmanager
def reading(what: str, *, but: tuple[type[Exception], ...] = ()) -> Generator[None]:
    """Take every error of the block, which only decodes, for damage of `what`; `but` are errors of a driver."""
    try:
        yield
    except (StoreError, *but):
        raise
    except Exception as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> DamagedData:
    """The damage of `what`, which reading ended in this error."""
    return DamagedData(f"{what} cannot be read ({described(error)})")


def described(error: Exception) -> str:
    """An error in a few words."""
    if isinstance(error, DamagedData):
        return error.what
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    return f"{type(error).__name__}: {error}"


def damage_error(place: str, error: Exception, *, verify: str | None = None) -> StoreError:
    """The error that names the place, what is damaged, and what to do; `verify` is the URL of what can be verified."""
    to_do = f"run `loom store verify {verify} --repair`, or " if verify else ""
    return StoreError(f"{place} is damaged: {described(error)}; {to_do}restore it from a copy")


@contextmanager
def damage_at(place: str, *, verify: str | None = None) -> Generator[None]:
    """Name the place in errors of unreadable data, and what can be verified."""
    try:
        yield
    except DamagedData as error:
        raise damage_error(place, error, verify=verify) from error
    except LoomError:
        raise
    except UNREADABLE as error:
        raise damage_error(place, error, verify=verify) from error


# Locks of files between processes.

_LOCKED_BYTE = 2**30
"""Windows locks bytes, and others cannot read those: one far behind the content is locked."""


def lock_handle(handle: int, *, exclusive: bool) -> None:
    """Lock an open file without waiting; raises BlockingIOError or PermissionError where another process holds it.

    Ends with the file, also when the process is killed. On Windows every lock is exclusive: readers wait for readers.
    """
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - only there

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)


def unlock_handle(handle: int) -> None:
    """End a lock before its file is closed: Windows may take its time for that."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
