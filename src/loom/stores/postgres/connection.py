"""Connections to a Postgres server, and the row owners of a scope."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

import anyio

from loom.core.scope import Scope
from loom.errors import MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.stores.base import damage_at

# Which rows belong to whom: a user as one number of fixed size, and what a scope may see.

_AFTER = "SELECT namespace, user_id FROM users WHERE (namespace, user_id) > (%s, %s) ORDER BY 1, 2 LIMIT %s"


def owner_of(scope: Scope) -> UUID:
    """The number of the scope's user: a digest of namespace and user id, so that no character of them has a meaning."""
    return UUID(bytes=_digest(scope)[:16])


async def all_users(db: Database, after: Scope | None, limit: int) -> tuple[Scope, ...]:
    """Users of whom something was written, by namespace and user, from behind `after`."""
    last = ("", "") if after is None else (after.namespace, after.user_id)
    found = await (await db.execute(_AFTER, (*last, limit))).fetchall()
    return tuple(Scope(namespace, user_id) for namespace, user_id in found)


def seen(scope: Scope) -> tuple[str, tuple[Any, ...]]:
    """The condition on `records AS r` for what the scope sees; facts and blocks have no layer and no session."""
    if scope.session_id is None:
        return "r.owner = %s", (owner_of(scope),)
    return "r.owner = %s AND (r.layer IS NULL OR r.session_id = %s)", (owner_of(scope), scope.session_id)


def _digest(scope: Scope) -> bytes:
    return sha256(scope.for_user().key().encode()).digest()


if TYPE_CHECKING:
    from psycopg import AsyncConnection, AsyncCursor
    from psycopg_pool import AsyncConnectionPool

Row: TypeAlias = tuple[Any, ...]
Database: TypeAlias = "AsyncConnection[Row]"
Cursor: TypeAlias = "AsyncCursor[Row]"

# All of it ends with the transaction: a pooled connection carries nothing from one user to the next. One message, with
# the values in it, because each message more is a way to the server and back.
BEGIN = (
    "BEGIN ISOLATION LEVEL {level}; SELECT set_config('search_path', {path}, true), "
    "set_config('statement_timeout', '{timeout}', true), "
    "set_config('idle_in_transaction_session_timeout', '{timeout}', true), "
    "set_config('loom.owner', '{owner}', true), set_config('loom.everybody', '{everybody}', true)"
)
# As the last of them: what went before was said with the rights of the role that is connected.
ACT = ", set_config('role', {role}, true)"
LOCK = "; SELECT pg_advisory_xact_lock({})"
# Who waited for a lock has to see what the one before wrote; who searches, the same in every statement.
_NEWEST, _UNCHANGED = "READ COMMITTED", "REPEATABLE READ"
_PASSING = ("starting up", "shutting down", "too many clients", "remaining connection slots", "recovery mode")


class Packed(bytes):
    """A value as the server receives it: its type is the one that the statement says."""


class PackedVector(Packed):
    """A vector as pgvector receives it."""


class Access(NamedTuple):
    """How a server is used: the search path, whom each transaction acts as, and what a person should know of it."""

    path: str
    acts_as: str | None = None
    notes: tuple[str, ...] = ()
    prepare: Callable[[Database], Awaitable[None]] | None = None
    """What a new connection has to learn; the usual if None."""


async def take_packed(db: Database) -> None:
    """Teach a connection to send what is packed."""
    from psycopg import adapt, pq  # noqa: PLC0415

    class PackedDumper(adapt.Dumper):
        format = pq.Format.BINARY

        def dump(self, obj: Packed) -> bytes:
            return obj

    for kind in (Packed, PackedVector):
        db.adapters.register_dumper(kind, PackedDumper)


async def rows(db: Database, sql: str, *values: Any) -> list[Row]:
    """All rows of a statement."""
    return await (await db.execute(sql.encode(), values)).fetchall()


async def fetch(db: Database, sql: str, *values: Any) -> list[Row]:
    """All rows of a search, as binary: for bytes, numbers and texts alone, which are then quicker to read."""
    return await (await db.execute(sql.encode(), values, binary=True)).fetchall()


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


async def connect(dsn: str, *, timeout: float = 10, autocommit: bool = False) -> Database:  # noqa: ASYNC109 - libpq's own
    """One connection of its own."""
    psycopg = _driver()
    return await psycopg.AsyncConnection.connect(dsn, connect_timeout=max(2, round(timeout)), autocommit=autocommit)


def name_of(dsn: str) -> str:
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
def translate_errors(where: str, *, needed: str = "the role that `loom store init` made") -> Generator[None]:
    """Errors of the driver as errors of Loom; `needed` is who is allowed to do it."""
    from psycopg import DataError, Error  # noqa: PLC0415
    from psycopg_pool import PoolClosed, PoolTimeout  # noqa: PLC0415

    try:
        with damage_at(where):
            yield
    except PoolClosed as error:
        raise UsageError(f"the store {where} is closed; open another") from error
    except TimeoutError as error:
        raise _too_long(where) from error
    except PoolTimeout as error:
        raise StoreUnavailable(
            f"no connection to {where} became free in time; try again or use a larger pool"
        ) from error
    except (DataError, UnicodeEncodeError) as error:
        raise UsageError(f"Postgres cannot hold what was given: {error}; remove such characters or numbers") from error
    except Error as error:
        raise _store_error(error, where, needed) from error


def _store_error(error: Any, where: str, needed: str) -> StoreError:
    from psycopg import OperationalError, errors  # noqa: PLC0415

    answer = str(error).strip()
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(f"{where} refused it: {answer}; connect as {needed}")
    if isinstance(error, errors.QueryCanceled):
        return _too_long(where)
    if isinstance(error, OperationalError):
        if error.sqlstate is None and "FATAL:" in answer and not any(word in answer for word in _PASSING):
            return StoreError(
                f"{where} refused the connection: {answer}; check the user, the password and the database"
            )
        return StoreUnavailable(f"{where} cannot be reached or broke off: {answer}; try again when it answers")
    return StoreError(f"{where} failed: {answer}; nothing was written")


def _too_long(where: str) -> StoreUnavailable:
    return StoreUnavailable(f"{where} took too long and was given up; try again or allow a longer timeout")


async def _begun(db: Database, begin: str) -> Cursor | None:
    """Begin a transaction; returns what the server said, or None on a connection that broke while it was idle."""
    from psycopg import OperationalError  # noqa: PLC0415

    try:
        return await db.execute(begin.encode())
    except OperationalError:
        if not db.closed:
            raise
        return None


class Server:
    """A pool of connections. `check` looks at the first one and says how all of them are used.

    A transaction has `timeout` seconds in all, whatever it waits for: a connection, a lock, or an answer from a server
    that is not there any more.
    """

    def __init__(self, dsn: str, *, pool_size: int, timeout: float, check: Any) -> None:
        self._dsn, self._pool_size, self._timeout, self._check = dsn, pool_size, timeout, check
        self._opening = anyio.Lock()
        self._pool: AsyncConnectionPool[Database] | None = None
        self._path, self._act = "", ""
        self.notes: tuple[str, ...] = ()
        """What a person should know of what the server guarantees; nothing before it was opened."""
        self._is_closed = False
        self.name = "postgresql"

    async def open(self) -> AsyncConnectionPool[Database]:
        """The pool, opened and checked at the first call."""
        try:
            # Also for those who wait until another has tried.
            with anyio.fail_after(self._timeout):
                async with self._opening:
                    if self._is_closed:
                        raise UsageError(f"the store {self.name} is closed; open another")
                    if self._pool is None:
                        self._pool = await self._opened()
                    return self._pool
        except TimeoutError as error:
            raise _too_long(self.name) from error

    async def _opened(self) -> AsyncConnectionPool[Database]:
        self.name = name_of(self._dsn)
        from psycopg import sql  # noqa: PLC0415
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        with translate_errors(self.name):
            # Alone and first, because a pool would try again and again and never say what is wrong.
            async with await connect(self._dsn, timeout=self._timeout) as db:
                access: Access = await self._check(db, self.name)
                self._path = sql.Literal(access.path).as_string(db)
                self._act = ACT.format(role=sql.Literal(access.acts_as).as_string(db)) if access.acts_as else ""
        self.notes = access.notes
        pool: AsyncConnectionPool[Database] = AsyncConnectionPool(
            self._dsn,
            min_size=0,  # with 1, the first transaction would find that one not there yet, and make another
            max_size=self._pool_size,
            timeout=self._timeout,
            # A transaction begins and ends with messages of its own.
            kwargs={"autocommit": True, "connect_timeout": max(2, round(self._timeout)), "keepalives_idle": 30,
                    "tcp_user_timeout": round(self._timeout * 1000)},
            configure=access.prepare or take_packed,
            open=False,
        )  # fmt: skip
        await pool.open()
        return pool

    @asynccontextmanager
    async def transaction(self, scope: Scope | None, *, writes: bool = False) -> AsyncGenerator[Database]:
        """A transaction that sees the rows of this user, or of all users; a user's writers go one at a time."""
        lock = ""
        if writes and scope is not None:
            lock = LOCK.format(int.from_bytes(_digest(scope)[16:24], signed=True))
        async with self._lent(scope, lock) as (db, _):
            yield db
            await db.commit()

    @asynccontextmanager
    async def looking(self, scope: Scope, look: str) -> AsyncGenerator[tuple[Database, Row]]:
        """A transaction in which nothing changes, and the one row that a statement at its start gives.

        The statement goes with the message that begins it, so its text may hold nothing that a caller wrote.
        """
        async with self._lent(scope, f"; {look}", level=_UNCHANGED) as (db, answer):
            await answer.set_result(-1)
            yield db, await answer.fetchone() or ()
            await db.commit()

    async def glance(self, scope: Scope | None, look: str) -> Row | None:
        """The first row of a statement, as in looking(), in a transaction that is one message from begin to end."""
        async with self._lent(scope, f"; {look}; COMMIT") as (_, answer):
            await answer.set_result(-2)
            return await answer.fetchone()

    @asynccontextmanager
    async def _lent(
        self, scope: Scope | None, more: str, *, level: str = _NEWEST
    ) -> AsyncGenerator[tuple[Database, Cursor]]:
        """A connection on which a transaction was begun and `more` was said with it, and what the server answered."""
        end = anyio.current_time() + self._timeout
        pool = await self.open()
        owner, everybody = ("", "on") if scope is None else (str(owner_of(scope)), "")
        timeout = round(self._timeout * 1000)
        begin = BEGIN.format(level=level, path=self._path, timeout=timeout, owner=owner, everybody=everybody)
        begin += self._act + more
        with translate_errors(self.name):
            # Every connection of the pool may have broken since its last use, and then a new one is the next.
            for _ in range(self._pool_size + 1):
                async with pool.connection(timeout=end - anyio.current_time()) as db:
                    try:
                        with anyio.fail_after(end - anyio.current_time()):
                            answer = await _begun(db, begin)
                            if answer is None:
                                continue
                            yield db, answer
                            return
                    except TimeoutError:
                        # Its statement may still run; no other call may get the answer.
                        await db.close()
                        raise
        raise StoreUnavailable(f"{self.name} broke off every connection; try again when it answers")

    async def close(self) -> None:
        """Give all connections back."""
        async with self._opening:
            self._is_closed = True
            pool, self._pool = self._pool, None
            if pool is not None:
                await pool.close()
