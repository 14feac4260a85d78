"""OpenAI's models, through the Responses API of its SDK."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart
from loom.errors import UsageError
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, Stop, TextChunk, ThinkingChunk, ToolCallChunk
from loom.providers.models.failures import Failure, as_error, ended_early
from loom.providers.models.openai import OpenAIBase, schema_form
from loom.providers.models.parts import ended, tool_input, unique_calls
from loom.providers.models.sdk import Body
from loom.providers.models.usage import responses_usage, usage_or_estimate

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
        if settings.max_output is not None:
            body["max_output_tokens"] = settings.max_output
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.tool_choice is not None and body.get("tools"):
            body["tool_choice"] = _tool_choice(settings.tool_choice)
        if settings.output_schema is not None:
            form = {"type": "json_schema", **schema_form(settings.output_schema)}
            body["text"] = {**body.get("text", {}), "format": form}
        return body

    def _create(self, client: Any) -> Any:
        return client.responses.create

    def _reader(self, request: ModelRequest) -> ResponseReader:
        return ResponseReader(self.name, request)


def _tool_choice(choice: str) -> JSON:
    if choice in {"auto", "none"}:
        return choice
    return "required" if choice == "any" else {"type": "function", "name": choice}


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
        return ModelResponse(parts=kept, stop=stop, usage=usage, model=model, id=id)

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
