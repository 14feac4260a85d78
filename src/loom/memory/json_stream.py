"""Streaming JSON: values one per line, one after another, or in one array; one value is in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from loom.errors import UsageError

MAX_VALUE = 64 * 1024 * 1024
"""Maximum bytes of one value: all of it is in memory while it is read."""

_BOM = b"\xef\xbb\xbf"
# Where strings, containers and the elements of an array begin and end; escaped characters are skipped.
_MARKS = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)


class JsonStream:
    """The JSON values in a stream of bytes with their line numbers, whatever the form of the stream.

    It can be read once. `is_array` says whether the values are the elements of one array.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        rest = iter(pieces)
        head = _begin(rest)
        self.is_array = head.lstrip()[:1] == b"["
        self._first = None if self.is_array else _first_value(head)
        self._pieces = chain([head], rest)

    def begins_with(self, name: str) -> bool:
        """Whether the first line is an object with this key."""
        return isinstance(self._first, dict) and name in self._first  # pyright: ignore[reportUnknownMemberType]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Each value, with the number of the line where it begins; raises UsageError naming a line it cannot read."""
        on_lines = self._first is not None
        for line, text in _lines(self._pieces) if on_lines else _Values(is_array=self.is_array).of(self._pieces):
            if text.strip():
                yield line, _parse(line, text)

    def lines(self) -> Iterator[str]:
        """Each line as text, including blank ones; raises UsageError naming a line it cannot read."""
        for line, text in _lines(self._pieces):
            yield _decode(line, text)


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


def _first_value(head: bytes) -> Any:
    """The first line as JSON; None if that line is not a complete value."""
    try:
        return json.loads(head.lstrip().partition(b"\n")[0].decode())
    except (ValueError, RecursionError):
        return None


def _lines(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line, with its number."""
    line, buffer, size = 1, list[bytes](), 0
    for piece in pieces:
        first, *more = piece.split(b"\n")
        buffer.append(first)
        size += len(first)
        for part in more:
            yield line, b"".join(buffer)
            line, buffer, size = line + 1, [part], len(part)
        _check_size(line, size)
    yield line, b"".join(buffer)


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
