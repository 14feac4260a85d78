"""An open SQLite file: one writer thread with group commit, a pool of readers."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import anyio.to_thread
import apsw
from anyio import CapacityLimiter, WouldBlock
from anyio.lowlevel import RunVar, checkpoint

from loom.core.checks import check_text
from loom.core.threads import in_thread, may_block, renew_lock_after_fork
from loom.errors import LoomError, StoreError, UsageError
from loom.protocols.memory_store import Others
from loom.stores.sqlite.connection import (
    BUSY_MILLISECONDS,
    SYNCHRONOUS,
    Database,
    Durability,
    MustWait,
    TakesLong,
    at_once,
    connect,
    number_of,
    one,
    patiently,
    snapshot,
    translate_errors,
    user_of,
)
from loom.stores.sqlite.schema import check_file, migrate

# Connections that read, each used by one thread at a time.

MOST_READERS = min(4, max(2, os.cpu_count() or 2))
"""How many reads run at once on an event loop, each in a thread: more wait for each other, and the loop for them.

On two cores, four of them take a third more CPU for each search of a busy server than two."""
_MOST_IDLE = 8
_READS: RunVar[CapacityLimiter] = RunVar("loom readers of SQLite files")
_QUICK_READS: RunVar[CapacityLimiter] = RunVar("loom quick reads of SQLite files")


def _reads() -> CapacityLimiter:
    """What reads in threads wait for, of one event loop."""
    return _made(_READS, MOST_READERS)


async def _turn_on_the_loop() -> CapacityLimiter:
    """What reads on the event loop wait for, acquired; everything else has had its turn meanwhile."""
    turn = _made(_QUICK_READS, 1)
    try:
        turn.acquire_nowait()
    except WouldBlock:
        await turn.acquire()
        return turn
    try:
        await checkpoint()  # acquire() would do this too, in four times the time
    except BaseException:
        turn.release()
        raise
    return turn


def _made(variable: RunVar[CapacityLimiter], most: int) -> CapacityLimiter:
    made = variable.get(None)
    if made is None:
        made = CapacityLimiter(most)
        variable.set(made)
    return made


_QUICK = 0.005
"""Seconds of work: a read with no more is done on the event loop, without a thread. A turn has four reads
of half a millisecond to three, and handing one to a thread and its rows back costs up to half a millisecond."""
_WAITING = 4
"""A read counts as having worked for this part of the time that it took, at the least: the rest, other threads may have
held it up. So one that waits for a disk is quick up to 20 ms."""
_REFUSED = 10.0
"""Seconds that a read counts as that the event loop gave up, because it would have taken long."""
_MOST_KNOWN = 4_096

What: TypeAlias = tuple[str, ...]
"""What a read is of: the same for reads that take about as long as each other."""


class Pace:
    """How long reads take, by what they are of: as the last one, or where one before took longer, half as long as that.

    So a read that was long once is done in a thread some more times, however quick it is there.
    """

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: dict[What, float] = {}

    def is_quick(self, what: What) -> bool:
        """Whether a read of this is quick; one that is not known yet is not."""
        return self._seconds.get(what, _QUICK + 1) <= _QUICK

    def note(self, what: What, seconds: float) -> None:
        """Note how long a read of this took."""
        if len(self._seconds) >= _MOST_KNOWN:
            self._seconds.clear()
        self._seconds[what] = max(seconds, self._seconds.get(what, 0.0) / 2)


class Readers:
    """Runs reads on a snapshot of the file, any number at once."""

    __slots__ = ("_idle", "_is_closed", "_lock", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: list[Database] = []
        self._is_closed = False
        self._lock = Lock()

    def run(self, action: Callable[[Database], _T]) -> _T:
        """What `action` returns for one consistent view of the file."""
        return self._view(self._taken(BUSY_MILLISECONDS) or connect(self._path), action)

    def run_at_once(self, action: Callable[[Database], _T]) -> _T:
        """The same, but nothing is waited for.

        Raises:
            MustWait: another thread or process holds what is needed, or no connection is open.
            TakesLong: it would take long.
        """
        db = self._taken(0)
        if db is None:
            raise MustWait("no connection is open")
        with at_once():
            return self._view(db, action)

    def _taken(self, busy_milliseconds: int) -> Database | None:
        """A connection that is open, which waits so long for what others hold."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        if db is not None:
            db.set_busy_timeout(busy_milliseconds)
        return db

    def _view(self, db: Database, action: Callable[[Database], _T]) -> _T:
        try:
            with translate_errors(self._path), snapshot(db):
                outcome = action(db)
        except BaseException as error:
            if isinstance(error, MustWait) and db.txn_state() == apsw.SQLITE_TXN_NONE:
                self._give_back(db)
            else:
                db.close()  # whatever it was, a cursor or a transaction may still be open
            raise
        self._give_back(db)
        return outcome

    def _give_back(self, db: Database) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(db)
                return
        db.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed after its read."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()


# Which records this process has changed, so that what searches hold of the others need not be read again.

_MOST_REVISIONS = 64
_MOST_USERS = 1_024
_MOST_NUMBERS = 4_096
_COUNT_CHANGE = "UPDATE users SET revision = revision + 1 WHERE user = ? RETURNING revision"


class ChangeLog:
    """The numbers of the records that each of the last revisions of a user changed or removed.

    A revision that is not in it was made by another process, or long ago. New records have new numbers, and make no
    revision. Safe between threads.
    """

    __slots__ = ("_lock", "_users")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: OrderedDict[int, OrderedDict[int, Collection[int]]] = OrderedDict()

    def note(self, user: int, revision: int, numbers: Collection[int]) -> None:
        """Say what a revision changed, before it is committed."""
        with self._lock:
            noted = self._users.setdefault(user, OrderedDict())
            self._users.move_to_end(user)
            noted[revision] = numbers
            if len(noted) > _MOST_REVISIONS or len(numbers) > _MOST_NUMBERS:
                noted.popitem(last=len(numbers) > _MOST_NUMBERS)
            if len(self._users) > _MOST_USERS:
                self._users.popitem(last=False)

    def drop(self, user: int) -> None:
        """Know nothing of a user: what was noted may not have been committed."""
        with self._lock:
            self._users.pop(user, None)

    def between(self, user: int, after: int, until: int) -> Collection[int] | None:
        """The numbers that changed behind one revision and up to another; None where that is not known."""
        if after == until:
            return ()
        with self._lock:
            noted = self._users.get(user)
            if noted is None or not 0 < until - after <= len(noted):
                return None
            found = [noted.get(revision) for revision in range(after + 1, until + 1)]
        return None if None in found else {number for numbers in found if numbers for number in numbers}


# The one thread of a process that writes to a file, and commits what waits together.

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

    A change that fails is undone alone. A future is done after the commit that holds it, and an event loop is woken
    once for all of its tasks that wait for that commit.
    """

    def __init__(self, path: str, durability: str) -> None:
        self.path = path
        self.users = 1
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._put_off: list[_Task | None] = []
        self._pid = os.getpid()
        self._db = connect(path, synchronous=SYNCHRONOUS[durability], cache_kibibytes=_CACHE_KIBIBYTES)
        self._is_unscrubbed = False
        self._version, self._checks, self._changes = 0, 0, 0
        self._latest: datetime | None = None
        self.changes = ChangeLog()
        self._new, self._changed = set[int](), set[int]()  # rows of records, in the change that is being made
        self._noted = set[int]()  # users of whom the transaction that is being made has noted changes
        self._gate, self._is_closing = threading.Lock(), False
        self._to_wake: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        try:
            migrate(self._db, path)
            self._db.set_update_hook(self._see_change)
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

    async def done(self, future: Future[_T]) -> _T:
        """What a future of submit() holds, without holding a thread where the event loop allows it.

        Where the caller is cancelled, a change that has not begun is left out.
        """
        if may_block():
            return future.result()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await anyio.to_thread.run_sync(future.result)
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(lambda _: self._note(loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
        return future.result()

    def _note(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        """A future is done: by the thread that writes; or in that of the loop, done before or cancelled now."""
        if threading.current_thread() is self._thread:
            self._to_wake.setdefault(loop, []).append(waiter)
        else:
            _wake([waiter])

    def _wake_all(self) -> None:
        woken, self._to_wake = self._to_wake, {}
        for loop, waiters in woken.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits there any more
                loop.call_soon_threadsafe(_wake, waiters)

    @property
    def is_of_this_process(self) -> bool:
        """Whether the process was not forked since the file was opened."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Refuse to be used in a forked process, where neither the thread nor the connections work."""
        if not self.is_of_this_process:
            raise UsageError(f"{self.path} was opened before this process was forked; open it again here")

    def scrub(self, db: Database) -> bool:
        """Empty the write-ahead log; False where a reader holds it. What fails is tried again after later writes."""
        self._is_unscrubbed = True
        self._is_unscrubbed = not _truncated(db, _SCRUB_MILLISECONDS)
        return not self._is_unscrubbed

    def rewrite(self, db: Database) -> bool:
        """Write the file anew, then scrub(): SQLite leaves a copy of a row that it moved to another page."""
        db.execute("VACUUM").fetchall()
        return self.scrub(db)

    @property
    def others(self) -> Others:
        """What is known of other processes, and the latest time that was noted."""
        checks = self._checks  # read first: the thread that writes counts it last
        return Others(checks, self._changes, self._latest)

    def note_latest(self, latest: datetime | None) -> None:
        """Note the latest time of what a change wrote; called by the change."""
        if latest is not None and (self._latest is None or latest > self._latest):
            self._latest = latest

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
            with translate_errors(self.path):
                self._do(batch)
        except BaseException as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
            for task in batch:
                task.error = task.error or error
        for task in batch:
            if task.error is None:
                task.future.set_result(task.outcome)
            else:
                task.future.set_exception(task.error)
        self._wake_all()
        if self._is_unscrubbed:
            with suppress(apsw.Error):  # a full disk, say: it is tried again after the next, and nobody waits for it
                self._is_unscrubbed = not _truncated(self._db, 0)

    def _do(self, batch: list[_Task]) -> None:
        db = self._db
        if batch[0].alone:
            batch[0].outcome = batch[0].action(db)
            return
        patiently(lambda: db.execute("BEGIN IMMEDIATE").fetchall())
        try:
            self._look_for_others()
            for task in batch:
                self._apply(task, is_only=len(batch) == 1)
            if db.in_transaction:
                db.execute("COMMIT")
        except BaseException:
            self._drop_noted()
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        finally:
            self._noted.clear()

    def _see_change(self, kind: int, _: str, table: str, row: int) -> None:
        if table == "records":
            (self._new if kind == apsw.SQLITE_INSERT else self._changed).add(row)

    def _count_changes(self) -> None:
        """Count a revision of each user of whom the change has changed or removed records that were there."""
        by_user: defaultdict[int, list[int]] = defaultdict(list)
        for row in self._changed - self._new if self._changed else ():
            by_user[user_of(row)].append(number_of(row))
        for user, numbers in by_user.items():
            revision = one(self._db, _COUNT_CHANGE, user)
            if revision is not None:  # else the user is gone as well
                self._noted.add(user)
                self.changes.note(user, revision[0], numbers)

    def _drop_noted(self) -> None:
        """Before a rollback: as soon as the file is free, another process may use the same revisions."""
        for user in self._noted:
            self.changes.drop(user)

    def _look_for_others(self) -> None:
        """In a transaction: count it if another connection has written; in this process there is no other that does."""
        (version,) = self._db.execute("PRAGMA data_version").fetchall()[0]
        if version != self._version:
            self._changes += 1
        self._version = version
        self._checks += 1

    def _apply(self, task: _Task, *, is_only: bool) -> None:
        """Make a change. Only among others it has a savepoint, for which every page that it changes is copied."""
        db = self._db
        if not is_only:
            db.execute("SAVEPOINT change")
        self._new.clear()
        self._changed.clear()
        try:
            with translate_errors(self.path):
                task.outcome = task.action(db)
                self._count_changes()
        except BaseException as error:
            if not db.in_transaction:  # a full disk, say: SQLite gave up the whole transaction
                raise StoreError(f"{self.path} undid a transaction ({error}); nothing of it was kept") from error
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, LoomError):
                error.add_note("raised while writing; nothing of this change was kept")
            task.error = error
            self._drop_noted()
            db.execute("ROLLBACK" if is_only else "ROLLBACK TO change")
        else:
            if not db.in_transaction:  # SQLite gave it up, and the change went on without a word
                raise StoreError(f"{self.path} undid a transaction; nothing of it was kept")
        if not is_only:
            db.execute("RELEASE change")


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():  # the task that waited may have been cancelled
            waiter.set_result(None)


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


_T = TypeVar("_T")
_MEMORY = ":memory:"
_BUSY_LOG = (
    "removed text may still be in the write-ahead log of {path}, because another process is reading the file; "
    "it is emptied after a later write, when the file is closed, or by forgetting again"
)


class SqliteFile:
    """A file that is opened at the first use; `prepare` runs before that, `setup` as its first change.

    With `make_folder` the folder of a new file is made with it.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        durability: Durability = "full",
        make_folder: bool = False,
        prepare: Callable[[str], None] | None = None,
        setup: Callable[[Database], None] = lambda _: None,
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise UsageError(f"durability={durability!r} is not known; use 'full' or 'fast'")
        self.path = fspath(path)
        check_text(self.path, "the path of a store")
        self.durability: Durability = durability
        self._prepare, self._setup, self._make_folder = prepare, setup, make_folder
        self._opening = Lock()
        renew_lock_after_fork(self, "_opening")
        self._writer: Writer | None = None
        self._readers = Readers(self.path)
        self._pace = Pace()
        self._is_closed = False

    @property
    def writer(self) -> Writer | None:
        """The writer, if the file is open."""
        return self._writer

    @property
    def is_in_memory(self) -> bool:
        """Whether everything is in memory."""
        return self.path == _MEMORY

    async def opened(self) -> Writer:
        """The writer; opens the file if that was not done."""
        writer = self._writer
        if writer is None or self._is_closed:
            return await in_thread(self._open)
        writer.check_process()
        return writer

    async def view(self, action: Callable[[Database], _T], what: What | None = None) -> _T:
        """What `action` returns for one consistent view of the file.

        Where it is said what is read, and that is quick, it is read on the event loop, one such read after the other:
        between two of them everything else goes on. Two threads that read at once would hand the interpreter to and
        fro at each row, and take half as long again.
        """
        writer = await self.opened()
        if self.is_in_memory:  # another connection would be another database
            return await writer.done(writer.submit(action))
        if what is None or may_block():
            return await in_thread(partial(self._readers.run, action), _reads)
        if self._pace.is_quick(what):
            turn = await _turn_on_the_loop()
            try:
                if self._pace.is_quick(what):  # those that waited before this one may have found that it is not
                    return self._paced(what, partial(self._readers.run_at_once, action))
            except TakesLong:
                self._pace.note(what, _REFUSED)
            except MustWait:
                pass
            finally:
                turn.release()
        return await in_thread(partial(self._paced, what, partial(self._readers.run, action)), _reads)

    def _paced(self, what: What, read: Callable[[], _T]) -> _T:
        start, cpu = time.perf_counter(), time.thread_time()
        outcome = read()
        # What other threads held up is not slow by itself; what waits for a disk is.
        self._pace.note(what, max(time.thread_time() - cpu, (time.perf_counter() - start) / _WAITING))
        return outcome

    async def commit(self, action: Callable[[Database], _T]) -> _T:
        """What `action` returns, after the transaction that holds its changes is durable."""
        writer = await self.opened()
        return await writer.done(writer.submit(action))

    async def erase(self, action: Callable[[Database], _T]) -> tuple[_T, tuple[str, ...]]:
        """Like commit(), then empty the write-ahead log; the texts say what is still pending."""
        writer = await self.opened()
        # Both are queued before the first wait, so that a caller who gives up leaves no log behind.
        change, scrub = writer.submit(action), writer.submit(writer.scrub, alone=True)
        outcome = await writer.done(change)
        return outcome, self._pending(is_scrubbed=await writer.done(scrub))

    async def scrub(self) -> tuple[str, ...]:
        """Empty the write-ahead log; the texts say what is still pending."""
        writer = await self.opened()
        return self._pending(is_scrubbed=await writer.done(writer.submit(writer.scrub, alone=True)))

    async def sweep(self) -> tuple[str, ...]:
        """Write the file anew, and empty the log; the texts say what is still pending."""
        writer = await self.opened()
        return self._pending(is_scrubbed=await writer.done(writer.submit(writer.rewrite, alone=True)))

    def _pending(self, *, is_scrubbed: bool) -> tuple[str, ...]:
        return () if is_scrubbed else (_BUSY_LOG.format(path=self.path),)

    async def aclose(self) -> None:
        """Finish writing and release the file. Closing twice is allowed."""
        await in_thread(self._close)

    def _open(self) -> Writer:
        with self._opening:
            if self._is_closed:
                raise UsageError(f"the store {self.path} is closed; open another")
            if self._writer is None:
                if not self.is_in_memory:
                    if self._make_folder:
                        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
                    if self._prepare is not None:
                        self._prepare(self.path)
                writer = acquire(self.path, self.durability)
                try:
                    writer.submit(self._setup).result()
                except BaseException:
                    release(writer)
                    raise
                self._writer = writer
            return self._writer

    def _close(self) -> None:
        with self._opening:
            self._is_closed = True
            if self._writer is not None and not self._writer.is_of_this_process:
                return  # its connections are the parent's; closing them here could change the file
            writer, self._writer = self._writer, None
            self._readers.close()
            if writer is not None:
                release(writer)
