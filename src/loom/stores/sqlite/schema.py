"""Tables of a Loom file, for memory and checkpoints, and their migrations."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Final, cast

import apsw

from loom.core.codec import from_bytes
from loom.core.scope import Scope
from loom.errors import FormatTooNew, StoreError
from loom.stores.sqlite.connection import Database, one, patiently, translate_errors

APPLICATION_ID = 0x4C6F6F6D
"""Marks a file as Loom's own, so that another program's file is never changed."""
_HEAD: Final = Struct(">40xI16xI4xI")
"""How a SQLite file begins: the number of its schema, of its format, and of the program it belongs to."""
_READ_OR_MAKE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE

_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE users (
    user INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    user_id TEXT NOT NULL,
    next_number INTEGER NOT NULL DEFAULT 0,
    vectors_gone INTEGER NOT NULL DEFAULT 0,
    records INTEGER NOT NULL DEFAULT 0,
    UNIQUE (namespace, user_id)
);

CREATE TABLE records (
    row INTEGER PRIMARY KEY,
    user INTEGER NOT NULL REFERENCES users (user),
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT,
    origin TEXT NOT NULL,
    trusted INTEGER NOT NULL,
    at INTEGER,
    recorded_at INTEGER,
    layer INTEGER,
    session_id TEXT,
    speaker TEXT,
    importance REAL,
    accesses INTEGER,
    accessed_at INTEGER,
    archived_at INTEGER,
    sources TEXT,
    attributes TEXT,
    subject TEXT,
    predicate TEXT,
    object TEXT,
    valid_from INTEGER,
    valid_until INTEGER,
    superseded_at INTEGER,
    superseded_by TEXT,
    confidence REAL,
    cardinality TEXT,
    name TEXT,
    version INTEGER,
    updated_at INTEGER,
    UNIQUE (user, id)
);
CREATE TRIGGER one_more AFTER INSERT ON records BEGIN
    UPDATE users SET records = records + 1 WHERE user = new.user;
END;
CREATE TRIGGER one_less AFTER DELETE ON records BEGIN
    UPDATE users SET records = records - 1 WHERE user = old.user;
END;
CREATE INDEX episodes_by_session ON records (user, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX episodes_by_layer ON records (user, layer, recorded_at) WHERE layer IS NOT NULL AND archived_at IS NULL;
CREATE INDEX facts_by_subject ON records (user, subject, predicate) WHERE subject IS NOT NULL;
CREATE INDEX others_by_user ON records (user) WHERE layer IS NULL;

CREATE TABLE keys (
    row INTEGER NOT NULL REFERENCES records (row) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (row, kind)
) WITHOUT ROWID;

CREATE TABLE postings (
    user INTEGER NOT NULL,
    run INTEGER NOT NULL,
    term TEXT NOT NULL,
    signal TEXT NOT NULL,
    entries BLOB NOT NULL,
    PRIMARY KEY (user, run, term, signal)
) WITHOUT ROWID;

CREATE TABLE lengths (
    user INTEGER NOT NULL,
    signal TEXT NOT NULL,
    texts INTEGER NOT NULL,
    words INTEGER NOT NULL,
    PRIMARY KEY (user, signal)
) WITHOUT ROWID;

CREATE TABLE vectors (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    user INTEGER NOT NULL,
    row INTEGER NOT NULL UNIQUE REFERENCES records (row) ON DELETE CASCADE,
    data BLOB NOT NULL
);
CREATE INDEX vectors_by_user ON vectors (user);

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    user INTEGER NOT NULL REFERENCES users (user),
    session_id TEXT,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    run_at INTEGER NOT NULL,
    payload TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    leased INTEGER NOT NULL DEFAULT 0,
    token TEXT,
    until INTEGER,
    reason TEXT,
    dead_at INTEGER
);
CREATE UNIQUE INDEX open_job_keys ON jobs (user, key) WHERE dead_at IS NULL;
CREATE UNIQUE INDEX open_job_ids ON jobs (user, id) WHERE dead_at IS NULL;
CREATE INDEX open_jobs ON jobs (run_at, id) WHERE dead_at IS NULL;
CREATE INDEX dead_jobs ON jobs (user, number) WHERE dead_at IS NOT NULL;
"""

_SECOND = "ALTER TABLE users ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;"

_THIRD = "ALTER TABLE records ADD COLUMN checksum INTEGER;"

_FOURTH = """
ALTER TABLE users ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN relinked INTEGER NOT NULL DEFAULT 0;
UPDATE users SET indexed = next_number;
ALTER TABLE records ADD COLUMN before INTEGER;
CREATE TABLE links (row INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE sketches (row INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""
"""Everything that was indexed stays as it is: a turn of before has its neighbours' words as the text of a key."""

_FIFTH = "ALTER TABLE users ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;"
"""What searches hold of records is good while it is the same, see `ChangeLog`."""

MIGRATIONS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH)
"""Step n leads from version n to n + 1. A step that was released is never changed."""
VERSION = len(MIGRATIONS)


def check_file(path: str) -> None:
    """Refuse the file of another program or of a newer Loom while not a byte of it was changed.

    Only the head of the file itself is read: to read a file with its log or its journal, SQLite would write to both,
    and while another process brings its log into the file, the pages behind the head may be of two times. SQLite
    reads it: a file that is closed behind its back loses its locks. What a new file still has in its log alone is
    seen by migrate().
    """
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists() raises where a folder may not be entered
        return
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    with translate_errors(path):
        file = apsw.VFSFile("", str(Path(path).absolute()), flags)
        try:
            head = file.xRead(_HEAD.size, 0)
        finally:
            file.xClose()
        if head and (len(head) < _HEAD.size or not head.startswith(b"SQLite format 3\0")):
            raise apsw.NotADBError("file is not a database")
        if head:
            _check(path, *_HEAD.unpack(head))


@contextmanager
def _opened(path: str, *, flags: int = _READ_OR_MAKE) -> Generator[Database]:
    """A connection without the rules of a Loom file."""
    with translate_errors(path), closing(cast("Database", apsw.Connection(path, flags=flags))) as db:
        yield db


def migrate(db: Database, path: str) -> None:
    """Bring the file to this version, or refuse it."""
    with translate_errors(path):
        if _number(db, "user_version") == VERSION and _number(db, "application_id") == APPLICATION_ID:
            return
        patiently(lambda: db.execute("BEGIN IMMEDIATE").fetchall())
        try:
            _check(path, *(_number(db, name) for name in ("schema_version", "user_version", "application_id")))
            for script in MIGRATIONS[_number(db, "user_version") :]:
                db.execute(script)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={VERSION}")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


def _check(path: str, schema: int, version: int, application: int) -> None:
    """Refuse a file that is neither new nor of this Loom; its head says so, no table is read."""
    if schema and application != APPLICATION_ID:
        raise StoreError(f"{path} is a SQLite file of another program; give a new path or a file of Loom")
    if version > VERSION:
        raise FormatTooNew(f"{path} has format {version}, and this Loom reads up to {VERSION}; install a newer Loom")


def _number(db: Database, name: str) -> int:
    """A number in the header of the file."""
    return int((one(db, f"PRAGMA {name}") or (0,))[0])


# The tables of checkpoints. They stand in a Loom file beside those of memory and know nothing of each other.

FORMAT = 3
"""2: recorded entries, the ids of entries. 3: the index of attributes, small values in their entries."""
_NAME = "checkpoints"
_PAGE_BYTES = 512
"""A commit writes whole pages, and a save touches a few bytes of many: small pages write and waste the least."""
MEMORY_PAGE_BYTES = 1024
"""The same for a file of memory, whose rows are longer."""

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

_IDS_TABLES = """
CREATE TABLE checkpoint_indexed (session INTEGER PRIMARY KEY, node INTEGER NOT NULL);
CREATE INDEX checkpoint_indexed_nodes ON checkpoint_indexed (node);

CREATE TABLE checkpoint_entry_ids (
    session INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;
"""
"""The ids of the entries of a session's log up to a node, for sessions that were asked for them. Since format 2."""

_ATTRIBUTES_TABLE = """
CREATE TABLE checkpoint_attributes (
    session INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    node INTEGER NOT NULL,
    PRIMARY KEY (session, hash, node)
) WITHOUT ROWID;
"""
"""Which checkpoints of a session have an attribute, by the hash of its name and value. Since format 3."""
_HAVE_ATTRIBUTES = (
    "SELECT session, node, more FROM checkpoint_nodes "
    "WHERE session IS NOT NULL AND instr(more, CAST('\"attributes\":' AS BLOB))"
)


def attribute_hash(name: str, value: str) -> int:
    """64 bits of SHA-256. Enough to find an attribute; whether it is the same one is decided by its text."""
    both = f"{len(name)}:{name}{value}".encode("utf-8", "surrogatepass")
    return int.from_bytes(sha256(both).digest()[:8], signed=True)


def prepare(path: str, page_bytes: int = _PAGE_BYTES) -> None:
    """Give a file that is not there yet small pages; one that is there keeps its own."""
    if os.path.exists(path) and os.path.getsize(path):  # noqa: PTH110, PTH202 - SQLite's own names need no Path
        return
    with _opened(path) as db:
        patiently(lambda: db.execute(f"PRAGMA page_size={page_bytes}; PRAGMA journal_mode=WAL").fetchall())


def has_checkpoints(path: str) -> bool:
    """Whether a file has the tables of checkpoints; nothing is made by asking."""
    check_file(path)
    with _opened(path, flags=apsw.SQLITE_OPEN_READWRITE) as db:
        found = patiently(lambda: one(db, "SELECT 1 FROM sqlite_schema WHERE name = 'checkpoint_nodes'"))
    return found is not None


def count_sessions(db: Database, scope: Scope) -> int:
    """How many conversations of the scope the file holds; none where it has no tables for them."""
    if one(db, "SELECT 1 FROM meta WHERE name = ?", _NAME) is None:
        return 0
    session, values = ("", ()) if scope.session_id is None else (" AND session_id = ?", (scope.session_id,))
    both = "checkpoint_users JOIN checkpoint_sessions USING (user)"
    sql = f"SELECT count(*) FROM {both} WHERE namespace = ? AND user_id = ?{session}"  # noqa: S608 - values are bound
    found = one(db, sql, scope.namespace, scope.user_id, *values)
    return int(found[0]) if found else 0


def setup(db: Database) -> None:
    """Make the tables where there are none, or bring them to this format; refuse those of a newer Loom."""
    found = one(db, "SELECT value FROM meta WHERE name = ?", _NAME)
    version = 0 if found is None else int(found[0])
    if version > FORMAT:
        raise FormatTooNew(
            f"the checkpoints of this file have format {version}, this Loom reads up to {FORMAT}; upgrade Loom"
        )
    if version == FORMAT:
        return
    db.execute("".join((_TABLES, _IDS_TABLES, _ATTRIBUTES_TABLE)[version:]))
    for session, node, more in db.execute(_HAVE_ATTRIBUTES).fetchall():
        with suppress(ValueError, LookupError, AttributeError):  # what cannot be read is found when it is asked for
            index_attributes(db, session, node, from_bytes(more)["attributes"])
    db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_NAME, str(FORMAT)))


def index_attributes(db: Database, session: int, node: int, attributes: Mapping[str, str]) -> None:
    """Let a checkpoint be found by its attributes."""
    found = [(session, attribute_hash(*attribute), node) for attribute in attributes.items()]
    db.executemany("INSERT OR IGNORE INTO checkpoint_attributes VALUES (?, ?, ?)", found)
