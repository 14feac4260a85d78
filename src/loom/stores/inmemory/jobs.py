"""The open jobs of all users and who holds each."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime

from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.protocols.jobs import DeadLetter, Job, Lease


@dataclass(slots=True)
class _Held:
    job: Job
    token: str | None = None
    until: datetime | None = None


class JobBook:
    """Keeps jobs until they are finished, given up or forgotten."""

    __slots__ = ("_dead", "_open")

    def __init__(self) -> None:
        self._open: list[_Held] = []
        self._dead: list[DeadLetter] = []

    def plan(self, scope: Scope, jobs: Sequence[Job], *, closing: Lease | None = None) -> list[Job]:
        """The jobs of a write that are new; refuses those of somebody else. Nothing is changed yet."""
        ending = self._held(closing) if closing else None
        stays = [held.job for held in self._open if held is not ending and _same_user(held.job.scope, scope)]
        keys, ids = {job.key for job in stays}, {job.id for job in stays}
        new: list[Job] = []
        for job in jobs:
            if not scope.covers(job.scope):
                raise UsageError(f"job {job.id} is for {job.scope}, but the write is for {scope}; use one scope")
            if job.key in keys:
                continue
            if job.id in ids:
                raise UsageError(f"job {job.id} is open already, with another key than {job.key!r}; use a new id")
            keys.add(job.key)
            ids.add(job.id)
            new.append(_copied(job))
        return new

    def add(self, jobs: Sequence[Job]) -> None:
        """Queue what was planned."""
        self._open.extend(_Held(job) for job in jobs)

    def lease(self, now: datetime, until: datetime, limit: int, scope: Scope | None) -> tuple[Lease, ...]:
        """Take due jobs, oldest first."""
        due = [
            held
            for held in self._open
            if held.job.run_at <= now
            and (held.until is None or held.until <= now)
            and (scope is None or scope.covers(held.job.scope))
        ]
        leases: list[Lease] = []
        for held in sorted(due, key=lambda held: (held.job.run_at, held.job.id))[:limit]:
            held.job = replace(held.job, attempts=held.job.attempts + 1)
            held.token, held.until = secrets.token_hex(8), until
            leases.append(Lease(job=_copied(held.job), token=held.token, until=until))
        return tuple(leases)

    def check(self, lease: Lease) -> None:
        """Refuse a lease that is not the newest of an open job."""
        self._held(lease)

    def close(self, lease: Lease) -> None:
        """The job is done."""
        self._open.remove(self._held(lease))

    def fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back, or give it up."""
        held = self._held(lease)
        if retry_at is None:
            self._open.remove(held)
            self._dead.append(DeadLetter(job=held.job, reason=reason, at=now))
            return
        held.job = replace(held.job, run_at=retry_at)
        held.token = held.until = None

    def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of the scope that were given up, in that order."""
        return tuple(replace(d, job=_copied(d.job)) for d in self._dead if scope.covers(d.job.scope))

    def pending(self, scope: Scope) -> int:
        """How many jobs of the scope are open."""
        return sum(scope.covers(held.job.scope) for held in self._open)

    def forget(self, scope: Scope) -> tuple[int, int]:
        """Remove the jobs and dead letters of the scope; returns how many of each."""
        jobs, letters = len(self._open), len(self._dead)
        self._open = [held for held in self._open if not scope.covers(held.job.scope)]
        self._dead = [letter for letter in self._dead if not scope.covers(letter.job.scope)]
        return jobs - len(self._open), letters - len(self._dead)

    def _held(self, lease: Lease) -> _Held:
        for held in self._open:
            if held.token == lease.token:
                return held
        raise StoreConflict(
            f"job {lease.job.id} is no longer held under this lease: it was leased again, closed or forgotten; "
            f"drop what you did and lease again"
        )


def _same_user(one: Scope, other: Scope) -> bool:
    return one.for_user() == other.for_user()


def _copied(job: Job) -> Job:
    return replace(job, payload=deepcopy(dict(job.payload)))
