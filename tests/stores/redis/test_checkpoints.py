"""The checkpoint store on Redis keeps every law of the protocol, and sessions that are over leave nothing."""

import sys
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import anyio
import pytest
from hypothesis import settings

from loom.engine import open_checkpoints
from loom.errors import FormatTooNew, MissingExtra, NotFound, StoreConflict, StoreUnavailable, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.stores.redis import RedisCheckpointStore, RedisStore
from loom.testing.conformance import CheckpointStoreMachine, CheckpointStoreSuite
from loom.testing.conformance.checkpoint_log import a_record
from loom.testing.conformance.checkpoint_store import (
    CHAT,
    a_checkpoint,
    a_message,
    everything,
    ids_in,
    save,
    save_turns,
    texts_of,
)
from loom.testing.conformance.suite import ALICE, BOB, an_episode
from loom.testing.fakes import FakeClock
from tests.stores.appending import check_processes
from tests.stores.redis.conftest import Span, new_prefix, started
from tests.stores.session_ids import check_session_ids

pytestmark = pytest.mark.anyio

# Checked by pyright, signatures included.
as_checkpoints: CheckpointStore = RedisCheckpointStore("redis://localhost")
as_forking: Forks = RedisCheckpointStore("redis://localhost")
as_pruning: PrunesCheckpoints = RedisCheckpointStore("redis://localhost")

FORK = ALICE.for_session("fork")
HOUR = timedelta(hours=1)
ONCE = {"checkpoint_format", "checkpoint_number"}


def new_store(clock=None, **options):
    """A store with nothing in it, unless the options name the prefix of another."""
    return RedisCheckpointStore(started().url(), clock=clock, **{"prefix": new_prefix(), **options})


async def call(store, *command):
    return await store._link.call(*command)


def user_keys(store, scope=ALICE):
    return store._names.user(scope)


async def kept_keys(store):
    """The names of the keys that the store has on the server."""
    prefix = store._names.prefix
    return {key.decode().removeprefix(f"{prefix}:") for key in await call(store, "KEYS", f"{prefix}:*")}


class TestRedis(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(new_store(clock)) as store:
            yield store


class TestWithAnEnd(CheckpointStoreSuite):
    """Sessions that will be over keep every law until then."""

    @pytest.fixture
    async def store(self, clock):
        async with aclosing(new_store(clock, ttl=HOUR)) as store:
            yield store


class RedisMachine(CheckpointStoreMachine):
    prefix = None

    @asynccontextmanager
    async def open_store(self, clock):
        self.prefix = self.prefix or new_prefix()
        async with aclosing(new_store(clock, prefix=self.prefix)) as store:
            yield store


TestRedisModel = RedisMachine.TestCase
TestRedisModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def store(clock):
    async with aclosing(new_store(clock, ttl=HOUR)) as store:
        yield store


async def test_a_session_is_over_so_long_after_its_last_save(store, clock):
    first = await save(store, CHAT, "c1", "tea")
    clock.advance(3000)
    await save(store, CHAT, "c2", "milk", after=first)
    clock.advance(3599)
    assert await ids_in(store, CHAT) == await ids_in(store, ALICE) == ["c2", "c1"]
    clock.advance(1)
    assert await store.load(CHAT) is await store.load(CHAT, "c2") is None
    assert await store.list(CHAT) == await store.list(ALICE) == ()
    assert await store.delete(CHAT, "c2") is False
    assert (await store.forget(ALICE)).removed == {}
    with pytest.raises(NotFound):
        await store.history(CHAT, "c2")
    with pytest.raises(NotFound):
        await store.fork(CHAT, "c2", session_id="fork")


async def test_a_session_that_is_over_begins_anew(store, clock):
    await save_turns(store, CHAT, "c1", "c2")
    clock.advance(3600)
    with pytest.raises(StoreConflict):
        await store.save(CHAT, a_checkpoint("c3", position=4, parent="c2"), entries=(), head="c2")
    await save(store, CHAT, "c1", "new")
    assert await texts_of(store, CHAT, "c1") == ["new"]


async def test_a_change_removes_what_is_over_and_nothing_else(store, clock):
    await save_turns(store, CHAT, "c1", "c2")
    await save_turns(store, BOB.for_session("chat"), "c1")
    fork = await store.fork(CHAT, "c1", session_id="fork")
    clock.advance(1800)
    await save(store, FORK, "f2", "mine", after=fork)
    clock.advance(1800)
    due = await everything(store, FORK)
    assert len(due) == 2
    await save(store, ALICE.for_session("third"), "c1", "third")
    # The log of c1 stays, because the fork begins with it; that of c2 is gone, with its parts.
    assert await everything(store, FORK) == due
    assert await call(store, "HLEN", user_keys(store)[8]) == len(["question c1", "answer c1", "mine", "third"])
    assert (await store.forget(FORK)).removed == {"checkpoint": 2, "entry": 3}
    assert (await store.forget(ALICE)).removed == {"checkpoint": 1, "entry": 1}
    assert not [key for key in user_keys(store) if await call(store, "EXISTS", key)]


async def test_redis_drops_a_user_when_their_last_session_is_over(store, clock):
    await save_turns(store, CHAT, "c1")
    clock.advance(1800)
    fork = await store.fork(CHAT, "c1", session_id="fork")
    await save(store, FORK, "f2", "mine", after=fork)
    await store.append(FORK, [a_message("f2.0")], once=True)  # makes the index of ids, which has keys of its own
    clock.advance(900)
    async with Span(store._link) as deleted:
        await store.delete(FORK, "f2")
    ends = {await call(store, "PEXPIRETIME", key) for key in user_keys(store)}
    # The fork lasts longest: 3600 - 900 seconds from now. No key goes before another.
    assert deleted.is_followed(ends, after=2_700_000)
    assert max(ends) - min(ends) <= 1
    async with Span(store._link) as forgotten:
        await store.forget(FORK)
    assert forgotten.is_followed(
        {await call(store, "PEXPIRETIME", key) for key in user_keys(store)} - {-2}, after=900_000
    )


async def test_a_session_without_an_end_keeps_all_keys(store, clock):
    await save_turns(store, CHAT, "c1")
    await store.append(CHAT, [a_message("c1.0")], once=True)  # makes the index of ids, which has keys of its own
    async with aclosing(new_store(clock, prefix=store._names.prefix)) as lasting:
        fork = await lasting.fork(CHAT, "c1", session_id="fork")
        assert {await call(store, "PTTL", key) for key in user_keys(store)} == {-1}
        clock.advance(10**6)
        assert await ids_in(lasting, ALICE) == [fork.id]
        assert len(await texts_of(lasting, FORK, fork.id)) == 2
        # The last save decides: this one gives the session an end again.
        await save(store, FORK, "f2", "more", after=fork)
        assert -1 not in {await call(store, "PTTL", key) for key in user_keys(store)}


async def test_a_ttl_of_nothing_is_refused():
    with pytest.raises(UsageError, match="over at once"):
        RedisCheckpointStore("redis://localhost", ttl=timedelta(0))


async def test_memory_and_sessions_share_a_prefix_and_are_forgotten_apart(store):
    async with aclosing(RedisStore(started().url(), prefix=store._names.prefix)) as memory:
        await save_turns(store, CHAT, "c1", "c2")
        await memory.put(ALICE, an_episode())
        await memory.forget(ALICE)
        await save(store, CHAT, "c3", "more", after=await store.load(CHAT))
        assert len(await texts_of(store, CHAT, "c3")) == 5
        await memory.put(ALICE, an_episode())
        receipt = await store.forget(ALICE)
        assert "BGREWRITEAOF" in receipt.pending[-1]
        assert await memory.count(ALICE) == 1
        await memory.forget(ALICE)
        assert await kept_keys(store) == ONCE | {"format", "version", "forgotten"}


async def winners(prefix):
    """Of nine writers in three stores who all continue one checkpoint, those whose save was taken."""
    stores = [new_store(prefix=prefix) for _ in range(3)]
    first = await save(stores[0], CHAT, "c1", "first")
    won = []

    async def write(store, number):
        try:
            mine = a_checkpoint(f"d{number}", position=2, parent="c1")
            await store.save(CHAT, mine, entries=[a_message(f"m{number}", f"mine {number}")], head=first.id)
            won.append(number)
        except StoreConflict:
            pass

    async def together(work):
        async with anyio.create_task_group() as tasks:
            for number in range(9):
                tasks.start_soon(work, stores[number % 3], number)

    # Connections first, or the first writer is done before the others have one.
    await together(lambda store, _: store.load(CHAT))
    await together(write)
    for store in stores:
        await store.aclose()
    return won


async def test_of_writers_in_many_stores_one_goes_on(store):
    (won,) = await winners(store._names.prefix)
    assert await texts_of(store, CHAT, f"d{won}") == ["first", f"mine {won}"]
    assert await ids_in(store, CHAT) == [f"d{won}", "c1"]


async def test_equal_parts_are_stored_once_and_go_with_their_last_use(store):
    _, _, _, _, _, _, _, _, parts, uses, _, _ = user_keys(store)
    first = await save(store, CHAT, "c1", "same")
    await save(store, CHAT, "c2", "same", after=first)
    for left in (b"2", b"1"):
        assert await call(store, "HVALS", uses) == [left]
        assert await call(store, "HLEN", parts) == 1
        await store.delete(CHAT, "c2" if left == b"2" else "c1")
    assert await kept_keys(store) == ONCE


async def test_a_save_costs_what_is_new(store):
    last = None
    for number in range(50):
        last = await save(store, CHAT, f"c{number}", f"{number} " * 1000, after=last)
    newest = a_checkpoint("last", position=51, parent=last.id)
    before = await call(store, "INFO", "stats")
    await store.save(CHAT, newest, entries=[a_message("m", "x" * 1000)], head=last.id)
    after = await call(store, "INFO", "stats")
    # The log has more than 100,000 bytes. INFO itself answers with some 6,000.
    assert after["total_net_input_bytes"] - before["total_net_input_bytes"] < 8000
    assert after["total_net_output_bytes"] - before["total_net_output_bytes"] < 16000


async def test_a_checkpoint_of_a_newer_format_is_refused(store):
    await save(store, CHAT, "c1", "tea")
    data = user_keys(store)[3]
    ((node, packed),) = (await call(store, "HGETALL", data)).items()
    await call(store, "HSET", data, node, packed.replace(b'"format_version":2', b'"format_version":99'))
    with pytest.raises(FormatTooNew):
        await store.load(CHAT)


async def test_a_store_of_a_newer_format_is_refused(store):
    await save(store, CHAT, "c1", "tea")
    prefix = store._names.prefix
    await call(store, "SET", f"{prefix}:checkpoint_format", 2)
    async with aclosing(new_store(prefix=prefix)) as other:
        with pytest.raises(FormatTooNew, match="format 2"):
            await other.load(CHAT)


async def test_a_closed_store_says_so(store):
    await save(store, CHAT, "c1", "tea")
    await store.aclose()
    await store.aclose()
    with pytest.raises(UsageError, match="closed"):
        await store.load(CHAT)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://localhost:1/0", "RedisCheckpointStore"),
        ("rediss://localhost:1", "RedisCheckpointStore"),
        ("unix:///nowhere/redis.sock", "RedisCheckpointStore"),
        ("postgres://localhost:1/x", "PostgresCheckpointStore"),
        ("postgresql://localhost:1/x", "PostgresCheckpointStore"),
    ],
)
async def test_a_url_names_a_server_that_nobody_asks_yet(url, kind):
    store = open_checkpoints(url)
    assert type(store).__name__ == kind
    with pytest.raises(StoreUnavailable):
        await store.load(CHAT)
    await store.aclose()


async def test_sessions_are_opened_by_a_url():
    async with aclosing(open_checkpoints(started().url(database=1))) as store:
        await save(store, CHAT, "c1", "tea")
        assert await texts_of(store, CHAT, "c1") == ["tea"]


@pytest.mark.parametrize("url", ["redis:", "unix://", "postgres:"])
def test_a_url_without_a_place_is_refused(url):
    with pytest.raises(UsageError, match="needs an address"):
        open_checkpoints(url)


async def test_a_missing_driver_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    async with aclosing(open_checkpoints("redis://localhost:1")) as store:
        with pytest.raises(MissingExtra, match="redis"):
            await store.load(CHAT)


async def test_a_session_id_is_a_scope_of_the_default_user():
    async with aclosing(new_store()) as store:
        await check_session_ids(store)


@pytest.mark.parametrize("once", [False, True], ids=["each", "once"])
async def test_two_processes_that_append_lose_nothing(once):
    await check_processes(started().url(database=2), once=once)


async def test_bytes_are_stored_as_they_are_and_go_with_the_session(store, clock):
    parts = user_keys(store)[8]
    body, value = bytes(range(256)), {"n": "1" * 1000}  # a small value stands in its entry
    await store.append(CHAT, [a_record("r1", body), a_record("r2", value), a_record("small", {"n": 1})], once=True)
    await store.append(CHAT, [a_record("r1", body), a_record("r3", value)], once=True)
    assert sorted(await call(store, "HVALS", parts)) == [body, b'{"n":"%s"}' % (b"1" * 1000)]
    await store.forget(CHAT)
    assert await kept_keys(store) == ONCE
    await store.append(CHAT, [a_record("r1", body)], once=True)
    await store.append(CHAT, [a_record("r1", body)], once=True)
    clock.advance(3600)
    again = await store.append(CHAT, [a_record("r1", body)], once=True)
    assert again.position == 1, "a session that is over holds nothing"
