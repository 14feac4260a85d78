"""Hash partitions of a schema by user: making them, and moving all users to another number of them.

A partition is reached through its table alone: row-level security is forced on it without a policy, so that nobody
whom it binds sees a row there, and no role has rights on it.

A move copies users in batches, each in one transaction that also notes how far it came, so that one that was killed
goes on where it was. The old tables wait in a schema beside Loom's, and the new ones grow in another: until the last
transaction exchanges them, stores find no table and refuse with StoreUnavailable.
"""

# ruff: noqa: S608 - only names of tables and columns of this package stand in SQL; every value is bound
from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import UUID

from loom.errors import StoreError, StoreUnavailable, UsageError
from loom.stores.postgres import search
from loom.stores.postgres.connection import Database, connect, one, rows, run
from loom.stores.postgres.search import Progress

MOST_PARTITIONS = 1024
"""Each is a table with its indexes and files; a planner that has to look at more takes its time."""
_BATCH = 200
"""Users who are moved in one transaction."""
_LONGEST_NAME = 50
"""Of a schema, in bytes, so that the names of the schemas beside it fit."""
PARTITIONS = """
SELECT c.relname, EXISTS (SELECT FROM aclexplode(c.relacl) AS a WHERE a.grantee <> c.relowner)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relispartition AND c.relkind = 'r' ORDER BY c.relname
"""
"""The partitions of a schema, and whether any role has rights on them."""
_META = "SELECT value FROM meta WHERE name = %s"
_SET_META = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_AMOUNT, _MOVING, _MOVED = "partitions", "moving_to_partitions", "moved_up_to_owner"
_LEAVES = "SELECT relid::regclass::text FROM pg_partition_tree(%s::regclass) WHERE level > 0 ORDER BY 1"
_GRANTED = """
SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = %s::regclass AND a.grantee <> c.relowner
"""
_COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""

Protect = Callable[[Database], Awaitable[None]]
"""Gives new tables their policies, rights and statistics."""


class Plan(NamedTuple):
    """The schema whose users are moved, and how its tables are made."""

    admin_dsn: str
    schema: str
    where: str
    scripts: tuple[str, ...]
    tables: tuple[str, ...]

    @property
    def old(self) -> str:
        """The schema where the tables wait that users are moved from."""
        return f"{self.schema}_moved_from"

    @property
    def new(self) -> str:
        """The schema where the tables grow that users are moved to."""
        return f"{self.schema}_moved_to"


def check_partitions(amount: int | None) -> None:
    """Refuse a number of partitions that cannot be."""
    if amount is not None and not 1 <= amount <= MOST_PARTITIONS:
        raise UsageError(f"partitions must be from 1 to {MOST_PARTITIONS}; got {amount}")


def partitioned(script: str, tables: Sequence[str]) -> str:
    """A script whose new tables of users' data are hash-partitioned by user."""
    begins, ends = {f"CREATE TABLE {table} (" for table in tables}, ");"
    lines: list[str] = []
    is_inside = False
    for line in script.splitlines(keepends=True):
        text = line.rstrip("\n")
        is_end = is_inside and text == ends
        lines.append(line.replace(ends, ") PARTITION BY HASH (owner);") if is_end else line)
        is_inside = text in begins or (is_inside and not is_end)
    return "".join(lines)


async def make_partitions(db: Database, tables: Sequence[str], amount: int) -> None:
    """Make the partitions that are missing, force row-level security on all, and note how many there are."""
    await _note_amount(db, amount)
    for table in tables if amount > 1 else ():
        for place in range(amount):
            name = f"{table}_p{place}"
            values = f"WITH (MODULUS {amount}, REMAINDER {place})"
            await run(db, f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} FOR VALUES {values}")
            await run(db, f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
            await _revoke(db, name)


async def _note_amount(db: Database, amount: int) -> None:
    if amount == 1:
        await run(db, "DELETE FROM meta WHERE name = %s", _AMOUNT)
    else:
        await run(db, _SET_META, _AMOUNT, str(amount))


async def stored_partitions(db: Database) -> int:
    """How many partitions the tables have; 1 where they are plain."""
    found = await one(db, _META, _AMOUNT)
    return int(found[0]) if found else 1


async def moving_to(db: Database) -> int | None:
    """How many partitions users are being moved to; None where they are not."""
    found = await one(db, _META, _MOVING)
    return int(found[0]) if found else None


async def refuse_while_moving(db: Database, where: str) -> None:
    """Refuse a schema whose users are being moved."""
    amount = await moving_to(db)
    if amount is not None:
        raise StoreUnavailable(
            f"{where}: users are being moved to {amount} partitions; try again when `loom store init` is done, and run "
            "that again if it was interrupted"
        )


async def move_users(plan: Plan, amount: int | None, protect: Protect, progress: Progress | None) -> int:
    """Move all users to so many partitions, or end a move that was interrupted; returns how many there are now."""
    async with _turn(plan) as db:
        under_way, now = await moving_to(db), await stored_partitions(db)
        if under_way is None:
            if amount is None or amount == now:
                return now
            await _begin(db, plan, amount)
        elif amount not in {None, under_way}:
            raise UsageError(
                f"{plan.where} is moving users to {under_way} partitions; let that end first, with "
                f"`loom store init --partitions {under_way}`"
            )
    done, total = 0, 0
    while True:
        async with _turn(plan) as db:
            if await moving_to(db) is None:  # another one who moved them was done first
                return await stored_partitions(db)
            if not total:
                both = ", ".join(f"(SELECT count(*) FROM {_of(schema, 'users')})" for schema in (plan.old, plan.new))
                total, done = await one(db, f"SELECT {both}") or (0, 0)
            moved = await _move_batch(db, plan)
            if not moved:
                break
        done += moved
        if progress is not None:
            progress(min(done, total), max(done, total))
    async with _turn(plan) as db:
        return await _end(db, plan, protect)


@asynccontextmanager
async def _turn(plan: Plan) -> AsyncGenerator[Database]:
    """A transaction as the owner of the schema, one at a time for all who change it."""
    from psycopg import sql  # noqa: PLC0415

    async with await connect(plan.admin_dsn) as db:
        await run(db, "SELECT pg_advisory_xact_lock(hashtext('loom init'))")
        found = await one(db, "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = %s", plan.schema)
        await db.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(*found or ())))
        await _look_at(db, plan, plan.schema)
        yield db


async def _look_at(db: Database, plan: Plan, *schemas: str) -> None:
    """Let names of tables mean those of these schemas, the first one first."""
    from psycopg import sql  # noqa: PLC0415

    path = [*schemas, await search.schema_of(db, plan.schema, plan.where)]
    names = sql.SQL(", ").join(map(sql.Identifier, path))
    await db.execute(sql.SQL("SET LOCAL search_path TO {}").format(names))


def _of(*names: str) -> str:
    """A name in SQL: of a schema, or of a table in a schema."""
    return ".".join('"{}"'.format(name.replace('"', '""')) for name in names)


async def _begin(db: Database, plan: Plan, amount: int) -> None:
    """Put the tables aside, where no store finds them, and make the new ones."""
    if len(plan.schema.encode()) > _LONGEST_NAME:
        raise UsageError(f"the name of schema {plan.schema!r} is too long to move its users; use {_LONGEST_NAME} bytes")
    from psycopg import sql  # noqa: PLC0415

    # The owner of the tables may make no schema in a database that is not its own.
    await run(db, "RESET ROLE")
    found = await one(db, "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = %s", plan.schema)
    owner = sql.Identifier(*found or ())
    for name in (plan.old, plan.new):
        if await one(db, "SELECT 1 FROM pg_namespace WHERE nspname = %s", name):
            raise StoreError(f"{plan.where} has a schema {name!r} already, which a move of users needs; rename that")
        await db.execute(sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(sql.Identifier(name), owner))
    await db.execute(sql.SQL("SET LOCAL ROLE {}").format(owner))
    for table in plan.tables:
        await _revoke(db, table)
        await run(db, f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
        await _put_into(db, table, plan.schema, plan.old)
    await _look_at(db, plan, plan.new, plan.schema)
    for script in plan.scripts:
        await run(db, script if amount == 1 else partitioned(script, plan.tables))
    await run(db, "DROP TABLE meta, embedder, forgotten")
    await run(db, _SET_META, _MOVING, str(amount))
    await run(db, _SET_META, _MOVED, str(UUID(int=0)))
    now = await stored_partitions(db)
    await make_partitions(db, plan.tables, amount)
    await _note_amount(db, now)


async def _revoke(db: Database, table: str) -> None:
    for (role,) in await rows(db, _GRANTED, table):
        await run(db, f"REVOKE ALL ON {table} FROM {role}")


async def _put_into(db: Database, table: str, old: str, new: str) -> None:
    """Put a table with its partitions from one schema into another."""
    parts = [name.rpartition(".")[2] for (name,) in await rows(db, _LEAVES, _of(old, table))]
    for name in (*parts, table):
        await run(db, f"ALTER TABLE {_of(old, name)} SET SCHEMA {_of(new)}")


async def _move_batch(db: Database, plan: Plan) -> int:
    """Copy the next users, and note the last of them; returns how many, 0 when all are there."""
    found = await one(db, _META, _MOVED)
    last = UUID(found[0]) if found else UUID(int=0)
    some = " UNION ".join(
        f"(SELECT DISTINCT owner FROM {_of(plan.old, table)} WHERE owner > %s ORDER BY owner LIMIT {_BATCH})"
        for table in plan.tables
    )
    owners = await rows(db, f"{some} ORDER BY owner LIMIT {_BATCH}", *[last] * len(plan.tables))
    if not owners:
        return 0
    upto = owners[-1][0]
    for table in plan.tables:
        columns = await one(db, _COLUMNS, _of(plan.old, table))
        names = columns[0] if columns else ""
        await run(
            db,
            f"INSERT INTO {_of(plan.new, table)} ({names}) SELECT {names} FROM {_of(plan.old, table)} "
            "WHERE owner > %s AND owner <= %s",
            *(last, upto),
        )
    await run(db, _SET_META, _MOVED, str(upto))
    return len(owners)


async def _end(db: Database, plan: Plan, protect: Protect) -> int:
    """Compare both sides, put the new tables in the place of the old ones, and drop these."""
    amount = await moving_to(db)
    if amount is None:  # another has ended it
        return await stored_partitions(db)
    for table in plan.tables:
        counts = f"SELECT (SELECT count(*) FROM {_of(plan.old, table)}), (SELECT count(*) FROM {_of(plan.new, table)})"
        before, after = await one(db, counts) or (0, 0)
        if before != after:
            raise StoreError(
                f"{plan.where}: {before} rows of {table} were moved, and {after} arrived; the old ones are in schema "
                f"{plan.old!r} and nothing was dropped"
            )
    for table in plan.tables:
        await _put_into(db, table, plan.new, plan.schema)
    for name in (plan.old, plan.new):
        await run(db, f"DROP SCHEMA {_of(name)} CASCADE")
    await _note_amount(db, amount)
    await run(db, "DELETE FROM meta WHERE name = ANY(%s)", [_MOVING, _MOVED])
    await protect(db)
    return amount
