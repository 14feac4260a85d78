"""Chat messages with Anthropic cache markers, the system message first: what `Context.to_messages` returns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from loom.context.render.request import prepare
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
    marked = cache_breakpoints is None or bool(cache_breakpoints)
    request = prepare(window, "anthropic", "", cache=marked, cache_breakpoints=cache_breakpoints, cache_ttl=cache_ttl)
    for code, message in request.placement.warnings:
        if code in _WORTH_A_WARNING:
            warnings.warn(message, CacheWarning, stacklevel=3)
    return [{"role": "system", "content": request.body.get("system", [])}, *request.body["messages"]]
