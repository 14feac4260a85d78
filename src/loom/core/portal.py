"""A loop for programs that have none: it runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from anyio import run
from anyio.from_thread import BlockingPortal

_T = TypeVar("_T")


class Portal:
    """Runs async code for blocking code, on one loop for as long as it is open.

    Its thread does not keep a program alive: one that forgets close() ends all the same.
    """

    def __init__(self) -> None:
        started: Future[BlockingPortal] = Future()
        self._thread = Thread(target=_run, args=(started,), name="loom portal", daemon=True)
        self._thread.start()
        self._portal = started.result()

    def call(self, function: Callable[[], Awaitable[_T]]) -> _T:
        """Run an async function there and wait for what it returns."""
        return self._portal.call(function)

    def close(self) -> None:
        """End the loop. Closing twice is allowed."""
        if self._thread.is_alive():
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
