"""Files and pipes, read piece by piece, and the JSON values in them: one value is in memory at a time."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import sleep
from typing import Any, Literal, cast, overload

from loom.errors import UsageError

STDIN = Path("-")
"""Standard input, as named on the command line."""

_PIECE = 256 * 1024
_HELD = 8
"""Pieces of a pipe that may wait; then the writer of the pipe waits as well."""
_LISTENING = 0.02
"""Seconds between checks for Ctrl-C: one that arrives just before a wait begins does not end that wait."""


def pieces_of(path: Path, progress: Callable[[int, int], None] | None = None) -> Iterator[bytes]:
    """The bytes of a file, with progress, or of a pipe, which Ctrl-C can interrupt at any moment.

    Of a file that grows meanwhile, only what was there at first is read: the end of one that never stops would
    never come.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        if path == STDIN or not stat.S_ISREG((found := path.stat()).st_mode):
            yield from _pipe(path)
            return
        done, size = 0, found.st_size
        with path.open("rb", buffering=0) as file:
            # Files that the system makes while they are read have no size.
            while piece := file.read(min(_PIECE, size - done) if size else _PIECE):
                yield piece
                done += len(piece)
                if progress is not None:
                    progress(done, max(done, size))
    except OSError as error:
        check = "who may read it" if isinstance(error, PermissionError) else "the path"
        raise UsageError(f"it cannot be read ({error.strerror}); check {check}") from error


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
        file = os.dup(0) if path == STDIN else os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
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
            return pieces.get_nowait()
        except Empty:
            sleep(_LISTENING)  # not get(timeout=...): Ctrl-C in it can end in "release unlocked lock"


# JSON values: one per line, one after another, or in one array; one value is in memory at a time.

MAX_VALUE = 64 * 1024 * 1024
"""Maximum bytes of one value: all of it is in memory while it is read."""

_BOM = b"\xef\xbb\xbf"
# Where strings, containers and the elements of an array begin and end; escaped characters are skipped.
_MARKS = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)


class JsonStream:
    """The JSON values in a stream of bytes with their line numbers, whatever the form of the stream.

    It can be read once. `is_array` says whether the values are the elements of one array, `first` is the value of the
    first line that is one: None if the values are not one on each line.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        rest = iter(pieces)
        head, self.first = _first_value(_begin(rest), rest)
        self.is_array = self.first is None and head.lstrip()[:1] == b"["
        self._pieces = chain([head], rest)

    def begins_with(self, name: str) -> bool:
        """Whether the first line is an object with this key."""
        return isinstance(self.first, dict) and name in self.first  # pyright: ignore[reportUnknownMemberType]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Each value, with the number of the line where it begins; raises UsageError naming a line it cannot read."""
        on_lines = self.first is not None
        for line, text in _lines(self._pieces) if on_lines else _Values(is_array=self.is_array).of(self._pieces):
            if text.strip():
                yield line, _parse(line, text)

    def lines(self) -> Iterator[str]:
        """Each line as text, including blank ones; raises UsageError naming a line it cannot read."""
        for line, text in _lines(self._pieces):
            yield _decode(line, text)

    def objects(self) -> Iterator[tuple[int, dict[str, Any] | str]]:
        """The object on each line, or why there is none: a log that a program was writing may be broken anywhere."""
        broken: tuple[int, str] | None = None
        for line, text in _lines(self._pieces, limit=False):
            if broken:
                yield broken
                broken = None
            if text is None:
                yield line, f"too long: it has more than {MAX_VALUE // 1024 // 1024} MiB"
            elif text.strip():
                value = _object_or_reason(text)
                if isinstance(value, str):
                    broken = line, value
                else:
                    yield line, value
        if broken:  # no line end after it
            yield broken[0], "unfinished: the last line was still being written, or cut off; read it again later"


def _object_or_reason(text: bytes) -> dict[str, Any] | str:
    try:
        value: Any = json.loads(text.decode())
    except RecursionError:
        return "broken: it is nested too deeply to be read"
    except UnicodeDecodeError:
        return "broken: it is not UTF-8 text"
    except ValueError as error:
        return f"broken: it is not JSON ({error.msg if isinstance(error, json.JSONDecodeError) else error})"
    return cast("dict[str, Any]", value) if isinstance(value, dict) else "broken: it is not a JSON object"


def _begin(pieces: Iterator[bytes]) -> bytes:
    """The head of a stream without its byte order mark: enough to see an array, or the first line that is not blank."""
    head, has_begun = bytearray(), False
    for piece in pieces:
        head += piece
        if has_begun and (b"\n" in piece or len(head) > MAX_VALUE):
            break
        if not has_begun and len(head) >= len(_BOM):
            if head.startswith(_BOM):
                del head[: len(_BOM)]
            text = head.lstrip()
            has_begun = bool(text)
            if text.startswith(b"[") or b"\n" in text:
                break
    return bytes(head)


_SECOND = 1024 * 1024
"""Bytes of the second line that are read when the first is not an object, to see whether the others are."""


def _first_value(head: bytes, rest: Iterator[bytes]) -> tuple[bytes, Any]:
    """The head, with more of the stream where that was needed, and the value of the first line, or of the second.

    The second line decides where the first is not an object: in a log that a program writes any line may be broken.
    """
    first, _, second = head.lstrip().partition(b"\n")
    value = _value(first)
    if isinstance(value, dict) or (value is None and first.startswith(b"[")):
        return head, cast("dict[str, Any] | None", value)
    more = [head]
    while b"\n" not in second.lstrip() and len(second) < _SECOND and (piece := next(rest, b"")):
        more.append(piece)
        second += piece
    other = _value(second.lstrip().partition(b"\n")[0])
    if not isinstance(other, dict):  # the lines of one object over several lines are not objects
        other = None if isinstance(value, list) else value
    return b"".join(more), cast("Any", other)


def _value(text: bytes) -> Any:
    """The JSON value in a text; None if it is not a complete one."""
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None


@overload
def _lines(pieces: Iterable[bytes], *, limit: Literal[True] = True) -> Iterator[tuple[int, bytes]]: ...
@overload
def _lines(pieces: Iterable[bytes], *, limit: Literal[False]) -> Iterator[tuple[int, bytes | None]]: ...


def _lines(pieces: Iterable[bytes], *, limit: bool = True) -> Iterator[tuple[int, bytes | None]]:
    """Each line, with its number. One that is too long is refused; without the limit its bytes are dropped."""
    line, buffer, size = 1, list[bytes](), 0
    for piece in pieces:
        first, *more = piece.split(b"\n")
        buffer.append(first)
        size += len(first)
        for part in more:
            yield line, b"".join(buffer) if limit or size <= MAX_VALUE else None
            line, buffer, size = line + 1, [part], len(part)
        if limit:
            _check_size(line, size)
        elif size > MAX_VALUE:
            buffer.clear()
    yield line, b"".join(buffer) if limit or size <= MAX_VALUE else None


class _Values:
    """Cuts JSON text into its values, or into those of one array, by where strings and containers end."""

    def __init__(self, *, is_array: bool) -> None:
        self._is_array = is_array
        self._depth = 0
        self._in_string = False
        self._line, self._buffer, self._size = 1, list[bytes](), 0

    def of(self, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Each value as text with its line number; the rest of the stream comes last."""
        escape = b""
        for piece in pieces:
            text = escape + piece
            # A backslash at the end of a piece is kept with the character it escapes, in the next piece.
            escape = b"\\" if (len(text) - len(text.rstrip(b"\\"))) % 2 else b""
            yield from self._cut(text[: len(text) - len(escape)])
            _check_size(self._line, self._size)
        line, left = self._flush(escape)
        if self._is_array:
            raise UsageError(f"line {line}: the array that begins here or before does not end")
        yield line, left

    def _cut(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        start = 0
        for mark in _MARKS.finditer(text):
            sign = mark.group()
            if sign == b'"':
                self._in_string = not self._in_string
            elif self._in_string or len(sign) > 1:
                continue
            elif sign in b"{[":
                self._depth += 1
                if self._is_array and self._depth == 1:
                    self._flush(text[start : mark.end()])
                    start = mark.end()
            elif sign == b",":
                if self._is_array and self._depth == 1:
                    line, value = self._flush(text[start : mark.start()])
                    yield line, value or sign  # an empty element is not JSON: parsing the comma reports it
                    start = mark.end()
            else:
                self._depth -= 1
                if self._depth <= 0:
                    yield self._flush(text[start : mark.start() if self._is_array else mark.end()])
                    self._depth, self._is_array, start = 0, False, mark.end()
        self._buffer.append(text[start:])
        self._size += len(text) - start

    def _flush(self, more: bytes) -> tuple[int, bytes]:
        """The buffered value with its end, and the number of its first line."""
        text = b"".join([*self._buffer, more])
        value = text.lstrip()
        line = self._line + text.count(b"\n", 0, len(text) - len(value))
        self._line, self._buffer, self._size = self._line + text.count(b"\n"), [], 0
        return line, value.rstrip()


def _check_size(line: int, size: int) -> None:
    if size > MAX_VALUE:
        raise UsageError(f"line {line}: one value has more than {MAX_VALUE // 1024 // 1024} MiB; split it")


def _parse(line: int, text: bytes) -> Any:
    decoded = _decode(line, text)
    try:
        return json.loads(decoded)
    except RecursionError:
        raise UsageError(f"line {line}: this is nested too deeply to be read") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"line {line + error.lineno - 1}: this is not JSON ({error.msg})") from error
    except ValueError as error:  # a number of very many digits
        raise UsageError(f"line {line}: this cannot be read ({error})") from error


def _decode(line: int, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"line {line}: this is not UTF-8 text ({error.reason}); save it as UTF-8") from error
