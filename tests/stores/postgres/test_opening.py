"""What cannot work is refused with one clear error: at the first use, and with what to do."""

import sys

import anyio
import pytest

from loom.errors import FormatTooNew, MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.protocols.memory_store import Query
from loom.stores.postgres import PostgresStore, init_schema, schema
from loom.stores.postgres.search import SLOWER
from loom.testing.conformance.suite import ALICE, an_episode
from loom.testing.servers import ServerFailed, free_port, postgres
from tests.stores.postgres.conftest import started

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def guarded():
    """A server that asks for passwords."""
    started()
    with postgres(passwords=True) as server:
        anyio.run(lambda: init_schema(server.url(), password="s3cret'"))
        yield server


async def test_the_password_of_init_opens_the_store(guarded):
    async with PostgresStore(guarded.url("loom_app", password="s3cret'")) as store:
        await store.put(ALICE, an_episode())
        assert await store.count(ALICE) == 1


async def test_a_wrong_password_is_refused_and_not_repeated(guarded):
    with pytest.raises(StoreError, match=r"refused the connection: .*password.*check the user") as caught:
        await PostgresStore(guarded.url("loom_app", password="hunter2")).count(ALICE)
    assert not isinstance(caught.value, StoreUnavailable)
    assert "hunter2" not in str(caught.value)


async def test_an_unknown_role_is_refused(server):
    with pytest.raises(StoreError, match='role "nobody" does not exist'):
        await PostgresStore(server.server.url("nobody")).count(ALICE)


async def test_a_server_that_is_not_there_is_unavailable():
    started()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await PostgresStore(f"postgresql://loom_app@127.0.0.1:{free_port()}/x").count(ALICE)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://a:hunter2:c@[",
        "postgresql://a:hunter2 x@localhost/x",
        "hunter2",
        "postgresql://a:x/hunter2@localhost/x",
        "postgresql://a:x@hunter2@localhost/x",
    ],
)
async def test_an_address_that_is_none_is_refused_and_not_repeated(address):
    started()
    with pytest.raises(UsageError, match="write postgresql://") as caught:
        await PostgresStore(address).count(ALICE)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_missing_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)
    with pytest.raises(MissingExtra, match=r"loom-engine\[postgres\]"):
        await PostgresStore("postgresql://loom_app@127.0.0.1/x").count(ALICE)


async def test_a_database_without_loom_says_how_to_make_it(server):
    server.execute("CREATE DATABASE bare")
    try:
        with pytest.raises(StoreError, match=r"no schema 'loom' .*loom store init"):
            await PostgresStore(server.server.url("loom_app", database="bare")).count(ALICE)
        with pytest.raises(StoreError, match=r"no schema 'other'"):
            await PostgresStore(server.app, schema="other").count(ALICE)
    finally:
        server.execute("DROP DATABASE bare")


async def test_an_extension_that_was_dropped_is_named(server):
    server.execute("CREATE DATABASE plain")
    url = server.server.url("loom_app", database="plain")
    try:
        await init_schema(server.server.url(database="plain"))
        import psycopg

        with psycopg.connect(server.server.url(database="plain"), autocommit=True) as db:
            db.execute("DROP EXTENSION vector CASCADE")
        with pytest.raises(StoreError, match="no extension `vector`"):
            await PostgresStore(url).count(ALICE)
    finally:
        server.execute("DROP DATABASE plain")


async def test_a_server_without_pgvector_is_taken_and_said_to_be_slower(server, monkeypatch):
    server.execute("CREATE DATABASE plain")
    monkeypatch.setattr("loom.stores.postgres.search._AVAILABLE", "SELECT 1 WHERE false")
    try:
        assert await init_schema(server.server.url(database="plain")) == (False, (SLOWER,))
        async with PostgresStore(server.server.url("loom_app", database="plain")) as store:
            await store.put(ALICE, an_episode())
            assert store.notes == (SLOWER,)
    finally:
        server.execute("DROP DATABASE plain WITH (FORCE)")


async def test_a_newer_schema_is_refused_with_both_versions(server):
    with server.changed("UPDATE loom.meta SET value = '99'", f"UPDATE loom.meta SET value = '{schema.VERSION}'"):
        with pytest.raises(FormatTooNew, match=rf"format 99, .* up to {schema.VERSION};"):
            await PostgresStore(server.app).count(ALICE)
        with pytest.raises(FormatTooNew, match="format 99"):
            await init_schema(server.admin)


async def test_an_older_schema_waits_for_init(server):
    back = f"UPDATE loom.meta SET value = '{schema.VERSION}'"
    with server.changed("UPDATE loom.meta SET value = '0'", back), pytest.raises(StoreError, match="loom store init"):
        await PostgresStore(server.app).count(ALICE)


async def test_init_changes_nothing_the_second_time(server):
    async with PostgresStore(server.app) as store:
        await store.put(ALICE, an_episode())
        before = server.execute("SELECT * FROM pg_policies ORDER BY tablename, policyname")
        await init_schema(server.admin)
        assert server.execute("SELECT * FROM pg_policies ORDER BY tablename, policyname") == before
        assert await store.get(ALICE, "e1") == an_episode()


async def test_two_schemas_of_one_database_never_meet(server):
    await init_schema(server.admin, schema='odd "name', app_role="odd role", owner_role="odd owner")
    url = server.server.url("odd role")
    async with PostgresStore(url, schema='odd "name') as odd, PostgresStore(server.app) as plain:
        await odd.put(ALICE, an_episode())
        await odd.bind("test:2", 2)
        await odd.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert (await odd.count(ALICE), await plain.count(ALICE)) == (1, 0)
    with pytest.raises(StoreError):
        await PostgresStore(url).count(ALICE)
    server.execute('DROP SCHEMA "odd ""name" CASCADE')


async def test_an_init_that_fails_leaves_nothing_behind(server, monkeypatch):
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE half (n int); SELECT 1 / 0"))
    with pytest.raises(UsageError, match="division by zero"):
        await init_schema(server.admin, schema="half", owner_role="half_owner")
    assert server.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'half'") == []
    assert server.execute("SELECT 1 FROM pg_roles WHERE rolname = 'half_owner'") == []


def test_a_server_that_cannot_start_says_what_it_logged():
    started()
    with pytest.raises(ServerFailed, match="nonsense"), postgres(nonsense="1"):
        pass


async def test_a_replica_whose_address_cannot_be_read_is_refused(server):
    """A search would ask the primary instead, for ever, and nobody would hear of it."""
    with pytest.raises(UsageError, match="write postgresql://"):
        PostgresStore(server.server.url("loom_app"), replica="nonsense")


async def test_the_encoding_of_the_client_is_that_of_loom(server, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    for more in ("", "?client_encoding=sql_ascii"):
        async with PostgresStore(f"{server.server.url('loom_app')}{more}") as store:
            await store.put(ALICE, an_episode(text="Zürich and 東京"))
            assert (await store.get(ALICE, "e1")).text == "Zürich and 東京"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_of_another_encoding_says_what_it_cannot_hold(server, encoding):
    server.execute(f"CREATE DATABASE d{encoding} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    async with PostgresStore(server.server.url(database=f"d{encoding}".lower())) as store:
        await store.put(ALICE, an_episode("e1", text="Zurich"))
        with pytest.raises(UsageError, match="make one with ENCODING 'UTF8'"):
            await store.put(ALICE, an_episode("e2", text="東京"))
        assert [hit.item.id for hit in await store.search(ALICE, Query(text="Zurich"))] == ["e1"]


async def test_no_password_and_no_tls_are_refused_and_not_tried_again(guarded):
    for url in (guarded.url("loom_app"), f"{guarded.url()}?sslmode=require"):
        with pytest.raises(StoreError, match=r"refused the connection: .*options in the URL") as caught:
            await PostgresStore(url).count(ALICE)
        assert not isinstance(caught.value, StoreUnavailable)
