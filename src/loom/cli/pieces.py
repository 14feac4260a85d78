"""The bytes of what a command is given to read, piece by piece: a file, a pipe or standard input."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from loom.errors import UsageError

STDIN = Path("-")
"""How standard input is named on a command line."""

_PIECE = 256 * 1024
_HELD = 8
"""Pieces of a pipe that wait to be used; who writes to it waits as well then."""
_LISTENING = 0.1
"""Seconds after which Ctrl-C is heard: one that comes just before a wait begins does not end the wait."""


def pieces_of(path: Path, progress: Callable[[int, int], None]) -> Iterator[bytes]:
    """The bytes of a file, which tell how far it is read, or of a pipe, where Ctrl-C is heard at any moment.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        if path != STDIN and stat.S_ISREG((found := path.stat()).st_mode):
            yield from _file(path, found.st_size, progress)
        else:
            yield from _pipe(path)
    except OSError as error:
        raise UsageError(f"it cannot be read ({error.strerror}); check the path") from error


def _file(path: Path, size: int, progress: Callable[[int, int], None]) -> Iterator[bytes]:
    done = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield piece
            done += len(piece)
            progress(done, max(done, size))


def _pipe(path: Path) -> Iterator[bytes]:
    """Opened and read in a thread: whoever waits for a pipe to be opened at its other end cannot be interrupted."""
    pieces: Queue[bytes | OSError] = Queue(_HELD)
    Thread(target=_read, args=(path, pieces), name=f"loom reads {path}", daemon=True).start()
    while piece := _next(pieces):
        if isinstance(piece, OSError):
            raise piece
        yield piece


def _read(path: Path, pieces: Queue[bytes | OSError]) -> None:
    try:
        # Not sys.stdin: its lock, held by a thread that waits, keeps a program from ending.
        file = os.dup(0) if path == STDIN else os.open(path, os.O_RDONLY)
        try:
            while piece := os.read(file, _PIECE):
                pieces.put(piece)
        finally:
            os.close(file)
    except OSError as error:
        pieces.put(error)
    else:
        pieces.put(b"")


def _next(pieces: Queue[bytes | OSError]) -> bytes | OSError:
    while True:
        try:
            return pieces.get(timeout=_LISTENING)
        except Empty:
            continue
