"""A window without a provider: system texts and messages, for models that make their own request."""

from __future__ import annotations

from loom.context.render.layout import WireDialect, lay_out
from loom.core.message import Message, TextPart
from loom.core.window import Window


def neutral(
    window: Window, *, provider: str, binds_thinking: bool = True
) -> tuple[tuple[str, ...], tuple[Message, ...]]:
    """The system texts and the messages of a window, in wire order; `provider` says whose thinking may stay."""
    layout = lay_out(window, WireDialect(provider, binds_thinking=binds_thinking))
    system = tuple(slot.content.text for slot in layout.system if isinstance(slot.content, TextPart))
    turns = ((turn.role, tuple(slot.content for slot in turn.slots)) for turn in layout.turns)
    return system, tuple(Message(role, parts) for role, parts in turns)  # pyright: ignore[reportArgumentType]
