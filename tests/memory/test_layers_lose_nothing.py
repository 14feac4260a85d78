"""Records are neither lost nor doubled on their way through the layers (defects of seed 002, loom-agent 0.4.2)."""

from dataclasses import replace
from datetime import timedelta

import pytest

from loom import MemoryConfig, MemoryLayerConfig, open_memory
from loom.core.record import Layer
from loom.core.scope import Scope
from loom.providers.knowledge import InMemoryKnowledgeBase, KnowledgeItem
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio

ALICE = Scope(user_id="alice")


@pytest.fixture
def clock():
    return FakeClock()


async def opened(clock, config=None):
    return open_memory("inmemory", embedder="hash", clock=clock, config=config)


async def in_layer(memory, layer):
    """The live records of a layer, by id."""
    records = await memory.store.list(ALICE, limit=20_000)
    return [r for r in records if getattr(r, "layer", None) is layer and r.archived_at is None]


async def placed(memory, layer, importances, **fields):
    """Put records into a layer, one for each importance; returns their ids."""
    done = await memory.remember([f"note number {n} of the day" for n in range(len(importances))], user_id="alice")
    await memory.store.put(
        ALICE, *(replace(e, layer=layer, importance=i, **fields) for e, i in zip(done.kept, importances, strict=True))
    )
    return [e.id for e in done.kept]


@pytest.mark.parametrize(("new", "stay"), [(0.85, [0.8, 0.85, 0.9]), (0.95, [0.8, 0.9, 0.95])])
async def test_a_full_l2_lets_the_least_important_go(clock, new, stay):
    memory = await opened(clock, MemoryConfig(l2=MemoryLayerConfig(capacity=3)))
    await placed(memory, Layer.L2, [0.9, 0.8, 0.7, new])
    await memory.metabolize(user_id="alice")
    assert sorted(e.importance for e in await in_layer(memory, Layer.L2)) == stay


async def test_what_leaves_l2_is_the_least_important_and_the_rest_is_not_cut(clock):
    memory = await opened(clock, MemoryConfig(l2=MemoryLayerConfig(capacity=8)))
    long = "The migration of the billing service was planned in detail. " * 20
    done = await memory.remember([f"Step {n}. {long}" for n in range(10)], user_id="alice")
    await memory.store.put(ALICE, *(replace(e, layer=Layer.L2, importance=n / 10) for n, e in enumerate(done.kept)))
    await memory.metabolize(user_id="alice")
    left = await in_layer(memory, Layer.L2)
    assert [e.importance for e in left] == [n / 10 for n in range(2, 10)]
    assert [e.text for e in left] == [e.text for e in done.kept[2:]]


async def test_moving_from_l3_to_l4_loses_nothing(clock):
    memory = await opened(clock)
    ids = await placed(memory, Layer.L3, [0.5] * 10, accesses=10)
    await memory.metabolize(user_id="alice")
    assert [e.id for e in await in_layer(memory, Layer.L4)] == ids
    assert await in_layer(memory, Layer.L3) == []


@pytest.mark.parametrize("layer", Layer)
async def test_a_record_is_found_in_whatever_layer_it_is(clock, layer):
    memory = await opened(clock)
    (gate,) = (await memory.remember("The code of the harbour gate is 4711.", user_id="alice")).kept
    await memory.promote(gate.id, user_id="alice", to=layer)
    for layers in (None, [layer]):
        (hit,) = await memory.recall("harbour gate code", user_id="alice", layers=layers)
        assert (hit.item.id, hit.item.layer) == (gate.id, layer)


async def test_what_was_promoted_is_not_promoted_again(clock):
    memory = await opened(clock)
    done = await memory.remember([f"We decided on option {n}." for n in range(20)], user_id="alice")
    for _ in range(6):
        await memory.metabolize(user_id="alice")
    statements = [s for layer in (Layer.L2, Layer.L3, Layer.L4) for s in await in_layer(memory, layer)]
    assert sorted(s.sources[0] for s in statements) == sorted(e.id for e in done.kept)
    assert await in_layer(memory, Layer.L1) == []
    hits = await memory.recall("We decided on option 7.", user_id="alice", limit=50)
    assert hits
    assert len({hit.item.text for hit in hits}) == len(hits)


async def test_reading_promotes_and_retention_passes_and_a_config_can_be_made(clock):
    memory = await opened(clock, MemoryConfig())
    await memory.remember(["The gate code is 4711.", "The sky was grey."], user_id="alice")
    for _ in range(3):
        await memory.recall("gate code", user_id="alice", limit=1)
    await memory.metabolize(user_id="alice")
    assert [e.text for e in await in_layer(memory, Layer.L2)] == ["The gate code is 4711."]
    clock.advance(timedelta(hours=1))
    await memory.metabolize(user_id="alice")
    assert await in_layer(memory, Layer.L1) == []
    clock.advance(timedelta(hours=23))
    await memory.metabolize(user_id="alice")
    assert await in_layer(memory, Layer.L2) == []


async def test_a_question_finds_knowledge_in_other_words():
    kb = InMemoryKnowledgeBase()
    kb.add_item(KnowledgeItem(id="kb_1", content="API authentication uses Bearer tokens", source="API docs"))
    (hit,) = await kb.search("how do I authenticate API requests")
    assert hit.item.document_id == "kb_1"


async def test_nothing_is_lost_or_doubled_among_thousands(clock):
    memory = await opened(clock)
    texts = [f"zeppelin sighting number {n}" if n % 24 == 0 else f"log line number {n}" for n in range(2496)]
    for start in range(0, len(texts), 500):
        await memory.remember(texts[start : start + 500], user_id="alice")
    await memory.metabolize(user_id="alice")
    records = await memory.store.list(ALICE, limit=20_000)
    assert {r.text for r in records if not r.sources} == set(texts)
    hits = await memory.recall("zeppelin sighting", user_id="alice", limit=150)
    found = [hit.item.text for hit in hits if "zeppelin" in hit.item.text]
    assert sorted(found) == sorted(text for text in texts if "zeppelin" in text)
    assert len(found) == 104
