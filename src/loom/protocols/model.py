"""Calling a language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from loom.core.message import JSON, Message, Part, TextPart, ToolCallPart, ToolSpec, Usage

Stop: TypeAlias = Literal["end", "tool", "length", "stop_sequence", "refusal", "pause"]
"""Why an answer ended: it was done, it wants tools, it hit the length limit, a stop text or a refusal,
or the provider paused it and wants it sent back to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Settings of an answer. None leaves the provider's default; `extra` is passed on as it is."""

    max_output: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `any`, or the name of a tool."""
    output_schema: JSON = None
    """A JSON schema that the answer must follow."""
    extra: Mapping[str, JSON] = field(default_factory=dict[str, JSON], hash=False)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The exact request body that the context engine made for one provider (`anthropic`, `openai`, ...).

    Requests of one conversation share their messages: send a changed copy where something has to be different.
    """

    provider: str
    body: Mapping[str, JSON] = field(repr=False, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One call: the provider-neutral messages, and the rendered body where it is already made."""

    messages: tuple[Message, ...]
    system: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = ModelSettings()
    rendered: Rendered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """One answer. `parts` may be empty: some models end a turn without a word."""

    parts: tuple[Part, ...]
    stop: Stop
    usage: Usage
    model: str
    """The model that answered, as the provider names it."""
    id: str | None = None
    reported: Mapping[str, int] | None = field(default=None, compare=False)
    """What the provider said of its cache: `read`, `write`, and of what was written `5m` and `1h`. A count that it did
    not name is not there; None where that is not known of any."""
    finish: str = ""
    """Why it ended, in the provider's own word (`end_turn`, `MAX_TOKENS`); empty where there is none."""

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The tools it asks for, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def message(self) -> Message | None:
        """The answer as a message to append; None where it is empty."""
        return Message("assistant", self.parts) if self.parts else None


@dataclass(frozen=True, slots=True)
class TextChunk:
    """The next piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingChunk:
    """The next piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallChunk:
    """The next piece of a tool call's input, as JSON text."""

    id: str
    name: str
    json: str


Chunk: TypeAlias = TextChunk | ThinkingChunk | ToolCallChunk | ModelResponse


@runtime_checkable
class Model(Protocol):
    """Answers a request.

    Laws:
    - where `rendered` is for this model's provider, its body is sent unchanged but for transport fields
      (model name, streaming, settings); otherwise the model renders the neutral fields itself;
    - a stream ends with one ModelResponse, equal to what complete() would return; its text chunks joined
      are the response's text;
    - thinking and native parts come back exactly as they were received;
    - tool call ids are unique within a response, and `stop` is `tool` exactly when a call waits for a result;
    - usage is always there, with cache reads and writes inside `input`;
    - failures are errors of loom.errors: ContextOverflow with limit and size where known, RateLimited with
      retry_after where known, ProviderUnavailable, BadResponse; a broken stream raises and never ends quietly;
    - it never retries: the caller decides;
    - cancelling the call, or closing the stream, stops the request.
    """

    @property
    def name(self) -> str:
        """`provider:model`."""
        ...

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole answer."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""
        ...

    async def aclose(self) -> None:
        """Release connections. Closing twice is allowed."""
        ...


@runtime_checkable
class KnowsWindow(Protocol):
    """A model that knows its own limits (a local one, say) better than any catalogue."""

    @property
    def context_window(self) -> int:
        """Tokens of prompt and answer together."""
        ...


@runtime_checkable
class OneAtATime(Protocol):
    """A model that says whether it makes one answer at a time, so that a second request waits for the first."""

    one_at_a_time: bool


@runtime_checkable
class SaysIfItReads(Protocol):
    """A model that says whether it understands text. One that does not, such as a script, is not asked for facts."""

    reads_text: bool
