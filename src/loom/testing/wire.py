"""A scripted model provider over real HTTP: Anthropic, OpenAI and Gemini wire formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from threading import Event, Lock, Thread
from typing import Any, Literal, Protocol, TypeAlias, get_args

from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from loom.protocols.model import Stop

# The script of a local provider: answers, faults, and the interface of a wire format.

Fault: TypeAlias = Literal[
    "rate_limited",
    "overloaded",
    "server_error",
    "overflow",
    "empty_400",
    "bad_request",
    "unauthorized",
    "dropped",
    "cut",
    "ended_early",
    "malformed",
    "error_in_stream",
    "stalled",
]
"""How a request can go wrong: refused by status (the first seven), or broken on the way (the rest).

`dropped` closes the connection instead of answering, `cut` closes it in the middle of the answer, `ended_early` ends
the answer there as if it were whole, `malformed` sends something unreadable there, `error_in_stream` an error, and
`stalled` nothing more until the client hangs up.
"""

_USAGE = Usage(input=1000, output=20, cache_read=600, cache_write=300)
RETRY_AFTER = 7.0
"""Seconds that a `rate_limited` answer asks to wait."""
_WAIT = {"retry-after": f"{RETRY_AFTER:g}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer. The input of a tool call that is text goes over the wire as that text, readable or not."""

    parts: tuple[Part, ...] = ()
    stop: Stop = "end"
    usage: Usage = _USAGE
    model: str = "served-model"
    id: str = "answer_1"

    @classmethod
    def text(cls, text: str, **fields: Any) -> Said:
        """An answer of plain text."""
        return cls(parts=(TextPart(text),), **fields)

    @classmethod
    def calls(cls, *parts: Part, **fields: Any) -> Said:
        """An answer that waits for tools."""
        return cls(parts=parts, stop="tool", **fields)


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer with an error status."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Wire(Protocol):
    """A provider's wire format."""

    base_path: str
    """The path of a client's base URL."""
    overflow: tuple[int | None, int | None]
    """The limit and the size in its refusal of a long prompt."""

    def frames(self, said: Said) -> Sequence[bytes]:
        """An answer as the events of a stream."""
        ...

    def refused(self, fault: Fault) -> Refused:
        """A refusal by status, as the provider words it."""
        ...

    def error_frame(self) -> bytes:
        """An event that says, in the middle of a stream, that the provider is overloaded."""
        ...

    def replayed(self, said: Said) -> Sequence[JSON]:
        """The blocks of an answer that must come back exactly like this in the next request."""
        ...


def event(data: JSON, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def pieces(text: str) -> list[str]:
    """A text in a few pieces, as streams send it."""
    third = max(1, len(text) // 3)
    return [text[start : start + third] for start in range(0, len(text), third)]


def input_text(call: ToolCallPart) -> str:
    """The input of a call as it goes over the wire."""
    if isinstance(call.input, str):
        return call.input
    return json.dumps(call.input, ensure_ascii=False, separators=(",", ":"))


Line: TypeAlias = Said | Fault | Refused
Default: TypeAlias = Said | Callable[[dict[str, Any]], Line]
"""The answer to a request beyond the script: fixed, or a function of the request's body."""

_FAULTS = get_args(Fault)
_BROKEN = ("dropped", "cut", "ended_early", "malformed", "error_in_stream", "stalled")
_UNREADABLE = b'event: content_block_delta\ndata: {"type": "conte\n\n'


class WireServer:
    """A provider that follows a script. `requests` holds the body of every request it got, `headers` its headers."""

    def __init__(self, wire: Wire, default: Default | None = None) -> None:
        self.wire = wire
        self.url = ""
        """The base URL to give to a client."""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = Event()
        """Set when a request has come."""
        self.hung_up = Event()
        """Set when a client has hung up in the middle of an answer."""
        self._default = default
        self._script: list[Line] = []
        self._open: set[socket] = set()
        self._lock = Lock()

    def script(self, *lines: Line) -> None:
        """Say how the next requests are answered: with an answer, a fault by its name, or a refusal."""
        for line in lines:
            if isinstance(line, str) and line not in _FAULTS:
                raise ValueError(f"there is no fault {line!r}; the faults are {', '.join(_FAULTS)}")
        self._script.extend(lines)

    def next_line(self, request: dict[str, Any]) -> Line:
        """The line that answers this request; a request beyond the script is refused."""
        with self._lock:
            if self._script:
                return self._script.pop(0)
            if callable(self._default):
                return self._default(request)
        return self._default or Refused(400, b'{"error": {"message": "the script is finished"}}')

    @contextmanager
    def connection(self, connection: socket) -> Generator[None]:
        """Remember a connection while it is open, so that hang_up can end it."""
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)

    def hang_up(self) -> None:
        """End every open connection."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: WireServer

    def handle(self) -> None:
        with self.service.connection(self.connection), suppress(ConnectionError):
            super().handle()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = json.loads(body)
        self.service.requests.append(request)
        self.service.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.service.arrived.set()
        try:
            self._answer(self.service.next_line(request))
        except ConnectionError:
            self.service.hung_up.set()
            self.close_connection = True

    def _answer(self, line: Line) -> None:
        if line == "dropped":
            self.close_connection = True
        elif isinstance(line, Said):
            self._stream(self.service.wire.frames(line))
            self._end()
        elif isinstance(line, Refused):
            self._refuse(line)
        elif line in _BROKEN:
            self._break(line)
        else:
            self._refuse(self.service.wire.refused(line))

    def _break(self, fault: str) -> None:
        """Send half an answer, and then not the other half."""
        wire = self.service.wire
        frames = wire.frames(Said.text("This answer will not be heard to its end."))
        self._stream(frames[: len(frames) // 2])
        if fault == "stalled":
            while self.connection.recv(1024):
                pass
            self.service.hung_up.set()
        if fault in {"cut", "stalled"}:
            self.close_connection = True
            return
        if fault != "ended_early":
            self._send(wire.error_frame() if fault == "error_in_stream" else _UNREADABLE)
        if fault == "malformed":
            for frame in frames[len(frames) // 2 :]:
                self._send(frame)
        self._end()

    def _refuse(self, refused: Refused) -> None:
        self.send_response(refused.status)
        for name, value in {"content-type": "application/json", **refused.headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(refused.body)))
        self.end_headers()
        self.wfile.write(refused.body)

    def _stream(self, frames: Sequence[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for frame in frames:
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        self.wfile.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
        self.wfile.flush()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(wire: Wire, *, default: Default | None = None) -> Generator[WireServer]:
    """Start a server on a free local port; `default` answers requests beyond the script, one at a time."""
    service = WireServer(wire, default)
    handler = type("Handler", (_Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    service.url = f"http://127.0.0.1:{server.server_port}{wire.base_path}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        service.hang_up()
        server.server_close()
        thread.join()


# The wire format of Anthropic Messages.

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
        return Refused(status, json.dumps(body).encode(), _WAIT if status == 429 else {})

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


# The wire format of Gemini.

_GEMINI_ERRORS: dict[str, tuple[int, str, str]] = {
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
        code, status, message = _GEMINI_ERRORS[fault]
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{RETRY_AFTER:g}s"}
        error = {"code": code, "status": status, "message": message, "details": [retry] if code == 429 else []}
        return Refused(code, json.dumps({"error": error}).encode())

    def error_frame(self) -> bytes:
        """An event that says that the provider is overloaded."""
        return event({"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded"}})

    def replayed(self, said: Said) -> list[JSON]:
        """Thinking with its seal, and every call."""
        parts = [part for part in said.parts if isinstance(part, ToolCallPart | ThinkingPart)]
        return [made for part in parts if isinstance(part, ToolCallPart) or part.text for made in _parts(part)]


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


# The wire formats of OpenAI: Responses, and Chat Completions with its many copies.

_OPENAI_ERRORS: dict[str, tuple[int, str, str | None, str]] = {
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
    status, kind, code, message = long if fault == "overflow" else _OPENAI_ERRORS[fault]
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return Refused(status, json.dumps(body).encode(), _WAIT if status == 429 else {})


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
            content: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            if said.stop == "refusal":
                content = {"type": "refusal", "refusal": text}
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


__all__ = ["Fault", "Refused", "Said", "Wire", "WireServer", "serve"]
