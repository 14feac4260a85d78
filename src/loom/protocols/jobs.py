"""Work that memory still has to do, kept beside the records it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from loom.core.checks import as_utc, check_id, check_text
from loom.core.record import Record
from loom.core.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work for one user. `key` is unique among the open jobs of a user: the same work is queued once.

    `payload` is a JSON object. `attempts` counts how often the job was leased.
    """

    id: str
    scope: Scope
    kind: str
    key: str
    run_at: datetime
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    attempts: int = 0

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a job")
        check_id(self.key, f"the key of job {self.id}")
        check_text(self.kind, f"the kind of job {self.id}")
        object.__setattr__(self, "run_at", as_utc(self.run_at, f"run_at of job {self.id}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to do a job until `until`; `token` tells this holder from every earlier and later one."""

    job: Job
    token: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that was given up, and why."""

    job: Job
    reason: str
    at: datetime


@runtime_checkable
class KeepsJobs(Protocol):
    """A memory store that keeps jobs, so that a change and the work it asks for are one transaction.

    Laws:
    - enqueue() and put() in one `write` are durable together, or neither is;
    - a job whose key is open already is not queued again; the count returned leaves it out;
    - lease() with `kinds` gives jobs of these kinds alone, however many others are older; those stay as they are;
    - a job is leased to one holder at a time; after `until` any holder may lease it again, with `attempts` one higher;
    - finish() applies the effects and closes the job in one transaction, and only while the lease is the newest:
      a holder that comes late raises StoreConflict and changes nothing;
    - fail() puts the job back for `retry_at`, or with None makes it a dead letter, which stays until it is dropped;
    - epoch() changes whenever text of the user goes: a record is deleted or forgotten, or gets another text. Given
      `since`, write() and finish() raise StaleWrite and change nothing if the epoch is another one by now, in the
      transaction that would have written: what was prepared from a read never brings back what was removed after it;
    - forget() of a user removes their jobs and dead letters, and a lease on one of them can no longer be finished.
    """

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed; read it before what a write stands on."""
        ...

    async def write(
        self,
        scope: Scope,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Mapping[str, Mapping[str, str]] | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Change records, index keys and queue jobs, all in one transaction; returns how many jobs are new."""
        ...

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
        ...

    async def finish(
        self,
        lease: Lease,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Mapping[str, Mapping[str, str]] | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> None:
        """Apply what the job did and close it."""
        ...

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """The job did not work."""
        ...

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up."""
        ...

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        ...
