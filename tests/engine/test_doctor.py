"""What a store says of itself, and what is said of the installation."""

import sys
from urllib.parse import quote

import pytest

from loom import __version__
from loom.admin.doctor import examine, installed
from loom.admin.maintenance import init_store
from loom.engine.urls import Opening, store_at
from loom.errors import StoreError
from loom.testing.conformance.suite import ALICE, an_episode
from loom.testing.servers import free_port

pytestmark = pytest.mark.anyio

SAID = {"server", "durability", "isolation", "index", "embedder"}


async def embedded(where):
    """A store with one vector."""
    store = store_at(where, Opening())
    await store.bind("doctor:1:2", 2)
    await store.put(ALICE, an_episode())
    await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
    return store


async def test_a_file(tmp_path):
    await (await embedded(f"sqlite:{tmp_path}/m.db")).aclose()
    (found,) = await examine(f"sqlite:{tmp_path}/m.db")
    assert found.labels.keys() >= {*SAID, "schema", "driver"}
    assert found.labels["embedder"] == "doctor:1:2 (2 numbers)"
    assert "power cut" in found.labels["durability"]
    assert "1 vectors of 1 records" in found.labels["index"]
    assert found.labels["driver"].startswith("apsw 3.")
    fast = store_at(f"sqlite:{tmp_path}/m.db", Opening(durability="fast"))
    assert (await fast.describe())["durability"].startswith("fast")
    await fast.aclose()


async def test_in_memory():
    (found,) = await examine("inmemory")
    assert found.labels.keys() >= SAID
    assert found.labels["durability"].startswith("none")
    assert (await examine("sqlite::memory:"))[0].labels["durability"].startswith("none")


async def test_an_index_says_whether_it_is_in_step(tmp_path):
    where = f"qdrant:{tmp_path}/v"
    store = await embedded(where)
    assert (await store.describe())["index"].endswith("in step, by the outbox")
    await store._outbox.write(ALICE, ["e1"])
    assert "changes may be missing" in (await store.describe())["index"]
    await store._index.clear()
    assert "empty" in (await store.describe())["index"]
    await store._index.bind("other:1:3", 3)
    assert "of another embedder, other:1:3" in (await store.describe())["index"]
    await store.aclose()
    (found,) = await examine(where)
    assert found.labels["embedder"] == "doctor:1:2 (2 numbers)"
    assert "qdrant-client" in found.labels["driver"]


async def test_an_index_that_is_down_is_said_and_the_primary_answers():
    (found,) = await examine(f"qdrant+http://127.0.0.1:{free_port()}?primary=inmemory")
    assert found.failure is None
    assert "cannot be reached" in found.labels["index"]
    assert found.labels["durability"].startswith("none")


async def test_a_part_that_does_not_answer_costs_the_others_nothing(tmp_path, redis_url):
    gone = f"redis://127.0.0.1:{free_port()}/0"
    found = await examine(f"composite:?primary=sqlite:{tmp_path}/t.db&l2={gone}")
    assert [(one.part, one.failure is None) for one in found] == [("primary", True), ("l1+l2", False)]
    assert "does not answer" in found[1].failure
    found = await examine(f"composite:?primary=sqlite:{tmp_path}/t.db&l2={redis_url}")
    assert [one.failure for one in found] == [None, None]
    store = store_at(f"composite:?primary=sqlite:{tmp_path}/t.db&l2=inmemory", Opening())
    assert (await store.describe()).keys() >= {"primary.durability", "l1+l2.durability"}
    await store.aclose()


async def test_servers_are_asked(postgres_url, redis_url):
    for url in (postgres_url, redis_url):
        (found,) = await examine(url)
        assert found.failure is None
        assert found.labels.keys() >= {*SAID, "schema", "driver"}
        assert found.labels["driver"].split()[0] in {"psycopg", "redis"}
        assert "s3cret" not in str(found)


async def test_a_composed_store_on_servers_says_it_part_by_part(tmp_path, postgres_url, redis_url):
    where = f"composite:?primary={quote(postgres_url, safe='')}&vectors=qdrant:{tmp_path}/v&l2={redis_url}"
    await (await embedded(where)).aclose()
    primary, hot = await examine(where)
    assert (primary.part, primary.store, hot.part, hot.store) == ("primary", "IndexedStore", "l1+l2", "RedisStore")
    assert primary.labels["server"].startswith("PostgreSQL")
    assert "row-level security forced" in primary.labels["isolation"]
    assert "Qdrant at" in primary.labels["index"]
    assert hot.labels["durability"].startswith("durable")
    assert primary.labels["embedder"] == hot.labels["embedder"] == "doctor:1:2 (2 numbers)"


def test_the_installation(monkeypatch):
    monkeypatch.setenv("LOOM_MODEL", "anthropic:some-model")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    found = installed()
    assert found.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found.loom == __version__
    assert (found.model, found.model_failure) == ("anthropic:some-model", None)
    assert "on this machine, because no other was named" in found.embedder
    assert found.extras["qdrant"].startswith("qdrant-client ")
    monkeypatch.delenv("LOOM_MODEL")
    assert "LOOM_MODEL is not set" in installed().model
    assert installed().model_failure is None


def test_a_model_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("LOOM_MODEL", "bad")
    assert installed().model_failure.startswith("'bad' names no model; write provider:model")
    monkeypatch.setenv("LOOM_MODEL", "anthropic:some-model")
    monkeypatch.setitem(sys.modules, "anthropic", None)  # as where it is not installed
    assert "pip install 'loom-engine[anthropic]'" in installed().model_failure


def test_a_missing_extra_is_given_with_its_command(monkeypatch):
    from importlib import metadata

    real = metadata.version

    def version(name):
        if name == "psycopg":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert installed().extras["postgres"] == "not installed; run: pip install 'loom-engine[postgres]'"


# -- init -------------------------------------------------------------------------------------------------


async def test_init_makes_what_is_needed_and_may_be_repeated(tmp_path, postgres_server, redis_url):
    import psycopg

    with psycopg.connect(postgres_server.url(), autocommit=True) as db:
        db.execute("CREATE DATABASE fresh")
    admin = postgres_server.url(database="fresh")
    where = f"composite:?primary={admin}&vectors=qdrant:{tmp_path}/v&l2={redis_url}"
    for _ in range(2):
        made = await init_store(where, password="new&", app_role="fresh_app", owner_role=None, schema=None)
        assert [one.part for one in made] == ["primary", "vectors", "l2"]
        assert "postgresql://fresh_app@127.0.0.1" in made[0].done
        assert "new&" not in str(made)
        assert made[1].done.startswith("ready")
        assert made[2].done.startswith("ready")
    store = await embedded(postgres_server.url("fresh_app", database="fresh", password="new&"))
    assert await store.count(ALICE) == 1
    await store.aclose()


async def test_init_of_files(tmp_path):
    for _ in range(2):
        (made,) = await init_store(f"sqlite:{tmp_path}/m.db")
        assert "SQLite" in made.done
    assert (tmp_path / "m.db").exists()
    (made,) = await init_store(f"chroma:{tmp_path}/c")
    assert (tmp_path / "c" / "memory.db").exists()
    assert "Chroma at" in made.done
    with pytest.raises(StoreError):
        await init_store(f"sqlite:{tmp_path}/no/folder/m.db")
