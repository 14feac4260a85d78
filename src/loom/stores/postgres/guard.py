"""The check of a server before its first use: is the schema there, and does it keep users apart?"""

# ruff: noqa: S608 - only names of tables of this package stand in SQL; every value is bound

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loom.core.checks import check_text
from loom.errors import StoreError, UsageError
from loom.stores.postgres import first_run, vector_type
from loom.stores.postgres.connection import Access, Server, one, rows, run
from loom.stores.postgres.first_run import ROLE, Role
from loom.stores.postgres.schema import (
    EVERYBODY,
    FOR_EVERYBODY,
    SCOPED,
    TABLES,
    VERSION,
    check_version,
    stored_version,
)

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

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

    async def check(self, db: Database, where: str) -> Access:
        """Refuse a server that is not fit; says how it is used. A database without the schema gets it, if it can."""
        if self.make_schema and await first_run.is_needed(db, self.schema):
            await first_run.make(db, where, self.schema)
        await run(db, "SET TRANSACTION READ ONLY")
        found = await one(db, ROLE, self.schema)
        if found is None:
            raise StoreError(
                f"{where} has no schema {self.schema!r} of Loom; {_INIT}, or open a memory there as a role that may "
                "create one"
            )
        *role, quoted = found
        vectors = await one(db, "SELECT quote_ident(%s)", await vector_type.schema_of(db, self.schema, where))
        path = f"{quoted}, {vectors[0] if vectors else 'public'}"
        await one(db, "SELECT set_config('search_path', %s, true)", path)
        version = await stored_version(db, self.schema)
        check_version(version, where)
        if version < VERSION:
            raise StoreError(f"{where} has format {version}, and this Loom needs {VERSION}; {_INIT}")
        plain = await vector_type.is_plain(db, self.schema)
        used = await self._admitted(db, where, Role(*role))
        if used.acts_as is not None:
            await one(db, "SELECT set_config('role', %s, true)", used.acts_as)
        await self._check_tables(db, where)
        more = (vector_type.SLOWER,) if plain else ()
        prepare = vector_type.take_plain if plain else None
        return Access(path, used.acts_as, (*used.notes, *more), prepare)

    async def _admitted(self, db: Database, where: str, role: Role) -> first_run.Use:
        """How the role that is connected may use the schema."""
        if self.allow_owner:
            return first_run.Use()
        use = await first_run.use_of(db, self.schema, role)
        if use is None:
            _check_role(where, role)
        return use or first_run.Use()

    async def _check_tables(self, db: Database, where: str) -> None:
        secured = {name for (name,) in await rows(db, SECURED, self.schema)}
        if open_to_all := set(TABLES) - secured:
            raise StoreError(f"{where} does not force row-level security on {_listed(open_to_all)}; {_INIT}")
        policies = {tuple(row) for row in await rows(db, _POLICIES, self.schema)}
        expected = {(table, SCOPED, "ALL") for table in TABLES}
        expected |= {(table, EVERYBODY, command) for table, command in FOR_EVERYBODY.items()}
        if policies != expected:
            odd = {f"{table}.{name}" for table, name, _ in policies ^ expected}
            raise StoreError(f"{where} has other policies than Loom's: {_listed(odd)}; drop them, then {_INIT}")
        if not self.allow_owner:
            # What policies say is not compared; what they do is: without a scope nothing may be seen.
            seen = await one(db, f"SELECT {', '.join(f'EXISTS (SELECT FROM {table})' for table in TABLES)}")
            for table, is_shown in zip(TABLES, seen or (), strict=True):
                if is_shown:
                    raise StoreError(f"{where} shows rows of {table} to a transaction that names no user; {_INIT}")


def guarded(dsn: str, insists: Guard, *, pool_size: int, timeout: float) -> Server:
    """A server that is looked at before its first use; refuses at once what can never work."""
    check_text(dsn, "the address of a Postgres server")
    check_text(insists.schema, "the schema of a store", max_bytes=63)
    if pool_size < 1:
        raise UsageError(f"pool_size={pool_size} leaves no connection; give at least one")
    if not timeout > 0:
        raise UsageError(f"timeout={timeout} is over at once; give seconds above 0")
    return Server(dsn, pool_size=pool_size, timeout=timeout, check=insists.check)


def _check_role(where: str, role: Role) -> None:
    if role.power is not None:
        raise StoreError(
            f"{where} is reached as {role.name!r}, which is {role.power} of Loom's tables and may see the rows of all "
            "users; connect as the role that `loom store init` made, or say allow_owner=True"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
