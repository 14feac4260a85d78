"""Records, keys and jobs of a file that cannot be read: found one by one, and removed."""

# ruff: noqa: S608 - only names of columns of this package stand in SQL; every value is bound

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loom.core.scope import Scope
from loom.stores.damage import UNREADABLE, DamagedData, described
from loom.stores.sqlite import jobs
from loom.stores.sqlite.checked_rows import SELECTED, from_row
from loom.stores.sqlite.connection import Database, one, rows
from loom.stores.sqlite.users import count_removal, row_of
from loom.stores.sqlite.vectors import drop_vector

_KEYS = "SELECT row, CAST(kind AS BLOB), kind, text FROM keys WHERE row >= ? AND row < ?"


@dataclass(slots=True)
class Damage:
    """Unreadable data of one user: rows of records, keys by row and kind, numbers of jobs; and all of it in words."""

    records: set[int] = field(default_factory=set[int])
    keys: set[tuple[int, bytes]] = field(default_factory=set[tuple[int, bytes]])
    jobs: set[int] = field(default_factory=set[int])
    words: list[str] = field(default_factory=list[str])


def find(db: Database, user: int, scope: Scope) -> Damage:
    """Everything of a user that cannot be read."""
    damage = Damage()
    whose = f"of user {scope.user_id!r}"
    bounds = (row_of(user, 0), row_of(user + 1, 0))
    for row in () if _are_readable(db, bounds) else _rows(db, bounds):
        if reason := _unreadable(db, row):
            damage.records.add(row)
            damage.words.append(f"{reason}, {whose}")
    for row, kind in _unreadable_keys(db, bounds):
        damage.keys.add((row, kind))
        damage.words.append(f"the key {kind.decode(errors='replace')!r} of record number {row - bounds[0]}, {whose}")
    for number, reason in jobs.unreadable(db, user):
        damage.jobs.add(number)
        damage.words.append(f"{reason}, {whose}")
    return damage


def remove(db: Database, user: int, damage: Damage) -> None:
    """Remove what cannot be read."""
    if damage.records:
        # An index may still have the value from before the damage, and a row is deleted from it by its value.
        db.execute("REINDEX records")
        count_removal(db, user)
    for row in damage.records:
        drop_vector(db, row)
        db.execute("DELETE FROM records WHERE row = ?", (row,))
    for key in damage.keys:
        db.execute("DELETE FROM keys WHERE row = ? AND CAST(kind AS BLOB) = ?", key)
    for number in damage.jobs:
        db.execute("DELETE FROM jobs WHERE number = ?", (number,))


def _are_readable(db: Database, bounds: tuple[int, int]) -> bool:
    """Whether all records of the user can be read; much faster than to look at them one by one."""
    cursor = db.execute(f"SELECT {SELECTED} FROM records AS r WHERE r.row >= ? AND r.row < ?", bounds)
    try:
        for row in cursor:
            from_row(row)
    except UNREADABLE:
        return False
    finally:
        cursor.close(True)
    return True


def _rows(db: Database, bounds: tuple[int, int]) -> list[int]:
    return [row for (row,) in rows(db, "SELECT row FROM records WHERE row >= ? AND row < ?", *bounds)]


def _unreadable(db: Database, row: int) -> str | None:
    """Why a record cannot be read; None where it can."""
    try:
        stored = one(db, f"SELECT {SELECTED} FROM records AS r WHERE r.row = ?", row)
        if stored is not None:
            from_row(stored)
    except DamagedData as error:
        return error.what
    except UNREADABLE as error:
        (id,) = one(db, "SELECT CAST(id AS BLOB) FROM records WHERE row = ?", row) or (b"",)
        return f"record {_text(id)!r} cannot be read ({described(error)})"
    return None


def _unreadable_keys(db: Database, bounds: tuple[int, int]) -> list[tuple[int, bytes]]:
    try:
        return [(row, raw) for row, raw, kind, text in rows(db, _KEYS, *bounds) if not _are_texts(kind, text)]
    except UNREADABLE:
        read = rows(db, _KEYS.replace("kind, text FROM", "CAST(text AS BLOB) FROM"), *bounds)
        return [(row, raw) for row, raw, text in read if not (_is_utf8(raw) and _is_utf8(text))]


def _are_texts(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
