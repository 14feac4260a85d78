"""The one thread of a process that writes to a file, and commits what waits together."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import apsw

from loom.core.forks import renew_lock_after_fork
from loom.errors import LoomError, StoreError, UsageError
from loom.stores.sqlite.connection import BUSY_MILLISECONDS, SYNCHRONOUS, Database, connect, patiently, spoken_errors
from loom.stores.sqlite.schema import check_file, migrate

_T = TypeVar("_T")
_MOST_TOGETHER = 256
_SCRUB_MILLISECONDS = 2_000
_CACHE_KIBIBYTES = 32_000


@dataclass(slots=True)
class _Task:
    """`alone` tasks run outside a transaction."""

    action: Callable[[Database], Any]
    alone: bool = False
    future: Future[Any] = field(default_factory=Future[Any])
    outcome: Any = None
    error: BaseException | None = None


class Writer:
    """Runs changes one after the other; those that wait at the same time are one transaction.

    Each change has a savepoint: one that fails is undone alone. A future is done after the commit that holds it.
    """

    def __init__(self, path: str, durability: str) -> None:
        self.path = path
        self.users = 1
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._put_off: list[_Task | None] = []
        self._pid = os.getpid()
        self._db = connect(path, synchronous=SYNCHRONOUS[durability], cache_kibibytes=_CACHE_KIBIBYTES)
        self._is_unscrubbed = False
        self._gate, self._is_closing = threading.Lock(), False
        try:
            migrate(self._db, path)
        except BaseException:
            self._db.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"loom-writer {path}", daemon=True)
        self._thread.start()

    def submit(self, action: Callable[[Database], _T], *, alone: bool = False) -> Future[_T]:
        """Queue a change; the future holds what `action` returned."""
        task = _Task(action, alone)
        with self._gate:
            if self._is_closing:
                raise UsageError(f"the store {self.path} is closed; open another")
            self._tasks.put(task)
        return task.future

    @property
    def is_of_this_process(self) -> bool:
        """Whether the process was not forked since the file was opened."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Refuse to be used in a forked process, where neither the thread nor the connections work."""
        if not self.is_of_this_process:
            raise UsageError(f"{self.path} was opened before this process was forked; open it again here")

    def scrub(self, db: Database) -> bool:
        """Empty the write-ahead log; False where a reader holds it, and then it is tried again after later writes."""
        self._is_unscrubbed = not _truncated(db, _SCRUB_MILLISECONDS)
        return not self._is_unscrubbed

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._gate:
            self._is_closing = True
            self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            self._handle(batch)
        self._db.close()

    def _next(self) -> list[_Task]:
        """What is to be done next, together; nothing at the end."""
        task = self._put_off.pop() if self._put_off else self._tasks.get()
        if task is None:
            return []
        batch = [task]
        while not task.alone and len(batch) < _MOST_TOGETHER and not self._tasks.empty():
            following = self._tasks.get()
            if following is None or following.alone:
                self._put_off.append(following)
                break
            batch.append(following)
        return batch

    def _handle(self, batch: list[_Task]) -> None:
        batch = [task for task in batch if task.future.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            with spoken_errors(self.path):
                self._do(batch)
        except BaseException as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
            for task in batch:
                task.error = task.error or error
        for task in batch:
            if task.error is None:
                task.future.set_result(task.outcome)
            else:
                task.future.set_exception(task.error)
        if self._is_unscrubbed:
            self._is_unscrubbed = not _truncated(self._db, 0)

    def _do(self, batch: list[_Task]) -> None:
        db = self._db
        if batch[0].alone:
            batch[0].outcome = batch[0].action(db)
            return
        patiently(lambda: db.execute("BEGIN IMMEDIATE").fetchall())
        try:
            for task in batch:
                self._apply(task)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _apply(self, task: _Task) -> None:
        db = self._db
        db.execute("SAVEPOINT change")
        try:
            with spoken_errors(self.path):
                task.outcome = task.action(db)
        except BaseException as error:
            if not db.in_transaction:  # a full disk, say: SQLite gave up the whole transaction
                raise StoreError(f"{self.path} undid a transaction ({error}); nothing of it was kept") from error
            if not isinstance(error, Exception):
                raise
            task.error = error if isinstance(error, LoomError) else _unexpected(error)
            db.execute("ROLLBACK TO change")
        db.execute("RELEASE change")


def _unexpected(error: Exception) -> Exception:
    error.add_note("raised while writing; nothing of this change was kept")
    return error


def _truncated(db: Database, milliseconds: int) -> bool:
    db.set_busy_timeout(milliseconds)
    try:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.BusyError, apsw.LockedError):
        return False
    finally:
        db.set_busy_timeout(BUSY_MILLISECONDS)
    return True


_WRITERS: dict[tuple[int, str], Writer] = {}
_LOCK = threading.Lock()
renew_lock_after_fork(sys.modules[__name__], "_LOCK")


def acquire(path: str, durability: str) -> Writer:
    """The writer of a file, shared by all stores of this process; the most durable of their wishes holds."""
    if path == ":memory:":
        return Writer(path, durability)
    key = (os.getpid(), os.path.realpath(path))
    with _LOCK:
        writer = _WRITERS.get(key)
        if writer is None:
            check_file(path)
            writer = _WRITERS[key] = Writer(path, durability)
            return writer
        writer.users += 1
        if durability == "full":
            writer.submit(lambda db: db.execute("PRAGMA synchronous=FULL").fetchall(), alone=True)
        return writer


def release(writer: Writer) -> None:
    """One store less; the last one ends the writer."""
    with _LOCK:
        writer.users -= 1
        is_last = writer.users == 0
        if is_last:
            _WRITERS.pop((os.getpid(), os.path.realpath(writer.path)), None)
    if is_last:
        writer.close()
