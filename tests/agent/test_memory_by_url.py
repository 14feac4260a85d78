"""A memory given as a URL, a mapping or an object: rows 004 in `docs/reference/coming-from.md`, without servers."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from loom import Agent, get_run_context, open_memory, tool
from loom.core.message import ToolCallPart
from loom.errors import UsageError
from loom.memory._write.extract_llm import LlmExtractor
from loom.memory.embedder import OpenAIEmbedder
from loom.providers.embedding.openai import OpenAIEmbeddingProvider
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("memory", ["inmemory", "sqlite:./bot.db"])
async def test_a_url_is_a_memory(memory: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Agent("...", memory=memory)
    assert list(tmp_path.iterdir()) == [], "nothing is opened before the first run"
    await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
    await agent.run("Hi, I'm Bob.", user_id="bob")
    assert agent.memory
    assert [f.object for f in await agent.memory.facts(user_id="alice", predicate="lives_in")] == ["Tokyo"]
    assert await agent.memory.facts(user_id="bob", predicate="lives_in") == ()
    assert "Tokyo" in (await agent.run("Where do I live?", user_id="alice")).text
    assert "Tokyo" not in (await agent.run("Where do I live?", user_id="bob")).text
    await agent.aclose()


async def test_a_file_outlives_the_process(tmp_path: Any) -> None:
    url = f"sqlite:{tmp_path / 'bot.db'}"
    async with Agent("...", memory=url) as agent:
        await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
    async with Agent("...", memory=url) as agent:
        assert "Tokyo" in (await agent.run("Where do I live?", user_id="alice")).text


async def test_the_memory_that_is_lost_on_restart() -> None:
    async with Agent("...", memory="inmemory") as agent:
        await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
    async with Agent("...", memory="inmemory") as agent:
        assert "Tokyo" not in (await agent.run("Where do I live?", user_id="alice")).text


async def test_a_mapping_for_tweaks(tmp_path: Any) -> None:
    place = {"backend": "sqlite", "path": str(tmp_path / "bot.db"), "embedder": "hash"}
    tenant_a = Agent("...", memory={**place, "namespace": "tenant_a", "with_facts": True})
    tenant_b = Agent("...", memory={**place, "namespace": "tenant_b", "with_facts": False})
    for agent in (tenant_a, tenant_b):
        await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
    assert tenant_a.memory
    assert tenant_b.memory
    assert (tenant_a.memory.namespace, tenant_b.memory.namespace) == ("tenant_a", "tenant_b")
    assert await tenant_a.memory.facts(user_id="alice") != ()
    assert await tenant_b.memory.facts(user_id="alice") == ()
    result = await tenant_b.run("Hello.", user_id="alice")
    assert "no facts are extracted from what is said: facts=None" in result.notes
    await tenant_a.aclose()
    await tenant_b.aclose()
    with pytest.raises(UsageError, match="memory has no option colour"):
        Agent("...", memory={"backend": "inmemory", "colour": "red"})


async def test_an_instance_for_full_control() -> None:
    memory = open_memory("inmemory", with_facts=True, embedder="hash")
    async with Agent("...", memory=memory) as agent:
        assert agent.memory is memory


def test_two_names_of_one_embedder() -> None:
    assert OpenAIEmbedder is OpenAIEmbeddingProvider


async def test_a_memory_is_connected_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was connected")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    Agent("...", memory="inmemory", model="anthropic:claude-sonnet-4-5")
    Agent("...", memory={"backend": "inmemory", "embedder": "openai"})


async def test_facts_are_extracted_by_a_real_model_and_by_rules_with_a_reason_where_there_is_none() -> None:
    offline = Agent("...", memory="inmemory")
    assert offline.notes == ("facts are extracted with rules: offline:memory is not a language model",)
    named = Agent("...", model="anthropic:claude-sonnet-4-5", memory="inmemory")
    assert named.notes == ()
    assert named.memory
    assert named.memory.facts_mode == "model"
    assert isinstance(named.memory._reader, LlmExtractor)  # who would be asked


class Db:
    """The database of the example."""

    def __init__(self) -> None:
        self.orders = {"alice": [{"id": 1, "item": "tea"}], "bob": [{"id": 2, "item": "coffee"}]}

    async def query(self, table: str, *, user_id: str) -> list[dict[str, Any]]:
        return getattr(self, table)[user_id]


db = Db()


@tool
async def my_orders() -> list[dict]:  # type: ignore[type-arg]
    ctx = get_run_context()
    return await db.query("orders", user_id=ctx.user_id)


async def test_tools_see_the_active_scope() -> None:
    for user, item in (("alice", "tea"), ("bob", "coffee")):
        model = ScriptedModel([ToolCallPart("c", "my_orders", {}), "Done."])
        await Agent("...", model=model, tools=[my_orders]).run("My orders?", user_id=user)
        assert f'"item": "{item}"' in str(model.requests[-1].messages[-1])
