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
from loom.testing.servers.process import free_port, private_folder, running


@contextmanager
def chroma() -> Generator[str]:
    """Start a server on a free loopback port and give its URL; it is stopped and its folder removed afterwards."""
    if find_spec("chromadb") is None:
        raise MissingExtra("a Chroma server for tests (chromadb not found)", "chroma")
    with private_folder("chroma") as folder:
        url = f"http://127.0.0.1:{free_port()}"
        program = Path(sys.executable).with_name("chroma")
        port = url.rpartition(":")[2]
        command = [str(program), "run", "--path", str(folder / "data"), "--host", "127.0.0.1", "--port", port]
        with running(command, folder, is_ready=lambda: _answers(url), as_self=True):
            yield url


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/api/v2/heartbeat", timeout=1) as answer:  # noqa: S310 - our own loopback address
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
