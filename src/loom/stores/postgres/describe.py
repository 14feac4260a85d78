"""The description of a Postgres store and its guarantees, as the server is set up now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.stores.base import embedder_label
from loom.stores.postgres.connection import one, rows
from loom.stores.postgres.first_run import ROLE, Role, use_of
from loom.stores.postgres.guard import SECURED
from loom.stores.postgres.near import INDEXES, PREFIX
from loom.stores.postgres.schema import TABLES, stored_version
from loom.stores.postgres.vectors import binding

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

_SERVER = """
SELECT split_part(current_setting('server_version'), ' ', 1),
    (SELECT extversion FROM pg_extension WHERE extname = 'vector')
"""
_DURABILITY = """
SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')
"""
_ROWS = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM vectors)"


async def describe(db: Database, schema: str) -> dict[str, str]:
    """Server, schema, durability, isolation, index and embedder; the transaction is one for all users."""
    version, vector = await one(db, _SERVER) or ("", "")
    return {
        "server": f"PostgreSQL {version}, {f'pgvector {vector}' if vector else 'without pgvector'}",
        "schema": f"{schema}, format {await stored_version(db, schema)}",
        "durability": await _durability(db),
        "isolation": await _isolation(db, schema),
        "index": await _index(db, schema),
        "embedder": embedder_label(await binding(db)),
    }


async def _durability(db: Database) -> str:
    fsync, commit, pages = await one(db, _DURABILITY) or ("", "", "")
    settings = f"fsync={fsync}, synchronous_commit={commit}, full_page_writes={pages}"
    if fsync != "on" or pages != "on":
        return f"not safe from a power cut: {settings}"
    if commit == "off":
        return f"a crash may lose the last moments: {settings}"
    return f"what was acknowledged survives a crash: {settings}"


async def _isolation(db: Database, schema: str) -> str:
    found = await one(db, ROLE, schema)
    role = Role("", is_super=False, bypasses=False, is_owner=False) if found is None else Role(*found[:4])
    secured = {table for (table,) in await rows(db, SECURED, schema)}
    open_tables = sorted(set(TABLES) - secured)
    forced = "row-level security forced" if not open_tables else f"no row-level security on {', '.join(open_tables)}"
    use = await use_of(db, schema, role)
    if use is not None and use.acts_as is None:
        return f"{forced}, role {role.name} (one role: bound by it, but owns the tables and could switch it off)"
    kinds = (
        ("superuser", role.is_super),
        ("bypasses row-level security", role.bypasses),
        ("owner of the tables", role.is_owner),
    )
    rights = [kind for kind, holds in kinds if holds]
    return f"{forced}, role {role.name} ({', '.join(rights) + ': not bound by it' if rights else 'bound by it'})"


async def _index(db: Database, schema: str) -> str:
    records, vectors = await one(db, _ROWS) or (0, 0)
    made = [name for name, is_valid, _ in await rows(db, INDEXES, schema, PREFIX) if is_valid]
    how = f"HNSW for {len(made)} users, exact for the others" if made else "exact"
    return f"{how}; {records} records, {vectors} vectors"
