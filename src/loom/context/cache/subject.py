"""What a cache question is asked about: a window, a request body of any program, or a prompt already read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from loom.catalog import ModelInfo, find_model
from loom.context.cache.prompt import Origin, Prompt
from loom.context.cache.recorded import model_of, read_request
from loom.context.render.layout import Slot
from loom.context.render.request import Request, prepare
from loom.core.window import Window
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.tokens import counter_for

Subject: TypeAlias = Window | Prompt | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """The provider and model a question is about, and who counts tokens for it."""

    provider: str
    model: ModelInfo
    counter: TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How the markers of a window are to be placed."""

    breakpoints: Sequence[str] | None = None
    ttl: float | None = None


def target_of(subject: Subject, provider: str | None, model: str | None, counter: TokenCounter | None = None) -> Target:
    """The target of a question; a recorded request names its own model."""
    if isinstance(subject, Prompt):
        provider, model = provider or subject.provider, model or subject.model
    elif isinstance(subject, Mapping):
        model = model or model_of(subject)
    if model is None:
        raise UsageError(
            "a window is planned for a model; name both, as in plan(window, 'anthropic', 'claude-sonnet-5')"
        )
    info = find_model(model, "openai" if provider == "openai_chat" else provider)
    return Target(provider or info.provider, info, counter or counter_for(info))


def as_prompt(subject: Subject, target: Target, options: CacheOptions) -> tuple[Prompt, Request | None]:
    """A subject as its cache sees it; for a window also the request made of it."""
    if isinstance(subject, Prompt):
        return subject, None
    if isinstance(subject, Window):
        request = prepare(
            subject,
            target.provider,
            target.model.model,
            cache_breakpoints=options.breakpoints,
            cache_ttl=options.ttl,
        )
        return _prompt_of(request, target), request
    named = None if model_of(subject) else target.model.model
    return read_request(subject, provider=target.provider, model=named, counter=target.counter), None


def _prompt_of(request: Request, target: Target) -> Prompt:
    if not request.rendered.origins:
        return Prompt(request.provider, target.model.model, ())
    prompt = read_request(request.body, provider=request.provider, model=target.model.model, counter=target.counter)
    origins = request.rendered.origins
    blocks = tuple(
        replace(block, origin=_origin(slot), volatile=slot.volatile) if (slot := origins.get(block.path)) else block
        for block in prompt.blocks
    )
    return replace(prompt, blocks=blocks)


def _origin(slot: Slot) -> Origin | None:
    return Origin(slot.section, slot.entry, slot.context, slot.label) if slot.section else None
