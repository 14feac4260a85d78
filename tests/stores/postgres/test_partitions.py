"""Over eight partitions every law holds, every statement of a user touches one of them, and users can be moved."""

import itertools
import os
import signal
import subprocess
import sys
from functools import partial
from uuid import UUID

import anyio
import psycopg
import pytest

from loom.core.scope import Scope
from loom.errors import StoreError, StoreUnavailable, UsageError
from loom.protocols.memory_store import Query
from loom.stores.postgres import PostgresCheckpointStore, PostgresStore, init_schema, partitions
from loom.stores.postgres.connection import owner_of
from loom.stores.postgres.schema import MIGRATIONS, SCHEMA, TABLES, VERSION, as_owner
from loom.stores.postgres.search import index_large_users, index_name
from loom.testing.conformance import CheckpointStoreSuite, MemoryStoreSuite
from loom.testing.conformance.checkpoint_store import CHAT, save_turns, texts_of
from loom.testing.conformance.suite import ALICE, BOB, DAY, HOUR, a_job, an_episode, ids_of, listed
from loom.testing.fakes import START, FakeClock
from loom.testing.pooler import pooler
from tests.stores.postgres.conftest import PARTS, started
from tests.stores.postgres.plans import OF_ALL_USERS, Recorder, is_of_all_users, touched
from tests.stores.postgres.test_faults import check, under_load
from tests.stores.postgres.test_isolation import write_everything

pytestmark = pytest.mark.anyio

_known = set()


@pytest.fixture
def plans(parted, monkeypatch):
    """Every statement of the test is looked at: its plans, generic and for its values, touch one partition."""
    recorder = Recorder()
    with recorder.listening(monkeypatch):
        yield recorder
    check_plans(parted, recorder)


def check_plans(parted, recorder, known=_known):
    new = {
        statement: how
        for statement, how in recorder.sent.items()
        if statement not in known and not is_of_all_users(statement) and any(table in statement for table in TABLES)
    }
    if not new:
        return
    wide = {}
    with psycopg.connect(parted.app, autocommit=True, prepare_threshold=None) as db:
        for statement, (begin, values) in new.items():
            for generic in (False, True) if values else (False,):
                found = touched(db, begin, statement, values, generic=generic)
                if len(found) > 1:
                    wide[statement] = found
            known.add(statement)
    assert not wide


@pytest.fixture(scope="module")
def way():
    """A transaction pooler before the server."""
    with pooler(started().server.port) as found:
        yield found


def through(way, url):
    """The URL of a database, through the pooler."""
    return f"{url.replace(f':{started().server.port}/', f':{way.port}/')}?prepare=off"


class TestPartitioned(MemoryStoreSuite):
    """Through a transaction pooler, which leaves nothing of one transaction to the next."""

    @pytest.fixture
    async def store(self, clock, parted, plans, way):
        async with PostgresStore(through(way, parted.app), clock=clock) as store:
            yield store


class TestSessionsPartitioned(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock, parted, plans):
        async with PostgresCheckpointStore(parted.app, clock=clock) as store:
            yield store


async def test_a_transaction_gets_another_connection_each_time(parted, way):
    before = len(way.used)
    async with PostgresStore(through(way, parted.app), pool_size=1) as store:
        for number in range(8):
            await store.put(ALICE, an_episode(f"e{number}"))
    used = way.used[before + 1]  # the first client only looked at the server
    assert len(used) >= 8
    assert all(one != other for one, other in itertools.pairwise(used))


async def test_prepared_statements_do_not_survive_a_pooler(parted, way):
    """So that `prepare=off` is what lets the laws hold through it."""
    url = through(way, parted.app).replace("off", "on")
    async with PostgresStore(url, pool_size=1) as store:

        async def read_often():
            for _ in range(30):
                await store.get(ALICE, "e1")

        with pytest.raises(StoreError, match="prepared statement"):
            await read_often()


async def test_a_pooler_that_restarts_costs_nothing(parted, way):
    async with PostgresStore(through(way, parted.app), pool_size=3) as store:

        async def restart():
            await anyio.to_thread.run_sync(way.restart)

        load = await under_load(store, restart, rounds=4)
    assert not load.refused
    await check(load, parted.app)


async def test_a_statement_without_its_user_is_found_out(parted, monkeypatch):
    """What the laws are run with would notice one: a plan that touches more than one partition fails."""
    recorder = Recorder()
    with recorder.listening(monkeypatch):
        async with PostgresStore(parted.app) as store:
            await store._server.work(ALICE, lambda db: connection_run(db, "SELECT count(*) FROM records WHERE id = %s"))
    with pytest.raises(AssertionError, match="FROM records WHERE id"):
        check_plans(parted, recorder, set())


async def connection_run(db, sql):
    await db.execute(sql.encode(), ("e1",))


async def test_statements_that_no_law_sends_touch_one_partition(parted, plans):
    async with PostgresStore(parted.app) as store:
        for number in range(40):  # enough to join runs of postings
            await store.put(ALICE, an_episode(f"e{number}", f"tea {number}"))
        await store.write(ALICE, jobs=[a_job("j1"), a_job("j2")])
        assert len(await store.open_jobs(ALICE)) == 2
        for scope in (None, ALICE):
            await store.lease(now=START, until=START + HOUR, scope=scope, kinds=["digest"], in_order=True)
        server, end = store._server, anyio.current_time() + 60
        assert not await server._was_committed(ALICE, UUID(int=1), 40, end)
    looked = [statement for statement in plans.sent if "FROM marks" in statement or "AS o WHERE" in statement]
    assert len(looked) >= 2


async def test_the_statements_for_all_users_are_those_that_are_named(parted, monkeypatch):
    recorder = Recorder()
    with recorder.listening(monkeypatch):
        async with PostgresStore(parted.app) as store:
            await store.bind("test:3", 3)
            await store.put(ALICE, an_episode())
            await store.write(BOB, jobs=[a_job("j1", scope=BOB)])
            await store.lease(now=START, until=START + HOUR)
            assert await store.users() == (ALICE, BOB)
            assert [record.id for _, record in await store.unembedded()] == ["e1"]
            await store.rebind("test:4", 4)
            await store.describe()
            assert await store.job_counts(now=START) == {"due": 0, "leased": 1, "given_up": 0}
    assert {is_of_all_users(statement) for statement in recorder.sent} - {None} == set(OF_ALL_USERS)
    with psycopg.connect(parted.app, autocommit=True, prepare_threshold=None) as db:
        for statement, (begin, values) in recorder.sent.items():
            if is_of_all_users(statement):
                assert touched(db, begin, statement, values, generic=False) == set(range(PARTS)), statement


async def test_users_are_spread_and_each_is_in_one_partition_of_every_table(parted):
    async with PostgresStore(parted.app, clock=FakeClock()) as store:
        for number in range(24):
            await write_everything(store, Scope(user_id=f"user {number}"))
    of_owner = {}
    for table in TABLES:
        for owner, name in parted.execute(f"SELECT DISTINCT owner, tableoid::regclass::text FROM loom.{table}"):
            of_owner.setdefault(owner, set()).add(name.rpartition("_")[2])
    assert {len(places) for places in of_owner.values()} == {1}
    assert len(set().union(*of_owner.values())) > PARTS / 2


async def test_partitions_are_not_read_but_through_their_tables(parted):
    async with PostgresStore(parted.app) as store:
        await write_everything(store, ALICE)
    parts = [name for name, _ in parted.execute(partitions.PARTITIONS, SCHEMA)]
    assert len(parts) == PARTS * len(TABLES)
    with psycopg.connect(parted.app, autocommit=True) as db:
        db.execute("SELECT set_config('loom.owner', %s, false)", [str(owner_of(ALICE))])
        assert db.execute("SELECT count(*) FROM loom.records").fetchone() == (3,)
        for name in parts:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(f"SELECT 1 FROM loom.{name}".encode())
    with psycopg.connect(parted.admin, autocommit=True) as db:
        db.execute("SET ROLE loom_owner")
        assert {db.execute(f"SELECT count(*) FROM loom.{name}".encode()).fetchone() for name in parts} == {(0,)}


@pytest.mark.parametrize(
    ("loosened", "back", "message"),
    [
        ("GRANT SELECT ON loom.records_p3 TO loom_app", "REVOKE ALL ON loom.records_p3 FROM loom_app", "records_p3"),
        (
            "ALTER TABLE loom.keys_p1 NO FORCE ROW LEVEL SECURITY",
            "ALTER TABLE loom.keys_p1 FORCE ROW LEVEL SECURITY",
            "does not force row-level security on keys_p1",
        ),
    ],
)
async def test_a_partition_that_is_open_is_refused_until_init_closes_it(loosened, back, message, parted):
    with parted.changed(loosened, back), pytest.raises(StoreError, match=message):
        await PostgresStore(parted.app).count(ALICE)
    parted.execute(loosened)
    await init_schema(parted.admin)
    assert await PostgresStore(parted.app).count(ALICE) == 0


async def test_no_partition_keeps_a_sample_of_content(parted):
    async with PostgresStore(parted.app) as store:
        for number in range(30):
            await write_everything(store, Scope(user_id=f"user {number}"), word=f"zeppelin{number}")
    parted.execute("ANALYZE")
    kept = parted.execute("SELECT DISTINCT attname FROM pg_stats WHERE schemaname = 'loom' AND tablename ~ '_p[0-9]+$'")
    assert ("owner",) in kept
    assert {name for (name,) in kept} & {"text", "term", "entries", "data", "payload", "reason"} == set()


async def test_a_user_with_very_many_vectors_has_an_index_in_their_partition(parted):
    async with PostgresStore(parted.app) as store:
        await store.bind("test:2", 2)
        records = [an_episode(f"e{n:03}") for n in range(200)]
        for scope in (ALICE, BOB):
            await store.put(scope, *records)
            vectors = {record.id: [1.0, n / 200] for n, record in enumerate(records)}
            await store.put_vectors(scope, vectors if scope is ALICE else dict(list(vectors.items())[:50]))
        exact = await store.search(ALICE, Query(vector=[1.0, 0.5], limit=5))
        async with as_owner(parted.admin, SCHEMA, "here") as db:
            await index_large_users(db, SCHEMA, at_least=150)
        made = parted.execute("SELECT tablename, indexname FROM pg_indexes WHERE starts_with(indexname, 'near_')")
        (place,) = parted.execute(
            "SELECT DISTINCT tableoid::regclass::text FROM loom.vectors WHERE owner = %s", owner_of(ALICE)
        )
        assert made == [(place[0].rpartition(".")[2], index_name(owner_of(ALICE)))]
        assert await store.search(ALICE, Query(vector=[1.0, 0.5], limit=5)) == exact
        await store.forget(ALICE)
    async with as_owner(parted.admin, SCHEMA, "here") as db:
        await index_large_users(db, SCHEMA, at_least=150)


async def test_a_user_with_very_many_jobs_does_not_keep_others_waiting(parted):
    async with PostgresStore(parted.app) as store:
        await store.write(ALICE, jobs=[a_job(f"a{n:03}") for n in range(50)])
        others = [Scope(user_id=f"user {number}") for number in range(5)]
        for number, scope in enumerate(others):
            await store.write(scope, jobs=[a_job(f"z{number}", scope=scope, run_at=START + HOUR)])
        leased = []
        while leases := await store.lease(now=START + DAY, until=START + 2 * DAY):
            leased += [lease.job.id for lease in leases]
        assert leased[:6] == ["a000", *(f"z{number}" for number in range(5))]
        assert [id for id in leased if id.startswith("a")] == [f"a{n:03}" for n in range(50)]


# Moving users to another number of partitions.


@pytest.fixture
def moved(parted):
    """A database whose users may be moved."""
    parted.execute("DROP DATABASE IF EXISTS moved WITH (FORCE)")
    parted.execute("CREATE DATABASE moved")
    found = type(parted)(parted.server, None, "moved")
    yield found
    parted.execute("DROP DATABASE moved WITH (FORCE)")


async def fill(url, users):
    async with PostgresStore(url, clock=FakeClock()) as store, PostgresCheckpointStore(url) as sessions:
        for number in range(users):
            await write_everything(store, Scope(user_id=f"user {number}"), f"zeppelin{number}")
        await save_turns(sessions, CHAT, "c1", "c2")  # of somebody who has nothing but sessions


async def check_all(url, users):
    async with PostgresStore(url, clock=FakeClock()) as store, PostgresCheckpointStore(url) as sessions:
        for number in range(users):
            scope = Scope(user_id=f"user {number}")
            assert await listed(store, scope) == ["block:persona", "e1", "f1"]
            assert "e1" in await ids_of(store, scope, f"zeppelin{number}")
            assert (await store.pending(scope), len(await store.dead_letters(scope))) == (1, 1)
            hit, *_ = await store.search(scope, Query(vector=[1.0, 0.0, 0.0]))
            assert (hit.item.id, hit.score) == ("e1", 1.0)
        assert len(await texts_of(sessions, CHAT, "c2")) == 4


def everything(server):
    return {table: sorted(map(str, server.execute(f"SELECT * FROM loom.{table}"))) for table in TABLES}


async def test_users_are_moved_from_one_number_to_another_and_nothing_is_lost(moved, monkeypatch):
    monkeypatch.setattr(partitions, "_BATCH", 5)
    await init_schema(moved.admin)
    await fill(moved.app, 12)
    before, told = everything(moved), []
    async with PostgresStore(moved.app) as store:
        for amount in (4, 7, 1, None, 2):
            await init_schema(moved.admin, partitions=amount, progress=lambda *done: told.append(done))
            assert everything(moved) == before
            assert len(await listed(store, Scope(user_id="user 3"))) == 3  # one that was open all the time
        assert (await store.describe())["schema"] == f"loom, format {VERSION}, 2 partitions"
    assert told[:3] == [(5, 12), (10, 12), (12, 13)]
    await check_all(moved.app, 12)
    assert moved.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'loom')") == [("loom",)]


CHILD = """
import os, signal, sys
import anyio
from loom.stores.postgres import init_schema, partitions

steps, move = int(sys.argv[2]), partitions._move_batch
partitions._BATCH = 3

async def batch(db, plan):
    global steps
    if steps == 0:
        print("here", flush=True)
        sys.stdin.readline()
    steps -= 1
    return await move(db, plan)

partitions._move_batch = batch
anyio.run(lambda: init_schema(sys.argv[1], partitions=5))
"""


@pytest.mark.parametrize("batches", [0, 2])
async def test_a_move_that_is_killed_goes_on_and_stores_refuse_until_then(batches, moved, monkeypatch):
    await init_schema(moved.admin)
    await fill(moved.app, 9)
    before = everything(moved)
    async with PostgresStore(moved.app) as store:
        assert await store.count(Scope(user_id="user 1")) == 3
        command = [sys.executable, "-c", CHILD, moved.admin, str(batches)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
        try:
            assert process.stdout.readline() == "here\n"
            os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
            process.communicate()
        for call in (store.count(ALICE), store.put(ALICE, an_episode()), store.search(ALICE, Query(text="tea"))):
            with pytest.raises(StoreUnavailable, match="other partitions"):
                await call
        with pytest.raises(StoreUnavailable, match="being moved to 5 partitions"):
            await PostgresStore(moved.app).count(ALICE)
        with pytest.raises(UsageError, match="--partitions 5"):
            await init_schema(moved.admin, partitions=3)
        told = []
        await init_schema(moved.admin, progress=lambda *done: told.append(done))
        assert told[0][0] > 3 * batches, "progress starts where it was"
        assert everything(moved) == before
        assert await store.count(Scope(user_id="user 1")) == 3
        assert (await store.describe())["schema"] == f"loom, format {VERSION}, 5 partitions"
    await check_all(moved.app, 9)


async def test_rows_that_did_not_arrive_are_not_dropped(moved, monkeypatch):
    """Should a table be copied badly, the old one stays, and the move says so."""
    await init_schema(moved.admin)
    await fill(moved.app, 2)
    copied = partitions._move_batch

    async def lossy(db, plan):
        done = await copied(db, plan)
        await db.execute(b"DELETE FROM loom_moved_to.keys")
        return done

    monkeypatch.setattr(partitions, "_move_batch", lossy)
    with pytest.raises(StoreError, match="2 rows of keys were moved, and 0 arrived"):
        await init_schema(moved.admin, partitions=2)
    assert moved.execute("SELECT count(*) FROM loom_moved_from.keys") == [(2,)]


async def test_one_role_has_partitions_too(moved):
    moved.execute("DROP ROLE IF EXISTS alone")
    moved.execute("CREATE ROLE alone LOGIN")
    moved.execute("GRANT CREATE ON DATABASE moved TO alone")
    url = moved.server.url("alone", database="moved")
    try:
        await init_schema(url, one_role=True, partitions=3)
        await fill(url, 4)
        with psycopg.connect(url, autocommit=True) as db:
            assert db.execute("SELECT count(*) FROM loom.records_p0").fetchone() == (0,)
        await init_schema(url, partitions=2)
        await check_all(url, 4)
    finally:
        moved.execute("DROP OWNED BY alone CASCADE")
        moved.execute("DROP ROLE alone")


@pytest.mark.parametrize("amount", [0, -1, 1025])
async def test_a_number_of_partitions_that_cannot_be_is_refused(amount):
    with pytest.raises(UsageError, match="from 1 to 1024"):
        await init_schema("postgresql:", partitions=amount)


async def test_two_who_move_users_at_once_take_turns(moved, monkeypatch):
    monkeypatch.setattr(partitions, "_BATCH", 2)
    await init_schema(moved.admin)
    await fill(moved.app, 9)
    before = everything(moved)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(partial(init_schema, moved.admin, partitions=3))
    assert everything(moved) == before
    await check_all(moved.app, 9)


def test_every_table_of_users_is_partitioned_by_its_script():
    script = "".join(partitions.partitioned(one, TABLES) for one in MIGRATIONS)
    assert script.count("PARTITION BY HASH (owner)") == len(TABLES)
