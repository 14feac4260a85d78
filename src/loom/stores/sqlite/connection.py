"""Connections to one file: how they are opened, and what their errors mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import apsw

from loom.errors import StoreError, StoreUnavailable, UsageError

Durability: TypeAlias = Literal["full", "fast"]
SYNCHRONOUS: dict[str, str] = {"full": "FULL", "fast": "NORMAL"}

BUSY_MILLISECONDS = 10_000
DEADLINE_SECONDS = 30.0
"""How long a busy file is tried again before the store counts as unavailable."""

_T = TypeVar("_T")
Row: TypeAlias = tuple[Any, ...]


def connect(path: str, *, synchronous: str = "FULL") -> apsw.Connection:
    """A connection with the rules of every Loom file."""
    with spoken_errors(path):
        db = apsw.Connection(path)
        db.set_busy_timeout(BUSY_MILLISECONDS)
        # Another process that turns the log on or cleans up after a crash answers busy without a wait.
        patiently(lambda: db.execute("PRAGMA journal_mode=WAL").fetchall())
        for rule in (f"synchronous={synchronous}", "secure_delete=ON", "foreign_keys=ON", "temp_store=MEMORY"):
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
def spoken_errors(path: str) -> Iterator[None]:
    """Errors of SQLite as errors of Loom."""
    try:
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
        raise StoreError(f"{path} is no sound SQLite file ({error}); restore it from a copy") from error
    except apsw.Error as error:
        raise StoreError(f"{path} refused what was asked ({error}); nothing was changed") from error
    except OverflowError as error:
        raise UsageError(f"a number is too large to be stored ({error}); keep it within 64 bits") from error


@contextmanager
def snapshot(db: apsw.Connection) -> Iterator[apsw.Connection]:
    """One consistent view for several reads."""
    patiently(lambda: db.execute("BEGIN").fetchall())
    try:
        yield db
    finally:
        db.execute("COMMIT")


def rows(db: apsw.Connection, sql: str, *values: Any) -> list[Row]:
    """All rows of a query."""
    return db.execute(sql, values).fetchall()


def one(db: apsw.Connection, sql: str, *values: Any) -> Row | None:
    """The first row of a query."""
    found: Row | None = db.execute(sql, values).fetchone()
    return found
