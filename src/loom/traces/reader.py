"""Finds transcripts in files, folders and patterns, and reads each in its format."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from loom.errors import UsageError
from loom.traces._blocks import maybe_table
from loom.traces.claude_code import ClaudeCodeReader, is_claude_code
from loom.traces.codex import CodexReader, is_codex
from loom.traces.stream import STDIN, JsonStream, pieces_of
from loom.traces.transcript import SkippedLine, Transcript

FORMS: Final = "a transcript of Claude Code or Codex"
"""The formats that can be read, for error messages."""

_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
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
    found: dict[Path, FoundFile] = {}
    for given in paths:
        name = os.fspath(given)
        path = Path(name)
        if path != STDIN and path.is_dir():
            here = [FoundFile(one, is_named=False) for one in _files_in(path)]
        elif path != STDIN and not os.path.lexists(path) and glob.has_magic(name):
            matches = map(Path, sorted(glob.glob(name, recursive=True)))  # noqa: PTH207 (of any folder, not of one)
            files = [one for match in matches for one in (_files_in(match) if match.is_dir() else [match])]
            here = [FoundFile(one, is_named=False) for one in files]
        else:
            here = [FoundFile(path, is_named=True)]
        if not here:
            what = "it has no file that ends in " + ", ".join(_SUFFIXES) if path.is_dir() else "nothing matches it"
            raise UsageError(f"{name}: {what}; give {FORMS}, or a folder with some")
        for one in here:
            found.setdefault(one.path, one)
    return sorted(found.values(), key=lambda one: _begun(one.path))


def _files_in(folder: Path) -> list[Path]:
    """The files below a folder; links are followed, but no folder is entered twice."""
    found: list[Path] = []
    entered: set[tuple[int, int]] = set()
    for at, folders, names in os.walk(folder, followlinks=True):
        here = Path(at).stat()
        if (here.st_dev, here.st_ino) in entered:
            folders.clear()
            continue
        entered.add((here.st_dev, here.st_ino))
        folders.sort()
        found += [Path(at, name) for name in sorted(names) if name.endswith(_SUFFIXES)]
    return found


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

    def read(self, stream: JsonStream, path: str) -> Iterator[Transcript]:
        """The conversations in one file.

        Raises:
            UsageError: it is not a transcript of any known format.
        """
        first = maybe_table(stream.first)
        if is_codex(first):
            yield from self._codex.read(stream.objects(), path)
        elif is_claude_code(first):
            yield from self._claude_code.read(stream.objects(), path)
        else:
            raise UsageError(f"it holds no conversation that Loom can read; give {FORMS}")


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
            yield from reader.read(JsonStream(pieces_of(path, progress)), os.fspath(path))
        except UsageError as error:
            if is_named:
                raise UsageError(f"{path}: {error}") from error
            yield Transcript(program="", session_id="", path=str(path), skipped=(SkippedLine(0, f"file: {error}"),))
