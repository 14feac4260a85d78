"""The description of a SQLite store and its guarantees."""

from __future__ import annotations

import apsw

from loom.stores.base import embedder_label
from loom.stores.sqlite.connection import Database, one
from loom.stores.sqlite.file import SqliteFile
from loom.stores.sqlite.schema import VERSION
from loom.stores.sqlite.vectors import binding

_DURABLE = {
    "full": "full: an acknowledged write survives a killed process and a power cut (WAL, synchronous=FULL)",
    "fast": "fast: survives a killed process; a power cut may take the last writes (WAL, synchronous=NORMAL)",
}


def durability(file: SqliteFile) -> str:
    """What an acknowledged write survives."""
    return "none: everything is gone when it is closed" if file.is_in_memory else _DURABLE[file.durability]


def labels(db: Database) -> dict[str, str]:
    """The labels that are read from the file."""
    found = one(db, "SELECT count(*), coalesce(sum(records), 0) FROM users") or (0, 0)
    vectors = one(db, "SELECT count(*) FROM vectors") or (0,)
    return {
        "server": f"SQLite {apsw.sqlite_lib_version()}, in this process",
        "isolation": "every statement names its user; anyone who can read the file can read all of it",
        "index": f"{vectors[0]:,} vectors of {found[1]:,} records of {found[0]:,} users; written with the records",
        "embedder": embedder_label(binding(db)),
        "schema": f"version {VERSION}, the newest this Loom knows",
    }
