"""The open jobs of all users and who holds each."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import TypeAlias

from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.protocols.jobs import DeadLetter, Job, Lease

_Owner: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Held:
    job: Job
    token: str | None = None
    until: datetime | None = None


class JobBook:
    """Keeps jobs until they are finished, given up or forgotten. What one user has open costs no other user time."""

    __slots__ = ("_dead", "_leased", "_open")

    def __init__(self) -> None:
        self._open: dict[_Owner, dict[str, _Held]] = {}
        self._leased: dict[str, _Held] = {}
        self._dead: dict[_Owner, list[DeadLetter]] = {}

    def plan(self, scope: Scope, jobs: Sequence[Job], *, closing: Lease | None = None) -> list[Job]:
        """The jobs of a write that are new; refuses those of somebody else. Nothing is changed yet."""
        if not jobs:
            return []
        ending = self._held(closing) if closing else None
        stays = [held.job for held in self._open.get(_owner(scope), {}).values() if held is not ending]
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
        for job in jobs:
            self._open.setdefault(_owner(job.scope), {})[job.id] = _Held(job)

    def lease(
        self, now: datetime, until: datetime, limit: int, scope: Scope | None, kinds: Sequence[str] | None
    ) -> tuple[Lease, ...]:
        """Take due jobs, oldest first."""
        users = self._open.values() if scope is None else [self._open.get(_owner(scope), {})]
        due = [
            held
            for held in chain.from_iterable(user.values() for user in users)
            if held.job.run_at <= now
            and (held.until is None or held.until <= now)
            and (scope is None or scope.covers(held.job.scope))
            and (kinds is None or held.job.kind in kinds)
        ]
        leases: list[Lease] = []
        for held in sorted(due, key=lambda held: (held.job.run_at, held.job.id))[:limit]:
            self._release(held)
            held.job = replace(held.job, attempts=held.job.attempts + 1)
            held.token, held.until = secrets.token_hex(8), until
            self._leased[held.token] = held
            leases.append(Lease(job=_copied(held.job), token=held.token, until=until))
        return tuple(leases)

    def check(self, lease: Lease) -> None:
        """Refuse a lease that is not the newest of an open job."""
        self._held(lease)

    def close(self, lease: Lease) -> None:
        """The job is done."""
        self._remove(self._held(lease))

    def fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back, or give it up."""
        held = self._held(lease)
        if retry_at is None:
            self._remove(held)
            letter = DeadLetter(job=held.job, reason=reason, at=now)
            self._dead.setdefault(_owner(held.job.scope), []).append(letter)
            return
        self._release(held)
        held.job = replace(held.job, run_at=retry_at)

    def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of the scope that were given up, in that order."""
        letters = self._dead.get(_owner(scope), [])
        return tuple(replace(letter, job=_copied(letter.job)) for letter in letters if scope.covers(letter.job.scope))

    def pending(self, scope: Scope) -> int:
        """How many jobs of the scope are open."""
        return len(self._of(scope))

    def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of the scope, by id."""
        return tuple(sorted((_copied(held.job) for held in self._of(scope)), key=lambda job: job.id))

    def owners(self) -> set[_Owner]:
        """Who has open jobs."""
        return set(self._open)

    def forget(self, scope: Scope) -> tuple[int, int]:
        """Remove the jobs and dead letters of the scope; returns how many of each."""
        gone = self._of(scope)
        for held in gone:
            self._remove(held)
        letters = self._dead.pop(_owner(scope), [])
        kept = [letter for letter in letters if not scope.covers(letter.job.scope)]
        if kept:
            self._dead[_owner(scope)] = kept
        return len(gone), len(letters) - len(kept)

    def _of(self, scope: Scope) -> list[_Held]:
        return [held for held in self._open.get(_owner(scope), {}).values() if scope.covers(held.job.scope)]

    def _held(self, lease: Lease) -> _Held:
        held = self._leased.get(lease.token)
        if held is None:
            raise StoreConflict(
                f"job {lease.job.id} is no longer held under this lease: it was leased again, closed or forgotten; "
                f"drop what you did and lease again"
            )
        return held

    def _release(self, held: _Held) -> None:
        if held.token is not None:
            del self._leased[held.token]
        held.token = held.until = None

    def _remove(self, held: _Held) -> None:
        self._release(held)
        owner = _owner(held.job.scope)
        del self._open[owner][held.job.id]
        if not self._open[owner]:
            del self._open[owner]


def _owner(scope: Scope) -> _Owner:
    return (scope.namespace, scope.user_id)


def _copied(job: Job) -> Job:
    return replace(job, payload=deepcopy(dict(job.payload)))
