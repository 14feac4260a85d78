"""Erasing forgotten data from the files of the server: an administrator makes the server write its files anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.stores.postgres.connection import connect, one, rows, run, spoken_errors, spoken_name
from loom.stores.postgres.near import index_large_users
from loom.stores.postgres.schema import SCHEMA, TABLES, as_owner

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

_HELD = (
    "SELECT pid FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND xact_start < %s AND pid <> pg_backend_pid()"
)
_COPIED = (
    "SELECT 1 WHERE current_setting('archive_mode') <> 'off' OR EXISTS (SELECT 1 FROM pg_replication_slots) "
    "OR EXISTS (SELECT 1 FROM pg_stat_replication)"
)


async def sweep_schema(admin_dsn: str, *, schema: str = SCHEMA, owner_role: str | None = None) -> tuple[str, ...]:
    """Leave no byte of what was removed in the tables and the write-ahead log; returns what is pending, in words.

    `admin_dsn` names a superuser; `owner_role` is the owner of the schema if not given. Each table is locked while it
    is written anew, and the write-ahead log is filled with zeros twice around, 16 MB for each of its files.
    """
    where = spoken_name(admin_dsn)
    with spoken_errors(where, needed="an administrator of the server"):
        async with as_owner(admin_dsn, schema, where, owner_role=owner_role) as db:
            await index_large_users(db, schema)
        db = await connect(admin_dsn, autocommit=True)
        async with db:
            start = await one(db, "SELECT clock_timestamp()")
            await _rewrite_tables(db, schema)
            await _overwrite_log(db)
            held = await rows(db, _HELD, *(start or ()))
            copied = await one(db, _COPIED)
    pending = [f"process {pid} of the server still sees removed rows; sweep again when it is done" for (pid,) in held]
    if copied is not None:
        pending.append("the write-ahead log is archived or replicated; let the copies run out")
    return tuple(pending)


async def _rewrite_tables(db: Database, schema: str) -> None:
    from psycopg import sql  # noqa: PLC0415

    for table in TABLES:
        await db.execute(sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.Identifier(schema, table)))
    # What the planner knew of the rows before is a removed row itself.
    await run(db, "VACUUM (FULL) pg_catalog.pg_statistic")


async def _overwrite_log(db: Database) -> None:
    """Fill every file of the write-ahead log: a used one is not removed but taken again, with what is in it."""
    for _ in range(2):  # the file that is being written now comes around in the second lap
        await run(db, "CHECKPOINT")
        found = await one(db, "SELECT count(*) FROM pg_ls_waldir()")
        for _ in range(int(found[0]) + 1 if found else 1):
            # A switch ends a file with zeros, if there is anything in it.
            await run(db, "SELECT pg_logical_emit_message(true, 'loom', 'sweep')")
            await run(db, "SELECT pg_switch_wal()")
    await run(db, "CHECKPOINT")
