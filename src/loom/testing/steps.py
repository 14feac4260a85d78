"""Measure how long the event loop is blocked: the CPU time of each of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import thread_time
from typing import Any, cast

_CALLS = ("call_soon", "call_soon_threadsafe", "call_at")
"""The methods through which every step reaches the loop."""


@dataclass(slots=True)
class Steps:
    """The steps of a loop: how many, the CPU time of the longest in seconds, and which code it ran."""

    count: int = 0
    longest: float = 0.0
    where: str = ""
    is_over: bool = False
    """Whether the block ended: the step that continues after it does not count."""

    def __str__(self) -> str:
        return f"{self.count} steps, the longest {self.longest * 1000:.1f} ms in {self.where or 'nothing'}"

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Make one step, and measure it."""
        began = thread_time()
        try:
            callback(*args)
        finally:
            spent = thread_time() - began
            self.count += not self.is_over
            if not self.is_over and spent > self.longest:
                self.longest, self.where = spent, _named(callback)


@asynccontextmanager
async def measured_steps() -> AsyncGenerator[Steps]:
    """Measure every step of the running asyncio loop inside the block, of all tasks.

    A step is the code between two waits: while it runs, no other task can. The time is CPU time of the loop's own
    thread, so a busy machine and work in other threads do not count.
    """
    loop, steps = asyncio.get_running_loop(), Steps()
    for name in _CALLS:
        setattr(loop, name, partial(_measured, getattr(loop, name), steps, name))
    try:
        await asyncio.sleep(0)  # the current step began unmeasured; the next one is measured
        yield steps
        await asyncio.sleep(0)
    finally:
        steps.is_over = True
        for name in _CALLS:
            delattr(loop, name)


def _measured(call: Callable[..., Any], steps: Steps, name: str, *args: Any, **options: Any) -> Any:
    when, (callback, *rest) = (args[:1], args[1:]) if name == "call_at" else ((), args)
    return call(*when, steps.run, callback, *rest, **options)


def _named(callback: Callable[..., object]) -> str:
    """The code of a step: for a task, where it waits now, or what it was if it is over."""
    task: Any = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return getattr(callback, "__qualname__", repr(callback))
    waiting: Any = cast("Any", task).get_coro()
    place = getattr(waiting, "__qualname__", repr(waiting))
    while (inner := getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)) is not None:
        waiting = inner
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            place = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
    return place
