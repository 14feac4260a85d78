"""The Postgres store keeps every law of a memory store, and those of its own."""

import random
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given, settings

from loom.core.filter import Eq, In
from loom.errors import StoreUnavailable, UsageError
from loom.protocols.memory_store import (
    ExportsKeys,
    KeepsJobs,
    KeepsKeys,
    KeepsVectors,
    MemoryStore,
    Prunes,
    Query,
    Reembeds,
    Touches,
)
from loom.stores import _search
from loom.stores.inmemory import InMemoryStore
from loom.stores.postgres import PostgresStore, search
from loom.stores.postgres.connection import one
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.testing.conformance.isolation import observe, random_trace
from loom.testing.conformance.machines import FILTERS, RECORDS
from loom.testing.conformance.suite import ALICE, BOB, DAY, HOUR, a_block, a_job, an_episode, ids_of, listed
from loom.testing.fakes import START, FakeClock
from tests.stores.postgres.conftest import started, waits_for_a_lock
from tests.timing import LONG, pass_time, time_flies

pytestmark = pytest.mark.anyio

# Checked by pyright, signatures included.
as_memory: MemoryStore = PostgresStore("postgresql:")
as_pruning: Prunes = PostgresStore("postgresql:")
as_touching: Touches = PostgresStore("postgresql:")
as_vectors: KeepsVectors = PostgresStore("postgresql:")
as_reembedding: Reembeds = PostgresStore("postgresql:")
as_keys: KeepsKeys = PostgresStore("postgresql:")
as_handing_over: ExportsKeys = PostgresStore("postgresql:")
as_jobs: KeepsJobs = PostgresStore("postgresql:")


class TestPostgres(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, server):
        async with PostgresStore(server.app, clock=clock) as store:
            yield store


class PostgresMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        server = started()
        server.empty()
        async with PostgresStore(server.app, clock=clock) as store:
            yield store


TestPostgresModel = PostgresMachine.TestCase
TestPostgresModel.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


def rounded(value):
    """The same value, numbers cut to what 32-bit vectors can say."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("seed", range(12))
async def test_it_answers_like_the_store_in_memory(seed, server):
    trace = random_trace(random.Random(seed), steps=60)
    scopes = {"A": ALICE, "B": BOB}
    async with PostgresStore(server.app, clock=FakeClock()) as store:
        seen = await observe(store, trace, scopes)
    assert len(seen) > 10
    assert rounded(seen) == rounded(await observe(InMemoryStore(clock=FakeClock()), trace, scopes))


@pytest.mark.parametrize("seed", range(20, 25))
async def test_it_answers_the_same_when_runs_of_postings_fill_and_join(seed, server, monkeypatch):
    monkeypatch.setattr(_search, "RUN", 2)
    monkeypatch.setattr(_search, "LARGER_RUNS", (8, 4))
    trace = random_trace(random.Random(seed), steps=120)
    scopes = {"A": ALICE, "B": BOB}
    async with PostgresStore(server.app, clock=FakeClock()) as store:
        seen = await observe(store, trace, scopes)
        assert server.execute("SELECT 1 FROM loom.postings GROUP BY owner HAVING max(run) > 8")
        for scope in scopes.values():
            await store.delete(scope, *await listed(store, scope))
    assert rounded(seen) == rounded(await observe(InMemoryStore(clock=FakeClock()), trace, scopes))
    assert {table for table, amount in server.rows().items() if amount} <= {"users", "jobs", "marks"}
    assert server.execute("SELECT DISTINCT records FROM loom.users") == [(0,)]


async def test_of_records_that_are_as_near_as_each_other_the_first_by_id_are_found(server):
    async with PostgresStore(server.app) as store:
        await store.bind("test:2", 2)
        for number in reversed(range(30)):
            await store.put(ALICE, an_episode(f"e{number:02}"))
            await store.put_vectors(ALICE, {f"e{number:02}": [1.0, 0.0]})
        found = await store.search(ALICE, Query(vector=[1.0, 0.0], limit=3))
        assert [hit.item.id for hit in found] == ["e00", "e01", "e02"]


@settings(max_examples=25, deadline=None)
@given(RECORDS, FILTERS)
def test_a_filter_means_the_same_as_in_memory(records, where):
    blocks = {record.id for record in records if record.kind == "block"}
    kept = list({record.id: record for record in records if record.id not in blocks}.values())

    async def found(store):
        await store.put(ALICE, an_episode("x"), *kept)
        return await store.list(ALICE, where=where), await store.search(ALICE, Query(where=where, history=True))

    async def both():
        server = started()
        server.empty()
        async with PostgresStore(server.app, clock=FakeClock()) as store:
            assert await found(store) == await found(InMemoryStore(clock=FakeClock()))

    anyio.run(both)


async def test_what_was_written_is_there_for_every_other_store(server):
    async with PostgresStore(server.app) as one, PostgresStore(server.app) as other:
        await one.put(ALICE, an_episode())
        assert await ids_of(other, ALICE, "tea") == ["e1"]
        await other.delete(ALICE, "e1")
        assert await one.get(ALICE, "e1") is None


async def test_writers_of_many_stores_lose_nothing(server):
    """Blocks rise one by one, touches all count, and the word counts are exact."""
    stores = [PostgresStore(server.app, pool_size=2, clock=FakeClock()) for _ in range(3)]
    await stores[0].put(ALICE, an_episode("shared"))

    async def work(store, number):
        for turn in range(5):
            await store.put(ALICE, an_episode(f"e{number}.{turn}", f"tea number {turn}"))
            await store.touch(ALICE, "shared", at=START + DAY)

    async with anyio.create_task_group() as tasks:
        for number, store in enumerate(stores * 2):
            tasks.start_soon(work, store, number)
    (shared,) = await stores[0].list(ALICE, where=Eq("id", "shared"))
    assert (shared.accesses, await stores[1].count(ALICE)) == (30, 31)
    assert server.execute("SELECT texts, words FROM loom.lengths") == [(31, 3 * 31)]
    for store in stores:
        await store.aclose()


async def test_workers_of_many_stores_share_the_jobs(server):
    """Each job is done once, by one of the workers."""
    stores = [PostgresStore(server.app, pool_size=2) for _ in range(4)]
    await stores[0].write(ALICE, jobs=[a_job(f"j{n:02}") for n in range(40)])
    done = []

    async def work(store):
        while leases := await store.lease(now=START, until=START + HOUR, limit=3):
            for lease in leases:
                await store.finish(lease, put=[an_episode(f"done {lease.job.id}")])
                done.append(lease.job.id)

    async with anyio.create_task_group() as tasks:
        for store in stores:
            tasks.start_soon(work, store)
    assert sorted(done) == [f"j{n:02}" for n in range(40)]
    assert (await stores[0].count(ALICE), await stores[0].pending(ALICE)) == (40, 0)
    for store in stores:
        await store.aclose()


async def test_forgetting_and_writing_at_once_leaves_whole_records(server):
    """Whatever comes last, what is there is indexed, and what is gone is not."""
    async with PostgresStore(server.app) as store:

        async def write(number):
            await store.put(ALICE, an_episode(f"e{number}"), an_episode(f"f{number}"))

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(write, number)
                if number % 4 == 3:
                    tasks.start_soon(store.forget, ALICE)
        left = await listed(store, ALICE)
        assert sorted(await ids_of(store, ALICE, "tea")) == left
        assert len(left) % 2 == 0
        await store.forget(ALICE)
        assert set(server.rows().values()) == {0}


async def forgotten_and_written_anew(store):
    await store.forget(ALICE)
    await store.put(ALICE, an_episode("other", "a zebra"))


async def written_anew(store):
    await store.put(ALICE, an_episode("e1", "a zebra"))


async def embedded_anew(store):
    await store.rebind("test:2", 2)
    await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})


@pytest.mark.parametrize("change", [forgotten_and_written_anew, written_anew, embedded_anew])
async def test_a_search_sees_one_state_whatever_is_written_meanwhile(change, server, monkeypatch):
    parts, changes = search.index.parts_and_nearest, [change]

    async def then_changed(*asked):
        found = await parts(*asked)
        if changes:
            await changes.pop()(other)
        return found

    monkeypatch.setattr(search.index, "parts_and_nearest", then_changed)
    async with PostgresStore(server.app) as store, PostgresStore(server.app) as other:
        await store.bind("test:3", 3)
        await store.put(ALICE, an_episode("e1", "green tea"))
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0, 0.0]})
        (hit,) = await store.search_hybrid(ALICE, Query(text="tea", vector=[1.0, 0.0, 0.0]), near=5)
        assert (hit.item.text, set(hit.why)) == ("green tea", {"bm25", "dense"})
        assert not changes


async def test_writers_take_turns_whatever_isolation_the_server_prefers(server):
    preferred = "ALTER ROLE loom_app SET default_transaction_isolation TO {}"
    with server.changed(preferred.format("'serializable'"), preferred.format("DEFAULT")):
        async with PostgresStore(server.app) as store:
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(store.put, ALICE, an_episode(f"e{number}"))
            assert len(await ids_of(store, ALICE, "tea")) == 8


async def test_a_killed_connection_costs_nothing_that_was_acknowledged(server):
    async with PostgresStore(server.app, pool_size=2) as store:
        await store.put(ALICE, an_episode())
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'loom_app'")
        await store.put(ALICE, an_episode("e2"))
        assert await listed(store, ALICE) == ["e1", "e2"]


async def test_a_connection_killed_inside_a_call_is_spoken_and_writes_nothing(server):
    async with PostgresStore(server.app, pool_size=1) as store:
        await store.put(ALICE, an_episode())

        async def killed():
            async with store._server.transaction(ALICE, writes=True) as db:
                await db.execute("DELETE FROM records")
                server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'loom_app'")
                await db.execute("SELECT 1")

        with pytest.raises(StoreUnavailable, match="try again"):
            await killed()
        assert await listed(store, ALICE) == ["e1"]


async def test_a_pool_without_a_free_connection_gives_up_in_time(server):
    async with PostgresStore(server.app, pool_size=1, timeout=LONG) as store:
        pool = await store._server.open()
        async with pool.connection(), time_flies():
            with pytest.raises(StoreUnavailable, match="larger pool"):
                await store.get(ALICE, "e1")
        assert await store.get(ALICE, "e1") is None


async def test_a_statement_that_takes_too_long_is_stopped(server):
    """Also one that waits for another writer of the same user."""

    async def put(store):
        with pytest.raises(StoreUnavailable, match="too long"):
            await store.put(ALICE, an_episode())

    async with PostgresStore(server.app, timeout=LONG) as store, PostgresStore(server.app, timeout=2 * LONG) as other:
        async with other._server.transaction(ALICE, writes=True), anyio.create_task_group() as tasks:
            tasks.start_soon(put, store)
            await waits_for_a_lock(server)
            pass_time()
        await store.put(ALICE, an_episode())
        assert await store.count(ALICE) == 1


async def test_the_server_too_stops_a_statement_that_takes_too_long(server):
    """A client that is gone cannot; each transaction tells the server how long it may take."""
    async with PostgresStore(server.app, timeout=30) as store:

        async def sleep():
            async with store._server.transaction(ALICE) as db:
                for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
                    assert await one(db, f"SHOW {limit}") == ("30s",)
                await db.execute("SET LOCAL statement_timeout = 1")
                await db.execute("SELECT pg_sleep(3600)")

        with pytest.raises(StoreUnavailable, match="too long"):
            await sleep()


async def test_ids_that_cannot_be_stored_are_refused_in_words(server):
    async with PostgresStore(server.app) as store:
        for id in ("a\0b", "a\ud800"):
            with pytest.raises(UsageError, match="cannot hold"):
                await store.get(ALICE, id)


async def test_a_kind_too_long_for_the_index_is_refused(server):
    async with PostgresStore(server.app) as store:
        await store.put(ALICE, an_episode())
        await store.put_keys(ALICE, {"e1": {"k" * 512: "zeppelin"}})
        assert await ids_of(store, ALICE, "zeppelin") == ["e1"]
        with pytest.raises(UsageError, match="513 bytes"):
            await store.put_keys(ALICE, {"e1": {"k" * 513: "tea"}})


async def test_a_filter_of_very_many_values_is_still_answered(server):
    async with PostgresStore(server.app) as store:
        await store.put(ALICE, an_episode(), a_block())
        where = In("id", ("e1", *(f"no {n}" for n in range(70_000))))
        assert await listed(store, ALICE, where) == ["e1"]


async def test_the_reason_of_a_dead_letter_survives_any_character(server):
    async with PostgresStore(server.app) as store:
        await store.write(ALICE, jobs=[a_job(payload={"text": "\0 \ud800"})])
        (lease,) = await store.lease(now=START, until=START + HOUR)
        assert lease.job.payload == {"text": "\0 \ud800"}
        await store.fail(lease, reason="bad \0 \ud800", now=START, retry_at=None)
        assert [letter.reason for letter in await store.dead_letters(ALICE)] == ["bad \ufffd ?"]


async def test_a_closed_store_says_so(server):
    store = PostgresStore(server.app)
    await store.aclose()
    with pytest.raises(UsageError, match="closed"):
        await store.get(ALICE, "e1")


@pytest.mark.parametrize("wrong", [{"pool_size": 0}, {"timeout": 0}, {"schema": ""}, {"dsn": " "}])
def test_nonsense_is_refused_at_once(wrong):
    with pytest.raises(UsageError):
        PostgresStore(**{"dsn": "postgresql:"} | wrong)


def test_importing_takes_no_driver():
    code = "import loom, loom.stores.postgres.store, sys; assert 'psycopg' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
