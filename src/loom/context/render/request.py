"""A window, a provider and a model become a request: laid out, marked, rendered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from loom.context.cache.markers import Placement, place
from loom.context.render import anthropic, gemini, openai_chat, openai_responses
from loom.context.render.body import RenderedBody
from loom.context.render.layout import Layout, WireDialect, WireSlot, lay_out
from loom.context.render.target import Target, target_for
from loom.core.window import Window
from loom.errors import UsageError


class _Renderer(NamedTuple):
    dialect: WireDialect
    render: Callable[[Layout, str, Mapping[WireSlot, str], Mapping[str, Any]], RenderedBody]
    may_mark: Callable[[WireSlot], bool]


def _reasoning(provider: str) -> _Renderer:
    """The form of a service that wants its reasoning back, as DeepSeek does after a tool call, or else refuses.

    Nothing of it is sealed, so nothing is bound to a prefix.
    """
    dialect = WireDialect(provider, system_turns=True, binds_thinking=False)
    return _Renderer(dialect, partial(openai_chat.render, system_role="system", reasoning=True), openai_chat.may_mark)


# Most servers that speak the Chat form know the system prompt by its older role.
_COMPATIBLE = _Renderer(openai_chat.DIALECT, partial(openai_chat.render, system_role="system"), openai_chat.may_mark)
_ANTHROPIC = _Renderer(anthropic.DIALECT, anthropic.render, anthropic.may_mark)
_RENDERERS: dict[str, _Renderer] = {
    "anthropic": _ANTHROPIC,
    "bedrock": _ANTHROPIC,
    "openai": _Renderer(openai_responses.DIALECT, openai_responses.render, openai_responses.may_mark),
    "openai_chat": _Renderer(openai_chat.DIALECT, openai_chat.render, openai_chat.may_mark),
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
