"""A Redis Cluster that loses masters, hands slots over and falls silent, under load.

Nothing that was acknowledged is lost, nothing is there twice, and no call waits for ever.
"""

from contextlib import aclosing, suppress
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from loom.core.scope import Scope
from loom.errors import StoreError, StoreUnavailable
from loom.protocols.memory_store import Query
from loom.stores.redis import RedisCheckpointStore, RedisStore
from loom.stores.redis.cluster import slot_of
from loom.testing.clusters import redis_cluster
from loom.testing.conformance.checkpoint_store import a_checkpoint, a_message, save, texts_of
from loom.testing.conformance.suite import ALICE, a_job, an_episode
from tests.stores.redis.conftest import check_installed, new_prefix
from tests.timing import LONG, time_flies

pytestmark = pytest.mark.anyio

USERS = [Scope("app", f"user {number}") for number in range(8)]
WRITES = 12
PATIENT = 120.0


@pytest.fixture(scope="module")
def servers():
    """A cluster of its own, which notices within two seconds that a master is gone."""
    check_installed()
    with redis_cluster(cluster_node_timeout="2000", appendfsync="always") as cluster:
        yield cluster


@pytest.fixture
def url(servers):
    """A store with nothing in it, each of whose writes is confirmed by a replica."""
    yield servers.url(f"prefix={new_prefix()}&wait=1")
    for server in servers.servers:
        if not server.is_running:
            server.start()
    servers.settle()


class Load:
    """Writers of all users, each of whose calls ends well while a test makes trouble."""

    def __init__(self, url):
        # Time enough for a failover, on a busy machine too: no call needs to fail.
        self.memories = [RedisStore(url, timeout=PATIENT) for _ in range(2)]
        self.sessions = RedisCheckpointStore(url, timeout=PATIENT)
        self.acknowledged = 0

    async def run(self, trouble):
        async with anyio.create_task_group() as tasks:
            for number, user in enumerate(USERS):
                tasks.start_soon(self._write, self.memories[number % 2], user)
                tasks.start_soon(self._talk, user.for_session("chat"))
            while self.acknowledged < len(USERS):
                await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(trouble)

    async def _write(self, memory, user):
        for number in range(WRITES):
            id = f"e{number}"
            await memory.write(user, put=[an_episode(id)], jobs=[a_job(f"j{id}", scope=user, key=id)])
            self.acknowledged += 1
            assert await memory.get(user, id) is not None

    async def _talk(self, scope):
        last = None
        for number in range(WRITES):
            id = f"c{number}"
            checkpoint = a_checkpoint(id, session_id="chat", position=number + 1, parent=last)
            entries = [a_message(id, f"turn {number}")]
            await self.sessions.save(scope, checkpoint, entries=entries, head=last)
            self.acknowledged += 1
            last = id

    async def check(self):
        """Everything is there once."""
        due = sorted(f"e{number}" for number in range(WRITES))
        for user in USERS:
            for memory in self.memories:
                assert [record.id for record in await memory.list(user, limit=1000)] == due
                hits = await memory.search(user, Query(text="tea", limit=1000))
                assert sorted(hit.item.id for hit in hits) == due
            assert sorted(job.key for job in await self.memories[0].open_jobs(user)) == due
            texts = await texts_of(self.sessions, user.for_session("chat"), f"c{WRITES - 1}")
            assert texts == [f"turn {number}" for number in range(WRITES)]
            assert len(await self.sessions.list(user.for_session("chat"))) == WRITES

    async def aclose(self):
        for store in (*self.memories, self.sessions):
            await store.aclose()


async def answered(call):
    """The answer of a call that has little time; on a busy machine it may need to be made again."""
    while True:
        with suppress(StoreUnavailable):
            return await call()


async def unconfirmed(call):
    """The error of a write that no replica confirms; a busy machine may not find out in the time of the first call."""
    while True:
        with pytest.raises(StoreUnavailable) as caught:
            await call()
        if "0 of 1 replicas confirmed it in time: it may be lost" in str(caught.value):
            return caught.value


def slots_of(url):
    """The slots of the users."""
    store = RedisStore(url)
    return sorted({slot_of(store._names.user(user).meta) for user in USERS})


async def test_a_killed_master_loses_and_doubles_nothing(servers, url):
    def kill():
        master = servers.owner(slots_of(url)[0])
        servers.kill(master)
        servers.wait_for_promotion(master)
        master.start()

    async with aclosing(Load(url)) as load:
        await load.run(kill)
        await load.check()


async def test_a_master_that_steps_down_loses_and_doubles_nothing(servers, url):
    def step_down():
        servers.fail_over(servers.replica_of(servers.owner(slots_of(url)[0])))

    async with aclosing(Load(url)) as load:
        await load.run(step_down)
        await load.check()


async def test_slots_that_move_there_and_back_lose_and_double_nothing(servers, url):
    def move():
        for slot in slots_of(url):
            home = servers.owner(slot)
            for target in (next(one for one in servers.masters() if one is not home), home):
                servers.move(slot, target, page=3)

    async with aclosing(Load(url)) as load:
        await load.run(move)
        await load.check()


async def test_a_slot_between_two_servers_answers_or_is_waited_for(servers, url):
    async with aclosing(RedisStore(url)) as store, aclosing(RedisStore(url, timeout=0.3)) as hasty:
        sessions = RedisCheckpointStore(url)
        await store.put(ALICE, an_episode())
        await answered(partial(hasty.count, ALICE))
        await save(sessions, ALICE.for_session("chat"), "c1", "tea")
        slot = slot_of(store._names.user(ALICE).meta)
        target = next(one for one in servers.masters() if one is not servers.owner(slot))
        refused = []

        async def look():
            # What is one key is sent on to where it is; what is more has to wait for the end of it.
            assert (await store.get(ALICE, "e1")).text == an_episode().text
            try:
                await hasty.put(ALICE, an_episode("hasty"))
            except StoreUnavailable as error:
                refused.append(error)

        moved = await anyio.to_thread.run_sync(
            partial(servers.move, slot, target, page=2, meanwhile=lambda: anyio.from_thread.run(look))
        )
        assert moved > 4
        assert len(refused) == (moved + 1) // 2 + 1
        assert all(error.retryable for error in refused)
        assert [record.id for record in await store.list(ALICE)] == ["e1"], "nothing was done by half"
        await store.put(ALICE, an_episode("e2"))
        assert await store.count(ALICE) == 2
        assert await texts_of(sessions, ALICE.for_session("chat"), "c1") == ["tea"]
        await sessions.aclose()


async def test_a_script_on_a_slot_between_two_servers_never_begins_without_its_mark(servers, url):
    """Why the mark is a key that is not there: all other keys of a script may be, and go while it runs."""
    async with aclosing(RedisStore(url)) as store, aclosing(RedisStore(url, timeout=0.3)) as hasty:
        await store.put(ALICE, an_episode())
        await answered(partial(hasty.count, ALICE))
        user = store._names.user(ALICE)
        slot, keys = slot_of(user.meta), (user.meta, user.records)
        target = next(one for one in servers.masters() if one is not servers.owner(slot))
        half = "redis.call('DEL', KEYS[2]) redis.call('HSET', KEYS[2], 'e1', 'half') return 1"
        ends = []

        async def look():
            with suppress(StoreError):
                await store._link.run("return redis.call('HLEN', KEYS[2])", keys, ())
            if not ends:
                with pytest.raises(StoreUnavailable):
                    await hasty._link.change(half, keys, ())
                ends.append(await store._link.call("HLEN", user.records))

        await anyio.to_thread.run_sync(
            partial(servers.move, slot, target, meanwhile=lambda: anyio.from_thread.run(look))
        )
        assert ends == [1]
        assert (await store.get(ALICE, "e1")).text == an_episode().text


async def test_a_write_that_no_replica_confirms_is_not_acknowledged(servers, url):
    async with aclosing(RedisStore(url, timeout=1)) as store:
        await answered(partial(store.put, ALICE, an_episode("e1")))
        master = servers.owner(slot_of(store._names.user(ALICE).meta))
        replica = servers.replica_of(master)
        servers.kill(replica)
        assert (await unconfirmed(partial(store.put, ALICE, an_episode("e2")))).retryable
        # It says where the write is, and not that it is not there.
        assert await answered(partial(store.get, ALICE, "e2")) is not None
        found = await answered(store.guarantees)
        assert (found.survives_failover, found.replicas) == (True, 0)
        assert "only 0 follow now" in str(found)
        replica.start()
        servers.settle()
        await answered(partial(store.put, ALICE, an_episode("e2")))
        assert await answered(partial(store.count, ALICE)) == 2


async def test_what_was_written_before_is_confirmed_where_nothing_is_left_to_write(servers, url):
    chat = ALICE.for_session("chat")
    async with aclosing(RedisCheckpointStore(url, timeout=1)) as store:
        first = await answered(partial(save, store, chat, "c1", "tea"))
        replica = servers.replica_of(servers.owner(slot_of(store._names.bucket(ALICE).number)))
        servers.kill(replica)
        for _ in range(2):  # the second time it is there already
            await unconfirmed(partial(save, store, chat, "c2", "milk", after=first))
        replica.start()
        servers.settle()
        await answered(partial(save, store, chat, "c2", "milk", after=first))


@pytest.mark.parametrize("copies", [0, 1])
async def test_a_write_may_wait_for_disks(servers, copies):
    async with aclosing(RedisStore(servers.url(f"prefix={new_prefix()}&waitaof={copies}"))) as store:
        await store.put(ALICE, an_episode())
        found = await store.guarantees()
    assert (found.survives_power_cut, found.survives_failover) == (True, copies == 1)
    assert ("on the disks of 1 replicas" in str(found)) == (copies == 1)


async def test_a_single_server_may_wait_for_replicas_and_disks(own_server):
    server = own_server(appendfsync="everysec")
    async with aclosing(RedisStore(f"{server.url()}?waitaof=0")) as store:
        await store.put(ALICE, an_episode())
        assert (await store.guarantees()).survives_power_cut
    async with aclosing(RedisStore(f"{server.url()}?wait=1", timeout=0.5)) as store:
        await unconfirmed(partial(store.put, ALICE, an_episode("e2")))
    unwritten = own_server(appendonly="no")
    async with aclosing(RedisStore(f"{unwritten.url()}?waitaof=0")) as store:
        with pytest.raises(StoreError, match="refused WAITAOF"):
            await store.put(ALICE, an_episode())


async def test_a_call_to_a_silent_master_ends_and_the_next_asks_who_is_master(servers, url):
    async with aclosing(RedisStore(url, timeout=LONG)) as store:
        await store.put(ALICE, an_episode())
        master = servers.owner(slot_of(store._names.user(ALICE).meta))
        master.freeze()
        try:
            async with time_flies():
                with pytest.raises(StoreUnavailable, match="does not answer within"):
                    await store.get(ALICE, "e1")
            # It is taken for dead, and its replica takes over.
            await anyio.to_thread.run_sync(servers.wait_for_promotion, master)
            for _ in range(8):  # whichever server is asked first who is master now
                store._link._is_doubtful = True
                assert (await store.get(ALICE, "e1")).text == an_episode().text
        finally:
            master.thaw()


async def test_calls_under_way_to_a_silent_master_are_answered_by_the_next(servers, url):
    """Nobody waits for a server that has lost its slots meanwhile: reading, writing and several keys at once."""
    # The new master has no replica that could confirm a write.
    async with aclosing(RedisStore(url.replace("&wait=1", ""), timeout=LONG)) as store:
        await store.put(ALICE, an_episode("e1"))
        master = servers.owner(slot_of(store._names.user(ALICE).meta))
        master.freeze()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.get, ALICE, "e1")
                tasks.start_soon(store.put, ALICE, an_episode("e2"))
                tasks.start_soon(store.search, ALICE, Query(text="tea"))
            assert await store.count(ALICE) == 2
        finally:
            master.thaw()


async def test_a_command_to_every_server_ends_with_its_time(servers, url):
    async with aclosing(RedisStore(url, timeout=LONG)) as store:
        await store.put(ALICE, an_episode())
        asked = servers.servers[0]
        asked.freeze()
        try:
            async with time_flies():
                with pytest.raises(StoreUnavailable, match="does not answer within"):
                    await store._link.every("PING")
        finally:
            asked.thaw()
