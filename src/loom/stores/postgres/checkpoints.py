"""Checkpoints in a Postgres schema.

A node is one save: the entries it added, and the checkpoint behind them. A parent is always older than its children,
and has a smaller number. Parts are rows of their own, stored once for each user; entries name them by their place in
the node's list of hashes.
"""

# ruff: noqa: S608 - only conditions of this module are put into SQL; every value is bound

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, Self

from loom.core.clock import Clock
from loom.core.codec import checkpoint_from_dict, checkpoint_to_dict, from_bytes, to_bytes
from loom.core.log import Checkpoint, LogEntry, SavedSession
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.stores import _packed as packing
from loom.stores import checkpoints as kernel
from loom.stores._packed import LogSlice
from loom.stores.base import reading
from loom.stores.checkpoints import Action, BaseCheckpointStore, Matching, Saved, T, TreeLink, TreePort
from loom.stores.postgres.connection import FORGET_MARKS, Database, all_users, fetch, one, owner_of, rows, run
from loom.stores.postgres.records import bigints, byteas
from loom.stores.postgres.schema import SCHEMA, UNSWEPT, Guard, guarded

_NEWEST = "node, data FROM checkpoint_nodes WHERE owner = %s AND session_id = %s ORDER BY node DESC LIMIT 1"
_NAMED = "node, data FROM checkpoint_nodes WHERE owner = %s AND session_id = %s AND id = %s"
_KEEP = (
    "WITH named AS (INSERT INTO checkpoint_users VALUES (%s, %s, %s) ON CONFLICT (owner) DO NOTHING), "
    "kept AS (INSERT INTO checkpoint_parts (owner, hash, body, uses) SELECT %s, * FROM "
    "unnest(%s::bytea[], %s::bytea[], %s::bigint[]) "
    "ON CONFLICT (owner, hash) DO UPDATE SET uses = checkpoint_parts.uses + excluded.uses) "
    "INSERT INTO checkpoint_nodes (owner, node, parent, session_id, id, data, size, parts, entries) "
    "SELECT %s, (SELECT coalesce(max(node), 0) + 1 FROM checkpoint_nodes WHERE owner = %s), %s, %s, %s, %s, "
    "%s, %s::bytea[], %s"
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
    "(SELECT count(*) FROM checkpoint_nodes AS c WHERE c.owner = %s AND c.parent = n.node) "
    "FROM checkpoint_nodes AS n JOIN chain ON chain.node = n.node WHERE n.owner = %s ORDER BY n.node DESC"
)
_SAVES = """
WITH RECURSIVE chain (node, parent, seen) AS (
    SELECT n.node, n.parent, n.size::bigint FROM checkpoint_nodes AS n
    WHERE n.owner = %s AND n.session_id = %s AND n.id = %s
    UNION ALL SELECT n.node, n.parent, chain.seen + n.size FROM checkpoint_nodes AS n
    JOIN chain ON n.owner = %s AND n.node = chain.parent WHERE %s AND chain.seen < %s
), saves AS (
    SELECT n.node, n.entries, n.parts FROM checkpoint_nodes AS n JOIN chain ON chain.node = n.node WHERE n.owner = %s
) SELECT node, entries, parts FROM saves
"""
# Entries and parts in one statement, and so as they were at one moment: the parts follow, without a node.
_LOG = _SAVES + (
    "UNION ALL SELECT NULL, p.body, ARRAY[p.hash] FROM checkpoint_parts AS p WHERE p.owner = %s "
    "AND p.hash IN (SELECT unnest(parts) FROM saves) ORDER BY 1"
)
_BEHIND = """
WITH RECURSIVE chain (node, parent) AS (
    SELECT n.node, n.parent FROM checkpoint_nodes AS n WHERE n.owner = %s AND n.node = %s
    UNION ALL SELECT n.node, n.parent FROM checkpoint_nodes AS n JOIN chain ON n.owner = %s AND n.node = chain.parent
    WHERE n.node > %s
)
SELECT n.parent, n.entries FROM checkpoint_nodes AS n JOIN chain ON chain.node = n.node WHERE n.owner = %s
ORDER BY n.node
"""
_SESSIONS = """
SELECT s.size, f.node, f.data, l.node, l.data FROM (
    SELECT count(*) AS size, min(node) AS first, max(node) AS last FROM checkpoint_nodes
    WHERE owner = %s AND {} GROUP BY session_id ORDER BY max(node) DESC LIMIT %s
) AS s JOIN checkpoint_nodes AS f ON f.owner = %s AND f.node = s.first
JOIN checkpoint_nodes AS l ON l.owner = %s AND l.node = s.last ORDER BY l.node DESC
"""
# As json and not jsonb, which takes no value with a NUL in it, wherever that is.
_HAS = (
    " AND CASE WHEN position('\"attributes\":'::bytea IN data) > 0 "
    "THEN convert_from(data, 'UTF8')::json -> 'attributes' ->> %s = %s ELSE false END"
)
_UNBOUNDED = 2**62
_LOOKS = 2
"""How often the saves of a log are read where a part of them is missing: another process may have just removed it."""


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
        prepare: bool | None = None,
    ) -> None:
        super().__init__(clock)
        insists = Guard(schema, allow_owner, make_schema)
        self._server = guarded(dsn, insists, pool_size=pool_size, timeout=timeout, prepare=prepare)

    async def __aenter__(self) -> Self:
        await self._server.open()
        return self

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        return await self._server.work(scope, lambda db: action(_PostgresSaves(db, scope)), writes=writes)

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users who have sessions here, sorted by namespace and user, starting after `after`."""
        kernel.check_limit(limit)
        return await self._server.work(None, lambda db: all_users(db, after, limit, table="checkpoint_users"))

    async def forget(self, scope: Scope | str) -> Receipt:
        """Remove the sessions of a user, or one of them; says what was removed and what is pending."""
        receipt = await super().forget(scope)
        if isinstance(scope, Scope) and scope.session_id is None:
            await self._server.work(scope, lambda db: run(db, FORGET_MARKS, owner_of(scope)))
        return receipt

    async def aclose(self) -> None:
        """Give all connections back. Closing twice is allowed."""
        await self._server.close()


class _PostgresSaves(TreePort[int]):
    """The saves of one user, inside a transaction that the caller holds."""

    def __init__(self, db: Database, scope: Scope) -> None:
        self._db, self._scope, self._owner = db, scope, owner_of(scope)

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[int] | None]:
        if not ids:
            return []
        which = [_NEWEST if id is None else _NAMED for id in ids]
        looks = [f"SELECT {place}, s.* FROM (SELECT {one}) AS s" for place, one in enumerate(which)]
        values = [value for id in ids for value in (self._owner, session_id, *(() if id is None else (id,)))]
        found: list[Saved[int] | None] = [None] * len(ids)
        read: dict[int, Saved[int]] = {}  # the newest is mostly asked for by its id as well
        for place, node, data in await fetch(self._db, " UNION ALL ".join(looks), *values):
            if node not in read:
                read[node] = Saved(int(node), _checkpoint(node, data))
            found[place] = read[node]
        return found

    async def checkpoints(
        self, session_id: str | None, limit: int | None, matching: Matching[int] | None = None
    ) -> list[Checkpoint]:
        return [_checkpoint(*row) for row in await self._rows("node, data", session_id, limit, matching)]

    async def sessions(self, session_id: str | None, limit: int | None) -> list[SavedSession]:
        which, values = ("session_id IS NOT NULL", ()) if session_id is None else ("session_id = %s", (session_id,))
        owner = self._owner
        found = await rows(self._db, _SESSIONS.format(which), owner, *values, limit, owner, owner)
        return [kernel.saved_session(_checkpoint(*row[1:3]), _checkpoint(*row[3:]), row[0]) for row in found]

    async def keys(self, session_id: str | None) -> list[int]:
        return [int(node) for (node,) in await self._rows("node", session_id)]

    async def _rows(
        self, columns: str, session_id: str | None, limit: int | None = None, matching: Matching[int] | None = None
    ) -> list[tuple[Any, ...]]:
        which, values = ("session_id IS NOT NULL", ()) if session_id is None else ("session_id = %s", (session_id,))
        if matching is not None:
            which += " AND node < %s" + _HAS * len(matching.attributes)
            before = _UNBOUNDED if matching.before is None else matching.before
            values = (*values, before, *chain.from_iterable(matching.attributes.items()))
        sql = f"SELECT {columns} FROM checkpoint_nodes WHERE owner = %s AND {which} ORDER BY node DESC LIMIT %s"
        return await rows(self._db, sql, self._owner, *values, limit)

    async def log(self, session_id: str, id: str, wanted: LogSlice) -> list[LogEntry] | None:
        owner, last = self._owner, _UNBOUNDED if wanted.last is None else wanted.last
        which = (owner, session_id, id, owner, wanted.whole, last, owner)
        if wanted.is_partial:
            return await self._partial_log(which, wanted)
        found = await rows(self._db, _LOG, *which, owner)
        pieces = [(entries, hashes) for node, entries, hashes in found if node is not None]
        bodies = {hashes[0]: body for node, body, hashes in found if node is None}
        return packing.unpack_entries(pieces, bodies, wanted) if pieces else None

    async def _partial_log(self, which: Sequence[object], wanted: LogSlice) -> list[LogEntry] | None:
        bodies: dict[bytes, bytes] = {}
        pieces: list[packing.Piece] = []
        for _ in range(_LOOKS):
            found = await rows(self._db, f"{_SAVES} ORDER BY 1", *which)
            pieces = [(entries, hashes) for _, entries, hashes in found]
            needed = packing.needed_hashes(pieces, wanted)
            sql = "SELECT hash, body FROM checkpoint_parts WHERE owner = %s AND hash = ANY(%s)"
            bodies = dict(await rows(self._db, sql, self._owner, needed)) if needed else {}
            if len(bodies) == len(needed):
                break
        return packing.unpack_entries(pieces, bodies, wanted) if pieces else None

    async def held(self, session_id: str, newest: Saved[int], ids: Sequence[str]) -> set[str]:
        db, owner, session = self._db, self._owner, (self._owner, session_id)
        found = await one(db, "SELECT node FROM checkpoint_indexed WHERE owner = %s AND session_id = %s", *session)
        upto = 0 if found is None else int(found[0])
        if upto != newest.key:
            fresh = await rows(db, _BEHIND, owner, newest.key, owner, upto, owner)
            if upto and fresh[0][0] != upto:  # the session goes on from an older checkpoint: begin anew
                await self._drop_index([session_id])
                fresh = await rows(db, _BEHIND, owner, newest.key, owner, 0, owner)
            sql = "INSERT INTO checkpoint_entry_ids SELECT %s, %s, unnest(%s::text[]) ON CONFLICT DO NOTHING"
            await run(db, sql, *session, [id for _, entries in fresh for id in packing.ids_in(entries)])
            sql = "INSERT INTO checkpoint_indexed VALUES (%s, %s, %s) "
            sql += "ON CONFLICT (owner, session_id) DO UPDATE SET node = excluded.node"
            await run(db, sql, *session, newest.key)
        sql = "SELECT id FROM checkpoint_entry_ids WHERE owner = %s AND session_id = %s AND id = ANY(%s)"
        return {id for (id,) in await rows(db, sql, *session, [*ids])}

    async def _drop_index(self, session_ids: Sequence[str]) -> None:
        """Remove the ids of entries of sessions; they are read again when they are asked for."""
        for table in ("checkpoint_entry_ids", "checkpoint_indexed") if session_ids else ():
            sql = f"DELETE FROM {table} WHERE owner = %s AND session_id = ANY(%s)"
            await run(self._db, sql, self._owner, [*session_ids])

    async def links(self, keys: Sequence[int], *, ancestors: bool) -> list[TreeLink[int]]:
        owner = self._owner
        found = await rows(self._db, _LINKS, owner, [*keys], owner, ancestors, owner, owner)
        return [TreeLink(*row) for row in found]

    async def write(self, checkpoint: Checkpoint, entries: Sequence[LogEntry], parent: int | None) -> None:
        owner, packed = self._owner, packing.pack_entries(entries)
        bodies, uses = packed.bodies, Counter(packed.hashes)
        named = (owner, self._scope.namespace, self._scope.user_id)
        kept = (byteas(list(bodies)), byteas(list(bodies.values())), bigints([uses[hash] for hash in bodies]))
        saved = (checkpoint.session_id, checkpoint.id, to_bytes(checkpoint_to_dict(checkpoint)), len(entries))
        parts = (byteas(list(packed.hashes)), packed.entries)
        await run(self._db, _KEEP, *named, owner, *kept, owner, owner, parent, *saved, *parts)

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
        # Of sessions that are over, and of those whose index ends at a number that may be given again.
        sql = (
            "SELECT session_id FROM checkpoint_indexed AS i WHERE owner = %s AND (node = ANY(%s) OR NOT EXISTS "
            "(SELECT 1 FROM checkpoint_nodes AS n WHERE n.owner = %s AND n.session_id = i.session_id))"
        )
        await self._drop_index([id for (id,) in await rows(db, sql, owner, [*gone], owner)])
        sql = "DELETE FROM checkpoint_users WHERE owner = %s AND NOT EXISTS "
        sql += "(SELECT 1 FROM checkpoint_nodes AS n WHERE n.owner = %s AND n.session_id IS NOT NULL)"
        await run(db, sql, owner, owner)


def _checkpoint(node: int, data: bytes) -> Checkpoint:
    with reading(f"checkpoint number {node}"):
        return checkpoint_from_dict(from_bytes(data))
