"""Connections to a Postgres server, and the row owners of a scope."""

# ruff: noqa: S608 - only digests and numbers that this module makes stand in SQL; every other value is bound

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, urlencode
from uuid import UUID, uuid4

import anyio

from loom.core.scope import Scope
from loom.core.threads import PerLoop
from loom.errors import EmbedderMismatch, MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.stores.base import damage_at

# Which rows belong to whom: a user as one number of fixed size, and what a scope may see.

_AFTER = "SELECT namespace, user_id FROM {} WHERE (namespace, user_id) > (%s, %s) ORDER BY 1, 2 LIMIT %s"


def owner_of(scope: Scope) -> UUID:
    """The number of the scope's user: a digest of namespace and user id, so that no character of them has a meaning."""
    return UUID(bytes=_digest(scope)[:16])


async def all_users(
    db: Database, after: Scope | None, limit: int, *, table: Literal["users", "checkpoint_users"] = "users"
) -> tuple[Scope, ...]:
    """Users of whom something was written, by namespace and user, from behind `after`."""
    last = ("", "") if after is None else (after.namespace, after.user_id)
    found = await (await db.execute(_AFTER.format(table), (*last, limit))).fetchall()
    return tuple(Scope(namespace, user_id) for namespace, user_id in found)


def seen(scope: Scope) -> tuple[str, tuple[Any, ...]]:
    """The condition on `records AS r` for what the scope sees; facts and blocks have no layer and no session."""
    if scope.session_id is None:
        return "r.owner = %s", (owner_of(scope),)
    return "r.owner = %s AND (r.layer IS NULL OR r.session_id = %s)", (owner_of(scope), scope.session_id)


def _digest(scope: Scope) -> bytes:
    return sha256(scope.for_user().key().encode()).digest()


_T = TypeVar("_T")

if TYPE_CHECKING:
    from psycopg import AsyncConnection, AsyncCursor
    from psycopg_pool import AsyncConnectionPool

Row: TypeAlias = tuple[Any, ...]
Database: TypeAlias = "AsyncConnection[Row]"
Cursor: TypeAlias = "AsyncCursor[Row]"
_Looked: TypeAlias = "Callable[[Database, Sequence[Row | None]], Awaitable[_T]]"

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
# Read before the snapshot of the transaction that follows is taken: what was replayed then is in it.
HAS_REPLAYED = "BEGIN; SELECT pg_is_in_recovery() AND pg_last_wal_replay_lsn() >= '{}'::pg_lsn; COMMIT; "
REPLAYED = "; SELECT pg_last_wal_replay_lsn()::text"
WRITTEN = "; SELECT pg_current_wal_insert_lsn()::text"
_MARKS = 32
"""Writes of a user that are remembered. A write whose answer was lost is looked up among them."""
MARK = (
    "; INSERT INTO marks (owner, number, latest) VALUES ('{owner}', 1, ARRAY['{mark}'::uuid]) ON CONFLICT (owner) "
    f"DO UPDATE SET number = marks.number + 1, latest = (excluded.latest || marks.latest)[1:{_MARKS}] RETURNING number"
)
FORGET_MARKS = "DELETE FROM marks WHERE owner = %s"
_MARKED = "SELECT number, '{mark}' = ANY(latest) FROM marks WHERE owner = '{owner}'"
# Who waited for a lock has to see what the one before wrote; who searches, the same in every statement.
_NEWEST, _UNCHANGED = "READ COMMITTED", "REPEATABLE READ"
_FULL = ("too many clients", "too many connections", "remaining connection slots", "no more connections allowed")
"""What servers, roles, databases and poolers say that have no connection left."""
_REFUSED = ("no password supplied", "does not support SSL", "invalid port number", "invalid integer value")
"""What the driver itself says of an address that can never work."""
_PASSING = ("starting up", "shutting down", "recovery mode", "not yet accepting connections")
_SLICE = 1.0
"""Seconds that a call waits for the pool before it asks again; a pool that could not connect tries anew when asked."""
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two attempts, doubled each time."""
_REST = 5.0
"""Seconds for which a replica that failed is not asked."""
_PATIENCE = 2.0
"""Seconds after which a replica that cannot be connected to has failed."""
_SILENCE = 3.0
"""Seconds after which a machine is gone that does not confirm what it was sent, or does not answer at all."""
_FLOORS = 10_000
"""Users whose position in the log is remembered one by one."""


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


PRIMARY, REPLICA = "read-write", "prefer-standby"


class Address(NamedTuple):
    """Where a server is: what libpq reads, and what of the URL is for Loom."""

    dsn: str
    replica: str | None = None
    prepares: bool = True
    wants: str = PRIMARY
    """Which of several servers is used, where the DSN does not say it, in the words of libpq."""

    @classmethod
    def of(cls, url: str) -> Address:
        """The parts of a URL; `replica=URL` and `prepare=off` are taken out of its query."""
        start, _, query = url.partition("?")
        if "://" not in start or not query:
            return cls(url)
        given = parse_qsl(query, keep_blank_values=True)
        ours = {name: value for name, value in given if name in {"replica", "prepare"}}
        if not ours:
            return cls(url)
        if ours.get("prepare", "on") not in {"on", "off"}:
            raise UsageError(
                f"prepare={ours['prepare']!r} of a Postgres URL is unknown; write prepare=on or prepare=off"
            )
        rest = urlencode([pair for pair in given if pair[0] not in ours], quote_via=quote)
        return cls(f"{start}?{rest}" if rest else start, ours.get("replica") or None, ours.get("prepare") != "off")

    @property
    def hosts(self) -> int:
        """How many servers it names."""
        return len(str(self._parts.get("host") or self._parts.get("hostaddr") or "").split(","))

    @property
    def _parts(self) -> dict[str, Any]:
        from psycopg import conninfo  # noqa: PLC0415

        return dict(conninfo.conninfo_to_dict(self.dsn))

    def options(self, timeout: float) -> dict[str, Any]:
        """What libpq is told beside the DSN, for calls that have so many seconds.

        A machine that is gone says nothing, unlike one whose server has ended: so little time is lost with it that
        another one can be asked within the same call.
        """
        is_one_of_several = self.hosts > 1
        usual: dict[str, Any] = {
            "connect_timeout": round(max(2, min(timeout, _SILENCE if is_one_of_several else timeout))),
            "tcp_user_timeout": round(min(timeout, _SILENCE) * 1000),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            **({"target_session_attrs": self.wants} if is_one_of_several else {}),
        }
        chosen = {name: value for name, value in usual.items() if name not in self._parts}
        return {**chosen, "client_encoding": "UTF8"}  # whatever the URL, PGCLIENTENCODING or the database says


async def connect(dsn: str, *, timeout: float = 10, autocommit: bool = False, wants: str = PRIMARY) -> Database:  # noqa: ASYNC109 - libpq's own
    """One connection of its own; `wants` says which server, where the DSN names several and does not say it."""
    psycopg = _driver()
    address = Address.of(dsn)._replace(wants=wants)
    return await psycopg.AsyncConnection.connect(address.dsn, autocommit=autocommit, **address.options(timeout))


def name_of(dsn: str) -> str:
    """The server and database of a DSN, in words that hold no password."""
    _driver()
    from psycopg import ProgrammingError, conninfo  # noqa: PLC0415

    # In a password that is not encoded, these begin another part of the address.
    who = dsn.partition("://")[2].partition("?")[0].rpartition("@")[0]
    try:
        parts = None if "/" in who or "@" in who else conninfo.conninfo_to_dict(Address.of(dsn).dsn)
    except ProgrammingError:
        parts = None
    if parts is None:
        # What the driver says may repeat a piece of the address, the password included.
        raise UsageError(
            "the address of the Postgres server cannot be read; write postgresql://user:password@host:5432/database, "
            "with %2F for a / and %40 for a @ in the password, and options that libpq knows"
        )
    hosts, ports = str(parts.get("host", "localhost")).split(","), str(parts.get("port", 5432)).split(",")
    named = ",".join(f"{host}:{ports[min(place, len(ports) - 1)]}" for place, host in enumerate(hosts))
    return f"postgresql://{parts.get('user', '')}@{named}/{parts.get('dbname', '')}"


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
    from psycopg.errors import UntranslatableCharacter  # noqa: PLC0415
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
    except UntranslatableCharacter as error:
        if "\\u0000" in str(error):  # no encoding has it
            raise UsageError(f"Postgres cannot hold what was given: {error}; remove such characters") from error
        raise UsageError(
            f"the database at {where} cannot hold what was given: {error}; make one with ENCODING 'UTF8', and use that"
        ) from error
    except (DataError, UnicodeEncodeError) as error:
        raise UsageError(f"Postgres cannot hold what was given: {error}; remove such characters or numbers") from error
    except _Lost as lost:
        raise _store_error(lost.error, where, needed) from lost.error
    except Error as error:
        raise _store_error(error, where, needed) from error


class _Lost(Exception):
    """A connection was lost; `number` is that of the write which was being committed, if one was."""

    def __init__(self, error: Exception, number: int | None = None) -> None:
        super().__init__(str(error))
        self.error, self.number = error, number


def _store_error(error: Any, where: str, needed: str) -> StoreError:
    from psycopg import OperationalError, errors  # noqa: PLC0415

    answer = str(error).strip()
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(f"{where} refused it: {answer}; connect as {needed}")
    if isinstance(error, errors.QueryCanceled):
        return _too_long(where)
    if isinstance(error, errors.UndefinedTable):
        return StoreUnavailable(
            f"{where} has no tables of Loom at this moment: {answer}; `loom store init` moves users to other "
            "partitions, or the schema was dropped; try again when it is done"
        )
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return StoreUnavailable(
            f"{where} is not the primary server: {answer}; name all servers in the URL, as in "
            "postgresql://HOST1,HOST2/DB, and try again"
        )
    if isinstance(error, OperationalError):
        if any(word in answer for word in _FULL):
            return StoreUnavailable(
                f"{where} has no connection left: {answer}; try again, and let it allow more (max_connections), or "
                "let stores take fewer (pool_size, or a pooler)"
            )
        is_final = "FATAL:" in answer or any(word in answer for word in _REFUSED)
        if error.sqlstate is None and is_final and not any(word in answer for word in _PASSING):
            return StoreError(
                f"{where} refused the connection: {answer}; check the user, the password, the database and the options "
                "in the URL"
            )
        return StoreUnavailable(f"{where} cannot be reached or broke off: {answer}; try again when it answers")
    return StoreError(f"{where} failed: {answer}; nothing was written")


def _too_long(where: str) -> StoreUnavailable:
    return StoreUnavailable(f"{where} took too long and was given up; try again or allow a longer timeout")


def _is_lost(error: BaseException, db: Database | None, hosts: int) -> bool:
    """Whether the server went away, or is the primary no more: another connection may do what this one could not."""
    from psycopg import OperationalError, errors, pq  # noqa: PLC0415

    if isinstance(error, errors.ReadOnlySqlTransaction):
        return hosts > 1
    # Who slept in a transaction until the server ended it, is not helped by another.
    if not isinstance(error, OperationalError) or isinstance(error, errors.IdleInTransactionSessionTimeout):
        return False
    if db is None:
        return False
    # A server that ends while it is sent several statements: the driver then says that it cannot leave its pipeline.
    is_stuck = error.sqlstate is None and db.pgconn.pipeline_status != pq.PipelineStatus.OFF
    return db.closed or is_stuck or (error.sqlstate or "").startswith(("08", "57P"))


class Floors:
    """How far a replica must have come in the log before it may answer: for each user, what was last seen of them."""

    def __init__(self) -> None:
        self._of: dict[UUID, int] = {}
        self._all = 0

    def of(self, owner: UUID) -> str:
        """The position as Postgres writes it."""
        floor = max(self._of.get(owner, 0), self._all)
        return f"{floor >> 32:X}/{floor & 0xFFFFFFFF:X}"

    def lift(self, owner: UUID, position: str | None) -> None:
        """Something of the user was written, or seen, at this position."""
        if position is None:
            return
        high, _, low = position.partition("/")
        if len(self._of) >= _FLOORS and owner not in self._of:
            self._all = max(self._all, *self._of.values())
            self._of.clear()
        self._of[owner] = max(self._of.get(owner, 0), int(high, 16) << 32 | int(low, 16))

    def lift_all(self, position: str | None) -> None:
        """Something was written that every user sees."""
        nobody = UUID(int=0)
        self.lift(nobody, position)
        self._all = max(self._all, self._of.pop(nobody, 0))


class Server:
    """A pool of connections. `check` looks at the first one and says how all of them are used.

    A transaction has `timeout` seconds in all, whatever it waits for: a connection, a lock, or an answer from a server
    that is not there any more. A call whose connection is lost is made again on another, as long as it is known that
    nothing was committed; where the answer of a commit was lost, its mark is looked up.
    """

    def __init__(self, address: Address, *, pool_size: int, timeout: float, check: Any) -> None:
        self._address, self._pool_size, self._timeout, self._check = address, pool_size, timeout, check
        self._opening = anyio.Lock()
        # A connection belongs to the event loop it was made in, so each loop has a pool of its own.
        self._pools: PerLoop[AsyncConnectionPool[Database]] = PerLoop()
        self._path, self._act = "", ""
        self._notes: tuple[str, ...] = ()
        self._hosts = 1
        self._is_closed = False
        self._refused: Exception | None = None
        """Why the last connection could not be made."""
        self._floors = Floors()
        self._replica: Server | None = None
        self._rests_until, self._replica_note = 0.0, ""
        self.name = "postgresql"

    def read_from(self, replica: Server) -> None:
        """Let searches be answered by this server, where it has come far enough."""
        self._replica = replica

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of what the server guarantees; nothing before it was opened."""
        return (*self._notes, self._replica_note) if self._replica_note else self._notes

    async def open(self) -> AsyncConnectionPool[Database]:
        """The pool, opened and checked at the first call."""
        try:
            # Also for those who wait until another has tried.
            with anyio.fail_after(self._timeout):
                async with self._opening:
                    if self._is_closed:
                        raise UsageError(f"the store {self.name} is closed; open another")
                    if (pool := self._pools.here) is None:
                        pool = await self._opened()
                        self._pools.set(pool)
                    return pool
        except TimeoutError as error:
            raise _too_long(self.name) from error

    async def _opened(self) -> AsyncConnectionPool[Database]:
        dsn = self._address.dsn
        self.name = name_of(dsn)
        self._hosts = self._address.hosts
        from psycopg import sql  # noqa: PLC0415
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        with translate_errors(self.name):
            # Alone and first, because a pool would try again and again and never say what is wrong.
            async with await connect(dsn, timeout=self._timeout, wants=self._address.wants) as db:
                access: Access = await self._check(db, self.name, self._hosts)
                self._path = sql.Literal(access.path).as_string(db)
                self._act = ACT.format(role=sql.Literal(access.acts_as).as_string(db)) if access.acts_as else ""
        self._notes = access.notes
        pool: AsyncConnectionPool[Database] = AsyncConnectionPool(
            dsn,
            min_size=0,  # with 1, the first transaction would find that one not there yet, and make another
            max_size=self._pool_size,
            timeout=self._timeout,
            # Longer, and it would wait twice as long after each failure, while the server is back.
            reconnect_timeout=_SLICE,
            # A transaction begins and ends with messages of its own.
            kwargs={
                **self._address.options(self._timeout),
                "autocommit": True,
                **({} if self._address.prepares else {"prepare_threshold": None}),
            },
            configure=access.prepare or take_packed,
            connection_class=self._noting(),
            open=False,
        )
        await pool.open()
        return pool

    def _noting(self) -> type[Database]:
        """Connections that tell why one could not be made: a pool only logs it."""
        from psycopg import AsyncConnection, Error  # noqa: PLC0415

        def note(error: Exception) -> None:
            self._refused = error

        class Noting(AsyncConnection[Row]):
            @classmethod
            async def connect(cls, *args: Any, **options: Any) -> Any:
                try:
                    return await super().connect(*args, **options)
                except Error as error:
                    note(error)
                    raise

        return Noting

    # -- calls that are made again where a connection is lost ----------------------------------------------

    async def work(self, scope: Scope | None, do: Callable[[Database], Awaitable[_T]], *, writes: bool = False) -> _T:
        """Do something in a transaction that sees the rows of this user, or of all; may be done several times.

        A user's writers go one at a time. What was done again is there once: see `MARK`.
        """
        return await self._work(scope, "", lambda db, _: do(db), writes=writes)

    async def write(self, scope: Scope, look: str, do: _Looked[_T]) -> _T:
        """work() for a writer, with the first row of each statement of `look`, which no text of a caller may be in."""
        return await self._work(scope, look, do, writes=True)

    async def _work(self, scope: Scope | None, look: str, do: _Looked[_T], *, writes: bool) -> _T:
        end = await self._start()
        mark = uuid4() if writes and scope is not None else None
        more = self._lock_of(scope) if writes else ""
        if mark is not None and scope is not None:
            more += MARK.format(owner=owner_of(scope), mark=mark)
        more, looks = (f"{more}; {look}", look.count("; ") + 1) if look else (more, 0)
        results: list[_T] = []

        async def attempt() -> _T:
            number = None
            async with self._lent(scope, more, end) as (db, answer):
                if mark is not None:
                    await answer.set_result(-1 - looks)
                    number = (await answer.fetchone() or (0,))[0]
                found: list[Row | None] = []
                for place in range(looks):
                    await answer.set_result(place - looks)
                    found.append(await answer.fetchone())
                results.append(await do(db, found))
                try:
                    await self._commit(db, scope, writes=writes)
                except Exception as error:
                    if not _is_lost(error, db, self._hosts):
                        raise
                    raise _Lost(error, number) from error
            return results[-1]

        async def doubted(number: int) -> tuple[_T] | None:
            """The result, where the write was committed after all."""
            assert mark is not None
            assert scope is not None
            return (results[-1],) if await self._was_committed(scope, mark, number, end) else None

        with translate_errors(self.name):
            return await self._insist(attempt, end, doubted)

    async def _insist(
        self,
        attempt: Callable[[], Awaitable[_T]],
        end: float,
        doubted: Callable[[int], Awaitable[tuple[_T] | None]] | None = None,
    ) -> _T:
        """Make an attempt again and again while connections are lost, until the time is over."""
        place = 0
        while True:
            try:
                return await attempt()
            except _Lost as lost:
                if lost.number is not None and doubted is not None:
                    found = await doubted(lost.number)
                    if found is not None:
                        return found[0]
                # Every connection of the pool may have broken since its last use, and then a new one is the next.
                more = place - self._pool_size
                pause = 0.0 if more <= 0 else min(_PAUSE * 2 ** min(more, 9), _LONGEST_PAUSE)
                if anyio.current_time() + pause >= end:
                    raise
            place += 1
            await anyio.sleep(pause)

    async def _was_committed(self, scope: Scope, mark: UUID, number: int, end: float) -> bool:
        """Whether the write with this mark was committed, once no other connection can commit it any more."""
        look = _MARKED.format(mark=mark, owner=owner_of(scope))

        async def attempt() -> Row | None:
            # The lock of the user is held until the transaction has ended, wherever its client went.
            async with self._lent(scope, f"{self._lock_of(scope)}; {look}; COMMIT", end) as (_, answer):
                await answer.set_result(-2)
                return await answer.fetchone()

        now, is_there = await self._insist(attempt, end) or (0, False)
        if not is_there and now >= number + _MARKS:
            raise StoreUnavailable(
                f"{self.name} broke off while it committed, and {now - number} later writes of the user hide whether "
                "it did; read what is there, and write again if it is missing"
            )
        return bool(is_there)

    async def _start(self) -> float:
        """When the call that starts now has to end; the server is open then."""
        end = anyio.current_time() + self._timeout
        if self._pools.here is None:
            await self.open()
        return end

    def _lock_of(self, scope: Scope | None) -> str:
        return "" if scope is None else LOCK.format(int.from_bytes(_digest(scope)[16:24], signed=True))

    async def _commit(self, db: Database, scope: Scope | None, *, writes: bool) -> None:
        """Commit; a write is not acknowledged if the server did not wait for its standby as it should have."""
        warnings: list[Any] = []

        def note(diagnostic: Any) -> None:
            # Another code says that the server ends, which it also says when it has answered.
            if diagnostic.severity_nonlocalized == "WARNING" and diagnostic.sqlstate == "01000":
                warnings.append(diagnostic.message_primary)

        db.add_notice_handler(note)
        try:
            if self._replica is None or not writes:
                await db.commit()
            else:
                answer = await db.execute(b"COMMIT" + WRITTEN.encode())
                await answer.set_result(-1)
                (position,) = await answer.fetchone() or (None,)
                if scope is None:
                    self._floors.lift_all(position)
                else:
                    self._floors.lift(owner_of(scope), position)
        finally:
            db.remove_notice_handler(note)
        if warnings and writes:
            raise StoreUnavailable(
                f"{self.name} committed and did not wait for its standby: {warnings[0]}; a failover may lose the "
                "write; write again"
            )

    async def read(
        self, scope: Scope, look: str, do: Callable[[Database, Row], Awaitable[_T]], *, newest: bool = False
    ) -> _T:
        """Do something in a transaction in which nothing changes, with the one row that a statement at its start gives.

        The statement goes with the message that begins it, so its text may hold nothing that a caller wrote. A replica
        answers, if there is one that has replayed what this store wrote and saw of the user; else the primary, which
        has the `newest`.
        """
        end = await self._start()
        replica = None if newest else self._replica
        if replica is not None and anyio.current_time() >= self._rests_until:
            try:
                with anyio.move_on_after(_PATIENCE):
                    await replica.open()
                found = await replica.read_replayed(scope, look, do, self._floors, end)
                self._replica_note = ""
                if found:
                    return found[0]
            except EmbedderMismatch:  # it may not have followed to another embedder yet
                pass
            except StoreError as error:
                self._rests_until = anyio.current_time() + _REST
                self._replica_note = f"the replica does not answer, and the primary is read instead: {error}"
            except UsageError:  # it may not know the embedder yet
                pass

        async def attempt() -> _T:
            position = WRITTEN if self._replica is not None else ""
            async with self._lent(scope, f"{position}; {look}", end, level=_UNCHANGED) as (db, answer):
                if position:
                    await answer.set_result(-2)
                    self._floors.lift(owner_of(scope), (await answer.fetchone() or (None,))[0])
                await answer.set_result(-1)
                result = await do(db, await answer.fetchone() or ())
                await self._done(db)
                return result

        with translate_errors(self.name):
            return await self._insist(attempt, end)

    async def read_replayed(
        self, scope: Scope, look: str, do: Callable[[Database, Row], Awaitable[_T]], floors: Floors, end: float
    ) -> tuple[_T] | None:
        """Like read(), of a replica; None where it has not come far enough. Leaves time for the primary to be asked."""
        owner, now = owner_of(scope), anyio.current_time()
        if self._pools.here is None:
            raise _too_long(self.name)
        end, by = now + (end - now) / 2, now + _PATIENCE
        first = HAS_REPLAYED.format(floors.of(owner))

        async def attempt() -> tuple[_T] | None:
            more = f"{REPLAYED}; {look}"
            async with self._lent(scope, more, end, level=_UNCHANGED, first=first, by=by) as (db, answer):
                await answer.set_result(1)
                if (await answer.fetchone() or (False,))[0] is not True:
                    await self._done(db)
                    return None
                await answer.set_result(-2)
                position = (await answer.fetchone() or (None,))[0]
                await answer.set_result(-1)
                result = await do(db, await answer.fetchone() or ())
                await self._done(db)
                floors.lift(owner, position)
                return (result,)

        with translate_errors(self.name):
            return await self._insist(attempt, by)

    async def _done(self, db: Database) -> None:
        """End a transaction that only read: what was read stays true if the connection breaks now."""
        from psycopg import OperationalError  # noqa: PLC0415

        try:
            await db.commit()
        except OperationalError:
            await db.close()

    async def glance(self, scope: Scope | None, look: str) -> Row | None:
        """The first row of a statement, as in read(), in a transaction that is one message from begin to end."""
        end = await self._start()

        async def attempt() -> Row | None:
            async with self._lent(scope, f"; {look}; COMMIT", end) as (_, answer):
                await answer.set_result(-2)
                return await answer.fetchone()

        with translate_errors(self.name):
            return await self._insist(attempt, end)

    # -- transactions whose body is the caller's, and is not run again -------------------------------------

    @asynccontextmanager
    async def transaction(self, scope: Scope | None, *, writes: bool = False) -> AsyncGenerator[Database]:
        """A transaction that sees the rows of this user, or of all users; a user's writers go one at a time."""
        end = await self._start()
        with translate_errors(self.name):
            async with self._lent(scope, self._lock_of(scope) if writes else "", end) as (db, _):
                yield db
                await self._commit(db, scope, writes=writes)

    @asynccontextmanager
    async def _lent(
        self,
        scope: Scope | None,
        more: str,
        end: float,
        *,
        level: str = _NEWEST,
        first: str = "",
        by: float | None = None,
    ) -> AsyncGenerator[tuple[Database, Cursor]]:
        """A connection on which a transaction was begun and `more` was said with it, and what the server answered.

        `first` is said before all that; `by` is when there has to be a connection.
        """
        from psycopg import Error  # noqa: PLC0415

        pool = self._pools.here or await self.open()
        owner, everybody = ("", "on") if scope is None else (str(owner_of(scope)), "")
        timeout = round(self._timeout * 1000)
        begin = BEGIN.format(level=level, path=self._path, timeout=timeout, owner=owner, everybody=everybody)
        begin = f"{first}{begin}{self._act}{more}"
        async with self._connection(pool, end if by is None else by) as db:
            try:
                with anyio.fail_after(end - anyio.current_time()):
                    yield db, await db.execute(begin.encode())
            except TimeoutError:
                # Its statement may still run; no other call may get the answer.
                await db.close()
                raise
            except Error as error:
                if not _is_lost(error, db, self._hosts):
                    raise
                await db.close()
                raise _Lost(error) from error

    @asynccontextmanager
    async def _connection(self, pool: AsyncConnectionPool[Database], end: float) -> AsyncGenerator[Database]:
        """A connection of the pool, which is asked again while there is time."""
        from psycopg_pool import PoolTimeout  # noqa: PLC0415

        failed = pool.get_stats().get("connections_errors", 0)
        while True:
            left = end - anyio.current_time()
            try:
                db = await pool.getconn(timeout=max(0.0, min(left, _SLICE)))
                break
            except PoolTimeout:
                if left > _SLICE:
                    continue
                if pool.get_stats().get("connections_errors", 0) > failed and self._refused is not None:
                    raise self._refused from None
                raise
        try:
            yield db
        except BaseException:
            async with db:  # which rolls back; what ends well has said so itself
                raise
        finally:
            await pool.putconn(db)

    async def close(self) -> None:
        """Give all connections back."""
        if self._replica is not None:
            await self._replica.close()
        async with self._opening:
            self._is_closed = True
            await self._pools.close(lambda pool: pool.close())
