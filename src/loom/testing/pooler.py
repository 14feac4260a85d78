"""A transaction pooler before a Postgres server, for tests: each transaction of a client gets another connection.

It does what PgBouncer does with `pool_mode=transaction`: a connection to the server is lent when a client says
something, and given back as soon as the server is idle outside a transaction. What a client left on a connection, such
as a setting or a prepared statement, is there for the next one, and not for itself. Connections are lent in turn, so
that consecutive transactions of one client land on different ones. The server has to let clients in without a password.

`python -m loom.testing.pooler PORT SERVER_PORT` runs one as a process.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from loom.testing.servers import free_port

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_READY_IDLE = b"Z\x00\x00\x00\x05I"
_ENDS = {b"Q", b"S", b"F"}
"""Messages that a server answers with ReadyForQuery."""


class _Upstream:
    """One connection to the server, and what the server said when it was made."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number
        self.greeting = b""

    async def message(self) -> tuple[bytes, bytes]:
        """The next message: its type, and all of its bytes."""
        return await _message(self.reader)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


class _Pool:
    """The connections for one user and database."""

    def __init__(self, server_port: int, startup: bytes, size: int) -> None:
        self._server_port, self._startup, self._size = server_port, startup, size
        self._free: deque[_Upstream] = deque()
        self._waiting: deque[asyncio.Future[_Upstream | None]] = deque()
        self._made = 0
        self._all: set[_Upstream] = set()

    def close(self) -> None:
        """Break all connections."""
        for upstream in self._all:
            upstream.writer.close()

    async def take(self) -> _Upstream:
        """The connection that has been free the longest; a new one as long as there are fewer than allowed."""
        while True:
            if self._made < self._size:
                self._made += 1
                try:
                    return await self._connect(self._made)
                except BaseException:
                    self.lose()
                    raise
            if self._free:
                return self._free.popleft()
            turn: asyncio.Future[_Upstream | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            found = await turn
            if found is not None:
                return found

    def give_back(self, upstream: _Upstream) -> None:
        """Let the next client have it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(upstream)
                return
        self._free.append(upstream)

    def lose(self) -> None:
        """A connection is gone; one who waits may make another."""
        self._made -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _connect(self, number: int) -> _Upstream:
        upstream = _Upstream(*await asyncio.open_connection("127.0.0.1", self._server_port), number)
        self._all.add(upstream)
        upstream.writer.write(self._startup)
        while True:
            kind, message = await upstream.message()
            if kind == b"Z":
                return upstream
            if kind == b"E" or (kind == b"R" and message[5:9] != bytes(4)):
                upstream.writer.close()
                raise ConnectionError(f"the server did not let the pooler in: {message!r}")
            upstream.greeting += message


class _PooledClient:
    """One client: the connection that it was lent, and how many answers it waits for."""

    def __init__(self, pool: _Pool, writer: asyncio.StreamWriter, used: list[int]) -> None:
        self._pool, self._writer, self._used = pool, writer, used
        self._lent: _Upstream | None = None
        self._pending, self._unsynced = 0, False
        self._relay: asyncio.Task[None] | None = None

    async def say(self, kind: bytes, message: bytes) -> None:
        """Hand a message of the client to a server, which is lent if none is."""
        if self._lent is None:
            self._lent = await self._pool.take()
            self._used.append(self._lent.number)
            self._relay = asyncio.create_task(self._answers(self._lent))
        self._pending += kind in _ENDS
        self._unsynced = kind not in _ENDS
        self._lent.writer.write(message)
        await self._lent.writer.drain()

    async def _answers(self, upstream: _Upstream) -> None:
        try:
            while True:
                kind, message = await upstream.message()
                self._writer.write(message)
                self._pending -= kind == b"Z"
                if message == _READY_IDLE and not self._pending and not self._unsynced:
                    self._lent = None
                    self._pool.give_back(upstream)
                    return
                await self._writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            self.leave()
            self._writer.close()

    def leave(self) -> None:
        """The client is gone; a connection in the middle of something is of no use to another."""
        upstream, self._lent = self._lent, None
        if upstream is not None:
            upstream.writer.close()
            self._pool.lose()


class Pooler:
    """A transaction pooler on `port` of the loopback address; it is for tests only."""

    def __init__(self, server_port: int, *, size: int = 3, port: int | None = None) -> None:
        self.port = port or free_port()
        self.used: dict[int, list[int]] = {}
        """For each client, by the order in which they came, the numbers of the connections that it was lent."""
        self._server_port, self._size = server_port, size
        self._pools: dict[bytes, _Pool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    async def listen(self) -> None:
        """Take clients."""
        self._listener = await asyncio.start_server(self._come, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Break every connection, and take no more."""
        if self._listener is not None:
            self._listener.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        await asyncio.sleep(0)  # what was closed is let go of in the next turn of the loop

    def restart(self) -> None:
        """Break every connection, as a pooler does that is killed, and take clients again on the same port."""
        assert self._loop is not None
        for step in (self.stop, self.listen):
            asyncio.run_coroutine_threadsafe(step(), self._loop).result()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await self._startup(reader, writer)
        if startup is None:
            return
        pool = self._pools.setdefault(startup, _Pool(self._server_port, startup, self._size))
        upstream = await pool.take()
        writer.write(upstream.greeting + _READY_IDLE)
        pool.give_back(upstream)
        client = _PooledClient(pool, writer, self.used.setdefault(len(self.used), []))
        try:
            while (message := await _message(reader))[0] != b"X":
                await client.say(*message)
        finally:
            client.leave()

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """The message that a client begins with; None from one that wants to cancel a statement."""
        while True:
            size = await reader.readexactly(4)
            rest = await reader.readexactly(int.from_bytes(size, "big") - 4)
            code = int.from_bytes(rest[:4], "big")
            if code == _CANCEL:
                return None
            if code not in {_SSL, _GSS}:
                return size + rest
            writer.write(b"N")

    def run(self, ready: Event | None = None) -> None:
        """Take clients until the thread that runs this is told to stop."""

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            over = self._over = asyncio.Event()
            await self.listen()
            if ready is not None:
                ready.set()
            await over.wait()
            await self.stop()

        asyncio.run(serve())

    def end(self) -> None:
        """Stop, from another thread."""
        if self._loop is not None and self._over is not None:
            self._loop.call_soon_threadsafe(self._over.set)


@contextmanager
def pooler(server_port: int, *, size: int = 3) -> Generator[Pooler]:
    """A transaction pooler before the Postgres server at a port of this machine, in a thread of its own."""
    made, ready = Pooler(server_port, size=size), Event()
    thread = Thread(target=made.run, args=(ready,), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        made.end()
        thread.join()


if __name__ == "__main__":
    Pooler(int(sys.argv[2]), port=int(sys.argv[1]), size=16).run()
