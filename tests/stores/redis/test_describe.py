"""A Redis store says what it guarantees, and the primary store about it."""

from contextlib import aclosing
from datetime import timedelta

import pytest

from loom.core.record import Layer
from loom.errors import StoreError
from loom.protocols.memory_store import Describes
from loom.stores.redis import RedisCheckpointStore, RedisStore
from loom.testing.conformance.suite import ALICE, BOB, an_episode

pytestmark = pytest.mark.anyio

as_describing: Describes = RedisStore("redis://localhost")
as_describing_sessions: Describes = RedisCheckpointStore("redis://localhost")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "durable: an acknowledged write survives a killed server and a power cut"),
        ({"appendfsync": "everysec"}, "durable: survives a killed server; a power cut takes up to about a second"),
        ({"appendfsync": "no"}, "durable: survives a killed server; a power cut may take writes"),
        ({"appendonly": "no"}, "not durable: without appendonly"),
        ({"maxmemory_policy": "allkeys-lru"}, "not durable: maxmemory-policy is allkeys-lru, so a full server drops"),
    ],
    ids=["always", "everysec", "never", "no file", "evicting"],
)
@pytest.mark.parametrize("kind", [RedisStore, RedisCheckpointStore])
async def test_the_durability_is_that_of_the_server(own_server, kind, settings, words):
    server = own_server(**settings)
    async with aclosing(kind(server.url())) as store:
        told = await store.describe()
    assert told["durability"].startswith(words)
    for name, value in settings.items():
        assert f"{name.replace('_', '-')}={value}" in told["durability"]
    if words.startswith("not"):
        async with aclosing(kind(server.url(), durable=True)) as strict:
            with pytest.raises(StoreError, match="not durable"):
                await strict.describe()


async def test_every_label_is_told(server):
    url = server.url(database=2)
    async with aclosing(RedisStore(url, prefix="told", ttl={Layer.L2: timedelta(hours=48)})) as store:
        fresh = await store.describe()
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode())
        await store.put(BOB, an_episode())
        told = await store.describe()
        version = (await store._link.call("INFO", "server"))["redis_version"]
    assert list(told) == ["server", "schema", "durability", "isolation", "index", "embedder", "retention"]
    assert told["server"] == f"Redis {version}"
    assert told["schema"] == "keys that start with told:, format 1"
    assert "2 users" in told["index"]
    assert (fresh["embedder"], told["embedder"]) == ("none yet: nothing was embedded", "m:1:2 (2 numbers)")
    assert told["retention"] == "kept: L2 for 2 days, 0:00:00 while live; all else for ever"
    async with aclosing(RedisCheckpointStore(url, ttl=timedelta(hours=1))) as sessions:
        assert (await sessions.describe())["retention"] == "sessions are kept for 1:00:00 after their last save"
    async with aclosing(RedisStore(url)) as lasting:
        assert (await lasting.describe())["retention"] == "everything is kept for ever"
    async with aclosing(RedisCheckpointStore(url)) as lasting:
        assert (await lasting.describe())["retention"] == "sessions are kept for ever"
