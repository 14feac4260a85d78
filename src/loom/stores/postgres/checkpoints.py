"""Checkpoints in a Postgres schema.

A node is one save: the entries it added, and the checkpoint behind them. A parent is always older than its children,
and has a smaller number. Parts are rows of their own, stored once for each user; entries name them by their place in
the node's list of hashes.
"""

# ruff: noqa: S608 - only conditions of this module are put into SQL; every value is bound

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from loom.core.clock import Clock
from loom.core.codec import checkpoint_from_dict, checkpoint_to_dict, from_bytes, to_bytes
from loom.core.log import Checkpoint, LogEntry
from loom.core.scope import Scope
from loom.stores import checkpoints as kernel
from loom.stores.base import reading
from loom.stores.checkpoints import Action, BaseCheckpointStore, Saved, T, TreeLink, TreePort
from loom.stores.postgres.connection import Database, one, owner_of, rows, run
from loom.stores.postgres.schema import SCHEMA, UNSWEPT, Guard, guarded

_KEEP = (
    "INSERT INTO checkpoint_parts (owner, hash, body, uses) SELECT %s, * FROM unnest(%s::bytea[], %s::bytea[], "
    "%s::bigint[]) ON CONFLICT (owner, hash) DO UPDATE SET uses = checkpoint_parts.uses + excluded.uses"
)
_RELEASE = (
    "UPDATE checkpoint_parts AS p SET uses = p.uses - gone.uses FROM unnest(%s::bytea[], %s::bigint[]) "
    "AS gone (hash, uses) WHERE p.owner = %s AND p.hash = gone.hash"
)
_CHAIN = """
WITH RECURSIVE chain (node, parent) AS (
    SELECT n.node, n.parent FROM checkpoint_nodes AS n WHERE n.owner = %s AND {}
    UNION SELECT n.node, n.parent FROM checkpoint_nodes AS n JOIN chain ON n.owner = %s AND n.node = chain.parent
    WHERE %s
)
"""
_LINKS = _CHAIN.format("n.node = ANY(%s)") + (
    "SELECT n.node, n.parent, n.id, n.size, "
    "(SELECT count(*) FROM checkpoint_nodes AS c WHERE c.owner = n.owner AND c.parent = n.node) "
    "FROM checkpoint_nodes AS n JOIN chain ON chain.node = n.node WHERE n.owner = %s ORDER BY n.node DESC"
)
# Entries and parts in one statement, and so as they were at one moment: the parts follow, without a node.
_LOG = _CHAIN.format("n.session_id = %s AND n.id = %s") + (
    ", saves AS (SELECT n.node, n.entries, n.parts FROM checkpoint_nodes AS n JOIN chain ON chain.node = n.node "
    "WHERE n.owner = %s) SELECT node, entries, parts FROM saves UNION ALL "
    "SELECT NULL, p.body, ARRAY[p.hash] FROM checkpoint_parts AS p WHERE p.owner = %s "
    "AND p.hash IN (SELECT unnest(parts) FROM saves) ORDER BY 1"
)


class PostgresCheckpointStore(BaseCheckpointStore):
    """Keeps sessions in Postgres; forks and prunes. Any number of stores and processes may share a schema.

    The schema may be that of a PostgresStore, and is made by the same `init_schema()`; the arguments are the same.
    """

    _after_forgetting = UNSWEPT

    def __init__(
        self,
        dsn: str,
        *,
        clock: Clock | None = None,
        pool_size: int = 8,
        timeout: float = 30,
        schema: str = SCHEMA,
        allow_owner: bool = False,
        make_schema: bool = True,
    ) -> None:
        super().__init__(clock)
        insists = Guard(schema, allow_owner, make_schema)
        self._server = guarded(dsn, insists, pool_size=pool_size, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self._server.open()
        return self

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        async with self._server.transaction(scope, writes=writes) as db:
            return await action(_PostgresSaves(db, scope))

    async def aclose(self) -> None:
        """Give all connections back. Closing twice is allowed."""
        await self._server.close()


class _PostgresSaves(TreePort[int]):
    """The saves of one user, inside a transaction that the caller holds."""

    def __init__(self, db: Database, scope: Scope) -> None:
        self._db, self._owner = db, owner_of(scope)

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[int] | None]:
        found: list[Saved[int] | None] = []
        for id in ids:
            which, values = ("true", ()) if id is None else ("id = %s", (id,))
            sql = f"SELECT node, data FROM checkpoint_nodes WHERE owner = %s AND session_id = %s AND {which}"
            row = await one(self._db, f"{sql} ORDER BY node DESC LIMIT 1", self._owner, session_id, *values)
            found.append(None if row is None else Saved(int(row[0]), _checkpoint(*row)))
        return found

    async def checkpoints(self, session_id: str | None, limit: int | None) -> list[Checkpoint]:
        return [_checkpoint(*row) for row in await self._rows("node, data", session_id, limit)]

    async def keys(self, session_id: str | None) -> list[int]:
        return [int(node) for (node,) in await self._rows("node", session_id)]

    async def _rows(self, columns: str, session_id: str | None, limit: int | None = None) -> list[tuple[Any, ...]]:
        which, values = ("session_id IS NOT NULL", ()) if session_id is None else ("session_id = %s", (session_id,))
        sql = f"SELECT {columns} FROM checkpoint_nodes WHERE owner = %s AND {which} ORDER BY node DESC LIMIT %s"
        return await rows(self._db, sql, self._owner, *values, limit)

    async def log(self, session_id: str, id: str, *, whole: bool) -> list[LogEntry] | None:
        owner = self._owner
        found = await rows(self._db, _LOG, owner, session_id, id, owner, whole, owner, owner)
        pieces = [(entries, hashes) for node, entries, hashes in found if node is not None]
        bodies = {hashes[0]: body for node, body, hashes in found if node is None}
        return kernel.unpack_entries(pieces, bodies) if pieces else None

    async def links(self, keys: Sequence[int], *, ancestors: bool) -> list[TreeLink[int]]:
        found = await rows(self._db, _LINKS, self._owner, [*keys], self._owner, ancestors, self._owner)
        return [TreeLink(*row) for row in found]

    async def write(self, checkpoint: Checkpoint, entries: Sequence[LogEntry], parent: int | None) -> None:
        owner, packed = self._owner, kernel.pack_entries(entries)
        bodies, uses = packed.bodies, Counter(packed.hashes)
        await run(self._db, _KEEP, owner, list(bodies), list(bodies.values()), [uses[hash] for hash in bodies])
        await run(
            self._db,
            "INSERT INTO checkpoint_nodes (owner, node, parent, session_id, id, data, size, parts, entries) "
            "SELECT %s, (SELECT coalesce(max(node), 0) + 1 FROM checkpoint_nodes WHERE owner = %s), %s, %s, %s, %s, "
            "%s, %s::bytea[], %s",
            *(owner, owner, parent, checkpoint.session_id, checkpoint.id, to_bytes(checkpoint_to_dict(checkpoint))),
            *(len(entries), list(packed.hashes), packed.entries),
        )

    async def drop(self, bare: Sequence[int], gone: Sequence[int]) -> None:
        db, owner = self._db, self._owner
        which = "WHERE owner = %s AND node = ANY(%s)"
        sql = f"UPDATE checkpoint_nodes SET session_id = NULL, id = NULL, data = NULL {which}"
        await run(db, sql, owner, [*bare])
        uses: Counter[bytes] = Counter()
        for (parts,) in await rows(db, f"DELETE FROM checkpoint_nodes {which} RETURNING parts", owner, [*gone]):
            uses.update(parts)
        await run(db, _RELEASE, list(uses), list(uses.values()), owner)
        sql = "DELETE FROM checkpoint_parts WHERE owner = %s AND hash = ANY(%s) AND uses = 0"
        await run(db, sql, owner, list(uses))


def _checkpoint(node: int, data: bytes) -> Checkpoint:
    with reading(f"checkpoint number {node}"):
        return checkpoint_from_dict(from_bytes(data))
