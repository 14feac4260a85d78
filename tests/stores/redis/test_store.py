"""The Redis store keeps every law of a memory store, on a real server."""

import math
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from hypothesis import settings

from loom.core.filter import Eq
from loom.core.scope import Scope
from loom.engine import open_memory
from loom.errors import StoreError, UsageError
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
from loom.stores.redis import RedisStore, search
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.testing.conformance.suite import ALICE, BOB, DAY, HOUR, a_block, a_fact, a_job, an_episode, ids_of
from loom.testing.fakes import START
from tests.stores.redis.conftest import new_store, twin_of

# Checked by pyright, signatures included.
as_memory: MemoryStore = RedisStore("redis://localhost")
as_pruning: Prunes = RedisStore("redis://localhost")
as_touching: Touches = RedisStore("redis://localhost")
as_vectors: KeepsVectors = RedisStore("redis://localhost")
as_reembedding: Reembeds = RedisStore("redis://localhost")
as_keys: KeepsKeys = RedisStore("redis://localhost")
as_handing_over: ExportsKeys = RedisStore("redis://localhost")
as_jobs: KeepsJobs = RedisStore("redis://localhost")


async def kept_keys(store):
    """The names of the keys that the store has on the server."""
    found = await store._link.call("KEYS", f"{store._names.prefix}:*")
    return {key.decode().removeprefix(f"{store._names.prefix}:") for key in found}


class TestRedis(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(new_store(clock)) as store:
            yield store

    async def test_a_closed_store_says_so(self, store):
        await store.put(ALICE, an_episode())
        await store.aclose()
        with pytest.raises(UsageError, match="closed"):
            await store.put(ALICE, an_episode())
        with pytest.raises(UsageError, match="closed"):
            await store.search(ALICE, Query(text="tea"))

    async def test_nothing_of_a_user_is_kept_after_the_last_record(self, store):
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode())
        await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        await store.delete(ALICE, "e1")
        assert await store.search(ALICE, Query(text="tea")) == ()
        assert await kept_keys(store) == {"format", "version", "embedder", "forgotten"}
        assert len(store._copies._held) == 0

    async def test_the_files_on_disk_are_named_as_pending(self, store):
        assert (await store.forget(ALICE)).pending == ()
        await store.put(ALICE, an_episode())
        (said,) = (await store.forget(ALICE)).pending
        assert "BGREWRITEAOF" in said

    async def test_scores_are_those_of_bm25(self, store):
        await store.put(ALICE, an_episode("e1", "tea"), an_episode("e2", "green big piano"))
        (hit,) = await store.search(ALICE, Query(text="tea"))
        assert hit.score == pytest.approx(math.log(2) * 2.2 / 1.75)

    async def test_an_id_that_cannot_be_stored_is_found_nowhere(self, store):
        await store.put(ALICE, an_episode())
        assert await store.get(ALICE, "\udc80") is None
        assert await store.delete(ALICE, "\udc80", "a\0b") == 0
        assert await store.search_keys(ALICE) == {}

    async def test_what_makes_no_sense_is_refused(self, store, clock):
        now = clock.now()
        with pytest.raises(UsageError, match="limit=0"):
            await store.list(ALICE, limit=0)
        with pytest.raises(UsageError, match="ends before it starts"):
            await store.lease(now=now, until=now)
        with pytest.raises(UsageError, match="keep=-1"):
            await store.prune(ALICE, layer=1, keep=-1)
        await store.write(ALICE, jobs=[a_job()])
        with pytest.raises(UsageError, match="another key"):
            await store.write(ALICE, jobs=[a_job(key="other")])
        with pytest.raises(UsageError, match="not a JSON object"):
            await store.write(ALICE, put=[an_episode()], jobs=[a_job("j2", payload={"x": object()})])
        assert await store.count(ALICE) == 0

    async def test_a_job_may_queue_itself_again(self, store):
        await store.write(ALICE, jobs=[a_job()])
        (lease,) = await store.lease(now=START, until=START + HOUR)
        await store.finish(lease, jobs=[a_job()])
        assert await store.pending(ALICE) == 1
        (again,) = await store.lease(now=START, until=START + HOUR)
        assert again.job == a_job(attempts=1)

    async def test_jobs_taken_while_they_are_looked_at_do_not_hide_the_next(self, store, monkeypatch):
        await store.write(ALICE, jobs=[a_job(f"j{n}") for n in range(5)])
        calls, stolen = store._link.calls, []

        async def overtaken(commands):
            found = await calls(commands)
            if not stolen:
                stolen.extend(await twin.lease(now=START, until=START + HOUR, limit=3))
            return found

        # Not a stand-in for the server: the only way to come between two of its answers.
        monkeypatch.setattr(store._link, "calls", overtaken)
        async with aclosing(twin_of(store)) as twin:
            leases = await store.lease(now=START, until=START + HOUR, limit=3)
        assert [lease.job.id for lease in stolen] == ["j0", "j1", "j2"]
        assert [lease.job.id for lease in leases] == ["j3", "j4"]

    async def test_a_session_forgets_its_jobs_and_dead_letters_alone(self, store):
        one, two = ALICE.for_session("1"), ALICE.for_session("2")
        for scope in (one, two):
            name = scope.session_id
            await store.write(scope, put=[an_episode(name, session_id=name)], jobs=[a_job(f"dead{name}", scope=scope)])
            (lease,) = await store.lease(now=START, until=START + HOUR)
            await store.fail(lease, reason="x", now=START, retry_at=None)
            await store.write(scope, jobs=[a_job(f"open{name}", scope=scope, run_at=START + HOUR)])
        assert (await store.forget(one)).removed == {"episode": 1, "job": 1, "dead_letter": 1}
        assert [letter.job.id for letter in await store.dead_letters(ALICE)] == ["dead2"]
        leases = await store.lease(now=START + HOUR, until=START + 2 * HOUR, limit=9)
        assert [lease.job.id for lease in leases] == ["open2"]

    async def test_a_foreign_key_of_another_type_is_an_error_of_the_store(self, store):
        await store._link.call("SET", store._names.user(ALICE).records, "mine")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.put(ALICE, an_episode())


class TestTwoStores:
    """Two stores on one server, as in two processes: each sees at once what the other did."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def stores(self):
        async with aclosing(new_store()) as one, aclosing(twin_of(one)) as two:
            await one.bind("m:1:2", 2)
            await one.put(ALICE, an_episode("e1"), an_episode("e2", "a piano"), a_fact(), a_block())
            await one.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
            await one.put_vectors(ALICE, {"e1": [1.0, 0.0]})
            assert set(await ids_of(two, ALICE, "piano zeppelin", vector=[1.0, 0.0])) == {"e1", "e2"}
            yield one, two

    async def test_a_new_text(self, stores):
        one, two = stores
        await one.put(ALICE, an_episode("e1", "winter"))
        assert await ids_of(two, ALICE, "winter") == ["e1"]
        assert await ids_of(two, ALICE, vector=[1.0, 0.0]) == []
        assert await ids_of(two, ALICE, "zeppelin") == ["e1"]

    async def test_keys_and_vectors(self, stores):
        one, two = stores
        await one.put_keys(ALICE, {"e1": {"around": ""}, "e2": {"fact": "garden"}})
        await one.put_vectors(ALICE, {"e2": [0.0, 1.0]})
        assert await ids_of(two, ALICE, "zeppelin") == []
        assert await ids_of(two, ALICE, "garden") == ["e2"]
        assert await ids_of(two, ALICE, vector=[0.0, 1.0]) == ["e2", "e1"]

    async def test_a_removal_with_and_without_a_write_behind_it(self, stores):
        one, two = stores
        await one.delete(ALICE, "e1")
        assert await ids_of(two, ALICE, "zeppelin") == []
        await one.delete(ALICE, "e2")
        await one.put(ALICE, an_episode("e3", "a piano"))
        assert await ids_of(two, ALICE, "piano") == ["e3"]

    async def test_a_user_who_is_forgotten_and_comes_back(self, stores):
        one, two = stores
        await one.forget(ALICE)
        await one.put(ALICE, an_episode("e2", "a garden"))
        assert [record.id for record in await two.list(ALICE)] == ["e2"]
        assert await ids_of(two, ALICE, "piano zeppelin") == []
        await one.forget(ALICE)
        assert await two.list(ALICE) == ()

    async def test_an_exchange_of_all_vectors(self, stores):
        one, two = stores
        await one.rebind("m:2:2", 2)
        assert await ids_of(two, ALICE, vector=[1.0, 0.0]) == []
        await one.put_vectors(ALICE, {"e2": [1.0, 0.0]})
        assert await ids_of(two, ALICE, vector=[1.0, 0.0]) == ["e2"]

    async def test_writers_of_one_record_all_count(self, stores):
        async def touch(store):
            for _ in range(10):
                await store.touch(ALICE, "e1", "e2", at=START)

        async with anyio.create_task_group() as tasks:
            for store in stores * 3:
                tasks.start_soon(touch, store)
        assert [(await stores[0].get(ALICE, id)).accesses for id in ("e1", "e2")] == [60, 60]

    async def test_one_of_two_writers_of_a_block_is_refused(self, stores):
        block, refused = replace(a_block(), version=2), []

        async def write(store, text):
            try:
                await store.put(ALICE, replace(block, text=text))
            except StoreError:
                refused.append(text)

        async with anyio.create_task_group() as tasks:
            for number, store in enumerate(stores * 4):
                tasks.start_soon(write, store, f"text {number}")
        assert len(refused) == 7
        assert (await stores[0].get(ALICE, block.id)).text not in refused


@pytest.mark.anyio
async def test_copies_are_filled_page_by_page_and_stay_within_their_bound(monkeypatch):
    monkeypatch.setattr(search, "_ROWS", 3)
    async with aclosing(new_store()) as one, aclosing(twin_of(one, cached_records=8)) as two:
        # One change is larger than a page; others share one.
        await one.put(ALICE, *(an_episode(f"e{n}") for n in range(7)))
        for n in range(7, 12):
            await one.put(ALICE, an_episode(f"e{n}"))
        await one.put(BOB, *(an_episode(f"b{n}") for n in range(4)))
        for _ in range(2):
            assert len(await two.search(ALICE, Query(text="tea", limit=99))) == 12
            await one.delete(BOB, "b0")
            assert await two.count(BOB, where=Eq("kind", "episode")) == 3
        held = two._copies
        assert [len(copy.records.records) for copy in held._held.values()] == [3]
        assert held._total == 3


class RedisMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(new_store(clock)) as store:
            yield store


TestRedisModel = RedisMachine.TestCase
TestRedisModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.anyio
async def test_a_memory_on_redis_remembers_learns_and_forgets():
    async with aclosing(new_store()) as store:
        memory = open_memory(store, embedder="hash")
        await memory.remember("My name is Ann and I live in Lisbon.", user_id="ann")
        await memory.metabolize(user_id="ann")
        found = await memory.recall("Where does Ann live?", user_id="ann")
        assert "Lisbon" in found.hits[0].item.text
        assert len(await memory.recall("Where does Ann live?", user_id="bob")) == 0
        await memory.forget(user_id="ann")
        assert await kept_keys(store) == {"format", "version", "embedder", "forgotten"}


@pytest.mark.anyio
async def test_a_user_with_very_many_jobs_does_not_keep_others_waiting():
    """Also where the others wait behind more jobs than are read at once, and where nobody else waits."""
    others = [Scope("app", f"user {number}") for number in range(5)]
    async with aclosing(new_store()) as store, aclosing(twin_of(store)) as another:
        await store.write(ALICE, jobs=[a_job(f"a{number:03}") for number in range(1200)])
        for number, scope in enumerate(others):
            await store.write(scope, jobs=[a_job(f"z{number}", scope=scope, run_at=START + HOUR)])
        done = []
        for _ in range(12):
            (lease,) = await store.lease(now=START + DAY, until=START + 2 * DAY, in_order=True)
            done.append(lease.job.id)
            await store.finish(lease)
        assert set(done[1:6]) == {f"z{number}" for number in range(5)}
        assert [id for id in done if id.startswith("a")] == [f"a{number:03}" for number in range(7)]
        # A user for whom somebody works keeps nobody waiting either.
        (held,) = await store.lease(now=START + DAY, until=START + 2 * DAY, in_order=True)
        await store.write(BOB, jobs=[a_job("bob", scope=BOB, run_at=START + HOUR)])
        (lease,) = await another.lease(now=START + DAY, until=START + 2 * DAY, in_order=True)
        assert (held.job.scope, lease.job.scope) == (ALICE, BOB)
