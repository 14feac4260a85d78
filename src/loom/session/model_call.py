"""Calling the model: request, retries, usage, and how full the window is."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from operator import is_not
from typing import Any, TypeAlias

from anyio.lowlevel import checkpoint

from loom.context.cache.explain import Explanation, compare
from loom.context.cache.plan import CachePlan, plan
from loom.context.cache.simulate import has_moved, last_step
from loom.context.render.request import Target, WireRequest, neutral, prepare, target_for
from loom.core.checks import MAX_TEXT
from loom.core.log import CacheStatus, Recovery, Text
from loom.core.message import Message, Part, ToolCallPart, ToolSpec, Usage
from loom.core.threads import off_loop
from loom.core.window import SECTIONS, PrefixChain, Run, Window
from loom.errors import BadResponse, ProviderError, ProviderUnavailable, RateLimited, UsageError
from loom.protocols.model import (
    Chunk,
    KnowsWindow,
    Model,
    ModelRequest,
    ModelResponse,
    Rendered,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from loom.protocols.token_counter import TokenCounter
from loom.protocols.tool import CALLABLE
from loom.session import OPENER
from loom.session.config import SessionConfig
from loom.session.journal import CacheLoss, Journal, PendingRequest, Purpose, read_less
from loom.session.reply import Emitter
from loom.telemetry import ChatSpan, MeteredModel, SessionSpans, metered
from loom.text.tokens import MESSAGE_OVERHEAD, CalibratedCounter, count_tool, counter_for

# How full the window is: the size that the last response reported, and an estimate of what was added since.

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_FASTER = 8
"""off_loop() knows how long splitting a text into words takes; counting its tokens takes this many times less."""


class Meter:
    """Counts windows for one model, and learns from every response.

    A window has the size of the last measured one plus the counted difference. So a history that shrinks counts less at
    once, and errors of the counter about the unchanged part do not matter. Each run of a window keeps the tokens of its
    chain, so that only what is new is counted.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = CalibratedCounter(counter)
        self._base = counter
        self._measured: tuple[int, int] | None = None
        self._tools_counted: tuple[tuple[ToolSpec, ...], int] = ((), 0)

    def tokens(self, window: Window) -> int:
        """The tokens of a window, system, tools and tail included."""
        counted = self._count(window)
        if self._measured is None:
            return round(counted * self.counter.scale)
        actual, then = self._measured
        return max(0, actual + round((counted - then) * self.counter.scale))

    def observe(self, window: Window, tokens: int) -> None:
        """Learn from a response that reported the tokens of this window."""
        if tokens > 0:
            counted = self._count(window)
            self.counter.observe(counted, tokens, scale=1.0)
            self._measured = (tokens, counted)

    async def count_ahead(self, window: Window) -> None:
        """Count the new items of a window: in a thread, where that is much work."""
        runs = [run for head in window.heads for run in self._new(head)]
        chars = sum(len(text) for run in runs for text in run.texts)
        counts = await off_loop(chars // _FASTER, lambda: list(map(self._run, runs)))
        for run, count in zip(runs, counts, strict=True):
            self._keep(run, count)

    def forget(self) -> None:
        """Drop the last measurement: the next window is of another history."""
        self._measured = None

    def sections(self, window: Window) -> dict[str, int]:
        """The tokens of each section and of the tools, by estimate."""
        scale, counts = self.counter.scale, {"tools": round(self._tools(window) * self.counter.scale)}
        for section, head in zip(SECTIONS, window.heads, strict=True):
            counts[section] = 0 if head is None else round(self._chain(head) * scale)
        return counts

    def _count(self, window: Window) -> int:
        return self._tools(window) + sum(self._chain(head) for head in window.heads if head is not None)

    def _tools(self, window: Window) -> int:
        known, tokens = self._tools_counted
        if len(known) != len(window.tools) or any(map(is_not, known, window.tools)):
            tokens = sum(count_tool(tool, self._base) for tool in window.tools)
            self._tools_counted = (window.tools, tokens)
        return tokens

    def _chain(self, head: Run | None) -> int:
        """The tokens of a run and of all before it."""
        for run in self._new(head):
            self._keep(run, self._run(run))
        return self._known(head) or 0

    def _new(self, head: Run | None) -> list[Run]:
        """The runs of a chain that were not counted yet, oldest first."""
        runs: list[Run] = []
        while head is not None and self._known(head) is None:
            runs.append(head)
            head = head.parent
        return runs[::-1]

    def _known(self, run: Run | None) -> int | None:
        """The tokens of a chain, if this meter has counted them; the end of a chain has none."""
        if run is None:
            return 0
        return run.counted[1] if run.counted is not None and run.counted[0] is self else None

    def _keep(self, run: Run, tokens: int) -> None:
        run.counted = (self, tokens + (self._known(run.parent) or 0))

    def _run(self, run: Run) -> int:
        count = self._base.count_part
        return sum(MESSAGE_OVERHEAD + sum(map(count, item.parts)) for item in run.items)


def _with_legal_names(response: ModelResponse, tools: Iterable[ToolSpec]) -> ModelResponse:
    """A response whose calls have names that a provider takes back: a model may call a tool that is not there.

    A request with such a name in its history is refused, and so would be every later one of the conversation.
    """
    known = {tool.name for tool in tools}
    if all(call.name in known or CALLABLE.fullmatch(call.name) for call in response.tool_calls):
        return response

    def renamed(part: Part) -> Part:
        if not isinstance(part, ToolCallPart) or part.name in known or CALLABLE.fullmatch(part.name):
            return part
        return replace(part, name=f"unknown_{_NOT_IN_NAMES.sub('_', part.name)}"[:64])

    return replace(response, parts=tuple(map(renamed, response.parts)))


Sleep: TypeAlias = Callable[[float], Awaitable[object]]

_DEFAULT_ANSWER = 4096
"""Tokens reserved for an answer where neither the settings nor the catalogue limit it: a long one of most models."""
_REMEMBERED = 4
"""How many earlier requests a cache prediction replays: each costs time, and newer ones extend the older prefixes."""
_CHUNKS_PER_CHECKPOINT = 100
"""Chunks after which other tasks get their turn, where the model delivers without a wait."""
_LONGEST_WAIT = 60.0
"""Seconds; a provider that asks for more is out of order for this turn, and the caller should decide."""


class ModelCaller:
    """Sends windows to one model."""

    def __init__(
        self,
        model: Model,
        *,
        config: SessionConfig,
        emitter: Emitter,
        spans: SessionSpans,
        journal: Journal,
        sleep: Sleep,
    ) -> None:
        self._config = config
        self._journal = journal
        self._emitter = emitter
        self._spans = spans
        self._sleep = sleep
        self.use(model)

    def use(self, model: Model) -> None:
        """Send to this model from now on; the measurements and requests of another one do not count for it."""
        self.model = model
        self._window = model if isinstance(model, KnowsWindow) else None
        self.target: Target = target_for(None, model.name)
        self.meter = Meter(counter_for(self.target.info))
        self._sent: list[PrefixChain] = []
        self._sent_at: datetime | None = None

    @property
    def window_size(self) -> int:
        """How many tokens prompt and answer may have together."""
        return self._window.context_window if self._window is not None else self.target.info.context_window

    @property
    def reserved_output(self) -> int:
        """How many tokens of the window are set aside for the answer: at most a quarter, or no history would fit."""
        asked = self._config.settings.max_output or self.target.info.max_output or _DEFAULT_ANSWER
        return min(asked, self.window_size // 4)

    @property
    def binds_thinking(self) -> bool:
        """Whether thinking is refused once the prompt before it has changed; assumed of unknown models of Anthropic."""
        unknown = not self.target.info.known and self.target.provider in ("anthropic", "bedrock")
        return self.target.info.binds_thinking or unknown

    def request(self, window: Window) -> ModelRequest:
        """The request of a window: neutral, and as the exact bytes of the provider."""
        return self._neutral(window, self._wire(window))

    def _wire(self, window: Window) -> WireRequest:
        target = self.target
        request = prepare(window, target.provider, target.model, cache_ttl=self._config.cache_ttl)
        return request.wire(self.meter.counter)

    def _neutral(self, window: Window, wire: WireRequest) -> ModelRequest:
        provider = self.target.provider
        return WindowRequest.of(
            lambda: neutral(window, provider=provider, binds_thinking=self.binds_thinking),
            tools=window.tools,
            settings=self._config.settings,
            rendered=Rendered(provider, wire.body),
        )

    def plan(self, window: Window) -> CachePlan:
        """What the prompt cache is expected to do with a window."""
        target = self.target
        return plan(window, target.provider, target.model, cache_ttl=self._config.cache_ttl, counter=self.meter.counter)

    def cost(self, usage: Usage) -> float | None:
        """What a usage costs in US dollars; None where a price is not known."""
        return self.target.info.cost(usage)

    async def send(self, window: Window, purpose: Purpose = "answer") -> ModelResponse:
        """Send a window, and send it again after a temporary failure. Each time leaves a record in the journal."""
        wire = self._wire(window)
        self._spans.prompt = wire.chain
        call = self._begin(purpose, wire, self.meter.sections(window))
        response = _with_legal_names(await self._retry(self._neutral(window, wire), call), window.tools)
        predicted, loss = await self._report_cache(wire.chain, response)
        self._answered(call, response, predicted, loss)
        self.meter.observe(window, response.usage.input)
        return response

    def _begin(self, purpose: Purpose, wire: WireRequest, sections: Mapping[str, int]) -> PendingRequest:
        target = self.target
        return self._journal.begin(
            purpose,
            provider=target.provider,
            model=target.model,
            sections=sections,
            chain=wire.chain,
            body=wire.body,
        )

    def _answered(
        self,
        call: PendingRequest,
        response: ModelResponse,
        predicted: tuple[int, int] | None = None,
        loss: CacheLoss | None = None,
    ) -> None:
        usage, reported = response.usage, response.reported
        call.answered(usage, self.cost(usage), reported=reported, predicted=predicted, loss=loss, model=response.model)

    async def _retry(self, request: ModelRequest, call: PendingRequest) -> ModelResponse:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._stream(request)
            except BaseException as error:
                call.failed(error)
                if not isinstance(error, ProviderError):
                    raise
                delay = _delay(error, attempt)
                if delay is None or attempt > self._config.max_retries:
                    raise
                wait = round(delay * 1000)
                await self._emitter.emit(
                    Recovery, action="retry", reason=str(error), attempt=attempt, delay_milliseconds=wait
                )
                await self._sleep(delay)

    async def complete(self, window: Window, *, max_output: int) -> ModelResponse:
        """The answer to a request beside the conversation: it is not measured, and nothing is tried again."""
        wire = self._wire(window)
        request = self._neutral(window, wire)
        request = replace(request, settings=replace(request.settings, max_output=max_output, tool_choice=None))
        call = self._begin("summary", wire, {})
        try:
            with self._spans.chat(self.target.provider, self.target.model) as span:
                response = await self.model.complete(request)
                self._checked(response, 0)
                span.answered(response)
        except BaseException as error:
            call.failed(error)
            raise
        self._answered(call, response)
        return response

    def record_other(self, model: Model) -> PendingRequest:
        """The record of a request to another model."""
        provider, _, name = model.name.partition(":")
        return self._journal.begin("summary", provider=provider, model=name)

    def span_of(self, model: Model) -> AbstractContextManager[ChatSpan]:
        """A span for a request to another model, inside that of the turn."""
        provider, _, name = model.name.partition(":")
        return self._spans.chat(provider, name)

    async def _stream(self, request: ModelRequest) -> ModelResponse:
        response: ModelResponse | None = None
        with self._spans.chat(self.target.provider, self.target.model) as span:
            chunks = self.model.stream(request)
            try:
                chars = pieces = 0
                async for chunk in chunks:
                    chars += self._checked(chunk, chars)
                    pieces += 1
                    if pieces % _CHUNKS_PER_CHECKPOINT == 0:
                        await checkpoint()
                    if isinstance(chunk, TextChunk) and chunk.text:
                        await self._emitter.emit(Text, text=chunk.text)
                    elif isinstance(chunk, ModelResponse):
                        response = chunk
            finally:
                if isinstance(chunks, AsyncGenerator):  # closing it stops the request
                    await chunks.aclose()  # pyright: ignore[reportUnknownMemberType]
            if response is None:
                raise BadResponse(f"the stream of {self.model.name} ended without an answer")
            span.answered(response)
        return response

    def _checked(self, chunk: Chunk, before: int) -> int:
        """How many characters a piece of an answer adds, beside those before it; refuses an answer without end."""
        match chunk:
            case TextChunk(text) | ThinkingChunk(text):
                chars = len(text)
            case ToolCallChunk():
                chars = len(chunk.json)
            case ModelResponse():  # all of it, whether or not it was told in pieces
                return -before + self._checked(TextChunk(chunk.text), 0)
        if before + chars > MAX_TEXT:
            raise BadResponse(
                f"{self.model.name} answered with more than {MAX_TEXT:,} characters and was stopped; set max_output"
            )
        return chars

    async def _report_cache(
        self, chain: PrefixChain, response: ModelResponse
    ) -> tuple[tuple[int, int], CacheLoss | None]:
        """Say what the cache did, beside what its rules predict after the requests before this one.

        Returns the predicted reads and writes, and why less was read.
        """
        info = self.target.info
        step = last_step([*self._sent, chain], info.cache)
        before = self._sent[-1] if self._sent else chain
        self._sent = [*self._sent[1 - _REMEMBERED :], chain]
        moved = compare(before.prompt, chain.prompt, info) if has_moved(before, chain, info.cache) else None
        loss = self._loss(moved, before, response, step.read)
        self._sent_at = self._journal.now()
        await self._emitter.emit(
            CacheStatus,
            usage=response.usage,
            predicted_read=step.read,
            predicted_write=step.write,
            broke_at=moved.path if moved else None,
        )
        return (step.read, step.write), loss

    def _loss(
        self, moved: Explanation | None, before: PrefixChain, response: ModelResponse, predicted: int
    ) -> CacheLoss | None:
        """Why less was read: the prompt changed, its prefix was kept too long ago, or nobody knows."""
        if moved is not None:
            entry = str(moved.origin) if moved.origin else ""
            return CacheLoss(cause=moved.cause, path=moved.path, entry=entry, byte=moved.byte, tokens=moved.lost_tokens)
        if not read_less(response.usage, response.reported, predicted):
            return None
        rules = self.target.info.cache
        kept = max((rules.ttls.get(ttl, 0.0) for ttl in (*before.marks.values(), rules.default_ttl or "")), default=0.0)
        idle = (self._journal.now() - self._sent_at).total_seconds() if self._sent_at is not None else 0.0
        cause = "expired" if kept and idle > kept else "unexplained"
        return CacheLoss(cause=cause, tokens=predicted - response.usage.cache_read)


class WindowRequest(ModelRequest):
    """A request whose neutral form is made of its window when a model asks for it; most send the rendered body."""

    __slots__ = ("_make",)

    @classmethod
    def of(cls, make: Callable[[], tuple[tuple[str, ...], tuple[Message, ...]]], **fields: Any) -> WindowRequest:
        """A request; `make` gives its system texts and messages."""
        request = object.__new__(cls)
        for name, value in {**fields, "_make": make}.items():
            object.__setattr__(request, name, value)
        return request

    def __getattr__(self, name: str) -> Any:  # called where a field has no value yet
        if name not in ("system", "messages"):
            raise AttributeError(name)
        system, messages = self._make()
        object.__setattr__(self, "system", system)
        object.__setattr__(self, "messages", messages)
        return getattr(self, name)


def _delay(error: ProviderError, attempt: int) -> float | None:
    """Seconds to wait before the next try: 1, 2, 4, ... or as the provider asks; None where a retry is useless."""
    if not error.retryable:
        return None
    asked = error.retry_after if isinstance(error, RateLimited | ProviderUnavailable) else None
    delay = 2.0 ** (attempt - 1) if asked is None else asked
    return delay if delay <= _LONGEST_WAIT else None


# Models that are given by name: opened for a session, and closed by it.


def named_model(model: Model | str) -> Model:
    """The model itself, or the one of a name."""
    if isinstance(model, str):
        return OPENER.get()(model)
    if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{model!r} is not a model; give provider:model, or a Model")
    return model


def with_models(config: SessionConfig) -> tuple[SessionConfig, tuple[Model, ...]]:
    """A configuration with its models open, and those that were opened here."""
    name = config.compaction.summary_model
    if not isinstance(name, str):
        return config, ()
    opened = named_model(name)
    return replace(config, compaction=replace(config.compaction, summary_model=opened)), (opened,)


def same_bill(model: Model, before: Model) -> Model:
    """The model, counted on the bill that the one before it was counted on."""
    return metered(model, before.ledger) if isinstance(before, MeteredModel) else model
