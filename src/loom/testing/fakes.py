"""Fakes for tests: a scripted model, a clock moved by hand, a run context, stepping a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from time import thread_time
from typing import Any, TypeAlias, cast

from loom.core.checks import as_utc
from loom.core.message import Part, TextPart, ThinkingPart, ToolCallPart, Usage
from loom.core.scope import RunContext, within_run
from loom.errors import ContextOverflow, LoomError, UsageError
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, TextChunk, ThinkingChunk, ToolCallChunk
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import EstimateCounter, count_request

Reply: TypeAlias = str | Part | Sequence[Part] | ModelResponse | Exception
"""One line of a script: text, parts, a whole response, or an error that is raised."""


class ScriptFinished(LoomError):
    """The model was called more often than its script has answers."""


class ScriptedModel:
    """A model that answers with the replies of a script, in order, or with a function of the request.

    Otherwise it behaves like any model: it streams, estimates usage, and refuses a prompt larger than its window.
    `requests` holds every request it got.
    """

    reads_text = False

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[ModelRequest], Reply] = (),
        *,
        name: str = "scripted:model",
        context_window: int = 200_000,
        counter: TokenCounter | None = None,
    ) -> None:
        """Make a model.

        Args:
            replies: the answers, in order; or a function that is called with each request.
            name: `provider:model`; with a real name, requests are rendered for that provider.
            context_window: tokens a prompt may have before it is refused with ContextOverflow.
            counter: counts the prompt; an estimate by default.
        """
        if isinstance(replies, str):
            raise UsageError(f"the script is one text, {replies!r:.60}; give a list of answers: ScriptedModel([...])")
        self.name = name
        """`provider:model`."""
        self._script = replies if callable(replies) else None
        self._replies = iter(()) if callable(replies) else iter(replies)
        self.context_window = context_window
        """Tokens of prompt and answer together."""
        self._counter = counter or EstimateCounter()
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The next answer of the script."""
        self.requests.append(request)
        size = count_request(request, self._counter)
        if size > self.context_window:
            message = f"the prompt has {size:,} tokens, the window of {self.name} is {self.context_window:,}"
            raise ContextOverflow(message, limit=self.context_window, size=size)
        reply = self._script(request) if self._script else next(self._replies, None)
        if reply is None:
            raise ScriptFinished(
                f"{self.name} was asked {len(self.requests)} times; its script has fewer answers; add one for each "
                f"request, tool calls included, or give a function that answers"
            )
        if isinstance(reply, Exception):
            raise reply
        return self._response(reply, size)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The next answer of the script, in pieces."""
        response = await self.complete(request)
        for part in response.parts:
            match part:
                case TextPart(text):
                    for start in range(0, len(text), 16):
                        yield TextChunk(text[start : start + 16])
                case ThinkingPart(text) if text:
                    yield ThinkingChunk(text)
                case ToolCallPart(id, name, input):
                    yield ToolCallChunk(id, name, json.dumps(input))
                case _:
                    pass
        yield response

    async def aclose(self) -> None:
        """Nothing to release."""

    def _response(self, reply: Reply, size: int) -> ModelResponse:
        if isinstance(reply, ModelResponse):
            return reply
        if isinstance(reply, str):
            parts: tuple[Part, ...] = (TextPart(reply),) if reply else ()
        else:
            parts = tuple(reply) if isinstance(reply, Sequence) else (reply,)  # pyright: ignore[reportAssignmentType]
        waits = any(isinstance(part, ToolCallPart) for part in parts)
        output = sum(self._counter.count_part(part) for part in parts)
        return ModelResponse(
            parts=parts, stop="tool" if waits else "end", usage=Usage(input=size, output=output), model=self.name
        )


# A fake clock that moves only when told.

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A Clock that stands still until advance() is called."""

    __slots__ = ("_monotonic", "_now")

    def __init__(self, start: datetime = START) -> None:
        self._now = as_utc(start, "the start of a FakeClock")
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The time it was moved to."""
        return self._now

    def monotonic(self) -> float:
        """Seconds advanced since it was made."""
        return self._monotonic

    def advance(self, by: float | timedelta) -> datetime:
        """Let time pass (a number is seconds); returns the new time."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise UsageError(f"advance({by!r}) would turn time back; use set() to move the wall clock alone")
        self._now += step
        self._monotonic += step.total_seconds()
        return self._now

    def set(self, now: datetime) -> None:
        """Set the wall clock, also back, as a machine does; monotonic() does not notice."""
        self._now = as_utc(now, "the time of a FakeClock")


# A run context for tests of tools.


@contextmanager
def run_context(
    *,
    user_id: str = "default",
    session_id: str = "test-session",
    namespace: str = "default",
    run_id: str = "test-run",
    metadata: Mapping[str, Any] | None = None,
) -> Generator[RunContext]:
    """Run the block as a tool of an agent: get_run_context() returns this run, in sync and async code."""
    run = RunContext(
        user_id=user_id, session_id=session_id, namespace=namespace, run_id=run_id, metadata=dict(metadata or {})
    )
    with within_run(run):
        yield run


# Interrupt a call at each of its steps with another action, then let it continue.

_counted: ContextVar[bool] = ContextVar("counted", default=False)

Interruption = Callable[[], Awaitable[None]]


class Interrupter:
    """Counts the steps inside `counting()`: one before and one after each call of a watched object.

    A call of the watched object by another task, or by the interruption itself, does not count.
    """

    def __init__(self) -> None:
        self._left = -1
        self._interruption: Interruption | None = None
        self.reached = False
        """Whether the call had enough steps to be interrupted."""

    @asynccontextmanager
    async def counting(self, step: int, interruption: Interruption) -> AsyncGenerator[None]:
        """Interrupt the calls of this block at one step, counted from 0."""
        self._left, self._interruption, self.reached = step, interruption, False
        token = _counted.set(True)
        try:
            yield
        finally:
            _counted.reset(token)
            self._interruption = None

    async def pass_by(self) -> None:
        """One step."""
        if not _counted.get() or self._interruption is None or self.reached:
            return
        self._left -= 1
        if self._left < 0:
            self.reached = True
            token = _counted.set(False)
            try:
                await self._interruption()
            finally:
                _counted.reset(token)

    def watch(self, watched: Any) -> None:
        """Make every public coroutine method of an object two steps. It stays an instance of its class."""
        kind = cast("type[Any]", type(watched))
        names = [name for name in dir(kind) if not name.startswith("_") and iscoroutinefunction(getattr(kind, name))]
        stepped = {name: self._stepped(kind, name) for name in names}
        watched.__class__ = type(f"Watched{kind.__name__}", (kind,), stepped)

    def _stepped(self, kind: type[Any], name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(kind, name)

        async def call(*args: Any, **options: Any) -> Any:
            await self.pass_by()
            try:
                return await method(*args, **options)
            finally:
                await self.pass_by()

        return call


# Measure how long the event loop is blocked: the CPU time of each of its steps.

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
