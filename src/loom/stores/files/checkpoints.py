"""Checkpoints in a folder: one append-only file for each user."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from os import PathLike
from pathlib import Path
from threading import Lock

import anyio.to_thread

from loom.core.clock import Clock
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.stores.checkpoints import Action, BaseCheckpointStore, Removed, T, finish
from loom.stores.files.disk import locked, make_folder, spoken_errors
from loom.stores.files.user_log import UserLog

_MOST_OPEN = 32
"""Files of users that stay open, because a process may open only so many."""


class FileCheckpointStore(BaseCheckpointStore):
    """Keeps sessions in a folder; forks and prunes. Several stores and processes may share it.

    An acknowledged save survives the end of the process and a power cut; what a crash left unfinished is cut off.
    The name of a file is a hash of the user's scope, so that no id can name another file. Needs a POSIX system.
    """

    def __init__(self, folder: str | PathLike[str], *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._folder = Path(folder)
        self._lock = Lock()
        self._logs: OrderedDict[Scope, UserLog] = OrderedDict()
        self._is_closed = False

    async def aclose(self) -> None:
        """Release the files. Closing twice is allowed."""
        await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            for log in self._logs.values():
                log.close()
            self._logs.clear()

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        return await anyio.to_thread.run_sync(self._run, scope, action, writes)

    async def _erase(self, scope: Scope, action: Action[Removed]) -> tuple[Removed, tuple[str, ...]]:
        return await anyio.to_thread.run_sync(self._run, scope, action, True, True), ()

    def _run(self, scope: Scope, action: Action[T], exclusive: bool, erases: bool = False) -> T:
        """The result of an action on the user's log as it is now, while no other process changes it."""
        with self._lock, spoken_errors(self._folder):
            if self._is_closed:
                raise UsageError(f"the checkpoint store {self._folder} is closed; open another")
            if exclusive:
                make_folder(self._folder)
            with locked(self._folder / "lock", exclusive=exclusive):
                log = self._log(scope.for_user())
                log.refresh(repair=exclusive)
                log.erases = erases
                return finish(action(log))

    def _log(self, user: Scope) -> UserLog:
        log = self._logs.pop(user, None)
        if log is None:
            log = UserLog(self._folder / f"{sha256(user.key().encode()).hexdigest()}.log", user)
        self._logs[user] = log
        while len(self._logs) > _MOST_OPEN:
            self._logs.popitem(last=False)[1].close()
        return log
