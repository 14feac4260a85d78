"""Checkpoints as rows.

A node is one save: the entries it brought, and the checkpoint behind them. A node whose checkpoint was removed stays
while another continues its log. Parts are rows of their own, found by a short hash and compared byte by byte.
"""

# ruff: noqa: S608 - only a condition of this module stands in SQL; every value is bound

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import apsw

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.message import JSON, Part
from loom.core.message_codec import (
    Data,
    checkpoint_from_dict,
    checkpoint_to_dict,
    entry_from_dict,
    entry_to_dict,
    from_bytes,
    part_from_dict,
    part_to_dict,
    to_bytes,
)
from loom.core.scope import Scope
from loom.stores.damage import UNREADABLE, described, reading
from loom.stores.record_rows import from_micros, to_micros
from loom.stores.sqlite.connection import Database, Row, one, rows

_COLUMNS = "id, format, at, position, turn, parent_id, more"
_OWN = frozenset({"id", "session_id", "format_version", "at", "position", "turn", "parent"})
_NOTHING = ", ".join(["NULL"] * 8)
_SELECTED = f"SELECT node, session_id, {_COLUMNS} FROM checkpoint_nodes JOIN checkpoint_sessions USING (session)"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint and its node."""

    node: int
    checkpoint: Checkpoint


def find_user(db: Database, scope: Scope) -> int | None:
    """The number of the scope's user."""
    sql = "SELECT user FROM checkpoint_users WHERE namespace = ? AND user_id = ?"
    return _number(db, sql, scope.namespace, scope.user_id)


def all_users(db: Database, after: Scope | None, limit: int) -> tuple[Scope, ...]:
    """Users who have sessions, by namespace and user, from behind `after`."""
    last = ("", "") if after is None else (after.namespace, after.user_id)
    sql = (
        "SELECT namespace, user_id FROM checkpoint_users WHERE (namespace, user_id) > (?, ?) "
        "ORDER BY namespace, user_id LIMIT ?"
    )
    return tuple(Scope(namespace, user_id) for namespace, user_id in rows(db, sql, *last, limit))


def find_session(db: Database, scope: Scope) -> int | None:
    """The number of the scope's session."""
    return _number(
        db,
        "SELECT session FROM checkpoint_sessions JOIN checkpoint_users USING (user) "
        "WHERE namespace = ? AND user_id = ? AND session_id = ?",
        *(scope.namespace, scope.user_id, scope.session_id),
    )


def find(db: Database, session: int | None, id: str | None) -> Found | None:
    """A checkpoint of a session; without an id, the one last saved."""
    if id is None:
        found = one(db, f"{_SELECTED} WHERE session = ? AND node = head", session)
    else:
        found = one(db, f"{_SELECTED} WHERE session = ? AND id = ?", session, id)
    return None if found is None else Found(int(found[0]), _checkpoint(found[1:]))


def newest_id(db: Database, session: int | None) -> str | None:
    """The id of the checkpoint last saved in a session."""
    sql = (
        "SELECT id FROM checkpoint_nodes JOIN checkpoint_sessions ON node = head WHERE checkpoint_sessions.session = ?"
    )
    found = one(db, sql, session)
    return None if found is None else str(found[0])


def sessions_of(db: Database, scope: Scope) -> list[int]:
    """The numbers of the sessions that the scope covers."""
    if scope.session_id is not None:
        session = find_session(db, scope)
        return [] if session is None else [session]
    found = rows(db, "SELECT session FROM checkpoint_sessions WHERE user = ?", find_user(db, scope))
    return [int(session) for (session,) in found]


def nodes_of(db: Database, sessions: Iterable[int]) -> list[int]:
    """The nodes of the checkpoints of sessions, last saved first."""
    sql = "SELECT node FROM checkpoint_nodes WHERE session = ?"
    return sorted((int(node) for session in sessions for (node,) in rows(db, sql, session)), reverse=True)


def checkpoints(db: Database, nodes: Iterable[int]) -> list[Checkpoint]:
    """The checkpoints of nodes."""
    return [_checkpoint(row[1:]) for node in nodes for row in rows(db, f"{_SELECTED} WHERE node = ?", node)]


def entries_of(db: Database, node: int) -> list[LogEntry]:
    """The entries that one save brought."""
    return _unpacked(db, rows(db, "SELECT entries FROM checkpoint_nodes WHERE node = ?", node))


def history(db: Database, node: int) -> list[LogEntry]:
    """The entries from the beginning of the log to a node, through forks."""
    sql = (
        "WITH RECURSIVE chain (node) AS (VALUES (?) UNION SELECT parent FROM checkpoint_nodes JOIN chain "
        "USING (node) WHERE parent IS NOT NULL) SELECT entries FROM checkpoint_nodes JOIN chain USING (node) "
        "ORDER BY node"  # a parent is always older
    )
    return _unpacked(db, rows(db, sql, node))


def add(db: Database, scope: Scope, checkpoint: Checkpoint, parent: int | None, entries: Sequence[LogEntry]) -> None:
    """A new node, the last one of its session."""
    user, session = _made_session(db, scope.for_session(checkpoint.session_id))
    packed = [entry_to_dict(entry, lambda part: _keep(db, user, part)) for entry in entries]
    db.execute(
        f"INSERT INTO checkpoint_nodes (user, parent, session, size, entries, {_COLUMNS}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (user, parent, session, len(packed), to_bytes(packed), *_values(checkpoint)),
    )
    sql = "UPDATE checkpoint_sessions SET head = ? WHERE session = ?"
    db.execute(sql, (db.last_insert_rowid(), session))


def _made_session(db: Database, scope: Scope) -> tuple[int, int]:
    """The numbers of the scope's user and session, new ones where there are none."""
    user, session = find_user(db, scope), find_session(db, scope)
    if user is None:
        sql = "INSERT INTO checkpoint_users (namespace, user_id) VALUES (?, ?)"
        db.execute(sql, (scope.namespace, scope.user_id))
        user = db.last_insert_rowid()
    if session is None:
        sql = "INSERT INTO checkpoint_sessions (user, session_id) VALUES (?, ?)"
        db.execute(sql, (user, scope.session_id))
        session = db.last_insert_rowid()
    return user, session


def remove(db: Database, nodes: Sequence[int]) -> int:
    """Take the checkpoints of these nodes away, and the log that nobody needs any more; returns its entries."""
    touched: set[tuple[int, int]] = set()
    removed = 0
    for node in nodes:
        sql = "SELECT user, session FROM checkpoint_nodes WHERE node = ?"
        touched |= {(int(user), int(session)) for user, session in rows(db, sql, node)}
        db.execute(f"UPDATE checkpoint_nodes SET (session, {_COLUMNS}) = ({_NOTHING}) WHERE node = ?", (node,))
        removed += _sweep(db, node)
    for user, session in touched:
        _tidy(db, user, session)
    return removed


def forget(db: Database, scope: Scope) -> tuple[int, int, int]:
    """Remove sessions; returns the checkpoints and entries that went, and the entries left to other sessions."""
    nodes = nodes_of(db, sessions_of(db, scope))
    logs = _logs(db, nodes)
    removed = remove(db, nodes)
    sql = "SELECT size FROM checkpoint_nodes WHERE node = ? AND session IS NULL"
    left = sum(int(size) for node in logs for (size,) in rows(db, sql, node))
    return len(nodes), removed, left


def _logs(db: Database, nodes: Sequence[int]) -> set[int]:
    """All nodes that the logs of these are made of."""
    seen: set[int] = set()
    for start in nodes:
        node: int | None = start
        while node is not None and node not in seen:
            seen.add(node)
            node = _number(db, "SELECT parent FROM checkpoint_nodes WHERE node = ?", node)
    return seen


def _sweep(db: Database, start: int) -> int:
    """Remove a node that nobody needs, then the one before it, and so on; returns how many entries went."""
    removed = 0
    node: int | None = start
    while node is not None:
        found = one(
            db,
            "SELECT user, parent, size, entries FROM checkpoint_nodes AS n WHERE node = ? AND session IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM checkpoint_nodes WHERE parent = n.node)",
            node,
        )
        if found is None:
            break
        user, parent, size, entries = found
        db.execute("DELETE FROM checkpoint_nodes WHERE node = ?", (node,))
        with reading("the log of a session"):
            parts = [part for entry in from_bytes(entries) for part in _references(entry)]
        for part in parts:
            _release(db, user, part)
        removed += size
        node = parent
    return removed


def _tidy(db: Database, user: int, session: int) -> None:
    """Find the checkpoint last saved; nothing of a session or user stays that has none."""
    db.execute(
        "UPDATE checkpoint_sessions SET head = (SELECT max(node) FROM checkpoint_nodes AS n WHERE n.session = ?) "
        "WHERE session = ?",
        (session, session),
    )
    db.execute("DELETE FROM checkpoint_sessions WHERE session = ? AND head IS NULL", (session,))
    db.execute(
        "DELETE FROM checkpoint_users WHERE user = ? "
        "AND NOT EXISTS (SELECT 1 FROM checkpoint_sessions AS s WHERE s.user = checkpoint_users.user)",
        (user,),
    )


def _keep(db: Database, user: int, part: Part) -> int:
    """The number of a part; an equal one of this user is used again."""
    body = to_bytes(part_to_dict(part))
    key = (user, _hash(body))
    number = _number(
        db,
        "SELECT part FROM checkpoint_part_keys JOIN checkpoint_parts USING (part) "
        "WHERE user = ? AND hash = ? AND body = ?",
        *(*key, body),
    )
    if number is not None:
        sql = "UPDATE checkpoint_part_keys SET uses = uses + 1 WHERE user = ? AND hash = ? AND part = ?"
        db.execute(sql, (*key, number))
        return number
    db.execute("INSERT INTO checkpoint_parts (body) VALUES (?)", (body,))
    number = db.last_insert_rowid()
    db.execute("INSERT INTO checkpoint_part_keys (user, hash, part, uses) VALUES (?, ?, ?, 1)", (*key, number))
    return number


def _release(db: Database, user: int, number: int) -> None:
    """One use less; the last one takes the part with it."""
    found = one(db, "SELECT body FROM checkpoint_parts WHERE part = ?", number)
    if found is None:
        return
    key = (user, _hash(found[0]), number)
    db.execute("UPDATE checkpoint_part_keys SET uses = uses - 1 WHERE user = ? AND hash = ? AND part = ?", key)
    db.execute("DELETE FROM checkpoint_part_keys WHERE user = ? AND hash = ? AND part = ? AND uses = 0", key)
    sql = "SELECT 1 FROM checkpoint_part_keys WHERE user = ? AND hash = ? AND part = ?"
    if one(db, sql, *key) is None:
        db.execute("DELETE FROM checkpoint_parts WHERE part = ?", (number,))


def _values(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """The values of _COLUMNS; what has no column of its own is JSON in the last one."""
    data = checkpoint_to_dict(checkpoint)
    more = {name: value for name, value in data.items() if name not in _OWN}
    return (
        *(checkpoint.id, checkpoint.format_version, to_micros(checkpoint.at), checkpoint.position, checkpoint.turn),
        *(checkpoint.parent, to_bytes(more) if more else None),
    )


def _checkpoint(row: Row) -> Checkpoint:
    """The checkpoint of a session's id and the values of _COLUMNS."""
    session_id, id, version, at, position, turn, parent, more = row
    with reading(f"checkpoint {id!r} of session {session_id!r}"):
        data: Data = {} if more is None else from_bytes(more)
        data |= {"id": id, "format_version": version, "position": position, "turn": turn}
        data |= {"session_id": session_id, "at": from_micros(at).isoformat()}
        return checkpoint_from_dict(data if parent is None else data | {"parent": parent})


def damaged(db: Database) -> list[str]:
    """What cannot be read of the conversations of a file, in words; nothing where there are none."""
    if one(db, "SELECT 1 FROM sqlite_master WHERE name = 'checkpoint_nodes'") is None:
        return []
    found: list[str] = []
    for (node,) in rows(db, "SELECT node FROM checkpoint_nodes ORDER BY node"):
        try:
            checkpoints(db, [node])
            entries_of(db, node)
        except UNREADABLE as error:
            found.append(f"save number {node} of the conversations: {described(error)}")
    return found


def _hash(body: bytes) -> int:
    """64 bits of SHA-256. Enough to find a part; whether it is the same one is decided by its bytes."""
    return int.from_bytes(sha256(body).digest()[:8], signed=True)


def _unpacked(db: Database, found: Sequence[tuple[bytes]]) -> list[LogEntry]:
    def get(number: JSON) -> Part:
        body = rows(db, "SELECT body FROM checkpoint_parts WHERE part = ?", number)[0][0]
        return part_from_dict(from_bytes(body))

    with reading("the log of a session", but=(apsw.Error,)):
        return [entry_from_dict(entry, get) for (data,) in found for entry in from_bytes(data)]


def _references(entry: Data) -> list[int]:
    """The numbers of the parts of a packed entry."""
    replaced = [one["message"] for one in entry.get("replacements", ()) if "message" in one]
    return [part for message in [entry, *replaced] for part in message.get("parts", ())]


def _number(db: Database, sql: str, *values: object) -> int | None:
    found = one(db, sql, *values)
    return None if found is None else found[0]
