"""Checkpoints as rows, inside a transaction that the caller holds.

A node is one save: the entries it brought, and the checkpoint behind them. A node whose checkpoint was removed stays
while another continues its log. A parent is always older than its children, and has a smaller number. Parts are rows
of their own, stored once for each user; entries name them by their place in the node's list of hashes.
"""

# ruff: noqa: S608 - only conditions of this module stand in SQL; every value is bound

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.message_codec import checkpoint_from_dict, checkpoint_to_dict, from_bytes, to_bytes
from loom.core.scope import Scope
from loom.stores.checkpoint_parts import pack_entries, unpack_entries
from loom.stores.damage import reading
from loom.stores.postgres.connection import Row, one, rows, run
from loom.stores.postgres.owners import owner_of

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

_KEEP = (
    "INSERT INTO checkpoint_parts (owner, hash, body, uses) SELECT %s, * FROM unnest(%s::bytea[], %s::bytea[], "
    "%s::bigint[]) ON CONFLICT (owner, hash) DO UPDATE SET uses = checkpoint_parts.uses + excluded.uses"
)
_RELEASE = (
    "UPDATE checkpoint_parts AS p SET uses = p.uses - gone.uses FROM unnest(%s::bytea[], %s::bigint[]) "
    "AS gone (hash, uses) WHERE p.owner = %s AND p.hash = gone.hash"
)
_ANCESTORS = """
WITH RECURSIVE chain (node, parent) AS (
    SELECT n.node, n.parent FROM checkpoint_nodes AS n WHERE n.owner = %s AND n.node = ANY(%s)
    UNION SELECT n.node, n.parent FROM checkpoint_nodes AS n JOIN chain ON n.owner = %s AND n.node = chain.parent
)
"""
_HISTORY = (
    f"{_ANCESTORS} SELECT n.entries, n.parts FROM checkpoint_nodes AS n JOIN chain ON chain.node = n.node "
    "WHERE n.owner = %s ORDER BY n.node"
)
_LOGS = (
    f"{_ANCESTORS} SELECT n.node, n.parent, n.session_id IS NULL, n.size, "
    "(SELECT count(*) FROM checkpoint_nodes AS c WHERE c.owner = n.owner AND c.parent = n.node) "
    "FROM checkpoint_nodes AS n JOIN chain ON chain.node = n.node WHERE n.owner = %s ORDER BY n.node DESC"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint and its node."""

    node: int
    checkpoint: Checkpoint


async def find(db: Database, scope: Scope, id: str | None) -> Found | None:
    """A checkpoint of the scope's session; without an id, the one last saved."""
    which, values = ("true", ()) if id is None else ("id = %s", (id,))
    found = await one(
        db,
        f"SELECT node, data FROM checkpoint_nodes WHERE owner = %s AND session_id = %s AND {which} "
        "ORDER BY node DESC LIMIT 1",
        *(owner_of(scope), scope.session_id, *values),
    )
    return None if found is None else _found(found)


async def saved(db: Database, scope: Scope, limit: int | None = None) -> list[Found]:
    """The checkpoints that the scope covers, last saved first."""
    which, values = (
        ("session_id IS NOT NULL", ()) if scope.session_id is None else ("session_id = %s", (scope.session_id,))
    )
    found = await rows(
        db,
        f"SELECT node, data FROM checkpoint_nodes WHERE owner = %s AND {which} ORDER BY node DESC LIMIT %s",
        *(owner_of(scope), *values, limit),
    )
    return [_found(row) for row in found]


async def entries_of(db: Database, scope: Scope, node: int) -> list[LogEntry]:
    """The entries that one save brought."""
    owner = owner_of(scope)
    sql = "SELECT entries, parts FROM checkpoint_nodes WHERE owner = %s AND node = %s"
    return await _unpacked(db, owner, await rows(db, sql, owner, node))


async def history(db: Database, scope: Scope, node: int) -> list[LogEntry]:
    """The entries from the beginning of the log to a node, through forks."""
    owner = owner_of(scope)
    return await _unpacked(db, owner, await rows(db, _HISTORY, owner, [node], owner, owner))


async def add(
    db: Database, scope: Scope, checkpoint: Checkpoint, parent: int | None, entries: Sequence[LogEntry]
) -> None:
    """A new node, the last one of its session."""
    owner = owner_of(scope)
    packed = pack_entries(entries)
    bodies, uses = packed.bodies, Counter(packed.hashes)
    await run(db, _KEEP, owner, list(bodies), list(bodies.values()), [uses[hash] for hash in bodies])
    await run(
        db,
        "INSERT INTO checkpoint_nodes (owner, node, parent, session_id, id, data, size, parts, entries) "
        "SELECT %s, (SELECT coalesce(max(node), 0) + 1 FROM checkpoint_nodes WHERE owner = %s), %s, %s, %s, %s, %s, "
        "%s::bytea[], %s",
        *(owner, owner, parent, checkpoint.session_id, checkpoint.id, to_bytes(checkpoint_to_dict(checkpoint))),
        *(len(entries), list(packed.hashes), packed.entries),
    )


async def remove(db: Database, scope: Scope, nodes: Sequence[int]) -> tuple[int, int]:
    """Take the checkpoints of these nodes away, and the log that nobody needs any more.

    Returns how many entries went, and how many stay because others continue them.
    """
    owner = owner_of(scope)
    sql = "UPDATE checkpoint_nodes SET session_id = NULL, id = NULL, data = NULL WHERE owner = %s AND node = ANY(%s)"
    await run(db, sql, owner, list(nodes))
    gone: list[int] = []
    removed = left = 0
    freed: Counter[int] = Counter()
    # Youngest first, so that whoever continues a node has been looked at before it.
    for node, parent, is_bare, size, children in await rows(db, _LOGS, owner, list(nodes), owner, owner):
        if not is_bare:
            continue
        if children == freed[node]:
            gone.append(node)
            freed[parent] += 1
            removed += size
        else:
            left += size
    await _sweep(db, owner, gone)
    return removed, left


async def _sweep(db: Database, owner: UUID, nodes: list[int]) -> None:
    """Remove nodes, and the parts that nobody else uses."""
    sql = "DELETE FROM checkpoint_nodes WHERE owner = %s AND node = ANY(%s) RETURNING parts"
    uses: Counter[bytes] = Counter()
    for (parts,) in await rows(db, sql, owner, nodes):
        uses.update(parts)
    await run(db, _RELEASE, list(uses), list(uses.values()), owner)
    await run(db, "DELETE FROM checkpoint_parts WHERE owner = %s AND hash = ANY(%s) AND uses = 0", owner, list(uses))


def _found(row: Row) -> Found:
    with reading(f"checkpoint number {row[0]}"):
        return Found(int(row[0]), checkpoint_from_dict(from_bytes(row[1])))


async def _unpacked(db: Database, owner: UUID, found: Sequence[tuple[Any, ...]]) -> list[LogEntry]:
    hashes = list({hash for _, parts in found for hash in parts})
    sql = "SELECT hash, body FROM checkpoint_parts WHERE owner = %s AND hash = ANY(%s)"
    return unpack_entries([(entries, parts) for entries, parts in found], dict(await rows(db, sql, owner, hashes)))
