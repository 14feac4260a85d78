"""Checkpoints in one SQLite file."""

from __future__ import annotations

from os import PathLike
from typing import Self

from loom.core.clock import Clock
from loom.core.scope import Scope
from loom.stores.checkpoints import Action, BaseCheckpointStore, Removed, T, check_limit, finish
from loom.stores.sqlite.checkpoint_rows import UserRows, all_users
from loom.stores.sqlite.checkpoint_schema import prepare, setup
from loom.stores.sqlite.connection import Durability
from loom.stores.sqlite.file import SqliteFile


class SqliteCheckpointStore(BaseCheckpointStore):
    """Keeps sessions in one file; forks and prunes. Several stores, threads and processes may share it.

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
        super().__init__(clock)
        first = prepare if small_pages else _keep_pages
        self._file = SqliteFile(path, durability=durability, make_folder=make_folder, prepare=first, setup=setup)

    async def __aenter__(self) -> Self:
        await self._file.opened()
        return self

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        run = self._file.commit if writes else self._file.view
        return await run(lambda db: finish(action(UserRows(db, scope))))

    async def _erase(self, scope: Scope, action: Action[Removed]) -> tuple[Removed, tuple[str, ...]]:
        return await self._file.erase(lambda db: finish(action(UserRows(db, scope))))

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users who have sessions here, by namespace and user, from behind `after`."""
        check_limit(limit)
        return await self._file.view(lambda db: all_users(db, after, limit))

    async def aclose(self) -> None:
        """Finish writing and release the file. Closing twice is allowed."""
        await self._file.aclose()


def _keep_pages(path: str) -> None:
    """Leave the pages of a new file to SQLite."""
