"""A TCP proxy on loopback, to see what a client does when the network fails between it and a real server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream


class Proxy:
    """Carries bytes between clients and one server until it is told to stop; it is for tests only.

    `port` is where clients connect, on 127.0.0.1.
    """

    def __init__(self, host: str, server_port: int, port: int) -> None:
        self.port = port
        self._server = (host, server_port)
        self._open: set[anyio.CancelScope] = set()
        self._flowing = anyio.Event()
        self._flowing.set()
        self._held = anyio.Event()

    def freeze(self) -> None:
        """Carry nothing more, and close nothing: each side sees a connection that is open and silent."""
        self._flowing = anyio.Event()
        if self._held.is_set():
            self._held = anyio.Event()

    async def held(self) -> None:
        """Wait until something arrived that is not forwarded: its sender gets no answer."""
        await self._held.wait()

    def thaw(self) -> None:
        """Carry again, what came in the meantime first."""
        self._flowing.set()

    def drop(self) -> None:
        """Close all connections; those made from now on are carried as before."""
        for connection in self._open:
            connection.cancel()

    async def carry(self, client: SocketStream) -> None:
        """Carry one connection until either side closes it."""
        async with client:
            try:
                server = await anyio.connect_tcp(*self._server)
            except OSError:  # a server that is away: the client sees its connection closed
                return
            async with server, anyio.create_task_group() as tasks:
                self._open.add(tasks.cancel_scope)
                tasks.start_soon(self._pump, client, server, tasks.cancel_scope)
                tasks.start_soon(self._pump, server, client, tasks.cancel_scope)
            self._open.discard(tasks.cancel_scope)

    async def _pump(self, source: SocketStream, target: SocketStream, connection: anyio.CancelScope) -> None:
        try:
            while True:
                data = await source.receive()
                if not self._flowing.is_set():
                    self._held.set()
                await self._flowing.wait()
                await target.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            connection.cancel()


@asynccontextmanager
async def proxy(host: str, port: int) -> AsyncGenerator[Proxy]:
    """A proxy before the server at `host` and `port`, on a free loopback port; closed afterwards.

    ```python
    async with proxy("127.0.0.1", server.port) as p:
        store = RedisStore(f"redis://127.0.0.1:{p.port}/0", timeout=0.2)
        p.freeze()  # the next call gets no answer
        p.thaw()
        p.drop()  # every open connection breaks; new ones work
    ```
    """
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        found = Proxy(host, port, listener.extra(SocketAttribute.local_port))  # noqa: S610 - not Django's `extra`
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, found.carry)
            yield found
            tasks.cancel_scope.cancel()
