"""While the server, the network or the pool fails: nothing acknowledged is lost, nothing is doubled, nobody waits long."""

import os
import signal
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import anyio
import anyio.to_thread
import psycopg
import pytest

from loom.core.scope import Scope
from loom.errors import StoreUnavailable
from loom.protocols.memory_store import Query
from loom.stores.postgres import PostgresStore, init_schema, records
from loom.testing.conformance.suite import ALICE, HOUR, a_job, an_episode, listed
from loom.testing.fakes import START
from loom.testing.servers import postgres_pair, proxy
from tests.stores.postgres.conftest import check_installed, new_server, waits_for_a_lock
from tests.timing import LONG, pass_time, time_flies, until

pytestmark = pytest.mark.anyio

WRITERS = 4


class Load:
    """Writers that put a record with a job, each again and again with the same id until it is acknowledged."""

    def __init__(self, store):
        self.store = store
        self.acknowledged = {}
        self.refused = 0
        self.is_over = False
        self._grown = anyio.Event()

    async def write(self, number):
        place = 0
        while not self.is_over:
            id = f"e{number}.{place}"
            try:
                await self.store.write(user(number), put=[an_episode(id)], jobs=[a_job(id, scope=user(number))])
                self.acknowledged.setdefault(number, []).append(id)
                place += 1
                self._grown.set()
            except StoreUnavailable:
                self.refused += 1

    async def after(self, amount):
        """Wait until each writer has had so many more acknowledged."""
        due = {number: len(self.acknowledged.get(number, ())) + amount for number in range(WRITERS)}
        while any(len(self.acknowledged.get(number, ())) < enough for number, enough in due.items()):
            self._grown = anyio.Event()
            await self._grown.wait()


def user(number):
    return Scope(user_id=f"user {number}")


async def under_load(store, fault, *, rounds=3, is_hit=lambda load: True):
    """Let the fault happen again and again while others write, at least until it hit something."""
    load = Load(store)
    async with anyio.create_task_group() as tasks:
        for number in range(WRITERS):
            tasks.start_soon(load.write, number)
        while rounds > 0 or not is_hit(load):
            await load.after(5)
            await fault()
            rounds -= 1
        await load.after(5)
        load.is_over = True
    return load


async def check(load, url):
    """Every acknowledged record is there once, found by its words, with one job."""
    async with PostgresStore(url) as store:
        for number, ids in load.acknowledged.items():
            kept = await listed(store, user(number))
            assert len(kept) == len(set(kept))
            assert set(ids) <= set(kept)
            assert len(set(kept) - set(ids)) <= 1  # the last one may have been written without an answer
            hits = await store.search(user(number), Query(text="tea", limit=10_000))
            assert sorted(hit.item.id for hit in hits) == sorted(kept)
            leases = await store.lease(now=START, until=START + HOUR, limit=10_000, scope=user(number))
            assert sorted(lease.job.id for lease in leases) == sorted(kept)


@pytest.fixture
def own():
    """A server of one test, which may be hurt."""
    with new_server(fsync="on") as server:
        yield server


async def test_connections_that_are_killed_cost_nothing(own):
    async def kill():
        with psycopg.connect(own.url(), autocommit=True) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'loom_app'")

    async with PostgresStore(own.url("loom_app"), pool_size=3) as store:
        load = await under_load(store, kill, rounds=8)
    await check(load, own.url("loom_app"))


async def crash(own):
    """What `pg_ctl stop -m immediate` does to every process but the first, which starts them again.

    On a busy machine the server may still be recovering from the crash before this one.
    """
    opened = []

    def is_back():
        with suppress(psycopg.OperationalError):
            opened.append(psycopg.connect(own.url(), autocommit=True))
        return bool(opened)

    await until(is_back)
    with opened[0] as db:
        os.kill(db.info.backend_pid, signal.SIGKILL)


async def test_a_server_that_crashes_and_comes_back_has_what_it_acknowledged(own):
    async with PostgresStore(own.url("loom_app"), pool_size=3) as store:
        load = await under_load(store, partial(crash, own))
    assert not load.refused  # each call that was hit was made again
    assert "automatic recovery in progress" in (own.folder / "log").read_text()
    await check(load, own.url("loom_app"))


@contextmanager
def full(url):
    """All connections that others may have are taken, by clients that do nothing."""
    with ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(psycopg.connect(url))
        yield


@pytest.fixture
def small():
    """A server with few connections."""
    with new_server(max_connections="12") as server:
        yield server


async def test_a_full_server_is_told_and_what_is_there_goes_on(small):
    """Who has a connection goes on with it, who has none is told that it is full, and served when it is not."""
    url = small.url("loom_app")
    async with PostgresStore(url, pool_size=4) as busy, PostgresStore(url, timeout=LONG) as idle:
        await busy.put(ALICE, an_episode("e0"))
        with full(url):
            async with anyio.create_task_group() as tasks:
                for number in range(1, 13):  # more callers than connections, and no more to be had
                    tasks.start_soon(busy.put, ALICE, an_episode(f"e{number}"))
            with pytest.raises(StoreUnavailable, match=r"no connection left.*pool_size") as new:
                await PostgresStore(url).put(ALICE, an_episode("new"))
            assert new.value.retryable

            async def wait():
                with pytest.raises(StoreUnavailable, match=r"no connection left.*pool_size") as caught:
                    await idle.put(ALICE, an_episode("waiting"))
                assert caught.value.retryable

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await until(lambda: idle._server._refused)
                pass_time()
        await idle.put(ALICE, an_episode("later"))
        assert sorted(await listed(idle, ALICE)) == sorted(["later", *(f"e{number}" for number in range(13))])


async def test_a_role_that_has_its_connections_is_told_so(small):
    connections = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'loom_app'"
    url = small.url("loom_app")
    with psycopg.connect(small.url(), autocommit=True) as db:
        db.execute("ALTER ROLE loom_app CONNECTION LIMIT 1")
        with psycopg.connect(url), pytest.raises(StoreUnavailable, match=r"no connection left.*too many connections"):
            await PostgresStore(url).put(ALICE, an_episode())
        await until(lambda: db.execute(connections).fetchone() == (0,))  # the server ends what is closed a moment later
    async with PostgresStore(url) as store:
        await store.put(ALICE, an_episode())


async def test_a_server_that_fills_up_and_empties_under_load_loses_and_doubles_nothing(small):
    url = small.url("loom_app")

    async def fill():
        with full(url):
            with psycopg.connect(small.url(), autocommit=True) as db:
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'load'")
            with full(url):  # what became free, where the load was not faster
                pass

    async with PostgresStore(f"{url}?application_name=load", pool_size=3) as store:
        load = await under_load(store, fill)
    await check(load, url)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["in good order", "as a crash"])
async def test_a_server_that_is_restarted_under_load_loses_and_doubles_nothing(how):
    """All of it is away for a while, unlike after a crash of one process: nobody listens at its port."""
    check_installed()
    with postgres_pair(sync=False, fsync="on") as pair:
        await init_schema(pair.primary.url())
        url = pair.primary.url("loom_app")

        async def restart():
            def away():
                process = pair.primary._process
                process.send_signal(how)
                process.wait()
                with pytest.raises(psycopg.OperationalError):
                    psycopg.connect(url)
                pair.primary.start()

            await anyio.to_thread.run_sync(away)

        async with PostgresStore(url, pool_size=3, timeout=LONG) as store:
            load = await under_load(store, restart)
        assert not load.refused, "each call that was hit was made again"
        await check(load, url)


async def test_a_connection_that_ends_among_several_statements_is_lost_as_any_other(server):
    """The driver then says that it cannot leave its pipeline, and not that the server has ended."""
    attempts = []

    async def work(db):
        attempts.append(db)
        if len(attempts) == 1:
            db.pgconn.enter_pipeline_mode()
            db.pgconn.send_query_params(b"SELECT 1", [])
            db.pgconn.exit_pipeline_mode()
        return (await (await db.execute("SELECT 7")).fetchone())[0]

    async with PostgresStore(server.app) as store:
        assert await store._server.work(ALICE, work, writes=True) == 7
    assert len(attempts) == 2
    assert attempts[0].closed


class Careless(PostgresStore):
    """Makes no call again, and acknowledges what was lost."""

    lies = 0

    async def write(self, scope, **changes):
        try:
            async with self._server.transaction(scope, writes=True) as db:
                return await records.change(db, scope, put=changes["put"], jobs=changes["jobs"])
        except StoreUnavailable:
            self.lies += 1
            return 0


async def test_a_store_that_acknowledges_what_it_did_not_write_is_found_out(own):
    async with Careless(own.url("loom_app"), pool_size=3) as store:
        load = await under_load(store, partial(crash, own), rounds=1, is_hit=lambda _: store.lies)
    with pytest.raises(AssertionError):
        await check(load, own.url("loom_app"))


async def test_a_dropped_network_costs_nothing(own):
    async with proxy("127.0.0.1", own.port) as way:
        url = own.url("loom_app").replace(str(own.port), str(way.port))

        async def drop():
            way.drop()

        async with PostgresStore(url, pool_size=3) as store:
            load = await under_load(store, drop, rounds=8)
    await check(load, own.url("loom_app"))


async def test_a_silent_network_is_given_up_in_time(server):
    """Half-open: nothing says that the other side is gone. The first call after it speaks again works."""
    async with proxy("127.0.0.1", server.server.port) as way:
        url = server.app.replace(str(server.server.port), str(way.port))
        async with PostgresStore(url, pool_size=1, timeout=LONG) as store:
            await store.put(ALICE, an_episode())
            way.freeze()
            for call in (
                store.get(ALICE, "e1"),
                store.put(ALICE, an_episode("e2")),
                store.lease(now=START, until=START + HOUR),
            ):
                async with time_flies():
                    with pytest.raises(StoreUnavailable, match="try again"):
                        await call
            way.thaw()
            while await listed_or_none(store) is None:
                pass
            assert "e1" in await listed(store, ALICE)


async def test_a_silent_server_is_given_up_at_the_first_call(server):
    async with proxy("127.0.0.1", server.server.port) as way:
        way.freeze()
        store = PostgresStore(server.app.replace(str(server.server.port), str(way.port)), timeout=LONG)
        async with time_flies():
            with pytest.raises(StoreUnavailable, match="too long"):
                await store.get(ALICE, "e1")
        way.thaw()
        assert await store.get(ALICE, "e1") is None
        await store.aclose()


async def test_nobody_waits_for_the_deadlines_of_others(server):
    """One hour is enough for three hundred first calls; one after another they would take three hundred."""
    begun, refused = [], []

    async def get(store):
        begun.append(store)
        with pytest.raises(StoreUnavailable):
            await store.get(ALICE, "e1")
        refused.append(store)

    async with proxy("127.0.0.1", server.server.port) as way:
        way.freeze()
        store = PostgresStore(server.app.replace(str(server.server.port), str(way.port)), timeout=LONG)
        async with anyio.create_task_group() as tasks:
            for _ in range(300):
                tasks.start_soon(get, store)
            await until(lambda: len(begun) == 300)
            pass_time()
        assert len(refused) == 300
        await store.aclose()


async def listed_or_none(store):
    try:
        return await listed(store, ALICE)
    except StoreUnavailable:
        return None


async def test_more_callers_than_connections_all_get_their_turn(server):
    async with PostgresStore(server.app, pool_size=2, timeout=LONG) as store, anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(store.put, user(number % 7), an_episode(f"e{number}"))
    async with PostgresStore(server.app) as store:
        assert sum([await store.count(user(number)) for number in range(7)]) == 60


async def test_when_all_connections_are_held_callers_are_refused_in_time_and_then_served(server):
    async with PostgresStore(server.app, pool_size=2, timeout=LONG) as store:
        pool = await store._server.open()
        refused = []

        async def put(number):
            try:
                await store.put(ALICE, an_episode(f"e{number}"))
            except StoreUnavailable as error:
                refused.append(str(error))

        async with pool.connection(), pool.connection(), anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(put, number)
            await until(lambda: pool.get_stats()["requests_waiting"] == 10)
            pass_time()
        assert len(refused) == 10
        assert all("larger pool" in words for words in refused)
        await put(11)
        assert await listed(store, ALICE) == ["e11"]


async def test_a_call_that_is_cancelled_leaves_its_connection_usable(server):
    async with PostgresStore(server.app, pool_size=1) as store, PostgresStore(server.app) as other:
        for _ in range(5):
            async with other._server.transaction(ALICE, writes=True), anyio.create_task_group() as tasks:
                tasks.start_soon(store.put, ALICE, an_episode())
                await waits_for_a_lock(server)
                tasks.cancel_scope.cancel()
        await store.put(ALICE, an_episode("e2"))
        assert await listed(store, ALICE) == ["e2"]
