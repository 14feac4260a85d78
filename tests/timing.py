"""Time for tests of deadlines: it goes by because a test says so, not because anybody waits."""

import asyncio
from contextlib import asynccontextmanager

import anyio

LONG = 3600.0
"""A deadline that nothing meets by accident, however busy the machine is."""


def pass_time(seconds=LONG):
    """Set the clock of the event loop on: what was to be over within so many seconds is over now."""
    loop = asyncio.get_running_loop()
    if not hasattr(loop, "ahead"):
        real, loop.ahead = loop.time, 0.0
        loop.time = lambda: real() + loop.ahead
    loop.ahead += seconds


@asynccontextmanager
async def time_flies():
    """A block in which no deadline is far; for calls that nothing but their deadline ends."""

    async def fly():
        while True:
            await anyio.sleep(0.01)
            pass_time()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fly)
        yield
        tasks.cancel_scope.cancel()


async def until(is_so):
    """Wait until something is so, while others work."""
    while not is_so():
        await anyio.lowlevel.checkpoint()
