"""A loop for programs that have none: it runs in a thread of its own."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from anyio import run
from anyio.from_thread import BlockingPortal

from loom.errors import UsageError

_T = TypeVar("_T")


class Portal:
    """Runs async code for blocking code, on one loop for as long as it is open.

    Its thread does not keep a program alive: one that forgets close() ends all the same. A process that is forked
    later does not have that thread; call() refuses there, and close() has nothing to do.
    """

    def __init__(self, owner: str = "this portal") -> None:
        """Start the loop; `owner` is what errors call it."""
        started: Future[BlockingPortal] = Future()
        self._owner, self._pid = owner, os.getpid()
        self._thread = Thread(target=_run, args=(started,), name="loom portal", daemon=True)
        self._thread.start()
        self._portal = started.result()

    @property
    def is_of_this_process(self) -> bool:
        """Whether its thread runs in this process, which was not forked since."""
        return os.getpid() == self._pid

    def call(self, function: Callable[[], Awaitable[_T]]) -> _T:
        """Run an async function there and wait for what it returns.

        Raises:
            UsageError: the process was forked after the portal was opened.
        """
        if not self.is_of_this_process:
            raise UsageError(f"{self._owner} was opened before this process was forked; open it again here")
        return self._portal.call(function)

    def close(self) -> None:
        """End the loop. Closing twice is allowed."""
        if self.is_of_this_process and self._thread.is_alive():
            self._portal.call(self._portal.stop)
            self._thread.join()


def _run(started: Future[BlockingPortal]) -> None:
    try:
        run(_serve, started)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _serve(started: Future[BlockingPortal]) -> None:
    async with BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()
