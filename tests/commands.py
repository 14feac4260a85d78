"""The `loom` command for tests: each call is a process of its own, forked from one that has read the modules already.

Starting Python and importing everything takes a second, and hundreds of tests call the command. What the process sees
is what one that was started anew would see: its arguments, folder, environment, standard streams and signals.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

LOOM = Path(sys.executable).with_name("loom")
_ROOT = Path(__file__).parents[1]
_AT_IMPORT = ("TYPER_USE_RICH",)
"""Variables that modules look at when they are imported."""

_READ = (
    *("anyio._backends._asyncio", "apsw", "numpy", "pydantic", "rich.progress", "rich.table", "typer", "ruamel.yaml"),
    *("loom.agent.agent", "loom.engine.open", "loom.engine.agent_parts", "loom.providers.embedding.local"),
    *("loom.cli.app", "loom.session.session", "loom.stores.sqlite.store", "rich.panel", "typer.rich_utils"),
    *("loom.cli.cache", "loom.cli.chat", "loom.cli.demo", "loom.cli.memory", "loom.cli.session", "loom.cli.store"),
)
"""Modules that are read before the fork, as far as most commands need them."""


def run_loom(
    command: Sequence[object],
    *,
    input: str | None = None,
    cwd: os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the installed command and wait for it; the first word of the command is LOOM."""
    assert command[0] == LOOM, command
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        streams[0].write((input or "").encode())
        streams[0].seek(0)
        request = {
            "args": [str(word) for word in command],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        at_import = {name: value for name, value in request["env"].items() if name in _AT_IMPORT}
        code = _server(**at_import).run(request, [stream.fileno() for stream in streams])
        said = []
        for stream in streams[1:]:
            stream.seek(0)
            said.append(stream.read().decode())
    done = subprocess.CompletedProcess(command, code, *said)
    if check:
        done.check_returncode()
    return done


class _Server:
    """A process that forks: one request at a time."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._socket, other = socket.socketpair()
        self._lock = Lock()
        with other:
            code = f"from tests.commands import serve; serve({other.fileno()})"
            command = [sys.executable, "-c", code]  # no -m: the command looks for its own name there
            # Kept, and never waited for: it ends when the socket is closed, with this process.
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], cwd=_ROOT, env={**os.environ, **env})

    def run(self, request: dict[str, Any], streams: list[int]) -> int:
        data = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(data).to_bytes(4, "big")], streams)
            self._socket.sendall(data)
            answer = _read(self._socket, 4)
        assert answer, "the process that forks is gone"
        return int.from_bytes(answer, "big", signed=True)


@cache
def _server(**env: str) -> _Server:
    return _Server(env)


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := source.recv(size - len(data))):
        data += more
    return data


def serve(number: int) -> None:
    """Fork for each request that comes through the socket of this number, until it is closed."""
    with socket.socket(fileno=number) as source:
        sys.path.remove("")  # it would be the folder of the request
        _serve(source)


def _serve(source: socket.socket) -> None:
    for name in _READ:
        importlib.import_module(name)
    importlib.import_module("loom.providers.embedding.local")._shared_model()
    gc.freeze()  # a collection in a child would copy every page
    while True:
        head, streams, _, _ = socket.recv_fds(source, 4, 3)
        if not head:
            return
        request = json.loads(_read(source, int.from_bytes(head, "big")))
        child = os.fork()
        if child == 0:
            source.close()
            _become(request, streams)
            importlib.import_module("loom.cli").main()
            return
        for stream in streams:
            os.close(stream)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        source.sendall(code.to_bytes(4, "big", signed=True))


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Be what a process is that was just started like this."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["args"]
