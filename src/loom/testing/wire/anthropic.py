"""The wire format of Anthropic Messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart
from loom.protocols.model import Stop
from loom.testing.wire.script import Fault, Refused, Said, event, input_text, pieces, waiting

_STOPS: dict[Stop, str] = {
    "end": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
    "pause": "pause_turn",
}
_ERRORS = {
    "rate_limited": (429, "rate_limit_error", "This request would exceed your rate limit."),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "server_error": (500, "api_error", "Internal server error"),
    "overflow": (400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
    "bad_request": (400, "invalid_request_error", "messages.0.content: Field required"),
    "unauthorized": (401, "authentication_error", "invalid x-api-key"),
}


class AnthropicWire:
    """Anthropic Messages."""

    base_path = ""
    overflow = (200_000, 208_310)

    def frames(self, said: Said) -> list[bytes]:
        """An answer as the events of a stream."""
        usage = said.usage
        counts = {
            "input_tokens": usage.uncached,
            "cache_read_input_tokens": usage.cache_read,
            "cache_creation_input_tokens": usage.cache_write,
            "output_tokens": 1,
        }
        message: dict[str, Any] = {
            "id": said.id, "type": "message", "role": "assistant", "model": said.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": counts,
        }  # fmt: skip
        ends = {"stop_reason": _STOPS[said.stop], "stop_sequence": None}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
        for index, part in enumerate(said.parts):
            events += [{**made, "index": index} for made in _block_events(part)]
        events += [
            {"type": "message_delta", "delta": ends, "usage": {"output_tokens": usage.output}},
            {"type": "message_stop"},
        ]
        return [event(data, data["type"]) for data in events]

    def refused(self, fault: Fault) -> Refused:
        """A refusal by status."""
        if fault == "empty_400":
            return Refused(400)
        status, kind, message = _ERRORS[fault]
        body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
        return Refused(status, json.dumps(body).encode(), waiting() if status == 429 else {})

    def error_frame(self) -> bytes:
        """An event that says that the provider is overloaded."""
        return event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")

    def replayed(self, said: Said) -> list[JSON]:
        """Every block that is not text."""
        return [_block(part) for part in said.parts if not isinstance(part, TextPart)]


def _block(part: Part) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ThinkingPart(_, _, redacted) if redacted is not None:
            return {"type": "redacted_thinking", "data": redacted}
        case ThinkingPart(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolCallPart(id, name):
            return {"type": "tool_use", "id": id, "name": name, "input": part.arguments}
        case NativePart(_, body):
            return body
        case other:
            raise TypeError(f"Anthropic does not say a {type(other).__name__}")


def _block_events(part: Part) -> Iterator[dict[str, Any]]:
    block = _block(part)
    deltas: list[dict[str, Any]] = []
    match part:
        case TextPart(text):
            block["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(text)]
        case ThinkingPart(text, signature) if part.redacted is None:
            block |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(text)]
            deltas.append({"type": "signature_delta", "signature": signature})
        case ToolCallPart():
            block["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(input_text(part)))]
        case _:
            pass
    yield {"type": "content_block_start", "content_block": block}
    yield from ({"type": "content_block_delta", "delta": delta} for delta in deltas)
    yield {"type": "content_block_stop"}
