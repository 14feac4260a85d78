"""Where the calls of an adapter run, and how it is closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from loom.core.threads import OneLoop, Portal, renew_lock_after_fork, run_here
from loom.engine.open import open_checkpoints, open_memory
from loom.errors import UsageError
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore


class _CanClose(Protocol):
    def aclose(self) -> Coroutine[Any, Any, None]: ...


_R = TypeVar("_R")
_T = TypeVar("_T", bound=_CanClose)


_OTHER_LOOP = (
    "this memory was given as an object, and another event loop is using it; give the adapter a URL, and it can be "
    "used from any thread"
)


class Home(Generic[_T]):
    """A memory or a store, and the loop that its calls run on.

    A store that needs no loop is called where the caller is. Anything else that is opened here, of a URL, has a loop of
    its own in a thread: any loop of any thread may call, and blocking code too. Given as an object it stays with the
    loop that calls, and is left open; blocking code then calls on a loop in a thread, which is ended. With `one_loop`,
    an object that two loops use at one time raises UsageError: a memory would wait for ever, because its locks belong
    to a loop.
    """

    def __init__(self, of: _T, *, owns: bool, one_loop: bool = False) -> None:
        self.of, self.owns = of, owns
        self._loop = OneLoop(_OTHER_LOOP) if one_loop else None
        self._needs_loop: bool = getattr(of, "needs_loop", True)
        self._portal: Portal | None = None
        self._process: int | None = None
        self._is_closed = False
        self._lock = Lock()
        renew_lock_after_fork(self, "_lock")

    async def call(self, function: Callable[[_T], Coroutine[Any, Any, _R]]) -> _R:
        """Call it from async code."""
        if self.owns and self._needs_loop:
            return await asyncio.wrap_future(self._thread().start(partial(function, self.of)))
        if self.owns:
            self._check()
        with self._loop.used() if self._loop else nullcontext():
            return await function(self.of)

    def run(self, function: Callable[[_T], Coroutine[Any, Any, _R]]) -> _R:
        """Call it from blocking code, and wait."""
        if self._needs_loop:
            return self._thread().call(partial(function, self.of))
        self._check()
        return run_here(function(self.of))

    def _check(self) -> None:
        """Refuse calls after the end, and in a process that was forked after the first."""
        if self._is_closed and self.owns:
            raise UsageError("this adapter is closed; make another")
        if self._process not in (None, os.getpid()):
            raise UsageError("this adapter was opened before this process was forked; open it again here")
        self._process = os.getpid()

    def _thread(self) -> Portal:
        with self._lock:
            self._check()
            if self._portal is None:
                self._portal = Portal("this adapter")
            return self._portal

    async def aclose(self) -> None:
        """Close what was opened here. Closing twice is allowed."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close what was opened here. Closing twice is allowed."""
        with self._lock:
            portal, self._portal, self._is_closed = self._portal, None, True
        if self._process != os.getpid():  # nothing was opened, or not here
            return
        try:
            if self.owns and not self._needs_loop:
                run_here(self.of.aclose())
            elif self.owns and portal is not None:
                portal.call(self.of.aclose)
        finally:
            if portal is not None:
                portal.close()


class Owner:
    """The doors with which an adapter is closed; it gives `_home`."""

    _home: Home[Any]

    async def aclose(self) -> None:
        """Close what was opened from a URL; what was given as an object stays open."""
        await self._home.aclose()

    def close(self) -> None:
        """The same for blocking code."""
        self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def home_of_memory(memory: str | Mapping[str, Any] | Memory) -> Home[Memory]:
    """The home of a memory: of an open one, or of one to open."""
    return Home(open_memory(memory), owns=not isinstance(memory, Memory), one_loop=True)


def home_of_checkpoints(store: str | CheckpointStore) -> Home[CheckpointStore]:
    """The home of a store of sessions: of an open one, or of one to open."""
    return Home(open_checkpoints(store), owns=isinstance(store, str))
