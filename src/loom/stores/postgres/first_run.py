"""One role for everything: a role that may create a schema in a database connects, and Loom makes its tables.

A role that row-level security binds owns the tables, and is bound by it as all others are. A superuser, and a role that
bypasses row-level security, are never bound: Loom makes the two roles of `loom store init`, and each transaction of
theirs acts as the one that owns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loom.errors import StoreError
from loom.stores.postgres import vector_type
from loom.stores.postgres.connection import one
from loom.stores.postgres.schema import (
    APP_ROLE,
    ITSELF,
    OWNER_ROLE,
    VERSION,
    Roles,
    act_as,
    let_act,
    make_roles,
    make_tables,
    one_role_of,
    stored_version,
    take_turns,
)

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

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
        await vector_type.make_extension(db)
        if sees_all:
            await make_roles(db, APP_ROLE, OWNER_ROLE, None)
            await let_act(db, APP_ROLE)
            await make_tables(db, where, schema, Roles(APP_ROLE, OWNER_ROLE))
            await act_as(db, APP_ROLE)
        else:
            await make_tables(db, where, schema, None)
    await db.commit()
