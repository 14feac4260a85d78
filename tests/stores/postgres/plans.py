"""Statements that Loom sends, written down while it works, and the partitions that their plans touch."""

import json
import re
from contextlib import contextmanager, suppress
from uuid import UUID

import psycopg
from psycopg import sql as compose
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from loom.stores.postgres import connection, schema

OF_ALL_USERS = {
    "leasing jobs: users who have some that are due": r"SELECT j\.owner FROM jobs AS j WHERE j\.dead_at IS NULL AND j\.run_at",
    "listing users": r"SELECT namespace, user_id FROM (checkpoint_)?users WHERE \(namespace, user_id\) >",
    "listing records without a vector": r"FROM users AS u JOIN records AS r ON r\.owner = u\.owner",
    "exchanging the embedder": r"^DELETE FROM vectors$",
    "counting jobs": r"count\(\*\) FILTER \(WHERE dead_at IS NOT NULL\) FROM jobs",
    "describing the store": r"\(SELECT count\(\*\) FROM records\), \(SELECT count\(\*\) FROM vectors\)",
    "checking that nothing is seen without a user": r"EXISTS \(SELECT FROM users\)",
}
"""What a statement that looks at every partition is for; no other may."""

PLANLESS = ("SET ", "LOCK TABLE embedder ", "CLOSE ", "COMMIT", "ROLLBACK")
"""How statements start that have no plan, and touch no table of users' data."""
_PARTITION = re.compile(rf"^(?:{'|'.join(schema.TABLES)})_p(\d+)$")
_TYPES = {UUID: "uuid", bool: "boolean", int: "bigint", float: "float8", bytes: "bytea"}


def is_of_all_users(statement):
    return next((name for name, pattern in OF_ALL_USERS.items() if re.search(pattern, statement)), None)


class Recorder:
    """What was sent on connections of psycopg: each statement once, with its values and how its transaction began."""

    def __init__(self):
        self.sent = {}
        self._begun = {}

    def note(self, db, statement, values):
        if isinstance(statement, compose.Composable):
            statement = statement.as_string(db)
        text = statement.decode() if isinstance(statement, bytes) else statement
        if "BEGIN ISOLATION" in text:
            begin, *rest = re.split(r"; (?=SELECT|INSERT|COMMIT|BEGIN)", text)
            self._begun[id(db)] = "; ".join([begin, rest[0]])
            for part in rest[1:]:
                if part != "COMMIT":
                    self.sent.setdefault(part, (self._begun[id(db)], ()))
        elif text.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
            self.sent.setdefault(text, (self._begun.get(id(db), ""), tuple(values or ())))
        else:
            assert text.startswith(PLANLESS), f"nobody looks at what this touches: {text}"

    @contextmanager
    def listening(self, monkeypatch):
        """Note every statement of every connection."""
        execute, many = psycopg.AsyncConnection.execute, psycopg.AsyncCursor.executemany
        named = psycopg.AsyncServerCursor.execute
        note = self.note

        async def noted(db, statement, values=None, **more):
            note(db, statement, values)
            return await execute(db, statement, values, **more)

        async def noted_many(cursor, statement, values, **more):
            note(cursor.connection, statement, values[0])
            return await many(cursor, statement, values, **more)

        async def noted_named(cursor, statement, values=None, **more):
            note(cursor.connection, statement, values)
            return await named(cursor, statement, values, **more)

        with monkeypatch.context() as patched:
            patched.setattr(psycopg.AsyncConnection, "execute", noted)
            patched.setattr(psycopg.AsyncCursor, "executemany", noted_many)
            patched.setattr(psycopg.AsyncServerCursor, "execute", noted_named)
            yield self


def _type(value):
    if isinstance(value, connection.Packed):
        return "unknown"
    if isinstance(value, list) and value:
        return f"{'text' if isinstance(value[0], str) else _type(value[0])}[]"
    return next((name for kind, name in _TYPES.items() if type(value) is kind), "unknown")


def _written(value, db):
    return "NULL" if isinstance(value, connection.Packed) else compose.Literal(value).as_string(db)


def _tables(plan):
    found = {plan["Relation Name"]} if "Relation Name" in plan else set()
    for part in (*plan.get("Plans", ()), *plan.get("Target Tables", ())):
        found |= _tables(part)
    return found


def touched(db, begin, statement, values, *, generic):
    """The numbers of the partitions that the plan of a statement reads or changes."""
    query = PostgresQuery(Transformer(db))
    query.convert(statement.encode(), [None if isinstance(v, connection.Packed) else v for v in values] or None)
    try:
        db.execute(begin.encode() or b"BEGIN; SELECT set_config('search_path', 'loom, public', true)")
        mode = "force_generic_plan" if generic else "force_custom_plan"
        db.execute(f"SET LOCAL plan_cache_mode TO {mode}")
        if values:
            types = f"({', '.join(map(_type, values))})"
            db.execute(b"PREPARE looked_at " + types.encode() + b" AS " + query.query)
            asked = f"EXECUTE looked_at ({', '.join(_written(value, db) for value in values)})"
        else:
            asked = statement
        ((plans,),) = db.execute(f"EXPLAIN (FORMAT JSON, COSTS OFF) {asked}".encode()).fetchall()
    finally:
        db.execute("ROLLBACK")
        if values:
            with suppress(psycopg.errors.InvalidSqlStatementName):
                db.execute("DEALLOCATE looked_at")
    plans = json.loads(plans) if isinstance(plans, str) else plans
    tables = set().union(*(_tables(one["Plan"]) for one in plans))
    return {int(found[1]) for table in tables if (found := _PARTITION.match(table))}
