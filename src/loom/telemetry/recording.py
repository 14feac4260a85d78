"""What is recorded of models, sessions, tools and memories: the bill, and OpenTelemetry spans and metrics.

The bill is always kept. OpenTelemetry is not imported, and nothing is recorded in it, until the program has set it up.
Texts never go into a span, unless configure_telemetry(content=True) asks for those of memory: else only names, counts
and ids do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeAlias, TypeVar, cast

import loom.telemetry.conventions as names
from loom.catalog import KNOWN_AS, Catalog, ModelInfo, find_model
from loom.core.log import (
    CacheStatus,
    CheckpointSaved,
    CompactionEnd,
    CompactionStart,
    ContextPressure,
    Error,
    Event,
    Recovery,
    SessionEnd,
    Text,
    ToolEnd,
    ToolStart,
    TurnEnd,
    TurnStart,
)
from loom.core.message import Usage
from loom.core.record import Episode, Fact, Hit, Receipt, WorkingBlock
from loom.core.window import PrefixChain
from loom.protocols.model import Chunk, KnowsWindow, Model, ModelRequest, ModelResponse
from loom.telemetry.conventions import CURRENT, INSTRUMENTS, PROVIDERS, conventions_of

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry.metrics import Counter, Histogram
    from opentelemetry.trace import Span, Tracer

_SCOPE: Final = "loom"
"""The name of the instrumentation."""
_DIGEST: Final = 16
"""Hex digits of a prefix digest: enough to tell the prefixes of one conversation apart."""

_SHOWN: Final = 100
"""Records whose texts are recorded, where they may be: an import has many more."""

_Value: TypeAlias = str | bool | int | float | tuple[str, ...]
_Labels: TypeAlias = Mapping[str, str]


# The bill: model requests, their tokens and their cost, counted where a request is made.


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
        return cast("KnowsWindow", self._model).context_window  # as metered() has seen


def metered(model: Model, ledger: Ledger) -> MeteredModel:
    """The model with a ledger for its requests."""
    return (_Windowed if isinstance(model, KnowsWindow) else MeteredModel)(model, ledger)


def info_of(name: str) -> ModelInfo:
    """The entry of the catalogue for a model, by `provider:model`."""
    head, colon, rest = name.partition(":")
    provider = KNOWN_AS.get(head.lower(), head.lower())
    return find_model(rest, provider) if colon and provider in Catalog.current().providers else find_model(name)


# What the program has set up of OpenTelemetry. It is asked for at each operation: a program may do so at any time.


class _Program:
    """The tracer and the meter of the program, as far as it has any."""

    def __init__(self) -> None:
        self.conventions, self.content = CURRENT, False
        self.forget()

    def forget(self) -> None:
        """Make the tracer and the instruments again when they are used next."""
        self._traces: object = None
        self._tracer: Tracer | None = None
        self._meters: object = None
        self._meter: _Meter | None = None

    @property
    def records(self) -> bool:
        """Whether the program records anything."""
        return self.tracer is not None or self.meter is not None

    @property
    def tracer(self) -> Tracer | None:
        """The tracer, if the program records spans."""
        provider = _provider("trace", "get_tracer_provider")
        if provider is not self._traces:
            self._tracer = provider and provider.get_tracer(_SCOPE, _version(), schema_url=self.conventions.schema_url)
            self._traces = provider
        return self._tracer

    @property
    def meter(self) -> _Meter | None:
        """The instruments, if the program records metrics."""
        provider = _provider("metrics", "get_meter_provider")
        if provider is not self._meters:
            self._meter = provider and _Meter(
                provider.get_meter(_SCOPE, _version(), schema_url=self.conventions.schema_url)
            )
            self._meters = provider
        return self._meter


def _provider(part: str, getter: str) -> Any:
    """The provider that the program has set; None if it has none, or has not even imported OpenTelemetry."""
    api = sys.modules.get(f"opentelemetry.{part}")
    if api is None:
        return None
    provider = getattr(api, getter, lambda: None)()
    # What the API itself offers where nothing was set up passes everything on to nobody.
    return None if type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics")) else provider


def _version() -> str:
    return str(sys.modules["loom"].__version__)


class _Meter:
    """The instruments of one meter, each made when it is first used."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def record(self, name: str, value: float, labels: _Labels) -> None:
        """Add to a counter, or record a value of a histogram."""
        kind, unit, about, boundaries = INSTRUMENTS[name]
        if kind == "counter":
            if name not in self._counters:
                self._counters[name] = self._meter.create_counter(name, unit=unit, description=about)
            self._counters[name].add(value, dict(labels))
            return
        if name not in self._histograms:
            self._histograms[name] = self._meter.create_histogram(
                name, unit=unit, description=about, explicit_bucket_boundaries_advisory=boundaries
            )
        self._histograms[name].record(value, dict(labels))


_program = _Program()


def configure_telemetry(*, conventions: str = CURRENT.version, content: bool = False) -> None:
    """Choose how this process names and fills its spans and metrics; it begins with the defaults.

    Args:
        conventions: the version of OpenTelemetry's GenAI conventions: `2026-11`, or `1.41` for programs that still
            read the older names. 1.41 has no operations of memory.
        content: whether spans of a memory hold the question and the texts of the records. These are private: give
            True only if they may be stored where your spans are.
    """
    _program.conventions, _program.content = conventions_of(conventions), content
    _program.forget()


class _Operation:
    """An operation in progress: a span, a duration, or both."""

    __slots__ = ("_began", "_metric", "ended_at", "error", "labels", "span")

    def __init__(self, span: Span | None, metric: str | None, labels: dict[str, str]) -> None:
        self.span, self._metric, self.labels = span, metric, labels
        self.error = ""
        self.ended_at: int | None = None
        self._began = perf_counter()

    def set(self, values: Mapping[str, _Value]) -> None:
        """Set attributes of the span."""
        if self.span is not None:
            self.span.set_attributes(dict(values))

    def fail(self, kind: str, message: str) -> None:
        """Say that it failed."""
        self.error = kind
        if self.span is not None:
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  (there is a span, so it is loaded)

            self.span.set_attribute(names.ERROR, kind)
            self.span.set_status(Status(StatusCode.ERROR, message))

    def stop(self) -> None:
        """Record the duration; the span ends with end(), at this time."""
        if self.ended_at is not None:
            return
        self.ended_at = time_ns()
        meter = _program.meter
        if meter is not None and self._metric is not None:
            labels = {**self.labels, names.ERROR: self.error} if self.error else self.labels
            meter.record(self._metric, perf_counter() - self._began, labels)

    def end(self) -> None:
        """It is over."""
        self.stop()
        if self.span is not None:
            self.span.end(self.ended_at)


def _begin(
    title: str,
    values: Mapping[str, _Value],
    *,
    parent: Span | None = None,
    is_root: bool = False,
    is_client: bool = False,
    metric: str | None = None,
    labels: Sequence[str] = (),
) -> _Operation | None:
    """Begin an operation; None if nothing would be recorded of it. `labels` are the attributes that its metric has."""
    tracer = _program.tracer
    if tracer is None and _program.meter is None:
        return None
    span: Span | None = None
    if tracer is not None:
        from opentelemetry.context import Context  # noqa: PLC0415  (there is a tracer, so it is loaded)
        from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415

        context = Context() if is_root else set_span_in_context(parent) if parent is not None else None
        kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
        span = tracer.start_span(title, context=context, kind=kind, attributes=dict(values))
    return _Operation(span, metric, {name: str(values[name]) for name in labels if name in values})


# Sessions.

_turn: ContextVar[SessionSpans | None] = ContextVar("loom_turn", default=None)
"""The session whose turn runs here: what a memory does in a turn belongs to it."""


class SessionSpans:
    """Turns the events of one session into spans and metrics: a turn, and inside it calls, tools and compactions.

    No span becomes the current one: the reader of a turn has a current span of its own.
    """

    def __init__(self, session_id: str, *, agent: str = "", is_compacted: Callable[[], bool] = lambda: False) -> None:
        self._session_id, self._agent, self._is_compacted = session_id, agent, is_compacted
        self._turn: _Operation | None = None
        self._tools: dict[str, _Operation] = {}
        self._compaction: _Operation | None = None
        self._strategy: dict[str, str] = {}
        self._chat: _Operation | None = None
        self._target: dict[str, str] = {}
        self._compacted = False  # since the last request
        self.prompt: PrefixChain | None = None
        """The request that is sent next, for what is recorded of it."""

    @contextmanager
    def running(self) -> Generator[None]:
        """While the block lasts, what memories do here belongs to the turn of this session."""
        token = _turn.set(self)
        try:
            yield
        finally:
            self._end_chat()
            with suppress(ValueError):  # a turn that was abandoned is cleaned up anywhere
                _turn.reset(token)

    @property
    def span(self) -> Span | None:
        """The span of the turn that is running."""
        return self._turn.span if self._turn else None

    def __call__(self, event: Event) -> None:
        """Follow an event."""
        if isinstance(event, Text):  # a session sends many of them, and they are nobody's business
            return
        if self._chat is not None and not isinstance(event, CacheStatus):
            self._end_chat()
        match event:
            case TurnStart():
                self._end_turn(None)  # one that never ended
                self._start_turn(event)
            case SessionEnd():
                self._end_turn(None)
            case TurnEnd():
                self._end_turn(event.usage)
            case ToolStart():
                self._start_tool(event)
            case ToolEnd():
                self._end_tool(event)
            case CompactionStart():
                self._strategy = {names.STRATEGY: event.strategy, names.REASON: event.reason}
                self._compaction = self._begin("loom.compaction", self._strategy)
            case CompactionEnd():
                self._end_compaction(event)
            case CacheStatus():
                self._report_cache(event)
            case ContextPressure() | CheckpointSaved() | Recovery() | Error():
                self._note(event)
            case _:
                pass

    def chat(self, provider: str, model: str) -> ChatSpan:
        """A span around one call of a model."""
        self._end_chat()
        if not _program.records:
            return _NO_CHAT
        values = _target(provider, model)
        self._target = values
        is_compacted = _program.conventions.has_memory and self._is_compacted()
        made = {**values, **({names.COMPACTED: True} if is_compacted else {})}
        metric = _program.conventions.chat_duration
        begun = self._begin(f"chat {model}", made, is_client=True, metric=metric, labels=_TARGET)
        return ChatSpan(begun, self._hold) if begun else _NO_CHAT

    def _begin(
        self, title: str, values: Mapping[str, _Value], *, parent: Span | None = None, **more: Any
    ) -> _Operation | None:
        parent = self.span if self.span is not None else parent
        return _begin(title, {names.CONVERSATION: self._session_id, **values}, parent=parent, **more)

    def _start_turn(self, event: TurnStart) -> None:
        values = {
            names.OPERATION: "invoke_agent",
            **self._named(),
            **({names.RUN: event.run_id} if event.run_id else {}),
        }
        metric = names.AGENT_DURATION if _program.conventions.has_memory else None
        title = f"invoke_agent {self._agent}" if self._agent else "invoke_agent"
        outer = _turn.get()  # that of an agent which has this one as a tool
        parent = outer.span if outer is not None and outer is not self else None
        self._turn = self._begin(title, values, parent=parent, metric=metric, labels=(names.AGENT,))

    def _named(self) -> dict[str, str]:
        return {names.AGENT: self._agent} if self._agent else {}

    def _start_tool(self, event: ToolStart) -> None:
        values = {names.OPERATION: "execute_tool", names.TOOL: event.name, names.TOOL_CALL: event.call_id}
        metric = names.TOOL_DURATION if _program.conventions.has_memory else None
        begun = self._begin(
            f"execute_tool {event.name}", {**values, **self._named()}, metric=metric, labels=(names.TOOL, names.AGENT)
        )
        if begun is not None:
            self._tools[event.call_id] = begun

    def _end_tool(self, event: ToolEnd) -> None:
        begun = self._tools.pop(event.call_id, None)
        if begun is not None:
            if event.is_error:
                begun.fail("tool_error", "the tool failed")
            begun.end()

    def _note(self, event: ContextPressure | CheckpointSaved | Recovery | Error) -> None:
        if self._turn is None:
            return
        if self._turn.span is not None:
            self._turn.span.add_event(event.type)
        if isinstance(event, Error):
            self._turn.fail(event.error, event.message)
            self._end_turn(None)

    def _end_turn(self, usage: Usage | None) -> None:
        """End the turn, and what a failure left open inside it."""
        self._end_chat()
        for begun in (*self._tools.values(), *((self._compaction,) if self._compaction else ())):
            begun.end()
        self._tools, self._compaction = {}, None
        if self._turn is not None:
            self._turn.set(_tokens(usage or Usage(), with_cache=not _program.conventions.has_memory))
            self._turn.end()
            self._turn = None

    def _end_compaction(self, event: CompactionEnd) -> None:
        meter, self._compacted = _program.meter, not event.error
        if meter is not None:
            meter.record(
                names.COMPACTIONS, 1, {**self._strategy, **({names.ERROR: "compaction_error"} if event.error else {})}
            )
        if self._compaction is not None:
            self._compaction.set(
                {
                    names.TOKENS_BEFORE: event.tokens_before,
                    names.TOKENS_AFTER: event.tokens_after,
                    names.COVERED: event.covered,
                }
            )
            if event.error:
                self._compaction.fail("compaction_error", event.error)
            self._compaction.end()
            self._compaction = None

    # A call is over before it is known what the cache did with it: its span waits for that, and keeps its own end.

    def _hold(self, begun: _Operation) -> None:
        begun.stop()
        self._chat = begun

    def _end_chat(self) -> None:
        if self._chat is not None:
            self._chat.end()
        self._chat = None

    def _report_cache(self, event: CacheStatus) -> None:
        begun, meter, prompt = self._chat, _program.meter, self.prompt
        compacted, self._compacted = self._compacted, False
        if meter is not None and (cause := _collapse(event, compacted=compacted)):
            meter.record(names.COLLAPSES, 1, {**_without_operation(self._target), names.COLLAPSE_CAUSE: cause})
        if begun is not None and begun.span is not None and begun.span.is_recording():
            predicted = {names.PREDICTED_READ: event.predicted_read, names.PREDICTED_WRITE: event.predicted_write}
            broke = {names.BROKE_AT: event.broke_at} if event.broke_at else {}
            begun.set({**predicted, **broke, **(_prompt_values(prompt) if prompt is not None else {})})
        self._end_chat()
        self.prompt = None


def _collapse(event: CacheStatus, *, compacted: bool) -> str:
    """Why a request read less from the cache than the one before let expect; empty if it did not."""
    if event.broke_at is not None:
        return "compaction" if compacted else "moved"
    # A provider that reports neither reads nor writes says nothing about its cache. What is predicted rests on
    # estimated tokens, so only a read of less than half of it is a loss.
    is_reported = event.usage.cache_read or event.usage.cache_write
    return "lost" if is_reported and event.usage.cache_read < event.predicted_read // 2 else ""


def _prompt_values(prompt: PrefixChain) -> dict[str, _Value]:
    """The tokens of each section, and the prefix up to the last marker, or up to the first volatile block."""
    sections: dict[str, int] = {}
    for block in prompt.blocks:
        section = block.origin.section if block.origin else block.level
        sections[section] = sections.get(section, 0) + block.tokens
    values: dict[str, _Value] = {names.SECTION_TOKENS.format(section=name): sections[name] for name in sections}
    last = max(prompt.marks, default=prompt.stable - 1)
    if last >= 0:
        values |= {names.PREFIX_DIGEST: prompt.nodes[last].hex()[:_DIGEST], names.PREFIX_TOKENS: prompt.ends[last]}
    return values


# Calls of models.

_TARGET: Final = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL)


def _target(provider: str, model: str) -> dict[str, str]:
    provider = PROVIDERS.get(provider.lower(), provider)
    return {names.OPERATION: "chat", names.PROVIDER: provider, names.REQUEST_MODEL: model}


def _without_operation(labels: _Labels) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != names.OPERATION}


class ChatSpan:
    """One call of a model, from its beginning to the end of the block."""

    __slots__ = ("_begun", "_end")

    def __init__(self, begun: _Operation, end: Callable[[_Operation], None] = _Operation.end) -> None:
        self._begun, self._end = begun, end

    def answered(self, answer: ModelResponse) -> None:
        """Say what came back."""
        begun, meter = self._begun, _program.meter
        begun.labels[names.RESPONSE_MODEL] = answer.model
        begun.set(
            {
                **_tokens(answer.usage),
                names.RESPONSE_MODEL: answer.model,
                names.FINISH_REASONS: (answer.finish or answer.stop,),
                names.OWN_FINISH: answer.stop,
                **({names.RESPONSE_ID: answer.id} if answer.id else {}),
            }
        )
        if meter is not None:
            _record_tokens(meter, answer.usage, begun.labels)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._end(self._begun)
            return
        self._begun.fail(kind.__name__, str(error))
        self._begun.end()


class _NoChat(ChatSpan):
    """A call of which nothing is recorded."""

    __slots__ = ()

    def __init__(self) -> None: ...

    def answered(self, answer: ModelResponse) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NO_CHAT: Final = _NoChat()


def model_span(name: str, purpose: str) -> ChatSpan:
    """A span around one call of a model (`provider:model`) beside the conversations; it has no parent."""
    if not _program.records:
        return _NO_CHAT
    provider, _, model = name.partition(":")
    values = {**_target(provider, model), names.PURPOSE: purpose}
    metric = _program.conventions.chat_duration
    begun = _begin(f"chat {model}", values, is_root=True, is_client=True, metric=metric, labels=_TARGET)
    return ChatSpan(begun) if begun else _NO_CHAT


def _tokens(usage: Usage, *, with_cache: bool = True) -> dict[str, _Value]:
    values: dict[str, _Value] = {names.INPUT_TOKENS: usage.input, names.OUTPUT_TOKENS: usage.output}
    if with_cache:
        values |= {names.CACHE_READ: usage.cache_read, _program.conventions.cache_write: usage.cache_write}
    return values


def _record_tokens(meter: _Meter, usage: Usage, labels: _Labels) -> None:
    if not _program.conventions.has_cache_counters:
        for kind, count in (("input", usage.input), ("output", usage.output)):
            meter.record(names.TOKEN_USAGE, count, {**labels, names.TOKEN_TYPE: kind})
        return
    counts = {
        names.USED_INPUT: usage.input,
        names.USED_OUTPUT: usage.output,
        names.USED_CACHE_READ: usage.cache_read,
        names.USED_CACHE_WRITE: usage.cache_write,
    }
    for name, count in counts.items():
        # Providers that Loom knows do not say of which kind the tokens are.
        meter.record(name, count, {**labels, names.MODALITY: "unknown"})


# Operations of memories.

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Named(Protocol):
    """A memory: its namespace names it, because its URL may hold a password."""

    @property
    def namespace(self) -> str: ...

    @property
    def store(self) -> object: ...


_M = TypeVar("_M")
_Method: TypeAlias = Callable[Concatenate[_M, _P], Coroutine[Any, Any, _R]]


def traced(operation: str) -> Callable[[_Method[_M, _P, _R]], _Method[_M, _P, _R]]:
    """Make the calls of a method of a memory an operation of the conventions: `search_memory`, `create_memory`, ..."""

    def decorate(method: Any) -> Any:
        @wraps(method)
        async def call(memory: Any, *args: Any, **named: Any) -> Any:
            begun = _begin_memory(operation, memory, args)
            if begun is None:
                return await method(memory, *args, **named)
            try:
                result = await method(memory, *args, **named)
                _describe(begun, result)
            except BaseException as error:
                begun.fail(type(error).__name__, str(error) if _program.content else "")
                raise
            finally:
                begun.end()
            return result

        return call

    return decorate


def _begin_memory(operation: str, memory: _Named, args: Sequence[object]) -> _Operation | None:
    if not _program.records or not _program.conventions.has_memory:
        return None
    values: dict[str, _Value] = {
        names.OPERATION: operation,
        names.STORE: memory.namespace,
        names.BACKEND: type(memory.store).__name__,
    }
    if operation == "search_memory" and _program.content and args:
        values[names.QUERY_TEXT] = str(args[0])
    if operation in ("update_memory", "delete_memory") and len(args) == 1 and isinstance(args[0], str):
        values[names.RECORD] = args[0]
    session = _turn.get()
    parent, metric = session.span if session else None, names.OPERATION_DURATION
    return _begin(operation, values, parent=parent, metric=metric, labels=(names.OPERATION,))


def _describe(begun: _Operation, result: Any) -> None:
    """Say how many records there were and, if texts may be recorded, what the first of them are."""
    if begun.span is None:
        return
    if isinstance(result, Receipt):
        begun.set({names.RECORD_COUNT: sum(result.removed.values())})
        return
    # Some return a record, or several, and some a result with hits or with what was kept.
    several: Any = (result,) if isinstance(result, Episode | Fact | WorkingBlock) else result
    found: Sequence[Any] = getattr(result, "hits", getattr(result, "kept", several))
    begun.set({names.RECORD_COUNT: len(found)})
    if _program.content and found:
        shown = [_item(record) for record in found[:_SHOWN]]
        begun.set({names.RECORDS: json.dumps(shown, ensure_ascii=False)})


def _item(one: Any) -> dict[str, object]:
    if isinstance(one, Hit):
        return {"id": one.item.id, "content": one.text, "score": one.score}
    return {"id": one.id, "content": one.text}
