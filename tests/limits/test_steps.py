"""No step of the event loop takes long, with texts as long as each call takes them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import thread_time

import pytest

from loom.core.limits import MAX_BLOCK, MAX_INSTRUCTION, MAX_NAME, MAX_OBJECT, MAX_PREDICATE, MAX_QUERY, MAX_TEXT
from loom.errors import LoomError
from loom.testing.steps import Steps, measured_steps
from tests.limits.calls import CALLS
from tests.limits.test_growth import UNITS, text_of

GOAL = 0.020
"""CPU seconds that a step should take at the most."""
MOST = 0.060
"""CPU seconds at which a step fails: a machine that does other work too may need three times as long."""

CAPS = {
    "Memory.remember": MAX_TEXT,
    "Memory.remember with names": MAX_NAME,
    "Memory.remember and metabolize": MAX_TEXT,
    "Memory on a long text": MAX_TEXT,
    "Memory.recall": MAX_TEXT,
    "Memory.recall of a statement": MAX_QUERY,
    "Memory.instruct": MAX_INSTRUCTION,
    "Memory.state an instruction": MAX_OBJECT,
    "Memory.state a subject": MAX_NAME,
    "Memory.state a predicate": MAX_PREDICATE,
    "Memory.facts": MAX_NAME,
    "Memory.set_block": MAX_BLOCK,
    "Memory.set_block by name": MAX_NAME,
    "Memory.timeline": MAX_QUERY,
    "Memory.explain": MAX_NAME,
    "Memory.import_": MAX_TEXT - 10,
    "LlmExtractor.extract": MAX_TEXT,
    "Session.send": MAX_TEXT,
    "Session.send with a skill": MAX_TEXT,
    "Session.send an answer": MAX_TEXT,
    "Session.send with a tool": MAX_TEXT,
    "Session.compact": MAX_TEXT,
    "Agent.run": MAX_TEXT,
    "Agent.run offline": MAX_TEXT,
    "InMemoryKnowledgeBase": 3 * MAX_TEXT,
    "GraphKnowledgeBase": MAX_TEXT,
}
"""Characters of the longest text that each call takes; documents may be longer, and take long to prepare here."""
NOT_ON_A_LOOP = {
    *("Context", "PromptBuilder", "plan, simulate, explain", "SkillMatcher", "fenced", "tokens", "EstimateCounter"),
    *("Session.explain and coverage", "topic_of", "contradict", "questions_in", "time_hint", "read_items"),
}
WORDS = ("statements", "dots", "different words", "other scripts")


async def measured(call: Callable[[], Awaitable[object]]) -> Steps:
    gc.collect()
    gc.disable()  # a collection falls into whatever step it likes
    try:
        async with measured_steps() as steps:
            with suppress(LoomError):
                await call()
        return steps
    finally:
        gc.enable()


def at_the_cap(unit: str, chars: int) -> str:
    return (text_of(UNITS[unit], chars * 2) + " The end.")[-chars:]


def test_every_call_that_waits_is_measured():
    assert CAPS.keys() | NOT_ON_A_LOOP | {"Memory.import_ of lines"} == CALLS.keys()


@pytest.mark.parametrize("name", CAPS)
def test_no_step_of_the_loop_takes_long(name):
    async def measure() -> dict[str, Steps]:
        await measured(await CALLS[name](at_the_cap("names", min(CAPS[name], 50_000))))  # imports, threads, caches
        found: dict[str, Steps] = {}
        for unit in WORDS:
            text = at_the_cap(unit, CAPS[name])
            tries = [await measured(await CALLS[name](text))]
            while min(one.longest for one in tries) > GOAL and len(tries) < 3:
                tries.append(await measured(await CALLS[name](text)))
            found[unit] = min(tries, key=lambda one: one.longest)
        return found

    found = asyncio.run(measure())
    print(name, {unit: str(steps) for unit, steps in found.items()})  # noqa: T201
    assert {unit: str(steps) for unit, steps in found.items() if steps.longest > MOST} == {}


def spin(seconds: float) -> None:
    end = thread_time() + seconds
    while thread_time() < end:
        pass


def test_the_longest_step_is_found_in_whatever_task_it_is():
    async def other() -> None:
        await asyncio.sleep(0)
        spin(0.03)
        await asyncio.sleep(0)

    async def main() -> tuple[Steps, Steps]:
        async with measured_steps() as busy:
            task = asyncio.create_task(other())
            spin(0.01)
            await task
        async with measured_steps() as waiting:
            await asyncio.to_thread(spin, 0.03)
        return busy, waiting

    busy, waiting = asyncio.run(main())
    assert 0.03 <= busy.longest < 0.09
    assert "other" in busy.where or "sleep" in busy.where
    assert waiting.longest < 0.02
    assert "ms in" in str(busy)


def test_after_it_the_loop_is_as_it_was():
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        before = loop.call_soon
        async with measured_steps():
            assert loop.call_soon != before
        return loop.call_soon == before

    assert asyncio.run(main())
