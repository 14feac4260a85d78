"""What every server needs: a free port, a user to run as, and a process that ends when the test does."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

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
        if os.getuid() == 0:
            shutil.chown(folder, _NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_as() -> dict[str, Any]:
    """The user that a server runs as: root runs it as `nobody`, because some servers refuse to run as root."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam(_NOBODY)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def run_once(command: Sequence[str], folder: Path) -> None:
    """Run a command that prepares a server; what it said is in the error if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **run_as())  # noqa: S603
    if done.returncode:
        raise ServerFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


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
        _wait(process, is_ready, log)
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

    def start(self) -> None:
        """Start the server on the files that are there, and wait until it answers."""
        server = running(self._command, self.folder, is_ready=self._is_ready, as_self=self._as_self)
        self._process = self._running.enter_context(server)

    def kill(self) -> None:
        """End the server as a crash would, without a chance to write anything more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self.stop()

    def stop(self) -> None:
        """End the server in good order."""
        self._process = None
        self._running.close()


def _wait(process: subprocess.Popen[Any], is_ready: Callable[[], bool], log: Path) -> None:
    while not is_ready():
        if process.poll() is not None:
            raise ServerFailed(f"the server {process.args!r} did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.02)
