"""Connections that break, servers that go and come back, and a network that falls silent, under load.

Nothing that was acknowledged is lost, nothing is there twice, and no call waits for ever.
"""

from contextlib import aclosing, suppress
from functools import partial

import anyio
import pytest

from loom.errors import StoreConflict, StoreUnavailable
from loom.protocols.memory_store import Query
from loom.stores.redis import RedisCheckpointStore, RedisStore
from loom.stores.redis.records import Transaction
from loom.testing.conformance.checkpoint_store import a_checkpoint, a_message, save, texts_of
from loom.testing.conformance.suite import ALICE, a_job, an_episode, listed
from loom.testing.fakes import START
from loom.testing.servers import proxy, redis
from tests.stores.redis.conftest import check_installed
from tests.timing import LONG, pass_time, time_flies, until

pytestmark = pytest.mark.anyio

WRITERS = 4
WRITES = 40
EVERY = 25


class Load:
    """Writers who go on until everything they have was acknowledged, with trouble again and again."""

    def __init__(self, url, trouble):
        self.memories = [RedisStore(url) for _ in range(2)]
        self.sessions = RedisCheckpointStore(url)
        self.trouble = trouble
        self.acknowledged = self.refused = self.troubles = 0

    async def run(self):
        async with anyio.create_task_group() as tasks:
            for number in range(WRITERS):
                tasks.start_soon(self._write, number)
                tasks.start_soon(self._talk, number)

    async def _write(self, writer):
        memory = self.memories[writer % 2]
        for number in range(WRITES):
            id = f"w{writer}.{number}"
            write = partial(memory.write, ALICE, put=[an_episode(id)], jobs=[a_job(f"j{id}", key=id)])
            await self._until_acknowledged(write)
            # Whoever was acknowledged finds it, whatever happened in between.
            assert await self._until_acknowledged(partial(memory.get, ALICE, id)) is not None

    async def _talk(self, writer):
        scope, last = ALICE.for_session(f"s{writer}"), None
        for number in range(WRITES):
            id = f"c{number}"
            checkpoint = a_checkpoint(id, session_id=scope.session_id, position=number + 1, parent=last)
            entries = [a_message(id, f"{writer} says {number}")]
            await self._until_acknowledged(partial(self.sessions.save, scope, checkpoint, entries=entries, head=last))
            last = id

    async def _until_acknowledged(self, call):
        while True:
            try:
                answer = await call()
                break
            except StoreUnavailable:
                self.refused += 1
        self.acknowledged += 1
        if self.acknowledged % EVERY == 0:
            self.troubles += 1
            await self.trouble()
        return answer

    async def check(self):
        """Everything is there once, as a store sees it that knew nothing of the trouble."""
        due = sorted(f"w{writer}.{number}" for writer in range(WRITERS) for number in range(WRITES))
        for memory in self.memories:
            assert [record.id for record in await memory.list(ALICE, limit=10_000)] == due
            hits = await memory.search(ALICE, Query(text="tea", limit=10_000))
            assert sorted(hit.item.id for hit in hits) == due
        assert [job.key for job in await self.memories[0].open_jobs(ALICE)] == due
        for writer in range(WRITERS):
            scope = ALICE.for_session(f"s{writer}")
            texts = await texts_of(self.sessions, scope, f"c{WRITES - 1}")
            assert texts == [f"{writer} says {number}" for number in range(WRITES)]
            assert len(await self.sessions.list(scope)) == WRITES

    async def aclose(self):
        for store in (*self.memories, self.sessions):
            await store.aclose()


async def test_killed_connections_lose_and_double_nothing(own_server):
    server = own_server(appendfsync="everysec")
    async with (
        aclosing(RedisStore(server.url())) as admin,
        aclosing(Load(server.url(), partial(kill_connections, admin))) as load,
    ):
        await load.run()
        await load.check()
    assert load.troubles >= 15
    assert load.refused > 0


async def kill_connections(admin):
    with suppress(StoreUnavailable):  # another writer may have killed this very connection
        await admin._link.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_ends_and_comes_back_loses_and_doubles_nothing(own_server, how):
    server = own_server(appendfsync="always")

    async def restart():
        getattr(server, how)()
        server.start()

    async with aclosing(Load(server.url(), restart)) as load:
        await load.run()
        await load.check()
    assert load.troubles >= 15
    assert load.refused > 0


async def test_a_server_that_forgets_is_found_out_by_the_load(own_server):
    server = own_server(appendonly="no")

    async def restart():
        server.kill()
        server.start()

    load = Load(server.url(), restart)
    load.memories = [RedisStore(server.url(), durable=False) for _ in range(2)]
    load.sessions = RedisCheckpointStore(server.url(), durable=False)
    async with aclosing(load):
        with pytest.raises(BaseExceptionGroup) as failed:
            await load.run()
    assert failed.group_contains((AssertionError, StoreConflict), depth=1)


CALLS = {
    "get": lambda memory, sessions: memory.get(ALICE, "e1"),
    "put": lambda memory, sessions: memory.put(ALICE, an_episode("e2")),
    "delete": lambda memory, sessions: memory.delete(ALICE, "e1"),
    "search": lambda memory, sessions: memory.search(ALICE, Query(text="tea")),
    "list": lambda memory, sessions: memory.list(ALICE),
    "touch": lambda memory, sessions: memory.touch(ALICE, "e1", at=START),
    "lease": lambda memory, sessions: memory.lease(now=START, until=START.replace(year=2100)),
    "forget": lambda memory, sessions: memory.forget(ALICE),
    "describe": lambda memory, sessions: memory.describe(),
    "load": lambda memory, sessions: sessions.load(ALICE.for_session("s")),
    "history": lambda memory, sessions: sessions.history(ALICE.for_session("s"), "c1"),
    "save": lambda memory, sessions: save(sessions, ALICE.for_session("s"), "c2", "more"),
}


async def answered(call):
    """The answer, once every connection that was broken has been noticed."""
    while True:
        with suppress(StoreUnavailable):
            return await call()


@pytest.fixture(scope="module")
def quick_server():
    """A server that never waits for a disk."""
    check_installed()
    with redis(appendonly="no") as server:
        yield server


@pytest.fixture
async def between(quick_server):
    """Stores whose connections run through a proxy, each holding something."""
    async with proxy("127.0.0.1", quick_server.port) as network:
        url, options = f"redis://127.0.0.1:{network.port}", {"durable": False, "timeout": LONG}
        async with RedisStore(url, **options) as memory, RedisCheckpointStore(url, **options) as sessions:
            await memory._link.call("FLUSHDB")
            await memory.put(ALICE, an_episode())
            await save(sessions, ALICE.for_session("s"), "c1", "tea")
            yield network, memory, sessions


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_into_a_silent_network_ends(between, call):
    network, memory, sessions = between
    await memory.list(ALICE)
    network.freeze()
    async with time_flies():
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await CALLS[call](memory, sessions)
    network.drop()
    network.thaw()
    # The same stores go on, with what they had.
    assert [record.id for record in await answered(partial(memory.list, ALICE))] == ["e1"]
    assert await answered(partial(texts_of, sessions, ALICE.for_session("s"), "c1")) == ["tea"]


@pytest.mark.parametrize("is_new", [False, True], ids=["for a copy", "for a connection"])
async def test_calls_that_wait_for_one_another_do_not_add_up(quick_server, is_new):
    begun, ended = [], []

    async def ask(memory):
        begun.append(memory)
        with pytest.raises(StoreUnavailable):
            await (memory.get(ALICE, "e1") if is_new else memory.search(ALICE, Query(text="tea")))
        ended.append(memory)

    async with (
        proxy("127.0.0.1", quick_server.port) as network,
        aclosing(RedisStore(f"redis://127.0.0.1:{network.port}", durable=False, timeout=LONG)) as memory,
    ):
        if not is_new:
            await memory.put(ALICE, an_episode())
            await memory.list(ALICE)
        network.freeze()
        # One after the other they would need forty times as long.
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(ask, memory)
            await until(lambda: len(begun) == 40)
            await network.held()
            pass_time()
        assert len(ended) == 40


async def test_a_write_that_arrives_late_is_refused(between, quick_server, monkeypatch):
    network, memory, _ = between
    commit = Transaction.commit

    async def into_silence(change):
        network.freeze()
        return await commit(change)

    async def give_up():
        await network.held()
        pass_time()

    async with aclosing(RedisStore(quick_server.url(), durable=False)) as other:
        before = await other._link.call("CLIENT", "LIST", "TYPE", "normal")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            with monkeypatch.context() as patched:
                patched.setattr(Transaction, "commit", into_silence)
                with pytest.raises(StoreUnavailable):
                    await memory.put(ALICE, an_episode("e1", "late"))
        await other.put(ALICE, an_episode("e1", "newer"))
        scripts = await script_calls(other)
        network.thaw()
        # The connection ends behind the write, so when it is gone, the write has been looked at.
        while len(await other._link.call("CLIENT", "LIST", "TYPE", "normal")) >= len(before):
            pass
        assert await script_calls(other) == scripts + 1
        assert (await other.get(ALICE, "e1")).text == "newer"
        assert await listed(other, ALICE) == ["e1"]


async def script_calls(store):
    stats = await store._link.call("INFO", "commandstats")
    return sum(stats[name]["calls"] for name in stats if name in ("cmdstat_evalsha", "cmdstat_eval"))


async def test_dropped_connections_are_made_anew(between):
    network, memory, _ = between
    for number in range(10):
        network.drop()
        with suppress(StoreUnavailable):
            await memory.put(ALICE, an_episode(f"d{number}"))
        await memory.put(ALICE, an_episode(f"d{number}"))
    assert await memory.count(ALICE) == 11
