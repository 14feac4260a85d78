"""Clocks that are set back, or disagree: what was said last counts, on every backend, at once and for good."""

from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from loom.agent.agent import Agent
from loom.core.record import Fact
from loom.memory._write.extract_rules import RuleExtractor
from loom.testing import FakeClock
from loom.testing.fakes import START

pytestmark = pytest.mark.anyio
ANN = {"user_id": "ann"}
TOWNS = ["Oslo", "Berlin", "Rome", "Athens"]
STEPS = [timedelta(milliseconds=1), timedelta(seconds=5), timedelta(hours=1)]


@pytest.fixture(params=STEPS, ids=["1ms", "5s", "1h"])
def step(request):
    return request.param


async def lives_in(memory):
    """Where ann lives, by every way to ask: facts, profile, and recall of facts."""
    facts = [fact.object for fact in await memory.facts(predicate="lives_in", **ANN)]
    profile = str(await memory.profile(**ANN))
    found = [hit.item for hit in (await memory.recall("Where does the user live?", **ANN)).hits]
    recalled = [item.object for item in found if isinstance(item, Fact) and item.predicate == "lives_in"]
    assert facts == [town for town in TOWNS if f"lives in: {town}" in profile] == recalled
    return facts


async def test_a_step_back_between_two_statements(place, step):
    clock = FakeClock()
    async with place(clock=clock, extractor=RuleExtractor()) as memory:
        await memory.remember("I live in Oslo.", **ANN)
        await memory.metabolize(**ANN)
        clock.set(clock.now() - step)
        await memory.remember("I moved to Berlin.", **ANN)
        await memory.metabolize(**ANN)
        assert await lives_in(memory) == ["Berlin"]
        clock.advance(2 * step)
        await memory.metabolize(**ANN)
        assert await lives_in(memory) == ["Berlin"]


async def test_both_are_learnt_after_the_step(place, step):
    clock = FakeClock()
    async with place(clock=clock, extractor=RuleExtractor()) as memory:
        await memory.remember("I live in Oslo.", session_id="s", **ANN)
        clock.set(clock.now() - step)
        await memory.remember("I moved to Berlin.", session_id="s", **ANN)
        await memory.metabolize(**ANN)
        assert await lives_in(memory) == ["Berlin"]
        first, second = [event.record for event in await memory.timeline(**ANN)]
        assert (first.text, second.text) == ("I live in Oslo.", "I moved to Berlin.")


async def test_after_reopening_with_a_clock_that_is_behind(place, step):
    clock = FakeClock()
    async with AsyncExitStack() as stack:  # what is kept in this process alone is not closed in between
        memory = await stack.enter_async_context(place(clock=clock, extractor=RuleExtractor()))
        await memory.remember("I live in Oslo.", **ANN)
        await memory.metabolize(**ANN)
        clock.set(clock.now() - step)
        await memory.remember("I moved to Berlin.", **ANN)
        await memory.metabolize(**ANN)
        again = await stack.enter_async_context(place(clock=FakeClock(clock.now()), extractor=RuleExtractor()))
        assert await lives_in(again) == ["Berlin"]
        await again.remember("I moved to Rome.", **ANN)
        await again.metabolize(**ANN)
        assert await lives_in(again) == ["Rome"]
        later = await stack.enter_async_context(place(clock=FakeClock(START + 3 * step)))
        assert await lives_in(later) == ["Rome"]


@pytest.mark.parametrize("session", [None, "s"], ids=["no session", "one session"])
@pytest.mark.parametrize("learner", [0, 1], ids=["ahead learns", "behind learns"])
async def test_two_processes_whose_clocks_disagree_speak_in_turns(place, step, session, learner):
    clocks = [FakeClock(START + step), FakeClock(START)]
    async with (
        place(clock=clocks[0], extractor=RuleExtractor()) as ahead,
        place(clock=clocks[1], extractor=RuleExtractor()) as behind,
    ):
        both = (ahead, behind)
        for number, town in enumerate(["Oslo", "Berlin", "Rome", "Berlin", "Oslo", "Rome"]):
            said = "I live in {}." if number == 0 else "I moved to {}."
            await both[number % 2].remember(said.format(town), session_id=session, **ANN)
            for memory in (both[learner], *both):
                await memory.metabolize(**ANN)
            for memory in both:
                assert await lives_in(memory) == [town]
            for clock in clocks:
                clock.advance(1.5)


async def test_stated_facts_and_instructions(place, step):
    clock = FakeClock()
    async with place(clock=clock) as memory:
        await memory.assert_fact("user", "lives_in", "Oslo", **ANN)
        await memory.instruct("Always answer in French.", **ANN)
        clock.set(clock.now() - step)
        await memory.assert_fact("user", "lives_in", "Berlin", **ANN)
        done = await memory.instruct("Please answer in German from now on.", **ANN)
        assert [item.text for item in done.retired] == ["Always answer in French"]
        assert await lives_in(memory) == ["Berlin"]
        async with place(clock=FakeClock(START - step)) as behind:
            assert await lives_in(behind) == ["Berlin"]
            await behind.assert_fact("user", "lives_in", "Athens", **ANN)
            await behind.instruct("Please answer in Greek from now on.", **ANN)
            for each in (memory, behind):
                assert [f.object for f in await each.facts(predicate="lives_in", **ANN)] == ["Athens"]
                assert [item.text for item in (await each.standing(**ANN)).items] == [
                    "Please answer in Greek from now on"
                ]


async def test_times_that_are_given_are_left_alone(place):
    clock = FakeClock()
    async with place(clock=clock, extractor=RuleExtractor()) as memory:
        await memory.remember("I moved to Berlin.", session_id="s", **ANN)
        clock.set(START - timedelta(days=2))
        told = await memory.remember("I live in Oslo.", session_id="s", at=START - timedelta(days=1), **ANN)
        assert told.kept[0].at == START - timedelta(days=1)
        await memory.metabolize(**ANN)
        assert await lives_in(memory) == ["Berlin"]


async def test_an_agent_whose_clock_is_set_back(tmp_path, step):
    clock = FakeClock()
    async with Agent(memory=f"sqlite:{tmp_path}/bot.db", clock=clock) as agent:
        await agent.run("I live in Oslo.", session_id="one", **ANN)
        clock.set(clock.now() - step)
        await agent.run("I moved to Berlin.", session_id="two", **ANN)
        assert await lives_in(agent.memory) == ["Berlin"]
    async with Agent(memory=f"sqlite:{tmp_path}/bot.db", clock=FakeClock(START - step)) as agent:
        assert await lives_in(agent.memory) == ["Berlin"]
        await agent.run("I moved to Rome.", session_id="two", **ANN)
        assert await lives_in(agent.memory) == ["Rome"]
