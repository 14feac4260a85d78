"""A model that gives scripted answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeAlias

from loom.core.message import Part, TextPart, ThinkingPart, ToolCallPart, Usage
from loom.errors import ContextOverflow, LoomError
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, TextChunk, ThinkingChunk, ToolCallChunk
from loom.protocols.token_counter import TokenCounter
from loom.tokens import EstimateCounter, count_request

Reply: TypeAlias = str | Part | Sequence[Part] | ModelResponse | Exception
"""One line of a script: text, parts, a whole response, or an error that is raised."""


class ScriptFinished(LoomError):
    """The model was called more often than its script has answers."""


class ScriptedModel:
    """A model that answers with the replies of a script, in order, or with a function of the request.

    Otherwise it behaves like any model: it streams, estimates usage, and refuses a prompt larger than its window.
    `requests` holds every request it got.
    """

    reads_text = False

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[ModelRequest], Reply] = (),
        *,
        name: str = "scripted:model",
        context_window: int = 200_000,
        counter: TokenCounter | None = None,
    ) -> None:
        """Make a model.

        Args:
            replies: the answers, in order; or a function that is called with each request.
            name: `provider:model`; with a real name, requests are rendered for that provider.
            context_window: tokens a prompt may have before it is refused with ContextOverflow.
            counter: counts the prompt; an estimate by default.
        """
        self._name = name
        self._script = replies if callable(replies) else None
        self._replies = iter(()) if callable(replies) else iter(replies)
        self._window = context_window
        self._counter = counter or EstimateCounter()
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        """`provider:model`."""
        return self._name

    @property
    def context_window(self) -> int:
        """Tokens of prompt and answer together."""
        return self._window

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The next answer of the script."""
        self.requests.append(request)
        size = count_request(request, self._counter)
        if size > self._window:
            message = f"the prompt has {size:,} tokens, the window of {self._name} is {self._window:,}"
            raise ContextOverflow(message, limit=self._window, size=size)
        reply = self._script(request) if self._script else next(self._replies, None)
        if reply is None:
            raise ScriptFinished(f"{self._name} was asked {len(self.requests)} times; its script has fewer answers")
        if isinstance(reply, Exception):
            raise reply
        return self._response(reply, size)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The next answer of the script, in pieces."""
        response = await self.complete(request)
        for part in response.parts:
            match part:
                case TextPart(text):
                    for start in range(0, len(text), 16):
                        yield TextChunk(text[start : start + 16])
                case ThinkingPart(text) if text:
                    yield ThinkingChunk(text)
                case ToolCallPart(id, name, input):
                    yield ToolCallChunk(id, name, json.dumps(input))
                case _:
                    pass
        yield response

    async def aclose(self) -> None:
        """Nothing to release."""

    def _response(self, reply: Reply, size: int) -> ModelResponse:
        if isinstance(reply, ModelResponse):
            return reply
        if isinstance(reply, str):
            parts: tuple[Part, ...] = (TextPart(reply),) if reply else ()
        else:
            parts = tuple(reply) if isinstance(reply, Sequence) else (reply,)  # pyright: ignore[reportAssignmentType]
        waits = any(isinstance(part, ToolCallPart) for part in parts)
        output = sum(self._counter.count_part(part) for part in parts)
        return ModelResponse(
            parts=parts, stop="tool" if waits else "end", usage=Usage(input=size, output=output), model=self._name
        )
