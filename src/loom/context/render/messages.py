"""Chat messages with Anthropic cache markers, the system message first: what `Context.to_messages` returns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from loom.catalog import find_model
from loom.context.cache.markers import place
from loom.context.render import anthropic
from loom.context.render.layout import lay_out
from loom.core.window import Window


class CacheWarning(UserWarning):
    """A cache setting was changed or ignored."""


_WORTH_A_WARNING = {"ttl_snapped", "volatile_breakpoint", "breakpoint_dropped"}


def chat_messages(
    window: Window, *, cache_breakpoints: Sequence[str] | None = None, cache_ttl: float | None = None
) -> list[dict[str, Any]]:
    """The window as messages; `[0]["content"]` is the system prompt, the rest are the turns.

    No breakpoints at all (an empty list) is the wish for messages without a marker, as `render(cache=False)` has it.
    """
    layout = lay_out(window, anthropic.dialect(binds_thinking=True))
    placement = place(
        layout,
        find_model("", "anthropic").cache,
        anthropic.may_mark,
        breakpoints=cache_breakpoints,
        ttl_seconds=cache_ttl,
    )
    for code, message in placement.warnings:
        if code in _WORTH_A_WARNING:
            warnings.warn(message, CacheWarning, stacklevel=3)
    markers = {} if cache_breakpoints is not None and not cache_breakpoints else placement.markers
    body = anthropic.render(layout, "", markers, {}).body
    return [{"role": "system", "content": body.get("system", [])}, *body["messages"]]
