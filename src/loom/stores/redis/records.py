"""Transactions on a user's records, and jobs, on a Redis server.

Every value that a plan looked at is sent back with it. The server compares them and does all of it or, where another
writer was faster, nothing; the caller then reads and plans again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from loom.core.record import Episode, Record
from loom.core.scope import Scope
from loom.errors import StaleWrite
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import DeadLetter, Job, Lease
from loom.stores._record_table import HeldJob, RecordChange, UserRecords, lease_lost, new_jobs
from loom.stores._sql import to_micros
from loom.stores.base import LeaseRequest
from loom.stores.redis import schema
from loom.stores.redis.connection import Argument, RedisConnection
from loom.stores.redis.schema import COMMIT, Retention, StoreNames, UserNames, id_bytes
from loom.stores.redis.search import epoch_of, pack_near

DELETED, REPLACED, FORGOTTEN = "deleted", "replaced", "users"
_OF_USER = (DELETED, REPLACED)
"""Fields of a user that change when text is removed; of an unknown user, the forgotten users are counted."""
WORKER = "worker"
"""The field of a user for whom somebody works in order: until when, and the token of the lease."""
TRIES = 1000
"""How often a transaction is planned again before it is given up."""


class Transaction:
    """Reads of one user's hashes, and the commands that follow from them. One that `is_outdated` is not committed."""

    def __init__(self, link: RedisConnection, store: StoreNames, scope: Scope, retention: Retention) -> None:
        self.store, self.user, self._retention = store, store.user(scope), retention
        self._link, self._scope = link, scope
        self._checks: dict[tuple[str, bytes], bytes | None] = {}
        self._changed: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._commands: list[tuple[Argument, ...]] = []
        self.is_outdated = False
        self.is_first = False
        """Whether it is the first try: what was read earlier may do, as the server compares it."""

    async def read(self, *wanted: tuple[str, Iterable[str]]) -> list[dict[str, bytes]]:
        """The fields of hashes that are there, one mapping for each hash; the change depends on all of them."""
        asked = [(key, list(dict.fromkeys(fields))) for key, fields in wanted]
        commands = [("HMGET", key, *map(id_bytes, fields)) for key, fields in asked if fields]
        answers = iter(await self._link.calls(commands) if commands else [])
        found: list[dict[str, bytes]] = []
        for key, fields in asked:
            values: dict[str, bytes | None] = dict(zip(fields, next(answers), strict=True)) if fields else {}
            self._checks |= {(key, id_bytes(field)): value for field, value in values.items()}
            found.append({field: value for field, value in values.items() if value is not None})
        return found

    async def records(self, ids: Iterable[str], *, with_keys: bool = True) -> UserRecords:
        """These records of the user and their keys, to plan with; expired ones are left out."""
        wanted = list(ids)
        found, keys = await self.read((self.user.records, wanted), (self.user.keys, wanted if with_keys else ()))
        records = {id: schema.unpack_record(data) for id, data in found.items()}
        over = set(self._retention.over(records.values()))
        return UserRecords(
            records={id: record for id, record in records.items() if id not in over},
            keys={id: schema.unpack_keys(data) for id, data in keys.items() if id not in over},
        )

    async def epoch(self) -> str:
        """A token that changes whenever text of the user is removed; the transaction depends on it."""
        user, others = await self.read((self.user.meta, _OF_USER), (self.store.forgotten, [FORGOTTEN]))
        if DELETED in user:
            del self._checks[self.store.forgotten, id_bytes(FORGOTTEN)]
        return epoch_of(user.get(DELETED), user.get(REPLACED), others.get(FORGOTTEN))

    async def check_epoch(self, since: str | None) -> None:
        """Refuse a change that was prepared before text of its user was removed."""
        if since is not None and await self.epoch() != since:
            raise StaleWrite(self._scope.user_id)

    def depends_on(self, key: str, field: str, value: bytes | None) -> None:
        """Make the change only if the field has this value; None: only if it is not there."""
        self._checks[key, id_bytes(field)] = value

    def apply(self, user: UserRecords, change: RecordChange) -> None:
        """Write what was planned for these records."""
        for id in change.deleted - change.records.keys():
            self._remove(id)
        for id, record in change.records.items():
            self.set_record(record, old=user.records.get(id))
            if id in change.deleted:
                self.do("HDEL", self.user.keys, id)
                self._drop_vector(id)
                self._replace_text()
        for id, texts in change.keys.items():
            before = {} if id in change.deleted else user.keys.get(id, {})
            kept = {kind: text for kind, text in {**before, **texts}.items() if text.strip()}
            self._note(id)
            if any(text not in kept.get(kind, "") for kind, text in before.items()):
                self.do("DEL", self.user.snapshot)  # nothing else has that text any more
            if kept:
                self.do("HSET", self.user.keys, id, schema.pack_keys(kept))
            else:
                self.do("HDEL", self.user.keys, id)

    def set_record(self, record: Record, *, old: Record | None) -> None:
        """Write a record; the vector of another text would find it for words it no longer says."""
        self._note(record.id)
        self.do("HSET", self.user.records, record.id, schema.pack_record(record))
        end = self._retention.end_of(record)
        self.do(*(("ZREM", self.user.ends) if end is None else ("ZADD", self.user.ends, end)), record.id)
        if old is not None and old.text != record.text:
            self._drop_vector(record.id)
            self._replace_text()
        elif old is not None and not _holds_all_of(record, old):
            self.do("DEL", self.user.snapshot)  # nothing else has what was taken back any more

    def set_vectors(self, vectors: Mapping[str, Vector]) -> None:
        """Write vectors."""
        for id, vector in vectors.items():
            self._note(id)
            self.do("HSET", self.user.vectors, id, schema.pack_vector(vector))
            if self._link.has_search and self._retention.is_unlimited:
                self.do("HSET", self.user.near(id), "u", self.user.digest, "v", pack_near(vector))

    def do(self, *command: Argument) -> None:
        """Run this command with the change."""
        self._commands.append(command)

    async def commit(self) -> bool:
        """Make the change; False, and nothing is changed, if a value that was read has changed."""
        if self.is_outdated:
            return False
        if not self._commands:
            # Nothing to write, because of what is there: that must be as safe as if it had been written now.
            await self._link.confirm(self.user.meta)
            return True
        user, store = self.user, self.store
        now = self._retention.now()
        arguments: list[Argument] = [user.digest, schema.pack_owner(self._scope), now, user.near(""), len(self._checks)]
        for (key, field), value in self._checks.items():
            arguments += [key, field, b"-" if value is None else b"=" + value]
        for ids in (self._changed, self._removed):
            arguments += [len(ids), *ids]
        for command in self._commands:
            arguments += [len(command), *command]
        return bool(
            await self._link.change(COMMIT, (store.version, store.users, store.forgotten, *user.all), arguments)
        )

    def _remove(self, id: str) -> None:
        self._removed[id_bytes(id)] = None
        for key in (self.user.records, self.user.keys):
            self.do("HDEL", key, id)
        self._drop_vector(id)
        self.do("ZREM", self.user.ends, id)

    def _drop_vector(self, id: str) -> None:
        self.do("HDEL", self.user.vectors, id)
        if self._link.has_search:
            self.do("DEL", self.user.near(id))

    def _replace_text(self) -> None:
        """Leave nothing of a text that another one replaces, and say that there was one."""
        self.do("HINCRBY", self.user.meta, REPLACED, 1)
        self.do("DEL", self.user.snapshot)

    def _note(self, id: str) -> None:
        self._changed[id_bytes(id)] = None


def _holds_all_of(record: Record, old: Record) -> bool:
    """Whether nothing that was said about a record, beside its text, is left out of the new one."""
    if not isinstance(old, Episode) or not isinstance(record, Episode):
        return True
    return old.attributes.items() <= record.attributes.items() and old.speaker in (None, record.speaker)


# The jobs of all users: who holds each, and which were given up.

_PAGE = 100
"""Jobs of all kinds that are read at once where only some kinds are looked for."""
_NEXT_PAGE, _FARTHEST = 1000, 20_000
"""Jobs that are looked at for users who wait behind one with very many, at once and in all."""
_TOGETHER = 64
"""Buckets that are asked at once for the jobs that wait there."""
_MOST_TURNS = 1000
"""Users that a round remembers, at most."""
_REST = 100
"""Jobs that are done before others are looked for again, where there were none."""


async def enqueue(change: Transaction, jobs: Sequence[Job], *, closing: Lease | None) -> int:
    """Queue the jobs whose key is not open yet; returns how many. The job that is closed no longer counts."""
    if not jobs:
        return 0
    user = change.user
    keys, open_jobs = await change.read((user.job_keys, [j.key for j in jobs]), (user.jobs, [j.id for j in jobs]))
    taken, ids = set(keys), set(open_jobs)
    if closing is not None:
        taken.discard(closing.job.key)
        ids.discard(closing.job.id)
    new = new_jobs(jobs, taken, ids)
    for job in new:
        change.do("HSET", user.job_keys, job.key, job.id)
        _set(change, HeldJob(job))
    return len(new)


async def held(change: Transaction, lease: Lease) -> HeldJob:
    """The job of a lease, for which nobody works any more; refuses a lease that is not the newest of an open job."""
    user = change.user
    found, meta = await change.read((user.jobs, [lease.job.id]), (user.meta, [WORKER]))
    data = found.get(lease.job.id)
    job = None if data is None else schema.unpack_job(data)
    if job is None or job.token != lease.token:
        raise lease_lost(lease)
    if meta.get(WORKER, b"").endswith(lease.token.encode()):
        change.do("HDEL", user.meta, WORKER)
    return job


def close(change: Transaction, job: Job) -> None:
    """Remove an open job."""
    user, store = change.user, change.store
    change.do("HDEL", user.jobs, job.id)
    change.do("HDEL", user.job_keys, job.key)
    for queue in (store.due, store.held):
        change.do("ZREM", queue, user.member(job.id))


async def fail(change: Transaction, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
    """Put the job back, or make it a dead letter."""
    job = (await held(change, lease)).job
    if retry_at is None:
        close(change, job)
        change.do("RPUSH", change.user.dead, schema.pack_letter(DeadLetter(job=job, reason=reason, at=now)))
    else:
        _set(change, HeldJob(replace(job, run_at=retry_at)))


class UserTurns:
    """Whose turn it is among the users who have jobs: the next bucket, and those who had theirs.

    A user with very many jobs does not keep the others waiting. To look for others behind all of these takes time;
    where there were none, it is not done again for a while.
    """

    def __init__(self) -> None:
        self.bucket = 0
        self._had: set[str] = set()
        self._rests = 0

    def note(self, digest: str) -> None:
        """A user had their turn."""
        if len(self._had) >= _MOST_TURNS:
            self._had.clear()
        self._had.add(digest)
        self._rests = max(0, self._rests - 1)

    def ordered(self, digests: Iterable[str]) -> list[str]:
        """Users, those first who had no turn."""
        return sorted(digests, key=self._had.__contains__)

    def wants_others(self, digests: Iterable[str]) -> bool:
        """Whether to look for users behind these."""
        return not self._rests and self._had.issuperset(digests)

    def begin_anew(self) -> None:
        """There are no others."""
        self._had.clear()
        self._rests = _REST


@dataclass(frozen=True, slots=True)
class LeaseInOrder:
    """A lease of one due job of each of some users, for none of whom anybody works; buckets and users take turns."""

    link: RedisConnection
    transaction: Callable[[Scope], Transaction]
    asked: LeaseRequest
    turns: UserTurns

    async def take(self, names: StoreNames) -> tuple[Lease, ...]:
        """The leases, at most as many as asked for."""
        scope, buckets, first = self.asked.scope, names.buckets, self.turns.bucket
        if scope is not None:
            user = names.user(scope)
            lease = await self._take_oldest(user, await self.link.call("HKEYS", user.jobs))
            return () if lease is None else (lease,)
        leases: list[Lease] = []
        for place in range(0, len(buckets), _TOGETHER):
            end = min(place + _TOGETHER, len(buckets))
            some = [buckets[(first + number) % len(buckets)] for number in range(place, end)]
            for number, waiting in enumerate(await self._oldest_of_each(some)):
                while waiting and (lease := await self._take_from(some[number], waiting)) is not None:
                    leases.append(lease)
                    if len(leases) == self.asked.limit:
                        self.turns.bucket = first + place + number + 1
                        return tuple(leases)
        return tuple(leases)

    async def _take_from(self, bucket: StoreNames, waiting: list[_WaitingJob]) -> Lease | None:
        """Lease a due job of one user of a bucket, of which the first page of waiting jobs is known."""
        start, page, turns = 0, _PAGE, self.turns
        ids: dict[str, list[str]] = {}
        passed: set[str] = set()
        while True:
            for one in waiting:
                ids.setdefault(one.digest, []).append(one.id)
            is_more = len(waiting) >= page and start < _FARTHEST
            if not is_more and turns.wants_others(ids):
                turns.begin_anew()
            if not is_more or not turns.wants_others(ids):
                for digest in turns.ordered(digest for digest in ids if digest not in passed):
                    lease = await self._take_oldest(bucket.of_digest(digest), ids[digest])
                    if lease is not None:
                        turns.note(digest)
                        return lease
                passed |= ids.keys()
            if not is_more:
                return None
            start, page = start + page, _NEXT_PAGE
            (waiting,) = await self._oldest_of_each([bucket], start, page)

    async def _take_oldest(self, user: UserNames, ids: Sequence[str | bytes]) -> Lease | None:
        """Lease the oldest due one of these jobs of a user; None if there is none, or somebody works for the user."""
        asked = self.asked
        for start in range(0, len(ids), _PAGE):
            commands = [("HGET", user.meta, WORKER), ("HMGET", user.jobs, *ids[start : start + _PAGE])]
            worker, found = await self.link.calls(commands)
            if worker is not None and int(worker.partition(b".")[0]) > to_micros(asked.now):
                return None
            for data, job in _oldest_first(_unpacked(data for data in found if data is not None), asked):
                if asked.scope is None or asked.scope.covers(job.job.scope):
                    change, taken = self.transaction(job.job.scope), job.taken(asked.until)
                    change.depends_on(user.jobs, job.job.id, data)
                    change.depends_on(user.meta, WORKER, worker)
                    _set(change, taken)
                    change.do("HSET", user.meta, WORKER, f"{to_micros(asked.until)}.{taken.token}")
                    return taken.lease() if await change.commit() else None
        return None

    async def _oldest_of_each(
        self, buckets: Sequence[StoreNames], start: int = 0, page: int = _PAGE
    ) -> list[list[_WaitingJob]]:
        """Of each bucket a page of the jobs that are free, and of those whose lease ran out."""
        which = ("-inf", to_micros(self.asked.now), "WITHSCORES", "LIMIT", start, page)
        answers: list[list[bytes]] = await self.link.calls(
            [("ZRANGEBYSCORE", queue, *which) for bucket in buckets for queue in (bucket.due, bucket.held)]
        )
        both = zip(answers[::2], answers[1::2], strict=True)
        return [_named((bucket, bucket), queues) for bucket, queues in zip(buckets, both, strict=True)]


async def take(
    link: RedisConnection, names: StoreNames, transaction: Callable[[Scope], Transaction], asked: LeaseRequest
) -> tuple[Lease, ...]:
    """Lease jobs that are due, oldest first."""
    leases: list[Lease] = []
    for _ in range(TRIES):
        candidates = await _due(link, names, asked)
        if not candidates or len(leases) == asked.limit:
            break
        for data, job in candidates[: asked.limit - len(leases)]:
            change, taken = transaction(job.job.scope), job.taken(asked.until)
            change.depends_on(change.user.jobs, job.job.id, data)
            _set(change, taken)
            if await change.commit():  # otherwise another worker was faster
                leases.append(taken.lease())
    return tuple(leases)


async def letters(link: RedisConnection, user: UserNames, scope: Scope) -> list[tuple[bytes, DeadLetter]]:
    """The jobs of the scope that were given up, in that order, each with what is stored."""
    found = [(data, schema.unpack_letter(data)) for data in await link.call("LRANGE", user.dead, 0, -1)]
    return [(data, letter) for data, letter in found if scope.covers(letter.job.scope)]


async def of_scope(link: RedisConnection, user: UserNames, scope: Scope) -> list[tuple[bytes, HeldJob]]:
    """The open jobs of the scope, each with what is stored."""
    found = _unpacked(await link.call("HVALS", user.jobs))
    return [(data, job) for data, job in found if scope.covers(job.job.scope)]


async def _due(link: RedisConnection, names: StoreNames, asked: LeaseRequest) -> list[tuple[bytes, HeldJob]]:
    """The first jobs that are free, and those whose lease ran out; none only if none are left."""
    if asked.scope is not None:
        return _oldest_first(await of_scope(link, names.user(asked.scope), asked.scope), asked)
    start, page = 0, asked.limit if asked.kinds is None else max(asked.limit, _PAGE)
    due: dict[tuple[Scope, str], tuple[bytes, HeldJob]] = {}
    seen: list[_WaitingJob] = []
    while True:
        free, late, is_more = await _waiting(link, names.buckets, to_micros(asked.now), start, page)
        # Each bucket may have a page of them, and the oldest of all come first.
        named = [*(free[:page] if asked.kinds is None else free), *late]
        found = await link.calls([("HGET", one.key, one.id) for one in named]) if named else []
        jobs = _oldest_first(_unpacked(data for data in found if data is not None), asked)
        due |= {(job.job.scope, job.job.id): (data, job) for data, job in jobs}
        if asked.kinds is not None and len(due) < asked.limit and is_more:
            start += page  # jobs of other kinds may stand before those that are looked for
            continue
        # Others may have taken all that was named before it was read: then the next ones are asked for.
        if due or named == seen:
            return _oldest_first(list(due.values()), asked)
        seen = named


class _WaitingJob(NamedTuple):
    """A job that waits: since when, its name among those of all users, and where it is stored."""

    since: float
    member: bytes
    key: str
    id: str
    digest: str


async def _waiting(
    link: RedisConnection, buckets: Sequence[StoreNames], end: int, start: int, page: int
) -> tuple[list[_WaitingJob], list[_WaitingJob], bool]:
    """Of each bucket a page of the jobs that are free, and all whose lease ran out; and whether more are free."""
    # Scores are floats, exact to the year 2255; what is read is compared once more in full.
    asked = ("-inf", end, "WITHSCORES")
    commands: list[tuple[Argument, ...]] = [
        *(("ZRANGEBYSCORE", bucket.due, *asked, "LIMIT", start, page) for bucket in buckets),
        *(("ZRANGEBYSCORE", bucket.held, *asked) for bucket in buckets),
    ]
    answers: list[list[bytes]] = await link.calls(commands)
    free, late = answers[: len(buckets)], answers[len(buckets) :]
    return _named(buckets, free), _named(buckets, late), any(len(found) == 2 * page for found in free)


def _named(buckets: Sequence[StoreNames], found: Sequence[Sequence[bytes]]) -> list[_WaitingJob]:
    """The jobs of all buckets, those that have waited for longest first."""
    named: list[_WaitingJob] = []
    for bucket, members in zip(buckets, found, strict=True):
        for member, since in zip(members[::2], members[1::2], strict=True):
            id, digest = schema.of_member(member.decode())
            named.append(_WaitingJob(float(since), member, bucket.of_digest(digest).jobs, id, digest))
    return sorted(named)


def _unpacked(found: Iterable[bytes]) -> list[tuple[bytes, HeldJob]]:
    return [(data, schema.unpack_job(data)) for data in found]


def _oldest_first(found: list[tuple[bytes, HeldJob]], asked: LeaseRequest) -> list[tuple[bytes, HeldJob]]:
    due = [(data, job) for data, job in found if job.is_due(asked.now, asked.kinds)]
    return sorted(due, key=lambda one: (one[1].job.run_at, one[1].job.id))


def _set(change: Transaction, held: HeldJob) -> None:
    """Write an open job, and put it where it waits: for its time, or for the end of a lease."""
    user, store = change.user, change.store
    member = user.member(held.job.id)
    change.do("HSET", user.jobs, held.job.id, schema.pack_job(held))
    waits, leaves = (store.due, store.held) if held.until is None else (store.held, store.due)
    change.do("ZREM", leaves, member)
    change.do("ZADD", waits, to_micros(held.until or held.job.run_at), member)
