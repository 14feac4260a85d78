"""Memory store on a Redis server."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import anyio

from loom.core.clock import Clock
from loom.core.filter import Filter, In
from loom.core.record import Episode, Hit, Layer, Passage, Receipt, Record, joined
from loom.core.scope import Scope
from loom.errors import StoreConflict, StoreError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import DeadLetter, HitColumns, Job, Lease, Newest, Query, SearchKeys, Together
from loom.stores import _search as index_search
from loom.stores._record_table import Keys, RecordChange, UserRecords, columns_of, copied, sees, unit_vector
from loom.stores._sql import to_micros
from loom.stores.base import (
    Bound,
    LeaseRequest,
    LocalSearchStore,
    Write,
    Written,
    check_bound,
    check_hybrid,
    embedder_label,
)
from loom.stores.redis import records, schema
from loom.stores.redis.cluster import RedisPlace
from loom.stores.redis.connection import FORMAT, Guarantees, Ttl
from loom.stores.redis.records import TRIES, LeaseInOrder, Transaction, UserTurns
from loom.stores.redis.schema import BIND, FORGET, REBIND, Binding, Retention, StoreNames, id_bytes
from loom.stores.redis.search import EXACT, LocalCopies, RedisVectors, Unbound

BOUND = "bound"
"""The field of the embedder that a store is bound to."""
_ISOLATION = (
    "every user has keys of their own, named by a hash of their scope; the server knows no users of Loom: anyone "
    "who may log in may read everything"
)


def server_labels(found: Guarantees, prefix: str) -> dict[str, str]:
    """The labels that hold for every store on the server."""
    labels = {
        "server": f"Redis {found.version}",
        "schema": f"keys that start with {prefix}:, format {FORMAT}",
        "durability": f"{found} ({_settings(found)})",
        "isolation": _ISOLATION,
    }
    if found.nodes:
        labels["server"] += f", a cluster of {len(found.nodes)} masters"
        labels["nodes"] = "; ".join(
            f"{one.address} with {one.replicas} replicas ({_settings(one)})" for one in found.nodes
        )
    return labels


def _settings(found: Guarantees) -> str:
    known = {"appendfsync": found.appendfsync, "maxmemory-policy": found.eviction}
    settings = [f"appendonly={'yes' if found.appendonly else 'no'}"]
    return ", ".join([*settings, *(f"{name}={value or 'not known'}" for name, value in known.items())])


_COUNTED = ("episode", "fact", "block", "job", "dead_letter")
FILES = (
    "Redis no longer holds any of it, but its files on disk do until they are written anew: run "
    "`loom store sweep URL`, or BGREWRITEAOF; snapshots and copies on other servers follow in their own time"
)
COPIES = "a snapshot or a copy on another server may hold it until the next one is taken; run BGSAVE, or let it run out"
_LOOK_AGAIN = 0.05
_AT_ONCE = 16
"""Buckets that are bound to another embedder at the same time."""


_T = TypeVar("_T")


def _expected(value: bytes | None) -> bytes:
    """What a script compares with, for a value that may be none."""
    return b"-" if value is None else b"=" + value


class RedisStore(LocalSearchStore):
    """Keeps records, vectors, keys and jobs on a Redis server, with every optional power of a store.

    Redis holds the records, and every change is one step there, made only if what it was planned on still holds: tasks,
    threads and processes may share a server. Searches run here, on copies of users that are brought up to date before
    each use; they hold up to `cached_records` records together. A copy of a large user starts from a snapshot on the
    server, unless there is a `ttl`. Where the server has RediSearch, it keeps and searches the vectors, unless there is
    a `ttl`. All keys start with `prefix`, so that several stores can share a database.

    `redis+cluster://HOST:6379,HOST:6379/` is a Redis Cluster, whose first servers are asked for the others. Users are
    spread over buckets, each in one slot; a new store has 256, or as many as `?buckets=` says. A call goes on while a
    slot is moved or a replica takes over, for up to `timeout` seconds, and is done once. With `?wait=1` a write is
    acknowledged when a replica has it, with `?waitaof=1` when it is on the disks of both.

    Connected at the first use, or by `async with`. Of a server that forgets at a restart or drops records when it is
    full, `notes` says so after the first call; with `durable=True` it is refused. guarantees() tells what holds. No
    call waits for an answer longer than `timeout` seconds.

    With `ttl`, episodes do not stay for ever: `timedelta(days=30)` ends all of them so long after they were recorded,
    and `{Layer.L2: timedelta(hours=48)}` live ones of L2, as Retention says. For hot layers beside a primary store,
    give more than the layer's own retention, after which metabolism archives an episode and so moves it there:
    an episode that was not moved before its time is over is gone. The URL may say both as well:
    `redis://HOST:6379/0?durable=true&ttl=30d&ttl_l2=2d`; and `prefix=NAME`, which is `loom` if nobody says otherwise.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        prefix: str | None = None,
        durable: bool | None = None,
        timeout: float = 10.0,
        cached_records: int = 100_000,
        ttl: Ttl | None = None,
    ) -> None:
        super().__init__(clock=clock)
        place = RedisPlace.of(url, prefix)
        self._names = schema.store_names(place.prefix, place.buckets)
        self._link = place.connect(durable=durable, format_key=self._names.format, timeout=timeout)
        self._retention = Retention(self._link.said.ttl if ttl is None else ttl, self._clock)
        self._near = RedisVectors(self._link, self._names, self._retention)
        # The embedder as it was read last, and the one that all buckets are known to have followed: none of them goes
        # back to an earlier one.
        self._seen: Binding | None = None
        self._followed: Binding | None = None
        self._bound_here: Bound | None = None  # the embedder that this object was bound to
        self._turns = UserTurns()
        self._copies = LocalCopies(self._link, self._names, self._retention, max_records=cached_records)

    async def _open(self) -> None:
        await self._link.guarantees()

    async def guarantees(self) -> Guarantees:
        """What the server promises for acknowledged writes, as it is set up now."""
        return await self._link.guarantees()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of what the server guarantees; nothing before the first call."""
        return self._link.notes

    async def _describe(self) -> dict[str, str]:
        users = sum(await self._link.calls([("HLEN", bucket.users) for bucket in self._names.buckets]))
        index, how = "exact", "every text and vector of a user is compared, in this process"
        if self._names.is_spread:
            how += " (RediSearch is not used in a cluster)"
        if await self._near.is_used():
            index = "RediSearch"
            how = f"texts in this process, vectors by RediSearch, which asks its HNSW graph beyond {EXACT:,} of a user"
        return {
            **server_labels(await self._link.guarantees(), self._names.prefix),
            "index": f"{index}: {how}; {users} users",
            "embedder": embedder_label(await self._bound()),
            "retention": str(self._retention),
        }

    async def _view(self, scope: Scope, question: Callable[[UserRecords], _T]) -> _T:
        return (await self._copies.ask(scope, question))[1]

    async def _near_view(self, scope: Scope, question: Callable[[UserRecords], _T]) -> _T:
        """_view() for a question with a vector, which is one of the embedder that this object was bound to."""
        try:
            return (await self._copies.ask(scope, question, expected=self._bound_here))[1]
        except Unbound:
            await self._bind_again()
            return (await self._copies.ask(scope, question, expected=self._bound_here))[1]

    async def read_together(self, scope: Scope, *wheres: Filter | Newest) -> Together:
        """The epoch of the scope's user, and the records that fit each filter."""

        def lists(user: UserRecords) -> list[list[Record]]:
            return [[copied(record) for record in fitting(user, where)] for where in wheres]

        def fitting(user: UserRecords, where: Filter | Newest) -> list[Record]:
            return where.of(user.select(scope, where.where)) if isinstance(where, Newest) else user.select(scope, where)

        return Together(*await self._copies.ask(scope, lists))

    async def _get(self, scope: Scope, id: str) -> Record | None:
        data: bytes | None = await self._link.call("HGET", self._names.user(scope).records, id_bytes(id))
        record = None if data is None else schema.unpack_record(data)
        return record if record is not None and self._shows(scope, record) else None

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        if query.vector is not None and await self._near.is_used():
            unit = await self._unit(query.vector)
            return await index_search.search(self, self._near, scope, query, unit)
        now = self._clock.now()
        if query.vector is None:
            return await self._view(scope, lambda user: user.search(scope, query, now=now))
        return await self._near_view(scope, lambda user: user.search(scope, query, now=now))

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        if query.vector is not None and await self._near.is_used():
            unit = await self._unit(query.vector)
            return await index_search.search_hybrid(self, self._near, scope, query, unit, near=near)
        now = self._clock.now()
        return await self._near_view(scope, lambda user: user.search_hybrid(scope, query, near, now=now))

    async def search_columns(self, scope: Scope, query: Query, *, near: int) -> HitColumns:
        """The hits of search_hybrid(), not read."""
        check_hybrid(query, near)
        if await self._near.is_used():
            hits = await self._search_apart(scope, query, near)
            found = [(hit.item, hit.why) for hit in hits if not isinstance(hit.item, Passage)]
            return columns_of([record for record, _ in found], [why for _, why in found])
        now = self._clock.now()
        return await self._near_view(scope, lambda user: user.search_columns(scope, query, near, now=now))

    async def search_beside(self, scope: Scope, query: Query, nearest: Mapping[str, float]) -> tuple[Hit, ...]:
        """The best by the words of a query, and those of `nearest`, with their cosines, that it may show."""
        now = self._clock.now()
        by_words, by_vector = await self._view(scope, lambda user: user.beside(scope, query, nearest, now=now))
        found = {hit.item.id for hit in by_words}
        others, cosines = tuple(found - nearest.keys()), dict(nearest)
        if others and query.vector is not None:
            near = await self._near.search(scope, query.vector, limit=len(others), where=In("id", others))
            cosines |= {hit.id: hit.score for hit in near}
        return tuple(joined(by_words, [hit for hit in by_vector if hit.item.id not in found], cosines))

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        if where is None and scope.session_id is None and self._retention.is_unlimited:
            return int(await self._link.call("HLEN", self._names.user(scope).records))
        return await super()._count(scope, where)

    async def _forget(self, scope: Scope) -> Receipt:
        removed = await (self._forget_user(scope) if scope.session_id is None else self._forget_session(scope))
        return Receipt(removed=removed, pending=(FILES,) if removed.total() else ())

    async def _forget_user(self, scope: Scope) -> Counter[str]:
        """Remove every key of a user, in one step."""
        names, user = self._names.bucket(scope), self._names.user(scope)
        keys = (names.users, names.due, names.held, names.forgotten, *user.all)
        near = user.near("") if await self._link.searches() else ""
        counts: list[int] = await self._link.change(FORGET, keys, (user.digest, near))
        return Counter(dict(zip(_COUNTED, counts, strict=True)))

    async def _forget_session(self, scope: Scope) -> Counter[str]:
        """Remove the episodes of a session, and its jobs and dead letters."""

        async def plan(change: Transaction) -> Counter[str]:
            seen = await self._view(scope, lambda user: user.select(scope, None))
            ids = [record.id for record in seen if isinstance(record, Episode)]
            user = await change.records(ids)
            planned = user.plan(scope, delete=ids)
            change.apply(user, planned)
            removed = Counter({Episode.kind: len(planned.deleted)})
            for data, held in await records.of_scope(self._link, change.user, scope):
                change.depends_on(change.user.jobs, held.job.id, data)
                records.close(change, held.job)
                removed["job"] += 1
            for data, _ in await records.letters(self._link, change.user, scope):
                change.do("LREM", change.user.dead, 1, data)
                removed["dead_letter"] += 1
            return removed

        return await self._commit(scope, plan)

    async def scrub(self) -> tuple[str, ...]:
        """What the server does in its own time: no bytes of removed records in its files."""
        return (FILES,)

    async def sweep(self) -> tuple[str, ...]:
        """Have the server write its files anew, without removed data; returns what is pending, in words."""
        await self._link.every("BGREWRITEAOF")
        while True:
            states: list[dict[str, object]] = await self._link.every("INFO", "persistence")
            if not any(one.get("aof_rewrite_in_progress") or one.get("aof_rewrite_scheduled") for one in states):
                break
            await anyio.sleep(_LOOK_AGAIN)  # the server does not say when it is done
        if any(one.get("aof_last_bgrewrite_status", "ok") != "ok" for one in states):
            return (FILES,)
        told: list[dict[str, object]] = await self._link.every("INFO", "replication")
        # Of a cluster, the replicas were told to write their files anew as well.
        copies = len(told) == 1 and told[0].get("connected_slaves")
        return (COPIES,) if copies or any(one.get("rdb_saves") for one in states) else ()

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved under the same prefix."""
        names = schema.CheckpointNames(self._names.bucket(scope).prefix)
        sessions = names.user(scope)[schema.USER_KEYS.index("sessions")]
        if scope.session_id is None:
            return int(await self._link.call("ZCARD", sessions))
        return int(await self._link.call("ZSCORE", sessions, schema.session_name(scope)) is not None)

    async def _close(self) -> None:
        self._copies.clear()
        await self._link.aclose()

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        now = self._clock.now()

        def archived(user: UserRecords) -> dict[str, tuple[Record, Record]]:
            after = UserRecords(records=dict(user.records))
            ids = after.prune(scope, layer, keep=keep, before=before, now=now)
            return {id: (user.records[id], after.records[id]) for id in ids}

        async def plan(change: Transaction) -> Iterable[str]:
            planned = await self._view(scope, archived)
            stored = (await change.records(planned, with_keys=False)).records
            change.is_outdated = any(stored.get(id) != old for id, (old, _) in planned.items())
            for old, new in planned.values():
                change.set_record(new, old=old)
            return planned

        return await self._commit(scope, plan)

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        async def plan(change: Transaction) -> None:
            user = await change.records(ids, with_keys=False)
            before = dict(user.records)
            user.touch(scope, ids, at)
            for id, record in user.records.items():
                if record is not before[id]:
                    change.set_record(record, old=before[id])

        await self._commit(scope, plan)

    async def _binding(self, bucket: StoreNames | None = None) -> Binding | None:
        """The embedder of the store. Given a bucket that another one is bound to, that is brought up to date first."""
        if bucket is None or not self._names.is_spread:
            self._seen = Binding.unpacked(await self._link.call("HGET", self._names.embedder, BOUND))
            return self._seen
        while True:
            told = await self._link.calls([("HGET", key, BOUND) for key in (self._names.embedder, bucket.embedder)])
            if told[0] == told[1]:
                return Binding.unpacked(told[0])
            await self._rebind_in(bucket, told[1], told[0])

    async def _bound(self) -> Bound | None:
        found = await self._binding()
        return None if found is None else found.bound

    async def _bind(self, wanted: Bound) -> None:
        if self._bound_here == wanted:  # every call that uses vectors checks that it is still so
            return
        await super()._bind(wanted)
        if self._followed != self._seen:
            await self._follow()
        await self._near.prepare(wanted[1])
        self._bound_here = wanted

    async def _bind_again(self) -> None:
        """Bind a server that lost all it had, and with it what it was bound to: at a restart, or emptied."""
        wanted, self._bound_here = self._bound_here, None
        if wanted is not None:
            await self._bind(wanted)

    async def _set_embedder(self, old: Bound | None, new: Bound) -> bool:
        stored = await self._binding()
        if (None if stored is None else stored.bound) != old:
            return False
        # On a cluster the store as a whole comes first: where this process ends before all buckets have followed, the
        # next one that binds the store goes on.
        before, after = None if stored is None else stored.packed(), Binding(*new, secrets.token_hex(8)).packed()
        if not self._names.is_spread:
            is_done = await self._rebind_in(self._names, before, after)
        else:
            is_done = bool(await self._link.change(BIND, (self._names.embedder,), (_expected(before), after)))
            await self._follow()
        if is_done and old is not None and old[1] != new[1]:
            await self._near.drop(old[1])
        if is_done:
            self._bound_here = None  # bind() makes the rest ready
        return is_done

    async def _rebind_in(self, bucket: StoreNames, before: bytes | None, after: bytes) -> bool:
        """Bind a bucket to another embedder and remove its vectors; False if it is not bound to `before`."""
        near = bucket.near if await self._link.searches() else ""
        nobody = bucket.of_digest("")
        arguments = (_expected(before), after, nobody.vectors, near, nobody.snapshot)
        return bool(await self._link.change(REBIND, (bucket.embedder, bucket.users), arguments))

    async def _follow(self) -> None:
        """Bind every bucket to the embedder of the store, where it is not; on a single server there is none beside."""
        if not self._names.is_spread:
            return
        buckets = self._names.buckets
        target, *held = await self._link.calls(
            [("HGET", names.embedder, BOUND) for names in (self._names, *buckets)],
        )
        behind = [(bucket, before) for bucket, before in zip(buckets, held, strict=True) if before != target]
        failures: list[StoreError] = []

        async def rebind(bucket: StoreNames, before: bytes | None) -> None:
            try:
                await self._rebind_in(bucket, before, target)
            except StoreError as error:
                failures.append(error)

        for start in range(0, len(behind), _AT_ONCE):
            async with anyio.create_task_group() as tasks:
                for bucket, before in behind[start : start + _AT_ONCE]:
                    tasks.start_soon(rebind, bucket, before)
            if failures:
                raise failures[0]
        self._followed = Binding.unpacked(target)

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        await self._write(scope, Write(vectors=vectors))

    async def _set_vectors(
        self, change: Transaction, scope: Scope, user: UserRecords, planned: RecordChange, vectors: Mapping[str, Vector]
    ) -> None:
        """Write vectors of records that are there, or that the change puts; refuses those of another embedder."""
        # The one this object was bound to, as it was read: the server refuses the change where it is another by now.
        bound = self._seen if change.is_first else None
        if bound is None or bound.bound != self._bound_here:
            bound = await self._binding(change.store)
        if bound is None and self._bound_here is not None:
            await self._bind_again()
            bound = await self._binding(change.store)
        if self._bound_here is not None:
            check_bound(None if bound is None else bound.bound, self._bound_here)
        left = {id: record for id, record in user.records.items() if id not in planned.deleted}
        after = UserRecords({**left, **planned.records}, dimension=None if bound is None else bound.dimension)
        change.set_vectors(after.units(scope, vectors))
        change.depends_on(change.store.embedder, BOUND, bound.packed() if bound else None)

    async def _without_vector(self, scope: Scope, where: Filter | None, after: str) -> Sequence[Record]:
        # A local copy has no vectors where the server searches them.
        has_vector = {id.decode() for id in await self._link.call("HKEYS", self._names.user(scope).vectors)}
        found = await self._view(scope, lambda user: user.select(scope, where, after=after))
        return [record for record in found if record.id not in has_vector]

    async def _owners(self) -> Iterable[Scope]:
        found = await self._link.calls([("HVALS", bucket.users) for bucket in self._names.buckets])
        return [schema.unpack_owner(data) for users in found for data in users]

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, SearchKeys]:
        user, fields = self._names.user(scope), [id_bytes(id) for id in ids]
        rows = await self._link.calls([("HMGET", key, *fields) for key in (user.records, user.keys, user.vectors)])
        return {
            id: SearchKeys(schema.unpack_keys(keys), None if vector is None else schema.unpack_vector(vector))
            for id, record, keys, vector in zip(ids, *rows, strict=True)
            if record is not None and self._shows(scope, schema.unpack_record(record))
        }

    async def _epoch(self, scope: Scope) -> str:
        return await self._transaction(scope).epoch()

    async def _write(self, scope: Scope, write: Write) -> Written:
        async def plan(change: Transaction) -> Written:
            if write.closing is not None:
                records.close(change, (await records.held(change, write.closing)).job)
            await change.check_epoch(write.since)
            ids = [*(record.id for record in write.put), *write.delete, *write.keys, *write.vectors]
            user = await change.records(ids)
            planned = user.plan(scope, put=write.put, delete=write.delete, keys=write.keys)
            change.apply(user, planned)
            if write.vectors:
                await self._set_vectors(change, scope, user, planned, write.vectors)
            return Written(len(planned.deleted), await records.enqueue(change, write.jobs, closing=write.closing))

        return await self._commit(scope, plan)

    async def write_embedded(
        self,
        scope: Scope,
        vectors: Mapping[str, Vector],
        *,
        put: Sequence[Record] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Put records, keys, vectors and jobs, all or none; returns how many jobs are new."""
        made = Write(put=put, keys=keys or {}, jobs=jobs, since=since, vectors=vectors)
        return (await self._checked_write(scope, made)).jobs

    async def _lease(self, asked: LeaseRequest) -> Iterable[Lease]:
        if asked.in_order:
            return await LeaseInOrder(self._link, self._transaction, asked, self._turns).take(self._names)
        return await records.take(self._link, self._names, self._transaction, asked)

    async def job_counts(self, *, now: datetime) -> dict[str, int]:
        """How many jobs of all users are due and leased; those that were given up are counted user by user alone."""
        at, keys = to_micros(now), [(bucket.due, bucket.held) for bucket in self._names.buckets]
        due = await self._link.calls([("ZCOUNT", key, "-inf", at) for both in keys for key in both])
        leased = await self._link.calls([("ZCOUNT", held, f"({at}", "+inf") for _, held in keys])
        return {"due": sum(due), "leased": sum(leased)}

    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        await self._commit(lease.job.scope, lambda change: records.fail(change, lease, reason, now, retry_at))

    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]:
        return [letter for _, letter in await records.letters(self._link, self._names.user(scope), scope)]

    async def _open_jobs(self, scope: Scope) -> Collection[Job]:
        found = await records.of_scope(self._link, self._names.user(scope), scope)
        return sorted((held.job for _, held in found), key=lambda job: job.id)

    async def _unit(self, vector: Vector) -> Vector:
        bound = await self._bound()
        if bound is None and self._bound_here is not None:
            await self._bind_again()
            bound = await self._bound()
        if self._bound_here is not None:
            check_bound(bound, self._bound_here)
        return unit_vector(vector, None if bound is None else bound[1], "the vector of a query")

    def _shows(self, scope: Scope, record: Record) -> bool:
        return sees(scope, record) and not self._retention.is_over(record)

    def _transaction(self, scope: Scope) -> Transaction:
        return Transaction(self._link, self._names.bucket(scope), scope, self._retention)

    async def _commit(self, scope: Scope, plan: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """What a plan returns, once its transaction is made; planned again while other writers are faster."""
        for number in range(TRIES):
            change = self._transaction(scope)
            change.is_first = not number
            planned = await plan(change)
            if await change.commit():
                return planned
        raise StoreConflict(f"others changed what {scope.user_id!r} has {TRIES:,} times under this write; try again")
