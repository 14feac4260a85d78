"""The tables of a Loom schema, who may do what with them, and the steps that lead to them.

Every table of users' data starts its keys with `owner`, which names one user of one namespace, so that each of them
can be partitioned by it. Row-level security lets a transaction see the rows of the one owner that it has set, and is
forced on the role that owns the tables, too. The role that stores connect as owns nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from loom.core.checks import check_text
from loom.errors import FormatTooNew, StoreError
from loom.stores.postgres.connection import connect, one, rows, run, spoken_errors, spoken_name
from loom.stores.postgres.near import Progress, index_large_users

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

SCHEMA = "loom"
OWNER_ROLE = "loom_owner"
APP_ROLE = "loom_app"

_FIRST = """
CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL);

CREATE TABLE embedder (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    identity text NOT NULL,
    dimension int NOT NULL
);

CREATE TABLE users (
    owner uuid PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    next_number bigint NOT NULL DEFAULT 0,
    next_job bigint NOT NULL DEFAULT 0,
    records bigint NOT NULL DEFAULT 0
);
CREATE INDEX users_by_name ON users (namespace, user_id);

CREATE TABLE records (
    owner uuid NOT NULL,
    number bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    text text COLLATE "C",
    origin text COLLATE "C" NOT NULL,
    trusted smallint NOT NULL,
    recorded_at bigint,
    sources text,
    at bigint,
    layer smallint,
    session_id text COLLATE "C",
    speaker text COLLATE "C",
    importance double precision,
    accesses bigint,
    accessed_at bigint,
    archived_at bigint,
    attributes text,
    subject text COLLATE "C",
    predicate text COLLATE "C",
    object text COLLATE "C",
    valid_from bigint,
    valid_until bigint,
    superseded_at bigint,
    superseded_by text COLLATE "C",
    confidence double precision,
    cardinality text COLLATE "C",
    name text COLLATE "C",
    version bigint,
    updated_at bigint,
    PRIMARY KEY (owner, number),
    UNIQUE (owner, id)
);
CREATE INDEX episodes_by_session ON records (owner, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX episodes_by_layer ON records (owner, layer, recorded_at) WHERE layer IS NOT NULL AND archived_at IS NULL;
CREATE INDEX others_by_owner ON records (owner) WHERE layer IS NULL;

CREATE TABLE keys (
    owner uuid NOT NULL,
    number bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (owner, number, kind)
);

CREATE TABLE postings (
    owner uuid NOT NULL,
    run bigint NOT NULL,
    term text COLLATE "C" NOT NULL,
    signal text COLLATE "C" NOT NULL,
    entries bytea NOT NULL,
    PRIMARY KEY (owner, run, term, signal)
);
-- What is searched for again and again is not packed and unpacked each time.
ALTER TABLE postings ALTER COLUMN entries SET STORAGE EXTERNAL;

CREATE TABLE lengths (
    owner uuid NOT NULL,
    signal text COLLATE "C" NOT NULL,
    texts bigint NOT NULL,
    words bigint NOT NULL,
    PRIMARY KEY (owner, signal)
);

CREATE TABLE vectors (
    owner uuid NOT NULL,
    number bigint NOT NULL,
    data vector NOT NULL,
    PRIMARY KEY (owner, number)
);

CREATE TABLE jobs (
    owner uuid NOT NULL,
    number bigint NOT NULL,
    session_id text COLLATE "C",
    id text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    key text COLLATE "C" NOT NULL,
    run_at bigint NOT NULL,
    payload text NOT NULL,
    attempts bigint NOT NULL,
    token text,
    until bigint,
    reason text,
    dead_at bigint,
    PRIMARY KEY (owner, number)
);
CREATE UNIQUE INDEX open_job_keys ON jobs (owner, key) WHERE dead_at IS NULL;
CREATE UNIQUE INDEX open_job_ids ON jobs (owner, id) WHERE dead_at IS NULL;
CREATE INDEX open_jobs ON jobs (run_at, id) WHERE dead_at IS NULL;

CREATE TABLE checkpoint_nodes (
    owner uuid NOT NULL,
    node bigint NOT NULL,
    parent bigint,
    session_id text COLLATE "C",
    id text COLLATE "C",
    data bytea,
    size int NOT NULL,
    parts bytea[] NOT NULL,
    entries bytea NOT NULL,
    PRIMARY KEY (owner, node)
);
CREATE UNIQUE INDEX checkpoint_ids ON checkpoint_nodes (owner, session_id, id) WHERE session_id IS NOT NULL;
CREATE INDEX checkpoints_by_session ON checkpoint_nodes (owner, session_id, node) WHERE session_id IS NOT NULL;
CREATE INDEX checkpoint_parents ON checkpoint_nodes (owner, parent) WHERE parent IS NOT NULL;

CREATE TABLE checkpoint_parts (
    owner uuid NOT NULL,
    hash bytea NOT NULL,
    uses bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (owner, hash)
);
"""

_SECOND = """
ALTER TABLE users ADD COLUMN life bigint NOT NULL DEFAULT 0, ADD COLUMN removed bigint NOT NULL DEFAULT 0;

CREATE TABLE forgotten (is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only), users bigint NOT NULL);
INSERT INTO forgotten (users) VALUES (1);
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _SECOND)
"""Step n leads from version n to n + 1. A step that was released is never changed."""
VERSION = len(MIGRATIONS)

TABLES = (
    "users", "records", "keys", "postings", "lengths", "vectors", "jobs", "checkpoint_nodes", "checkpoint_parts",
)  # fmt: skip
"""The tables that hold users' data."""

UNSWEPT = (
    "no row is left, but Postgres keeps the bytes of removed rows in its files until they are swept: let an "
    "administrator run `loom store sweep URL`, which writes them anew and empties the write-ahead log; backups have to "
    "run out"
)
"""What a forget cannot do: only an administrator can make Postgres write its files anew."""

SCOPED = "scope"
EVERYBODY = "everybody"
FOR_EVERYBODY = {"users": "SELECT", "records": "SELECT", "vectors": "ALL", "jobs": "ALL"}
"""What a transaction may do that asks for everybody: lease jobs, exchange vectors and list what has none."""

_AVAILABLE = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
# As sub-selects, so that a setting is read once for a statement and not for each row.
_OF_OWNER = "owner = (SELECT nullif(current_setting('loom.owner', true), '')::uuid)"
_OF_EVERYBODY = "(SELECT current_setting('loom.everybody', true) = 'on')"

# The planner's statistics hold samples of columns, and would keep words of those who are forgotten.
_CONTENT = """
SELECT quote_ident(c.relname), quote_ident(a.attname)
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
AND a.atttypid IN ('text'::regtype, 'bytea'::regtype, 'bytea[]'::regtype, 'vector'::regtype)
AND a.attstattarget IS DISTINCT FROM 0
"""


async def init_schema(
    admin_dsn: str,
    *,
    schema: str = SCHEMA,
    app_role: str = APP_ROLE,
    owner_role: str = OWNER_ROLE,
    password: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Make the roles, the schema and its tables, or bring them to this version; what is there already stays.

    `admin_dsn` names somebody who may create roles, schemas and the extension `vector`. Stores then connect as
    `app_role`, with `password` if one is given; nobody connects as `owner_role`. Users with very many vectors then get
    an index, which may take minutes; `progress` is told of each.
    """
    for what, name in (("schema", schema), ("app_role", app_role), ("owner_role", owner_role)):
        check_text(name, f"{what} of init_schema()", max_bytes=63)
    where = spoken_name(admin_dsn)
    with spoken_errors(where, needed="an administrator of the server"):
        db = await connect(admin_dsn)
        async with db:
            await run(db, "SELECT pg_advisory_xact_lock(hashtext('loom init'))")
            await _make_extension(db, where)
            await _make_roles(db, app_role, owner_role, password)
            await _make_tables(db, where, schema, app_role, owner_role)
        async with as_owner(admin_dsn, schema, owner_role, where) as db:
            await index_large_users(db, schema, progress=progress)


@asynccontextmanager
async def as_owner(admin_dsn: str, schema: str, owner_role: str, where: str) -> AsyncGenerator[Database]:
    """A connection that owns the schema, sees everybody's vectors and is in no transaction, so that nobody waits."""
    from psycopg import sql  # noqa: PLC0415

    db = await connect(admin_dsn, autocommit=True)
    async with db:
        path = [sql.Identifier(schema), sql.Identifier(await vector_schema(db, where))]
        await db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(owner_role)))
        await db.execute(sql.SQL("SET search_path TO {}, {}").format(*path))
        await db.execute("SET loom.everybody TO 'on'")
        yield db


async def _make_extension(db: Database, where: str) -> None:
    if await one(db, _AVAILABLE) is None:
        raise StoreError(
            f"the server {where} does not have the extension pgvector; install its package on the server first"
        )
    await run(db, "CREATE EXTENSION IF NOT EXISTS vector")


async def _make_roles(db: Database, app_role: str, owner_role: str, password: str | None) -> None:
    from psycopg import sql  # noqa: PLC0415

    for role, may in ((owner_role, "NOLOGIN"), (app_role, "LOGIN")):
        if await one(db, "SELECT 1 FROM pg_roles WHERE rolname = %s", role) is None:
            made = sql.SQL("CREATE ROLE {} NOSUPERUSER NOBYPASSRLS {}").format(sql.Identifier(role), sql.SQL(may))  # pyright: ignore[reportArgumentType]
            await db.execute(made)
    if password is not None:
        # Encrypted here, so that no log of the server ever holds it.
        secret = db.pgconn.encrypt_password(password.encode(), app_role.encode(), b"scram-sha-256").decode()
        await db.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(app_role), sql.Literal(secret)))
    if await one(db, "SELECT 1 WHERE pg_has_role(current_user, %s, 'MEMBER')", owner_role) is None:
        await db.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(owner_role)))


async def _make_tables(db: Database, where: str, schema: str, app_role: str, owner_role: str) -> None:
    from psycopg import sql  # noqa: PLC0415

    names = {"schema": sql.Identifier(schema), "app": sql.Identifier(app_role), "owner": sql.Identifier(owner_role)}

    async def say(text: Any) -> None:
        await db.execute(sql.SQL(text).format(**names))

    await say("CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {owner}")
    await say("SET LOCAL ROLE {owner}")
    path = sql.SQL("SET LOCAL search_path TO {}, {}")
    await db.execute(path.format(names["schema"], sql.Identifier(await vector_schema(db, where))))
    version = await stored_version(db, schema)
    check_version(version, where)
    for script in MIGRATIONS[version:]:
        await run(db, script)
    await run(db, "INSERT INTO meta VALUES ('version', %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
              str(VERSION))  # fmt: skip
    for table in TABLES:
        await _secure(db, table)
    for table, column in await rows(db, _CONTENT, schema):
        await say(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
    await say("GRANT USAGE ON SCHEMA {schema} TO {app}")
    await say("GRANT SELECT ON meta TO {app}")
    await say(f"GRANT SELECT, INSERT, UPDATE, DELETE ON embedder, {', '.join(TABLES)} TO {{app}}")
    await say("GRANT SELECT, UPDATE ON forgotten TO {app}")


async def _secure(db: Database, table: str) -> None:
    """Force row-level security on a table, with the policies of this version and no other."""
    await run(db, f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    await run(db, f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    await run(db, f"DROP POLICY IF EXISTS {SCOPED} ON {table}")
    await run(db, f"CREATE POLICY {SCOPED} ON {table} USING ({_OF_OWNER})")
    await run(db, f"DROP POLICY IF EXISTS {EVERYBODY} ON {table}")
    if table in FOR_EVERYBODY:
        await run(db, f"CREATE POLICY {EVERYBODY} ON {table} FOR {FOR_EVERYBODY[table]} USING ({_OF_EVERYBODY})")


async def vector_schema(db: Database, where: str) -> str:
    """The schema that the extension `vector` is in."""
    found = await one(db, "SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace "
                          "WHERE e.extname = 'vector'")  # fmt: skip
    if found is None:
        raise StoreError(f"{where} has no extension `vector`; run `loom store init` as somebody who may create it")
    return str(found[0])


async def stored_version(db: Database, schema: str) -> int:
    """The version of the schema, 0 where there is none."""
    is_there = await one(
        db,
        "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE c.relname = 'meta' AND n.nspname = %s",
        schema,
    )
    found = await one(db, "SELECT value FROM meta WHERE name = 'version'") if is_there else None
    return 0 if found is None else int(found[0])


def check_version(version: int, where: str) -> None:
    """Refuse a schema that a newer Loom made."""
    if version > VERSION:
        raise FormatTooNew(f"{where} has format {version}, and this Loom reads up to {VERSION}; install a newer Loom")
