"""Connections to a SQLite file: what their errors mean, and how the rows of users and records are read and written."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound
from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from zlib import crc32

import apsw

from loom.core.record import Episode, Fact, Record
from loom.core.scope import Scope
from loom.errors import StaleWrite, StoreError, StoreUnavailable, UsageError
from loom.stores import _sql
from loom.stores._record_table import copied
from loom.stores._sql import Condition, Dialect
from loom.stores.base import DamagedData, damage_at, reading

Durability: TypeAlias = Literal["full", "fast"]
SYNCHRONOUS: dict[str, str] = {"full": "FULL", "fast": "NORMAL"}

BUSY_MILLISECONDS = 10_000
_AT_ONCE = 10_000.0
"""What a read that may not wait may cost, in microseconds."""
WALKED, READ, MADE = 0.5, 4.0, 15.0
"""What it costs to pass a row by, to read it, and to make a record of it, in microseconds."""
_READ_CHAR, ANALYSED_CHAR = 0.002, 0.15
"""What it costs to read a character, and to find the words of a text, in microseconds for each character."""
_PIECE = 100.0
"""Microseconds of reading that are counted together: counting takes a tenth of reading a row."""
_MOST_STATEMENTS = 512
"""How many are kept compiled, the most that the driver takes. Each use moves one to the end of the line, and each of
its rows where a statement is run for many: 100, its own choice, are all gone after one larger write."""
DEADLINE_SECONDS = 30.0
"""How long a busy file is tried again before the store counts as unavailable."""

_T = TypeVar("_T")
Row: TypeAlias = tuple[Any, ...]
_TEXT = _sql.COLUMNS.index("text")


class _Cursor(Protocol):
    """The rows of a statement, one by one; close(True) leaves those that are not read yet."""

    def __iter__(self) -> Iterator[Row]: ...
    def fetchall(self) -> list[Row]: ...
    def fetchone(self) -> Row | None: ...
    def close(self, force: bool = False) -> None: ...


class _Connection(Protocol):
    """A connection as far as this package uses it; the driver's own types are incomplete before Python 3.12."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Sequence[Any] = ()) -> _Cursor: ...
    def executemany(self, statements: str, sequenceofbindings: Iterable[Sequence[Any]]) -> _Cursor: ...
    def last_insert_rowid(self) -> int: ...
    def config(self, op: int, *args: int) -> int: ...
    def set_busy_timeout(self, milliseconds: int) -> None: ...
    def set_update_hook(self, callable: Callable[[int, str, str, int], None]) -> None: ...
    def txn_state(self, schema: str | None = None) -> int: ...
    def wal_checkpoint(self, *, mode: int) -> tuple[int, int]: ...
    def close(self) -> None: ...


Database: TypeAlias = _Connection


def connect(path: str, *, synchronous: str = "FULL", cache_kibibytes: int = 8_000) -> Database:
    """A connection with the rules of every Loom file."""
    with translate_errors(path):
        db = cast("Database", apsw.Connection(path, statementcachesize=_MOST_STATEMENTS))
        db.set_busy_timeout(BUSY_MILLISECONDS)
        # Otherwise a join or a limit is planned anew for the values of each call, which takes longer than to run it.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # Another process that turns the log on or cleans up after a crash answers busy without a wait.
        patiently(lambda: db.execute("PRAGMA journal_mode=WAL").fetchall())
        for rule in (
            f"synchronous={synchronous}",
            f"cache_size=-{cache_kibibytes}",
            "secure_delete=ON",
            "foreign_keys=ON",
            "temp_store=MEMORY",
        ):
            db.execute(f"PRAGMA {rule}").fetchall()
    return db


class MustWait(StoreUnavailable):
    """A read that may not wait needs what another thread or process holds; it is repeated where it may."""


class TakesLong(MustWait):
    """A read that may not wait would take long."""


class _Reading(threading.local):
    left: float | None = None
    """What the read may still cost, in microseconds; None where it may wait and take as long as it needs."""


_READING = _Reading()


@contextmanager
def at_once() -> Generator[None]:
    """In this thread nothing is waited for while the block lasts: what is held raises MustWait, long work TakesLong."""
    _READING.left = _AT_ONCE
    try:
        yield
    finally:
        _READING.left = None


def spend(cost: float) -> None:
    """Say before a piece of a read what it costs, in microseconds; what is long is left to where it may take long."""
    if _READING.left is not None:
        _READING.left -= cost
        if _READING.left < 0:
            raise TakesLong("the read would hold up the event loop")


@contextmanager
def holding(lock: Lock) -> Generator[None]:
    """Hold a lock that another thread may hold for long."""
    if not lock.acquire(blocking=_READING.left is None):
        raise MustWait("another thread reads the same user")
    try:
        yield
    finally:
        lock.release()


def patiently(action: Callable[[], _T], *, seconds: float = DEADLINE_SECONDS) -> _T:
    """Do it, and again while the file is busy, until the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except (apsw.BusyError, apsw.LockedError):
            if _READING.left is not None or time.monotonic() >= deadline:
                raise
            time.sleep(0.005)


def _what_to_check(path: str) -> str:
    if Path(path).is_dir():
        return "it is a folder: name a file in it"
    folder = Path(path).parent
    return "check the folder, its rights and the free space" if folder.is_dir() else f"make the folder {folder} first"


@contextmanager
def translate_errors(path: str) -> Generator[None]:
    """Errors of SQLite, and of reading what is damaged, as errors of Loom."""
    try:
        with damage_at(path, verify=f"sqlite:{path}"):
            yield
    except (apsw.BusyError, apsw.LockedError) as error:
        if _READING.left is not None:
            raise MustWait(f"{path} is held by another process") from error
        raise StoreUnavailable(
            f"{path} was held by another process for {DEADLINE_SECONDS:.0f} s; try again, or look who holds it"
        ) from error
    except (apsw.CantOpenError, apsw.IOError, apsw.FullError, apsw.ReadOnlyError) as error:
        raise StoreUnavailable(f"{path} cannot be opened, read or written ({error}); {_what_to_check(path)}") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreError(f"{path} is not a sound SQLite file ({error}); restore it from a copy") from error
    except apsw.Error as error:
        raise StoreError(f"{path} refused what was asked ({error}); nothing was changed") from error
    except OverflowError as error:
        raise UsageError(f"a number is too large to be stored ({error}); keep it within 64 bits") from error


@contextmanager
def snapshot(db: Database) -> Generator[Database]:
    """One consistent view for several reads."""
    patiently(lambda: db.execute("BEGIN").fetchall())
    try:
        yield db
    finally:
        db.execute("COMMIT")


def rows(db: Database, sql: str, *values: Any) -> list[Row]:
    """All rows of a query."""
    return db.execute(sql, values).fetchall()


def each(db: Database, sql: str, *values: Any, cost: float = READ) -> Generator[Row]:
    """The rows of a query one by one; each costs so many microseconds, and what its text takes in a row of SELECTED."""
    cursor = db.execute(sql, values)
    due = 0.0
    try:
        for row in cursor:
            text = row[_TEXT]
            due += cost + _READ_CHAR * len(text) if isinstance(text, str) else cost
            if due > _PIECE:
                spend(due)
                due = 0.0
            yield row
    finally:
        cursor.close(True)


def one(db: Database, sql: str, *values: Any) -> Row | None:
    """The first row of a query."""
    return db.execute(sql, values).fetchone()


# Rows with checksums. The columns that are changed alone (accesses, the layer, the archive) are left out of it; of
# those, and of rows that an older Loom wrote without one, only the types are checked.

WRITTEN = (*_sql.COLUMNS, "checksum")
"""The columns that are written with a record."""
SELECTED = f"{_sql.SELECTED}, r.checksum, r.user"

CHECKSUM = len(_sql.COLUMNS)
"""Where the checksum is in a row of SELECTED; None where an older Loom wrote it."""
_USER = CHECKSUM + 1
_ACCESSES = _sql.COLUMNS.index("accesses")
_MAYBE_INT, _MAYBE_STR = int | None, str | None
_EPISODE_TYPES = (
    *(str, str, str, str, int, int, _MAYBE_STR, int, int, _MAYBE_STR, _MAYBE_STR, float),
    *(int, _MAYBE_INT, _MAYBE_INT, _MAYBE_STR),
)


def to_row(record: Record, user: int) -> tuple[Any, ...]:
    """The values of WRITTEN for a record of a user."""
    row = _sql.to_row(record)
    return (*row, checksum(row, user))


def from_row(row: tuple[Any, ...]) -> Record:
    """The record of a row that starts with SELECTED.

    Raises:
        DamagedData: it is not the row that was written.
    """
    stored = row[CHECKSUM]
    try:
        is_sound = stored is None or stored == checksum(row, row[_USER])
    except (TypeError, ValueError, OverflowError):  # a column is not even of its type
        is_sound = False
    if row[1] == Episode.kind and (stored is None or type(row[_ACCESSES]) is not int):
        is_sound = is_sound and all(map(isinstance, row, _EPISODE_TYPES))
    if not is_sound:
        raise DamagedData(f"record {row[0]!r} is not what was written")
    return _sql.from_row(row)


def checksum(row: tuple[Any, ...], user: int) -> int:
    """The checksum of a row that starts with COLUMNS: a record that became another user's has another one."""
    id, kind, text, origin, trusted, recorded_at, sources, at, _, session_id, speaker, importance = row[:12]
    if kind == Episode.kind:
        line = (
            f"{id}\0{kind}\0{text}\0{origin}\0{trusted}\0{recorded_at}\0{sources}\0{at}\0{session_id}\0{speaker}\0"
            f"{importance + 0.0}\0{row[15]}"  # a whole number comes back as a fraction
        )
    elif kind == Fact.kind:
        confidence = row[23] + 0.0
        line = f"{id}\0{kind}\0{origin}\0{trusted}\0{recorded_at}\0{sources}\0{row[16:23]}\0{confidence}\0{row[24]}"
    else:
        line = f"{id}\0{kind}\0{text}\0{origin}\0{trusted}\0{row[25:CHECKSUM]}"
    return crc32(line.encode(), user)


_MOST_CONDITIONS = 4
"""For how many conditions it is kept which rows fit: a recall asks with one or two."""


class KnownRows:
    """The rows of a user that searches looked at, by condition and number, None where one does not fit.

    All as of a revision of the user.
    """

    __slots__ = ("_by_condition", "chars", "revision")

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.chars = 0
        """How many characters their texts have; those that were dropped since are counted on."""
        self._by_condition: OrderedDict[Condition, dict[int, Row | None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_condition.values()))

    def fitting(self, condition: Condition) -> dict[int, Row | None]:
        """Those that a condition was asked of, to look up and to add to."""
        found = self._by_condition.setdefault(condition, {})
        self._by_condition.move_to_end(condition)
        if len(self._by_condition) > _MOST_CONDITIONS:
            self._by_condition.popitem(last=False)
        return found

    def drop(self, numbers: Collection[int], revision: int) -> None:
        """Take out what has changed up to a revision."""
        self.revision = revision
        for held in self._by_condition.values():
            for number in numbers:
                held.pop(number, None)


_MOST_RECORDS = 1_024
_MOST_RECORD_CHARS = 4 * 2**20
"""How many records of a user are kept for the next turns, and how many characters their texts have."""


class KnownRecords:
    """The records of a user that every turn reads: those of the first layers, facts and blocks.

    All as of an epoch of the user: it changes where text is removed, which is not kept then.
    """

    __slots__ = ("_by_id", "chars", "epoch")

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self._by_id: dict[str, tuple[Row, Record]] = {}
        self.chars = 0
        """How many characters their texts have."""

    def __len__(self) -> int:
        return len(self._by_id)

    def made(self, row: Row) -> Record:
        """The record of a row that starts with SELECTED: the one that is kept, where its row is the same to the end."""
        held = self._by_id.get(row[0])
        if held is not None and held[0] == row:
            return copied(held[1])
        record = from_row(row)
        if len(self._by_id) >= _MOST_RECORDS or self.chars > _MOST_RECORD_CHARS:
            self._by_id, self.chars = {}, 0
        self._by_id[record.id] = row, copied(record)
        self.chars += len(record.text)
        return record


# Which rows belong to whom: users as numbers, and what a scope may see.

NUMBER_BITS = 32
"""A row is the user's number, then the record's number among theirs, so that one user's rows lie together."""


_GONE = "forgotten users"
_NOTHING_REMOVED = ".0"
MOST_NUMBERS = 1 << 27
"""More than a file can hold of one user; scores for so many would take a gigabyte."""


def find_user(db: Database, scope: Scope) -> int | None:
    """The number of the scope's user, None for an unknown user."""
    found = one(db, "SELECT user FROM users WHERE namespace = ? AND user_id = ?", scope.namespace, scope.user_id)
    return None if found is None else int(found[0])


_MOST_USERS = 1 << 16
_MOST_DROPPED = 1_024


class _ThreadView(threading.local):
    began: float = inf
    """How many users had been dropped when the view of this thread began."""


class KnownUsers:
    """The number that each user had when it was looked up last, and who was dropped since. Safe between threads."""

    __slots__ = ("_dropped", "_drops", "_lock", "_numbers", "_view")

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._dropped: OrderedDict[int, int] = OrderedDict()
        self._drops = 0
        self._view = _ThreadView()
        self._lock = Lock()

    def find(self, db: Database, scope: Scope) -> tuple[int | None, int | None]:
        """The number of the scope's user, and one to be dropped: who had the name before, or was looked up long ago.

        The first that a view reads, so that is_dropped() can tell.
        """
        self._view.began = self._drops
        user, name = find_user(db, scope), (scope.namespace, scope.user_id)
        if self._numbers.get(name) == user:
            return user, None
        with self._lock:
            gone = self._numbers.pop(name, None)
            if user is not None:
                self._numbers[name] = user
                if len(self._numbers) > _MOST_USERS:
                    gone = self._numbers.popitem(last=False)[1]
        return user, gone

    def drop(self, user: int) -> None:
        """Text of the user was removed."""
        with self._lock:
            self._drops += 1
            self._dropped[user] = self._drops
            self._dropped.move_to_end(user)
            if len(self._dropped) > _MOST_DROPPED:
                self._dropped.popitem(last=False)  # no view lasts so long

    def is_dropped(self, user: int) -> bool:
        """Whether the user was dropped since the view of this thread began: it may show what was removed."""
        return self._dropped.get(user, 0) > self._view.began


def all_users(db: Database, after: Scope | None, limit: int, *, table: str = "users") -> tuple[Scope, ...]:
    """Users of whom something was written, by namespace and user, from behind `after`."""
    last = ("", "") if after is None else (after.namespace, after.user_id)
    sql = f"SELECT namespace, user_id FROM {table} WHERE (namespace, user_id) > (?, ?)"
    found = rows(db, f"{sql} ORDER BY namespace, user_id LIMIT ?", *last, limit)
    for name in found:
        if name <= last:  # pages would go round in circles
            raise DamagedData(f"the index of users has {name!r} behind {last!r}")
        last = name
    with reading("the name of a user"):
        return tuple(Scope(namespace, user_id) for namespace, user_id in found)


def make_user(db: Database, scope: Scope) -> int:
    """The number of the scope's user, a new one for a new user. Numbers are never used again."""
    found = find_user(db, scope)
    if found is None:
        db.execute("INSERT INTO users (namespace, user_id) VALUES (?, ?)", (scope.namespace, scope.user_id))
        return db.last_insert_rowid()
    return found


def epoch_of(db: Database, scope: Scope) -> str:
    """A token that changes whenever text of the user is removed; for an unknown user, when any user is forgotten."""
    found = one(
        db, "SELECT user, removed FROM users WHERE namespace = ? AND user_id = ?", scope.namespace, scope.user_id
    )
    if found is not None:
        return f"{found[0]}.{found[1]}"
    return _nobody(db)


def _nobody(db: Database) -> str:
    """The epoch of an unknown user.

    A user who came and went while another call prepared a write is not the user who was never there.
    """
    gone = one(db, "SELECT value FROM meta WHERE name = ?", _GONE)
    return f"-{gone[0] if gone else 0}"


def check_epoch(db: Database, scope: Scope, since: str | None) -> None:
    """Refuse a write that was prepared before text of its user was removed.

    One that was prepared while the user was unknown is good for a new user: of them, nothing was removed.
    """
    if since is None:
        return
    epoch = epoch_of(db, scope)
    if epoch != since and not (epoch.endswith(_NOTHING_REMOVED) and since == _nobody(db)):
        raise StaleWrite(scope.user_id)


def count_removal(db: Database, user: int) -> None:
    """Text of the user was removed."""
    db.execute("UPDATE users SET removed = removed + 1 WHERE user = ?", (user,))


def forget_name(db: Database, user: int) -> None:
    """Remove the user; that users were forgotten is counted, not who."""
    db.execute("DELETE FROM users WHERE user = ?", (user,))
    db.execute(
        "INSERT INTO meta VALUES (?, '1') ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1", (_GONE,)
    )


class Sizes(NamedTuple):
    """How many numbers a user has given to records, and how many of them, from 0 on, are in the word index.

    `relinked` counts the changes of texts and of links that were there before, `gone` the vectors that went,
    `revision` the transactions that changed or removed records.
    """

    size: int
    indexed: int
    relinked: int = 0
    gone: int = 0
    revision: int = 0


_SIZES = "SELECT next_number, indexed, relinked, vectors_gone, revision FROM users WHERE user = ?"


def sizes_of(db: Database, user: int) -> Sizes:
    """The sizes of a user; none of an unknown one."""
    size, indexed, relinked, gone, revision = one(db, _SIZES, user) or (0, 0, 0, 0, 0)
    if not isinstance(size, int) or not 0 <= size <= MOST_NUMBERS:
        raise DamagedData(f"user number {user} has {size!r} records")
    if not isinstance(indexed, int) or not 0 <= indexed <= size:
        raise DamagedData(f"user number {user} has {indexed!r} of {size:,} records in the word index")
    if not isinstance(relinked, int) or not isinstance(gone, int) or not isinstance(revision, int):
        told = f"{relinked!r} changed links, {gone!r} vectors that went and {revision!r} changes"
        raise DamagedData(f"user number {user} has {told}")
    return Sizes(size, indexed, relinked, gone, revision)


def row_of(user: int, number: int) -> int:
    """The row of a user's record."""
    return user << NUMBER_BITS | number


def number_of(row: int) -> int:
    """The number of a record among those of its user."""
    return row & (1 << NUMBER_BITS) - 1


def user_of(row: int) -> int:
    """The number of the user whose record it is."""
    return row >> NUMBER_BITS


def seen(user: int, scope: Scope) -> tuple[str, tuple[Any, ...]]:
    """The condition on `records AS r` for what the scope sees; only episodes belong to a session."""
    if scope.session_id is None:
        return "r.user = ?", (user,)
    return "r.user = ? AND (r.layer IS NULL OR r.session_id = ?)", (user, scope.session_id)


def find_rows(db: Database, user: int, scope: Scope, ids: Collection[str]) -> dict[str, int]:
    """The rows of those of these records that the scope sees, by id."""
    if not ids:
        return {}
    sql, values = seen(user, scope)
    if len(ids) == 1:  # as for most writes
        return dict(rows(db, f"SELECT r.id, r.row FROM records AS r WHERE {sql} AND r.id = ?", *values, *ids))
    found = f"SELECT r.id, r.row FROM json_each(?) AS given CROSS JOIN records AS r WHERE {sql} AND r.id = given.value"
    return dict(rows(db, found, json.dumps(list(ids)), *values))


# Filters as conditions of SQLite.

SQLITE = Dialect(true="1", false="0", mark="?", longest_sql=6_000, largest_integer=2**63 - 1)
"""SQLite refuses expressions that are too deep."""

condition = SQLITE.condition
