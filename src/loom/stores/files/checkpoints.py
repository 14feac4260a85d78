"""Checkpoints in a folder: one append-only file for each user."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TypeVar

import anyio.to_thread

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.stores import checkpoint_rules as rules
from loom.stores.checkpoint_door import CheckpointDoor
from loom.stores.files.disk import locked, make_folder, spoken_errors
from loom.stores.files.user_log import UserLog

_T = TypeVar("_T")
_MOST_OPEN = 32


class FileCheckpointStore(CheckpointDoor):
    """Keeps sessions in a folder, with every optional power. Several stores and processes may share it.

    An acknowledged save survives the end of the process and a power cut; what a crash left unfinished is cut off.
    The name of a file is a hash of the user's scope, so that no id can name another file. Needs a POSIX system.
    """

    def __init__(self, folder: str | PathLike[str], *, clock: Clock | None = None) -> None:
        self._folder = Path(folder)
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)
        self._lock = Lock()
        self._logs: OrderedDict[Scope, UserLog] = OrderedDict()
        self._is_closed = False

    async def _save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        rules.check_session(scope, checkpoint)

        def change(log: UserLog) -> None:
            tree, session_id = log.tree, checkpoint.session_id
            saved = tree.find(session_id, checkpoint.id)
            if saved is not None and saved.checkpoint is not None:
                rules.check_same(checkpoint, entries, saved.checkpoint, log.entries([saved]))
                return
            parent = None if checkpoint.parent is None else tree.find(session_id, checkpoint.parent)
            position = None if parent is None or parent.checkpoint is None else parent.checkpoint.position
            rules.check_continues(checkpoint, entries, head, newest=tree.newest_id(session_id), parent=position)
            log.add(checkpoint, parent, entries)

        await self._write(scope, change)

    async def _load(self, scope: Scope, id: str | None = None) -> Checkpoint | None:
        session_id = rules.session_of(scope)
        node = await self._read(scope, lambda log: log.tree.find(session_id, id))
        return None if node is None else node.checkpoint

    async def _history(self, scope: Scope, id: str) -> tuple[LogEntry, ...]:
        session_id = rules.session_of(scope)

        def view(log: UserLog) -> tuple[LogEntry, ...]:
            node = log.tree.find(session_id, id)
            if node is None:
                raise rules.not_found(scope, id)
            return tuple(log.entries(log.tree.chain(node)))

        return await self._read(scope, view)

    async def _list(self, scope: Scope, *, limit: int | None = None) -> tuple[Checkpoint, ...]:
        rules.check_limit(limit)
        nodes = await self._read(scope, lambda log: log.tree.of(scope.session_id)[:limit])
        return tuple(node.checkpoint for node in nodes if node.checkpoint is not None)

    async def _delete(self, scope: Scope, id: str) -> bool:
        session_id = rules.session_of(scope)

        def change(log: UserLog) -> bool:
            node = log.tree.find(session_id, id)
            if node is not None:
                log.remove([node])
            return node is not None

        return await self._write(scope, change)

    async def _forget(self, scope: Scope) -> Receipt:
        def change(log: UserLog) -> Receipt:
            nodes = log.tree.of(scope.session_id)
            gone, left = (sum(node.content.entries for node in some) for some in log.forget(nodes))
            return rules.receipt(checkpoints=len(nodes), entries=gone, left=left)

        return await self._write(scope, change)

    async def fork(self, scope: Scope, id: str, *, session_id: str) -> Checkpoint:
        """The first checkpoint of a new session, which begins at a checkpoint of this one."""
        origin, new_id, now = rules.session_of(scope), self._ids.next_id(), self._clock.now()
        target = rules.session_of(scope.for_session(session_id))

        def change(log: UserLog) -> Checkpoint:
            node = log.tree.find(origin, id)
            source = None if node is None else node.checkpoint
            fork = rules.forked(source, id, new_id=new_id, session_id=target, at=now)
            if log.tree.newest_id(target) is not None:
                raise rules.session_exists(target)
            log.add(fork, node, ())
            return fork

        return await self._write(scope, change)

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed, oldest first."""
        rules.check_keep(keep)
        session_id = rules.session_of(scope)

        def change(log: UserLog) -> tuple[str, ...]:
            nodes = log.tree.of(session_id)[keep:][::-1]
            ids = tuple(node.checkpoint.id for node in nodes if node.checkpoint is not None)
            log.remove(nodes)
            return ids

        return await self._write(scope, change)

    async def aclose(self) -> None:
        """Release the files. Closing twice is allowed."""
        await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            for log in self._logs.values():
                log.close()
            self._logs.clear()

    async def _read(self, scope: Scope, view: Callable[[UserLog], _T]) -> _T:
        return await anyio.to_thread.run_sync(self._run, scope, view, False)

    async def _write(self, scope: Scope, change: Callable[[UserLog], _T]) -> _T:
        return await anyio.to_thread.run_sync(self._run, scope, change, True)

    def _run(self, scope: Scope, action: Callable[[UserLog], _T], exclusive: bool) -> _T:
        """What `action` gives for the user's log as it is now, while no other process changes it."""
        with self._lock, spoken_errors(self._folder):
            if self._is_closed:
                raise UsageError(f"the checkpoint store {self._folder} is closed; open another")
            if exclusive:
                make_folder(self._folder)
            with locked(self._folder / "lock", exclusive=exclusive):
                log = self._log(scope.for_user())
                log.refresh(repair=exclusive)
                return action(log)

    def _log(self, user: Scope) -> UserLog:
        log = self._logs.pop(user, None)
        if log is None:
            log = UserLog(self._folder / f"{sha256(user.key().encode()).hexdigest()}.log", user)
        self._logs[user] = log
        while len(self._logs) > _MOST_OPEN:
            self._logs.popitem(last=False)[1].close()
        return log
