"""A warm process for hooks: the engine stays loaded for a while, so that the next prompt does not wait for it.

It is there only if hooks run with `--warm`: the first run that reads the memory starts it, and prompts ask it. It
listens on a socket in the user's own folder, opens the memory for each question and closes it again, keeps nothing in
between, and ends by itself when nobody asked for a while. Without it, or if it does not answer, a hook reads the memory
itself.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from subprocess import Popen

IDLE: Final = 900.0
"""Seconds without a question after which it ends."""
PATIENCE: Final = 3.0
"""Seconds that a hook waits for its answer, and it for the rest of a question."""
START: Final = 5.0
"""Seconds that a hook waits for one that it started; hosts wait ten for a hook."""
_MOST: Final = 16_000_000
_LONGEST_PATH: Final = 100
"""Bytes of the name of a socket that every system takes."""


def socket_path() -> Path:
    """Where it listens: another version of Loom, or another environment, has another process."""
    here = Path(__file__)
    known = f"{sys.executable} {here} {here.stat().st_mtime_ns}"
    return Path.home() / ".loom" / f"warm-{blake2b(known.encode(), digest_size=6).hexdigest()}.sock"


def ask(question: Sequence[Any]) -> str | None:
    """The answer of the warm process; None if there is none, or it fails or takes too long."""
    try:
        with _line() as line:
            line.sendall(json.dumps(question).encode())
            line.shutdown(socket.SHUT_WR)
            answer: object = json.loads(_read(line))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, str) else None


def is_there() -> bool:
    """Whether a warm process listens."""
    try:
        with _line():
            return True
    except OSError:
        return False


@contextmanager
def _line() -> Generator[socket.socket]:
    """A line to the warm process."""
    if sys.platform == "win32":
        raise FileNotFoundError("Windows has no such socket")
    path = socket_path()
    found = path.stat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise FileNotFoundError(f"{path} is not a socket of this user")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(PATIENCE)
        line.connect(str(path))
        yield line


def _read(line: socket.socket) -> bytes:
    data = bytearray()
    while len(data) < _MOST and (more := line.recv(65536)):
        data += more
    return bytes(data)


def start(*, wait: bool = True) -> Popen[bytes] | None:
    """Start it apart from this process, and wait until it listens; None where there can be no such socket."""
    import select  # noqa: PLC0415 - only the first run of a session starts it
    import subprocess  # noqa: PLC0415

    if sys.platform == "win32" or len(os.fsencode(socket_path())) > _LONGEST_PATH:
        return None
    command = [sys.executable, "-c", "import sys; from loom.server.hooks import stay_warm; stay_warm(ready=sys.stdout)"]
    null = subprocess.DEVNULL
    started = subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True)  # noqa: S603
    assert started.stdout is not None
    with started.stdout as ready:  # it is readable when the process listens, and when it ends because another does
        if wait:
            select.select([ready], [], [], START)
    return started


def serve(answer: Callable[[Any], str], *, idle: float = IDLE, ready: IO[str] | None = None) -> bool:
    """Answer questions, one after another, until nobody asks for `idle` seconds; False if another process does so.

    `ready` gets a line when it listens. A question that fails is answered with null, and the hook reads by itself.
    """
    import fcntl  # noqa: PLC0415 - not on every system

    path = socket_path()
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.with_suffix(".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            path.unlink(missing_ok=True)  # of one that was killed: the lock says that none is there
            before = os.umask(0o077)
            try:
                door.bind(str(path))
            finally:
                os.umask(before)
            door.listen(16)
            door.settimeout(idle)
            if ready is not None:
                with suppress(BrokenPipeError):  # the hook did not wait
                    ready.write("ready\n")
                    ready.flush()
            try:
                while True:
                    _serve_one(door, answer)
            except TimeoutError:  # nobody came
                return True
            finally:
                path.unlink(missing_ok=True)


def _serve_one(door: socket.socket, answer: Callable[[Any], str]) -> None:
    line, _ = door.accept()
    with line:
        try:
            line.settimeout(PATIENCE)
            said: str | None = answer(json.loads(_read(line)))
        except Exception:  # noqa: BLE001 - it has to be there for the next question
            said = None
        try:
            line.sendall(json.dumps(said).encode())
        except OSError:  # the hook did not wait
            return
