"""The wire format of Gemini."""

from __future__ import annotations

import json
from typing import Any

from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart
from loom.testing.wire.script import RETRY_AFTER, Fault, Refused, Said, event, pieces

_ERRORS: dict[str, tuple[int, str, str]] = {
    "rate_limited": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota."),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "server_error": (500, "INTERNAL", "An internal error has occurred."),
    "overflow": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (10022) exceeds the maximum number of tokens allowed (8192).",
    ),
    "bad_request": (400, "INVALID_ARGUMENT", "Invalid value at 'contents'."),
    "unauthorized": (403, "PERMISSION_DENIED", "API key not valid."),
}
_FINISH = {"length": "MAX_TOKENS", "refusal": "SAFETY"}


class GeminiWire:
    """Gemini's streamGenerateContent."""

    base_path = ""
    overflow = (8192, 10_022)

    def frames(self, said: Said) -> list[bytes]:
        """An answer as the responses of a stream; a seal stands on the part behind it."""
        parts: list[dict[str, Any]] = []
        seal: dict[str, Any] = {}
        for part in said.parts:
            if isinstance(part, ThinkingPart) and not part.text:
                seal = {"thoughtSignature": part.signature}
                continue
            made = _parts(part)
            made[-1] |= seal
            parts += made
            seal = {}
        responses = [_response(said, [part]) for part in parts]
        usage = {
            "promptTokenCount": said.usage.input,
            "cachedContentTokenCount": said.usage.cache_read,
            "candidatesTokenCount": said.usage.output,
        }
        last = _response(said, [{"text": ""}], finish=_FINISH.get(said.stop, "STOP"))
        return [event(response) for response in (*responses, {**last, "usageMetadata": usage})]

    def refused(self, fault: Fault) -> Refused:
        """A refusal by status."""
        if fault == "empty_400":
            return Refused(400)
        code, status, message = _ERRORS[fault]
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{RETRY_AFTER:g}s"}
        error = {"code": code, "status": status, "message": message, "details": [retry] if code == 429 else []}
        return Refused(code, json.dumps({"error": error}).encode())

    def error_frame(self) -> bytes:
        """An event that says that the provider is overloaded."""
        return event({"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded"}})

    def replayed(self, said: Said) -> list[JSON]:
        """Thinking with its seal, and every call."""
        kept = [part for part in said.parts if isinstance(part, ToolCallPart) or _is_thinking(part)]
        return [made for part in kept for made in _parts(part)]


def _is_thinking(part: Part) -> bool:
    return isinstance(part, ThinkingPart) and bool(part.text)


def _response(said: Said, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    candidate = {
        "index": 0,
        "content": {"role": "model", "parts": parts},
        **({"finishReason": finish} if finish else {}),
    }
    return {"candidates": [candidate], "modelVersion": said.model, "responseId": said.id}


def _parts(part: Part) -> list[dict[str, Any]]:
    match part:
        case TextPart(text):
            return [{"text": piece} for piece in pieces(text)]
        case ThinkingPart(text, signature):
            sealed = {"thoughtSignature": signature} if signature else {}
            return [{"text": text, "thought": True, **sealed}]
        case ToolCallPart(id, name, input):
            # The input is an object or is not there.
            args: dict[str, JSON] = {"args": input} if isinstance(input, dict) else {}
            return [{"functionCall": {"id": id, "name": name, **args}}]
        case NativePart(_, body):
            return [body]
        case other:
            raise TypeError(f"Gemini does not say a {type(other).__name__}")
