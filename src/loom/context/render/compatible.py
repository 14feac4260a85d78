"""Any server that speaks the OpenAI Chat form: as Chat, but the system prompt keeps the older role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from loom.context.render import openai_chat
from loom.context.render.body import RenderedBody, RequestSettings
from loom.context.render.layout import Layout, WireDialect, WireSlot
from loom.context.render.openai_chat import dialect, may_mark

__all__ = ["Reasoning", "dialect", "may_mark", "render"]

render = partial(openai_chat.render, system_role="system")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The form of a service that wants its reasoning back, as DeepSeek does after a tool call, or else refuses."""

    provider: str

    def dialect(self, *, binds_thinking: bool = True) -> WireDialect:  # noqa: ARG002  (nothing is sealed, so nothing is bound)
        """As Chat, with the reasoning of this service."""
        return WireDialect(self.provider, system_turns=True, thinking="any")

    def render(
        self, layout: Layout, model: str, markers: Mapping[WireSlot, str], settings: RequestSettings
    ) -> RenderedBody:
        """A complete request body."""
        return render(layout, model, markers, settings, reasoning=True)

    def may_mark(self, slot: WireSlot) -> bool:
        """As Chat."""
        return may_mark(slot)
