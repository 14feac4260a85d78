"""Ask: how a strategy asks a model about a history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loom.core.checkpoint import Shown
from loom.core.message import Message, TextPart, ThinkingPart, plain
from loom.protocols.model import Model, ModelRequest, ModelResponse, ModelSettings


class Ask(Protocol):
    """Puts one instruction behind a history and returns the answer.

    A session sends what it sent before, system and tools included, so that the provider reads the history from
    its cache. Failures are the model's own errors; ContextOverflow makes the caller ask about less.
    """

    async def __call__(self, history: Sequence[Shown], instruction: str, *, max_output: int) -> ModelResponse:
        """The answer to `instruction`, given `history`."""
        ...


def ask_model(model: Model) -> Ask:
    """The plain way: any model, without a cache to read.

    Everything is sent as text, because another model cannot take over tool calls, thinking or blocks that
    are not its own.
    """

    async def ask(history: Sequence[Shown], instruction: str, *, max_output: int) -> ModelResponse:
        texts = tuple(message for item in history if (message := _as_text(item.message)) is not None)
        settings = ModelSettings(max_output=max_output)
        return await model.complete(ModelRequest(messages=(*texts, Message.user(instruction)), settings=settings))

    return ask


def _as_text(message: Message) -> Message | None:
    text = "\n".join(plain(part) for part in message.parts if not isinstance(part, ThinkingPart))
    return Message(message.role, (TextPart(text),)) if text.strip() else None
