"""Layers, applications and knowledge bases: the examples of rows 002 in `docs/reference/coming-from.md`.

A local server that speaks OpenAI's format answers for OpenAI.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from loom.api import AgentConfig, LoomApp
from loom.config.memory import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
from loom.core.message import ToolCallPart, ToolResultPart
from loom.core.record import Layer
from loom.errors import NotFound, UsageError
from loom.knowledge.document import KnowledgeItem
from loom.memory.vector_store import InMemoryVectorStore
from loom.protocols.model import ModelRequest
from loom.providers.embedding.openai import OpenAIEmbeddingProvider
from loom.providers.knowledge import GraphKnowledgeBase, InMemoryKnowledgeBase, VectorKnowledgeBase
from loom.testing import FakeClock, ScriptedModel
from tests.providers.embeddings_server import embeddings_service

pytestmark = pytest.mark.anyio


@pytest.fixture
def embedding_provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    with embeddings_service() as server:
        server.dimension = 1536
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        yield OpenAIEmbeddingProvider(api_key="your-api-key", model="text-embedding-3-small")


def test_the_layers_are_configured_as_shown() -> None:
    memory_config = MemoryConfig(
        l1=MemoryLayerConfig(capacity=10, retention_hours=1, auto_compress=True, promote_threshold=3)
    )
    assert memory_config.l1 == MemoryConfig().l1
    memory_config = MemoryConfig(
        l2=MemoryLayerConfig(capacity=50, retention_hours=24, auto_compress=True, promote_threshold=5)
    )
    assert memory_config.l2 == MemoryConfig().l2
    memory_config = MemoryConfig(
        l3=MemoryLayerConfig(capacity=200, retention_hours=168, auto_compress=True, promote_threshold=10)
    )
    assert memory_config.l3 == MemoryConfig().l3
    memory_config = MemoryConfig(
        l4=MemoryLayerConfig(capacity=1000, retention_hours=None, auto_compress=False, promote_threshold=0)
    )
    assert memory_config.l4 == MemoryConfig().l4


async def test_l1_is_in_every_context_in_the_documented_order() -> None:
    kb = InMemoryKnowledgeBase()
    kb.add_item(KnowledgeItem(id="kb_1", content="API authentication uses Bearer tokens", source="API docs"))
    model = ScriptedModel(lambda _: "ok")
    app = LoomApp(model=model)
    context_manager = app.create_agent(
        AgentConfig(name="a", system_prompt="You are an assistant.", memory=MemoryConfig(knowledge_base=kb))
    )
    await context_manager.run("My task is the login page.", user_id="ann", session_id="one")
    await context_manager.run("Hello again.", user_id="ann", session_id="two")
    current_task = "How does API authentication work?"
    messages = await context_manager.preview(current_task, user_id="ann", session_id="two")
    text = "\n".join(f"{m.role}: {m.text}" for m in messages)
    order = ("You are an assistant.", "Hello again.", "My task is the login page.", "Bearer tokens", current_task)
    places = [text.index(piece) for piece in order]
    assert places == sorted(places)
    assert messages[0].role == "system"
    assert messages[-1].text == current_task
    asked = len(model.requests)
    assert await context_manager.preview(current_task, user_id="ann", session_id="two") == messages
    assert len(model.requests) == asked, "nothing is sent"
    await app.aclose()


async def test_on_the_wire_the_context_costs_no_prefix() -> None:
    model = ScriptedModel(lambda _: "ok", name="anthropic:claude-sonnet-4-5")
    kb = InMemoryKnowledgeBase()
    kb.add_item(KnowledgeItem(id="kb_1", content="API authentication uses Bearer tokens", source="API docs"))
    app = LoomApp(model=model)
    agent = app.create_agent(AgentConfig(name="a", system_prompt="Be brief.", memory=MemoryConfig(knowledge_base=kb)))
    await agent.run("I live in Lisbon.", user_id="ann")
    for n in range(4):
        await agent.run(f"How does API authentication work? {n}", user_id="ann", session_id="s")
    bodies = [r.rendered.body for r in model.requests[1:] if r.rendered]
    assert len(bodies) >= 4
    for before, after in pairwise(bodies):
        assert after["system"] == before["system"]
        assert [t["name"] for t in after["tools"]] == [t["name"] for t in before["tools"]]
        said, now = ([b["text"] for m in body["messages"] for b in m["content"]] for body in (before, after))
        assert "<memory>" in said[-1], "it stands in the tail"
        assert now[: len(said) - 1] == said[:-1]
    await app.aclose()


@pytest.mark.parametrize(
    ("call", "layer"),
    [
        ({"tool": "search_l2_memory", "arguments": {"query": "user preferences", "limit": 5}}, Layer.L2),
        ({"tool": "search_l3_memory", "arguments": {"query": "previous configurations", "limit": 5}}, Layer.L3),
        (
            {"tool": "search_l4_memory", "arguments": {"query": "how to authenticate API requests", "limit": 5}},
            Layer.L4,
        ),
    ],
)
async def test_the_tool_calls_of_the_seed_work(call: dict[str, Any], layer: Layer) -> None:
    text = f"About {call['arguments']['query']}: the answer is 42."

    def script(request: ModelRequest) -> Any:
        results = [p for m in request.messages for p in m.parts if isinstance(p, ToolResultPart)]
        return str(results[-1].content[0]) if results else ToolCallPart("c", call["tool"], call["arguments"])

    async with LoomApp(model=ScriptedModel(script)) as app:
        agent = app.create_agent(AgentConfig(name="a", memory=MemoryConfig()))
        assert agent.memory
        (kept,) = (await agent.memory.remember(text, user_id="ann", at=None)).kept
        await agent.memory.promote(kept.id, user_id="ann", to=layer)
        result = await agent.run("Look.", user_id="ann")
        assert "the answer is 42" in result.text


async def test_the_knowledge_bases_of_the_seed(embedding_provider: Any) -> None:
    vector_store = InMemoryVectorStore()
    kb = VectorKnowledgeBase(embedding_provider=embedding_provider, vector_store=vector_store)
    assert await kb.search("anything", limit=1) == ()

    class Service:
        async def search(self, *_: Any, **__: Any) -> dict[str, list[Any]]:
            return {"results": []}

    graph = GraphKnowledgeBase(graph_rag_service=Service(), search_mode="hybrid", max_hops=2)
    config = MemoryConfig(knowledge_base=graph, enable_auto_migration=True, enable_compression=True)
    assert config.knowledge_base is graph


async def test_the_complete_example(embedding_provider: Any) -> None:
    vector_store = InMemoryVectorStore()
    knowledge_base = VectorKnowledgeBase(embedding_provider=embedding_provider, vector_store=vector_store)
    memory_config = MemoryConfig(
        strategy=MemoryStrategyType.SIMPLE,
        l1=MemoryLayerConfig(capacity=10, retention_hours=1),
        l2=MemoryLayerConfig(capacity=50, retention_hours=24),
        l3=MemoryLayerConfig(capacity=200, retention_hours=168),
        l4=MemoryLayerConfig(capacity=1000, retention_hours=None),
        knowledge_base=knowledge_base,
        enable_auto_migration=True,
        enable_compression=True,
    )
    agent_config = AgentConfig(
        name="memory_agent", system_prompt="You are an AI assistant with long-term memory", memory=memory_config
    )
    app = LoomApp()
    agent = app.create_agent(agent_config)
    assert agent.memory
    assert agent.memory.config is memory_config
    assert (await agent.run("I live in Lisbon.", user_id="ann")).text
    assert "Lisbon" in (await agent.run("Where do I live?", user_id="ann")).text
    assert app.get_agent("memory_agent") is agent
    assert app.list_agents() == ("memory_agent",)
    await app.aclose()


async def test_layers_are_those_of_the_configuration(tmp_path: Any) -> None:
    clock = FakeClock()
    layers = MemoryConfig(l1=MemoryLayerConfig(capacity=2, retention_hours=1))
    app = LoomApp(model=ScriptedModel(lambda _: "ok"), url=f"sqlite:{tmp_path / 'app.db'}")
    agent = app.create_agent(AgentConfig(name="a", memory=layers, options={"clock": clock}))
    assert agent.memory
    for n in range(4):
        await agent.run(f"note {n}", user_id="ann")
        clock.advance(timedelta(seconds=1))
    assert (await agent.memory.stats(user_id="ann"))["L1"] == 2
    await app.aclose()


async def test_agents_of_one_application_do_not_share_memories(tmp_path: Any) -> None:
    async with LoomApp(model=ScriptedModel(lambda _: "ok"), url=f"sqlite:{tmp_path / 'app.db'}") as app:
        one = app.create_agent(AgentConfig(name="one", memory=MemoryConfig()))
        two = app.create_agent(AgentConfig(name="two", memory=MemoryConfig()))
        await one.run("I live in Lisbon.", user_id="ann")
        assert two.memory
        assert await two.memory.facts(user_id="ann") == ()
        with pytest.raises(UsageError, match="already"):
            app.create_agent(AgentConfig(name="one"))
        with pytest.raises(NotFound, match="one, two"):
            app.get_agent("three")
        with pytest.raises(UsageError, match="needs a name"):
            AgentConfig(name=" ")
