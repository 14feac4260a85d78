"""The tools of a session: what the model is told of them, and running what it asks for."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from anyio import create_task_group

from loom.context.entry import MessageEntry
from loom.core.clock import Clock
from loom.core.event import Event, ToolEnd, ToolStart
from loom.core.limits import MAX_TEXT, MAX_TOOL_INPUT, MAX_TOOL_NAME, chars_in, check_length, shortened
from loom.core.message import DocumentPart, ImagePart, Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.core.run import RunContext, within_run
from loom.errors import CostExceeded, UsageError
from loom.protocols.tool import Tool, ToolOutput
from loom.session.events import Emitter
from loom.telemetry.bill import Bill, Ledger


class Payer(Protocol):
    """A turn that pays for what runs inside its tools."""

    def spend(self, bill: Bill, counted: Collection[Ledger]) -> None:
        """Something was spent, which stands on these ledgers already."""
        ...

    def exceeded(self) -> CostExceeded | None:
        """The error to say that the turn, or one above it, has cost as much as it may; None where it has not."""
        ...


_payer: ContextVar[Payer | None] = ContextVar("loom_payer", default=None)


def payer_above() -> Payer | None:
    """The turn whose tool this is inside of; None where there is none."""
    return _payer.get()


class Toolbox:
    """Tools by name. The calls of one answer run beside each other; their results come back in order."""

    def __init__(self, tools: Iterable[Tool], *, emitter: Emitter, clock: Clock) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"a session's tools hold {type(tool).__name__}; give objects with `spec` and `run`")
            instead = "no provider takes a longer one: rename it"
            check_length(tool.spec.name, f"the name of tool {tool.spec.name[:40]!r}", MAX_TOOL_NAME, instead)
            if tool.spec.name in self._tools:
                raise UsageError(f"two tools are called {tool.spec.name!r}; rename one")
            self._tools[tool.spec.name] = tool
        self._emitter = emitter
        self._clock = clock

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told, in the order given."""
        return tuple(tool.spec for tool in self._tools.values())

    def started(self, calls: Sequence[ToolCallPart]) -> list[Event]:
        """Say that the calls are about to run."""
        return [self._emitter.emit(ToolStart, call_id=call.id, name=call.name) for call in calls]

    async def run(
        self,
        calls: Sequence[ToolCallPart],
        refused: dict[str, str],
        *,
        run: RunContext,
        payer: Payer,
    ) -> tuple[Message, list[Event]]:
        """Run every call in a run; those in `refused` (by id) get the reason instead. Returns results and ends.

        `payer` pays for what runs inside the tools.
        """
        results: dict[str, ToolResultPart] = {}
        ends: list[Event] = []

        async def one(call: ToolCallPart) -> None:
            began = self._clock.monotonic()
            result = _failed(call, "the tool was cancelled before it answered")
            try:
                with within_run(run), _paid_by(payer):
                    result = await self._answer(call, refused.get(call.id), MAX_TEXT // len(calls))
            finally:  # a tool that awaits a task which somebody cancelled ends like this, and nothing else does
                results[call.id] = result
                spent = round((self._clock.monotonic() - began) * 1000)
                ends.append(
                    self._emitter.emit(
                        ToolEnd, call_id=call.id, name=call.name, is_error=result.is_error, milliseconds=spent
                    )
                )

        async with create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(one, call)
        return Message("user", tuple(results[call.id] for call in calls)), ends

    async def _answer(self, call: ToolCallPart, refusal: str | None, most: int) -> ToolResultPart:
        """What a tool says to a call, in at most so many characters."""
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
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a tool raises is told to the model)
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
