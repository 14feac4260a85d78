"""A loopback server that speaks the wire of Gemini, for the tests of its model."""

import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


@dataclass
class Answer:
    """What the server says next: `events` one by one where a stream is asked for, else joined into one response."""

    events: list[Any] = field(default_factory=list)
    status: int = 200
    cut: bool = False
    """Break the connection before the answer is complete."""
    hang: bool = False
    """Say all events and then wait until the client is gone."""


@dataclass
class Service:
    """The server's script and log."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    gone: Event = field(default_factory=Event)
    """Set when a client left a hanging answer."""


def says(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One response with some parts, as the service spells it."""
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    if finish:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": 12, "cachedContentTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}
    told = {"usageMetadata": usage} if finish else {}
    return {"candidates": [candidate], "modelVersion": "gemini-x-001", "responseId": "r1", **told, **more}


def fails(code: int, status: str, message: str, *details: Any) -> Answer:
    """An error, as the service spells it."""
    error = {"code": code, "status": status, "message": message, "details": list(details)}
    return Answer([{"error": error}], status=code)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.service.requests.append({"path": self.path, "key": self.headers["x-goog-api-key"], **asked})
        answer = self.service.answers.pop(0)
        streams = "streamGenerateContent" in self.path and answer.status == 200
        self.send_response(answer.status)
        self.send_header("content-type", "text/event-stream" if streams else "application/json")
        if streams:
            self._stream(answer)
        else:
            self._whole(answer)

    def _whole(self, answer: Answer):
        body = b"not json" if answer.events == ["garbage"] else json.dumps(_joined(answer.events)).encode()
        self.send_header("content-length", str(len(body) + answer.cut))
        self.end_headers()
        self.wfile.write(body)
        if answer.hang:
            self._wait_until_gone()
        self.close_connection = answer.cut

    def _stream(self, answer: Answer):
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in answer.events:
            data = b"data: not json\r\n\r\n" if event == "garbage" else f"data: {json.dumps(event)}\r\n\r\n".encode()
            self._chunk(data)
        if answer.hang:
            self._wait_until_gone()
        elif answer.cut:
            self.close_connection = True
        else:
            self._chunk(b"")

    def _chunk(self, data: bytes):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _wait_until_gone(self):
        with suppress(ConnectionError):
            self.rfile.read(1)  # returns when the client closes its end
        self.service.gone.set()
        self.close_connection = True

    def log_message(self, format, *args):
        pass


def _joined(events: list[Any]) -> Any:
    """All events as the one response of a call without a stream."""
    if len(events) < 2 or "candidates" not in events[0]:
        return events[0] if events else {}
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    last = events[-1]
    return {**last, "candidates": [{**last["candidates"][0], "content": {"role": "model", "parts": parts}}]}


@contextmanager
def gemini_service():
    service = Service()
    handler = type("Handler", (_Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
