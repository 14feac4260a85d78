"""OpenAI's models, through the Chat Completions API of its SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from loom.core.message import JSON, Part, TextPart, ThinkingPart, ToolCallPart
from loom.protocols.model import (
    Chunk,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Stop,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from loom.providers.models.failures import ended_early
from loom.providers.models.openai import OpenAIBase, schema_form
from loom.providers.models.parts import ended, tool_input, unique_calls
from loom.providers.models.sdk import Body
from loom.providers.models.usage import chat_usage, usage_or_estimate

_STOPS: dict[str, Stop] = {"length": "length", "content_filter": "refusal"}


class OpenAIChatModel(OpenAIBase):
    """An OpenAI model, over Chat Completions, which shows no reasoning. The key is read from OPENAI_API_KEY."""

    provider = "openai_chat"
    _limit_field: ClassVar[str] = "max_completion_tokens"

    def _settled(self, body: Body, request: ModelRequest) -> Body:
        return chat_settings(body, request.settings, limit_field=self._limit_field)

    def _create(self, client: Any) -> Any:
        return client.chat.completions.create

    def _reader(self, request: ModelRequest) -> ChatReader:
        return ChatReader(self.name, self.provider, request)


def chat_settings(body: Body, settings: ModelSettings, *, limit_field: str) -> Body:
    """The body with the settings of a request, as Chat spells them; `limit_field` holds the longest answer."""
    body.setdefault("stream_options", {"include_usage": True})
    if settings.max_output is not None:
        body[limit_field] = settings.max_output
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.stop:
        body["stop"] = list(settings.stop)
    if settings.tool_choice is not None and body.get("tools"):
        body["tool_choice"] = _tool_choice(settings.tool_choice)
    if settings.output_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": schema_form(settings.output_schema)}
    return body


def _tool_choice(choice: str) -> JSON:
    if choice in {"auto", "none"}:
        return choice
    return "required" if choice == "any" else {"type": "function", "function": {"name": choice}}


@dataclass(slots=True)
class _Call:
    """A tool call as far as it has come."""

    id: str
    name: str
    json: list[str] = field(default_factory=list[str])


class ChatReader:
    """Makes an answer of the chunks of a Chat stream, also of servers that take its rules lightly."""

    def __init__(self, who: str, provider: str, request: ModelRequest) -> None:
        self._who, self._provider, self._request = who, provider, request
        self._id: str | None = None
        self._model = who.partition(":")[2]
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_Call] = []
        self._places: dict[int, _Call] = {}
        self._refused = False
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """What a chunk adds to the answer."""
        self._id = self._id or event.get("id")
        self._model = event.get("model") or self._model
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            if choice.get("index", 0) == 0:
                yield from self._grown(choice.get("delta") or {})
                self._finish = choice.get("finish_reason") or self._finish

    def response(self) -> ModelResponse:
        """The whole answer."""
        if self._finish is None:
            raise ended_early(self._who)
        parts = unique_calls(self._parts(), self._id)
        stop: Stop = "refusal" if self._refused else _STOPS.get(self._finish, "end")
        kept, stop = ended(parts, stop)
        usage = usage_or_estimate(chat_usage(self._usage), self._request, kept)
        return ModelResponse(parts=kept, stop=stop, usage=usage, model=self._model, id=self._id)

    def _grown(self, delta: Mapping[str, Any]) -> Iterator[Chunk]:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought and isinstance(thought, str):
            self._thinking.append(thought)
            yield ThinkingChunk(thought)
        self._refused = self._refused or bool(delta.get("refusal"))
        for text in (delta.get("content"), delta.get("refusal")):
            if text:
                self._text.append(text)
                yield TextChunk(text)
        for piece in delta.get("tool_calls") or ():
            yield self._called(piece)

    def _called(self, piece: Mapping[str, Any]) -> Chunk:
        """The next piece of a call. A new id begins a new call, whatever its place says: some servers count none."""
        place: int = piece.get("index") or 0
        function: Mapping[str, Any] = piece.get("function") or {}
        call = self._places.get(place)
        if call is None or (piece.get("id") and piece["id"] != call.id):
            call = self._places[place] = _Call(piece.get("id") or "", function.get("name") or "")
            self._calls.append(call)
        call.name = call.name or function.get("name") or ""
        json: str = function.get("arguments") or ""
        call.json.append(json)
        return ToolCallChunk(call.id, call.name, json)

    def _parts(self) -> Iterator[Part]:
        if self._thinking:
            yield ThinkingPart("".join(self._thinking), provider=self._provider)
        if self._text:
            yield TextPart("".join(self._text))
        for call in self._calls:
            yield ToolCallPart(call.id, call.name, tool_input("".join(call.json)))
