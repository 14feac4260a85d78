"""Connections that read, each used by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from loom.stores.sqlite.connection import Database, connect, snapshot, spoken_errors

_T = TypeVar("_T")
_MOST_IDLE = 8


class Readers:
    """Runs reads on a snapshot of the file, any number at once."""

    __slots__ = ("_idle", "_is_closed", "_lock", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: list[Database] = []
        self._is_closed = False
        self._lock = Lock()

    def run(self, action: Callable[[Database], _T]) -> _T:
        """What `action` returns for one consistent view of the file."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        db = db or connect(self._path)
        try:
            with spoken_errors(self._path), snapshot(db):
                outcome = action(db)
        except BaseException:
            db.close()  # whatever it was, a cursor or a transaction may still be open
            raise
        self._give_back(db)
        return outcome

    def _give_back(self, db: Database) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(db)
                return
        db.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed after its read."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()
