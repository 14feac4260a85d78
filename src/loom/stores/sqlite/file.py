"""An open file: its one writer, its readers, and calls from async code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
from typing import TypeVar

import anyio.to_thread

from loom.core.checks import check_text
from loom.core.forks import renew_lock_after_fork
from loom.errors import UsageError
from loom.stores.sqlite.connection import SYNCHRONOUS, Database, Durability
from loom.stores.sqlite.readers import Readers
from loom.stores.sqlite.writer import Writer, acquire, release

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
        prepare: Callable[[str], None] = lambda _: None,
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
        self._is_closed = False

    @property
    def is_in_memory(self) -> bool:
        """Whether everything is in memory."""
        return self.path == _MEMORY

    async def opened(self) -> Writer:
        """The writer; opens the file if that was not done."""
        writer = self._writer
        if writer is None or self._is_closed:
            return await anyio.to_thread.run_sync(self._open)
        writer.check_process()
        return writer

    async def view(self, action: Callable[[Database], _T]) -> _T:
        """What `action` returns for one consistent view of the file."""
        writer = await self.opened()
        if self.is_in_memory:  # another connection would be another database
            return await done(writer.submit(action))
        return await anyio.to_thread.run_sync(self._readers.run, action)

    async def commit(self, action: Callable[[Database], _T]) -> _T:
        """What `action` returns, after the transaction that holds its changes is durable."""
        writer = await self.opened()
        return await done(writer.submit(action))

    async def erase(self, action: Callable[[Database], _T]) -> tuple[_T, tuple[str, ...]]:
        """Like commit(), then empty the write-ahead log; the texts say what is still pending."""
        writer = await self.opened()
        # Both are queued before the first wait, so that a caller who gives up leaves no log behind.
        change, scrub = writer.submit(action), writer.submit(writer.scrub, alone=True)
        outcome = await done(change)
        return outcome, self._pending(is_scrubbed=await done(scrub))

    async def scrub(self) -> tuple[str, ...]:
        """Empty the write-ahead log; the texts say what is still pending."""
        writer = await self.opened()
        return self._pending(is_scrubbed=await done(writer.submit(writer.scrub, alone=True)))

    def _pending(self, *, is_scrubbed: bool) -> tuple[str, ...]:
        return () if is_scrubbed else (_BUSY_LOG.format(path=self.path),)

    async def aclose(self) -> None:
        """Finish writing and release the file. Closing twice is allowed."""
        await anyio.to_thread.run_sync(self._close)

    def _open(self) -> Writer:
        with self._opening:
            if self._is_closed:
                raise UsageError(f"the store {self.path} is closed; open another")
            if self._writer is None:
                if not self.is_in_memory:
                    if self._make_folder:
                        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
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


async def done(future: Future[_T]) -> _T:
    """Wait for the writer without holding a thread where the event loop allows it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await anyio.to_thread.run_sync(future.result)
    return await asyncio.wrap_future(future)
