"""The requests that cache analysis takes: a window, a recorded request body, or a prompt already read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from loom.catalog import ModelInfo
from loom.context.cache.prompt import BlockOrigin, Prompt
from loom.context.cache.recorded.envelope import model_of
from loom.context.cache.recorded.request import read_request
from loom.context.render.layout import WireSlot
from loom.context.render.request import Request, prepare
from loom.context.render.target import Target, target_for
from loom.core.window import Window
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.tokens import counter_for

AnyRequest: TypeAlias = Window | Prompt | Mapping[str, Any]


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
    if isinstance(subject, Prompt):
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


def as_prompt(subject: AnyRequest, analysis: AnalysisSettings) -> tuple[Prompt, Request | None]:
    """A subject as its cache sees it; for a window also the request made of it."""
    if isinstance(subject, Prompt):
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


def prompt_of(request: Request, counter: TokenCounter) -> Prompt:
    """A request as its cache sees it."""
    target = request.target
    if not request.rendered.origins:
        return Prompt(target.provider, target.model, ())
    prompt = read_request(request.body, provider=target.provider, model=target.model, counter=counter)
    origins = request.rendered.origins
    blocks = tuple(
        replace(block, origin=_origin(slot), volatile=slot.volatile) if (slot := origins.get(block.path)) else block
        for block in prompt.blocks
    )
    return replace(prompt, blocks=blocks)


def _origin(slot: WireSlot) -> BlockOrigin | None:
    return BlockOrigin(slot.section, slot.entry, slot.context, slot.label, slot.file) if slot.section else None
