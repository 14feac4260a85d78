"""Working memory beside a conversation, and a filter that corpus and memory share."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from loom import Memory, open_memory
from loom.core.filter import Eq, Not
from loom.errors import StaleWrite
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.memory.config import MemoryConfig, MemoryLayerConfig
from loom.protocols.knowledge_base import Document
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio


async def test_the_newest_of_other_conversations_within_capacity_and_retention():
    clock = FakeClock()
    async with open_memory("inmemory", embedder="hash", clock=clock) as memory:
        await memory.remember("too old", user_id="ann", session_id="b")
        clock.advance(timedelta(hours=1, seconds=1))
        for n in range(5):
            await memory.remember(f"note {n}", user_id="ann", session_id="b")
            clock.advance(1)
        await memory.remember("of this conversation", user_id="ann", session_id="a")
        await memory.remember("of no conversation", user_id="ann")
        await memory.remember("of somebody else", user_id="bob", session_id="b")
        found = await recent(memory, session="a", capacity=3, retention_hours=1)
        assert found == ["note 3", "note 4", "of no conversation"]
        everything = await recent(memory, capacity=None, retention_hours=None)
        assert everything[:2] == ["too old", "note 0"]
        assert len(everything) == 8


async def recent(memory: Memory, *, session: str | None = None, **limits: Any) -> list[str]:
    memory.config = replace(memory.config, l1=MemoryLayerConfig(**limits))
    return [turn.text for turn in (await memory.overview(user_id="ann", session_id=session)).recent]


async def test_what_every_turn_is_shown_is_as_old_as_its_epoch(tmp_path: Path):
    for url in ("inmemory", f"sqlite:{tmp_path / 'memory.db'}"):
        async with open_memory(url, embedder="hash") as memory:
            await memory.set_block("plan", "Paint the shed.", user_id="ann")
            await memory.assert_fact("user", "lives_in", "Oslo", user_id="ann")
            first = await memory.remember("The shed is red.", user_id="ann", session_id="b")
            shown = await memory.overview(user_id="ann", session_id="a")
            assert shown.epoch == await memory.epoch(user_id="ann")
            assert shown.profile == await memory.profile(user_id="ann")
            assert [turn.text for turn in shown.recent] == ["The shed is red."]
            await memory.forget(first.kept[0].id, user_id="ann")
            with pytest.raises(StaleWrite):
                await memory.remember("Then I paint it blue.", user_id="ann", since=shown.epoch)


async def test_a_filter_counts_for_the_corpus_too():
    corpus = InMemoryKnowledgeBase()
    await corpus.add(Document(id="d1", text="Bees winter in a mill."))
    async with open_memory(config=MemoryConfig(knowledge_base=corpus), embedder="hash") as memory:
        await memory.remember("Bees sting.", user_id="ann", session_id="a")
        others = await memory.recall("bees", user_id="ann", where=Not(Eq("session_id", "a")))
        assert [hit.item.kind for hit in others] == ["passage"]
        said = await memory.recall("bees", user_id="ann", where=Eq("kind", "episode"))
        assert [hit.item.kind for hit in said] == ["episode"]
