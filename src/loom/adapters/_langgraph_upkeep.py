"""Removing, copying and pruning LangGraph's threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loom.adapters._langgraph_log import KIND, ROOT
from loom.adapters._langgraph_threads import Threads
from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError


class ThreadUpkeep:
    """What is done to whole threads of a user."""

    def __init__(self, threads: Threads) -> None:
        self._threads, self._logs, self._store = threads, threads.logs, threads.logs.store

    async def delete_thread(self, thread_id: str) -> None:
        """Remove a thread."""
        scope = self._threads.scope(thread_id)
        await self._store.forget(scope)
        self._logs.forget(lambda thread: thread == scope)

    async def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs and their writes; what later ones are made of stays."""
        user = self._threads.scope()
        for run_id in run_ids:
            for point in await self._store.list(user, attributes={"run_id": run_id}):
                scope, number = user.for_session(point.session_id), 1
                while await self._store.delete(scope, f"{point.id}+{number}"):
                    number += 1
                await self._store.delete(scope, point.id)
        self._logs.forget(lambda thread: thread.for_user() == user)

    async def copy_thread(self, source_id: str, target_id: str) -> None:
        """Copy a thread; what a removed checkpoint had is copied with those that continue it."""
        source, target = self._threads.scope(source_id), self._threads.scope(target_id)
        if await self._store.load(target) is not None:
            raise StoreConflict(f"thread {target_id!r} is already there; copy into a new one, or delete it before")
        copied: dict[str, int] = {}
        for point in reversed(await self._store.list(source)):
            is_whole = point.parent in copied or "writes" not in point.attributes
            start = copied.get(point.parent or "", 0) if is_whole else point.position - 1
            entries = (
                await self._store.recorded(source, point.id, kind=KIND, after=start) if point.position > start else ()
            )
            parent = point.parent if point.parent in copied else ROOT if copied else None
            await self._store.append(target, entries, id=point.id, parent=parent, attributes=point.attributes)
            copied[point.id] = point.position

    async def prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        """Remove all checkpoints of threads, or all but the newest of each namespace."""
        if strategy not in {"keep_latest", "delete"}:
            raise UsageError(f"prune() has no strategy {strategy!r}; use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.delete_thread(thread_id)
            else:
                await self._keep_newest(self._threads.scope(thread_id))

    async def _keep_newest(self, scope: Scope) -> None:
        """Remove older checkpoints, and the writes that no delta channel of the newest is made of."""
        points = await self._store.list(scope)
        newest = {point.attributes["ns"]: point for point in reversed(points) if "ns" in point.attributes}
        kept, needed = {ROOT, *(point.id for point in newest.values())}, set[str]()
        for point in newest.values():
            entry = (await self._logs.entries(scope, point, 1))[0][1]
            told: dict[str, Any] = self._logs.serde.loads_typed(entry.metadata)
            counted: dict[str, tuple[int, int]] = told.get("counters_since_delta_snapshot") or {}
            steps = 1 + max((steps for _, steps in counted.values()), default=-1)
            needed |= {id for id, _ in await self._logs.entries(scope, point, 1 + steps)}
        for point in points:
            if point.attributes.get("writes") not in needed and point.id not in kept:
                await self._store.delete(scope, point.id)
        self._logs.forget(lambda thread: thread == scope)
