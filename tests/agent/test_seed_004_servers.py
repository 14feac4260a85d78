"""Seed 004 on the engines it names: Chroma, Redis and Postgres, each a real one."""

from __future__ import annotations

from typing import Any

import pytest

from loom import Agent
from loom.errors import UsageError
from loom.memory.chroma import ChromaMemory
from loom.stores.postgres import init_schema
from loom.testing import ScriptedModel
from loom.testing.servers.postgres import postgres
from loom.testing.servers.redis import redis

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
            "embedder": "wordllama",
            "with_facts": True,
        }
    )


async def test_chroma_as_an_instance(tmp_path: Any) -> None:
    place = str(tmp_path / "chroma-db")
    async with ChromaMemory.local(place, with_facts=True, embedder="wordllama") as memory:
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


async def test_an_unknown_engine_is_named_with_those_there_are() -> None:
    with pytest.raises(
        UsageError, match="the backends are inmemory, sqlite, postgres, redis, chroma, qdrant, composite"
    ):
        Agent("You are kind.", memory="cassandra://somewhere")
