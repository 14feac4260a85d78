"""A memory store that passes every call to another; the base of wrappers."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from loom.core.clock import Clock
from loom.core.filter import Filter, In
from loom.core.record import Hit, Layer, Receipt, Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import (
    DeadLetter,
    Describes,
    HybridSearch,
    Job,
    Lease,
    MemoryStore,
    PrimaryStore,
    Query,
    Scrubs,
    SearchKeys,
    SeesSessions,
)
from loom.stores.base import After, BaseMemoryStore, Bound, LeaseRequest, Owned, Write, Written

_PAGE = 500


async def records_in(store: MemoryStore, user: Scope, ids: Iterable[str]) -> dict[str, Record]:
    """Those of these records that a store has."""
    wanted = list(dict.fromkeys(ids))
    found: dict[str, Record] = {}
    for start in range(0, len(wanted), _PAGE):
        page = wanted[start : start + _PAGE]
        records = await store.list(user, where=In("id", tuple(page)), limit=len(page))
        found.update({record.id: record for record in records})
    return found


class DelegatingStore(BaseMemoryStore):
    """Hands every call to the store below."""

    def __init__(self, primary: PrimaryStore, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._primary = primary

    async def _get(self, scope: Scope, id: str) -> Record | None:
        return await self._primary.get(scope, id)

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        return await self._primary.search(scope, query)

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        if isinstance(self._primary, HybridSearch):
            return await self._primary.search_hybrid(scope, query, near=near)
        return await super()._search_apart(scope, query, near)

    async def _list(self, scope: Scope, where: Filter | None, after: str | None, limit: int) -> Iterable[Record]:
        return await self._primary.list(scope, where=where, after=after, limit=limit)

    async def _count(self, scope: Scope, where: Filter | None) -> int:
        return await self._primary.count(scope, where=where)

    async def _found_by(self, scope: Scope, ids: Sequence[str]) -> Mapping[str, SearchKeys]:
        return await self._primary.search_keys(scope, *ids)

    async def _write(self, scope: Scope, write: Write) -> Written:
        put, delete, keys, jobs, since = write.put, write.delete, write.keys, write.jobs, write.since
        if write.closing is not None:
            await self._primary.finish(write.closing, put=put, delete=delete, keys=keys, jobs=jobs, since=since)
            return Written()
        if write == Write(delete=delete):
            return Written(deleted=await self._primary.delete(scope, *delete))
        return Written(jobs=await self._primary.write(scope, put=put, delete=delete, keys=keys, jobs=jobs, since=since))

    async def _forget(self, scope: Scope) -> Receipt:
        return await self._primary.forget(scope)

    async def scrub(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted; returns what is pending, in words."""
        return await self._primary.scrub() if isinstance(self._primary, Scrubs) else ()

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the user are saved in the same place as the records."""
        return await self._primary.saved_sessions(scope) if isinstance(self._primary, SeesSessions) else 0

    async def _describe(self) -> dict[str, str]:
        return await self._primary.describe() if isinstance(self._primary, Describes) else {}

    async def _close(self) -> None:
        await self._primary.aclose()

    async def _prune(self, scope: Scope, layer: Layer, keep: int | None, before: datetime | None) -> Iterable[str]:
        return await self._primary.prune(scope, layer=layer, keep=keep, before=before)

    async def _touch(self, scope: Scope, ids: Sequence[str], at: datetime) -> None:
        await self._primary.touch(scope, *ids, at=at)

    async def _bound(self) -> Bound | None:
        return await self._primary.bound()

    async def _bind(self, wanted: Bound) -> None:
        await self._primary.bind(*wanted)

    async def _rebind(self, wanted: Bound) -> bool:
        return await self._primary.rebind(*wanted)

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        await self._primary.put_vectors(scope, vectors)

    async def _unembedded(self, where: Filter | None, after: After, limit: int | None) -> Collection[Owned]:
        return await self._primary.unembedded(where=where, after=after, limit=limit or sys.maxsize)

    async def _count_unembedded(self, where: Filter | None) -> int:
        return await self._primary.count_unembedded(where=where)

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        return await self._primary.users(after=after, limit=limit)

    async def _epoch(self, scope: Scope) -> str:
        return await self._primary.epoch(scope)

    async def _lease(self, asked: LeaseRequest) -> Iterable[Lease]:
        return await self._primary.lease(**asked._asdict())

    async def _fail(self, lease: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
        await self._primary.fail(lease, reason=reason, now=now, retry_at=retry_at)

    async def _dead_letters(self, scope: Scope) -> Iterable[DeadLetter]:
        return await self._primary.dead_letters(scope)

    async def _open_jobs(self, scope: Scope) -> Collection[Job]:
        return await self._primary.open_jobs(scope)

    async def _pending(self, scope: Scope) -> int:
        return await self._primary.pending(scope)
