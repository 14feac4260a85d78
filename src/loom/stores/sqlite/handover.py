"""What finds a record beside its own text, read back so that the record can be moved to another store."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loom.core.scope import Scope
from loom.protocols.memory_store import FoundBy
from loom.stores.sqlite.connection import Database, one, rows
from loom.stores.sqlite.users import find_row


def found_by(db: Database, user: int, scope: Scope, ids: Iterable[str]) -> dict[str, FoundBy]:
    """The keys and the vector of each of these records that the scope sees."""
    found: dict[str, FoundBy] = {}
    for id in dict.fromkeys(ids):
        row = find_row(db, user, scope, id)
        if row is None:
            continue
        keys = dict(rows(db, "SELECT kind, text FROM keys WHERE row = ?", row))
        stored = one(db, "SELECT data FROM vectors WHERE row = ?", row)
        found[id] = FoundBy(keys, None if stored is None else np.frombuffer(stored[0], "<f4"))
    return found
