"""Checkpoints in one SQLite file."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Self

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.stores import checkpoint_rules as rules
from loom.stores.checkpoint_door import CheckpointDoor
from loom.stores.sqlite import checkpoint_rows as table
from loom.stores.sqlite.checkpoint_schema import prepare, setup
from loom.stores.sqlite.connection import Database, Durability
from loom.stores.sqlite.file import SqliteFile


class SqliteCheckpointStore(CheckpointDoor):
    """Keeps sessions in one file, with every optional power. Several stores, threads and processes may share it.

    The file may be that of a SqliteStore: the tables stand side by side, and both use the one writer of the process.
    `durability="full"` survives a power cut after every acknowledged save; `"fast"` survives the end of the process,
    and a power cut may take the last saves. `":memory:"` keeps everything in memory.

    A new file gets small pages, which is what a log of turns wants; with `small_pages=False` it gets SQLite's own,
    for a file that will hold a memory as well. With `make_folder` the folder of a new file is made with it.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        small_pages: bool = True,
        make_folder: bool = False,
    ) -> None:
        first = prepare if small_pages else _as_it_is
        self._file = SqliteFile(path, durability=durability, make_folder=make_folder, prepare=first, setup=setup)
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)

    async def __aenter__(self) -> Self:
        await self._file.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        rules.check_session(scope, checkpoint)

        def change(db: Database) -> None:
            session = table.find_session(db, scope)
            saved = table.find(db, session, checkpoint.id)
            if saved is not None:
                rules.check_same(checkpoint, entries, saved.checkpoint, table.entries_of(db, saved.node))
                return
            parent = None if checkpoint.parent is None else table.find(db, session, checkpoint.parent)
            position = None if parent is None else parent.checkpoint.position
            newest = table.newest_id(db, session)
            rules.check_continues(checkpoint, entries, head, newest=newest, parent=position)
            table.add(db, scope, checkpoint, None if parent is None else parent.node, entries)

        await self._file.commit(change)

    async def _load(self, scope: Scope, id: str | None = None) -> Checkpoint | None:
        rules.session_of(scope)
        found = await self._file.view(lambda db: table.find(db, table.find_session(db, scope), id))
        return None if found is None else found.checkpoint

    async def _history(self, scope: Scope, id: str) -> tuple[LogEntry, ...]:
        rules.session_of(scope)

        def view(db: Database) -> tuple[LogEntry, ...]:
            found = table.find(db, table.find_session(db, scope), id)
            if found is None:
                raise rules.not_found(scope, id)
            return tuple(table.history(db, found.node))

        return await self._file.view(view)

    async def _list(self, scope: Scope, *, limit: int | None = None) -> tuple[Checkpoint, ...]:
        rules.check_limit(limit)

        def view(db: Database) -> tuple[Checkpoint, ...]:
            return tuple(table.checkpoints(db, table.nodes_of(db, table.sessions_of(db, scope))[:limit]))

        return await self._file.view(view)

    async def _delete(self, scope: Scope, id: str) -> bool:
        rules.session_of(scope)

        def change(db: Database) -> bool:
            found = table.find(db, table.find_session(db, scope), id)
            if found is not None:
                table.remove(db, [found.node])
            return found is not None

        return await self._file.commit(change)

    async def _forget(self, scope: Scope) -> Receipt:
        removed, pending = await self._file.erase(lambda db: table.forget(db, scope))
        checkpoints, entries, left = removed
        return rules.receipt(checkpoints=checkpoints, entries=entries, left=left, pending=pending)

    async def fork(self, scope: Scope, id: str, *, session_id: str) -> Checkpoint:
        """The first checkpoint of a new session, which begins at a checkpoint of this one."""
        rules.session_of(scope)
        target, new_id, now = scope.for_session(session_id), self._ids.next_id(), self._clock.now()

        def change(db: Database) -> Checkpoint:
            found = table.find(db, table.find_session(db, scope), id)
            source = None if found is None else found.checkpoint
            fork = rules.forked(source, id, new_id=new_id, session_id=session_id, at=now)
            if table.find_session(db, target) is not None:
                raise rules.session_exists(session_id)
            table.add(db, target, fork, None if found is None else found.node, ())
            return fork

        return await self._file.commit(change)

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed, oldest first."""
        rules.check_keep(keep)
        rules.session_of(scope)

        def change(db: Database) -> tuple[str, ...]:
            nodes = table.nodes_of(db, table.sessions_of(db, scope))[keep:][::-1]
            ids = tuple(checkpoint.id for checkpoint in table.checkpoints(db, nodes))
            table.remove(db, nodes)
            return ids

        return await self._file.commit(change)

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users who have sessions here, by namespace and user, from behind `after`."""
        rules.check_limit(limit)
        return await self._file.view(lambda db: table.all_users(db, after, limit))

    async def aclose(self) -> None:
        """Finish writing and release the file. Closing twice is allowed."""
        await self._file.aclose()


def _as_it_is(path: str) -> None:
    """Leave the pages of a new file to SQLite."""
