"""Checkpoints in a schema of a Postgres database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.stores import checkpoint_rules as rules
from loom.stores.checkpoint_door import CheckpointDoor
from loom.stores.postgres import checkpoint_rows as table
from loom.stores.postgres.guard import Guard, guarded
from loom.stores.postgres.schema import SCHEMA, UNSWEPT


class PostgresCheckpointStore(CheckpointDoor):
    """Keeps sessions in Postgres, with every optional power. Any number of stores and processes may share a schema.

    The schema may be that of a PostgresStore, and is made by the same `init_schema()`; the arguments are the same.
    """

    def __init__(
        self,
        dsn: str,
        *,
        clock: Clock | None = None,
        pool_size: int = 8,
        timeout: float = 30,
        schema: str = SCHEMA,
        allow_owner: bool = False,
        make_schema: bool = True,
    ) -> None:
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)
        insists = Guard(schema, allow_owner, make_schema)
        self._server = guarded(dsn, insists, pool_size=pool_size, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self._server.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        rules.check_session(scope, checkpoint)
        async with self._server.transaction(scope, writes=True) as db:
            saved = await table.find(db, scope, checkpoint.id)
            if saved is not None:
                held = await table.entries_of(db, scope, saved.node)
                rules.check_same(checkpoint, entries, saved.checkpoint, held)
                return
            newest = await table.find(db, scope, None)
            parent = None if checkpoint.parent is None else await table.find(db, scope, checkpoint.parent)
            rules.check_continues(
                checkpoint,
                entries,
                head,
                newest=None if newest is None else newest.checkpoint.id,
                parent=None if parent is None else parent.checkpoint.position,
            )
            await table.add(db, scope, checkpoint, None if parent is None else parent.node, entries)

    async def _load(self, scope: Scope, id: str | None = None) -> Checkpoint | None:
        rules.session_of(scope)
        async with self._server.transaction(scope) as db:
            found = await table.find(db, scope, id)
        return None if found is None else found.checkpoint

    async def _history(self, scope: Scope, id: str) -> tuple[LogEntry, ...]:
        rules.session_of(scope)
        # Under the user's lock, so that nobody removes parts between the reading of entries and of parts.
        async with self._server.transaction(scope, writes=True) as db:
            found = await table.find(db, scope, id)
            if found is None:
                raise rules.not_found(scope, id)
            return tuple(await table.history(db, scope, found.node))

    async def _list(self, scope: Scope, *, limit: int | None = None) -> tuple[Checkpoint, ...]:
        rules.check_limit(limit)
        async with self._server.transaction(scope) as db:
            return tuple(found.checkpoint for found in await table.saved(db, scope, limit))

    async def _delete(self, scope: Scope, id: str) -> bool:
        rules.session_of(scope)
        async with self._server.transaction(scope, writes=True) as db:
            found = await table.find(db, scope, id)
            if found is not None:
                await table.remove(db, scope, [found.node])
            return found is not None

    async def _forget(self, scope: Scope) -> Receipt:
        async with self._server.transaction(scope, writes=True) as db:
            nodes = [found.node for found in await table.saved(db, scope)]
            entries, left = await table.remove(db, scope, nodes)
        pending = (UNSWEPT,) if nodes else ()
        return rules.receipt(checkpoints=len(nodes), entries=entries, left=left, pending=pending)

    async def fork(self, scope: Scope, id: str, *, session_id: str) -> Checkpoint:
        """The first checkpoint of a new session, which begins at a checkpoint of this one."""
        rules.session_of(scope)
        target, new_id, now = scope.for_session(session_id), self._ids.next_id(), self._clock.now()
        async with self._server.transaction(scope, writes=True) as db:
            found = await table.find(db, scope, id)
            source = None if found is None else found.checkpoint
            fork = rules.forked(source, id, new_id=new_id, session_id=session_id, at=now)
            if await table.find(db, target, None) is not None:
                raise rules.session_exists(session_id)
            await table.add(db, target, fork, None if found is None else found.node, ())
            return fork

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed, oldest first."""
        rules.check_keep(keep)
        rules.session_of(scope)
        async with self._server.transaction(scope, writes=True) as db:
            old = (await table.saved(db, scope))[keep:][::-1]
            await table.remove(db, scope, [found.node for found in old])
            return tuple(found.checkpoint.id for found in old)

    async def aclose(self) -> None:
        """Give all connections back. Closing twice is allowed."""
        await self._server.close()
