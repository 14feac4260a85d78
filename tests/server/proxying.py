"""A running proxy and a provider that keeps every byte it is sent, for the tests of `loom proxy`."""

from __future__ import annotations

import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from anyio.from_thread import start_blocking_portal

from loom.server.proxy import open_proxy, server_of

Headers = list[tuple[bytes, bytes]]


@contextmanager
def proxied(upstreams: Mapping[str, str], **options: Any) -> Generator[str]:
    """The address of a proxy, served as the command serves it; what it has to record is recorded at its end."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_proxy(upstreams, **options)) as app,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        server = server_of(app)
        done = portal.start_task_soon(_serve, server, listener)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            done.result()


async def _serve(server: Any, listener: socket.socket) -> None:
    await server.serve(sockets=[listener])


class RawProvider:
    """Answers every call with the same bytes, and keeps the bytes of the last one."""

    def __init__(self) -> None:
        self.answer: bytes | None = b""
        """What is sent; None: nothing at all, until the client hangs up."""
        self.line, self.headers, self.body = b"", Headers(), b""
        self.arrived, self.hung_up = Event(), Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Take one connection after the other, each for one call."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as file:
            self.line, self.headers = file.readline().rstrip(b"\r\n"), read_headers(file)
            length = next((int(value) for name, value in self.headers if name.lower() == b"content-length"), 0)
            self.body = file.read(length)
            self.arrived.set()
            if self.answer is None:
                assert not file.read(1)
                self.hung_up.set()
                return
        connection.sendall(self.answer)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def raw_provider() -> Generator[RawProvider]:
    """A provider that runs until the end."""
    provider = RawProvider()
    thread = Thread(target=provider.run)
    thread.start()
    try:
        yield provider
    finally:
        provider.close()
        thread.join()


def read_headers(file: Any) -> Headers:
    """The header lines up to the empty one."""
    found: Headers = []
    while (line := file.readline().rstrip(b"\r\n")) != b"":
        name, _, value = line.partition(b":")
        found.append((name, value.strip(b" \t")))
    return found


def exchange(address: str, target: bytes, headers: Headers, body: bytes) -> tuple[int, Headers, bytes]:
    """Send a call as these very bytes; the status, the headers and the body of the answer."""
    host, _, port = address.removeprefix("http://").partition(":")
    head = b"".join(b"%s: %s\r\n" % pair for pair in headers)
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as file:
        connection.sendall(b"POST %s HTTP/1.1\r\nhost: localhost\r\n%s\r\n%s" % (target, head, body))
        status = int(file.readline().split(b" ")[1])
        answered = read_headers(file)
        return status, answered, read_body(file, {name.lower(): value for name, value in answered})


def read_body(file: Any, headers: dict[bytes, bytes]) -> bytes:
    """A body by its length, or in chunks."""
    if b"content-length" in headers:
        return file.read(int(headers[b"content-length"]))
    pieces: list[bytes] = []
    while size := int(file.readline(), 16):
        pieces.append(file.read(size))
        file.readline()
    file.readline()
    return b"".join(pieces)


def answer_of(status: int, headers: Headers, body: bytes, *, chunks: int = 0) -> bytes:
    """An answer as it goes over the wire: with its length, or in so many chunks."""
    if not chunks:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        sent = body
    else:
        headers = [*headers, (b"transfer-encoding", b"chunked")]
        step = max(1, -(-len(body) // chunks))
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = b"".join(b"%s: %s\r\n" % pair for pair in [*headers, (b"connection", b"close")])  # as it does
    return b"HTTP/1.1 %d Said\r\n%s\r\n%s" % (status, head, sent)
