"""The tools of a session: their specs, asking for approval, and running the calls of an answer."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isawaitable, iscoroutinefunction
from logging import getLogger
from typing import Any, Protocol

from anyio import create_task_group, to_thread

from loom.context.entry import MessageEntry
from loom.core.clock import Clock
from loom.core.event import ToolEnd, ToolRefused, ToolStart
from loom.core.limits import MAX_TEXT, MAX_TOOL_INPUT, MAX_TOOL_NAME, MAX_VALUE, chars_in, check_length, shortened
from loom.core.message import DocumentPart, ImagePart, Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.core.run import RunContext, within_run
from loom.errors import CostExceeded, UsageError
from loom.protocols.approve import Approve, ToolRequest
from loom.protocols.tool import Tool, ToolOutput
from loom.session.events import Emitter
from loom.telemetry.bill import Bill, Ledger

_log = getLogger(__name__)


class Payer(Protocol):
    """A turn that pays for what runs inside its tools."""

    def spend(self, bill: Bill, counted: Collection[Ledger]) -> None:
        """Add a bill, which is on these ledgers already."""
        ...

    def exceeded(self) -> CostExceeded | None:
        """The error to say that the turn, or one above it, has cost as much as it may; None where it has not."""
        ...


_payer: ContextVar[Payer | None] = ContextVar("loom_payer", default=None)


def payer_above() -> Payer | None:
    """The turn whose tool this is inside of; None where there is none."""
    return _payer.get()


class Toolbox:
    """Tools by name. The calls of one answer run concurrently; their results come back in order."""

    def __init__(self, tools: Iterable[Tool], *, approve: Approve | None, emitter: Emitter, clock: Clock) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"a session's tools hold {type(tool).__name__}; give objects with `spec` and `run`")
            instead = "no provider takes a longer one: rename it"
            check_length(tool.spec.name, f"the name of tool {tool.spec.name[:40]!r}", MAX_TOOL_NAME, instead)
            if tool.spec.name in self._tools:
                raise UsageError(f"two tools are called {tool.spec.name!r}; rename one")
            self._tools[tool.spec.name] = tool
        self._approve = approve
        self._emitter = emitter
        self._clock = clock

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told, in the order given."""
        return tuple(tool.spec for tool in self._tools.values())

    async def run(
        self, calls: Sequence[ToolCallPart], refused: dict[str, str], *, run: RunContext, payer: Payer
    ) -> Message:
        """The results of all calls; those in `refused` (by id) get the reason instead.

        `payer` pays for what runs inside the tools.
        """
        refused = {**refused, **await self._ask([call for call in calls if call.id not in refused], run)}
        for call in calls:
            await self._emitter.emit(ToolStart, call_id=call.id, name=call.name)
        results: dict[str, ToolResultPart] = {}

        async def one(call: ToolCallPart) -> None:
            began = self._clock.monotonic()
            result = _failed(call, "the tool was cancelled before it answered")
            try:
                with within_run(run), _paid_by(payer):
                    result = await self._answer(call, refused.get(call.id), MAX_TEXT // len(calls))
            finally:  # a tool that awaits a task which was cancelled ends like this, and nothing else does
                results[call.id] = result
                spent = round((self._clock.monotonic() - began) * 1000)
                values = {"name": call.name, "is_error": result.is_error, "milliseconds": spent}
                self._emitter.emit_nowait(ToolEnd, call_id=call.id, **values)

        async with create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(one, call)
        return Message("user", tuple(results[call.id] for call in calls))

    async def _ask(self, calls: Sequence[ToolCallPart], run: RunContext) -> dict[str, str]:
        """Ask the approval hook about calls; returns the reasons of those that it refuses, by id."""
        refused: dict[str, str] = {}
        if self._approve is None:
            return refused
        for call in calls:
            request = ToolRequest(name=call.name, arguments=call.arguments, call_id=call.id, run=run)
            reason = await _refusal(self._approve, request)
            if reason is not None:
                refused[call.id] = f"the call was refused, and not made: {reason}"
                await self._emitter.emit(ToolRefused, call_id=call.id, name=call.name, reason=reason)
        return refused

    async def _answer(self, call: ToolCallPart, refusal: str | None, most: int) -> ToolResultPart:
        """The result of a call, in at most so many characters."""
        tool = self._tools.get(call.name)
        if refusal is not None:
            return _failed(call, refusal)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return _failed(call, f"there is no tool {call.name[:MAX_TOOL_NAME]!r}; the tools are: {known}")
        if (size := chars_in(call.input, MAX_TOOL_INPUT)) > MAX_TOOL_INPUT:
            return _failed(call, f"the input has over {MAX_TOOL_INPUT:,} characters ({size:,}); send less of it")
        try:
            result = ToolResultPart(call.id, _content(await tool.run(call.input), most))
            MessageEntry(Message("user", (result,)))  # refuses what no provider takes
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the model is told of whatever a tool raises)
            return _failed(call, shortened(f"{type(error).__name__}: {error}", most))
        return result


@contextmanager
def _paid_by(payer: Payer) -> Generator[None]:
    token = _payer.set(payer)
    try:
        yield
    finally:
        _payer.reset(token)


def _content(output: ToolOutput, most: int) -> tuple[TextPart | ImagePart | DocumentPart, ...]:
    """What a tool returned as parts; of text in more than `most` characters both ends, and how much is left out."""
    if isinstance(output, str):
        return (TextPart(shortened(output, most)),)
    if not isinstance(output, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"the tool returned {type(output).__name__}; it has to return text, or parts")
    texts = [part for part in output if isinstance(part, TextPart)]
    if sum(len(part.text) for part in texts) <= most:
        return tuple(output)
    share = most // len(texts)
    return tuple(TextPart(shortened(p.text, share), p.phase) if isinstance(p, TextPart) else p for p in output)


def _failed(call: ToolCallPart, reason: str) -> ToolResultPart:
    return ToolResultPart(call.id, (TextPart(reason),), is_error=True)


async def _refusal(approve: Approve, request: ToolRequest) -> str | None:
    """Why a call is refused; None where it may be made."""
    try:
        with within_run(request.run):
            answer = await _answer(approve, request)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a guard that cannot decide must not let anything through)
        _log.exception("the approval of %s failed", request.name)
        return f"its approval failed ({type(error).__name__})"
    if answer is True:
        return None
    if isinstance(answer, str) and answer.strip():
        return shortened(answer, MAX_VALUE)
    return "it was not approved"


async def _answer(approve: Approve, request: ToolRequest) -> Any:
    if iscoroutinefunction(approve) or iscoroutinefunction(getattr(approve, "__call__", None)):  # noqa: B004
        return await approve(request)  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    answer = await to_thread.run_sync(approve, request, abandon_on_cancel=True)
    return await answer if isawaitable(answer) else answer
