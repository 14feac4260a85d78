"""Episodes of hot layers that are over are not seen, the server drops them, and nothing else ever goes."""

from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import pytest

from loom.core.filter import Eq
from loom.core.record import Layer
from loom.errors import NotFound, UsageError
from loom.protocols.memory_store import Query
from loom.stores.inmemory import InMemoryStore
from loom.stores.redis import RedisStore
from loom.stores.redis.connection import Options, period, split, with_options
from loom.testing.conformance import MemoryStoreSuite
from loom.testing.conformance.suite import ALICE, BOB, HOUR, a_block, a_fact, a_job, an_episode, ids_of, listed
from loom.testing.fakes import START, FakeClock
from loom.wrappers.composite import CompositeStore
from tests.stores.redis.conftest import Span, new_store, twin_of

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
TTL = {Layer.L1: HOUR, Layer.L2: DAY}


def hot(id="e1", text="we drank tea", *, layer=Layer.L1, **fields):
    return an_episode(id, text, layer=layer, **{"recorded_at": START, **fields})


class TestWithEnds(MemoryStoreSuite):
    """Records that will be over keep every law until then."""

    @pytest.fixture
    async def store(self, clock):
        async with aclosing(new_store(clock, ttl={Layer.L1: 3650 * DAY, Layer.L2: 3650 * DAY})) as store:
            yield store


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def store(clock):
    async with aclosing(new_store(clock, ttl=TTL)) as store:
        yield store


def keys_of(store, scope=ALICE):
    return store._names.user(scope).all


async def lefts(store, scope=ALICE):
    """In how many milliseconds each key of a user that is there goes; -1: never."""
    found = [await store._link.call("PTTL", key) for key in keys_of(store, scope)]
    return {left for left in found if left != -2}


async def ends(store, scope=ALICE):
    """When each key of a user that is there goes, by the server's clock."""
    return {await store._link.call("PEXPIRETIME", key) for key in keys_of(store, scope)} - {-2}


async def test_no_call_sees_what_is_over(store, clock):
    await store.bind("m:1:2", 2)
    await store.put(ALICE, hot(), hot("e2", "more tea", layer=Layer.L2))
    await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
    await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
    clock.advance(3599)
    assert await ids_of(store, ALICE, "zeppelin") == ["e1"]
    clock.advance(1)
    assert await store.get(ALICE, "e1") is None
    assert await store.search_keys(ALICE, "e1", "e2") == await store.search_keys(ALICE, "e2")
    assert await listed(store, ALICE) == await ids_of(store, ALICE, "tea") == ["e2"]
    assert await ids_of(store, ALICE, "zeppelin") == await ids_of(store, ALICE, vector=[1.0, 0.0]) == []
    assert (await store.count(ALICE), await store.count(ALICE, where=Eq("kind", "episode"))) == (1, 1)
    assert [record.id for _, record in await store.unembedded()] == ["e2"]
    assert await store.prune(ALICE, layer=Layer.L1, keep=0) == ()
    assert await store.delete(ALICE, "e1") == 0
    with pytest.raises(NotFound):
        await store.put_vectors(ALICE, {"e1": [0.0, 1.0]})
    with pytest.raises(NotFound):
        await store.put_keys(ALICE, {"e1": {"around": "winter"}})
    async with aclosing(twin_of(store, clock=clock, ttl=TTL)) as other:
        assert await listed(other, ALICE) == ["e2"]


async def test_the_next_change_of_the_user_removes_it_for_everybody(store, clock):
    await store.bind("m:1:2", 2)
    await store.put(ALICE, hot(), hot("e2", layer=Layer.L2))
    await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
    await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
    async with aclosing(twin_of(store)) as other:  # without a ttl of its own it sees what there is
        assert await listed(other, ALICE) == ["e1", "e2"]
        clock.advance(3600)
        await store.touch(ALICE, "e2", at=START)
        assert await listed(other, ALICE) == ["e2"]
        assert await ids_of(other, ALICE, "zeppelin") == []
    user = store._names.user(ALICE)
    assert [await store._link.call("HLEN", key) for key in (user.records, user.keys, user.vectors)] == [1, 0, 0]
    assert [await store._link.call("ZCARD", key) for key in (user.changed, user.ends)] == [1, 1]


async def test_what_is_over_can_come_back_and_has_nothing_of_its_first_life(store, clock):
    await store.bind("m:1:2", 2)
    await store.put(ALICE, hot(), a_fact())
    await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
    await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
    clock.advance(3600)
    await store.put(ALICE, hot("e1", "a piano", recorded_at=clock.now()))
    assert await ids_of(store, ALICE, "zeppelin drank") == await ids_of(store, ALICE, vector=[1.0, 0.0]) == []
    assert await ids_of(store, ALICE, "piano") == ["e1"]


async def test_the_server_drops_a_user_when_the_last_of_him_is_over(store, clock):
    async with Span(store._link) as written:
        await store.put(ALICE, hot(), hot("e2", layer=Layer.L2))
        await store.put_keys(ALICE, {"e2": {"around": "zeppelin"}})
    assert len(await ends(store)) <= 2
    assert written.is_followed(await ends(store), after=86_400_000)
    digest = store._names.user(ALICE).digest
    name_ends = await store._link.call("HPEXPIRETIME", store._names.users, "FIELDS", 1, digest)
    assert written.is_followed(name_ends, after=86_400_000)
    clock.advance(3600)
    async with Span(store._link) as written:
        await store.delete(ALICE, "e2")
        await store.put(ALICE, hot("e3", recorded_at=clock.now()))
    assert written.is_followed(await ends(store), after=3_600_000)


async def test_what_the_server_dropped_is_gone_from_copies_too(store):
    await store.put(ALICE, hot())
    await store.put(BOB, hot())
    assert await ids_of(store, ALICE, "tea") == ["e1"]
    for key in keys_of(store):
        await store._link.call("PEXPIRE", key, 0)  # as at the end of its time
    assert await ids_of(store, ALICE, "tea") == await listed(store, ALICE) == []
    await store.put(ALICE, hot("e2"))
    assert await listed(store, ALICE) == ["e2"]
    assert await listed(store, BOB) == ["e1"]


async def test_what_is_over_when_it_comes_leaves_nothing(store, clock):
    clock.advance(7200)
    await store.put(ALICE, hot())
    assert await listed(store, ALICE) == []
    left = await store._link.call("KEYS", f"{store._names.prefix}:*")
    assert {key.decode().rpartition(":")[2] for key in left} == {"format", "version"}


@pytest.mark.parametrize(
    "lasting",
    [
        a_fact(),
        a_block(),
        hot("kept", layer=Layer.L3),
        hot("kept", layer=Layer.L4),
        hot("kept", archived_at=START),
    ],
    ids=["fact", "block", "L3", "L4", "archive"],
)
async def test_what_has_no_end_keeps_everything_on_the_server(store, clock, lasting):
    await store.put(ALICE, hot())
    assert -1 not in await lefts(store)
    await store.put(ALICE, lasting)
    assert await lefts(store) == {-1}
    clock.advance(10**9)
    assert await listed(store, ALICE) == [lasting.id]
    assert await store.get(ALICE, lasting.id) == lasting
    await store.put(ALICE, hot("new", recorded_at=clock.now()))
    assert await lefts(store) == {-1}
    await store.delete(ALICE, lasting.id)
    assert -1 not in await lefts(store)


async def test_jobs_keep_everything_until_they_are_done(store):
    await store.write(ALICE, put=[hot()], jobs=[a_job()])
    assert await lefts(store) == {-1}
    (lease,) = await store.lease(now=START, until=START + HOUR)
    assert await lefts(store) == {-1}
    await store.finish(lease)
    assert -1 not in await lefts(store)
    await store.write(ALICE, jobs=[a_job("j2")])
    (lease,) = await store.lease(now=START, until=START + HOUR)
    await store.fail(lease, reason="x", now=START, retry_at=None)
    assert await lefts(store) == {-1}


async def test_an_episode_that_leaves_the_layer_stays(store, clock):
    await store.put(ALICE, hot("up"), hot("archived"), hot("over"))
    assert set(await store.prune(ALICE, layer=Layer.L1, keep=2)) == {"archived"}
    await store.put(ALICE, replace(await store.get(ALICE, "up"), layer=Layer.L3))
    clock.advance(10**9)
    await store.put(ALICE, hot("late", recorded_at=clock.now()))
    assert await listed(store, ALICE) == ["archived", "late", "up"]


async def test_beside_a_truth_what_was_archived_in_time_outlives_the_layer(store, clock):
    composite = CompositeStore(InMemoryStore(clock=clock), {Layer.L2: store})
    await composite.put(ALICE, hot("e1", "old tea", layer=Layer.L2), hot("e2", "green tea", layer=Layer.L2), a_fact())
    assert await listed(store, ALICE) == ["e1", "e2"]
    async with Span(store._link) as pruned:
        assert await composite.prune(ALICE, layer=Layer.L2, keep=1) == ("e1",)
    assert pruned.is_followed(await ends(store), after=86_400_000)
    clock.advance(86_400)
    for key in keys_of(store):
        await store._link.call("PEXPIRE", key, 0)
    assert await listed(composite, ALICE) == sorted(["e1", a_fact().id])
    hits = await composite.search(ALICE, Query(text="tea", archived=True))
    assert [hit.item.id for hit in hits if hit.item.kind == "episode"] == ["e1"]


@pytest.mark.parametrize("ttl", [{Layer.L3: timedelta(0)}, {Layer.L1: timedelta(0)}, {Layer.L2: -DAY}, -DAY])
def test_a_ttl_that_makes_no_sense_is_refused(ttl):
    with pytest.raises(UsageError, match="ttl"):
        RedisStore("redis://localhost", ttl=ttl)


@pytest.mark.parametrize("layer", list(Layer))
async def test_one_ttl_ends_every_episode_and_nothing_else(clock, layer):
    """Whatever its layer, and in the archive too; facts and blocks are knowledge, and stay."""
    async with aclosing(new_store(clock, ttl=DAY)) as store:
        await store.put(ALICE, hot(layer=layer), hot("e2", "old tea", layer=layer, archived_at=START), a_fact())
        assert sorted(await listed(store, ALICE)) == ["e1", "e2", "f1"]
        clock.advance(DAY)
        assert await listed(store, ALICE) == ["f1"]
        assert await ids_of(store, ALICE, "drank old") == []
        epoch = await store.epoch(ALICE)
        await store.put(ALICE, hot("e3", recorded_at=clock.now()))  # with which what is over goes
        assert await store.epoch(ALICE) != epoch
        assert await store._link.call("HLEN", store._names.user(ALICE).records) == 2


async def test_a_layer_has_a_ttl_of_its_own_beside_that_of_the_rest(clock):
    async with aclosing(new_store(clock, ttl={None: DAY, Layer.L1: HOUR, Layer.L4: 3 * DAY})) as store:
        await store.put(ALICE, *(hot(layer.label, layer=layer) for layer in Layer))
        await store.put(ALICE, hot("archived", archived_at=START))
        clock.advance(HOUR)
        assert sorted(await listed(store, ALICE)) == ["L2", "L3", "L4", "archived"]
        clock.advance(DAY)
        assert await listed(store, ALICE) == ["L4"]
        clock.advance(2 * DAY)
        assert await listed(store, ALICE) == []


async def test_the_url_says_it_as_well(clock, server):
    url = f"{server.url()}?ttl=1d&ttl_l1=3600"
    async with aclosing(RedisStore(url, clock=clock, prefix="said")) as store:
        await store.put(ALICE, hot(), hot("e2", layer=Layer.L3))
        clock.advance(HOUR)
        assert await listed(store, ALICE) == ["e2"]
        clock.advance(DAY)
        assert await listed(store, ALICE) == []


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("90", 90),
        ("90s", 90),
        ("2m", 120),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("2W", 1_209_600),
        (3600, 3600),
        (0.5, 0.5),
    ],
)
def test_a_period_is_seconds_or_has_a_unit(said, meant):
    assert period(said, "ttl") == timedelta(seconds=meant)


@pytest.mark.parametrize("said", ["", "soon", "-7d", "7y", "1e3", "0", "7d7d", True, None, "9" * 400])
def test_what_is_not_a_period_is_refused(said):
    with pytest.raises(UsageError, match="ttl"):
        period(said, "ttl")


@pytest.mark.parametrize("query", ["durable=maybe", "ttl=soon", "ttl_l1=0"])
def test_a_url_that_cannot_be_read_is_refused_at_once(query):
    with pytest.raises(UsageError):
        RedisStore(f"redis://localhost:6379/0?{query}")


def test_options_in_the_url_and_beside_it_are_one():
    url = with_options("redis://u:p%26w@h:1/2?socket_timeout=3&ttl=1d", ttl={"l1": "1h"}, durable=True)
    assert split(url) == (
        "redis://u:p%26w@h:1/2?socket_timeout=3",
        Options(durable=True, ttl={None: DAY, Layer.L1: HOUR}),
    )
    assert with_options("redis://h/0") == "redis://h/0"
    assert with_options("redis://h/0?durable=true", durable=False) == "redis://h/0"


async def test_a_ttl_beyond_the_calendar_is_long(clock):
    async with aclosing(new_store(clock, ttl={Layer.L1: timedelta.max})) as store:
        await store.put(ALICE, hot())
        assert await listed(store, ALICE) == ["e1"]
