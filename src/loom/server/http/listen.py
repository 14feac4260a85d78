"""The process that listens: uvicorn as Loom runs it, with an end to callers that connect and then say nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any, Final

from loom.errors import MissingExtra
from loom.server.http.guard import App

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtra("loom serve", "server") from error

HEAD_SECONDS: Final = 15.0
"""Until the head of a request is there: after a connection was made, and after the first byte of a later request."""
IDLE_SECONDS: Final = 60.0
"""How long a connection stays open between two requests."""
END_SECONDS: Final = 10
"""How long answers that are being sent may take when the server ends."""
_HEAD: Final = b"HTTP/1.1 "
_CONTINUE: Final = b"HTTP/1.1 1"
"""How the head of an answer begins, and how one that is not the last for its request."""
_COPIED: Final = 1 << 16
"""Bytes up to which a body is copied behind its head: cheaper than a call of the system. `writelines` would not tell
when a caller reads too slowly, in some releases of Python 3.12 and 3.13."""


class _JoinedWrites:
    """A transport that sends the head of an answer together with what follows it in the same step of the event loop.

    A call of the system less for most answers; the head of a stream does not wait for its first part.
    """

    __slots__ = ("_head", "_later", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        self._later: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if self._later is not None:
                self._later.cancel()
            if len(data) <= _COPIED:
                self._transport.write(head + data)
            else:
                self._transport.write(head)
                self._transport.write(data)
        elif data.startswith(_HEAD) and not data.startswith(_CONTINUE):
            self._head = data
            self._later = self._loop.call_soon(self._flush)
        elif data:
            self._transport.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._head = b""
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class TimedProtocol(H11Protocol):
    """One connection, which is closed if the head of a request does not come in time.

    The body and the answer have a time limit of their own, in `Limits.seconds`.
    """

    head_seconds: float = HEAD_SECONDS
    _waiting: asyncio.TimerHandle | None = None
    _has_rest = False
    """Whether a request was answered before all of its body came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller has connected."""
        super().connection_made(transport)
        joined: Any = _JoinedWrites(transport, self.loop)
        self.transport = joined
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Some bytes came; the deadline stays until a head is complete."""
        before: Any = self.cycle  # None until the first request
        super().data_received(data)
        if self.cycle is not before:
            self._has_rest = False
            self._stop()
        elif self._has_rest:
            self._look_for_end()
        elif self._waiting is None and before is not None and before.response_complete:
            self._wait()  # the beginning of another request

    def on_response_complete(self) -> None:
        """The answer was sent, maybe before the whole body came: what is left of it has a deadline too."""
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._has_rest = True
            self._wait()

    def _look_for_end(self) -> None:
        """Where the rest of a body is over, wait for the next request as after any other answer."""
        if self.conn.their_state is not h11.IDLE:
            return
        self._has_rest = False
        self._stop()
        if self.conn.trailing_data[0]:  # the beginning of another request
            self._wait()
        else:
            idle = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = idle

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self._waiting = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


_LOADED_SECONDS: Final = 30.0
"""After this time under load, what is loaded at its first use is there."""
_NEW_OBJECTS: Final = 5_000, 20, 20


def shorten_pauses() -> None:
    """Have the garbage collector of this process look at less, and less often; for a process that only serves.

    What was made until now, mostly modules, stays as long as the process does. To look through it for garbage again and
    again stopped every request for a tenth of a second, several times a minute.
    """
    gc.set_threshold(*_NEW_OBJECTS)
    _keep_what_is_there()
    asyncio.get_running_loop().call_later(_LOADED_SECONDS, _keep_what_is_there)


def _keep_what_is_there() -> None:
    gc.collect()
    gc.freeze()


class HttpServer(uvicorn.Server):
    """A server that tells its application first that it ends, so that streams which would go on for ever are closed."""

    def __init__(self, config: uvicorn.Config, on_end: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._on_end = on_end

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end; a Ctrl-C that came while the program started ends it here, before anything is begun."""
        await asyncio.sleep(0)
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: streams first, then what is still being answered, then the application."""
        if self._on_end is not None:
            self._on_end()
        await super().shutdown(sockets)


def http_server(app: App, *, on_end: Callable[[], None] | None = None) -> HttpServer:
    """A server of an application; `on_end` is called before it waits for answers that are being sent."""
    served: Any = app
    config = uvicorn.Config(
        served,
        # Of the two parsers, this one has an end to what it reads as headers, before any of our limits is asked.
        http=TimedProtocol,
        ws="none",
        # Otherwise anybody on this machine could say in a header who they are, and have another rate limit each time.
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        timeout_graceful_shutdown=END_SECONDS,
    )
    return HttpServer(config, on_end)
