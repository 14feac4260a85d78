"""A private Chroma server, from the package `chromadb`."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from loom.errors import MissingExtra
from loom.testing.servers.process import RestartableServer, free_port, private_folder


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
    with private_folder("chroma") as folder:
        server = ChromaServer(free_port(), folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
