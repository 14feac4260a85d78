"""A memory on real Chroma, Redis and Postgres servers, as they are installed: rows 004 in `docs/reference/coming-from.md`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest

from loom import Agent, open_memory
from loom.engine.agent_parts import agent_checkpoints
from loom.errors import MissingExtra, StoreError, UsageError
from loom.memory import CompositeMemory, PostgresMemory, QdrantMemory, RedisMemory, SqliteMemory
from loom.memory.chroma import ChromaMemory
from loom.memory.memory import Memory
from loom.stores.postgres import init_schema
from loom.testing import ScriptedModel
from loom.testing.fakes import FakeClock
from loom.testing.servers import postgres, redis

pytestmark = pytest.mark.anyio


async def goes_on_elsewhere(memory: Any) -> None:
    """A conversation that one agent began is gone on with by another, as by another process."""
    for said in ("I like tea.", "And what else?"):
        model = ScriptedModel(lambda _: "ok")
        async with Agent("You are kind.", model=model, memory=memory) as agent:
            await agent.run(said, user_id="carol", session_id="monday")
    assert [message.text for message in model.requests[-1].messages[:2]] == ["I like tea.", "ok"]


async def two_users_never_meet(memory: Any) -> None:
    """Alice's home is recalled for Alice, in a new session, and never for Bob."""
    model = ScriptedModel(lambda _: "ok")
    async with Agent("You are kind.", model=model, memory=memory) as agent:
        await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
        await agent.run("Hi, I'm Bob.", user_id="bob")
        found = await agent.run("Where do I live?", user_id="alice")
        assert found.recalled
        assert "Tokyo" in found.recalled.text
        await agent.run("Where do I live?", user_id="bob")
        assert "Tokyo" not in str(model.requests[-1])


async def test_chroma_that_is_gone_afterwards() -> None:
    await two_users_never_meet("chroma")


async def test_chroma_in_a_folder(tmp_path: Any) -> None:
    await goes_on_elsewhere(f"chroma:{tmp_path / 'chroma-db'}")
    await two_users_never_meet(f"chroma:{tmp_path / 'chroma-db'}")


async def test_chroma_as_a_mapping(tmp_path: Any) -> None:
    await two_users_never_meet(
        {
            "backend": "chroma",
            "path": str(tmp_path / "chroma-db"),
            "namespace": "tenant_a",
            "embedder": "static",
            "with_facts": True,
        }
    )


async def test_chroma_as_an_instance(tmp_path: Any) -> None:
    place = str(tmp_path / "chroma-db")
    async with ChromaMemory.local(place, with_facts=True, embedder="static") as memory:
        await two_users_never_meet(memory)
    async with ChromaMemory.ephemeral() as memory:
        await two_users_never_meet(memory)


async def test_redis_by_its_url() -> None:
    with redis() as server:
        await two_users_never_meet(server.url())
        await goes_on_elsewhere(server.url())
        await two_users_never_meet({"backend": "redis", "url": server.url(database=1)})


async def test_postgres_by_its_url() -> None:
    with postgres() as server:
        await init_schema(server.url(), password="a password")
        where = server.url("loom_app", password="a password")
        await two_users_never_meet(where)
        await goes_on_elsewhere(where)


@pytest.fixture(scope="module")
def stock_redis() -> Generator[str]:
    """The address of a Redis server as it is installed: no append-only file, snapshots now and then."""
    with redis(appendonly="no", appendfsync="everysec", save="3600 1 300 100 60 10000") as server:
        yield f"127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def empty_postgres() -> Generator[str]:
    """The address of a Postgres server with an empty database, which belongs to the one who connects."""
    import psycopg

    with postgres(passwords=True) as server, psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("CREATE ROLE \"user\" LOGIN PASSWORD 'pw'")
        db.execute('CREATE DATABASE jeeves OWNER "user"')
        yield f"127.0.0.1:{server.port}"


SEED = """
from loom import Agent
# In-memory (default; lost on restart)
agent = Agent("...", memory="inmemory")
# Single-file SQLite (persistent, no server)
agent = Agent("...", memory="sqlite:./bot.db")
# Chroma (ephemeral / persistent)
agent = Agent("...", memory="chroma")
agent = Agent("...", memory="chroma:./chroma-db")
# Postgres + pgvector
agent = Agent("...", memory="postgres://user:pw@localhost/jeeves")
# Redis (with optional RediSearch HNSW vector index)
agent = Agent("...", memory="redis://localhost:6379/0")
"""

USERS = """
await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
await agent.run("Hi, I'm Bob.", user_id="bob")
# Alice's lives_in fact never surfaces in Bob's recall.
"""

THREE_WAYS = """
agent = Agent("...", memory="postgres://localhost/jeeves")
agent = Agent("...", memory={ "backend": "chroma", "path": "./chroma-db", "namespace": "tenant_a", "embedder": "openai-large", "with_facts": True, })
from loom.memory.chroma import ChromaMemory
from loom.memory.embedder import OpenAIEmbedder
memory = ChromaMemory.local(
    "./chroma-db", with_facts=True, embedder=OpenAIEmbedder()
)
agent = Agent("...", memory=memory)
"""


async def executed(code: str, names: dict[str, Any]) -> None:
    """Run the lines of an example, which may await."""
    compiled = compile(code, "seed 004", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waits = eval(compiled, names)
    if waits is not None:
        await waits


async def test_every_line_of_the_seed_runs_on_servers_as_they_come(
    stock_redis: str, empty_postgres: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    here = SEED.replace("localhost:6379", stock_redis).replace("pw@localhost/", f"pw@{empty_postgres}/")
    imports, *rest = here.strip().splitlines()
    for line in rest:
        if line.startswith("#"):
            continue
        names: dict[str, Any] = {}
        await executed(f"{imports}\n{line}", names)
        assert names["agent"].memory
        await executed(USERS, names)
        async with names["agent"] as agent:
            assert [fact.object for fact in await agent.memory.facts(user_id="alice", predicate="lives_in")] == [
                "Tokyo"
            ]
            assert await agent.memory.facts(user_id="bob", predicate="lives_in") == ()
            assert "Tokyo" in (await agent.run("Where do I live?", user_id="alice")).text
            assert "Tokyo" not in (await agent.run("Where do I live?", user_id="bob")).text
    await executed(imports + THREE_WAYS.replace('"postgres://localhost/', f'"postgres://{empty_postgres}/'), {})


async def test_what_a_stock_server_guarantees_is_said_with_the_first_turn(
    stock_redis: str, empty_postgres: str
) -> None:
    places = {
        f"redis://{stock_redis}/3": "not durable: without appendonly",
        f"postgres://user:pw@{empty_postgres}/jeeves": "'user' owns the tables",
    }
    for place, note in places.items():
        async with Agent("...", memory=place) as agent:
            first = await agent.run("I like tea.", user_id="zoe")
            assert [told for told in first.notes if note in told], place
            second = await agent.run("And coffee.", user_id="zoe")
            assert not [told for told in second.notes if note in told], "once is enough"


async def test_durability_is_insisted_on_where_it_was_asked_for(stock_redis: str) -> None:
    for place in (
        f"redis://{stock_redis}/4?durable=true",
        {"backend": "redis", "url": f"redis://{stock_redis}/4", "durable": True},
    ):
        async with Agent("...", memory=place) as agent:
            with pytest.raises(StoreError, match="not durable"):
                await agent.run("I like tea.", user_id="zoe")


async def test_a_ttl_ends_what_was_said_and_the_session_it_was_said_in(stock_redis: str) -> None:
    clock = FakeClock()
    place = {"backend": "redis", "url": f"redis://{stock_redis}/5", "ttl": {"l1": "1h", "rest": "7d"}}
    async with open_memory(place, clock=clock) as memory:
        await memory.remember("The boat is in Yokohama.", user_id="zoe", session_id="s1")
        assert (await memory.recall("Where is the boat?", user_id="zoe")).hits
        clock.advance(timedelta(hours=1))
        assert not (await memory.recall("Where is the boat?", user_id="zoe")).hits
    store, _ = agent_checkpoints(None, place)
    assert (await store.describe())["retention"] == "sessions are kept for 7 days, 0:00:00 after their last save"
    await store.aclose()


async def test_memories_by_the_name_of_what_keeps_them(stock_redis: str, empty_postgres: str, tmp_path: Any) -> None:
    redis_url, postgres_url = f"redis://{stock_redis}/6", f"postgres://user:pw@{empty_postgres}/jeeves"
    made = {
        "SqliteStore": SqliteMemory(tmp_path / "bot.db", with_facts=True, embedder="hash", namespace="named"),
        "PostgresStore": PostgresMemory(postgres_url, embedder="static", namespace="named"),
        "RedisStore": RedisMemory(redis_url, ttl="7d", namespace="named"),
        "IndexedStore": QdrantMemory(tmp_path / "qdrant", embedder="hash", namespace="named"),
        "CompositeStore": CompositeMemory(
            l2=redis_url, l3=f"qdrant:{tmp_path / 'l3'}", primary=f"sqlite:{tmp_path / 'p.db'}", embedder="hash"
        ),
    }
    for store, memory in made.items():
        assert isinstance(memory, Memory)
        assert type(memory.store).__name__ == store
        await goes_on_elsewhere(memory)
        await two_users_never_meet(memory)
        await memory.aclose()
    assert made["CompositeStore"].place == f"sqlite:{tmp_path / 'p.db'}"


async def test_a_memory_by_its_name_means_the_same_as_its_url(tmp_path: Any) -> None:
    file = tmp_path / "bot.db"
    pairs = [
        (SqliteMemory(file, namespace="a", embedder="hash"), open_memory(f"sqlite:{file}", namespace="a", embedder="hash")),
        (CompositeMemory(l4=f"sqlite:{file}"), open_memory({"backend": "composite", "layers": {"l4": f"sqlite:{file}"}})),
        (RedisMemory("redis://h:1/2", durable=True, ttl={"l2": 90}), open_memory("redis://h:1/2?ttl_l2=90&durable=true")),
        (PostgresMemory("postgres://h/x", facts=None), open_memory("postgres://h/x", facts=None)),
    ]  # fmt: skip
    for named, opened in pairs:
        assert type(named.store) is type(opened.store)
        assert (named.namespace, named.facts_mode, named.embedder_note) == (
            opened.namespace,
            opened.facts_mode,
            opened.embedder_note,
        )
        if not isinstance(named, CompositeMemory):
            assert named.place == opened.place
        await named.aclose()
        await opened.aclose()


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (lambda: PostgresMemory("postgres://h/x"), "psycopg", "postgres"),
        (lambda: RedisMemory("redis://h"), "redis", "redis"),
        (ChromaMemory, "chromadb", "chroma"),
        (QdrantMemory, "qdrant_client", "qdrant"),
    ],
)
def test_what_is_not_installed_is_said_when_a_memory_is_made(
    make: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'loom-engine\[{extra}\]'"):
        make()


def test_a_memory_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="redis://HOST") as caught:
        RedisMemory("postgres://u:hunter2@h/x")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(UsageError, match="postgres://USER"):
        PostgresMemory("redis://h")
    with pytest.raises(UsageError, match="is for Redis"):
        open_memory({"backend": "sqlite", "path": "x.db", "ttl": "7d"})
    with pytest.raises(UsageError, match="no option colour"):
        SqliteMemory("x.db", colour="red")


def test_importing_the_memories_does_no_work() -> None:
    code = (
        "import sys, loom.memory; assert not {'loom.engine', 'apsw', 'numpy'} & set(sys.modules)\n"
        "from loom.memory import SqliteMemory, PostgresMemory, RedisMemory, ChromaMemory, QdrantMemory, CompositeMemory\n"
        "assert not {'chromadb', 'qdrant_client', 'redis', 'psycopg'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_an_unknown_engine_is_named_with_those_there_are() -> None:
    with pytest.raises(
        UsageError, match="the backends are inmemory, sqlite, postgres, redis, chroma, qdrant, composite"
    ):
        Agent("You are kind.", memory="cassandra://somewhere")
