"""The spans of a session, under the GenAI names of OpenTelemetry. Without a tracer set up they cost next to nothing.

The content of messages never goes into a span: only names, counts and ids do.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from loom.core.event import (
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
from loom.protocols.model import ModelResponse

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Value: TypeAlias = str | int | float | bool


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
                self._end_tool(event)
            case CompactionStart():
                values = {"loom.compaction.strategy": event.strategy, "loom.compaction.reason": event.reason}
                self._compaction = self._start("loom.compaction", values)
            case CompactionEnd():
                self._end_compaction(event)
            case ContextPressure() | CheckpointSaved() | Recovery() | Error():
                self._note(event)
            case _:
                pass

    @contextmanager
    def chat(self, provider: str, model: str) -> Generator[ChatSpan]:
        """A span around one call of a model."""
        with _answering(self._start(f"chat {model}", _chat(provider, model), client=True)) as span:
            yield span

    def _start(self, name: str, values: Mapping[str, Value], *, client: bool = False) -> Span:
        from opentelemetry import trace  # noqa: PLC0415  (`import loom` loads no telemetry)

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

    def _end_tool(self, event: ToolEnd) -> None:
        span = self._tools.pop(event.call_id, None)
        if span:
            if event.is_error:
                _fail(span, "tool_error", "the tool failed")
            span.end()

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

    def _note(self, event: Event) -> None:
        if self._turn:
            self._turn.add_event(event.type)
            if isinstance(event, Error):
                _fail(self._turn, event.error, event.message)
                self._end_turn(Usage())


@contextmanager
def model_span(name: str, purpose: str) -> Generator[ChatSpan]:
    """A span of its own around one call of a model (`provider:model`) beside the conversations; it has no parent."""
    from opentelemetry import trace  # noqa: PLC0415  (`import loom` loads no telemetry)
    from opentelemetry.context import Context  # noqa: PLC0415

    provider, _, model = name.partition(":")
    values: dict[str, Value] = {**_chat(provider, model), "loom.purpose": purpose}
    tracer = trace.get_tracer("loom")
    started = tracer.start_span(f"chat {model}", context=Context(), kind=trace.SpanKind.CLIENT, attributes=values)
    with _answering(started) as span:
        yield span


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
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, message))
