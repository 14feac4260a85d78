"""The jobs of all users: who holds each, and which were given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from loom.core.scope import Scope
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.stores.redis.change import TRIES, Transaction
from loom.stores.redis.codec import micros, pack_job, pack_letter, unpack_job, unpack_letter
from loom.stores.redis.link import RedisConnection
from loom.stores.redis.names import StoreNames, UserNames, of_member
from loom.stores.user_records import HeldJob, jobs_without, lease_lost

_PAGE = 100
"""Jobs of all kinds that are read at once where only some kinds are looked for."""


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
    new = jobs_without(jobs, taken, ids)
    for job in new:
        change.do("HSET", user.job_keys, job.key, job.id)
        _set(change, HeldJob(job))
    return len(new)


async def held(change: Transaction, lease: Lease) -> HeldJob:
    """The job of a lease; refuses a lease that is not the newest of an open job."""
    (found,) = await change.read((change.user.jobs, [lease.job.id]))
    data = found.get(lease.job.id)
    job = None if data is None else unpack_job(data)
    if job is None or job.token != lease.token:
        raise lease_lost(lease)
    return job


def close(change: Transaction, job: Job) -> None:
    """Remove an open job."""
    user, store = change.user, change.store
    change.do("HDEL", user.jobs, job.id)
    change.do("HDEL", user.job_keys, job.key)
    for queue in (store.due, store.held):
        change.do("ZREM", queue, user.member(job.id))


def give_up(change: Transaction, job: Job, reason: str, at: datetime) -> None:
    """Make the job a dead letter."""
    close(change, job)
    change.do("RPUSH", change.user.dead, pack_letter(DeadLetter(job=job, reason=reason, at=at)))


def put_back(change: Transaction, job: Job, run_at: datetime) -> None:
    """Make the job free from `run_at` on."""
    _set(change, HeldJob(replace(job, run_at=run_at)))


async def take(
    link: RedisConnection,
    names: StoreNames,
    transaction: Callable[[Scope], Transaction],
    *,
    now: datetime,
    until: datetime,
    limit: int,
    scope: Scope | None,
    kinds: Sequence[str] | None,
) -> tuple[Lease, ...]:
    """Lease jobs that are due, oldest first."""
    leases: list[Lease] = []
    for _ in range(TRIES):
        candidates = await (
            _due(link, names, now, limit, kinds) if scope is None else _due_of(link, names, now, scope, kinds)
        )
        if not candidates or len(leases) == limit:
            break
        for data, job in candidates[: limit - len(leases)]:
            leased = await _take_one(transaction(job.job.scope), data, job, until)
            leases += [] if leased is None else [leased]
    return tuple(leases)


async def _take_one(change: Transaction, data: bytes, job: HeldJob, until: datetime) -> Lease | None:
    """Lease one job; None if another worker was faster."""
    change.depends_on(change.user.jobs, job.job.id, data)
    taken = job.taken(until)
    _set(change, taken)
    return taken.lease() if await change.commit() else None


async def letters(link: RedisConnection, user: UserNames, scope: Scope) -> list[tuple[bytes, DeadLetter]]:
    """The jobs of the scope that were given up, in that order, each with what is stored."""
    found = [(data, unpack_letter(data)) for data in await link.call("LRANGE", user.dead, 0, -1)]
    return [(data, letter) for data, letter in found if scope.covers(letter.job.scope)]


async def of_scope(link: RedisConnection, user: UserNames, scope: Scope) -> list[tuple[bytes, HeldJob]]:
    """The open jobs of the scope, each with what is stored."""
    found = _unpacked(await link.call("HVALS", user.jobs))
    return [(data, job) for data, job in found if scope.covers(job.job.scope)]


async def _due_of(
    link: RedisConnection, names: StoreNames, now: datetime, scope: Scope, kinds: Sequence[str] | None
) -> list[tuple[bytes, HeldJob]]:
    return _oldest_first(await of_scope(link, names.user(scope), scope), now, kinds)


async def _due(
    link: RedisConnection, names: StoreNames, now: datetime, limit: int, kinds: Sequence[str] | None
) -> list[tuple[bytes, HeldJob]]:
    """Jobs of all users: the first that are free, and those whose lease ran out; none only if none are left."""
    end, start = micros(now), 0
    page = limit if kinds is None else max(limit, _PAGE)
    due: dict[tuple[Scope, str], tuple[bytes, HeldJob]] = {}
    seen: list[bytes] = []
    while True:
        # Scores are floats, exact to the year 2255; what is read is compared once more in full.
        free, late = await link.calls(
            [
                ("ZRANGEBYSCORE", names.due, "-inf", end, "LIMIT", start, page),
                ("ZRANGEBYSCORE", names.held, "-inf", end),
            ]
        )
        named: list[bytes] = [*free, *late]
        members = [of_member(member.decode()) for member in named]
        found = await link.calls([("HGET", names.of_digest(digest).jobs, id) for id, digest in members])
        jobs = _oldest_first(_unpacked(data for data in found if data is not None), now, kinds)
        due |= {(job.job.scope, job.job.id): (data, job) for data, job in jobs}
        if kinds is not None and len(due) < limit and len(free) == page:
            start += page  # jobs of other kinds may stand before those that are looked for
            continue
        # Others may have taken all that was named before it was read: then the next ones are asked for.
        if due or named == seen:
            return _oldest_first(list(due.values()), now, kinds)
        seen = named


def _unpacked(found: Iterable[bytes]) -> list[tuple[bytes, HeldJob]]:
    return [(data, unpack_job(data)) for data in found]


def _oldest_first(
    found: list[tuple[bytes, HeldJob]], now: datetime, kinds: Sequence[str] | None
) -> list[tuple[bytes, HeldJob]]:
    due = [(data, job) for data, job in found if job.is_due(now, kinds)]
    return sorted(due, key=lambda one: (one[1].job.run_at, one[1].job.id))


def _set(change: Transaction, held: HeldJob) -> None:
    """Write an open job, and put it where it waits: for its time, or for the end of a lease."""
    user, store = change.user, change.store
    member = user.member(held.job.id)
    change.do("HSET", user.jobs, held.job.id, pack_job(held))
    waits, leaves = (store.due, store.held) if held.until is None else (store.held, store.due)
    change.do("ZREM", leaves, member)
    change.do("ZADD", waits, micros(held.until or held.job.run_at), member)
