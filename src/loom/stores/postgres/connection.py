"""Connections to one server: opened at the first use, lent for one transaction each, with the scope set in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from loom.core.scope import Scope
from loom.errors import MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.stores.postgres.owners import lock_of, owner_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

    Database: TypeAlias = AsyncConnection[tuple[Any, ...]]

Row: TypeAlias = tuple[Any, ...]

# All of it ends with the transaction: a pooled connection carries nothing from one user to the next.
BEGIN = (
    "SELECT set_config('search_path', %s, true), set_config('statement_timeout', %s, true), "
    "set_config('loom.owner', %s, true), set_config('loom.everybody', %s, true)"
)
_PASSING = ("starting up", "shutting down", "too many clients", "remaining connection slots", "recovery mode")


async def rows(db: Database, sql: str, *values: Any) -> list[Row]:
    """All rows of a statement."""
    return await (await db.execute(sql.encode(), values)).fetchall()


async def one(db: Database, sql: str, *values: Any) -> Row | None:
    """The first row of a statement."""
    return await (await db.execute(sql.encode(), values)).fetchone()


async def run(db: Database, sql: str, *values: Any) -> int:
    """Run a statement, or without values several; returns how many rows the last one changed."""
    return (await db.execute(sql.encode(), values or None)).rowcount


async def run_many(db: Database, sql: str, values: Sequence[Sequence[Any]]) -> None:
    """Run a statement for each of these values."""
    if not values:
        return
    async with db.cursor() as cursor:
        await cursor.executemany(sql.encode(), values)


async def connect(dsn: str, *, timeout: float = 10) -> Database:  # noqa: ASYNC109 - libpq's own
    """One connection of its own."""
    psycopg = _driver()
    return await psycopg.AsyncConnection.connect(dsn, connect_timeout=max(2, round(timeout)))


def spoken_name(dsn: str) -> str:
    """The server and database of a DSN, in words that hold no password."""
    _driver()
    from psycopg import ProgrammingError, conninfo  # noqa: PLC0415

    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except ProgrammingError:
        # What the driver says may repeat a piece of the address, the password included.
        raise UsageError(
            "the address of the Postgres server cannot be read; write postgresql://user:password@host:5432/database, "
            "with %20 for a space and the like for other characters"
        ) from None
    host, port = parts.get("host", "localhost"), parts.get("port", 5432)
    return f"postgresql://{parts.get('user', '')}@{host}:{port}/{parts.get('dbname', '')}"


def _driver() -> Any:
    try:
        import_module("psycopg_pool")
        return import_module("psycopg")
    except ImportError as error:
        raise MissingExtra(f"the Postgres store ({error.name or error} cannot be imported)", "postgres") from error


@contextmanager
def spoken_errors(where: str) -> Generator[None]:
    """Errors of the driver as errors of Loom."""
    from psycopg import DataError, Error  # noqa: PLC0415
    from psycopg_pool import PoolClosed, PoolTimeout  # noqa: PLC0415

    try:
        yield
    except PoolClosed as error:
        raise UsageError(f"the store {where} is closed; open another") from error
    except PoolTimeout as error:
        raise StoreUnavailable(
            f"no connection to {where} became free in time; try again or use a larger pool"
        ) from error
    except (DataError, UnicodeEncodeError) as error:
        raise UsageError(f"Postgres cannot hold what was given: {error}; remove such characters or numbers") from error
    except Error as error:
        raise _spoken(error, where) from error


def _spoken(error: Any, where: str) -> StoreError:
    from psycopg import OperationalError, errors  # noqa: PLC0415

    said = str(error).strip()
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(f"{where} refused it: {said}; connect as the role that `loom store init` made")
    if isinstance(error, errors.QueryCanceled):
        return StoreUnavailable(f"{where} took too long and was stopped; try again or allow a longer timeout")
    if isinstance(error, OperationalError):
        if error.sqlstate is None and "FATAL:" in said and not any(word in said for word in _PASSING):
            return StoreError(f"{where} refused the connection: {said}; check the user, the password and the database")
        return StoreUnavailable(f"{where} cannot be reached or broke off: {said}; try again when it answers")
    return StoreError(f"{where} failed: {said}; nothing was written")


class Server:
    """A pool of connections. `check` looks at the first one and returns the search path for all of them."""

    def __init__(self, dsn: str, *, pool_size: int, timeout: float, check: Any) -> None:
        self._dsn, self._pool_size, self._timeout, self._check = dsn, pool_size, timeout, check
        self._opening = anyio.Lock()
        self._pool: AsyncConnectionPool[Database] | None = None
        self._path = ""
        self._is_closed = False
        self.name = "postgresql"

    async def open(self) -> AsyncConnectionPool[Database]:
        """The pool, opened and checked at the first call."""
        async with self._opening:
            if self._is_closed:
                raise UsageError(f"the store {self.name} is closed; open another")
            if self._pool is None:
                self._pool = await self._opened()
            return self._pool

    async def _opened(self) -> AsyncConnectionPool[Database]:
        self.name = spoken_name(self._dsn)
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        with spoken_errors(self.name):
            # Alone and first, because a pool would try again and again and never say what is wrong.
            async with await connect(self._dsn, timeout=self._timeout) as db:
                self._path = await self._check(db, self.name)
            pool: AsyncConnectionPool[Database] = AsyncConnectionPool(
                self._dsn,
                min_size=1,
                max_size=self._pool_size,
                timeout=self._timeout,
                kwargs={"connect_timeout": max(2, round(self._timeout)), "keepalives_idle": 30,
                        "tcp_user_timeout": round(self._timeout * 1000)},
                check=AsyncConnectionPool.check_connection,
                open=False,
            )  # fmt: skip
            await pool.open()
        return pool

    @asynccontextmanager
    async def transaction(self, scope: Scope | None, *, writes: bool = False) -> AsyncGenerator[Database]:
        """A transaction that sees the rows of this user, or of everybody; a user's writers go one at a time."""
        pool = await self.open()
        owner, everybody = ("", "on") if scope is None else (str(owner_of(scope)), "")
        with spoken_errors(self.name):
            async with pool.connection() as db:
                await one(db, BEGIN, self._path, str(round(self._timeout * 1000)), owner, everybody)
                if writes and scope is not None:
                    await one(db, "SELECT pg_advisory_xact_lock(%s)", lock_of(scope))
                yield db

    async def close(self) -> None:
        """Give all connections back."""
        async with self._opening:
            self._is_closed = True
            pool, self._pool = self._pool, None
            if pool is not None:
                await pool.close()
