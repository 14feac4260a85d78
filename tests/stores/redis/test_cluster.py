"""Memory and sessions on a Redis Cluster keep every law that they keep on a single server."""

import re
from collections import Counter
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import settings

from loom.core.scope import Scope
from loom.engine import open_checkpoints, open_memory
from loom.errors import EmbedderMismatch, StoreError, StoreUnavailable, UsageError
from loom.stores.redis import RedisCheckpointStore, RedisStore, cluster, schema
from loom.stores.redis.cluster import SLOTS, ClusterConnection, slot_of
from loom.stores.redis.connection import with_options
from loom.testing.conformance import (
    CheckpointStoreMachine,
    CheckpointStoreSuite,
    MemoryStoreMachine,
    MemoryStoreSuite,
)
from loom.testing.conformance.checkpoint_store import save, texts_of
from loom.testing.conformance.suite import ALICE, BOB, HOUR, a_job, an_episode, ids_of
from loom.testing.fakes import START, FakeClock
from tests.stores.redis.conftest import cluster_sessions, cluster_started, cluster_store, cluster_url, new_prefix
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio

KEYLESS = {"INFO", "CLUSTER", "CONFIG GET", "WAIT", "WAITAOF", "ASKING", "BGREWRITEAOF"}
FEW = "buckets=4"
"""Enough to keep users apart, and quickly bound to an embedder."""
_OURS = re.compile(r"\{?test\d+:")


def slots_in(command):
    """The slots of every key in a command, also of those that a script is given as plain arguments."""
    name, *rest = command
    if name in KEYLESS:
        return set()
    keys = rest[2 : 2 + int(rest[1])] if name in ("EVAL", "EVALSHA") else rest[:1]
    texts = (one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in rest)
    return {slot_of(str(key)) for key in keys} | {slot_of(text) for text in texts if _OURS.match(text)}


class Watched:
    """A client, or a pipeline of one, that refuses a command with keys of two slots."""

    def __init__(self, client, seen):
        self._client, self._seen = client, seen

    def execute_command(self, *command):
        slots = slots_in(command)
        assert len(slots) <= 1, f"{command[0]} touches {len(slots)} slots: {command[1:6]}"
        self._seen.update([command[0]])
        return self._client.execute_command(*command)

    def pipeline(self, **options):
        return Watched(self._client.pipeline(**options), self._seen)

    def execute(self, **options):
        return self._client.execute(**options)

    async def aclose(self):
        await self._client.aclose()


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    """Every command that a test sends to the cluster, each of which has keys of one slot."""
    found, make = Counter(), ClusterConnection._make
    monkeypatch.setattr(ClusterConnection, "_make", lambda link, url: Watched(make(link, url), found))
    return found


class TestCluster(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(cluster_store(clock)) as store:
            yield store


class TestClusterSessions(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(cluster_sessions(clock)) as store:
            yield store


class ClusterMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(cluster_store(clock)) as store:
            yield store


class ClusterSessionsMachine(CheckpointStoreMachine):
    url = None

    @asynccontextmanager
    async def open_store(self, clock):
        self.url = self.url or cluster_url()
        async with aclosing(RedisCheckpointStore(self.url, clock=clock)) as store:
            yield store


TestClusterModel = ClusterMachine.TestCase
TestClusterModel.settings = settings(max_examples=10, stateful_step_count=25, deadline=None)
TestClusterSessionsModel = ClusterSessionsMachine.TestCase
TestClusterSessionsModel.settings = settings(max_examples=10, stateful_step_count=25, deadline=None)


def test_a_command_with_keys_of_two_slots_would_be_seen():
    assert len(slots_in(("EVALSHA", "x", 2, "a", "b"))) == 2
    assert len(slots_in(("EVALSHA", "x", 1, "test1:{1}:a", b"test1:{2}:b"))) == 2
    assert len(slots_in(("HGET", "test1:{1}:a", "test1:{1}:b"))) == 1


async def test_every_kind_of_call_was_watched(seen):
    async with aclosing(cluster_store(query="wait=1")) as store:
        await store.bind("m:1:2", 2)
        await store.write(ALICE, put=[an_episode()], jobs=[a_job()])
        assert len(await store.lease(now=START, until=START + HOUR)) == 1
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert await ids_of(store, ALICE, "tea", vector=[1.0, 0.0]) == ["e1"]
        await store.describe()
        await store.sweep()
    assert {"EVALSHA", "HGET", "HVALS", "ZRANGEBYSCORE", "WAIT", "CLUSTER", "BGREWRITEAOF"} - seen.keys() == {"HVALS"}


# Answers that are lost.


@pytest.fixture
def losing(monkeypatch):
    """The answer of every write is lost once, after the server has done it; returns how many were."""
    real, lost = ClusterConnection._answers, set()

    async def answers(link, server, commands):
        found = await real(link, server, commands)
        marks = {part for command in commands for part in command if isinstance(part, str) and ":done:" in part}
        if marks - lost and not isinstance(found[0], Exception):
            lost.update(marks)
            raise cluster._NotServed("the answer is lost")
        return found

    monkeypatch.setattr(ClusterConnection, "_answers", answers)
    return lost


@pytest.mark.usefixtures("losing")
class TestLostAnswers(MemoryStoreSuite):
    """Each write is sent twice, and done once, with the answer of the first time."""

    @pytest.fixture
    async def store(self, clock):
        async with aclosing(cluster_store(clock, query=FEW)) as store:
            yield store


@pytest.mark.usefixtures("losing")
class TestLostAnswersOfSessions(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(cluster_sessions(clock, query=FEW)) as store:
            yield store


async def test_a_lost_answer_is_what_it_was(losing):
    async with aclosing(cluster_store()) as store:
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        await store.touch(ALICE, "e1", at=START)
        assert (await store.get(ALICE, "e1")).accesses == 1
        assert await store.delete(ALICE, "e1") == 1
        assert (await store.forget(ALICE)).removed == {"episode": 1}
    assert len(losing) == 4


async def test_without_the_mark_a_lost_answer_breaks_laws(losing, monkeypatch):
    unmarked = "table.remove(KEYS) table.remove(ARGV)\nlocal function step()\n%s\nend\nreturn step()"
    monkeypatch.setattr(cluster, "_once", lambda script: unmarked % script)

    def fixtures():
        clock = FakeClock()
        return {"clock": clock, "store": cluster_store(clock)}

    law = "test_finish_applies_the_effects_and_closes"
    assert await broken_laws(MemoryStoreSuite, fixtures, law) == {law}
    assert losing


async def test_marks_go_by_themselves(losing):
    async with aclosing(cluster_store(timeout=0.2)) as store:
        await store.put(ALICE, an_episode())
        (mark,) = losing
        assert 0 < await store._link.call("PTTL", mark) <= 30_000


# Buckets.


GOLDEN = {
    "loom:{0.178}:due",
    "loom:{1.341}:due",
    "loom:{68.173}:meta:6c18cf44586376e5aed017474a2fd994adbcdadee3789670760db323c4d49fc9",
}
"""What is stored today has to be found tomorrow."""


def test_buckets_lie_evenly_over_the_slots_and_never_move():
    for count in (1, 3, 256, 1000):
        for number, bucket in enumerate(schema.store_names("loom", count).buckets):
            assert number * SLOTS // count <= slot_of(bucket.users) < (number + 1) * SLOTS // count
    names = schema.store_names("loom", 256)
    assert {names.buckets[0].due, names.buckets[1].due, names.user(ALICE).meta} == GOLDEN


async def test_users_of_all_buckets_are_listed_in_order_and_their_jobs_leased_oldest_first():
    users = [Scope("app", f"user {number:02}") for number in range(40)]
    async with aclosing(cluster_store()) as store:
        for number, user in enumerate(users):
            await store.write(
                user, put=[an_episode()], jobs=[a_job(f"j{number}", scope=user, run_at=START - number * HOUR)]
            )
        buckets = {store._names.bucket(user).prefix for user in users}
        assert len(buckets) > 30
        assert await store.users(limit=25) == tuple(users[:25])
        assert await store.users(after=users[24]) == tuple(users[25:])
        leases = await store.lease(now=START, until=START + HOUR, limit=15)
        assert [lease.job.id for lease in leases] == [f"j{number}" for number in range(39, 24, -1)]
        leases = await store.lease(now=START, until=START + HOUR, limit=99)
        assert [lease.job.id for lease in leases] == [f"j{number}" for number in range(24, -1, -1)]


async def test_another_number_of_buckets_is_refused_with_the_right_one():
    prefix, servers = new_prefix(), cluster_started()
    async with aclosing(RedisStore(servers.url(f"prefix={prefix}&buckets=8"))) as store:
        await store.put(ALICE, an_episode())
        assert len(store._names.buckets) == 8
    for kind in (RedisStore, RedisCheckpointStore):
        async with aclosing(kind(servers.url(f"prefix={prefix}"))) as other:
            with pytest.raises(StoreError, match=r"\?buckets=8"):
                await other.guarantees()


async def test_an_exchange_of_vectors_that_was_cut_short_goes_on(monkeypatch):
    users = [Scope("app", f"user {number}") for number in range(12)]
    url = cluster_url("buckets=16")
    async with aclosing(RedisStore(url)) as one, aclosing(RedisStore(url)) as two:
        await one.bind("m:1:2", 2)
        for user in users:
            await one.put(user, an_episode())
            await one.put_vectors(user, {"e1": [1.0, 0.0]})
        real, left = one._rebind_in, iter(range(5))

        async def cut_short(*arguments):
            if next(left, None) is None:
                raise StoreUnavailable("this process ends here")
            return await real(*arguments)

        monkeypatch.setattr(one, "_rebind_in", cut_short)
        with pytest.raises(StoreUnavailable):
            await one.rebind("m:2:3", 3)
        with pytest.raises(EmbedderMismatch):
            await two.bind("m:1:2", 2)
        # One who writes before all of it has gone on brings the bucket of the user up to date.
        await two.put_vectors(users[0], {"e1": [0.0, 0.0, 1.0]})
        await two.bind("m:2:3", 3)
        assert [await ids_of(two, user, vector=[0.0, 0.0, 1.0]) for user in users] == [["e1"], *[[]] * 11]
        assert await two.rebind("m:2:3", 3) is False
        assert await two.count_unembedded() == 11


# Addresses.


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+cluster://:secret@h:1,h:2/3", "no databases.*prefix=NAME"),
        ("redis+cluster://:secret@h:x/", "not the address of a server"),
        ("redis+cluster://:secret@h:1,:2/", "without a host"),
        ("redis+cluster:///", "not the address of a Redis Cluster"),
        ("redis+cluster://:secret@h:1/?prefix=a{b}", "braces"),
        ("redis+cluster://h:1/?buckets=0", "buckets='0' is not a number from 1"),
        ("redis+cluster://h:1/?wait=-1", "wait='-1' is not a number from 1"),
        ("redis://h:1/?waitaof=many", "waitaof='many' is not a number from 0"),
    ],
)
@pytest.mark.parametrize("kind", [RedisStore, RedisCheckpointStore])
def test_an_address_that_is_none_is_refused_at_once(kind, url, words):
    with pytest.raises(UsageError, match=words) as caught:
        kind(url)
    assert "secret" not in str(caught.value)


def test_a_url_keeps_its_options():
    url = "redis+cluster://me:pw@a:1,[::1]:2,c/?prefix=bot&wait=1&buckets=64"
    again = with_options(url, durable=True, ttl={"l1": 60})
    store = RedisStore(again)
    assert store._link.said == RedisStore(f"{url}&durable=yes&ttl_l1=1m")._link.said
    assert store._names.prefix == "bot"
    assert store._link._seeds == [("a", 1), ("::1", 2), ("c", 6379)]
    assert store._link._url == "redis://me:pw@a:1/0"
    assert RedisStore("rediss+cluster://a:1/")._link._url == "rediss://a:1/0"
    assert RedisStore(url, prefix="mine")._names.prefix == "mine"


async def test_a_single_server_is_not_a_cluster_and_says_so(server):
    async with aclosing(RedisStore(f"redis+cluster://127.0.0.1:{server.port}/")) as store:
        with pytest.raises(UsageError, match="not in a cluster"):
            await store.put(ALICE, an_episode())


async def test_a_cluster_that_is_not_there_is_worth_a_retry():
    async with aclosing(RedisStore("redis+cluster://:secret@127.0.0.1:1,127.0.0.1:2/", timeout=0.3)) as store:
        with pytest.raises(StoreUnavailable) as caught:
            await store.put(ALICE, an_episode())
    assert caught.value.retryable
    assert "127.0.0.1:1,127.0.0.1:2" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_one_server_is_enough_to_find_the_others():
    port = cluster_started().servers[-1].port  # a replica
    async with aclosing(RedisStore(f"redis+cluster://127.0.0.1:1,127.0.0.1:{port}/?prefix={new_prefix()}")) as store:
        for number in range(9):
            await store.put(Scope("app", f"user {number}"), an_episode())
        assert len(await store.users()) == 9


@pytest.fixture
def nameless():
    """Servers that shall be called by names, and have none."""
    servers = cluster_started().servers
    for server in servers:
        server.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
    yield
    for server in servers:
        server.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


@pytest.mark.usefixtures("nameless")
async def test_servers_without_a_name_are_found_by_their_address():
    async with aclosing(cluster_store()) as store:
        await store.put(ALICE, an_episode())
        slot, link = slot_of(store._names.user(ALICE).meta), store._link
        owner = link._owners[slot]
        link._owners[slot] = next(one for one in link._masters() if one is not owner)
        assert (await store.get(ALICE, "e1")).text == an_episode().text
        assert link._owners[slot] is owner


async def test_one_server_of_a_cluster_alone_says_what_to_write():
    url = f"redis://127.0.0.1:{cluster_started().servers[0].port}/0?prefix={new_prefix()}"
    message = r"one of a cluster; write redis\+cluster://"
    async with aclosing(RedisStore(url)) as store, aclosing(RedisCheckpointStore(url)) as sessions:
        with pytest.raises(StoreError, match=message):
            await store.put(ALICE, an_episode())
        with pytest.raises(StoreError, match=message):
            await save(sessions, ALICE.for_session("chat"), "c1", "tea")


async def test_a_closed_store_says_so():
    async with aclosing(cluster_store()) as store:
        await store.put(ALICE, an_episode())
        await store.aclose()
        with pytest.raises(UsageError, match="closed"):
            await store.put(ALICE, an_episode())


async def test_every_label_is_told():
    async with aclosing(cluster_store()) as store:
        await store.put(ALICE, an_episode())
        await store.put(BOB, an_episode())
        told = await store.describe()
    assert told["server"].endswith(", a cluster of 3 masters")
    assert "RediSearch is not used in a cluster" in told["index"]
    assert "2 users" in told["index"]
    assert told["nodes"].count("with 1 replicas (appendonly=yes, appendfsync=everysec") == 3
    assert "a failover may take what was acknowledged just before" in told["durability"]


async def test_the_weakest_master_counts():
    servers = cluster_started()
    weak = servers.masters()[1]
    weak.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        async with aclosing(cluster_store()) as store:
            found = await store.guarantees()
            assert (found.is_durable, found.address) == (False, f"127.0.0.1:{weak.port}")
            assert [one.is_durable for one in found.nodes].count(True) == 2
            assert any("allkeys-lru" in note for note in store.notes)
        async with aclosing(cluster_store(query="durable=true")) as store:
            with pytest.raises(StoreError, match="allkeys-lru"):
                await store.put(ALICE, an_episode())
    finally:
        weak.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_memory_and_sessions_by_their_url():
    url = cluster_url()
    async with open_memory(url, embedder="hash") as memory, aclosing(open_checkpoints(url)) as sessions:
        await memory.remember("My name is Ann and I live in Lisbon.", user_id="ann")
        await memory.metabolize(user_id="ann")
        found = await memory.recall("Where does Ann live?", user_id="ann")
        assert "Lisbon" in found.hits[0].item.text
        assert len(await memory.recall("Where does Ann live?", user_id="bob")) == 0
        await save(sessions, Scope("default", "ann").for_session("chat"), "c1", "tea")
        assert await memory.store.saved_sessions(Scope("default", "ann")) == 1
        assert await texts_of(sessions, Scope("default", "ann").for_session("chat"), "c1") == ["tea"]
        await memory.forget(user_id="ann")
        assert await memory.store.users() == ()
