"""Checkpoints on a Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Self

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.checks import check_text
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.stores import checkpoint_rules as rules
from loom.stores.checkpoint_door import CheckpointDoor
from loom.stores.redis.change import TRIES
from loom.stores.redis.checkpoint_rows import CheckpointRows
from loom.stores.redis.describing import server_labels
from loom.stores.redis.forgetting import FILES
from loom.stores.redis.link import Guarantees, Link
from loom.stores.redis.names import CheckpointNames


class RedisCheckpointStore(CheckpointDoor):
    """Keeps sessions on a Redis server, with every optional power. Any number of stores and processes may share it.

    With `ttl`, a session is over so long after its last save: from that moment no call sees it. What it held goes with
    the next change of its user, and Redis drops everything of a user by itself when his last session is over. A log
    that a fork begins with stays as long as the fork. A save with another `ttl`, or none, sets the end anew.

    `prefix`, `durable` and `timeout` are those of a RedisStore, which may have the same prefix. The URL may say
    `?durable=true&ttl=30d` as well; what it says of layers is for memories.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl: timedelta | None = None,
        clock: Clock | None = None,
        prefix: str = "loom",
        durable: bool | None = None,
        timeout: float = 10.0,
    ) -> None:
        check_text(prefix, "the prefix of a Redis store")
        if ttl is not None and ttl < timedelta(milliseconds=1):
            raise UsageError(f"sessions with ttl={ttl} are over at once; give at least a millisecond, or None")
        names = CheckpointNames(prefix)
        self._link = Link(url, durable=durable, format_key=names.format, timeout=timeout)
        ttl = self._link.said.ttl.get(None) if ttl is None else ttl
        self._prefix, self._ttl = prefix, ttl
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)
        self._rows = CheckpointRows(self._link, names, self._clock, ttl)

    async def __aenter__(self) -> Self:
        await self._link.guarantees()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def guarantees(self) -> Guarantees:
        """What the server promises for what was acknowledged, as it is set up now."""
        return await self._link.guarantees()

    async def describe(self) -> dict[str, str]:
        """What the store is and what it guarantees, by label."""
        kept = "for ever" if self._ttl is None else f"for {self._ttl} after their last save"
        found = await self._link.guarantees()
        return {**server_labels(found, self._prefix), "retention": f"sessions are kept {kept}"}

    async def _save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        rules.check_session(scope, checkpoint)
        for _ in range(TRIES):
            saved, newest, parent = await self._rows.find(scope, checkpoint.id, None, checkpoint.parent)
            if saved is not None:
                held = await self._rows.log(scope, checkpoint.id, last=1)
                if held is None:
                    continue
                rules.check_same(checkpoint, entries, saved.checkpoint, held)
                return
            parent = None if checkpoint.parent is None else parent
            rules.check_continues(
                checkpoint,
                entries,
                head,
                newest=None if newest is None else newest.checkpoint.id,
                parent=None if parent is None else parent.checkpoint.position,
            )
            if await self._rows.add(scope, checkpoint, entries, newest=newest, parent=parent):
                return
        raise _too_many(scope)

    async def _load(self, scope: Scope, id: str | None = None) -> Checkpoint | None:
        rules.session_of(scope)
        (found,) = await self._rows.find(scope, id)
        return None if found is None else found.checkpoint

    async def _history(self, scope: Scope, id: str) -> tuple[LogEntry, ...]:
        rules.session_of(scope)
        found = await self._rows.log(scope, id)
        if found is None:
            raise rules.not_found(scope, id)
        return tuple(found)

    async def _list(self, scope: Scope, *, limit: int | None = None) -> tuple[Checkpoint, ...]:
        rules.check_limit(limit)
        return tuple(await self._rows.list(scope, limit))

    async def _delete(self, scope: Scope, id: str) -> bool:
        rules.session_of(scope)
        return await self._rows.delete(scope, id)

    async def _forget(self, scope: Scope) -> Receipt:
        checkpoints, entries, left = await self._rows.forget(scope)
        pending = (FILES,) if checkpoints else ()
        return rules.receipt(checkpoints=checkpoints, entries=entries, left=left, pending=pending)

    async def fork(self, scope: Scope, id: str, *, session_id: str) -> Checkpoint:
        """The first checkpoint of a new session, which begins at a checkpoint of this one."""
        rules.session_of(scope)
        target, new_id, now = scope.for_session(session_id), self._ids.next_id(), self._clock.now()
        for _ in range(TRIES):
            (source,) = await self._rows.find(scope, id)
            found = None if source is None else source.checkpoint
            fork = rules.forked(found, id, new_id=new_id, session_id=session_id, at=now)
            if (await self._rows.find(target, None))[0] is not None:
                raise rules.session_exists(session_id)
            if await self._rows.add(target, fork, (), newest=None, parent=source):
                return fork
        raise _too_many(scope)

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed, oldest first."""
        rules.check_keep(keep)
        rules.session_of(scope)
        return tuple(await self._rows.prune(scope, keep))

    async def aclose(self) -> None:
        """Close the connections. Closing twice is allowed."""
        await self._link.aclose()


def _too_many(scope: Scope) -> StoreConflict:
    return StoreConflict(f"others changed session {scope.session_id!r} {TRIES:,} times under this write; try again")
