"""The measure of the longest step of an event loop, by which `benchmarks/growth.py` judges."""

from __future__ import annotations

import asyncio
from time import thread_time

from loom.testing.fakes import Steps, measured_steps


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
    assert busy.longest >= 0.03
    assert "other" in busy.where or "sleep" in busy.where
    assert waiting.longest < busy.longest  # a thread is not a step
    assert "ms in" in str(busy)


def test_after_it_the_loop_is_as_it_was():
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        before = loop.call_soon
        async with measured_steps():
            assert loop.call_soon != before
        return loop.call_soon == before

    assert asyncio.run(main())
