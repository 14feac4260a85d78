"""The HTTP server: it answers each request with the next line of its script."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from threading import Event, Lock, Thread
from typing import Any, TypeAlias, get_args

from loom.testing.wire.script import Fault, Refused, Said, Wire

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
