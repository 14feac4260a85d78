"""Finds transcripts in files, folders and patterns, and reads each in its format."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from loom.errors import UsageError
from loom.traces._blocks import JsonObject, maybe_table
from loom.traces.claude_code import ClaudeCodeReader, is_claude_code
from loom.traces.codex import CodexReader, is_codex
from loom.traces.exports import is_export, read_exports
from loom.traces.logs import is_log, read_logs
from loom.traces.notes import (
    MARKDOWN_SUFFIXES,
    is_langgraph,
    is_letta,
    is_markdown,
    is_mem0,
    read_langgraph,
    read_letta,
    read_markdown,
    read_mem0,
)
from loom.traces.stream import STDIN, JsonStream, pieces_of
from loom.traces.transcript import SkippedLine, Transcript

FORMS: Final = (
    "an export of Loom, a transcript of Claude Code or Codex, an export of ChatGPT or claude.ai (conversations.json), "
    "spans of OpenTelemetry as JSON, logs of LiteLLM or Langfuse, recorded requests, memories of mem0, items of a "
    "LangGraph store, an agent file of Letta (.af), Markdown, or messages with `role` and `content`: one on a line, a "
    'JSON array of them, or {"messages": [...]} for each conversation'
)
"""The formats that can be read, for error messages."""

_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".af")
_WRAPPERS: Final = ("results", "data", "items", "conversations", "memories")
"""Where interfaces put the rows of a list."""
_HEAD: Final = 64 * 1024
_TIME: Final = re.compile(rb'"timestamp"\s*:\s*"([^"]{10,40})"')


class FoundFile(NamedTuple):
    """A file to read; one that was named by itself has to be a transcript, others are skipped if they are not."""

    path: Path
    is_named: bool


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[FoundFile]:
    """The files of these paths, folders and patterns; those that say when they were begun in that order.

    Order matters: what a resumed or forked session repeats belongs to the one it was said in first.

    Raises:
        UsageError: a path does not exist, or nothing is found in it.
    """
    found: dict[object, FoundFile] = {}
    for given in paths:
        path = Path(given)
        with suppress(RuntimeError):  # no such user: then it is a name like any other
            path = path.expanduser()
        name = os.fspath(path)
        if path != STDIN and path.is_dir():
            here = [FoundFile(one, is_named=False) for one in _files_in(path)]
        elif path != STDIN and not os.path.lexists(path) and glob.has_magic(name):
            matches = map(Path, sorted(glob.glob(name, recursive=True)))  # noqa: PTH207 (of any folder, not of one)
            files = [one for match in matches for one in (_files_in(match) if match.is_dir() else [match])]
            here = [FoundFile(one, is_named=False) for one in files]
        else:
            here = [FoundFile(path, is_named=True)]
        if not here:
            ends = ", ".join((*_SUFFIXES, *MARKDOWN_SUFFIXES))
            what = f"it has no file that ends in {ends}" if path.is_dir() else "nothing matches it"
            raise UsageError(f"{name}: {what}; give a file, or a folder with transcripts or exports")
        for one in here:
            found.setdefault(_identity(one.path), one)
    return sorted(found.values(), key=lambda one: _begun(one.path))


def _identity(path: Path) -> object:
    """What a file is, whatever leads to it."""
    try:
        known = path.stat()
    except OSError:  # standard input; or reading it says that it is not there
        return path
    return (known.st_dev, known.st_ino)


def _files_in(folder: Path) -> list[Path]:
    """The files below a folder; links are followed, but no folder is entered twice.

    Markdown is read only where there is nothing else: programs keep notes and instructions beside their transcripts.
    """
    found: list[Path] = []
    entered: set[tuple[int, int]] = set()
    for at, folders, names in os.walk(folder, followlinks=True):
        here = Path(at).stat()
        if (here.st_dev, here.st_ino) in entered:
            folders.clear()
            continue
        entered.add((here.st_dev, here.st_ino))
        folders.sort()
        found += [Path(at, name) for name in sorted(names) if name.endswith((*_SUFFIXES, *MARKDOWN_SUFFIXES))]
    return [one for one in found if one.suffix in _SUFFIXES] or found


def _begun(path: Path) -> tuple[bytes, bool, int]:
    """When the first line of a file was written; then originals before their copies, which are longer."""
    try:
        if path == STDIN or not path.is_file():
            return b"", False, 0
        with path.open("rb") as file:
            head = file.read(_HEAD)
            time = _TIME.search(head)
            return (time[1], b'"forkedFrom"' in head, os.fstat(file.fileno()).st_size) if time else (b"", False, 0)
    except OSError:  # reading it says so
        return b"", False, 0


class TranscriptReader:
    """Reads files one after another; it knows what it has read, so that copies in later files count once."""

    def __init__(self) -> None:
        self._claude_code = ClaudeCodeReader()
        self._codex = CodexReader()
        self._names: dict[str, str] = {}

    def read(self, stream: JsonStream, path: str) -> Iterator[Transcript]:
        """The conversations in one file, or in parts of them.

        Raises:
            UsageError: it cannot be read, or is not of a known format; the message names the line.
        """
        first = maybe_table(stream.first)
        if is_codex(first) or is_claude_code(first) or is_log(first):
            yield from self._read_lines(first, stream.objects(), path)
            return
        values = _unwrapped(stream)
        head = list(islice(values, 1))
        if not head:
            raise UsageError(f"it is empty; give {FORMS}")
        rest = chain(head, values)
        first = maybe_table(head[0][1])
        if is_codex(first) or is_claude_code(first) or is_log(first):
            yield from self._read_lines(first, _only_objects(rest), path)
        elif is_mem0(first):
            yield from read_mem0(rest, path)
        elif is_langgraph(first):
            yield from read_langgraph(rest, path)
        elif is_letta(first):
            yield from read_letta(rest, path)
        else:
            name = self._name(path)
            yield from read_exports(rest, name=name, path=path, is_array=stream.is_array, refusal=f"give {FORMS}")

    def _read_lines(
        self, first: JsonObject, lines: Iterator[tuple[int, JsonObject | str]], path: str
    ) -> Iterator[Transcript]:
        """What a program wrote line by line; a line that is broken is skipped."""
        if is_codex(first):
            yield from self._codex.read(lines, path)
        elif is_claude_code(first):
            yield from self._claude_code.read(lines, path)
        else:
            yield from read_logs(lines, path, self._name(path))

    def _name(self, path: str) -> str:
        """A name for conversations without an id: that of the file, or more of its path where another has the same."""
        if path == str(STDIN):
            return "stdin"
        given = Path(path)
        names = (given.stem, f"{given.parent.name}/{given.stem}")
        return next((name for name in names if self._names.setdefault(name, path) == path), path)


def _only_objects(values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, JsonObject | str]]:
    for line, value in values:
        is_object = isinstance(value, dict)
        yield line, cast("JsonObject", value) if is_object else "broken: it is not a JSON object"


def _unwrapped(stream: JsonStream) -> Iterator[tuple[int, Any]]:
    """Each value; a list that an interface wraps in an object is given row by row."""
    for line, value in stream:
        record = maybe_table(cast("object", value))
        name = next((key for key in _WRAPPERS if isinstance(record.get(key), list)), None)
        if name is None or is_letta(record) or is_export(record) or is_log(record):
            yield line, value
        else:
            yield from ((line, row) for row in record[name])


def read_transcripts(
    paths: Iterable[str | os.PathLike[str]], *, progress: Callable[[int, int], None] | None = None
) -> Iterator[Transcript]:
    """The conversations in files, folders and patterns, one after another.

    A file in a folder that cannot be read, or is something else, gives a transcript with no program and the reason.

    Raises:
        UsageError: a path does not exist, nothing is found, or a file that was named cannot be read.
    """
    reader = TranscriptReader()
    for path, is_named in find_files(paths):
        try:
            if is_markdown(path):
                yield from read_markdown(pieces_of(path, progress), os.fspath(path))
            else:
                yield from reader.read(JsonStream(pieces_of(path, progress)), os.fspath(path))
        except UsageError as error:
            if is_named:
                raise UsageError(f"{path}: {error}") from error
            reason = f"file: {short_reason(error)}"
            yield Transcript(program="", session_id="", path=str(path), skipped=(SkippedLine(0, reason),))


def short_reason(error: UsageError) -> str:
    """Why a file of a folder was left out; which formats could be given instead does not help there."""
    return str(error).removesuffix(f"; give {FORMS}")
