"""Keys and vectors of records, read back so that the records can be moved to another store."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from loom.core.scope import Scope
from loom.protocols.memory_store import FoundBy
from loom.stores.damage import reading
from loom.stores.sqlite.connection import Database, rows
from loom.stores.sqlite.users import seen


def found_by(db: Database, user: int, scope: Scope, ids: Iterable[str]) -> dict[str, FoundBy]:
    """The keys and the vector of each of these records that the scope sees."""
    sql, values = seen(user, scope)
    wanted = json.dumps(list(dict.fromkeys(ids)))
    records = rows(
        db,
        f"SELECT r.id, r.row, v.data FROM json_each(?) AS given CROSS JOIN records AS r ON r.id = given.value "
        f"LEFT JOIN vectors AS v ON v.row = r.row WHERE {sql}",
        wanted,
        *values,
    )
    keys: defaultdict[int, dict[str, str]] = defaultdict(dict)
    given = json.dumps([row for _, row, _ in records])
    for row, kind, text in rows(
        db, "SELECT k.row, kind, text FROM json_each(?) AS given CROSS JOIN keys AS k ON k.row = given.value", given
    ):
        keys[row][kind] = text
    with reading("a vector"):
        return {
            id: FoundBy(keys[row], None if data is None else np.frombuffer(data, "<f4")) for id, row, data in records
        }
