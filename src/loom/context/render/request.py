"""A request for one provider and model: laid out, marked and rendered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from loom.catalog import KNOWN_AS, Catalog, ModelInfo, find_model
from loom.context.cache._markers import Placement, place
from loom.context.render import anthropic, gemini, openai
from loom.context.render.layout import Layout, RenderedBody, WireDialect, WireSlot, lay_out
from loom.core.message import Message, TextPart
from loom.core.window import Window
from loom.errors import UsageError

# The target of a request: provider, model, and the catalogue's data about it.


@dataclass(frozen=True, slots=True)
class Target:
    """A provider and a model, as the caller named them."""

    provider: str
    model: str
    """The model as it is sent; `info.model` is the id the catalogue knows it by."""
    info: ModelInfo


def target_for(provider: str | None, model: str) -> Target:
    """The target of a request; `provider:model` names both at once.

    Raises:
        UsageError: there is no such provider.
    """
    known = (*Catalog.current().providers, *KNOWN_AS)
    head, colon, rest = model.partition(":")
    if colon and head.lower() in known and provider in (None, head.lower()):
        provider, model = head.lower(), rest
    if provider is None:
        info = find_model(model)
        return Target(info.provider, model, info)
    if provider not in known:
        raise UsageError(
            f"there is no provider {provider!r}; the providers are {', '.join(known)}; "
            f"use 'compatible' for a server that speaks the OpenAI Chat form"
        )
    return Target(provider, model, find_model(model, KNOWN_AS.get(provider, provider)))


class _Renderer(NamedTuple):
    dialect: WireDialect
    render: Callable[[Layout, str, Mapping[WireSlot, str], Mapping[str, Any]], RenderedBody]
    may_mark: Callable[[WireSlot], bool]


def _reasoning(provider: str) -> _Renderer:
    """The form of a service that wants its reasoning back, as DeepSeek does after a tool call, or else refuses.

    Nothing of it is sealed, so nothing is bound to a prefix.
    """
    dialect = WireDialect(provider, system_turns=True, binds_thinking=False)
    return _Renderer(dialect, partial(openai.render_chat, system_role="system", reasoning=True), openai.may_mark)


# Most servers that speak the Chat form know the system prompt by its older role.
_COMPATIBLE = _Renderer(openai.CHAT_DIALECT, partial(openai.render_chat, system_role="system"), openai.may_mark)
_ANTHROPIC = _Renderer(anthropic.DIALECT, anthropic.render, anthropic.may_mark)
_RENDERERS: dict[str, _Renderer] = {
    "anthropic": _ANTHROPIC,
    "bedrock": _ANTHROPIC,
    "openai": _Renderer(openai.RESPONSES_DIALECT, openai.render_responses, openai.may_mark),
    "openai_chat": _Renderer(openai.CHAT_DIALECT, openai.render_chat, openai.may_mark),
    "gemini": _Renderer(gemini.DIALECT, gemini.render, gemini.may_mark),
    "deepseek": _reasoning("deepseek"),
    "xai": _reasoning("xai"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request ready to send: `body` is the keyword arguments of the provider's own client."""

    target: Target
    layout: Layout
    placement: Placement
    rendered: RenderedBody

    @property
    def body(self) -> dict[str, Any]:
        """The complete request body."""
        return self.rendered.body


def prepare(
    window: Window,
    provider: str,
    model: str,
    *,
    cache: bool = True,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Request:
    """Lay a window out for a provider, place its cache markers and render the body."""
    if not isinstance(window, Window):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a request is made of a window, not of {type(window).__name__}; call compile() first")
    target = target_for(provider, model)
    info = target.info
    dialect, render_body, may_mark = _RENDERERS.get(target.provider, _COMPATIBLE)
    binds = dialect.binds_thinking and (info.binds_thinking or not info.known)
    layout = lay_out(window, replace(dialect, binds_thinking=binds))
    placement = place(
        layout,
        info.cache,
        may_mark,
        breakpoints=cache_breakpoints,
        ttl_seconds=cache_ttl,
        automatic="cache_control" in (settings or {}),
    )
    markers = placement.markers if cache else {}
    if not cache and info.cache.implicit:  # without a word from us the provider would place a breakpoint itself
        settings = {"prompt_cache_options": {"mode": "explicit"}, **(settings or {})}
    return Request(target, layout, placement, render_body(layout, target.model, markers, settings or {}))


def render(
    window: Window,
    provider: str,
    model: str,
    *,
    cache: bool = True,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """The complete request body of a window: the keyword arguments of the provider's own client.

    Providers: `anthropic`, `bedrock`, `openai` (Responses), `openai_chat`, `gemini`, those of the catalogue that
    speak the Chat form (`deepseek`, `xai`, `vllm`, ...), and `compatible` for any other server that does.
    `settings` are passed on as they are (max_tokens, tool_choice, ...).
    """
    request = prepare(
        window,
        provider,
        model,
        cache=cache,
        cache_breakpoints=cache_breakpoints,
        cache_ttl=cache_ttl,
        settings=settings,
    )
    return request.body


def cache_resource(window: Window, model: str, *, ttl: int = 3600, display_name: str | None = None) -> dict[str, Any]:
    """The arguments of `client.caches.create` for a Gemini cache of what is static in a window."""
    layout = lay_out(window, gemini.DIALECT)
    return gemini.cache_resource(layout, target_for("gemini", model).model, ttl, display_name)


# A window without a provider: system texts and messages, for models that make their own request.


def neutral(
    window: Window, *, provider: str, binds_thinking: bool = True
) -> tuple[tuple[str, ...], tuple[Message, ...]]:
    """The system texts and the messages of a window, in wire order; `provider` says whose thinking may stay."""
    layout = lay_out(window, WireDialect(provider, binds_thinking=binds_thinking))
    system = tuple(slot.content.text for slot in layout.system if isinstance(slot.content, TextPart))
    turns = ((turn.role, tuple(slot.content for slot in turn.slots)) for turn in layout.turns)
    return system, tuple(Message(role, parts) for role, parts in turns)  # pyright: ignore[reportArgumentType]


# Chat messages with Anthropic cache markers, the system message first: what `Context.to_messages` returns.


class CacheWarning(UserWarning):
    """A cache setting was changed or ignored."""


_WORTH_A_WARNING = {"ttl_snapped", "volatile_breakpoint", "breakpoint_dropped"}


def chat_messages(
    window: Window, *, cache_breakpoints: Sequence[str] | None = None, cache_ttl: float | None = None
) -> list[dict[str, Any]]:
    """The window as messages; `[0]["content"]` is the system prompt, the rest are the turns.

    No breakpoints at all (an empty list) is the wish for messages without a marker, as `render(cache=False)` has it.
    """
    marked = cache_breakpoints is None or bool(cache_breakpoints)
    request = prepare(window, "anthropic", "", cache=marked, cache_breakpoints=cache_breakpoints, cache_ttl=cache_ttl)
    for code, message in request.placement.warnings:
        if code in _WORTH_A_WARNING:
            warnings.warn(message, CacheWarning, stacklevel=3)
    return [{"role": "system", "content": request.body.get("system", [])}, *request.body["messages"]]
