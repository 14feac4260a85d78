"""The limits of each layer: capacity, retention, thresholds, compression and promotion (tables of seed 002)."""

from dataclasses import replace
from datetime import timedelta

import pytest

from loom import open_memory
from loom.config.memory import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
from loom.core.record import Layer
from loom.core.scope import Scope
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio

ALICE = Scope(user_id="alice")
CAPACITY = {Layer.L1: 10, Layer.L2: 50, Layer.L3: 200, Layer.L4: 1000}
HOURS = {Layer.L1: 1, Layer.L2: 24, Layer.L3: 168}
THRESHOLD = {Layer.L1: 3, Layer.L2: 5, Layer.L3: 10}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def memory(clock):
    return open_memory("inmemory", embedder="hash", clock=clock)


async def fill(memory, layer, texts, **fields):
    """Records in one layer, in the order of their texts; `fields` may be one value for each."""
    done = await memory.remember(texts, user_id="alice")
    each = [{name: value[n] for name, value in fields.items()} for n in range(len(texts))]
    await memory.store.put(ALICE, *(replace(e, layer=layer, **f) for e, f in zip(done.kept, each, strict=True)))
    return [e.id for e in done.kept]


async def live(memory, layer):
    """The ids of the records that a layer shows."""
    records = await memory.store.list(ALICE, limit=5000)
    return [r.id for r in records if getattr(r, "layer", None) is layer and r.archived_at is None]


def test_the_seeds_configurations_are_the_defaults():
    table = MemoryConfig()
    assert table.l1 == MemoryLayerConfig(capacity=10, retention_hours=1, auto_compress=True, promote_threshold=3)
    assert table.l2 == MemoryLayerConfig(capacity=50, retention_hours=24, auto_compress=True, promote_threshold=5)
    assert table.l3 == MemoryLayerConfig(capacity=200, retention_hours=168, auto_compress=True, promote_threshold=10)
    assert table.l4 == MemoryLayerConfig(capacity=1000, retention_hours=None, auto_compress=False, promote_threshold=0)
    assert table.strategy is MemoryStrategyType.SIMPLE
    assert (table.enable_auto_migration, table.enable_compression) == (True, True)


def test_the_seeds_complete_example_can_be_made():
    base = InMemoryKnowledgeBase()
    config = MemoryConfig(
        strategy=MemoryStrategyType.SIMPLE,
        l1=MemoryLayerConfig(capacity=10, retention_hours=1),
        l2=MemoryLayerConfig(capacity=50, retention_hours=24),
        l3=MemoryLayerConfig(capacity=200, retention_hours=168),
        l4=MemoryLayerConfig(capacity=1000, retention_hours=None),
        knowledge_base=base,
        enable_auto_migration=True,
        enable_compression=True,
    )
    assert config.knowledge_base is base
    assert [layer.promote_threshold for layer in (config.l1, config.l2, config.l3, config.l4)] == [3, 5, 10, 0]
    assert config == MemoryConfig(knowledge_base=base), "what is not given is the default of its layer"


@pytest.mark.parametrize(("layer", "capacity"), CAPACITY.items())
async def test_a_layer_holds_its_capacity_and_the_least_important_leave_for_the_archive(memory, layer, capacity):
    amount = capacity + 5
    importance = [(n * 7 % amount) / amount / 2 for n in range(amount)]  # below what moves up by itself
    ids = await fill(memory, layer, [f"note {n} on the harbour" for n in range(amount)], importance=importance)
    await memory.metabolize(user_id="alice")
    leaving = {ids[n] for n in range(amount) if importance[n] < 5 / amount / 2}
    assert len(leaving) == 5
    assert set(await live(memory, layer)) == set(ids) - leaving
    for id in leaving:
        assert (await memory.store.get(ALICE, id)).archived_at is not None
    gone = (await memory.store.get(ALICE, min(leaving))).text
    assert gone in [hit.item.text for hit in await memory.recall(gone, user_id="alice", limit=3)]


async def test_l1_is_a_circular_buffer(memory, clock):
    for n in range(15):
        await memory.remember(f"turn {n}", user_id="alice")
        clock.advance(timedelta(seconds=1))
    await memory.metabolize(user_id="alice")
    shown = [(await memory.store.get(ALICE, id)).text for id in await live(memory, Layer.L1)]
    assert shown == [f"turn {n}" for n in range(5, 15)]


@pytest.mark.parametrize(("layer", "hours"), HOURS.items())
async def test_a_record_stays_for_its_hours_and_no_longer(memory, clock, layer, hours):
    ids = await fill(memory, layer, ["a note on the harbour"])
    clock.advance(timedelta(hours=hours) - timedelta(seconds=1))
    await memory.metabolize(user_id="alice")
    assert await live(memory, layer) == ids
    clock.advance(timedelta(seconds=1))
    await memory.metabolize(user_id="alice")
    assert ids[0] not in await live(memory, layer)
    assert len(await memory.recall("harbour", user_id="alice")) == 1


async def test_l4_is_permanent(memory, clock):
    ids = await fill(memory, Layer.L4, ["the user is a vegan"])
    clock.advance(timedelta(days=3650))
    await memory.metabolize(user_id="alice")
    assert await live(memory, Layer.L4) == ids


@pytest.mark.parametrize(("layer", "threshold"), THRESHOLD.items())
async def test_a_record_moves_up_at_its_threshold(memory, layer, threshold):
    below, enough = await fill(memory, layer, ["the first note", "the second"], accesses=[threshold - 1, threshold])
    await memory.metabolize(user_id="alice")
    assert await live(memory, layer) == [below]
    (moved,) = await live(memory, Layer(layer + 1))
    record = await memory.store.get(ALICE, moved)
    assert record.text == "the second"
    assert enough in {record.id, *record.sources}


async def test_nothing_is_promoted_out_of_l4(memory):
    ids = await fill(memory, Layer.L4, ["the user is a vegan"], accesses=[1000])
    await memory.metabolize(user_id="alice")
    assert await live(memory, Layer.L4) == ids


async def test_l2_holds_statements_and_the_full_text_stays_in_the_archive(memory):
    text = "We decided to use Postgres for billing. " + "The room was warm and the coffee was cold. " * 20
    (id,) = await fill(memory, Layer.L1, [text])
    await memory.metabolize(user_id="alice")
    (statement,) = [await memory.store.get(ALICE, made) for made in await live(memory, Layer.L2)]
    assert "We decided to use Postgres for billing." in statement.text
    assert len(statement.text) <= 240
    assert statement.sources == (id,)
    assert (await memory.store.get(ALICE, id)).text == text.strip()


async def test_a_record_climbs_all_layers_by_being_recalled_and_is_there_once(memory):
    await memory.remember("The gate code is 4711.", user_id="alice")
    seen = []
    for _ in range(12):
        hits = await memory.recall("gate code", user_id="alice", where=None)
        assert [hit.item.text for hit in hits] == ["The gate code is 4711."]
        await memory.metabolize(user_id="alice")
        layers = [layer for layer in Layer if await live(memory, layer)]
        assert len(layers) == 1
        assert len(await live(memory, layers[0])) == 1
        seen += [layer for layer in layers if layer not in seen]
    assert seen == sorted(seen)
    assert seen[0] is Layer.L1
