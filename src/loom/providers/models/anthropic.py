"""Claude, through Anthropic's SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, Stop, TextChunk, ThinkingChunk, ToolCallChunk
from loom.providers._failures import ended_early
from loom.providers.models._answer import (
    anthropic_cache,
    anthropic_usage,
    ended,
    plain_settings,
    tool_input,
    unique_calls,
    usage_or_estimate,
)
from loom.providers.models.sdk import Body, SdkModel

DEFAULT_MAX_TOKENS = 4096
"""Anthropic wants a limit in every request."""

_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "tool_use": "tool",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",  # the answer is good as far as it goes: the window was full
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
    "pause_turn": "pause",
}


class AnthropicModel(SdkModel):
    """Claude. The key is read from ANTHROPIC_API_KEY, or from wherever else Anthropic's SDK looks for one."""

    sdk = "anthropic"
    provider = "anthropic"
    key = "ANTHROPIC_API_KEY"

    def _settled(self, body: Body, request: ModelRequest) -> Body:
        settings = request.settings
        body.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
        body |= plain_settings(settings, max_output="max_tokens", stop="stop_sequences")
        if settings.tool_choice is not None and body.get("tools"):
            choice = settings.tool_choice
            is_mode = choice in {"auto", "none", "any"}
            body["tool_choice"] = {"type": choice} if is_mode else {"type": "tool", "name": choice}
        if settings.output_schema is not None:
            form = {"type": "json_schema", "schema": settings.output_schema}
            body["output_config"] = {**body.get("output_config", {}), "format": form}
        return body

    def _connect(self, sdk: Any) -> Any:
        # The user's own key is not for a server at another address.
        key = self._api_key or ("none" if self._base_url is not None else None)
        try:
            client = sdk.AsyncAnthropic(
                api_key=key,
                base_url=self._base_url,
                timeout=self._timeouts(sdk),
                max_retries=0,
                open_telemetry=False,  # a session has its own span for every call
            )
        except sdk.AnthropicError as error:
            raise self._no_key() from error
        if not (client.api_key or client.auth_token or client.credentials):
            raise self._no_key()
        return client

    def _create(self, client: Any) -> Any:
        return client.messages.create

    def _reader(self, request: ModelRequest) -> MessageReader:
        return MessageReader(self.name, request)


class MessageReader:
    """Makes an answer of the events of a Messages stream."""

    def __init__(self, who: str, request: ModelRequest) -> None:
        self._who, self._request = who, request
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._stop: str | None = None
        self._done = False

    def take(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """What an event adds to the answer."""
        match event["type"]:
            case "message_start":
                self._message = event["message"]
                self._usage = dict(event["message"].get("usage") or {})
            case "content_block_start":
                block = self._blocks[event["index"]] = dict(event["content_block"])
                if block["type"] == "text" and block.get("text"):  # it may bring its first words along
                    yield TextChunk(block["text"])
                elif block["type"] == "thinking" and block.get("thinking"):
                    yield ThinkingChunk(block["thinking"])
            case "content_block_delta":
                yield from self._grown(event["index"], event["delta"])
            case "message_delta":
                self._stop = event["delta"].get("stop_reason")
                # Counts are cumulative; what is not said again stays as it was.
                reported: Mapping[str, Any] = event.get("usage") or {}
                self._usage |= {name: count for name, count in reported.items() if count is not None}
            case "message_stop":
                self._done = True
            case _:
                pass

    def response(self) -> ModelResponse:
        """The whole answer."""
        if not self._done:
            raise ended_early(self._who)
        if self._stop is None:
            raise ValueError("it ended without a stop_reason")
        id: str | None = self._message.get("id")
        parts = (part for index in sorted(self._blocks) if (part := self._part(index)) is not None)
        kept, stop = ended(unique_calls(parts, id), _STOPS.get(self._stop, "end"))
        usage = usage_or_estimate(anthropic_usage(self._usage), self._request, kept)
        # Some servers that copy this wire leave the beginning out, and with it their name.
        model: str = self._message.get("model") or self._who.partition(":")[2]
        reported, finish = anthropic_cache(self._usage), self._stop
        return ModelResponse(parts=kept, stop=stop, usage=usage, model=model, id=id, reported=reported, finish=finish)

    def _grown(self, index: int, delta: Mapping[str, Any]) -> Iterator[Chunk]:
        block = self._blocks[index]
        match delta["type"]:
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
                yield TextChunk(delta["text"])
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                yield ThinkingChunk(delta["thinking"])
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta["signature"]
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
                if block["type"] == "tool_use":
                    yield ToolCallChunk(block["id"], block["name"], delta["partial_json"])
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            case _:  # a block of another kind that comes in pieces, such as a compaction
                for name, piece in delta.items():
                    if name != "type":
                        known = block.get(name)
                        block[name] = known + piece if isinstance(known, str) and isinstance(piece, str) else piece

    def _part(self, index: int) -> Part | None:
        block = self._blocks[index]
        text = self._inputs.get(index)
        match block["type"]:
            case "text":
                return TextPart(block["text"]) if block["text"] else None
            case "thinking":
                return ThinkingPart(block["thinking"], block.get("signature") or None)
            case "redacted_thinking":
                return ThinkingPart(redacted=block["data"])
            case "tool_use":
                input: JSON = block.get("input") or {} if text is None else tool_input(text)
                return ToolCallPart(block["id"], block["name"], input)
            case _:
                return NativePart("anthropic", block if text is None else {**block, "input": tool_input(text)})
