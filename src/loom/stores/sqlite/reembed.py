"""Exchanging the vectors of a file for those of another embedder."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import islice

from loom.core.filter import Filter
from loom.core.record import Record
from loom.core.scope import Scope
from loom.stores.base import Bound
from loom.stores.sqlite.checked_rows import SELECTED, from_row
from loom.stores.sqlite.connection import Database
from loom.stores.sqlite.vectors import binding
from loom.stores.sqlite.where import condition

_USERS = "SELECT user, namespace, user_id FROM users WHERE (namespace, user_id) >= (?, ?) ORDER BY namespace, user_id"
_WITHOUT_VECTOR = "NOT EXISTS (SELECT 1 FROM vectors AS v WHERE v.row = r.row)"


def rebind(db: Database, old: Bound | None, new: Bound) -> bool:
    """Bind the file to another embedder and remove all vectors; False where it is not bound to `old`."""
    if binding(db) != old:
        return False
    db.execute("DELETE FROM meta WHERE name IN ('embedder', 'dimension')")
    db.executemany("INSERT INTO meta VALUES (?, ?)", [("embedder", new[0]), ("dimension", str(new[1]))])
    db.execute("DELETE FROM vectors")
    # By this every process that holds a user's vectors in memory sees that they are gone.
    db.execute("UPDATE users SET vectors_gone = vectors_gone + 1")
    return True


def unembedded(
    db: Database, where: Filter | None, after: tuple[Scope, str] | None, limit: int | None
) -> list[tuple[Scope, Record]]:
    """Records without a vector, by namespace, user and id."""
    # Closed at once: a cursor that stays open keeps the log from being emptied.
    with closing(_found(db, where, after)) as found:
        return list(islice(found, limit))


def count_unembedded(db: Database, where: Filter | None) -> int:
    """How many records without a vector there are."""
    return sum(1 for _ in _found(db, where, None))


def _found(db: Database, where: Filter | None, after: tuple[Scope, str] | None) -> Generator[tuple[Scope, Record]]:
    # User by user, so that a page begins where the last one ended and nothing is read twice.
    start = ("", "") if after is None else (after[0].namespace, after[0].user_id)
    with closing(db.execute(_USERS, start)) as users:
        for user, namespace, user_id in users:
            behind = after[1] if after is not None and (namespace, user_id) == start else ""
            with closing(_of_user(db, user, where, behind)) as records:
                for record in records:
                    yield Scope(namespace, user_id), record


def _of_user(db: Database, user: int, where: Filter | None, after: str) -> Generator[Record]:
    fits = condition(where)
    sql = f"SELECT {SELECTED} FROM records AS r WHERE r.user = ? AND r.id > ? AND {_WITHOUT_VECTOR} AND {fits.sql}"
    with closing(db.execute(f"{sql} ORDER BY r.id", (user, after, *fits.values))) as found:
        for row in found:
            record = from_row(row)
            if where is None or fits.exact or where.matches(record):
                yield record
