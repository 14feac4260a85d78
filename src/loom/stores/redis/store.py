"""A memory store on a Redis server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Self

from loom.core.checks import as_utc, check_text
from loom.core.clock import Clock, SystemClock
from loom.core.filter import Filter, In
from loom.core.hit import Hit, joined
from loom.core.record import Episode, Fact, Layer, Receipt, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, StoreConflict, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.protocols.memory_store import FoundBy, Query
from loom.stores import index_search
from loom.stores.inmemory.shelf import Keys, Shelf, copied, sees, unit_vector
from loom.stores.record_rules import check_embedder, check_keep, check_limit, lease_times, vector_apart
from loom.stores.redis import describing, forgetting, reembed
from loom.stores.redis import jobs as job_rows
from loom.stores.redis.change import TRIES, Transaction
from loom.stores.redis.codec import Binding, id_bytes, unpack_keys, unpack_record, unpack_vector
from loom.stores.redis.link import Guarantees, Link
from loom.stores.redis.names import StoreNames
from loom.stores.redis.near import Near
from loom.stores.redis.options import Ttl
from loom.stores.redis.replica import Replica, Replicas
from loom.stores.redis.retention import Retention


class RedisStore:
    """Keeps records, vectors, keys and jobs on a Redis server, with every optional power of a store.

    Redis holds the truth, and every change is one step there, made only if what it was planned on still holds: tasks,
    threads and processes may share a server. Searches run here, on copies of users that are brought up to date before
    each use; they hold up to `cached_records` records together. Where the server has RediSearch, it keeps and searches
    the vectors, unless there is a `ttl`. All keys start with `prefix`, so that several stores
    can share a database. Redis Cluster is not supported.

    Connected at the first use, or by `async with`. Of a server that forgets at a restart or drops records when it is
    full, `notes` says so after the first call; with `durable=True` it is refused. guarantees() tells what holds. No
    call waits for an answer longer than `timeout` seconds.

    With `ttl`, episodes do not stay for ever: `timedelta(days=30)` ends all of them so long after they were recorded,
    and `{Layer.L2: timedelta(hours=48)}` live ones of L2, as Retention says. Beside a truth, as a store of hot layers,
    give more than the layer's own retention, after which metabolism archives an episode and so moves it to the truth:
    an episode that nobody has moved when its time is over is gone. The URL may say both as well:
    `redis://HOST:6379/0?durable=true&ttl=30d&ttl_l2=2d`.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        prefix: str = "loom",
        durable: bool | None = None,
        timeout: float = 10.0,
        cached_records: int = 100_000,
        ttl: Ttl | None = None,
    ) -> None:
        check_text(prefix, "the prefix of a Redis store")
        self._clock = clock or SystemClock()
        self._names = StoreNames(prefix)
        self._link = Link(url, durable=durable, format_key=self._names.format, timeout=timeout)
        self._retention = Retention(self._link.said.ttl if ttl is None else ttl, self._clock)
        self._near = Near(self._link, self._names, self._retention)
        self._replicas = Replicas(self._link, self._names, self._retention, max_records=cached_records)

    async def __aenter__(self) -> Self:
        await self._link.guarantees()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def guarantees(self) -> Guarantees:
        """What the server promises for what was acknowledged, as it is set up now."""
        return await self._link.guarantees()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of what the server guarantees; nothing before the first call."""
        return self._link.notes

    async def describe(self) -> dict[str, str]:
        """What the store is and what it guarantees, by label: durability, isolation, index and more."""
        is_near = await self._near.is_used()
        return await describing.labels(self._link, self._names, self._retention, is_near=is_near)

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        await self.write(scope, put=records)

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, None where there is none."""
        data: bytes | None = await self._link.call("HGET", self._names.user(scope).records, id_bytes(id))
        record = None if data is None else unpack_record(data)
        return record if record is not None and self._shows(scope, record) else None

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first; the score is the sum of the signals in `why`."""
        if query.vector is not None and await self._near.is_used():
            unit = await self._unit(query.vector)
            return await index_search.search(self, self._near, scope, query, unit)
        now = self._clock.now()

        def found(replica: Replica) -> tuple[Hit, ...]:
            vector = None
            if query.vector is not None:
                vector = unit_vector(query.vector, _dimension(replica.binding), "the vector of a query")
            return tuple(replica.shelf.search(scope, query, now=now, vector=vector))

        return await self._replicas.ask(scope, found)

    async def search_apart(self, scope: Scope, query: Query, *, near: int) -> tuple[Hit, ...]:
        """The best by the words of a query and the `near` best by its vector."""
        vector, now = vector_apart(query, near), self._clock.now()
        if await self._near.is_used():
            unit = await self._unit(vector)
            return await index_search.search_apart(self, self._near, scope, query, unit, near=near)

        def found(replica: Replica) -> tuple[Hit, ...]:
            unit = unit_vector(vector, _dimension(replica.binding), "the vector of a query")
            return tuple(replica.shelf.search_apart(scope, query, near=near, now=now, vector=unit))

        return await self._replicas.ask(scope, found)

    async def search_beside(self, scope: Scope, query: Query, nearest: Mapping[str, float]) -> tuple[Hit, ...]:
        """The best by the words of a query, and those of `nearest`, with their cosines, that it may show."""
        now = self._clock.now()

        def found(replica: Replica) -> tuple[Sequence[Hit], Sequence[Hit]]:
            return replica.shelf.beside(scope, query, nearest, now=now)

        by_words, by_vector = await self._replicas.ask(scope, found)
        others = tuple(hit.item.id for hit in by_words if hit.item.id not in nearest)
        cosines = dict(nearest)
        if others and query.vector is not None:
            near = await self._near.search(scope, query.vector, limit=len(others), where=In("id", others))
            cosines |= {hit.id: hit.score for hit in near}
        said = {hit.item.id for hit in by_words}
        return tuple(joined(by_words, [hit for hit in by_vector if hit.item.id not in said], cosines))

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, from behind `after`."""
        check_limit(limit)

        def found(replica: Replica) -> tuple[Record, ...]:
            return tuple(copied(record) for record in replica.shelf.select(scope, where, after=after or "")[:limit])

        return await self._replicas.ask(scope, found)

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        if where is None and scope.session_id is None and self._retention.is_unlimited:
            return int(await self._link.call("HLEN", self._names.user(scope).records))
        return await self._replicas.ask(scope, lambda replica: len(replica.shelf.select(scope, where)))

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        tries = self._tries(scope)
        while True:
            change = next(tries)
            shelf = await change.shelf(ids)
            planned = shelf.plan(scope, delete=ids)
            change.apply(shelf, planned)
            if await change.commit():
                return len(planned.records)

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session."""
        if scope.session_id is None:
            return await forgetting.forget_user(self._link, self._names, scope)
        tries = self._tries(scope)
        while True:
            seen = await self._replicas.ask(scope, lambda replica: replica.shelf.select(scope, None))
            episodes = [record.id for record in seen if isinstance(record, Episode)]
            receipt = await forgetting.forget_session(self._link, next(tries), scope, episodes)
            if receipt is not None:
                return receipt

    async def scrub(self) -> tuple[str, ...]:
        """What the server does in its own time: no bytes of removed records in its files."""
        return (forgetting.FILES,)

    async def sweep(self) -> tuple[str, ...]:
        """Have the server write its files anew, without what was removed; returns what is pending, in words."""
        return await forgetting.sweep(self._link)

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved under the same prefix."""
        return await forgetting.count_sessions(self._link, self._names.prefix, scope)

    async def aclose(self) -> None:
        """Close the connections. Closing twice is allowed."""
        self._replicas.clear()
        await self._link.aclose()

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        check_keep(keep)
        start, now, layer = (
            None if before is None else as_utc(before, "before of a prune"),
            self._clock.now(),
            Layer(layer),
        )

        def archived(replica: Replica) -> dict[str, tuple[Record, Record]]:
            shelf = Shelf(records=dict(replica.shelf.records))
            ids = shelf.prune(scope, layer, keep=keep, before=start, now=now)
            return {id: (replica.shelf.records[id], shelf.records[id]) for id in ids}

        tries = self._tries(scope)
        while True:
            planned = await self._replicas.ask(scope, archived)
            change = next(tries)
            stored = (await change.shelf(planned, with_keys=False)).records
            if any(stored.get(id) != old for id, (old, _) in planned.items()):
                continue
            for old, new in planned.values():
                change.set_record(new, old=old)
            if await change.commit():
                return tuple(planned)

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode."""
        at = as_utc(at, "the time of an access")
        tries = self._tries(scope)
        while True:
            change = next(tries)
            shelf = await change.shelf(ids, with_keys=False)
            before = dict(shelf.records)
            shelf.touch(scope, ids, at)
            for id, record in shelf.records.items():
                if record is not before[id]:
                    change.set_record(record, old=before[id])
            if await change.commit():
                return

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        check_embedder("bind", identity, dimension)
        bound = await reembed.binding(self._link, self._names)
        while bound is None:
            await reembed.bind(self._link, self._names, None, _new_binding(identity, dimension))
            bound = await reembed.binding(self._link, self._names)
        await self._near.prepare(bound.dimension)
        if (bound.identity, bound.dimension) != (identity, dimension):
            pairs = ((bound.identity, bound.dimension), (identity, dimension))
            raise EmbedderMismatch(*(f"{name} ({size} numbers)" for name, size in pairs))

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        tries = self._tries(scope)
        while True:
            bound = await reembed.binding(self._link, self._names)
            size = _dimension(bound)
            units = {id: unit_vector(vector, size, f"the vector of {id}") for id, vector in vectors.items()}
            change = next(tries)
            shelf = await change.shelf(units)
            shelf.check_seen(scope, units)
            change.depends_on(self._names.embedder, reembed.BOUND, bound.packed() if bound else None)
            change.set_vectors(units)
            if await change.commit():
                return

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        check_embedder("rebind", identity, dimension)
        while True:
            bound = await reembed.binding(self._link, self._names)
            if bound is not None and (bound.identity, bound.dimension) == (identity, dimension):
                return False
            if await reembed.bind(self._link, self._names, bound, _new_binding(identity, dimension)):
                if bound is not None and bound.dimension != dimension:
                    await self._near.drop(bound.dimension)
                return True

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records of all users without a vector, by namespace, user and id."""
        check_limit(limit)
        return await reembed.unembedded(self._link, self._names, self._replicas, where=where, after=after, limit=limit)

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        return await reembed.count_unembedded(self._link, self._names, self._replicas, where)

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension; None before bind()."""
        found = await reembed.binding(self._link, self._names)
        return None if found is None else (found.identity, found.dimension)

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        check_limit(limit)
        found = await reembed.all_users(self._link, self._names)
        return tuple([user for user in found if after is None or reembed.owner(user) > reembed.owner(after)][:limit])

    async def put_keys(self, scope: Scope, keys: Keys) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        await self.write(scope, keys=keys)

    async def found_by(self, scope: Scope, *ids: str) -> Mapping[str, FoundBy]:
        """The keys and the vector of each of these records that is there."""
        user = self._names.user(scope)
        fields = [id_bytes(id) for id in ids]
        if not fields:
            return {}
        rows = await self._link.calls([("HMGET", key, *fields) for key in (user.records, user.keys, user.vectors)])
        return {
            id: FoundBy(unpack_keys(keys), None if vector is None else unpack_vector(vector))
            for id, record, keys, vector in zip(ids, *rows, strict=True)
            if record is not None and self._shows(scope, unpack_record(record))
        }

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed."""
        return await Transaction(self._link, self._names, scope, self._retention).epoch()

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
        tries = self._tries(scope)
        while True:
            change = next(tries)
            await change.check_epoch(since)
            await _plan(change, scope, put, delete, keys or {})
            new = await job_rows.enqueue(change, scope, jobs)
            if await change.commit():
                return new

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
        check_limit(limit)
        now, until = lease_times(now, until)
        return await job_rows.take(
            self._link, self._names, self._retention, now=now, until=until, limit=limit, scope=scope, kinds=kinds
        )

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
        scope = lease.job.scope
        tries = self._tries(scope)
        while True:
            change = next(tries)
            job_rows.close(change, (await job_rows.held(change, lease)).job)
            await change.check_epoch(since)
            await _plan(change, scope, put, delete, keys or {})
            await job_rows.enqueue(change, scope, jobs, closing=lease)
            if await change.commit():
                return

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back for `retry_at`, or make it a dead letter."""
        now = as_utc(now, "now of a failed job")
        retry_at = None if retry_at is None else as_utc(retry_at, "retry_at of a failed job")
        tries = self._tries(lease.job.scope)
        while True:
            change = next(tries)
            job = (await job_rows.held(change, lease)).job
            if retry_at is None:
                job_rows.give_up(change, job, reason, now)
            else:
                job_rows.put_back(change, job, retry_at)
            if await change.commit():
                return

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up, the earliest first."""
        return tuple(letter for _, letter in await job_rows.letters(self._link, self._names.user(scope), scope))

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id."""
        found = await job_rows.of_scope(self._link, self._names.user(scope), scope)
        return tuple(sorted((held.job for _, held in found), key=lambda job: job.id))

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        return len(await job_rows.of_scope(self._link, self._names.user(scope), scope))

    async def _unit(self, vector: Vector) -> tuple[float, ...]:
        """The direction of the vector of a query."""
        size = _dimension(await reembed.binding(self._link, self._names))
        return unit_vector(vector, size, "the vector of a query")

    def _shows(self, scope: Scope, record: Record) -> bool:
        return sees(scope, record) and not self._retention.is_over(record)

    def _tries(self, scope: Scope) -> Iterator[Transaction]:
        """A new transaction for each try; each one that fails means that somebody else got on."""
        for _ in range(TRIES):
            yield Transaction(self._link, self._names, scope, self._retention)
        raise StoreConflict(f"others changed what {scope.user_id!r} has {TRIES:,} times under this write; try again")


async def _plan(change: Transaction, scope: Scope, put: Sequence[Record], delete: Sequence[str], keys: Keys) -> None:
    """Add what a write does to records and keys."""
    # What is no record has no id to read; the plan refuses it.
    ids = [record.id for record in put if isinstance(record, Episode | Fact | WorkingBlock)]  # pyright: ignore[reportUnnecessaryIsInstance]
    shelf = await change.shelf([*ids, *delete, *keys])
    change.apply(shelf, shelf.plan(scope, put=put, delete=delete, keys=keys))


def _dimension(bound: Binding | None) -> int:
    if bound is None:
        raise UsageError("nobody said whose vectors these are; call bind(identity, dimension) first")
    return bound.dimension


def _new_binding(identity: str, dimension: int) -> Binding:
    return Binding(identity, dimension, secrets.token_hex(8))
