"""The wire formats of OpenAI: Responses, and Chat Completions with its many copies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from loom.testing.wire.script import Fault, Refused, Said, event, input_text, pieces, waiting

_ERRORS: dict[str, tuple[int, str, str | None, str]] = {
    "rate_limited": (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests"),
    "overloaded": (503, "server_error", None, "The server is currently overloaded"),
    "server_error": (500, "server_error", None, "The server had an error while processing your request"),
    "bad_request": (400, "invalid_request_error", "invalid_value", "Invalid value: 'x'."),
    "unauthorized": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided: none."),
}
_CHAT_OVERFLOW = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 10022 tokens. "
    "Please reduce the length of the messages."
)
_RESPONSES_OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."


def _refused(fault: Fault, overflow: str) -> Refused:
    if fault == "empty_400":
        return Refused(400)
    long = (400, "invalid_request_error", "context_length_exceeded", overflow)
    status, kind, code, message = long if fault == "overflow" else _ERRORS[fault]
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return Refused(status, json.dumps(body).encode(), waiting() if status == 429 else {})


def _details(usage: Usage) -> dict[str, int]:
    return {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}


class ResponsesWire:
    """OpenAI Responses."""

    base_path = "/v1"
    overflow = (None, None)

    def frames(self, said: Said) -> list[bytes]:
        """An answer as the events of a stream."""
        events: list[dict[str, Any]] = [{"type": "response.created", "response": self._response(said, "in_progress")}]
        for index, part in enumerate(said.parts):
            events += [{**made, "output_index": index} for made in _item_events(part, index, said)]
        done = "incomplete" if said.stop == "length" else "completed"
        events.append({"type": f"response.{done}", "response": self._response(said, done)})
        return [event({**data, "sequence_number": n}, data["type"]) for n, data in enumerate(events)]

    def refused(self, fault: Fault) -> Refused:
        """A refusal by status."""
        return _refused(fault, _RESPONSES_OVERFLOW)

    def error_frame(self) -> bytes:
        """An event that says that the provider is overloaded."""
        return event({"type": "error", "code": "server_error", "message": "Overloaded", "param": None}, "error")

    def replayed(self, said: Said) -> list[JSON]:
        """Every item that is not text; a call without the id and status that only the answer has."""
        items = [_item(part, index, said) for index, part in enumerate(said.parts) if not isinstance(part, TextPart)]
        return [
            {k: v for k, v in item.items() if item["type"] != "function_call" or k not in {"id", "status"}}
            for item in items
        ]

    def _response(self, said: Said, status: str) -> dict[str, Any]:
        usage = said.usage
        counts = {
            "input_tokens": usage.input,
            "input_tokens_details": _details(usage),
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input + usage.output,
        }
        started = status == "in_progress"
        return {
            "id": said.id, "object": "response", "created_at": 1, "status": status, "model": said.model,
            "error": None, "incomplete_details": {"reason": "max_output_tokens"} if said.stop == "length" else None,
            "output": [] if started else [_item(part, index, said) for index, part in enumerate(said.parts)],
            "usage": None if started else counts,
        }  # fmt: skip


def _item(part: Part, index: int, said: Said) -> dict[str, Any]:
    match part:
        case TextPart(text, phase):
            refused = said.stop == "refusal"
            content = {"type": "refusal", "refusal": text} if refused else _output_text(text)
            return {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "completed",
                    "content": [content], **({"phase": phase} if phase else {})}  # fmt: skip
        case ThinkingPart(text, signature, redacted):
            summary = [{"type": "summary_text", "text": text}] if text else []
            return {"type": "reasoning", "id": signature, "summary": summary, "encrypted_content": redacted}
        case ToolCallPart(id, name):
            return {"type": "function_call", "id": f"fc_{index}", "status": "completed", "call_id": id, "name": name,
                    "arguments": input_text(part)}  # fmt: skip
        case NativePart(_, body):
            return body
        case other:
            raise TypeError(f"OpenAI does not say a {type(other).__name__}")


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_events(part: Part, index: int, said: Said) -> Iterator[dict[str, Any]]:
    item = _item(part, index, said)
    begun: dict[str, Any] = item
    deltas: list[tuple[str, str]] = []
    match part:
        case TextPart(text):
            kind = "refusal" if said.stop == "refusal" else "output_text"
            begun = {**item, "status": "in_progress", "content": []}
            deltas = [(f"response.{kind}.delta", piece) for piece in pieces(text)]
        case ThinkingPart(text):
            begun = {**item, "summary": [], "encrypted_content": "unfinished"}
            deltas = [("response.reasoning_summary_text.delta", piece) for piece in pieces(text)]
        case ToolCallPart():
            begun = {**item, "status": "in_progress", "arguments": ""}
            deltas = [("response.function_call_arguments.delta", piece) for piece in pieces(input_text(part))]
        case _:
            pass
    yield {"type": "response.output_item.added", "item": begun}
    for kind, piece in deltas:
        yield {"type": kind, "item_id": item["id"], "content_index": 0, "summary_index": 0, "delta": piece}
    yield {"type": "response.output_item.done", "item": item}


class ChatWire:
    """OpenAI Chat Completions."""

    base_path = "/v1"
    overflow = (8192, 10_022)

    def frames(self, said: Said) -> list[bytes]:
        """An answer as the chunks of a stream."""
        deltas = [{"role": "assistant", "content": ""}, *(d for part in said.parts for d in _deltas(part, said))]
        chunks = [_chunk(said, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
        finish = {"tool": "tool_calls", "length": "length"}.get(said.stop, "stop")
        chunks.append(_chunk(said, [{"index": 0, "delta": {}, "finish_reason": finish}]))
        usage = {
            "prompt_tokens": said.usage.input,
            "completion_tokens": said.usage.output,
            "total_tokens": said.usage.input + said.usage.output,
            "prompt_tokens_details": _details(said.usage),
        }
        chunks.append({**_chunk(said, []), "usage": usage})
        return [*(event(chunk) for chunk in chunks), b"data: [DONE]\n\n"]

    def refused(self, fault: Fault) -> Refused:
        """A refusal by status."""
        return _refused(fault, _CHAT_OVERFLOW)

    def error_frame(self) -> bytes:
        """An event that says that the provider is overloaded."""
        return event({"error": {"message": "Overloaded", "type": "server_error", "code": None}})

    def replayed(self, said: Said) -> list[JSON]:
        """Every call; Chat takes no reasoning back."""
        calls = [part for part in said.parts if isinstance(part, ToolCallPart)]
        return [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": input_text(c)}} for c in calls
        ]


def _chunk(said: Said, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": said.id, "object": "chat.completion.chunk", "created": 1, "model": said.model, "choices": choices}


def _deltas(part: Part, said: Said) -> Iterator[dict[str, Any]]:
    match part:
        case TextPart(text):
            field = "refusal" if said.stop == "refusal" else "content"
            yield from ({field: piece} for piece in pieces(text))
        case ThinkingPart(text):
            yield from ({"reasoning_content": piece} for piece in pieces(text))
        case ToolCallPart(id, name):
            place = [p for p in said.parts if isinstance(p, ToolCallPart)].index(part)
            first = {"index": place, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            yield {"tool_calls": [first]}
            for piece in pieces(input_text(part)):
                yield {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}
        case other:
            raise TypeError(f"Chat does not say a {type(other).__name__}")
