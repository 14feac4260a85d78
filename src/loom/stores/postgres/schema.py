"""Tables, roles, migrations and first-contact checks of a Postgres schema.

Every table of users' data starts its keys with `owner`, which names one user of one namespace, so that each of them
can be partitioned by it. Row-level security lets a transaction see the rows of the one owner that it has set, and is
forced on the role that owns the tables, too. The role that stores connect as owns nothing.
"""

# ruff: noqa: S608 - only names of tables of this package stand in SQL; every value is bound
from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from loom.core.checks import check_text
from loom.errors import FormatTooNew, StoreError, UsageError
from loom.stores.postgres import partitions as moves
from loom.stores.postgres import search
from loom.stores.postgres.connection import (
    REPLICA,
    Access,
    Address,
    Database,
    Server,
    connect,
    name_of,
    one,
    rows,
    run,
    translate_errors,
)
from loom.stores.postgres.search import Progress, index_large_users

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

_THIRD = """
CREATE TABLE checkpoint_indexed (
    owner uuid NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    node bigint NOT NULL,
    PRIMARY KEY (owner, session_id)
);
CREATE TABLE checkpoint_entry_ids (
    owner uuid NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (owner, session_id, id)
);
"""
"""The ids of the entries of a session's log up to a node, for sessions that were asked for them."""

_FOURTH = """
CREATE TABLE marks (
    owner uuid PRIMARY KEY,
    number bigint NOT NULL,
    latest uuid[] NOT NULL
);
"""
"""The marks of each user's latest writes: whether one was committed whose answer got lost."""

_FIFTH = """
CREATE TABLE checkpoint_users (
    owner uuid PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL
);
CREATE INDEX checkpoint_users_by_name ON checkpoint_users (namespace, user_id);
"""
"""The names of users who have sessions: a memory may know nothing of them."""

MIGRATIONS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH)
"""Step n leads from version n to n + 1. A step that was released is never changed."""
VERSION = len(MIGRATIONS)

TABLES = (
    "users", "records", "keys", "postings", "lengths", "vectors", "jobs", "checkpoint_nodes", "checkpoint_parts",
    "checkpoint_indexed", "checkpoint_entry_ids", "checkpoint_users", "marks",
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
FOR_EVERYBODY = {"users": "SELECT", "records": "SELECT", "vectors": "ALL", "jobs": "ALL", "checkpoint_users": "SELECT"}
"""What a transaction for all users may do: list users, lease jobs, exchange vectors and list records without one."""

ONE_ROLE = "one_role"
"""The name of the value that says that a schema was made for one role, and whom that acts as."""
ITSELF = ""
_SET_IS_A_RIGHT = 160000
_ADMINISTRATOR = (
    "an administrator: a role with CREATEROLE that may create schemas in this database (its owner may); as an owner "
    "without CREATEROLE, say one_role=True or --one-role"
)
_HAS_META = (
    "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.relname = 'meta' AND n.nspname = %s"
)
_SET_META = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
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


class Initialised(NamedTuple):
    """What init_schema() made: a schema for one role or for two, and what a person should know of it."""

    one_role: bool
    notes: tuple[str, ...] = ()


async def init_schema(
    admin_dsn: str,
    *,
    schema: str = SCHEMA,
    app_role: str = APP_ROLE,
    owner_role: str = OWNER_ROLE,
    password: str | None = None,
    one_role: bool = False,
    partitions: int | None = None,
    progress: Progress | None = None,
) -> Initialised:
    """Make the roles, the schema and its tables, or bring them to this version; what is there already stays.

    `admin_dsn` names a role that may create roles, schemas in this database and the extension `vector`; a superuser is
    not needed. Stores then connect as `app_role`, with `password` if one is given; `owner_role` is not for connecting.
    With `one_role` no role is made: stores connect as the one that `admin_dsn` names, which owns the tables. Users with
    very many vectors then get an index, which may take minutes; `progress` is told of each.

    With `partitions` above 1 every table of users' data is hash-partitioned by user. Users of a schema with another
    number of partitions are moved, which `progress` is told of; stores refuse calls meanwhile, with StoreUnavailable.
    If it is interrupted, the next init_schema() goes on. None leaves the number as it is; a new schema has one.
    """
    for what, name in (("schema", schema), ("app_role", app_role), ("owner_role", owner_role)):
        check_text(name, f"{what} of init_schema()", max_bytes=63)
    moves.check_partitions(partitions)
    where = name_of(admin_dsn)
    admin_dsn = Address.of(admin_dsn).dsn
    with translate_errors(where, needed=_ADMINISTRATOR):
        db = await connect(admin_dsn)
        async with db:
            await take_turns(db)
            alone = await one_role_of(db, schema)
            if one_role and alone is None and await one(db, "SELECT 1 FROM pg_namespace WHERE nspname = %s", schema):
                raise UsageError(f"{where} has a schema {schema!r} for two roles; leave one_role out")
            await search.make_extension(db)
            one_role = one_role or alone == ITSELF
            roles = None if one_role else Roles(app_role, owner_role)
            if roles is not None:
                await make_roles(db, app_role, owner_role, password)
            await make_tables(db, where, schema, roles, partitions=partitions or 1)
        plan = moves.Plan(admin_dsn, schema, where, MIGRATIONS, TABLES)
        made = await moves.move_users(plan, partitions, partial(_protect, schema=schema, roles=roles), progress)
        async with as_owner(admin_dsn, schema, where) as db:
            await index_large_users(db, schema, progress=progress)
            notes = (f"users are spread over {made} partitions",) if made > 1 else ()
            return Initialised(one_role, (*notes, search.SLOWER) if await search.is_plain(db, schema) else notes)


async def take_turns(db: Database) -> None:
    """Wait until no other process makes or changes a schema in this database, and keep others out until the end."""
    await run(db, "SELECT pg_advisory_xact_lock(hashtext('loom init'))")


async def one_role_of(db: Database, schema: str) -> str | None:
    """Whom a role that could see everything acts as, where a schema was made for one role; ITSELF: as it is."""
    if not await one(db, _HAS_META, schema):
        return None
    from psycopg import sql  # noqa: PLC0415

    asked = sql.SQL("SELECT value FROM {} WHERE name = {}").format(
        sql.Identifier(schema, "meta"), sql.Literal(ONE_ROLE)
    )
    found = await (await db.execute(asked)).fetchone()
    return None if found is None else str(found[0])


@asynccontextmanager
async def as_owner(
    admin_dsn: str, schema: str, where: str, *, owner_role: str | None = None
) -> AsyncGenerator[Database]:
    """A connection that owns the schema and sees all users' vectors, outside a transaction, so that no call waits."""
    from psycopg import sql  # noqa: PLC0415

    db = await connect(admin_dsn, autocommit=True)
    async with db:
        found = await one(db, "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = %s", schema)
        if found is None:
            raise StoreError(f"{where} has no schema {schema!r} of Loom; run `loom store init` first")
        path = [sql.Identifier(schema), sql.Identifier(await search.schema_of(db, schema, where))]
        await db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(owner_role or found[0])))
        await db.execute(sql.SQL("SET search_path TO {}, {}").format(*path))
        await db.execute("SET loom.everybody TO 'on'")
        yield db


class Roles(NamedTuple):
    """The two roles of a schema: the one that stores connect as, and the one that owns the tables."""

    app: str
    owner: str


async def make_roles(db: Database, app_role: str, owner_role: str, password: str | None) -> None:
    """Make the two roles of a schema, where they are not there."""
    from psycopg import sql  # noqa: PLC0415

    for role, may in ((owner_role, "NOLOGIN"), (app_role, "LOGIN")):
        if await one(db, "SELECT 1 FROM pg_roles WHERE rolname = %s", role) is None:
            made = sql.SQL("CREATE ROLE {} NOSUPERUSER NOBYPASSRLS {}").format(sql.Identifier(role), sql.SQL(may))  # pyright: ignore[reportArgumentType]
            await db.execute(made)
    if password is not None:
        # Encrypted here, so that no log of the server ever holds it.
        secret = db.pgconn.encrypt_password(password.encode(), app_role.encode(), b"scram-sha-256").decode()
        await db.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(app_role), sql.Literal(secret)))
    await let_act(db, owner_role)


async def let_act(db: Database, role: str) -> None:
    """Let the role that is connected act as another one.

    From version 16 on, the creator of a role may hand it on, and still has to hand it to itself to act as it.
    """
    from psycopg import sql  # noqa: PLC0415

    is_new = db.info.server_version >= _SET_IS_A_RIGHT
    rights = ["SET", "USAGE"] if is_new else ["MEMBER"]
    has_all = "SELECT 1 WHERE (SELECT bool_and(pg_has_role(current_user, %s, r)) FROM unnest(%s::text[]) AS r)"
    if await one(db, has_all, role, rights) is None:
        how = sql.SQL(" WITH SET TRUE, INHERIT TRUE" if is_new else "")
        await db.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(role)) + how)


async def make_tables(db: Database, where: str, schema: str, roles: Roles | None, *, partitions: int = 1) -> None:
    """Make the schema and its tables, or bring them to this version; without roles, for the one that is connected.

    `partitions` is for new tables; users of others are moved by themselves, and those that are being moved left alone.
    """
    from psycopg import sql  # noqa: PLC0415

    owner = sql.SQL("CURRENT_USER") if roles is None else sql.Identifier(roles.owner)
    made = sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}")
    await db.execute(made.format(sql.Identifier(schema), owner))
    if roles is None:  # an administrator may look after the schema of another
        found = await one(db, "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = %s", schema)
        owner = sql.Identifier(*found or ())
    await db.execute(sql.SQL("SET LOCAL ROLE {}").format(owner))
    await search.settle(db, schema, where)
    version = await stored_version(db, schema)
    check_version(version, where)
    if version and await moves.moving_to(db) is not None:
        if version < VERSION:
            raise StoreError(f"{where} is of an older Loom that is moving users; let that one end it first")
        return
    amount = partitions if version == 0 else await moves.stored_partitions(db)
    for script in MIGRATIONS[version:]:
        await run(db, script if amount == 1 else moves.partitioned(script, TABLES))
    await moves.make_partitions(db, TABLES, amount)
    await run(db, _SET_META, "version", str(VERSION))
    if roles is None:
        await run(db, _SET_META, ONE_ROLE, ITSELF)
    await _protect(db, schema=schema, roles=roles)


async def _protect(db: Database, *, schema: str, roles: Roles | None) -> None:
    """Force row-level security on all tables, keep no statistics of content, and let the role for stores use them."""
    from psycopg import sql  # noqa: PLC0415

    for table in TABLES:
        await _secure(db, table)
    for table, column in await rows(db, _CONTENT, schema):
        await run(db, f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
    if roles is None:
        return
    for right in (
        "USAGE ON SCHEMA {schema}",
        "SELECT ON meta",
        f"SELECT, INSERT, UPDATE, DELETE ON embedder, {', '.join(TABLES)}",
        "SELECT, UPDATE ON forgotten",
    ):
        grant = sql.SQL(f"GRANT {right} TO {{app}}")  # pyright: ignore[reportArgumentType]
        await db.execute(grant.format(schema=sql.Identifier(schema), app=sql.Identifier(roles.app)))


async def _secure(db: Database, table: str) -> None:
    """Force row-level security on a table, with the policies of this version and no other."""
    await run(db, f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    await run(db, f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    await run(db, f"DROP POLICY IF EXISTS {SCOPED} ON {table}")
    await run(db, f"CREATE POLICY {SCOPED} ON {table} USING ({_OF_OWNER})")
    await run(db, f"DROP POLICY IF EXISTS {EVERYBODY} ON {table}")
    if table in FOR_EVERYBODY:
        await run(db, f"CREATE POLICY {EVERYBODY} ON {table} FOR {FOR_EVERYBODY[table]} USING ({_OF_EVERYBODY})")


async def stored_version(db: Database, schema: str) -> int:
    """The version of the schema, 0 where there is none."""
    is_there = await one(db, _HAS_META, schema)
    found = await one(db, "SELECT value FROM meta WHERE name = 'version'") if is_there else None
    return 0 if found is None else int(found[0])


def check_version(version: int, where: str) -> None:
    """Refuse a schema that a newer Loom made."""
    if version > VERSION:
        raise FormatTooNew(f"{where} has format {version}, and this Loom reads up to {VERSION}; install a newer Loom")


# One role for everything: a role that may create a schema in a database connects, and Loom makes its tables.
#
# A role that row-level security binds owns the tables, and is bound by it as all others are. A superuser, and a role
# that bypasses row-level security, are never bound: Loom makes the two roles of `loom store init`, and each transaction
# of theirs acts as the one that owns nothing.

ROLE = """
SELECT r.rolname, r.rolsuper, r.rolbypassrls, pg_has_role(r.oid, n.nspowner, 'MEMBER'), quote_ident(n.nspname)
FROM pg_roles AS r, pg_namespace AS n WHERE r.rolname = current_user AND n.nspname = %s
"""
_RIGHTS = """
SELECT rolname, current_database(), has_database_privilege(current_database(), 'CREATE'), rolsuper OR rolbypassrls,
    rolsuper OR rolcreaterole
FROM pg_roles WHERE rolname = current_user
"""
_IS_OWNER = (
    "{name!r} owns the tables: row-level security keeps users apart for it too, but anybody with its password could "
    "switch that off; `loom store init` by an administrator, before the first use, makes a role that cannot"
)
_ACTS = (
    "{name!r} sees everything and acts as {role!r}, whom row-level security binds; anybody with its password sees all "
    "users: better connect as {role!r}, with a password that `loom store init` gives it"
)


class Role(NamedTuple):
    """The role that is connected, and what it could do to Loom's tables."""

    name: str
    is_super: bool
    bypasses: bool
    is_owner: bool

    @property
    def power(self) -> str | None:
        """Why it may see the rows of all users; None where it may not."""
        kinds = (
            ("a superuser", self.is_super),
            ("allowed to bypass row-level security", self.bypasses),
            ("an owner", self.is_owner),
        )
        return next((kind for kind, holds in kinds if holds), None)


class Use(NamedTuple):
    """How a role uses a schema: whom it acts as, if not itself, and what a person should know of that."""

    acts_as: str | None = None
    notes: tuple[str, ...] = ()


async def use_of(db: Database, schema: str, role: Role) -> Use | None:
    """How a role that could see everything may use the schema; None where it may not, or is not such a role."""
    if role.power is None or (role_for := await one_role_of(db, schema)) is None:
        return None
    if role_for == ITSELF:
        is_bound = not (role.is_super or role.bypasses)
        return Use(None, (_IS_OWNER.format(name=role.name),)) if is_bound else None
    may = await one(db, "SELECT 1 WHERE pg_has_role(current_user, %s, 'MEMBER')", role_for)
    return Use(role_for, (_ACTS.format(name=role.name, role=role_for),)) if may else None


async def is_needed(db: Database, schema: str) -> bool:
    """Whether the schema is missing, or an older one that was made for one role."""
    if await one(db, "SELECT 1 FROM pg_namespace WHERE nspname = %s", schema) is None:
        return True
    found = await one(db, ROLE, schema)
    if found is None or Role(*found[:-1]).power is None or await one_role_of(db, schema) is None:
        return False
    await one(db, "SELECT set_config('search_path', %s, true)", found[-1])
    return await stored_version(db, schema) < VERSION


async def make(db: Database, where: str, schema: str) -> None:
    """Make the schema for the role that is connected, or bring it to this version; others who come as well wait."""
    await take_turns(db)
    if await is_needed(db, schema):
        name, database, may_create, sees_all, may_make_roles = await one(db, _RIGHTS) or ("", "", False, False, False)
        if not may_create or (sees_all and not may_make_roles):
            raise StoreError(
                f"{where} has no schema {schema!r} of Loom, and {name!r} may not make one; run `loom store init` as an "
                f"administrator of the database, or let its owner run: GRANT CREATE ON DATABASE {database} TO {name}"
            )
        await search.make_extension(db)
        if sees_all:
            await make_roles(db, APP_ROLE, OWNER_ROLE, None)
            await let_act(db, APP_ROLE)
            await make_tables(db, where, schema, Roles(APP_ROLE, OWNER_ROLE))
            await run(db, _SET_META, ONE_ROLE, APP_ROLE)
        else:
            await make_tables(db, where, schema, None)
    await db.commit()


# The check of a server before its first use: is the schema there, and does it keep users apart?

SECURED = """
SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relrowsecurity AND c.relforcerowsecurity
"""
_POLICIES = "SELECT tablename, policyname, cmd FROM pg_policies WHERE schemaname = %s"
_INIT = "run `loom store init` as an administrator of the database"


@dataclass(frozen=True, slots=True)
class Guard:
    """The conditions under which a store uses a server.

    `allow_owner` lets it connect as a role that sees the rows of all users, `make_schema` gives a database the schema
    that it does not have.
    """

    schema: str
    allow_owner: bool = False
    make_schema: bool = True

    async def check(self, db: Database, where: str, hosts: int = 1) -> Access:
        """Refuse a server that is not fit; says how it is used. A database without the schema gets it, if it can."""
        if self.make_schema and await is_needed(db, self.schema):
            await make(db, where, self.schema)
        await run(db, "SET TRANSACTION READ ONLY")
        found = await one(db, ROLE, self.schema)
        if found is None:
            raise StoreError(
                f"{where} has no schema {self.schema!r} of Loom; {_INIT}, or open a memory there as a role that may "
                "create one"
            )
        *role, quoted = found
        vectors = await one(db, "SELECT quote_ident(%s)", await search.schema_of(db, self.schema, where))
        path = f"{quoted}, {vectors[0] if vectors else 'public'}"
        await one(db, "SELECT set_config('search_path', %s, true)", path)
        version = await stored_version(db, self.schema)
        check_version(version, where)
        if version < VERSION:
            raise StoreError(f"{where} has format {version}, and this Loom needs {VERSION}; {_INIT}")
        await moves.refuse_while_moving(db, where)
        plain = await search.is_plain(db, self.schema)
        used = await self._admitted(db, where, Role(*role))
        if used.acts_as is not None:
            await one(db, "SELECT set_config('role', %s, true)", used.acts_as)
        await self._check_tables(db, where)
        lossy = await may_lose(db) if hosts > 1 else None
        more = (*((search.SLOWER,) if plain else ()), *((lossy,) if lossy else ()))
        prepare = search.take_plain if plain else None
        return Access(path, used.acts_as, (*used.notes, *more), prepare)

    async def _admitted(self, db: Database, where: str, role: Role) -> Use:
        """How the role that is connected may use the schema."""
        if self.allow_owner:
            return Use()
        use = await use_of(db, self.schema, role)
        if use is None and role.power is not None:
            raise StoreError(
                f"{where} is reached as {role.name!r}, which is {role.power} of Loom's tables and may see the rows of "
                "all users; connect as the role that `loom store init` made, or say allow_owner=True"
            )
        return use or Use()

    async def _check_tables(self, db: Database, where: str) -> None:
        secured = {name for (name,) in await rows(db, SECURED, self.schema)}
        partitions = await rows(db, moves.PARTITIONS, self.schema)
        if open_to_all := {*TABLES, *(name for name, _ in partitions)} - secured:
            names = ", ".join(sorted(open_to_all))
            raise StoreError(f"{where} does not force row-level security on {names}; {_INIT}")
        if (granted := [name for name, is_granted in partitions if is_granted]) and not self.allow_owner:
            raise StoreError(
                f"{where} lets roles past the tables of Loom, to partitions of them: {', '.join(granted)}; revoke "
                f"their rights, or {_INIT}"
            )
        policies = {tuple(row) for row in await rows(db, _POLICIES, self.schema)}
        expected = {(table, SCOPED, "ALL") for table in TABLES}
        expected |= {(table, EVERYBODY, command) for table, command in FOR_EVERYBODY.items()}
        if policies != expected:
            odd = ", ".join(sorted({f"{table}.{name}" for table, name, _ in policies ^ expected}))
            raise StoreError(f"{where} has other policies than Loom's: {odd}; drop them, then {_INIT}")
        if not self.allow_owner:
            # What policies say is not compared; what they do is: without a scope nothing may be seen.
            seen = await one(db, f"SELECT {', '.join(f'EXISTS (SELECT FROM {table})' for table in TABLES)}")
            for table, is_shown in zip(TABLES, seen or (), strict=True):
                if is_shown:
                    raise StoreError(f"{where} shows rows of {table} to a transaction that names no user; {_INIT}")


# What a failover may lose.

_REPLICATION = (
    "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), "
    "(SELECT count(*) FROM pg_stat_replication)"
)


MAY_LOSE = (
    "the primary does not wait for its replicas: a failover may lose the last moments of what was acknowledged; set "
    "synchronous_standby_names, with synchronous_commit=on, where nothing may be lost"
)


async def replication(db: Database) -> tuple[int, str | None]:
    """How many replicas there are, and what says that commits wait for one of them; None where they do not."""
    names, commit, replicas = await one(db, _REPLICATION) or ("", "", 0)
    waits = bool(names) and commit in {"on", "remote_apply", "remote_write"}
    return replicas, f"synchronous_standby_names={names}, synchronous_commit={commit}" if waits else None


async def may_lose(db: Database) -> str | None:
    """What a failover may lose, in words; None where nothing that was acknowledged."""
    _, waits = await replication(db)
    if waits is not None:
        return None
    return MAY_LOSE


async def isolation_of(db: Database, schema: str) -> str:
    """How users are kept apart from the role that is connected, for people."""
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


def guarded(
    dsn: str, insists: Guard, *, pool_size: int, timeout: float, replica: str | None = None, prepare: bool | None = None
) -> Server:
    """A server that is looked at before its first use; refuses at once what can never work.

    `replica` and `prepare` win over what the URL says.
    """
    check_text(dsn, "the address of a Postgres server")
    check_text(insists.schema, "the schema of a store", max_bytes=63)
    if pool_size < 1:
        raise UsageError(f"pool_size={pool_size} leaves no connection; give at least one")
    if not timeout > 0:
        raise UsageError(f"timeout={timeout} is over at once; give seconds above 0")
    address = Address.of(dsn)
    prepares = address.prepares if prepare is None else prepare
    server = Server(Address(address.dsn, None, prepares), pool_size=pool_size, timeout=timeout, check=insists.check)
    if copied := replica or address.replica:
        check_text(copied, "the address of a replica")
        looks = replace(insists, make_schema=False)
        name_of(copied)  # calls go on without a replica, so nobody would hear that its address cannot be read
        place = Address(Address.of(copied).dsn, None, prepares, REPLICA)
        server.read_from(Server(place, pool_size=pool_size, timeout=timeout, check=looks.check))
    return server
