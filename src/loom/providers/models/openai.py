"""OpenAI's models: Responses, Chat Completions, and compatible servers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from loom.core.clock import Clock
from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart
from loom.errors import UsageError
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
from loom.providers._failures import Failure, as_error, ended_early
from loom.providers.models import SERVICES, Render, Service
from loom.providers.models._answer import (
    chat_usage,
    ended,
    openai_cache,
    plain_settings,
    responses_usage,
    tool_input,
    unique_calls,
    usage_or_estimate,
)
from loom.providers.models.sdk import DEFAULT_TIMEOUT, Body, SdkModel

_MODES = {"auto": "auto", "none": "none", "any": "required"}
"""Tool choices that name no tool."""


class OpenAIBase(SdkModel):
    """A model behind OpenAI's SDK."""

    sdk = "openai"
    key = "OPENAI_API_KEY"

    def _connect(self, sdk: Any) -> Any:
        key = self._api_key or self._found_key()
        if not key:
            raise self._no_key()
        return sdk.AsyncOpenAI(api_key=key, base_url=self._base_url, timeout=self._timeouts(sdk), max_retries=0)

    def _found_key(self) -> str | None:
        # The user's own key is not for a server at another address.
        return "none" if self._base_url is not None else os.environ.get(self.key)


def schema_form(schema: JSON) -> dict[str, JSON]:
    """The fields that say which schema an answer must follow."""
    return {"name": "answer", "schema": schema, "strict": _is_closed(schema)}


def _is_closed(schema: JSON) -> bool:
    """Whether OpenAI can hold an answer to a schema exactly: every object lists all its fields and wants them all."""
    if isinstance(schema, list):
        return all(_is_closed(item) for item in schema)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return True
    known = cast("dict[str, Any]", schema)
    if known.get("type") == "object":
        wanted: set[str] = set(known.get("required", ()))
        if known.get("additionalProperties") is not False or wanted != set(known.get("properties", {})):
            return False
    return all(_is_closed(value) for value in known.values())


# OpenAI's models, through the Chat Completions API of its SDK.

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
    body |= plain_settings(settings, max_output=limit_field, stop="stop")
    if settings.tool_choice is not None and body.get("tools"):
        named: JSON = {"type": "function", "function": {"name": settings.tool_choice}}
        body["tool_choice"] = _MODES.get(settings.tool_choice, named)
    if settings.output_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": schema_form(settings.output_schema)}
    return body


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
        return ModelResponse(
            parts=kept,
            stop=stop,
            usage=usage,
            model=self._model,
            id=self._id,
            reported=openai_cache(self._usage),
            finish=self._finish,
        )

    def _grown(self, delta: Mapping[str, Any]) -> Iterator[Chunk]:
        content: Any = delta.get("content")
        thought = delta.get("reasoning_content") or delta.get("reasoning") or _said(content, "thinking")
        if thought and isinstance(thought, str):
            self._thinking.append(thought)
            yield ThinkingChunk(thought)
        self._refused = self._refused or bool(delta.get("refusal"))
        for text in (content if isinstance(content, str) else _said(content, "text"), delta.get("refusal")):
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
        given: Any = function.get("arguments") or ""
        text: str = given if isinstance(given, str) else json.dumps(given)  # some servers send the object itself
        call.json.append(text)
        return ToolCallChunk(call.id, call.name, text)

    def _parts(self) -> Iterator[Part]:
        if self._thinking:
            yield ThinkingPart("".join(self._thinking), provider=self._provider)
        if self._text:
            yield TextPart("".join(self._text))
        for call in self._calls:
            yield ToolCallPart(call.id, call.name, tool_input("".join(call.json)))


def _said(content: Any, kind: str) -> str:
    """The text of the parts of a kind, where a server sends a list of parts: Mistral's thinking is a list of texts."""
    parts = cast("list[Mapping[str, Any]]", content) if isinstance(content, list) else []
    found = (part.get(kind) or "" for part in parts if part.get("type") == kind)
    return "".join(text if isinstance(text, str) else _said(text, "text") for text in found)


# OpenAI's models, through the Responses API of its SDK.

_ENCRYPTED = "reasoning.encrypted_content"
_WITHOUT_REASONING = ("gpt-3", "gpt-4", "chatgpt")
"""Prefixes of models that refuse requests for their reasoning."""
_REASONING_FIELDS = {"type", "id", "summary", "encrypted_content", "status"}


class OpenAIModel(OpenAIBase):
    """An OpenAI model, over the Responses API. Nothing is stored there: reasoning comes back sealed, and is sent again.

    The key is read from OPENAI_API_KEY.
    """

    provider = "openai"

    def _settled(self, body: Body, request: ModelRequest) -> Body:
        settings = request.settings
        body.setdefault("store", False)
        if not self.model.startswith(_WITHOUT_REASONING):
            body.setdefault("include", [_ENCRYPTED])
        if settings.stop:
            raise UsageError(f"{self.name} takes no stop texts; leave them out, or use openai_chat:{self.model}")
        body |= plain_settings(settings, max_output="max_output_tokens", stop=None)
        if settings.tool_choice is not None and body.get("tools"):
            named: JSON = {"type": "function", "name": settings.tool_choice}
            body["tool_choice"] = _MODES.get(settings.tool_choice, named)
        if settings.output_schema is not None:
            form = {"type": "json_schema", **schema_form(settings.output_schema)}
            body["text"] = {**body.get("text", {}), "format": form}
        return body

    def _create(self, client: Any) -> Any:
        return client.responses.create

    def _reader(self, request: ModelRequest) -> ResponseReader:
        return ResponseReader(self.name, request)


class ResponseReader:
    """Makes an answer of the events of a Responses stream."""

    def __init__(self, who: str, request: ModelRequest) -> None:
        self._who, self._request = who, request
        self._begun: dict[str, Mapping[str, Any]] = {}
        self._done: dict[str, Mapping[str, Any]] = {}
        self._final: Mapping[str, Any] | None = None

    def take(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """What an event adds to the answer."""
        match event["type"]:
            case "response.output_text.delta" | "response.refusal.delta":
                yield TextChunk(event["delta"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield ThinkingChunk(event["delta"])
            case "response.function_call_arguments.delta":
                item = self._begun[event["item_id"]]
                yield ToolCallChunk(item["call_id"], item["name"], event["delta"])
            case "response.output_item.added":
                self._begun[_id(event["item"])] = event["item"]
            case "response.output_item.done":
                self._done[_id(event["item"])] = event["item"]
            case "response.completed" | "response.incomplete":
                self._final = event["response"]
            case "response.failed":
                raise as_error(self._who, Failure.read(event["response"].get("error")))
            case "error":
                raise as_error(self._who, Failure.read(event))
            case _:
                pass

    def response(self) -> ModelResponse:
        """The whole answer."""
        if self._final is None:
            raise ended_early(self._who)
        # An item is sealed when it is done; the list at the end has those that never were.
        listed: list[Mapping[str, Any]] = self._final.get("output") or list(self._done.values())
        items = [self._done.get(_id(item), item) for item in listed]
        id: str | None = self._final.get("id")
        parts = unique_calls((part for item in items for part in _parts(item)), id)
        kept, stop = ended(parts, self._stop(items))
        usage = usage_or_estimate(responses_usage(self._final.get("usage") or {}), self._request, kept)
        model: str = self._final.get("model") or self._who.partition(":")[2]
        reported = openai_cache(self._final.get("usage") or {})
        details: Mapping[str, Any] = self._final.get("incomplete_details") or {}
        finish: str = details.get("reason") or self._final.get("status") or ""
        return ModelResponse(parts=kept, stop=stop, usage=usage, model=model, id=id, reported=reported, finish=finish)

    def _stop(self, items: Iterable[Mapping[str, Any]]) -> Stop:
        assert self._final is not None
        details: Mapping[str, Any] = self._final.get("incomplete_details") or {}
        reason: str | None = details.get("reason")
        refused = any(content["type"] == "refusal" for item in items for content in _contents(item))
        if reason == "content_filter" or refused:
            return "refusal"
        return "length" if reason == "max_output_tokens" else "end"


def _id(item: Mapping[str, Any]) -> str:
    return item.get("id") or item.get("call_id") or ""


def _contents(item: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return item["content"] if item["type"] == "message" else ()


def _parts(item: Mapping[str, Any]) -> Iterator[Part]:
    match item["type"]:
        case "message":
            text = "".join(content.get("text") or content.get("refusal") or "" for content in _contents(item))
            if text:
                yield TextPart(text, item.get("phase"))
        case "function_call":
            yield ToolCallPart(item["call_id"], item["name"], tool_input(item["arguments"]))
        case "reasoning" if _is_plain(item):
            text = "".join(summary["text"] for summary in item["summary"])
            yield ThinkingPart(text, item["id"], item.get("encrypted_content") or None, provider="openai")
        case _:
            yield NativePart("openai", dict(item))


def _is_plain(reasoning: Mapping[str, Any]) -> bool:
    """Whether a thinking part holds all there is to a reasoning item; otherwise it is kept as it is."""
    said = {name for name, value in reasoning.items() if value}
    return "id" in said <= _REASONING_FIELDS and len(reasoning["summary"]) <= 1


# Any server that speaks the OpenAI Chat form: Ollama, vLLM, llama.cpp, LM Studio, and services on the network.

ADDRESS = "LOOM_BASE_URL"
KEY = "LOOM_API_KEY"
_CATALOGUED = ("deepseek", "sglang", "vllm", "xai")
"""Those that the catalogue knows the cache rules of, and that keep their own name for it."""


class CompatibleModel(OpenAIChatModel):
    """A model of any server that speaks the OpenAI Chat form.

    Without `base_url` it is asked at the address of `service`, if one is named, else at LOOM_BASE_URL. A key is sent
    where `api_key` gives one; from LOOM_API_KEY to LOOM_BASE_URL; and to a service from that service's own variable.
    """

    _limit_field = "max_tokens"

    def __init__(
        self,
        model: str,
        *,
        service: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        timeout: float = DEFAULT_TIMEOUT,
        render: Render | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a model; `service` names a server of SERVICES, the rest is as for every model."""
        if service is not None and service not in SERVICES:
            raise UsageError(f"there is no service {service!r}; the services are {', '.join(SERVICES)}, or base_url=")
        known = Service(os.environ.get(ADDRESS, ""), KEY) if service is None else SERVICES[service]
        address = base_url or known.base_url
        if not address and client is None:
            raise UsageError(
                f"compatible:{model} needs an address; set {ADDRESS}, or give base_url=, such as "
                f"{SERVICES['ollama'].base_url}"
            )
        self.provider = service if service in _CATALOGUED else "compatible"
        self.key = known.key or KEY
        self._needs_key = service is not None and known.key is not None
        self._own_address = base_url is None
        super().__init__(
            model, api_key=api_key, base_url=address, client=client, timeout=timeout, render=render, clock=clock
        )

    def _found_key(self) -> str | None:
        # A key is for the address it belongs to. Where none is wanted, the SDK still has to be given something.
        own = os.environ.get(self.key) if self._own_address else "none"
        return own if own or self._needs_key else "none"
