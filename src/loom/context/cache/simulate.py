"""Simulate: a trace of windows or requests, replayed through a provider's prompt cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from loom.catalog import CacheRules, ModelInfo
from loom.context.cache._matching import CacheRead, CacheWrite, Prefixes, empty_cache
from loom.context.render.layout import WireSlot
from loom.context.render.request import Request, Target, prepare, target_for
from loom.core.cache_blocks import BlockOrigin, RequestBlocks
from loom.core.window import Window
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import counter_for
from loom.traces.request import model_of, read_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The cache use of one request. Every token of the prompt is read, written or uncached."""

    read: int
    write: int
    uncached: int
    cost: float
    """In tokens at the plain input price."""
    at_block: int
    """How many blocks were read whole."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.read + self.write + self.uncached


@dataclass(frozen=True, slots=True)
class Simulation:
    """The cache use of a trace, by request and in sum."""

    steps: tuple[Step, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all prompts, which is also their cost without a cache."""
        return sum(step.tokens for step in self.steps)

    @property
    def read(self) -> int:
        """Tokens read from the cache."""
        return sum(step.read for step in self.steps)

    @property
    def write(self) -> int:
        """Tokens written to the cache at a price."""
        return sum(step.write for step in self.steps)

    @property
    def uncached(self) -> int:
        """Tokens paid at the plain price."""
        return sum(step.uncached for step in self.steps)

    @property
    def cost(self) -> float:
        """Cost of all prompts, in tokens at the plain input price."""
        return sum(step.cost for step in self.steps)

    @property
    def read_share(self) -> float:
        """Share of all tokens that was read from the cache."""
        return self.read / self.tokens if self.tokens else 0.0

    @property
    def relative_cost(self) -> float:
        """Cost as a share of what the same prompts cost without a cache."""
        return self.cost / self.tokens if self.tokens else 1.0


def replay(trace: Sequence[RequestBlocks], rules: CacheRules) -> Simulation:
    """Replays requests in order through the cache that `rules` describe.

    Raises:
        UsageError: the provider would refuse a request, for too many markers or an unknown lifetime.
    """
    cache = empty_cache(rules)
    prefixes = Prefixes()
    steps: list[Step] = []
    for number, prompt in enumerate(trace):
        _check_lifetimes(number, prompt, rules)
        chain = prefixes.lay(prompt)
        try:
            found = cache.read(chain)
            written = cache.write(chain)
        except UsageError as error:
            raise UsageError(f"request {number} would be refused: {error}") from error
        steps.append(_step(prompt.tokens, found, written, rules))
    return Simulation(tuple(steps))


def _step(tokens: int, found: CacheRead, written: tuple[CacheWrite, ...], rules: CacheRules) -> Step:
    reached = found.tokens
    cost = found.tokens * rules.read
    for entry in written:
        stretch = max(0, entry.tokens - reached)
        cost += stretch * write_price(entry.ttl, rules)
        reached += stretch
    uncached = tokens - reached
    return Step(
        read=found.tokens, write=reached - found.tokens, uncached=uncached, cost=cost + uncached, at_block=found.blocks
    )


def write_price(ttl: str, rules: CacheRules) -> float:
    """Price of writing one token for a lifetime, as a share of the plain price."""
    if ttl in rules.write:
        return rules.write[ttl]
    return rules.write.get(rules.default_ttl or "", 1.0)


def _check_lifetimes(number: int, prompt: RequestBlocks, rules: CacheRules) -> None:
    if not rules.ttls:
        return
    markers = [(b.path, b.marker) for b in prompt.blocks if b.marker]
    markers += [("the automatic breakpoint", prompt.automatic)] if prompt.automatic else []
    for place, ttl in markers:
        if ttl not in rules.ttls:
            raise UsageError(
                f"request {number} would be refused: {place} asks for the lifetime {ttl!r}; "
                f"use one of {', '.join(rules.ttls)}"
            )


# The requests that cache analysis takes: a window, a recorded request body, or a prompt already read.

AnyRequest: TypeAlias = Window | RequestBlocks | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """The settings of one cache analysis: target, token counter, and how markers are placed."""

    target: Target
    counter: TokenCounter
    breakpoints: Sequence[str] | None = None
    ttl: float | None = None
    settings: Mapping[str, Any] | None = None

    @property
    def info(self) -> ModelInfo:
        """What is known of the model."""
        return self.target.info


def analysis_settings(
    subject: AnyRequest,
    provider: str | None,
    model: str | None,
    *,
    counter: TokenCounter | None = None,
    breakpoints: Sequence[str] | None = None,
    ttl: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> AnalysisSettings:
    """The settings to analyse a request with; a recorded request names its own model."""
    if isinstance(subject, RequestBlocks):
        provider, model = provider or subject.provider, model or subject.model
    elif isinstance(subject, Mapping):
        model = model or model_of(subject)
    elif not isinstance(subject, Window):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"give a window or a request, not {type(subject).__name__}; compile() makes a window")
    if model is None:
        raise UsageError(
            "a window is planned for a model; name both, as in plan(window, 'anthropic', 'claude-sonnet-5')"
        )
    target = target_for(provider, model)
    return AnalysisSettings(target, counter or counter_for(target.info), breakpoints, ttl, settings)


def as_prompt(subject: AnyRequest, analysis: AnalysisSettings) -> tuple[RequestBlocks, Request | None]:
    """A subject as its cache sees it; for a window also the request made of it."""
    if isinstance(subject, RequestBlocks):
        return subject, None
    target, counter = analysis.target, analysis.counter
    if isinstance(subject, Window):
        request = prepare(
            subject,
            target.provider,
            target.model,
            cache_breakpoints=analysis.breakpoints,
            cache_ttl=analysis.ttl,
            settings=analysis.settings,
        )
        return prompt_of(request, counter), request
    named = None if model_of(subject) else target.model
    return read_request(subject, provider=target.provider, model=named, counter=counter), None


def prompt_of(request: Request, counter: TokenCounter) -> RequestBlocks:
    """A request as its cache sees it."""
    target = request.target
    if not request.rendered.origins:
        return RequestBlocks(target.provider, target.model, ())
    prompt = read_request(request.body, provider=target.provider, model=target.model, counter=counter)
    origins = request.rendered.origins
    blocks = tuple(
        replace(block, origin=_origin(slot), volatile=slot.volatile) if (slot := origins.get(block.path)) else block
        for block in prompt.blocks
    )
    return replace(prompt, blocks=blocks)


def _origin(slot: WireSlot) -> BlockOrigin | None:
    return BlockOrigin(slot.section, slot.entry, slot.context, slot.label, slot.file) if slot.section else None


# Simulate: a trace of windows or recorded requests, replayed through the cache of a provider.


def simulate(
    trace: Sequence[AnyRequest],
    provider: str | None = None,
    model: str | None = None,
    *,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    counter: TokenCounter | None = None,
) -> Simulation:
    """What the cache of a provider would have read and written for these requests, and what they cost.

    Requests are windows, recorded request bodies or prompts, oldest first. Recorded ones name their own model.
    """
    if isinstance(trace, Window | RequestBlocks | Mapping):
        raise UsageError("a trace is a list of requests; put this one into a list")
    if not trace:
        raise UsageError("the trace is empty; give at least one request")
    analysis = analysis_settings(
        trace[0], provider, model, counter=counter, breakpoints=cache_breakpoints, ttl=cache_ttl
    )
    prompts = [as_prompt(subject, analysis)[0] for subject in trace]
    return replay(prompts, analysis.info.cache)
