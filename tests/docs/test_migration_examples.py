"""The Python examples of the documents that `docs/reference/coming-from.md` speaks of, as written there.

Only `loomflow` is spelled `loom`, and lines that a web page had run together are lines again. Servers that they name are
not asked: nothing connects before the first run. `tests/agent/test_memory_on_servers.py` runs them on real ones.
"""

from __future__ import annotations

import ast
import base64
import inspect
from pathlib import Path
from typing import Any

import pytest

from loom import Agent, Context
from loom.core.message import ToolCallPart
from loom.protocols.model import ModelRequest
from loom.testing import ScriptedModel
from tests.providers.embeddings_server import embeddings_service

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000")).decode()

QUICK_START = """
from loom import Context, StringEntry, FileEntry

ctx = Context("my-agent")

# Stable identity & rules
ctx.foundation.add(StringEntry("You are a helpful assistant."))
ctx.foundation.add(FileEntry("./SOUL.md")) # re-read on every compile

# Current task
ctx.focus.add(StringEntry("Review PR #42 and suggest improvements."))

# Pull in another context — its sections are interleaved with this one
security_ctx = Context("security")
security_ctx.foundation.add(StringEntry("Always validate user input."))
ctx.include(security_ctx)

# Render as Anthropic-style messages with explicit cache breakpoints
messages = ctx.to_messages(
cache_breakpoints=["foundation", "topic"],
cache_ttl=3600, # optional; sets Anthropic's max_age_seconds
)
"""
RENDERING = """
messages = ctx.to_messages(
cache_breakpoints=["foundation", "topic"], # up to 4
cache_ttl=3600, # optional max_age_seconds
sections=["foundation", "focus", "topic", "convo"], # selective
)
"""
VISITORS = """
shared = Context("shared-rules")
shared.foundation.add(FileEntry("./RULES.md"))

agent_a.include(shared)
agent_b.include(shared)
# RULES.md is compiled once per agent; if both feed into a parent context,
# deduplication kicks in there too.
"""
IMAGE = """
from loom import ImageEntry

ctx.topic.add(ImageEntry(data=b64, media_type="image/png", name="screenshot"))
"""
LIFECYCLE = """
# Promote a transient STEP entry into CONVO for long-term retention
result = ctx.step.add(StringEntry(tool_output))
ctx.remember(result)
"""
REDACTION = """
# Remove an entry by id, optionally leaving a tombstone
ctx.redact("kvm", tombstone="[REDACTED: contained PII]")
"""
LAYERS = (
    """
from loom.config.memory import MemoryConfig, MemoryLayerConfig

memory_config = MemoryConfig(
    l1=MemoryLayerConfig(
        capacity=10,
        retention_hours=1,
        auto_compress=True,
        promote_threshold=3
    )
)
""",
    """
memory_config = MemoryConfig(
    l2=MemoryLayerConfig(
        capacity=50,
        retention_hours=24,
        auto_compress=True,
        promote_threshold=5
    )
)
""",
    """
memory_config = MemoryConfig(
    l3=MemoryLayerConfig(
        capacity=200,
        retention_hours=168,  # 7 days
        auto_compress=True,
        promote_threshold=10
    )
)
""",
    """
memory_config = MemoryConfig(
    l4=MemoryLayerConfig(
        capacity=1000,
        retention_hours=None,  # Permanent
        auto_compress=False,
        promote_threshold=0  # No promotion from L4
    )
)
""",
)
PROVIDERS = """
from loom.providers.embedding.openai import OpenAIEmbeddingProvider

embedding_provider = OpenAIEmbeddingProvider(
    api_key="your-api-key",
    model="text-embedding-3-small"
)

from loom.memory.vector_store import InMemoryVectorStore

vector_store = InMemoryVectorStore()

from loom.providers.knowledge import VectorKnowledgeBase

kb = VectorKnowledgeBase(
    embedding_provider=embedding_provider,
    vector_store=vector_store
)
"""
KNOWLEDGE = """
from loom.providers.knowledge import InMemoryKnowledgeBase

kb = InMemoryKnowledgeBase()
kb.add_item(KnowledgeItem(
    id="kb_1",
    content="API authentication uses Bearer tokens",
    source="API docs"
))
"""
GRAPH = """
from loom.providers.knowledge import GraphKnowledgeBase

kb = GraphKnowledgeBase(
    graph_rag_service=graph_service,
    search_mode="hybrid",  # vector, graph, or hybrid
    max_hops=2
)
"""
KNOWLEDGE_CONFIG = """
memory_config = MemoryConfig(
    knowledge_base=kb,
    enable_auto_migration=True,
    enable_compression=True
)
"""
COMPLETE = """
from loom.api import LoomApp, AgentConfig
from loom.config.memory import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
from loom.providers.embedding.openai import OpenAIEmbeddingProvider
from loom.memory.vector_store import InMemoryVectorStore
from loom.providers.knowledge import VectorKnowledgeBase

# 1. Create embedding provider
embedding_provider = OpenAIEmbeddingProvider(
    api_key="your-api-key",
    model="text-embedding-3-small"
)

# 2. Create vector store
vector_store = InMemoryVectorStore()

# 3. Create knowledge base
knowledge_base = VectorKnowledgeBase(
    embedding_provider=embedding_provider,
    vector_store=vector_store
)

# 4. Configure memory system
memory_config = MemoryConfig(
    strategy=MemoryStrategyType.SIMPLE,
    l1=MemoryLayerConfig(capacity=10, retention_hours=1),
    l2=MemoryLayerConfig(capacity=50, retention_hours=24),
    l3=MemoryLayerConfig(capacity=200, retention_hours=168),
    l4=MemoryLayerConfig(capacity=1000, retention_hours=None),
    knowledge_base=knowledge_base,
    enable_auto_migration=True,
    enable_compression=True
)

# 5. Create agent with memory
agent_config = AgentConfig(
    name="memory_agent",
    system_prompt="You are an AI assistant with long-term memory",
    memory=memory_config
)

app = LoomApp()
agent = app.create_agent(agent_config)
"""
PLACES = """
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

# 1. URL string
agent = Agent("...", memory="postgres://localhost/jeeves")
"""
RUNS = """
await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
await agent.run("Hi, I'm Bob.", user_id="bob")
# Alice's lives_in fact never surfaces in Bob's recall.
"""
MAPPING = """
agent = Agent("...", memory={
    "backend": "chroma",
    "path": "./chroma-db",
    "namespace": "tenant_a",
    "embedder": "openai-large",
    "with_facts": True,
})
"""
INSTANCE = """
from loom.memory.chroma import ChromaMemory
from loom.memory.embedder import OpenAIEmbedder

memory = ChromaMemory.local(
    "./chroma-db", with_facts=True, embedder=OpenAIEmbedder()
)
agent = Agent("...", memory=memory)
"""
TOOL = """
from loom import get_run_context, tool

@tool
async def my_orders() -> list[dict]:
    ctx = get_run_context()
    return await db.query("orders", user_id=ctx.user_id)
"""


async def ran(source: str, **given: Any) -> dict[str, Any]:
    """The names that an example leaves behind, run with the names that its page takes for given."""
    space: dict[str, Any] = dict(given)
    code = compile(source, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    done = eval(code, space)
    if inspect.isawaitable(done):
        await done
    return space


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "SOUL.md").write_text("Be kind.")
    (tmp_path / "RULES.md").write_text("Never guess.")
    return tmp_path


async def test_the_quick_start_of_outfox_loom() -> None:
    space = await ran(QUICK_START)
    system = space["messages"][0]["content"]
    assert [block["text"].splitlines()[-1] for block in system] == [
        "You are a helpful assistant.",
        "Be kind.",
        "Always validate user input.",
        "Review PR #42 and suggest improvements.",
    ]
    assert "Be kind." in space["ctx"].render()
    again = await ran(RENDERING, ctx=space["ctx"])
    assert again["messages"] == space["messages"]


async def test_the_visitors_of_outfox_loom() -> None:
    names = await ran("from loom import Context, FileEntry")
    agent_a, agent_b, parent = Context("a"), Context("b"), Context("parent")
    await ran(VISITORS, **{**names, "agent_a": agent_a, "agent_b": agent_b})
    parent.include(agent_a)
    parent.include(agent_b)
    assert [context.render().count("Never guess.") for context in (agent_a, agent_b, parent)] == [1, 1, 1]


async def test_the_image_of_outfox_loom() -> None:
    ctx = Context("my-agent")
    await ran(IMAGE, ctx=ctx, b64=PNG)
    assert "[Image: screenshot]" in ctx.render()
    assert [block["type"] for message in ctx.to_messages() for block in message["content"]] == ["image", "text"]


async def test_the_lifecycle_of_outfox_loom() -> None:
    ctx = Context("my-agent")
    names = await ran("from loom import StringEntry")
    space = await ran(LIFECYCLE, **{**names, "ctx": ctx, "tool_output": "12 passed"})
    assert "12 passed" in ctx.render()
    await ran(REDACTION.replace("kvm", space["result"].id), ctx=ctx)
    assert ctx.render().endswith("[REDACTED: contained PII]")


async def test_the_layers_of_loom_agent() -> None:
    space: dict[str, Any] = {}
    for name, source in zip(("l1", "l2", "l3", "l4"), LAYERS, strict=True):
        space = await ran(source, **space)
        assert getattr(space["memory_config"], name) == getattr(space["MemoryConfig"](), name)


async def test_the_providers_of_loom_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    with embeddings_service() as server:
        server.dimension = 1536
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        space = await ran(PROVIDERS)
        assert await space["kb"].search("anything", limit=1) == ()


async def test_the_knowledge_bases_of_loom_agent() -> None:
    class Service:
        """What the page calls graph_service."""

        async def search(self, *_: Any, **__: Any) -> dict[str, list[Any]]:
            return {"results": []}

    names = await ran("from loom.providers.knowledge import KnowledgeItem")
    space = await ran(KNOWLEDGE, **names)
    (hit, *_) = await space["kb"].search("how to authenticate API requests", limit=1)
    assert "Bearer tokens" in hit.item.text
    graph = await ran(GRAPH, graph_service=Service())
    config = await ran(KNOWLEDGE_CONFIG, kb=graph["kb"], **await ran("from loom.config.memory import MemoryConfig"))
    assert config["memory_config"].knowledge_base is graph["kb"]


async def test_the_complete_example_of_loom_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    with embeddings_service() as server:
        server.dimension = 1536
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        space = await ran(COMPLETE)
        agent = space["agent"]
        await agent.run("I live in Lisbon.", user_id="ann")
        assert "Lisbon" in (await agent.run("Where do I live?", user_id="ann")).text
        await space["app"].aclose()


async def test_the_places_of_loomflow(folder: Any) -> None:
    before = set(folder.iterdir())
    space = await ran(PLACES)
    assert isinstance(space["agent"], Agent)
    assert set(folder.iterdir()) == before, "nothing is opened before the first run"


async def test_the_runs_of_loomflow() -> None:
    for agent in (Agent("..."), Agent("...", memory="sqlite:./bot.db")):
        await ran(RUNS, agent=agent)
        assert agent.memory
        assert [f.object for f in await agent.memory.facts(user_id="alice", predicate="lives_in")] == ["Tokyo"]
        assert "Tokyo" not in (await agent.run("Where do I live?", user_id="bob")).text
        await agent.aclose()


async def test_the_mapping_of_loomflow() -> None:
    space = await ran(MAPPING, Agent=Agent)
    assert space["agent"].memory.namespace == "tenant_a"


async def test_the_instance_of_loomflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "your-api-key")
    space = await ran(INSTANCE, Agent=Agent)
    assert space["agent"].memory is space["memory"]


async def test_the_tool_of_loomflow() -> None:
    class Db:
        """What the page calls db."""

        async def query(self, table: str, *, user_id: str) -> list[dict[str, str]]:
            return [{"table": table, "of": user_id}]

    space = await ran(TOOL, db=Db())

    def script(request: ModelRequest) -> Any:
        return str(request.messages[-1]) if len(request.messages) > 1 else ToolCallPart("c", "my_orders", {})

    agent = Agent("...", model=ScriptedModel(script), tools=[space["my_orders"]], memory=None)
    assert '"of": "alice"' in (await agent.run("My orders?", user_id="alice")).text
