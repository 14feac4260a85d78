"""Telemetry: the bill of model calls, and OpenTelemetry spans under the GenAI conventions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from loom.catalog import KNOWN_AS, Catalog, ModelInfo, find_model
from loom.core.log import (
    CheckpointSaved,
    CompactionEnd,
    CompactionStart,
    ContextPressure,
    Error,
    Event,
    Recovery,
    SessionEnd,
    ToolEnd,
    ToolStart,
    TurnEnd,
    TurnStart,
)
from loom.core.message import Usage
from loom.protocols.model import Chunk, KnowsWindow, Model, ModelRequest, ModelResponse

if TYPE_CHECKING:
    from opentelemetry.trace import Span


# Bill: model requests, their tokens and their cost, counted where a request is made.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The sum of some model requests. A request that failed counts as a request, and has no tokens."""

    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0
    """In US dollars, by the catalogue's prices; None where the price of a model that answered is not known."""

    def __add__(self, other: Bill) -> Bill:
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Bill(requests=self.requests + other.requests, usage=self.usage + other.usage, cost=cost)

    def __str__(self) -> str:
        price = "" if self.cost is None else f", ${self.cost:.4f}"
        what = "request" if self.requests == 1 else "requests"
        return f"{self.requests:,} {what}, {self.usage.input:,} tokens in, {self.usage.output:,} out{price}"


class Ledger:
    """Adds up a bill."""

    __slots__ = ("bill",)

    def __init__(self) -> None:
        self.bill = Bill()

    def sent(self) -> None:
        """Count a request."""
        self.bill += Bill(requests=1)

    def answered(self, usage: Usage, info: ModelInfo | None = None) -> None:
        """Count the tokens of an answer; a model without an entry in the catalogue has no price."""
        cost = info.cost(usage) if info else None
        self.bill += Bill(usage=usage, cost=cost if usage != Usage() else 0.0)


class MeteredModel:
    """A model whose requests are counted on a ledger. In everything else it is the model inside."""

    def __init__(self, model: Model, ledger: Ledger) -> None:
        self._model = model
        self.ledger = ledger
        """Where its requests are counted."""

    @property
    def name(self) -> str:
        """`provider:model`."""
        return self._model.name

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The complete answer."""
        self.ledger.sent()
        response = await self._model.complete(request)
        self.ledger.answered(response.usage, info_of(self.name))
        return response

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer in pieces; the last item is the complete ModelResponse."""
        self.ledger.sent()
        chunks = self._model.stream(request)
        try:
            async for chunk in chunks:
                if isinstance(chunk, ModelResponse):
                    self.ledger.answered(chunk.usage, info_of(self.name))
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):  # closing it stops the request
                await chunks.aclose()  # pyright: ignore[reportUnknownMemberType]

    async def aclose(self) -> None:
        """Release the connections of the model inside."""
        await self._model.aclose()


class _Windowed(MeteredModel):
    """The same for a model that knows its own window: isinstance() must see `context_window` only then."""

    @property
    def context_window(self) -> int:
        """Tokens of prompt and answer together."""
        assert isinstance(self._model, KnowsWindow)
        return self._model.context_window


def metered(model: Model, ledger: Ledger) -> MeteredModel:
    """The model with a ledger for its requests."""
    return (_Windowed if isinstance(model, KnowsWindow) else MeteredModel)(model, ledger)


def info_of(name: str) -> ModelInfo:
    """The entry of the catalogue for a model, by `provider:model`."""
    head, colon, rest = name.partition(":")
    provider = KNOWN_AS.get(head.lower(), head.lower())
    return find_model(rest, provider) if colon and provider in Catalog.current().providers else find_model(name)


# The spans of a session, under the GenAI names of OpenTelemetry. Without a tracer set up they cost next to nothing.
#
# The content of messages never goes into a span: only names, counts and ids do.

Value: TypeAlias = str | int | float | bool


@cache
def _otel() -> ModuleType | None:
    """OpenTelemetry's `trace`. Programs that record spans have it installed; without it there is nothing to record."""
    try:
        from opentelemetry import trace  # noqa: PLC0415  (`import loom` loads no telemetry)
    except ImportError:
        return None
    return trace


class _NoSpan:
    """A span where OpenTelemetry is not installed: whatever is said to it is ignored."""

    def ignore(self, *_: object) -> None:
        """Do nothing."""

    set_attribute = set_attributes = add_event = end = ignore


_NO_SPAN: Any = _NoSpan()


class SessionSpans:
    """Turns the events of one session into spans: a turn, and inside it calls, tools and compactions.

    No span becomes the current one: the reader of a turn has a current span of its own.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._turn: Span | None = None
        self._tools: dict[str, Span] = {}
        self._compaction: Span | None = None

    def __call__(self, event: Event) -> None:
        """Follow an event."""
        match event:
            case TurnStart():
                self._end_turn(Usage())  # one that never ended
                run = {"loom.run.id": event.run_id} if event.run_id else {}
                self._turn = self._start("invoke_agent", {"gen_ai.operation.name": "invoke_agent", **run})
            case SessionEnd():
                self._end_turn(Usage())
            case TurnEnd():
                self._end_turn(event.usage)
            case ToolStart():
                names = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": event.name}
                self._tools[event.call_id] = self._start(
                    f"execute_tool {event.name}", {**names, "gen_ai.tool.call.id": event.call_id}
                )
            case ToolEnd():
                if span := self._tools.pop(event.call_id, None):
                    if event.is_error:
                        _fail(span, "tool_error", "the tool failed")
                    span.end()
            case CompactionStart():
                values = {"loom.compaction.strategy": event.strategy, "loom.compaction.reason": event.reason}
                self._compaction = self._start("loom.compaction", values)
            case CompactionEnd():
                self._end_compaction(event)
            case ContextPressure() | CheckpointSaved() | Recovery() | Error() if self._turn:
                self._turn.add_event(event.type)
                if isinstance(event, Error):
                    _fail(self._turn, event.error, event.message)
                    self._end_turn(Usage())
            case _:
                pass

    @contextmanager
    def chat(self, provider: str, model: str) -> Generator[ChatSpan]:
        """A span around one call of a model."""
        with _answering(self._start(f"chat {model}", _chat(provider, model), client=True)) as span:
            yield span

    def _start(self, name: str, values: Mapping[str, Value], *, client: bool = False) -> Span:
        trace = _otel()
        if trace is None:
            return _NO_SPAN
        parent = trace.set_span_in_context(self._turn) if self._turn else None
        kind = trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL
        attributes = {"gen_ai.conversation.id": self._session_id, **values}
        return trace.get_tracer("loom").start_span(name, context=parent, kind=kind, attributes=attributes)

    def _end_turn(self, usage: Usage) -> None:
        """End the turn, and what a failure left open inside it."""
        for span in (*self._tools.values(), *((self._compaction,) if self._compaction else ())):
            span.end()
        self._tools, self._compaction = {}, None
        if self._turn:
            self._turn.set_attributes(_tokens(usage))
            self._turn.end()
            self._turn = None

    def _end_compaction(self, event: CompactionEnd) -> None:
        if self._compaction:
            counts = {
                "tokens_before": event.tokens_before,
                "tokens_after": event.tokens_after,
                "covered": event.covered,
            }
            self._compaction.set_attributes({f"loom.compaction.{name}": count for name, count in counts.items()})
            if event.error:
                _fail(self._compaction, "compaction_error", event.error)
            self._compaction.end()
            self._compaction = None


@contextmanager
def model_span(name: str, purpose: str) -> Generator[ChatSpan]:
    """A span of its own around one call of a model (`provider:model`) beside the conversations; it has no parent."""
    provider, _, model = name.partition(":")
    values: dict[str, Value] = {**_chat(provider, model), "loom.purpose": purpose}
    with _answering(_root_span(f"chat {model}", values)) as span:
        yield span


def _root_span(name: str, values: Mapping[str, Value]) -> Span:
    trace = _otel()
    if trace is None:
        return _NO_SPAN
    from opentelemetry.context import Context  # noqa: PLC0415

    return trace.get_tracer("loom").start_span(
        name, context=Context(), kind=trace.SpanKind.CLIENT, attributes=dict(values)
    )


class ChatSpan:
    """The span of one call of a model."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def answered(self, answer: ModelResponse) -> None:
        """Say what came back."""
        self._span.set_attributes(_tokens(answer.usage))
        self._span.set_attribute("gen_ai.response.model", answer.model)
        self._span.set_attribute("gen_ai.response.finish_reasons", (answer.stop,))
        if answer.id:
            self._span.set_attribute("gen_ai.response.id", answer.id)


@contextmanager
def _answering(span: Span) -> Generator[ChatSpan]:
    """A span that was started, until its call has ended, with the reason where it failed."""
    try:
        yield ChatSpan(span)
    except Exception as error:
        _fail(span, type(error).__name__, str(error))
        raise
    finally:
        span.end()


def _chat(provider: str, model: str) -> dict[str, Value]:
    return {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider, "gen_ai.request.model": model}


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
    }


def _fail(span: Span, kind: str, message: str) -> None:
    trace = _otel()
    if trace is None:
        return
    span.set_attribute("error.type", kind)
    span.set_status(trace.Status(trace.StatusCode.ERROR, message))
