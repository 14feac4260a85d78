"""The first contact with a server: the administrators that hosts give, an owner alone, a superuser, no pgvector."""

import sys
from contextlib import aclosing

import anyio
import pytest

from loom.errors import StoreError, UsageError
from loom.protocols.memory_store import Query
from loom.stores.postgres import PostgresCheckpointStore, PostgresStore, init_schema, schema, sweep_schema
from loom.stores.postgres.search import SLOWER
from loom.testing.conformance import CheckpointStoreSuite, MemoryStoreSuite, check_non_interference
from loom.testing.conformance.suite import ALICE, BOB, an_episode, ids_of, listed
from loom.testing.fakes import FakeClock
from loom.testing.servers import postgres
from tests.stores.postgres.conftest import check_installed
from tests.stores.postgres.tables import empty_tables

pytestmark = pytest.mark.anyio

HOSTED = "CREATE ROLE hosted LOGIN CREATEROLE CREATEDB NOSUPERUSER NOBYPASSRLS"
OWNER = "CREATE ROLE owner LOGIN NOSUPERUSER"
BYPASS = "CREATE ROLE neon LOGIN CREATEROLE NOSUPERUSER BYPASSRLS"
GUEST = "CREATE ROLE guest LOGIN NOSUPERUSER"


@pytest.fixture(scope="module")
def bare():
    """A server on which nobody has run anything of Loom, with roles as hosts give them."""
    check_installed()
    with postgres() as server:
        run(server.url(), HOSTED, OWNER, BYPASS, GUEST)
        yield server


@pytest.fixture
def new(bare, request):
    """Makes an empty database for an owner; `vector` says whether the host has added pgvector to it."""
    made = []

    def database(owner, *, vector=True):
        name = f"db{len(made)}_{abs(hash(request.node.name)) % 10**6}"
        made.append(name)
        run(bare.url(), f"CREATE DATABASE {name} OWNER {owner}")
        if vector:
            run(bare.url(database=name), "CREATE EXTENSION vector")
        return name

    yield database
    for name in made:
        run(bare.url(), f"DROP DATABASE {name} WITH (FORCE)")
    run(bare.url(), "DROP ROLE IF EXISTS loom_app", "DROP ROLE IF EXISTS loom_owner")


def run(url, *statements):
    """Run statements; returns the rows of the last one."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        *_, found = [db.execute(statement) for statement in statements]
        return found.fetchall() if found.description else []


# -- the administrator of a host --------------------------------------------------------------------------


async def test_an_administrator_without_superuser_makes_both_roles(bare, new):
    name = new("hosted")
    for _ in range(2):
        assert await init_schema(bare.url("hosted", database=name), password="pw") == (False, ())
    async with PostgresStore(bare.url("loom_app", database=name)) as store:
        await store.put(ALICE, an_episode())
        assert await listed(store, ALICE) == ["e1"]
        assert store.notes == ()
        assert (await store.describe())["isolation"] == "row-level security forced, role loom_app (bound by it)"
    with pytest.raises(StoreError, match="allow_owner=True"):  # two roles: the administrator is not one of them
        await PostgresStore(bare.url("hosted", database=name)).count(ALICE)


async def test_an_administrator_who_may_not_add_pgvector_is_told_what_that_costs(bare, new):
    name = new("hosted", vector=False)
    assert await init_schema(bare.url("hosted", database=name)) == (False, (SLOWER,))
    async with PostgresStore(bare.url("loom_app", database=name)) as store:
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
        assert store.notes == (SLOWER,)
        assert "without pgvector" in (await store.describe())["server"]


async def test_an_owner_who_may_not_make_roles_is_told_of_one_role(bare, new):
    url = bare.url("owner", database=new("owner"))
    with pytest.raises(StoreError, match=r"CREATEROLE.*--one-role"):
        await init_schema(url)
    assert await init_schema(url, one_role=True) == (True, ())
    async with PostgresStore(url) as store:
        await store.put(ALICE, an_episode())


async def test_two_roles_do_not_become_one(bare, new):
    url = bare.url("hosted", database=new("hosted"))
    await init_schema(url)
    with pytest.raises(UsageError, match="two roles"):
        await init_schema(url, one_role=True)


# -- the owner of a database, alone -----------------------------------------------------------------------


async def test_an_owner_uses_an_empty_database_at_once(bare, new):
    url = bare.url("owner", database=new("owner"))
    async with PostgresStore(url) as store:
        await store.put(ALICE, an_episode())
        await store.put(BOB, an_episode("b1"))
        assert (await listed(store, ALICE), await listed(store, BOB)) == (["e1"], ["b1"])
        (said,) = store.notes
        assert "'owner' owns the tables" in said
        assert "could switch that off" in said
        assert "could switch it off" in (await store.describe())["isolation"]
    async with PostgresStore(url) as again:
        assert await listed(again, ALICE) == ["e1"]
    assert run(bare.url(), "SELECT 1 FROM pg_roles WHERE rolname = 'loom_app'") == []


async def test_row_security_binds_the_owner_too(bare, new):
    url = bare.url("owner", database=new("owner"))
    async with PostgresStore(url) as store:
        await store.put(ALICE, an_episode())
    assert run(url, "SELECT * FROM loom.records") == []
    assert run(url, "SET loom.owner = '00000000-0000-0000-0000-000000000000'", "SELECT * FROM loom.records") == []


async def test_row_security_that_the_owner_switched_off_is_refused(bare, new):
    url = bare.url("owner", database=new("owner"))
    async with PostgresStore(url) as store:
        await store.put(ALICE, an_episode())
    run(url, "ALTER TABLE loom.records NO FORCE ROW LEVEL SECURITY")
    with pytest.raises(StoreError, match="does not force row-level security on records"):
        await PostgresStore(url).count(ALICE)
    await init_schema(bare.url(database=url.rpartition("/")[2]))  # by an administrator, who sees that there is one role
    async with PostgresStore(url) as store:
        assert await listed(store, ALICE) == ["e1"]


async def test_sessions_and_memories_share_what_the_first_of_them_made(bare, new):
    url = bare.url("owner", database=new("owner"))
    async with (
        aclosing(PostgresCheckpointStore(url)) as sessions,
        aclosing(PostgresStore(url)) as memories,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sessions.list, ALICE.for_session("s1"))
        tasks.start_soon(memories.count, ALICE)


async def test_two_processes_that_come_first_both_succeed(bare, new):
    url = bare.url("owner", database=new("owner"))
    code = (
        "import sys, anyio; from loom import open_memory\n"
        "async def main():\n"
        "    async with open_memory(sys.argv[1], embedder='hash') as memory:\n"
        "        await memory.remember('tea', user_id=sys.argv[2])\n"
        "anyio.run(main)"
    )
    async with anyio.create_task_group() as tasks:
        for user in ("ann", "bob"):  # which raises where a process fails
            tasks.start_soon(anyio.run_process, [sys.executable, "-c", code, url, user])
    async with PostgresStore(url) as store:
        assert [user.user_id for user in await store.users()] == ["ann", "bob"]


async def test_an_older_schema_of_one_role_is_brought_up_when_it_is_opened(bare, new, monkeypatch):
    url = bare.url("owner", database=new("owner"))
    async with PostgresStore(url) as store:
        await store.put(ALICE, an_episode())
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE later (n int)"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    async with PostgresStore(url) as store:
        assert await listed(store, ALICE) == ["e1"]
    assert run(url, "SELECT count(*) FROM loom.later") == [(0,)]


async def test_a_role_that_may_not_create_is_told_what_to_run(bare, new):
    url = bare.url("guest", database=new("owner"))
    with pytest.raises(StoreError, match=r"'guest' may not make one; run `loom store init`.*GRANT CREATE ON DATABASE"):
        await PostgresStore(url).count(ALICE)


async def test_a_database_is_left_alone_where_that_was_said(bare, new):
    url = bare.url("owner", database=new("owner"))
    with pytest.raises(StoreError, match="no schema 'loom' of Loom; run `loom store init`"):
        await PostgresStore(url, make_schema=False).count(ALICE)
    assert run(url, "SELECT 1 FROM pg_namespace WHERE nspname = 'loom'") == []


# -- a role that sees everything --------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["postgres", "neon"])
async def test_a_role_that_sees_everything_acts_as_one_that_does_not(bare, new, role):
    name = new(role)
    url = bare.url(role, database=name)
    for _ in range(2):
        async with PostgresStore(url) as store:
            await store.put(ALICE, an_episode())
            assert await listed(store, ALICE) == ["e1"]
            (said,) = store.notes
            assert f"{role!r} sees everything and acts as 'loom_app'" in said
            assert (await store.describe())["isolation"] == "row-level security forced, role loom_app (bound by it)"
            async with store._server.transaction(BOB) as db:
                assert await (await db.execute("SELECT current_user, count(*) FROM records")).fetchall() == [
                    ("loom_app", 0)
                ]
    async with PostgresStore(bare.url("loom_app", database=name)) as store:
        assert await listed(store, ALICE) == ["e1"]
        assert store.notes == ()


# -- without pgvector -------------------------------------------------------------------------------------


async def test_plain_vectors_become_those_of_pgvector(bare, new):
    name = new("owner", vector=False)
    url = bare.url("owner", database=name)
    async with PostgresStore(url) as store:
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode(), an_episode("e2"))
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0], "e2": [0.6, 0.8]})
        before = await store.search(ALICE, Query(vector=[0.0, 1.0]))
        assert store.notes[1:] == (SLOWER,)
    run(bare.url(database=name), "CREATE EXTENSION vector")
    assert await init_schema(url) == (True, ())
    async with PostgresStore(url) as store:
        assert await store.search(ALICE, Query(vector=[0.0, 1.0])) == before
        assert len(store.notes) == 1
    assert await sweep_schema(bare.url(database=name)) == ()


@pytest.fixture(scope="module")
def own(bare):
    """A database without pgvector, for the laws."""
    import psycopg

    run(bare.url(), "CREATE DATABASE laws OWNER owner")
    with psycopg.connect(bare.url(database="laws"), autocommit=True) as db:
        yield db


def emptied(bare, own):
    """The URL of the owner of that database, without any row of anybody."""
    empty_tables(own)
    return bare.url("owner", database="laws")


class TestOneRoleWithoutPgvector(MemoryStoreSuite):
    """An owner alone, with plain arrays for vectors, keeps every law."""

    @pytest.fixture
    async def store(self, clock, bare, own):
        async with PostgresStore(emptied(bare, own), clock=clock) as store:
            yield store


class TestSessionsOfOneRole(CheckpointStoreSuite):
    """An owner alone keeps every law of sessions."""

    @pytest.fixture
    async def store(self, clock, bare, own):
        async with PostgresCheckpointStore(emptied(bare, own), clock=clock) as store:
            yield store


@pytest.mark.parametrize("vector", [True, False])
async def test_a_user_cannot_tell_whether_others_exist(bare, new, vector):
    async with PostgresStore(bare.url("owner", database=new("owner", vector=vector)), clock=FakeClock()) as store:
        await check_non_interference(store, 7, steps=60)
