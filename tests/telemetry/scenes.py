"""Everything that telemetry records, done once."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from loom import (
    Agent,
    CompactionConfig,
    LlmExtractor,
    ModelResponse,
    ProviderError,
    Session,
    TextPart,
    ToolCallPart,
    Usage,
    open_memory,
    tool,
)
from loom.testing import ScriptedModel

SECRET = "Zebra4711"
CLAUDE = "anthropic:claude-sonnet-4-5"


def answer(text: str = "Fine.", **usage: int) -> ModelResponse:
    used = Usage(**{"input": 5000, "output": 7, **usage})
    return ModelResponse(
        parts=(TextPart(text),), stop="end", usage=used, model="claude-sonnet-4-5", id="m1", finish="end_turn"
    )


@tool
def code(fail: bool = False) -> str:
    """The code of the vault."""
    if fail:
        raise ValueError(SECRET)
    return SECRET


async def a_turn_with_tools() -> None:
    """An agent with a memory that calls a tool twice; one call fails."""
    calls = (ToolCallPart("a", "code", {}), ToolCallPart("b", "code", {"fail": True}))
    model = ScriptedModel([calls, answer(f"It is {SECRET}.")], name=CLAUDE)
    async with Agent(name="helper", model=model, memory="inmemory", tools=[code], facts="rules") as agent:
        assert agent.memory is not None
        await agent.memory.remember(f"The vault opens with {SECRET}.", user_id="ann")
        await agent.run(f"What opens the vault, {SECRET}?", user_id="ann", session_id="s1")


async def operations_of_a_memory() -> None:
    """Each kind of write, and one that fails."""
    async with open_memory("inmemory", embedder="hash", namespace="shop") as memory:
        (kept,) = (await memory.remember(f"The code is {SECRET}.", user_id="ann")).kept
        await memory.recall(f"Which code, {SECRET}?", user_id="ann")
        await memory.update(kept.id, user_id="ann", text=f"The code was {SECRET}.")
        await memory.upsert(f"The gate is {SECRET}.", key="gate", user_id="ann")
        await memory.set_block("persona", SECRET, user_id="ann")
        await memory.forget(kept.id, user_id="ann")
        with suppress(Exception):
            await memory.recall("", user_id="ann")


async def a_cache_that_collapses() -> None:
    """A prefix that moves, one that the provider lost, a compaction, and a call that fails."""
    usages = [{"cache_write": 4000}, {"cache_read": 4000}, {"cache_write": 4000}, {"cache_write": 4000}]
    replies: list[Any] = [answer(**used) for used in usages]
    model = ScriptedModel([*replies, *([answer(cache_read=4000)] * 20)], name=CLAUDE)
    config = {"compaction": CompactionConfig(strategy="truncate")}
    session = Session(model=model, config=config, agent_name="helper", instructions="You are a guard. " * 800)
    for n in range(2):
        await session.send(f"{n} " + "and so on " * 40)
    session.context.foundation.add("Another rule. " * 20)
    await session.send("moved")
    await session.send("lost")
    for n in range(6):
        await session.send(f"{n} " + "and so on " * 40)
    await session.compact()
    await session.send("after the compaction")
    failing = Session(model=ScriptedModel([ProviderError("no")], name=CLAUDE))
    with suppress(ProviderError):
        await failing.send("hi")


async def learning_by_a_model() -> None:
    """A call of a model beside conversations."""
    model = ScriptedModel([json.dumps({"facts": []})] * 3, name="xai:grok-4")
    async with open_memory("inmemory", embedder="hash", extractor=LlmExtractor(model)) as memory:
        await memory.remember("I live in Oslo.", user_id="ann")
        await memory.metabolize(user_id="ann")


async def everything() -> None:
    await a_turn_with_tools()
    await operations_of_a_memory()
    await a_cache_that_collapses()
    await learning_by_a_model()
