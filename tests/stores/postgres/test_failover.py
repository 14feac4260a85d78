"""A primary that is lost and a replica that takes over, answers that are lost, and reads from a replica."""

import anyio
import psycopg
import pytest

from loom.core.scope import Scope
from loom.errors import StaleWrite, StoreConflict, StoreUnavailable, UsageError
from loom.stores.postgres import PostgresCheckpointStore, PostgresStore, connection, init_schema, schema
from loom.stores.postgres.connection import Address, Floors, Server, name_of, owner_of
from loom.testing.conformance.checkpoint_store import CHAT, a_checkpoint, a_message, save, texts_of
from loom.testing.conformance.suite import ALICE, BOB, DAY, HOUR, a_block, a_job, an_episode, ids_of, listed
from loom.testing.fakes import START
from loom.testing.servers import postgres_pair
from tests.stores.postgres.conftest import check_installed
from tests.stores.postgres.test_faults import check, under_load

pytestmark = pytest.mark.anyio


# The answer of a commit gets lost: what was committed is not done again, what was not is.


@pytest.fixture
def lose(monkeypatch):
    """Breaks the connection once, before or after the server commits."""
    commit, losses = Server._commit, []

    async def lossy(server, db, scope, *, writes):
        if not writes or not losses:
            return await commit(server, db, scope, writes=writes)
        when = losses.pop()
        if when == "after":
            await commit(server, db, scope, writes=writes)
        await db.close()
        raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(Server, "_commit", lossy)
    return losses.append


WHEN = pytest.mark.parametrize("when", ["before", "after"])


@WHEN
async def test_a_lost_answer_of_a_write_changes_nothing_of_what_it_says(when, lose, server):
    async with PostgresStore(server.app) as store:
        lose(when)
        assert await store.write(ALICE, put=[an_episode()], jobs=[a_job("j1"), a_job("j2")]) == 2
        lose(when)
        await store.put(ALICE, a_block(version=1))
        lose(when)
        await store.put(ALICE, a_block(version=2))  # done twice it would be refused
        lose(when)
        await store.touch(ALICE, "e1", at=START + DAY)
        assert (await store.get(ALICE, "e1")).accesses == 1
        (lease,) = await store.lease(now=START, until=START + HOUR)
        lose(when)
        await store.finish(lease, put=[an_episode("made")])
        assert (await listed(store, ALICE), await store.pending(ALICE)) == (["block:persona", "e1", "made"], 1)
        lose(when)
        assert await store.delete(ALICE, "made", "other") == 1
        lose(when)
        receipt = await store.forget(ALICE)
        assert receipt.removed == {"block": 1, "episode": 1, "job": 1}
        assert receipt.pending
        assert set(server.rows().values()) == {0}


@WHEN
async def test_a_lost_answer_of_a_save_makes_no_conflict(when, lose, server):
    async with PostgresCheckpointStore(server.app) as store:
        lose(when)
        first = await save(store, CHAT, "c1", "first")
        lose(when)
        await save(store, CHAT, "c2", "second", after=first)
        assert await texts_of(store, CHAT, "c2") == ["first", "second"]
        mine = a_checkpoint("c3", position=2, parent="c1")
        with pytest.raises(StoreConflict):
            await store.save(CHAT, mine, entries=[a_message("m", "late")], head=first.id)


@WHEN
async def test_a_refusal_stays_a_refusal(when, lose, server):
    async with PostgresStore(server.app) as store:
        await store.put(ALICE, an_episode())
        epoch = await store.epoch(ALICE)
        await store.delete(ALICE, "e1")
        lose(when)
        with pytest.raises(StaleWrite):
            await store.write(ALICE, put=[an_episode("e2")], since=epoch)
        assert await listed(store, ALICE) == []


async def test_other_writes_of_the_user_do_not_hide_what_was_committed(lose, server, monkeypatch):
    await many_writes_while_in_doubt(connection._MARKS - 1, lose, server, monkeypatch)
    async with PostgresStore(server.app) as store:
        assert await store.count(ALICE) == connection._MARKS


async def test_more_writes_than_are_remembered_leave_a_doubt_that_is_said(lose, server, monkeypatch):
    with pytest.raises(StoreUnavailable, match="hide whether it did"):
        await many_writes_while_in_doubt(connection._MARKS, lose, server, monkeypatch)


async def many_writes_while_in_doubt(amount, lose, server, monkeypatch):
    look_up = Server._was_committed

    async def late(asked, *which):
        async with PostgresStore(server.app) as other:
            for number in range(amount):
                await other.put(ALICE, an_episode(f"other {number}"))
        return await look_up(asked, *which)

    monkeypatch.setattr(Server, "_was_committed", late)
    async with PostgresStore(server.app) as store:
        lose("after")
        assert await store.write(ALICE, put=[an_episode()], jobs=[a_job()]) == 1


async def test_a_store_without_marks_is_found_out(lose, server, monkeypatch):
    """What the tests above would notice: done again blindly, a touch counts twice."""

    async def never(*_):
        return False

    monkeypatch.setattr(Server, "_was_committed", never)
    async with PostgresStore(server.app) as store:
        await store.put(ALICE, an_episode())
        lose("after")
        await store.touch(ALICE, "e1", at=START + DAY)
        assert (await store.get(ALICE, "e1")).accesses == 2


# A primary and its replica.


@pytest.fixture
def pair():
    """A primary with a synchronous replica, with eight partitions."""
    check_installed()
    with postgres_pair() as found:
        anyio.run(prepare, found)
        with psycopg.connect(found.primary.url(), autocommit=True) as db:
            db.execute("SET synchronous_commit = remote_apply")  # the replica has the roles once this is answered
            db.execute("COMMENT ON SCHEMA public IS 'ready'")
        yield found


async def prepare(pair):
    await init_schema(pair.url(), partitions=8)


async def test_of_several_hosts_the_primary_is_used_and_of_several_replicas_any(pair):
    primary, replica = (node.port for node in (pair.primary, pair.replica))
    url = f"postgresql://loom_app@127.0.0.1:{replica},127.0.0.1:{primary}/postgres"
    copied = f"postgresql://loom_app@127.0.0.1:{primary},127.0.0.1:{replica}/postgres"
    async with PostgresStore(url, replica=copied) as store:
        await store.put(ALICE, an_episode())
        assert await ids_of(store, ALICE, "tea") == ["e1"]
        reads = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'loom_app'"
        assert pair.replica.execute(reads) == [(1,)]


async def test_a_primary_that_dies_under_load_costs_nothing(pair):
    """Nothing acknowledged is lost and nothing is doubled; nobody is even refused."""

    async def fail_over():
        await anyio.to_thread.run_sync(pair.fail_over)
        await anyio.to_thread.run_sync(pair.follow)

    async with PostgresStore(pair.url("loom_app"), pool_size=3, timeout=120) as store:
        load = await under_load(store, fail_over, rounds=3)
    assert not load.refused
    await check(load, pair.url("loom_app"))


async def test_a_commit_that_its_standby_did_not_confirm_is_not_acknowledged(pair):
    refused = []

    async def put(store):
        with pytest.raises(StoreUnavailable, match="did not wait for its standby"):
            await store.put(ALICE, an_episode())
        refused.append(store)

    async with PostgresStore(pair.url("loom_app"), timeout=120) as store:
        assert await store.count(ALICE) == 0
        pair.replica.kill()
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put, store)
            while not pair.primary.execute(f"SELECT pg_cancel_backend(pid) {waiting}"):
                await anyio.lowlevel.checkpoint()
        assert refused == [store]
        pair._set_sync("")


async def test_reads_of_a_replica_see_what_was_written_by_the_same_store(pair):
    """Others see it once it is replayed there."""
    url, replica = pair.url("loom_app"), pair.replica.url("loom_app")
    pair._set_sync("")
    async with PostgresStore(url, replica=replica) as store, PostgresStore(url) as other:
        await store.put(ALICE, an_episode("e1"))
        assert await ids_of(store, ALICE, "tea") == ["e1"]
        while pair.replica.execute("SELECT count(*) FROM loom.records") == [(0,)]:
            await anyio.lowlevel.checkpoint()
        pair.replica.execute("SELECT pg_wal_replay_pause()")
        while pair.replica.execute("SELECT pg_get_wal_replay_pause_state()") != [("paused",)]:
            await anyio.lowlevel.checkpoint()
        await other.put(ALICE, an_episode("e2"))
        await other.put(BOB, an_episode("b1"))
        assert await ids_of(store, ALICE, "tea") == ["e1"]  # the replica answered
        assert await ids_of(store, BOB, "tea") == []
        await store.put(ALICE, an_episode("e3"))
        for _ in range(3):
            assert sorted(await ids_of(store, ALICE, "tea")) == ["e1", "e2", "e3"]
        assert await ids_of(store, BOB, "tea") == []  # of whom this store wrote nothing
        pair.replica.execute("SELECT pg_wal_replay_resume()")
        while await ids_of(store, BOB, "tea") == []:
            await anyio.lowlevel.checkpoint()
        assert sorted(await ids_of(store, ALICE, "tea")) == ["e1", "e2", "e3"]
        assert store.notes == (schema.MAY_LOSE,)


async def test_a_replica_that_is_down_is_not_needed(pair, monkeypatch):
    monkeypatch.setattr(connection, "_REST", 0.0)
    url = f"{pair.url('loom_app')}&replica={pair.replica.url('loom_app').replace(':', '%3A').replace('/', '%2F')}"
    async with PostgresStore(url, timeout=120) as store:
        await store.put(ALICE, an_episode())
        assert await ids_of(store, ALICE, "tea") == ["e1"]
        assert store.notes == ()
        pair._set_sync("")
        pair.replica.kill()
        assert await ids_of(store, ALICE, "tea") == ["e1"]
        assert "the replica does not answer" in store.notes[0]
        pair.replica.start()
        assert await ids_of(store, ALICE, "tea") == ["e1"]
        assert store.notes == ()


async def test_a_replica_that_was_promoted_is_read_no_more(pair):
    """It is a server of its own then, with its own truth."""
    pair._set_sync("")
    async with PostgresStore(pair.primary.url("loom_app"), replica=pair.replica.url("loom_app")) as store:
        await store.put(ALICE, an_episode("e1"))
        assert await ids_of(store, ALICE, "tea") == ["e1"]
        pair.replica.promote()
        async with PostgresStore(pair.replica.url("loom_app")) as other:
            await other.put(ALICE, an_episode("stray"))
        assert await ids_of(store, ALICE, "tea") == ["e1"]


async def test_what_a_failover_may_lose_is_said():
    check_installed()
    with postgres_pair(sync=False) as pair:
        await init_schema(pair.url())
        async with PostgresStore(pair.url("loom_app")) as store:
            assert await store.count(ALICE) == 0
            assert any("failover may lose the last moments" in note for note in store.notes)
            assert "failover may lose" in (await store.describe())["durability"]


async def test_a_replica_alone_takes_no_writes_and_says_so(pair):
    async with PostgresStore(pair.replica.url("loom_app")) as store:
        assert await store.count(ALICE) == 0
        with pytest.raises(StoreUnavailable, match="postgresql://HOST1,HOST2/DB"):
            await store.put(ALICE, an_episode())


# Addresses and positions.


def test_options_of_loom_are_taken_out_of_the_url():
    given = (
        "postgresql://u:p%40@a:1,b:2/d?target_session_attrs=read-write&replica=postgresql%3A%2F%2Fu%40c%2Fd&prepare=off"
    )
    plain = "postgresql://u:p%40@a:1,b:2/d?target_session_attrs=read-write"
    assert Address.of(given) == Address(plain, "postgresql://u@c/d", prepares=False)
    assert Address.of(plain) == Address(plain)
    assert Address.of("host=a dbname=b") == Address("host=a dbname=b")
    assert Address.of("postgresql://u@a/d?prepare=off") == Address("postgresql://u@a/d", prepares=False)
    with pytest.raises(UsageError, match="prepare=on or prepare=off"):
        PostgresStore("postgresql://u@a/d?prepare=maybe")


def test_what_a_url_says_to_libpq_counts_more_than_what_is_usual():
    check_installed()
    usual = Address.of("postgresql://u@a,b/d").options(30)
    assert (usual["target_session_attrs"], usual["connect_timeout"], usual["tcp_user_timeout"]) == (
        "read-write", 3, 3000)  # fmt: skip
    given = Address.of("postgresql://u@a,b/d?target_session_attrs=any&connect_timeout=9&prepare=off").options(30)
    assert usual.keys() - given.keys() == {"target_session_attrs", "connect_timeout"}
    alone = Address.of("postgresql://u@a/d").options(30)
    assert (alone["connect_timeout"], "target_session_attrs" in alone) == (30, False)


def test_a_name_of_several_hosts_holds_no_password():
    check_installed()
    assert name_of("postgresql://u:hunter2@a:1,b:2/d?prepare=off") == "postgresql://u@a:1,b:2/d"


def test_positions_only_rise_for_each_user(monkeypatch):
    monkeypatch.setattr(connection, "_FLOORS", 2)
    alice, bob, carol = (owner_of(Scope(user_id=name)) for name in ("alice", "bob", "carol"))
    floors = Floors()
    assert floors.of(alice) == "0/0"
    for position in ("1/A0", "0/FFFFFFFF", None):
        floors.lift(alice, position)
    floors.lift(bob, "0/10")
    assert (floors.of(alice), floors.of(bob), floors.of(carol)) == ("1/A0", "0/10", "0/0")
    floors.lift(carol, "0/20")  # too many to remember one by one: what is not, counts for all
    assert (floors.of(alice), floors.of(bob), floors.of(carol)) == ("1/A0", "1/A0", "1/A0")
    floors.lift_all("1/A1")
    assert floors.of(bob) == "1/A1"
