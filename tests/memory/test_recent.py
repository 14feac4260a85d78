"""Working memory beside a conversation, and a filter that corpus and memory share."""

from datetime import timedelta

import pytest

from loom import open_memory
from loom.core.filter import Eq, Not
from loom.core.scope import Scope
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.memory._recall.recall import recent
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
        layer = MemoryLayerConfig(capacity=3, retention_hours=1)
        here = Scope(user_id="ann", session_id="a")
        found = await recent(memory.store, here, layer, now=clock.now())
        assert [episode.text for episode in found] == ["note 3", "note 4", "of no conversation"]
        unbounded = MemoryLayerConfig(capacity=None, retention_hours=None)
        everything = await recent(memory.store, here.for_user(), unbounded, now=clock.now())
        assert [episode.text for episode in everything][:2] == ["too old", "note 0"]
        assert len(everything) == 8


async def test_a_filter_counts_for_the_corpus_too():
    corpus = InMemoryKnowledgeBase()
    await corpus.add(Document(id="d1", text="Bees winter in a mill."))
    async with open_memory(config=MemoryConfig(knowledge_base=corpus), embedder="hash") as memory:
        await memory.remember("Bees sting.", user_id="ann", session_id="a")
        others = await memory.recall("bees", user_id="ann", where=Not(Eq("session_id", "a")))
        assert [hit.item.kind for hit in others] == ["passage"]
        said = await memory.recall("bees", user_id="ann", where=Eq("kind", "episode"))
        assert [hit.item.kind for hit in said] == ["episode"]
