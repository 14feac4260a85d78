"""`loom memory import`: read a file or a pipe into a memory, piece by piece, and count the result."""

from __future__ import annotations

import os
import signal
import stat
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from loom.errors import UsageError

if TYPE_CHECKING:
    from loom.memory.json_stream import JsonStream
    from loom.memory.transcripts import Transcript


STDIN = Path("-")
"""Standard input, as named on the command line."""

_PIECE = 256 * 1024
_HELD = 8
"""Pieces of a pipe that may wait; then the writer of the pipe waits as well."""
_LISTENING = 0.1
"""Seconds between checks for Ctrl-C: one that arrives just before a wait begins does not end that wait."""


@dataclass(slots=True)
class Imported:
    """Counts of an import."""

    new: int = 0
    there: int = 0
    """Records that were already stored."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """How many entries were left out, by reason."""
    notes: dict[str, None] = field(default_factory=dict[str, None])
    """Notes for the user, each once."""

    def __str__(self) -> str:
        """The counts, for people."""
        there = f", {self.there:,} already there" if self.there else ""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.most_common())
        return f"{self.new:,} new{there}" + (f", {self.left_out.total():,} left out ({reasons})" if reasons else "")


def import_file(memory: Any, path: Path, *, user: str, progress: Callable[[int, int], None]) -> Imported:
    """Read an export of Loom or conversations of other programs into a user's memory, piece by piece.

    `progress` is called with the bytes read and the size of the file.
    """
    from loom.memory.json_stream import JsonStream

    done = Imported()
    try:
        stream = JsonStream(pieces_of(path, progress))
        if stream.begins_with("loom"):
            _import_lines(memory, stream, user, done)
        else:
            _import_transcripts(memory, stream, path, user, done)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return done


def _import_lines(memory: Any, stream: JsonStream, user: str, done: Imported) -> None:
    from loom.memory.portable import batches

    start = 0
    for lines in batches(stream.lines()):
        with _delay_interrupt():
            read = memory.import_(lines, user_id=user, start=start)
        start += len(lines)
        there = len(read.skipped)
        done.there += there
        done.new += len({record.id for record in read.kept}) - there
        done.notes.update(dict.fromkeys(read.notes))


def _import_transcripts(memory: Any, stream: JsonStream, path: Path, user: str, done: Imported) -> None:
    from loom.memory.transcripts import read_transcripts

    try:
        for found in read_transcripts(stream, "stdin" if path == STDIN else path.stem):
            _import_transcript(memory, found, user, done)
    except UsageError as error:
        kept = f"{done.new + done.there:,} records before it are kept; correct the file and import all of it again, "
        again = f"{kept}nothing is added twice" if done.new + done.there else "nothing was imported"
        raise UsageError(f"{error}; {again}") from error
    done.notes.update(dict.fromkeys(memory.metabolize(user_id=user).notes))


def _import_transcript(memory: Any, found: Transcript, user: str, done: Imported) -> None:
    from loom.memory.values import REPEATED

    key = f"import:{found.session_id}" + (f":{found.start}" if found.start else "")
    with _delay_interrupt():
        read = memory.remember(found.turns, user_id=user, session_id=found.session_id, key=key)
    reasons = Counter(skip.reason for skip in (*found.skipped, *read.skipped))
    there = reasons.pop(REPEATED, 0)
    done.there += there
    done.new += len(read.kept) - there
    for reason, count in reasons.items():
        done.left_out[reason.partition(":")[0]] += count
    done.notes.update(dict.fromkeys(read.notes))


@contextmanager
def _delay_interrupt() -> Generator[None]:
    """Delay Ctrl-C until the block is done, so that no record is left without a vector; a second one acts at once."""
    signals: list[int] = []

    def note(number: int, _: object) -> None:
        signals.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


def pieces_of(path: Path, progress: Callable[[int, int], None]) -> Iterator[bytes]:
    """The bytes of a file, with progress, or of a pipe, which Ctrl-C can interrupt at any moment.

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
    """Read a pipe in a thread: a thread that waits for the other end to open it cannot be interrupted."""
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
