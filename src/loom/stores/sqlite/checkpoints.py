"""Checkpoints in one SQLite file.

A node is one save: the entries it added, and the checkpoint behind them. Parts are rows of their own, found by a short
hash and compared byte by byte.
"""

# ruff: noqa: S608 - only conditions of this module are put into SQL; every value is bound

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from os import PathLike
from typing import Any, Self

import apsw

from loom.core import codec
from loom.core.clock import Clock
from loom.core.codec import Data
from loom.core.log import Checkpoint, LogEntry, SavedSession
from loom.core.message import JSON, Part
from loom.core.scope import Scope
from loom.core.threads import run_here
from loom.stores import _packed as packing
from loom.stores import checkpoints as kernel
from loom.stores._packed import ALL, LogSlice
from loom.stores._sql import from_micros, to_micros
from loom.stores.base import UNREADABLE, described, reading
from loom.stores.checkpoints import Action, BaseCheckpointStore, Matching, Removed, Saved, T, TreeLink, TreePort
from loom.stores.sqlite.connection import Database, Durability, Row, all_users, one, rows
from loom.stores.sqlite.file import SqliteFile
from loom.stores.sqlite.schema import attribute_hash, index_attributes, prepare, setup

_COLUMNS = "id, format, at, position, turn, parent_id, more"
_OWN = frozenset({"id", "session_id", "format_version", "at", "position", "turn", "parent"})
_NOTHING = ", ".join(["NULL"] * 8)
_USER = "SELECT user FROM checkpoint_users WHERE namespace = ? AND user_id = ?"
_JOINED = "FROM checkpoint_nodes JOIN checkpoint_sessions AS s USING (session)"
_SAVED = f"{_JOINED} WHERE s.user = ({_USER})"
_LINKS = """
WITH RECURSIVE found (node) AS (
    SELECT value FROM json_each(?)
    UNION SELECT parent FROM checkpoint_nodes JOIN found USING (node) WHERE ? AND parent IS NOT NULL
)
SELECT node, parent, id, size, (SELECT count(*) FROM checkpoint_nodes AS c WHERE c.parent = n.node)
FROM found JOIN checkpoint_nodes AS n USING (node) ORDER BY node DESC
"""
_LOG = f"""
WITH RECURSIVE chain (node, parent, seen) AS (
    SELECT node, parent, size {_SAVED} AND session_id = ? AND id = ?
    UNION ALL SELECT n.node, n.parent, seen + n.size FROM chain JOIN checkpoint_nodes AS n ON n.node = chain.parent
    WHERE ? AND seen < ?
)
SELECT entries FROM checkpoint_nodes JOIN chain USING (node) ORDER BY node
"""
_BEHIND = """
WITH RECURSIVE chain (node, parent) AS (
    SELECT node, parent FROM checkpoint_nodes WHERE node = ?
    UNION ALL SELECT n.node, n.parent FROM chain JOIN checkpoint_nodes AS n ON n.node = chain.parent WHERE n.node > ?
)
SELECT chain.parent, entries FROM checkpoint_nodes JOIN chain USING (node) ORDER BY node
"""
_SESSIONS = f"""
SELECT s.session_id, f.at, l.at, s.size, l.position FROM (
    SELECT session_id, head, (SELECT count(*) FROM checkpoint_nodes AS n WHERE n.session = c.session) AS size,
    (SELECT min(node) FROM checkpoint_nodes AS n WHERE n.session = c.session) AS first
    FROM checkpoint_sessions AS c WHERE user = ({_USER}) AND (? OR session_id = ?) ORDER BY head DESC LIMIT ?
) AS s JOIN checkpoint_nodes AS f ON f.node = s.first JOIN checkpoint_nodes AS l ON l.node = s.head ORDER BY s.head DESC
"""
_INDEXED = f"""
SELECT session_id, {_COLUMNS} FROM checkpoint_sessions AS s CROSS JOIN checkpoint_attributes AS a USING (session)
CROSS JOIN checkpoint_nodes AS n USING (node) WHERE s.user = ({_USER})"""
_ALSO = (
    " AND EXISTS (SELECT 1 FROM checkpoint_attributes AS b "
    "WHERE b.session = a.session AND b.hash = ? AND b.node = a.node)"
)
_HAS = " AND EXISTS (SELECT 1 FROM json_each(CAST(more AS TEXT), '$.attributes') AS e WHERE e.key = ? AND e.value = ?)"
_UNBOUNDED = 2**62


class SqliteCheckpointStore(BaseCheckpointStore):
    """Keeps sessions in one file; forks and prunes. Several stores, threads and processes may share it.

    The file may be that of a SqliteStore: the tables stand side by side, and both use the one writer of the process.
    `durability="full"` survives a power cut after every acknowledged save; `"fast"` survives the end of the process,
    and a power cut may take the last saves. `":memory:"` keeps everything in memory.

    A new file gets small pages, which is what a log of turns wants; with `small_pages=False` it gets SQLite's own,
    for a file that will hold a memory as well. With `make_folder` the folder of a new file is made with it.
    """

    needs_loop = False

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        small_pages: bool = True,
        make_folder: bool = False,
    ) -> None:
        super().__init__(clock)
        first = prepare if small_pages else None
        self._file = SqliteFile(path, durability=durability, make_folder=make_folder, prepare=first, setup=setup)

    async def __aenter__(self) -> Self:
        await self._file.opened()
        return self

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        run = self._file.commit if writes else self._file.view
        return await run(lambda db: run_here(action(_SqliteSaves(db, scope))))

    async def _find(self, user: Scope, session_id: str, id: str | None) -> Saved[int] | None:
        def find(db: Database) -> list[Saved[int] | None]:
            return run_here(_SqliteSaves(db, user).find(session_id, id))

        (found,) = await self._file.view(find, ("save", user.namespace, user.user_id))
        return found

    async def _erase(self, scope: Scope, action: Action[Removed]) -> tuple[Removed, tuple[str, ...]]:
        return await self._file.erase(lambda db: run_here(action(_SqliteSaves(db, scope))))

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users who have sessions here, sorted by namespace and user, starting after `after`."""
        kernel.check_limit(limit)
        return await self._file.view(lambda db: all_users(db, after, limit, table="checkpoint_users"))

    async def aclose(self) -> None:
        """Finish writing and release the file. Closing twice is allowed."""
        await self._file.aclose()


class _SqliteSaves(TreePort[int]):
    """The saves of one user, inside a transaction that the caller holds."""

    def __init__(self, db: Database, scope: Scope) -> None:
        self._db, self._user = db, (scope.namespace, scope.user_id)
        self._numbers: dict[str, tuple[int, int]] = {}

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[int] | None]:
        sql = "SELECT user, session, head FROM checkpoint_users JOIN checkpoint_sessions USING (user) "
        sql += "WHERE namespace = ? AND user_id = ? AND session_id = ?"
        known = one(self._db, sql, *self._user, session_id)
        if known is None:
            return [None for _ in ids]
        user, session, head = known
        self._numbers[session_id] = user, session
        found: dict[str | None, Saved[int] | None] = {}
        for id in sorted(ids, key=lambda id: id is not None):  # the newest first: it is often one of the others, too
            if id not in found:
                which, values = ("node = ?", (head,)) if id is None else ("session = ? AND id = ?", (session, id))
                row = one(self._db, f"SELECT node, {_COLUMNS} FROM checkpoint_nodes WHERE {which}", *values)
                saved = None if row is None else Saved(int(row[0]), _checkpoint((session_id, *row[1:])))
                found |= {id: saved} if saved is None else {id: saved, saved.checkpoint.id: saved}
        return [found[id] for id in ids]

    async def checkpoints(
        self, session_id: str | None, limit: int | None, matching: Matching[int] | None = None
    ) -> list[Checkpoint]:
        if matching is None:
            nodes = (await self.keys(session_id))[:limit]
            return [checkpoint for node in nodes for checkpoint in _checkpoints_at(self._db, node)]
        which, values = ("", ()) if session_id is None else (" AND session_id = ?", (session_id,))
        last = _UNBOUNDED if matching.before is None else matching.before
        most = -1 if limit is None else limit
        if not matching.attributes:
            sql = f"SELECT session_id, {_COLUMNS} {_SAVED}{which} AND node < ? ORDER BY node DESC LIMIT ?"
            return [_checkpoint(row) for row in rows(self._db, sql, *self._user, *values, last, most)]
        # Found by hash in the order of saving, so that no more are read than come; the text decides.
        first, *others = (attribute_hash(*attribute) for attribute in matching.attributes.items())
        texts = chain.from_iterable(matching.attributes.items())
        sql = f"{_INDEXED}{which} AND a.hash = ? AND a.node < ?{_ALSO * len(others)}{_HAS * len(matching.attributes)}"
        values = (*self._user, *values, first, last, *others, *texts, most)
        return [_checkpoint(row) for row in rows(self._db, f"{sql} ORDER BY a.node DESC LIMIT ?", *values)]

    async def sessions(self, session_id: str | None, limit: int | None) -> list[SavedSession]:
        most = -1 if limit is None else limit
        found = rows(self._db, _SESSIONS, *self._user, session_id is None, session_id, most)
        return [
            SavedSession(
                session_id=name, first_at=from_micros(first), last_at=from_micros(last), checkpoints=count, entries=size
            )
            for name, first, last, count, size in found
        ]

    async def keys(self, session_id: str | None) -> list[int]:
        which, values = ("", ()) if session_id is None else (" AND session_id = ?", (session_id,))
        found = rows(self._db, f"SELECT node {_SAVED}{which} ORDER BY node DESC", *self._user, *values)
        return [int(node) for (node,) in found]

    async def log(self, session_id: str, id: str, wanted: LogSlice) -> list[LogEntry] | None:
        last = _UNBOUNDED if wanted.last is None else wanted.last
        found = rows(self._db, _LOG, *self._user, session_id, id, wanted.whole, last)
        return _unpacked(self._db, found, wanted) if found else None

    async def held(self, session_id: str, newest: Saved[int], ids: Sequence[str]) -> set[str]:
        db = self._db
        sql = f"SELECT session FROM checkpoint_sessions WHERE user = ({_USER}) AND session_id = ?"
        session = _number(db, sql, *self._user, session_id)
        upto = _number(db, "SELECT node FROM checkpoint_indexed WHERE session = ?", session) or 0
        if upto != newest.key:
            fresh = rows(db, _BEHIND, newest.key, upto)
            if upto and fresh[0][0] != upto:  # the session goes on from an older checkpoint: begin anew
                _drop_index(db, session)
                fresh = rows(db, _BEHIND, newest.key, 0)
            sql = "INSERT OR IGNORE INTO checkpoint_entry_ids (session, id) VALUES (?, ?)"
            db.executemany(sql, [(session, id) for _, entries in fresh for id in packing.ids_in(entries)])
            db.execute("INSERT OR REPLACE INTO checkpoint_indexed VALUES (?, ?)", (session, newest.key))
        sql = "SELECT id FROM checkpoint_entry_ids WHERE session = ? AND id IN (SELECT value FROM json_each(?))"
        return {id for (id,) in rows(db, sql, session, json.dumps([*ids]))}

    async def links(self, keys: Sequence[int], *, ancestors: bool) -> list[TreeLink[int]]:
        return [TreeLink(*row) for row in rows(self._db, _LINKS, json.dumps([*keys]), ancestors)]

    async def write(self, checkpoint: Checkpoint, entries: Sequence[LogEntry], parent: int | None) -> None:
        db = self._db
        user, session = self._numbers.get(checkpoint.session_id) or self._numbered(checkpoint.session_id)

        def put(part: Part) -> int:
            return _keep(db, user, codec.to_bytes(codec.part_to_dict(part)))

        def put_body(body: JSON | bytes) -> Data:
            if isinstance(body, bytes):
                return {"bytes": _keep(db, user, body)}
            return {"json": _keep(db, user, codec.to_bytes(body))}

        packed = packing.encoded_entries(entries, put, put_body)
        node = _inserted(
            db,
            f"INSERT INTO checkpoint_nodes (user, parent, session, size, entries, {_COLUMNS}) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(user, parent, session, len(entries), packed, *_values(checkpoint)),
        )
        if checkpoint.attributes:
            index_attributes(db, session, node, checkpoint.attributes)
        db.execute("UPDATE checkpoint_sessions SET head = ? WHERE session = ?", (node, session))

    def _numbered(self, session_id: str) -> tuple[int, int]:
        """The numbers of the user and of a session, which are made where there are none."""
        db, sql = self._db, "INSERT INTO checkpoint_users (namespace, user_id) VALUES (?, ?)"
        user = _number(db, _USER, *self._user) or _inserted(db, sql, *self._user)
        key = (user, session_id)
        session = _number(db, "SELECT session FROM checkpoint_sessions WHERE user = ? AND session_id = ?", *key)
        sql = "INSERT INTO checkpoint_sessions (user, session_id) VALUES (?, ?)"
        return user, session or _inserted(db, sql, *key)

    async def drop(self, bare: Sequence[int], gone: Sequence[int]) -> None:
        db, sessions = self._db, set[int]()
        self._numbers.clear()
        for node in (*bare, *gone):
            sql = "SELECT session, more FROM checkpoint_nodes WHERE node = ? AND session IS NOT NULL"
            for session, more in rows(db, sql, node):
                sessions.add(session)
                _unindex_attributes(db, session, node, more)
        sql = f"UPDATE checkpoint_nodes SET (session, {_COLUMNS}) = ({_NOTHING}) WHERE node = ?"
        db.executemany(sql, [(node,) for node in bare])
        for node in gone:
            for user, entries in rows(db, "SELECT user, entries FROM checkpoint_nodes WHERE node = ?", node):
                _release_parts(db, user, entries)
            db.execute("DELETE FROM checkpoint_nodes WHERE node = ?", (node,))
            for (session,) in rows(db, "SELECT session FROM checkpoint_indexed WHERE node = ?", node):
                _drop_index(db, session)  # the number may be given again
        for session in sessions:
            newest = "SELECT max(node) FROM checkpoint_nodes AS n WHERE n.session = checkpoint_sessions.session"
            db.execute(f"UPDATE checkpoint_sessions SET head = ({newest}) WHERE session = ?", (session,))
            db.execute("DELETE FROM checkpoint_sessions WHERE session = ? AND head IS NULL", (session,))
            if one(db, "SELECT 1 FROM checkpoint_sessions WHERE session = ?", session) is None:
                _drop_index(db, session)
        db.execute(
            "DELETE FROM checkpoint_users WHERE namespace = ? AND user_id = ? "
            "AND NOT EXISTS (SELECT 1 FROM checkpoint_sessions AS s WHERE s.user = checkpoint_users.user)",
            self._user,
        )


def damaged(db: Database) -> list[str]:
    """The saves of a file that cannot be read, in words; none where it holds no conversations."""
    if one(db, "SELECT 1 FROM sqlite_master WHERE name = 'checkpoint_nodes'") is None:
        return []
    found: list[str] = []
    for (node,) in rows(db, "SELECT node FROM checkpoint_nodes ORDER BY node"):
        try:
            _checkpoints_at(db, node)
            _unpacked(db, rows(db, "SELECT entries FROM checkpoint_nodes WHERE node = ?", node))
        except UNREADABLE as error:
            found.append(f"save number {node} of the conversations: {described(error)}")
    return found


def _drop_index(db: Database, session: int | None) -> None:
    """Remove the ids of a session's entries; they are read again when they are asked for."""
    db.execute("DELETE FROM checkpoint_entry_ids WHERE session = ?", (session,))
    db.execute("DELETE FROM checkpoint_indexed WHERE session = ?", (session,))


def _unindex_attributes(db: Database, session: int, node: int, more: bytes | None) -> None:
    """Remove a checkpoint from the index of attributes; what its row says cannot be read is looked for."""
    try:
        attributes: dict[str, str] = {} if more is None else codec.from_bytes(more).get("attributes", {})
        found = [(session, attribute_hash(*attribute), node) for attribute in attributes.items()]
    except UNREADABLE:
        db.execute("DELETE FROM checkpoint_attributes WHERE session = ? AND node = ?", (session, node))
    else:
        db.executemany("DELETE FROM checkpoint_attributes WHERE session = ? AND hash = ? AND node = ?", found)


def _keep(db: Database, user: int, body: bytes) -> int:
    """The number of a part, or of the body of a recorded entry; an equal one of this user is used again."""
    key = (user, _hash(body))
    known = "SELECT part FROM checkpoint_part_keys JOIN checkpoint_parts USING (part)"
    number = _number(db, f"{known} WHERE user = ? AND hash = ? AND body = ?", *key, body)
    if number is None:
        number = _inserted(db, "INSERT INTO checkpoint_parts (body) VALUES (?)", body)
        db.execute("INSERT INTO checkpoint_part_keys (user, hash, part, uses) VALUES (?, ?, ?, 1)", (*key, number))
    else:
        sql = "UPDATE checkpoint_part_keys SET uses = uses + 1 WHERE user = ? AND hash = ? AND part = ?"
        db.execute(sql, (*key, number))
    return number


def _release_parts(db: Database, user: int, entries: bytes) -> None:
    """Each part of packed entries has one use less; the last one takes the part with it."""
    with reading("the log of a session"):
        numbers = [number for entry in codec.from_bytes(entries) for number in packing.numbers_in(entry)]
    for number in numbers:
        found = one(db, "SELECT body FROM checkpoint_parts WHERE part = ?", number)
        if found is None:
            continue
        key = (user, _hash(found[0]), number)
        db.execute("UPDATE checkpoint_part_keys SET uses = uses - 1 WHERE user = ? AND hash = ? AND part = ?", key)
        db.execute("DELETE FROM checkpoint_part_keys WHERE user = ? AND hash = ? AND part = ? AND uses = 0", key)
        sql = "SELECT 1 FROM checkpoint_part_keys WHERE user = ? AND hash = ? AND part = ?"
        if one(db, sql, *key) is None:
            db.execute("DELETE FROM checkpoint_parts WHERE part = ?", (number,))


def _values(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """The values of _COLUMNS; fields without a column of their own are JSON in the last one."""
    data = codec.checkpoint_to_dict(checkpoint)
    more = {name: value for name, value in data.items() if name not in _OWN}
    return (
        *(checkpoint.id, checkpoint.format_version, to_micros(checkpoint.at), checkpoint.position, checkpoint.turn),
        *(checkpoint.parent, codec.to_bytes(more) if more else None),
    )


def _checkpoints_at(db: Database, node: int) -> list[Checkpoint]:
    """The checkpoint of a node, if it has one."""
    return [_checkpoint(row) for row in rows(db, f"SELECT session_id, {_COLUMNS} {_JOINED} WHERE node = ?", node)]


def _checkpoint(row: Row) -> Checkpoint:
    """The checkpoint of a session's id and the values of _COLUMNS."""
    session_id, id, version, at, position, turn, parent, more = row
    with reading(f"checkpoint {id!r} of session {session_id!r}"):
        data: Data = {} if more is None else codec.from_bytes(more)
        data |= {"id": id, "format_version": version, "position": position, "turn": turn}
        data |= {"session_id": session_id, "at": from_micros(at).isoformat()}
        return codec.checkpoint_from_dict(data if parent is None else data | {"parent": parent})


def _hash(body: bytes) -> int:
    """64 bits of SHA-256. Enough to find a part; whether it is the same one is decided by its bytes."""
    return int.from_bytes(sha256(body).digest()[:8], signed=True)


def _unpacked(db: Database, found: Sequence[tuple[bytes]], wanted: LogSlice = ALL) -> list[LogEntry]:
    with reading("the log of a session", but=(apsw.Error,)):
        saves: list[list[Data]] = codec.all_from_bytes([data for (data,) in found])
        entries = wanted.chosen([entry for save in saves for entry in save])
        numbers = list(dict.fromkeys(number for entry in entries for number in packing.part_numbers(entry)))
        bodies = _bodies(db, numbers)
        values = codec.all_from_bytes([bodies[number] for number in numbers])
        parts = dict(zip(numbers, map(codec.part_from_dict, values), strict=True))
        if wanted.bodies:
            bodies |= _bodies(db, [n for entry in entries if (n := packing.body_number(entry)) is not None])

        def get_body(entry: Data) -> JSON | bytes:
            if "body" in entry:
                return entry["body"]
            return bodies[entry["bytes"]] if "bytes" in entry else codec.from_bytes(bodies[entry["json"]])

        read = get_body if wanted.bodies else packing.no_body
        return [codec.entry_from_dict(entry, parts.__getitem__, read) for entry in entries]


def _bodies(db: Database, numbers: Sequence[int]) -> dict[int, bytes]:
    sql = "SELECT part, body FROM checkpoint_parts WHERE part IN (SELECT value FROM json_each(?))"
    return dict(rows(db, sql, json.dumps([*numbers]))) if numbers else {}


def _number(db: Database, sql: str, *values: object) -> int | None:
    found = one(db, sql, *values)
    return None if found is None else found[0]


def _inserted(db: Database, sql: str, *values: object) -> int:
    """The number of a new row."""
    db.execute(sql, values)
    return db.last_insert_rowid()
