"""Threads and locks: a loop for blocking callers, work off the loop, locks after a fork and per key."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from threading import Lock, Thread, local
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakValueDictionary, ref

from loom.core.checks import ON_LOOP
from loom.core.doors import Late
from loom.core.scope import Scope
from loom.errors import UsageError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent import futures
    from concurrent.futures import Future

    import anyio
    from anyio import from_thread, lowlevel, to_thread
    from anyio.from_thread import BlockingPortal
else:  # what only reads a file, as a hook does, waits for nothing
    futures, anyio = Late("concurrent.futures"), Late("anyio")
    from_thread, to_thread, lowlevel = Late("anyio.from_thread"), Late("anyio.to_thread"), Late("anyio.lowlevel")

_T = TypeVar("_T")


class Portal:
    """Runs async code for blocking code, on one loop for as long as it is open.

    Its thread does not keep a program alive: one that forgets close() ends all the same. A process that is forked
    later does not have that thread; call() refuses there, and close() has nothing to do.
    """

    def __init__(self, owner: str = "this portal") -> None:
        """Start the loop; `owner` is what errors call it."""
        started: Future[BlockingPortal] = futures.Future()
        self._owner, self._pid = owner, os.getpid()
        self._streams: set[Future[None]] = set()
        self._blocks = 0
        self._thread = Thread(target=_run, args=(started,), name="loom portal", daemon=True)
        self._thread.start()
        self._portal = started.result()

    @property
    def is_of_this_process(self) -> bool:
        """Whether its thread runs in this process, which was not forked since."""
        return os.getpid() == self._pid

    def call(self, function: Callable[[], Awaitable[_T]]) -> _T:
        """Run an async function there and wait for what it returns; a caller that is interrupted stops it.

        Raises:
            UsageError: the process was forked after the portal was opened.
        """
        portal, stop = self._checked(), _Stop()
        try:
            return portal.start_task_soon(stop.guard, function).result()
        except KeyboardInterrupt:  # which may come before the future of the task is known here
            portal.start_task_soon(stop.now)
            raise

    def start(self, function: Callable[[], Awaitable[_T]]) -> Future[_T]:
        """Run an async function there, for a caller that does other things meanwhile; cancelling the future stops it.

        Raises:
            UsageError: the process was forked after the portal was opened.
        """
        return self._checked().start_task_soon(function)

    @contextmanager
    def enter(self, make: Callable[[], AbstractAsyncContextManager[_T]]) -> Generator[_T]:
        """An async context manager for a `with` block; it is entered and left in one task there."""
        with self._checked().wrap_async_context_manager(make()) as value:
            self._blocks += 1
            try:
                yield value
            finally:
                self._blocks -= 1

    def iterate(self, make: Callable[[], AsyncIterable[_T]]) -> Generator[_T]:
        """The items of an async iterable, each made when it is asked for. Leaving the loop early closes the iterable.

        One task makes all items, as cancel scopes and context variables belong to a task. It waits between items, so
        that an iterable which is left is closed where it stands, and only one that is at work is cancelled.
        """
        portal = self._checked()
        stream: _Stream[_T] = portal.call(_Stream[_T], make)
        task = portal.start_task_soon(stream.run)
        self._streams.add(task)
        try:
            while items := portal.call(stream.next):
                yield items.pop()
        except GeneratorExit:
            if sys.is_finalizing():  # the thread of the loop does not run any more
                return
        except BaseException:
            task.cancel()
            raise
        finally:
            self._streams.discard(task)
            if self._thread.is_alive() and not sys.is_finalizing():
                portal.call(stream.leave)
        if not task.cancelled():
            task.result()

    def _checked(self) -> BlockingPortal:
        if not self.is_of_this_process:
            raise UsageError(f"{self._owner} was opened before this process was forked; open it again here")
        if not self._thread.is_alive():
            raise UsageError(f"{self._owner} is closed; open another")
        return self._portal

    def close(self) -> None:
        """End the loop. Closing twice is allowed."""
        if self.is_of_this_process and self._thread.is_alive():
            for task in self._streams.copy():
                task.cancel()
            self._portal.call(self._portal.stop, bool(self._blocks))
            self._thread.join()


class _Stop:
    """Stops one call from outside, whether it has begun by then or not."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._is_asked = False

    async def guard(self, function: Callable[[], Awaitable[_T]]) -> _T:
        with anyio.CancelScope() as self._scope:
            if self._is_asked:
                self._scope.cancel()
            return await function()
        raise AssertionError("nobody waits for a call that was stopped")

    async def now(self) -> None:
        self._is_asked = True
        if self._scope is not None:
            self._scope.cancel()


class _Stream(Generic[_T]):
    """Makes the items of an async iterable in one task, and hands them to others on the same loop."""

    def __init__(self, make: Callable[[], AsyncIterable[_T]]) -> None:
        self._make = make
        self._made: list[_T] = []
        self._is_left = self._is_over = False
        self._wanted, self._answered = anyio.Event(), anyio.Event()

    async def run(self) -> None:
        """Make an item each time one is wanted, and close the iterable in the end."""
        items: AsyncIterator[_T] | None = None
        try:
            items = aiter(self._make())
            while await self._is_wanted():
                self._made.append(await anext(items))
                self._answered.set()
        except StopAsyncIteration:
            pass
        finally:
            self._is_over = True
            self._answered.set()
            if isinstance(items, AsyncGenerator):
                await cast("AsyncGenerator[_T]", items).aclose()

    async def next(self) -> list[_T]:
        """The next item; empty where there are no more, or making one failed."""
        if not self._is_over:
            self._answered = anyio.Event()
            self._wanted.set()
            await self._answered.wait()
        made, self._made = self._made, []
        return made

    def leave(self) -> None:
        """No more items are wanted."""
        self._is_left = True
        self._wanted.set()

    async def _is_wanted(self) -> bool:
        await self._wanted.wait()
        self._wanted = anyio.Event()
        return not self._is_left


def _run(started: Future[BlockingPortal]) -> None:
    try:
        anyio.run(_serve, started)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _serve(started: Future[BlockingPortal]) -> None:
    async with from_thread.BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()


# Async code that needs no loop: it waits for threads and locks only, and a blocking caller can wait for those itself.


class _Blocking(local):
    calls = 0


_BLOCKING = _Blocking()


def run_here(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of async code that never waits, or asks may_block() before it does, run in this thread."""
    _BLOCKING.calls += 1
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    finally:
        _BLOCKING.calls -= 1
    work.close()
    raise RuntimeError("async code that was called without an event loop waited for one")


def may_block() -> bool:
    """Whether this is inside run_here(): the thread itself waits, and no loop is held up by it."""
    return _BLOCKING.calls > 0


async def in_thread(work: Callable[[], _T], limiter: Callable[[], anyio.CapacityLimiter | None] = lambda: None) -> _T:
    """What `work`, which blocks, returns: from a thread of its own, or inside run_here() from this one."""
    return work() if may_block() else await to_thread.run_sync(work, limiter=limiter())


# Work that grows with a text: done at once where there is little of it, in a thread where there is much.


async def off_loop(chars: int, work: Callable[[], _T]) -> _T:
    """What `work` returns. Over more than ON_LOOP characters it runs in a thread; it must not touch what others change.

    Work that began is finished, also where the caller is cancelled meanwhile.
    """
    return work() if chars <= ON_LOOP else await to_thread.run_sync(work)


# What belongs to an event loop, as a connection does: no other loop may use it, and it ends with its loop.


class PerLoop(Generic[_T]):
    """One value for each event loop of asyncio that asks, such as its connections to a server."""

    def __init__(self) -> None:
        self._of: dict[AbstractEventLoop, _T] = {}

    @property
    def here(self) -> _T | None:
        """The value of the loop that is running; None if it has none yet."""
        return self._of.get(_loop())

    def set(self, value: _T) -> None:
        """Give the loop that is running its value; those of loops that have ended go."""
        self._of = {loop: old for loop, old in self._of.items() if not loop.is_closed()} | {_loop(): value}

    async def close(self, end: Callable[[_T], Coroutine[Any, Any, None]]) -> None:
        """End all values: that of this loop here, those of other loops on them, without waiting for it."""
        import asyncio  # noqa: PLC0415 - takes long, and not everybody has a loop

        here = _loop()
        for loop, value in [(loop, self._of.pop(loop)) for loop in list(self._of)]:
            if loop is here:
                await end(value)
            elif not loop.is_closed():
                asyncio.run_coroutine_threadsafe(end(value), loop)


def _loop() -> AbstractEventLoop:
    import asyncio  # noqa: PLC0415

    return asyncio.get_running_loop()


# Locks in forked processes: the thread that held one does not exist there, so it would never be released.

_HOLDERS: dict[tuple[int, str], ref[Any]] = {}


def renew_lock_after_fork(holder: object, name: str) -> None:
    """Give `holder` a new lock as its attribute `name` in every process that is forked from this one.

    For locks that a child may need: those of a module, and those of objects that work on both sides of a fork.
    """
    key = (id(holder), name)
    _HOLDERS[key] = ref(holder, lambda _: _HOLDERS.pop(key, None))


def _renew() -> None:
    for (_, name), holder in list(_HOLDERS.items()):
        if (found := holder()) is not None:
            setattr(found, name, Lock())


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_renew)


# Objects that one event loop at a time may use: what waits for their locks belongs to a loop.


class OneLoop:
    """Refuses a loop while another one uses the same object: it would wait for ever, because locks belong to a loop."""

    def __init__(self, refusal: str) -> None:
        """Refuse with these words."""
        self._refusal = refusal
        self._uses: Counter[Any] = Counter()
        self._lock = Lock()
        renew_lock_after_fork(self, "_lock")

    @contextmanager
    def used(self) -> Generator[None]:
        """Use the object on this loop.

        Raises:
            UsageError: another loop is using it.
        """
        loop = lowlevel.current_token().native_token
        with self._lock:
            if any(other is not loop and not _has_ended(other) for other in self._uses):
                raise UsageError(self._refusal)
            self._uses[loop] += 1
        try:
            yield
        finally:
            with self._lock:
                self._uses[loop] -= 1
                self._uses += Counter()  # drops loops that wait for nothing


def _has_ended(loop: Any) -> bool:
    """Whether a loop was closed, perhaps with something still open on it."""
    return bool(getattr(loop, "is_closed", bool)())


# Locks per scope, so that one task at a time reads, decides and writes for a user.


class Locks:
    """One lock per scope, alive while it is in use."""

    def __init__(self, *, fast_acquire: bool = False) -> None:
        """With `fast_acquire`, taking a lock that is free lets no other task run first."""
        self._locks: WeakValueDictionary[Scope | None, anyio.Lock] = WeakValueDictionary()
        self._fast_acquire = fast_acquire

    def of(self, scope: Scope | None) -> anyio.Lock:
        """The lock of exactly this scope; that of None belongs to no scope."""
        return self._locks.setdefault(scope, anyio.Lock(fast_acquire=self._fast_acquire))
