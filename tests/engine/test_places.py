"""Every way to say where a memory is: one store, one with a vector engine beside it, several put together."""

import sys
from urllib.parse import quote

import pytest

from loom.core.record import Layer
from loom.core.scope import Scope
from loom.engine import open_memory
from loom.engine.open import open_checkpoints
from loom.engine.urls import Opening, check_is_there, places_of, sessions_place, store_at
from loom.errors import FormatTooNew, MissingExtra, NotFound, StoreError, StoreUnavailable, UsageError
from loom.memory.chroma import ChromaMemory
from loom.memory.qdrant import QdrantMemory
from loom.providers.embedding.local import HashEmbedder
from loom.stores.postgres import PostgresStore
from loom.stores.qdrant import QdrantVectorStore
from loom.stores.redis import RedisStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.checkpoint_store import CHAT, a_checkpoint
from loom.testing.conformance.suite import ALICE, an_episode
from loom.testing.servers import free_port, redis
from loom.wrappers.composite import CompositeStore
from loom.wrappers.indexed import IndexedStore

pytestmark = pytest.mark.anyio

ANN = Scope(user_id="ann")


def opened(where, **options):
    return open_memory(where, embedder=HashEmbedder(), **options)


async def used(memory):
    """Remember, recall, export and forget, for two users who never meet."""
    async with memory:
        await memory.remember(["I live in Tokyo.", "My boat is green."], user_id="ann", session_id="s1")
        await memory.metabolize(user_id="ann")
        await memory.set_block("persona", "calm", user_id="ann")
        found = await memory.recall("Who lives in Tokyo?", user_id="ann")
        assert "I live in Tokyo." in [hit.item.text for hit in found.hits]
        assert (await memory.recall("Who lives in Tokyo?", user_id="bob")).hits == ()
        lines = [line async for line in memory.export(user_id="ann")]
        assert sum("boat is green" in line for line in lines) >= 1
        assert await memory.store.users() == (ANN,)
        receipt = await memory.forget(user_id="ann")
        assert receipt.removed["episode"] >= 2
        assert await memory.store.count(ANN) == 0
        assert await memory.store.users() == ()


# -- composed ---------------------------------------------------------------------------------------------


def parts_of(memory):
    """The kinds of the parts of a composed store, the index of the primary store included."""
    parts = memory.store.parts
    index = parts["primary"]._index
    return [type(parts["primary"].parts["primary"]), type(index), type(parts["l1+l2"])]


@pytest.fixture(params=["sqlite", "postgres"])
def kept(request, tmp_path):
    """Where everything is that no other part keeps."""
    return f"sqlite:{tmp_path}/truth.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.mark.parametrize("form", ["mapping", "url"])
async def test_layers_vectors_and_primary_each_on_an_engine_of_its_own(kept, tmp_path, redis_url, form):
    vectors = f"qdrant:{tmp_path}/vectors"
    if form == "mapping":
        where = {"backend": "composite", "primary": kept, "vectors": vectors, "layers": {"l2": redis_url}}
    else:
        where = f"composite:?primary={quote(kept, safe='')}&vectors={vectors}&l2={redis_url}"
    memory = opened(where)
    primary = SqliteStore if kept.startswith("sqlite") else PostgresStore
    assert parts_of(memory) == [primary, QdrantVectorStore, RedisStore]
    assert not list(tmp_path.iterdir())  # nothing happens before the first call
    await used(memory)


async def test_what_is_composed_lies_where_it_was_said(tmp_path, redis_url):
    where = {"backend": "composite", "primary": f"sqlite:{tmp_path}/t.db", "vectors": f"qdrant:{tmp_path}/v"}
    async with opened(where | {"layers": {"l2": redis_url}}) as memory:
        await memory.store.put(ALICE, an_episode("l1"), an_episode("l2", layer=Layer.L2))
        await memory.store.put(ALICE, an_episode("l3", layer=Layer.L3), an_episode("l4", layer=Layer.L4))
    async with store_at(f"sqlite:{tmp_path}/t.db", Opening()) as primary, store_at(redis_url, Opening()) as hot:
        assert [record.id for record in await primary.list(ALICE)] == ["l3", "l4"]
        assert [record.id for record in await hot.list(ALICE)] == ["l1", "l2"]


async def test_a_place_named_twice_is_one_store(tmp_path):
    file = f"sqlite:{tmp_path}/t.db"
    async with opened({"backend": "composite", "primary": file, "layers": {"l2": file}}) as memory:
        await memory.store.put(ALICE, an_episode(layer=Layer.L2))
        await memory.store.put(ALICE, an_episode(layer=Layer.L3))  # two stores on one file would take it away
        assert (await memory.store.get(ALICE, "e1")).layer is Layer.L3
        assert list(memory.store.parts) == ["primary"]


async def test_a_primary_alone_is_that_store(tmp_path):
    assert isinstance(store_at(f"composite:?primary=sqlite:{tmp_path}/t.db", Opening()), SqliteStore)
    both = store_at(f"composite:?primary=sqlite:{tmp_path}/t.db&vectors=qdrant", Opening())
    assert isinstance(both, IndexedStore)
    layers = {"backend": "composite", "layers": {"l2": "inmemory", "l4": f"sqlite:{tmp_path}/t.db"}}
    assert isinstance(store_at(layers, Opening()), CompositeStore)


# -- a vector engine --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["chroma", "qdrant"])
async def test_an_engine_in_memory_and_in_a_folder(tmp_path, engine):
    await used(opened(engine))
    folder = tmp_path / "new" / engine
    memory = opened(f"{engine}:{folder}")
    assert not folder.exists()
    await used(memory)
    assert (folder / "memory.db").exists()
    await used(opened({"backend": engine, "path": str(folder)}))
    await used(opened({"backend": engine, "path": str(folder), "primary": f"sqlite:{tmp_path}/elsewhere.db"}))
    assert (tmp_path / "elsewhere.db").exists()


async def test_a_chroma_server_beside_any_primary(tmp_path, chroma_url, postgres_url):
    await used(opened(f"chroma+{chroma_url}?primary=sqlite:{tmp_path}/t.db"))
    await used(opened(f"chroma+{chroma_url}?primary={quote(postgres_url, safe='')}"))
    await used(opened({"backend": "chroma", "url": chroma_url, "primary": postgres_url}))


async def test_the_classes_of_the_engines(tmp_path, chroma_url, postgres_url):
    await used(QdrantMemory.ephemeral(embedder=HashEmbedder()))
    await used(QdrantMemory.local(tmp_path / "q", embedder=HashEmbedder()))
    await used(ChromaMemory.server(chroma_url, primary=postgres_url, embedder=HashEmbedder()))
    with pytest.raises(UsageError, match=r"QdrantMemory\.server"):
        QdrantMemory.local("https://host:6333")


async def test_the_key_of_a_qdrant_server(monkeypatch):
    def calls(where):
        return store_at(where, Opening())._index._engine._calls

    monkeypatch.setenv("QDRANT_API_KEY", "of the environment")
    found = calls("qdrant+https://of%20the%20url@host:6333?primary=inmemory")
    assert (found.where, found._api_key) == ("https://host:6333", "of the url")
    assert calls("qdrant+https://host?primary=inmemory")._api_key == "of the environment"
    mapping = {"backend": "qdrant", "url": "https://:secret@host:6333", "primary": "inmemory"}
    assert calls(mapping)._api_key == "secret"
    monkeypatch.delenv("QDRANT_API_KEY")
    assert calls("qdrant+https://host?primary=inmemory")._api_key is None


async def test_an_engine_that_cannot_be_reached_costs_no_answer():
    memory = opened(f"qdrant+http://127.0.0.1:{free_port()}?primary=inmemory")
    async with memory:
        await memory.remember("I live in Tokyo.", user_id="ann")
        assert (await memory.recall("Tokyo", user_id="ann")).hits
        assert "cannot be reached" in memory.store.failure


# -- capitals and the home folder -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "file"),
    [
        ("sqlite:~/bot.db", "bot.db"),
        ("SQLite://~/bot.db", "bot.db"),
        ({"backend": "sqlite", "path": "~/bot.db"}, "bot.db"),
        ("Qdrant:~/bot", "bot/memory.db"),
        ({"backend": "chroma", "path": "~/bot"}, "bot/memory.db"),
        ("composite:?primary=SQLITE:~/bot.db&vectors=qdrant:~/bot", "bot.db"),
    ],
    ids=str,
)
async def test_capitals_and_the_home_folder(tmp_path, monkeypatch, where, file):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    async with opened(where) as memory:
        await memory.remember("I live in Tokyo.", user_id="ann")
    assert (tmp_path / file).is_file()
    assert not (tmp_path / "~").exists()
    if isinstance(where, str):
        check_is_there(where)
        assert sessions_place(where) == f"sqlite:{tmp_path / file}"


async def test_checkpoints_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for where, name in (("FILES:~/talks", "talks"), ("Sqlite:~/talks.db", "talks.db")):
        with pytest.raises(NotFound, match=name):
            check_is_there(where)
        store = open_checkpoints(where)
        await store.save(CHAT, a_checkpoint("c1"), entries=(), head=None)
        await store.aclose()
        assert (tmp_path / name).exists()
        check_is_there(where)


def test_a_server_keeps_its_url():
    where = "POSTGRES://u:Pa~ss@Host/~db"
    assert places_of(where) == {"store": "postgres://u:Pa~ss@Host/~db"}
    check_is_there(where)


# -- one clear error --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("cassandra://u:hunter2@host", "no memory backend 'cassandra'; the backends are inmemory, sqlite, postgres"),
        ("hunter2", "the backends are"),
        ("bot.db", "for a file write sqlite:./bot.db$"),
        ("notes/bot", "for a file write sqlite:./notes/bot$"),
        ("./bot", "for a file write sqlite:./bot$"),
        ("../bot.sqlite3", "for a file write sqlite:../bot.sqlite3$"),
        ("~/bot", "for a file write sqlite:~/bot$"),
        ("/var/bot.sqlite", "for a file write sqlite:/var/bot.sqlite$"),
        ("cassandra", "qdrant, composite$"),
        (":memory:", "write inmemory$"),
        ("sqlite", "sqlite:./memory.db"),
        ("qdrant+http://u:hunter2@host:6333", r"qdrant\+http://HOST:6333\?primary=sqlite"),
        ("chroma+http://host:8000", r"chroma\+http://HOST:8000\?primary=sqlite"),
        ("chroma+http://hunter2@host:8000?primary=inmemory", r"ChromaVectorStore\(URL, headers"),
        ("qdrant+ftp://hunter2@host?primary=inmemory", "not the address of a qdrant server"),
        ("qdrant://hunter2@host:6333", r"a server is written qdrant\+http"),
        ("qdrant+http://host?primary=postgres://u:a&hunter2@h", "in which & is written %26"),
        ("qdrant+http://host?primary=", "cannot be read"),
        ("composite:", "needs `primary`"),
        ("composite:?vectors=qdrant", "needs `primary`"),
        ("composite:?primary=inmemory&l5=inmemory", "cannot be read"),
        ("composite:?primary=inmemory&vectors=milvus", "no vector engine 'milvus'; the engines are chroma, qdrant"),
        ("composite:?primary=inmemory&vectors=qdrant%2Bhttp://h?primary=inmemory", "say `primary` beside it"),
        ({"backend": "composite", "primary": "inmemory", "path": "x"}, "no path of its own"),
        ({"backend": "composite", "layers": "l2"}, "is a mapping"),
        ({"backend": "composite", "layers": {"l9": "inmemory"}}, "no layer 'l9'"),
        ({"backend": "sqlite", "path": "x", "layers": {"l2": "inmemory"}}, "'composite', and no other"),
        ({"backend": "sqlite", "path": "x", "vectors": "qdrant"}, "'composite', and no other"),
        ({"backend": "sqlite", "path": "x", "primary": "inmemory"}, "sqlite is its own"),
        ({"backend": "qdrant", "path": "x", "url": "http://h"}, "give one of them"),
        ({"backend": "qdrant", "colour": "red"}, "memory has no option colour"),
        (7, "names no memory"),
    ],
)
def test_what_names_no_store_is_refused_with_the_form(where, says):
    with pytest.raises(UsageError, match=says) as caught:
        opened(where)
    assert not isinstance(where, str) or "hunter2" not in str(caught.value) or where == "hunter2"


@pytest.mark.parametrize(
    ("where", "module", "extra"),
    [
        ("postgres://h/x", "psycopg_pool", "postgres"),
        ("redis://h", "redis.asyncio", "redis"),
    ],
)
async def test_a_missing_driver_says_what_to_install(monkeypatch, where, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    memory = opened(where)  # lazily: nothing is loaded before the first call
    with pytest.raises(MissingExtra, match=rf"pip install 'loom-engine\[{extra}\]'"):
        await memory.remember("tea", user_id="ann")
    await memory.aclose()


@pytest.mark.parametrize(("where", "module"), [("qdrant", "qdrant_client"), ("chroma", "chromadb")])
def test_a_missing_engine_is_said_at_once(monkeypatch, where, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'loom-engine\[{where}\]'"):
        opened(where)


async def test_a_wrong_password_is_said_and_not_repeated(postgres_server):
    with redis(requirepass="right") as server:
        for url in (postgres_server.url("loom_app", password="hunter2"), server.url(password="hunter2")):
            memory = opened({"backend": "composite", "primary": url, "vectors": "qdrant"})
            with pytest.raises(StoreError, match=r"password") as caught:
                await memory.remember("tea", user_id="ann")
            assert not isinstance(caught.value, StoreUnavailable)
            assert "hunter2" not in str(caught.value)
            await memory.aclose()


async def test_a_server_that_is_not_there_is_said():
    for scheme in ("postgres", "redis"):
        memory = opened(f"{scheme}://u@127.0.0.1:{free_port()}/0")
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
            await memory.remember("tea", user_id="ann")
        await memory.aclose()


async def test_a_missing_extension_is_named(postgres_server):
    import psycopg

    from loom.stores.postgres import init_schema

    with psycopg.connect(postgres_server.url(), autocommit=True) as db:
        db.execute("CREATE DATABASE plain")
    await init_schema(postgres_server.url(database="plain"))
    with psycopg.connect(postgres_server.url(database="plain"), autocommit=True) as db:
        db.execute("DROP EXTENSION vector CASCADE")
    memory = opened(postgres_server.url("loom_app", database="plain", password="s3cret&'%"))
    with pytest.raises(StoreError, match="no extension `vector`; run `loom store init`"):
        await memory.remember("tea", user_id="ann")
    await memory.aclose()


async def test_a_schema_of_a_newer_loom_is_refused(tmp_path, postgres_server, postgres_url, redis_url):
    import apsw
    import psycopg
    from redis import Redis

    file = tmp_path / "t.db"
    await used(opened(f"sqlite:{file}"))
    db = apsw.Connection(str(file))
    db.execute("PRAGMA user_version=99")
    db.close()
    with Redis.from_url(redis_url) as client:
        client.set("loom:format", 99)
    with psycopg.connect(postgres_server.url(), autocommit=True) as db:
        version = db.execute("SELECT value FROM loom.meta WHERE name = 'version'").fetchone()
        db.execute("UPDATE loom.meta SET value = '99' WHERE name = 'version'")
        try:
            for where in (f"sqlite:{file}", redis_url, postgres_url):
                memory = opened(where)
                with pytest.raises(FormatTooNew, match="format 99"):
                    await memory.remember("tea", user_id="ann")
                await memory.aclose()
        finally:
            db.execute("UPDATE loom.meta SET value = %s WHERE name = 'version'", version)


async def test_the_embedded_engine_of_qdrant_has_everything_in_its_folder(tmp_path):
    folder = tmp_path / "edge folder"
    for _ in range(2):
        async with open_memory(f"qdrant:edge:{folder}", embedder="hash") as memory:
            await memory.remember("The boat is in Yokohama.", user_id="alice", key="once")
            found = await memory.recall("Where is the boat?", user_id="alice")
            assert [hit.item.text for hit in found.hits] == ["The boat is in Yokohama."]
            assert found.notes == ()
    assert (folder / "memory.db").exists()
