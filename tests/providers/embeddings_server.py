"""A loopback server that speaks the embeddings wire, for the tests of the embedder."""

import base64
import json
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Answer:
    """What the server says next: vectors if nothing is set."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass
class Service:
    """The server's script and log."""

    url: str = ""
    dimension: int = 4
    answers: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)


def vector_of(text: str, dimension: int) -> list[float]:
    return [float(len(text)), 1.0, *([0.5] * (dimension - 2))]


def _vectors(service: Service, asked: dict[str, Any]) -> bytes:
    dimension = asked.get("dimensions", service.dimension)
    rows = []
    for index, text in enumerate(asked["input"]):
        numbers = vector_of(text, dimension)
        packed = base64.b64encode(struct.pack(f"<{dimension}f", *numbers)).decode()
        value = packed if asked.get("encoding_format") == "base64" else numbers
        rows.append({"object": "embedding", "index": index, "embedding": value})
    rows.reverse()  # the order of rows is not promised; `index` is
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return json.dumps({"object": "list", "data": rows, "model": asked["model"], "usage": usage}).encode()


@contextmanager
def embeddings_service():
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            service.requests.append({"path": self.path, "key": self.headers["authorization"], **asked})
            answer = service.answers.pop(0) if service.answers else Answer()
            body = _vectors(service, asked) if answer.body is None else answer.body
            self.send_response(answer.status)
            for name, value in {"content-type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
