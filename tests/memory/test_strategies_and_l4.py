"""Promotion strategies, vectors of L4, summaries of overflow, and filters (defects of seed 003, loom-agent 0.3.6).

Two of its six defects are about prompts, and are tested with sessions: the order of layers, and keeping the user's
message.
"""

import re
from dataclasses import replace

import pytest

from loom import MemoryConfig, MemoryLayerConfig, MemoryStrategyType, open_memory
from loom.core.filter import Eq
from loom.core.record import Episode, Layer
from loom.core.scope import Scope
from loom.protocols.memory_store import Query
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio

ALICE = Scope(user_id="alice")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.mark.parametrize("strategy", MemoryStrategyType)
async def test_every_strategy_works(clock, strategy):
    memory = open_memory("inmemory", embedder="hash", clock=clock, config=MemoryConfig(strategy=strategy))
    await memory.remember(["The gate code is 4711.", "We decided to sell."], user_id="alice", importance=0.9)
    done = await memory.metabolize(user_id="alice")
    assert done.failed == ()
    assert len(await memory.recall("gate code", user_id="alice")) >= 1


async def test_what_is_promoted_to_l4_is_found_there_by_its_vector(clock):
    memory = open_memory("inmemory", embedder="static", clock=clock)
    (kept,) = (await memory.remember("I adopted a puppy called Biscuit.", user_id="alice")).kept
    await memory.remember("The staging deploy failed on Friday.", user_id="alice")
    await memory.promote(kept.id, user_id="alice", to=Layer.L4)
    hits = await memory.recall("what is my dog's name?", user_id="alice", layers=[Layer.L4])
    assert [hit.item.id for hit in hits] == [kept.id]
    vector = (await memory.store.search_keys(ALICE, kept.id))[kept.id].vector
    (found,) = await memory.store.search(ALICE, Query(vector=vector, where=Eq("layer", Layer.L4)))
    assert (found.item.id, found.why["dense"]) == (kept.id, pytest.approx(1))


@pytest.mark.parametrize("by_hand", [True, False])
async def test_what_was_made_from_turns_is_found_in_l4_by_its_vector(clock, by_hand):
    memory = open_memory("inmemory", embedder="static", clock=clock)
    await memory.remember("We decided to name the puppy Biscuit. " + "It rained all day long. " * 20, user_id="alice")
    await memory.metabolize(user_id="alice")
    (statement,) = await memory.store.list(ALICE, where=Eq("layer", Layer.L2))
    assert statement.sources
    if by_hand:
        await memory.promote(statement.id, user_id="alice", to=Layer.L4)
    else:
        await memory.store.put(ALICE, replace(statement, layer=Layer.L3, accesses=10))
        await memory.metabolize(user_id="alice")
    assert [r.id for r in await memory.store.list(ALICE, where=Eq("layer", Layer.L4))] == [statement.id]
    hits = await memory.recall(
        "what is my dog's name?", user_id="alice", layers=[Layer.L4], where=Eq("kind", "episode")
    )
    assert [hit.item.id for hit in hits] == [statement.id]
    assert (await memory.store.search_keys(ALICE, statement.id))[statement.id].vector is not None
    other = open_memory(memory.store, embedder="hash", clock=clock)
    assert (await other.reembed()).records == 2


async def test_what_overflows_is_summed_up_once_and_in_real_sentences(clock):
    memory = open_memory(
        "inmemory", embedder="hash", clock=clock, config=MemoryConfig(l2=MemoryLayerConfig(capacity=1))
    )
    turns = [f"We decided on option {n} because harbour {n} is closed. More about that later." for n in range(40)]
    await memory.remember(turns, user_id="alice", session_id="s1")
    for _ in range(3):
        await memory.metabolize(user_id="alice")
    records = await memory.store.list(ALICE, where=Eq("layer", Layer.L3), limit=1000)
    (summary,) = [r for r in records if isinstance(r, Episode)]
    assert len(set(summary.sources)) >= 39
    said = {sentence for turn in turns for sentence in re.split(r"(?<=\.) ", turn)}
    date, _, told = summary.text.partition(": ")
    assert date == f"Conversation of {clock.now().day} {clock.now():%B %Y}"
    assert set(re.split(r"(?<=\.) ", told)) <= said
    live = [r for r in await memory.store.list(ALICE, limit=1000) if isinstance(r, Episode) and r.archived_at is None]
    assert [r for r in live if r.layer is Layer.L1] == []


async def test_filters_come_before_the_nearest_are_taken(clock):
    memory = open_memory("inmemory", embedder="hash", clock=clock)
    await memory.remember([f"the gate code is {n}" for n in range(400)], user_id="alice")
    await memory.remember([f"gate {n} was painted" for n in range(3)], user_id="alice", attributes={"kind": "paint"})
    hits = await memory.recall("the gate code is 7", user_id="alice", limit=3, where=Eq("meta.kind", "paint"))
    assert sorted(hit.item.text for hit in hits) == [f"gate {n} was painted" for n in range(3)]
