"""A memory store that hands every call to another: the ground for stores that add something to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, Self, TypeAlias, runtime_checkable

from loom.core.filter import Filter
from loom.core.hit import Hit
from loom.core.record import Layer, Receipt, Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.protocols.memory_store import FoundBy, Prunes, Query, Reembeds, Scrubs, SeesSessions, Touches
from loom.protocols.whole_store import WholeStore

Keys: TypeAlias = Mapping[str, Mapping[str, str]]


@runtime_checkable
class Truth(WholeStore, Prunes, Touches, Reembeds, Protocol):
    """A store that can hold everything: every power, and a list of its users."""


class DelegatingStore:
    """Hands every call to the store below."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        await self._truth.put(scope, *records)

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, None where there is none."""
        return await self._truth.get(scope, id)

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first."""
        return await self._truth.search(scope, query)

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, from behind `after`."""
        return await self._truth.list(scope, where=where, after=after, limit=limit)

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        return await self._truth.count(scope, where=where)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        return await self._truth.delete(scope, *ids)

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session."""
        return await self._truth.forget(scope)

    async def scrub(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted; returns what is pending, in words."""
        return await self._truth.scrub() if isinstance(self._truth, Scrubs) else ()

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same place as the records."""
        return await self._truth.saved_sessions(scope) if isinstance(self._truth, SeesSessions) else 0

    async def aclose(self) -> None:
        """Finish writing and release the store. Closing twice is allowed."""
        await self._truth.aclose()

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        return await self._truth.prune(scope, layer=layer, keep=keep, before=before)

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode."""
        await self._truth.touch(scope, *ids, at=at)

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        await self._truth.bind(identity, dimension)

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        await self._truth.put_vectors(scope, vectors)

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        return await self._truth.rebind(identity, dimension)

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records of all users without a vector, by namespace, user and id."""
        return await self._truth.unembedded(where=where, after=after, limit=limit)

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        return await self._truth.count_unembedded(where=where)

    async def put_keys(self, scope: Scope, keys: Keys) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        await self._truth.put_keys(scope, keys)

    async def found_by(self, scope: Scope, *ids: str) -> Mapping[str, FoundBy]:
        """The keys and the vector of each of these records that is there."""
        return await self._truth.found_by(scope, *ids)

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension; None before bind()."""
        return await self._truth.bound()

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id."""
        return await self._truth.open_jobs(scope)

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        return await self._truth.users(after=after, limit=limit)

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed."""
        return await self._truth.epoch(scope)

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
        return await self._truth.write(scope, put=put, delete=delete, keys=keys, jobs=jobs, since=since)

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
        await self._truth.finish(lease, put=put, delete=delete, keys=keys, jobs=jobs, since=since)

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """Put the job back for `retry_at`, or make it a dead letter."""
        await self._truth.fail(lease, reason=reason, now=now, retry_at=retry_at)

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up, the earliest first."""
        return await self._truth.dead_letters(scope)

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        return await self._truth.pending(scope)
