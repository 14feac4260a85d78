"""What a Redis store says and keeps when its server is away, locked, forgetful or killed."""

import sys
from contextlib import aclosing

import anyio
import pytest

from loom import open_memory
from loom.errors import FormatTooNew, MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.protocols.memory_store import Query
from loom.stores.redis import RedisStore
from loom.testing.conformance.suite import ALICE, a_job, an_episode
from loom.testing.servers import free_port
from tests.stores.redis.conftest import check_installed, new_store, twin_of

pytestmark = pytest.mark.anyio

KILLS = 5


async def failing(store, error, match):
    """The store refuses its first call with this error."""
    async with aclosing(store):
        with pytest.raises(error, match=match) as caught:
            await store.put(ALICE, an_episode())
    return caught.value


def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(UsageError, match="redis://HOST:6379/0"):
        RedisStore("localhost:6379")
    with pytest.raises(UsageError) as caught:
        RedisStore("http://me:secret@localhost")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("option", ["bogus=1", "l1_ttl=60"])
async def test_an_option_that_nobody_knows_is_named(option):
    store = RedisStore(f"redis://me:secret@127.0.0.1:1/0?{option}")
    error = await failing(store, UsageError, f"'{option.partition('=')[0]}'.*ttl_l1")
    assert "secret" not in str(error)


async def test_a_missing_driver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    store = RedisStore("redis://127.0.0.1:1")
    with pytest.raises(MissingExtra, match=r"\[redis\]"):
        await store.search(ALICE, Query(text="tea"))


async def test_a_server_that_is_not_there_is_worth_a_retry():
    check_installed()
    port = free_port()
    error = await failing(RedisStore(f"redis://:secret@127.0.0.1:{port}"), StoreUnavailable, "is it running")
    assert error.retryable
    assert f"127.0.0.1:{port}" in str(error)
    assert "secret" not in str(error)


async def test_something_that_is_not_redis_is_said():
    async def answer(stream):
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        await failing(RedisStore(f"redis://127.0.0.1:{port}/0"), StoreError, "is not a Redis server.*check the host")
        # A cluster may have other servers that are known.
        await failing(
            RedisStore(f"redis+cluster://127.0.0.1:{port}/", timeout=0.2), StoreUnavailable, "400 Bad Request"
        )
        tasks.cancel_scope.cancel()


async def test_a_wrong_password_is_said(own_server):
    server = own_server(requirepass="right")
    for url in (server.url(), server.url(password="wrong")):
        error = await failing(RedisStore(url), StoreError, "password")
        assert not error.retryable
        assert "wrong:" not in str(error)
    async with RedisStore(server.url(password="right")) as store:
        await store.put(ALICE, an_episode())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"appendonly": "no"}, "without appendonly"),
        ({"maxmemory_policy": "allkeys-lru"}, "allkeys-lru"),
    ],
)
async def test_a_server_that_forgets_is_taken_with_a_note_and_refused_where_that_was_asked_for(
    own_server, settings, said
):
    url = own_server(**settings).url()
    for strict in (RedisStore(url, durable=True), RedisStore(f"{url}?durable=true")):
        error = await failing(strict, StoreError, said)
        assert "appendonly yes" in str(error)
    async with RedisStore(url) as store:
        assert await store.count(ALICE) == 0
        (note,) = store.notes
        assert said in note
        found = await store.guarantees()
        assert (found.is_durable, found.survives_power_cut) == (False, False)
        assert str(found).startswith("not durable")
    async with RedisStore(f"{url}?durable=true", durable=False) as store:  # what is said beside the URL counts more
        await store.put(ALICE, an_episode())


async def test_a_durable_server_needs_no_note(server):
    async with aclosing(RedisStore(f"{server.url()}?durable=yes", prefix="noted")) as store:
        await store.put(ALICE, an_episode())
        assert store.notes == ()


@pytest.mark.parametrize(("fsync", "is_safe"), [("always", True), ("everysec", False), ("no", False)])
async def test_a_store_says_what_it_guarantees(own_server, fsync, is_safe):
    async with RedisStore(own_server(appendfsync=fsync).url()) as store:
        found = await store.guarantees()
        assert (found.appendonly, found.appendfsync, found.eviction) == (True, fsync, "noeviction")
        assert (found.is_durable, found.survives_power_cut) == (True, is_safe)
        assert ("and a power cut" in str(found)) == is_safe
        # It is asked again each time: settings change while a server runs.
        await store._link.call("CONFIG", "SET", "appendonly", "no")
        assert not (await store.guarantees()).is_durable


async def test_a_server_that_hides_its_settings_is_taken_by_what_it_tells(own_server):
    server = own_server()
    async with RedisStore(server.url()) as admin:
        await admin._link.call("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config")
    async with RedisStore(server.url().replace("redis://", "redis://app:pw@")) as store:
        found = await store.guarantees()
        assert (found.is_durable, found.appendfsync, found.survives_power_cut) == (True, None, False)


async def test_a_newer_format_is_refused():
    async with aclosing(new_store()) as old:
        await old.put(ALICE, an_episode())
        await old._link.call("SET", old._names.format, 2)
        await failing(twin_of(old), FormatTooNew, "format 2")


async def test_an_answer_that_does_not_come_is_not_waited_for(own_server):
    server = own_server()
    async with RedisStore(server.url(), timeout=0.2) as store, RedisStore(server.url()) as other:
        await other._link.call("CLIENT", "PAUSE", 3_600_000, "ALL")
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await store.put(ALICE, an_episode())


async def acknowledged_before(server, store, name, wanted):
    """Four writers until so many writes were acknowledged; then the server is killed under them."""
    acknowledged = []

    async def write(writer):
        number = 0
        while True:
            id = f"{name}.{writer}.{number}"
            try:
                await store.write(
                    ALICE, put=[an_episode(id)], keys={id: {"around": "zeppelin"}}, jobs=[a_job(f"j{id}", key=id)]
                )
            except StoreUnavailable:
                return
            acknowledged.append(id)
            number += 1
            if len(acknowledged) == wanted:
                server.kill()

    async with anyio.create_task_group() as tasks:
        for writer in range(4):
            tasks.start_soon(write, writer)
    return acknowledged


async def test_a_killed_server_keeps_what_it_acknowledged(own_server):
    server, acknowledged = own_server(appendfsync="always"), []
    async with RedisStore(server.url()) as store:
        for kill in range(KILLS):
            acknowledged += await acknowledged_before(server, store, f"k{kill}", 20 + 7 * kill)
            server.start()
            # The same store goes on, and its copy of the user follows the server into its next life.
            kept = {record.id for record in await store.list(ALICE, limit=10_000)}
            assert set(acknowledged) <= kept
            assert await store.pending(ALICE) == len(kept)
            hits = await store.search(ALICE, Query(text="zeppelin", limit=10_000))
            assert {hit.item.id for hit in hits} == kept
    assert len(acknowledged) >= KILLS * 20


async def test_a_server_without_a_file_loses_it_and_the_test_above_would_see_it(own_server):
    server = own_server(appendonly="no")
    async with RedisStore(server.url()) as store:
        acknowledged = await acknowledged_before(server, store, "k", 20)
        server.start()
        assert len(acknowledged) >= 20
        assert await store.list(ALICE) == ()


async def test_a_copy_does_not_outlive_what_the_server_lost(own_server):
    server = own_server(appendonly="no")
    async with RedisStore(server.url()) as store:
        await store.put(ALICE, an_episode("lost"))
        assert len(await store.search(ALICE, Query(text="tea"))) == 1
        server.kill()
        server.start()
        async with RedisStore(server.url()) as other:
            # The first change of the new life has the number that the lost one had.
            await other.put(ALICE, an_episode("new"))
            assert [hit.item.id for hit in await other.search(ALICE, Query(text="tea"))] == ["new"]
        assert [hit.item.id for hit in await store.search(ALICE, Query(text="tea"))] == ["new"]


async def test_a_memory_goes_on_with_vectors_on_a_server_that_lost_everything(own_server):
    """Such as one without an append-only file that was started again: the embedder it was bound to is lost, too."""
    server = own_server()
    async with open_memory(server.url()) as memory, open_memory(server.url()) as reader:
        await memory.remember("I like copper lamps.", user_id="ann")
        await reader.recall("What lamps?", user_id="ann")
        await memory.store._link.call("FLUSHALL")
        assert "words only" not in str((await reader.recall("What tea?", user_id="ann")).notes)
        await memory.store._link.call("FLUSHALL")
        assert (await memory.remember("I like river tea.", user_id="ann")).notes == ()
        found = await reader.recall("What tea?", user_id="ann")
        assert (len(found.hits), found.notes) == (1, ())
        assert await memory.store.count_unembedded() == 0


async def test_records_that_the_server_dropped_are_an_error_that_says_so(own_server):
    server = own_server()
    async with open_memory(server.url()) as memory:
        await memory.remember("I like copper lamps.", user_id="ann")
        link = memory.store._link
        (key,) = await link.call("KEYS", "loom:records:*")
        await link.call("DEL", key)
    async with open_memory(server.url()) as memory:
        with pytest.raises(StoreError, match=r"lost records of 'ann'.*noeviction.*forget"):
            await memory.recall("lamps", user_id="ann")
        await memory.forget(user_id="ann")
        await memory.remember("I like river tea.", user_id="ann")
        assert len((await memory.recall("tea", user_id="ann")).hits) == 1


@pytest.mark.parametrize("password", ["1/SECRET", "SECRET/x", "SECRET#x", "SECRET?x"])
def test_a_password_that_is_not_encoded_is_refused_and_not_repeated(password):
    with pytest.raises(UsageError, match="%2F for a / in the password") as refused:
        RedisStore(f"redis://:{password}@127.0.0.1:6379/0")
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("path", ["abc", "0/1"])
def test_a_database_whose_name_is_not_a_number_is_not_taken_for_the_first(path):
    with pytest.raises(UsageError, match="they have numbers"):
        RedisStore(f"redis://127.0.0.1:6379/{path}")


def test_an_option_that_changes_what_is_read_is_refused():
    with pytest.raises(UsageError, match="decode_responses"):
        RedisStore("redis://127.0.0.1:6379/0?decode_responses=true")


async def test_a_full_server_and_a_replica_say_what_to_do(own_server):
    server = own_server()
    async with RedisStore(server.url()) as store:
        await store.put(ALICE, an_episode("e1"))
        await store._link.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailable, match=r"full.*maxmemory.*forget"):
            await store.put(ALICE, an_episode("e2"))
        await store._link.call("CONFIG", "SET", "maxmemory", "0")
        await store._link.call("REPLICAOF", "127.0.0.1", str(free_port()))
        with pytest.raises(StoreUnavailable, match=r"replica.*master"):
            await store.put(ALICE, an_episode("e2"))
