"""Where a record comes from, and what came of it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from loom.core.scope import Scope
from loom.engine import open_memory
from loom.errors import NotFound
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path, clock):
    where = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"
    async with open_memory(where, embedder="hash", clock=clock) as opened:
        yield opened


async def test_a_fact_leads_to_the_turn_that_says_it(memory, clock):
    (turn,) = (await memory.remember("I live in Tokyo.", user_id="alice")).kept
    await memory.metabolize(user_id="alice")
    clock.advance(timedelta(days=1))
    await memory.remember("I moved to Berlin.", user_id="alice")
    await memory.metabolize(user_id="alice")
    (tokyo, *_) = [f for f in await memory.facts(user_id="alice", history=True) if f.object == "Tokyo"]
    found = await memory.explain(tokyo.id, user_id="alice")
    assert (found.record, [r.id for r in found.sources], found.missing) == (tokyo, [turn.id], ())
    assert {f.object for f in found.history} == {"Tokyo", "Berlin"}
    assert f"from episode {turn.id}: I live in Tokyo." in str(found)
    assert "retired" in str(found)


async def test_a_turn_leads_to_what_was_made_from_it_at_every_layer(memory):
    (turn,) = (await memory.remember("We decided that I live in Tokyo.", user_id="alice")).kept
    await memory.remember("I live in Tokyo.", user_id="alice")
    await memory.metabolize(user_id="alice")
    found = await memory.explain(turn.id, user_id="alice")
    assert {r.id for r in found.made} == {f"s:{turn.id}"}
    assert "archived at" in str(found)
    statement = await memory.explain(f"s:{turn.id}", user_id="alice")
    assert [r.id for r in statement.sources] == [turn.id]
    assert "in L2" in str(statement)


async def test_sources_are_followed_down_to_the_raw_turns_and_circles_end(memory):
    (raw,) = (await memory.remember("it rains", user_id="alice")).kept
    chain = [replace(raw, id="a", sources=(raw.id, "b")), replace(raw, id="b", sources=("a", "gone"))]
    await memory.store.put(Scope(user_id="alice"), *chain)
    found = await memory.explain("b", user_id="alice")
    assert [r.id for r in found.sources] == ["a", raw.id]
    assert found.missing == ("gone",)


async def test_a_hit_says_why_it_was_found(memory):
    await memory.remember(["the boat is red", "it rains"], user_id="alice")
    hit = (await memory.recall("which boat?", user_id="alice")).hits[0]
    found = await memory.explain(hit, user_id="alice")
    assert found.why == hit.why
    assert "found by bm25" in str(found)


async def test_sources_that_are_no_records_are_named(memory):
    (fact,) = await memory.assert_fact("user", "likes", "tea", user_id="alice")
    found = await memory.explain(fact.id, user_id="alice")
    assert (found.sources, found.missing) == ((), ("stated",))
    assert "from stated, which is not there" in str(found)


async def test_a_block_has_its_version(memory):
    await memory.set_block("persona", "dry", user_id="alice")
    found = await memory.explain("block:persona", user_id="alice")
    assert str(found) == "block block:persona: dry\n  origin user, version 1"


async def test_a_job_that_was_given_up_is_named(clock):
    class Broken:
        async def extract(self, episodes, *, known=()):
            raise NotFound("the model is gone; set another")

    async with open_memory("inmemory", embedder="hash", clock=clock, extractor=Broken()) as memory:
        (turn,) = (await memory.remember("I live in Tokyo.", user_id="alice")).kept
        for _ in range(6):
            await memory.metabolize(user_id="alice")
            clock.advance(timedelta(hours=1))
        found = await memory.explain(turn.id, user_id="alice")
        assert [dead.job.kind for dead in found.given_up] == ["learn"]
        assert "job learn was given up: NotFound: The thing named is not there." in str(found)


async def test_records_of_others_are_not_explained(memory):
    (turn,) = (await memory.remember("I live in Tokyo.", user_id="alice")).kept
    with pytest.raises(NotFound, match="'bob' has no record"):
        await memory.explain(turn.id, user_id="bob")
