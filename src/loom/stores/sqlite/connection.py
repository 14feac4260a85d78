"""Connections to a SQLite file, and what their errors mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

import apsw

from loom.errors import StoreError, StoreUnavailable, UsageError
from loom.stores.base import damage_at

Durability: TypeAlias = Literal["full", "fast"]
SYNCHRONOUS: dict[str, str] = {"full": "FULL", "fast": "NORMAL"}

BUSY_MILLISECONDS = 10_000
DEADLINE_SECONDS = 30.0
"""How long a busy file is tried again before the store counts as unavailable."""

_T = TypeVar("_T")
Row: TypeAlias = tuple[Any, ...]


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
    def set_busy_timeout(self, milliseconds: int) -> None: ...
    def wal_checkpoint(self, *, mode: int) -> tuple[int, int]: ...
    def close(self) -> None: ...


Database: TypeAlias = _Connection


def connect(path: str, *, synchronous: str = "FULL", cache_kibibytes: int = 8_000) -> Database:
    """A connection with the rules of every Loom file."""
    with translate_errors(path):
        db = cast("Database", apsw.Connection(path))
        db.set_busy_timeout(BUSY_MILLISECONDS)
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


def patiently(action: Callable[[], _T], *, seconds: float = DEADLINE_SECONDS) -> _T:
    """Do it, and again while the file is busy, until the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)


@contextmanager
def translate_errors(path: str) -> Generator[None]:
    """Errors of SQLite, and of reading what is damaged, as errors of Loom."""
    try:
        with damage_at(path, verify=f"sqlite:{path}"):
            yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreUnavailable(
            f"{path} was held by another process for {DEADLINE_SECONDS:.0f} s; try again, or look who holds it"
        ) from error
    except (apsw.CantOpenError, apsw.IOError, apsw.FullError, apsw.ReadOnlyError) as error:
        raise StoreUnavailable(
            f"{path} cannot be opened, read or written ({error}); check the folder, its rights and the free space"
        ) from error
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


def one(db: Database, sql: str, *values: Any) -> Row | None:
    """The first row of a query."""
    return db.execute(sql, values).fetchone()
