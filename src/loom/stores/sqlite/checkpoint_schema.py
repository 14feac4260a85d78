"""The tables of checkpoints. They stand in a Loom file beside those of memory and know nothing of each other."""

from __future__ import annotations

import os
from typing import cast

import apsw

from loom.core.message_codec import check_format
from loom.core.scope import Scope
from loom.stores.sqlite.connection import Database, one, patiently, spoken_errors
from loom.stores.sqlite.schema import check_file

FORMAT = 1
_NAME = "checkpoints"
_PAGE_BYTES = 512
"""A commit writes whole pages, and a save touches a few bytes of many: small pages write and waste the least."""

_TABLES = """
CREATE TABLE checkpoint_users (
    user INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    user_id TEXT NOT NULL,
    UNIQUE (namespace, user_id)
);

CREATE TABLE checkpoint_sessions (
    session INTEGER PRIMARY KEY,
    user INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    head INTEGER,
    UNIQUE (user, session_id)
);

CREATE TABLE checkpoint_nodes (
    node INTEGER PRIMARY KEY,
    user INTEGER NOT NULL,
    parent INTEGER,
    session INTEGER,
    id TEXT,
    format INTEGER,
    at INTEGER,
    position INTEGER,
    turn INTEGER,
    parent_id TEXT,
    more BLOB,
    size INTEGER NOT NULL,
    entries BLOB NOT NULL
);
CREATE UNIQUE INDEX checkpoint_ids ON checkpoint_nodes (session, id) WHERE session IS NOT NULL;
CREATE INDEX checkpoint_parents ON checkpoint_nodes (parent) WHERE parent IS NOT NULL;

CREATE TABLE checkpoint_parts (part INTEGER PRIMARY KEY, body BLOB NOT NULL);

CREATE TABLE checkpoint_part_keys (
    user INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    part INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    PRIMARY KEY (user, hash, part)
) WITHOUT ROWID;
"""


def prepare(path: str) -> None:
    """Give a file that is not there yet small pages; one that is there keeps its own."""
    if os.path.exists(path) and os.path.getsize(path):  # noqa: PTH110, PTH202 - SQLite's own names need no Path
        return
    with spoken_errors(path):
        db = cast("Database", apsw.Connection(path))
        try:
            patiently(lambda: db.execute(f"PRAGMA page_size={_PAGE_BYTES}; PRAGMA journal_mode=WAL").fetchall())
        finally:
            db.close()


def has_checkpoints(path: str) -> bool:
    """Whether a file has the tables of checkpoints; nothing is made by asking."""
    check_file(path)
    with spoken_errors(path):
        db = cast("Database", apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE))
        try:
            found = patiently(lambda: one(db, "SELECT 1 FROM sqlite_schema WHERE name = 'checkpoint_nodes'"))
        finally:
            db.close()
    return found is not None


def count_sessions(db: Database, scope: Scope) -> int:
    """How many conversations of the scope the file holds; none where it has no tables for them."""
    if one(db, "SELECT 1 FROM meta WHERE name = ?", _NAME) is None:
        return 0
    session, values = ("", ()) if scope.session_id is None else (" AND session_id = ?", (scope.session_id,))
    found = one(
        db,
        "SELECT count(*) FROM checkpoint_users JOIN checkpoint_sessions USING (user) "  # noqa: S608 - values are bound
        f"WHERE namespace = ? AND user_id = ?{session}",
        scope.namespace,
        scope.user_id,
        *values,
    )
    return int(found[0]) if found else 0


def setup(db: Database) -> None:
    """Make the tables where there are none; refuse those of a newer Loom."""
    found = one(db, "SELECT value FROM meta WHERE name = ?", _NAME)
    if found is not None:
        check_format(int(found[0]), "the checkpoints of this file")
        return
    db.execute(_TABLES)
    db.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (_NAME, str(FORMAT)))
