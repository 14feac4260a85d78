"""What an agent remembers from one session to the next: rows 003 in `docs/reference/coming-from.md`, without servers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from loom import Agent, CompositeMemory, open_memory
from loom.config.memory import MemoryConfig, MemoryLayerConfig
from loom.core.record import Episode, Layer
from loom.core.scope import Scope
from loom.stores.inmemory import InMemoryStore
from loom.testing import FakeClock, ScriptedModel

pytestmark = pytest.mark.anyio


def shown(model: ScriptedModel) -> str:
    return "\n".join(m.text for m in model.requests[-1].messages)


async def test_l1_is_validated_and_cleaned_before_it_is_kept() -> None:
    async with Agent(model=ScriptedModel(lambda _: "ok"), memory="inmemory") as agent:
        result = await agent.run("The  door\x07 is \u200bopen.", user_id="ann")
        assert result.remembered
        first = result.remembered.kept[0]
        assert isinstance(first, Episode)
        assert first.layer is Layer.L1
        assert "\x07" not in first.text
        assert "\u200b" not in first.text


async def test_the_current_thread_is_the_context_of_the_task_at_hand() -> None:
    model = ScriptedModel(lambda _: "ok")
    async with Agent(model=model, memory="inmemory") as agent:
        for text in ("The goal is a login page.", "Step one is done.", "What is next?"):
            await agent.run(text, user_id="ann", session_id="task")
        said = [m.text for m in model.requests[-1].messages if m.role == "user"]
        assert said[0] == "The goal is a login page."
        assert said[1] == "Step one is done."


async def test_last_time_we_talked_about() -> None:
    """Continuity across sessions: days later, and out of L1."""
    clock = FakeClock()
    model = ScriptedModel(lambda _: "ok")
    async with Agent(model=model, memory="inmemory", clock=clock) as agent:
        await agent.run("We decided that the harbour project uses Python 3.11.", user_id="ann", session_id="monday")
        clock.advance(timedelta(days=6))
        result = await agent.run("Which Python does the harbour project use?", user_id="ann", session_id="sunday")
        assert result.recalled
        assert "uses Python 3.11" in shown(model)


@pytest.mark.parametrize(
    ("said", "known"),
    [("I am a vegan.", "vegan"), ("I live in Lisbon.", "user lives in: Lisbon")],
)
async def test_what_is_known_of_the_user_is_permanent(said: str, known: str) -> None:
    clock = FakeClock()
    model = ScriptedModel(lambda _: "ok")
    async with Agent(model=model, memory="inmemory", clock=clock) as agent:
        await agent.run(said, user_id="ann")
        clock.advance(timedelta(days=400))
        await agent.run("Hello.", user_id="ann")
        assert known in shown(model)


async def test_recall_retrieval_and_fusion_over_a_composite_memory() -> None:
    """Recent messages (L2), episodes (L3) and facts (L4), each from a store of its own, in one prompt."""
    stores: dict[Layer, InMemoryStore] = {layer: InMemoryStore() for layer in (Layer.L2, Layer.L3, Layer.L4)}
    memory: Any = CompositeMemory(**{layer.label.lower(): store for layer, store in stores.items()})
    model = ScriptedModel(lambda _: "ok")
    async with Agent(model=model, memory=memory) as agent:
        await memory.assert_fact("user", "likes", "the harbour", user_id="ann")
        ids: dict[Layer, str] = {}
        for layer in (Layer.L2, Layer.L3):
            (kept,) = (await memory.remember(f"The harbour, seen from layer {layer}.", user_id="ann")).kept
            await memory.promote(kept.id, user_id="ann", to=layer)
            ids[layer] = kept.id
        for layer, id in ids.items():
            assert await stores[layer].get(Scope(user_id="ann"), id)
        await agent.run("What about the harbour?", user_id="ann")
        text = shown(model)
        assert text.count("<memory>") == 1
        for piece in ("from layer 2", "from layer 3", "user likes: the harbour"):
            assert piece in text


async def test_the_metabolism_keeps_the_context_small_and_loses_nothing() -> None:
    """Ingest, digest, assimilate: many turns go in, the prompt stays bounded, and an old detail is still found."""
    clock = FakeClock()
    model = ScriptedModel(lambda _: "ok")
    layers = MemoryConfig(l1=MemoryLayerConfig(capacity=10, retention_hours=1), l2=MemoryLayerConfig(capacity=20))
    memory = open_memory("inmemory", config=layers, embedder="hash", clock=clock)
    async with Agent(model=model, memory=memory, clock=clock) as agent:
        await agent.run("The code of the blue door is 4711.", user_id="ann")
        for n in range(60):
            await agent.run(f"Note {n}: the weather was fine and nothing happened.", user_id="ann")
            clock.advance(timedelta(minutes=3))
        stats = await memory.stats(user_id="ann")
        assert stats["L1"] <= 10
        assert stats["L2"] <= 20
        await agent.run("What is the code of the blue door?", user_id="ann")
        assert "4711" in shown(model)
        assert model.requests[-1].messages[-1].text.count("\n") < 40
        assert len(shown(model)) < 6_000


async def test_an_extracted_fact_is_updated() -> None:
    """`User updated preference X`."""
    clock = FakeClock()
    model = ScriptedModel(lambda _: "ok")
    async with Agent(model=model, memory="inmemory", clock=clock) as agent:
        await agent.run("I live in Lisbon.", user_id="ann")
        clock.advance(timedelta(days=2))
        await agent.run("I live in Porto now.", user_id="ann")
        clock.advance(timedelta(days=2))
        await agent.run("Hello.", user_id="ann")
        assert "user lives in: Porto" in shown(model)
        assert "user lives in: Lisbon" not in shown(model)
