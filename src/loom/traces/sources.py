"""Recorded requests where people have them: files, folders, patterns, pipes, HAR, single lines of a trace."""

from __future__ import annotations

import base64
import binascii
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from loom.catalog import find_model
from loom.core.message import Usage
from loom.core.window import RequestBlocks
from loom.errors import BadRequestFile, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import counter_for
from loom.traces._blocks import JsonObject, KnownBlocks, maybe_table, maybe_text
from loom.traces.claude_code import is_claude_code
from loom.traces.codex import is_codex
from loom.traces.request import check_request, is_body, model_of, read_recorded, read_request, read_usage
from loom.traces.stream import STDIN, pieces_of

SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".har")
"""The files of a folder that are looked into."""
_LINES: Final = re.compile(r"(?P<path>.+?)(?P<lines>(?::\d+){1,2})")
_HAR: Final = re.compile(r'\s*\{\s*"log"\s*:')
_JSON_KINDS: dict[type, str] = {type(None): "null", bool: "true or false", str: "a text", list: "a list"}


class SourceRecord(NamedTuple):
    """One record of a file: where it is, for messages, its number from 1, and what it says."""

    place: str
    number: int
    record: dict[str, Any]


class Trace(NamedTuple):
    """Requests in order, and what the provider reported for each, where the record says."""

    prompts: tuple[RequestBlocks, ...]
    usages: tuple[Usage | None, ...]


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """The requests of one file, or of the files of one folder that hold a request each."""

    name: str
    prompts: tuple[RequestBlocks, ...]
    usages: tuple[Usage | None, ...]


@dataclass(slots=True)
class FoundRequests:
    """The records of one source after another, and what was left out of it."""

    files: list[tuple[str, list[SourceRecord]]] = field(default_factory=list[tuple[str, list[SourceRecord]]])
    named: set[str] = field(default_factory=set[str])
    """The files that were named one by one, not found in a folder or by a pattern."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Files of folders and patterns that hold no requests, and single records of a HAR file, each with the reason."""

    @property
    def records(self) -> list[SourceRecord]:
        """All records, in order."""
        return [record for _, records in self.files for record in records]


def read_sources(
    sources: Iterable[str | os.PathLike[str]], *, progress: Callable[[int, int], None] | None = None
) -> FoundRequests:
    """The records of files, folders, patterns and pipes; `trace.jsonl:41:42` names two lines of a file.

    A file that is named must hold requests. Other files of a folder or a pattern are left out, with the reason.

    Raises:
        BadRequestFile: a file or a record in it cannot be read; the message names file and line.
        UsageError: nothing is found.
    """
    found = FoundRequests()
    given = [os.fspath(source) for source in sources]
    files = [file for name in given for file in _files(name)]
    total, done = sum(_size(file.path) for file in files), 0
    for file in files:
        name = str(file.path)
        found.named |= {name} if file.is_named else set()
        try:
            records = list(_records_of(file.path, found.skipped))
            if not file.is_named:
                check_request(records[0].record)
            found.files.append((name, _chosen(records, file) if file.lines else records))
        except BadRequestFile as error:
            if file.is_named:
                raise
            found.skipped[name] = str(error).removeprefix(name).lstrip(":, ")
        done += _size(file.path)
        if progress:
            progress(done, max(total, done))
    if not found.records:
        names = ", ".join(given)
        raise UsageError(f"no recorded request was found in {names}; give requests as JSON{_first_of(found.skipped)}")
    return found


def read_traces(
    sources: Iterable[str | os.PathLike[str]],
    *,
    provider: str | None = None,
    model: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[NamedTrace], dict[str, str]]:
    """The traces in files, folders, patterns and pipes, and what was left out, with the reason.

    Each file is a trace. Files of one folder that hold a request each are one trace together, in the order of their
    times, or else of their names.
    """
    found = read_sources(sources, progress=progress)
    traces: list[NamedTrace] = []
    for name, records in _joined(found.files):
        # Of files that nobody named, a record that cannot be read is left out, as such a file is.
        skipped = None if name in found.named else found.skipped
        prompts, usages = _read(records, provider=provider, model=model, skipped=skipped)
        if prompts:
            traces.append(NamedTrace(name, prompts, usages))
    if not traces:
        raise UsageError("no recorded request could be read" + _first_of(found.skipped))
    return traces, found.skipped


def _first_of(skipped: Mapping[str, str]) -> str:
    return next((f" ({name}: {why})" for name, why in skipped.items()), "")


def read_trace_file(
    path: str | os.PathLike[str],
    *,
    counter: TokenCounter | None = None,
    provider: str | None = None,
    model: str | None = None,
) -> Trace:
    """Reads a file of requests: one on each line, a JSON array of them, a single one over many lines, or HAR.

    Without a `counter`, the model of the first request decides.

    Raises:
        BadRequestFile: the file or a record in it cannot be read; the message names file and line.
    """
    return _read(list(_records_of(Path(path), {})), counter=counter, provider=provider, model=model)


def _read(
    records: Sequence[SourceRecord],
    *,
    counter: TokenCounter | None = None,
    provider: str | None = None,
    model: str | None = None,
    skipped: dict[str, str] | None = None,
) -> Trace:
    """The requests in records; those that cannot be read go into `skipped`, or are refused where there is none."""
    prompts: list[RequestBlocks] = []
    usages: list[Usage | None] = []
    made: KnownBlocks = {}
    for place, _, record in records:
        try:
            counter = counter or counter_for(find_model(model or model_of(record), provider))
            prompts.append(read_request(record, provider=provider, model=model, counter=counter, made=made))
        except (BadRequestFile, RecursionError) as error:
            if skipped is None:
                is_deep = isinstance(error, RecursionError)
                raise (_too_deep(place) if is_deep else BadRequestFile(f"{place}: {error}")) from error
            skipped[place] = str(error)
        else:
            usages.append(read_usage(record))
    return Trace(tuple(prompts), tuple(usages))


# Paths, patterns and line numbers.


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    is_named: bool
    lines: tuple[int, ...] = ()


def _files(name: str) -> list[_File]:
    path = Path(name)
    if path == STDIN or os.path.lexists(name):
        if path.is_dir():
            return [_File(one, is_named=False) for one in _files_below(path)]
        return [_File(path, is_named=True)]
    match = _LINES.fullmatch(name)
    if match and Path(match["path"]).is_file():
        return [_File(Path(match["path"]), is_named=True, lines=tuple(map(int, match["lines"][1:].split(":"))))]
    if glob.has_magic(name):
        matches = [Path(one) for one in glob.glob(name, recursive=True)]  # noqa: PTH207 - of any folder, not of one
        files = [file for one in matches for file in (_files_below(one) if one.is_dir() else [one])]
        return [_File(one, is_named=False) for one in sorted(files, key=_natural)]
    return [_File(path, is_named=True)]  # reading it says what is wrong


def _files_below(folder: Path) -> list[Path]:
    found: list[Path] = []
    for at, folders, names in os.walk(folder):
        folders.sort()
        found += [Path(at, name) for name in names if name.lower().endswith(SUFFIXES)]
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A key that puts 10.json behind 9.json."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _size(path: Path) -> int:
    try:
        return 0 if path == STDIN else path.stat().st_size
    except OSError:  # reading it says so
        return 0


def _chosen(records: Sequence[SourceRecord], file: _File) -> list[SourceRecord]:
    by_number = {record.number: record for record in records}
    missing = [number for number in file.lines if number not in by_number]
    if missing:
        last = max(by_number, default=0)
        raise BadRequestFile(f"{file.path} has no request in line {missing[0]}; the last one is in line {last}")
    return [by_number[number] for number in file.lines]


def _joined(files: Sequence[tuple[str, list[SourceRecord]]]) -> Iterator[tuple[str, list[SourceRecord]]]:
    """The files as traces: neighbours of one folder with a request each are one."""

    def key(file: tuple[str, list[SourceRecord]]) -> str:
        return os.path.dirname(file[0]) if len(file[1]) == 1 else f"\0{file[0]}"  # noqa: PTH120 - "" for the current

    for _, group in groupby(files, key):
        together = list(group)
        records = [record for _, own in together for record in own]
        times = [read_recorded(record.record)[1] for record in records]
        if len(together) > 1 and all(time is not None for time in times):
            order = sorted(range(len(records)), key=lambda n: cast("list[float]", times)[n])
            records = [records[n] for n in order]
        name = together[0][0] if len(together) == 1 else f"{together[0][0]} to {Path(together[-1][0]).name}"
        if records:
            yield name, records


# The records of one file.


def _records_of(path: Path, skipped: dict[str, str]) -> Iterator[SourceRecord]:
    name = "standard input" if path == STDIN else str(path)
    text = _text(path)
    start = text.lstrip()[:1]
    is_document = start == "[" or (start == "{" and (_HAR.match(text) or not _is_by_line(text)))
    values = _document(text, name, skipped) if is_document else _by_line(text.split("\n"), name)
    is_empty = True
    for place, number, value in values:
        is_empty = False
        if not isinstance(value, dict):
            kind = _JSON_KINDS.get(type(value), "a number")
            raise BadRequestFile(f"{place}: this is {kind}, not a JSON object; give one request in each record")
        record = cast("dict[str, Any]", value)
        _refuse_transcripts(record, place, path)
        yield SourceRecord(place, number, record)
    if is_empty:
        raise BadRequestFile(f"{name} is empty; record at least one request, as one JSON object on a line")


def _refuse_transcripts(record: JsonObject, place: str, path: Path) -> None:
    """Say what to use for the sessions that programs write down: they have usage, but not what was sent."""
    program = "Claude Code" if is_claude_code(record) else "Codex" if is_codex(record) else ""
    if not program and {"resourceSpans", "resource_spans"} & record.keys():
        program = "OpenTelemetry"
    if program:
        raise BadRequestFile(
            f"{place}: this is a transcript of {program}, which has the usage of each call but not what was sent; "
            f"run `loom cache audit {path}`"
        )


def _by_line(lines: Iterable[str], name: str) -> Iterator[tuple[str, int, object]]:
    for number, line in enumerate(lines, 1):  # splitlines would cut a text at its own line separators
        if line.strip():
            yield f"{name}, line {number}", number, _parsed(line, f"{name}, line {number}")


def _parsed(line: str, place: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(line.rstrip()) or error.msg.startswith("Unterminated")
        advice = (
            "the line was cut off, so remove it or record it again" if cut else "write one JSON object on each line"
        )
        raise BadRequestFile(f"{place}, column {error.colno}: this is not JSON ({error.msg}); {advice}") from error
    except RecursionError as error:
        raise _too_deep(place) from error


def _opened(value: object, name: str, skipped: dict[str, str]) -> Iterator[tuple[str, int, object]]:
    """The requests in a document: one, or those of a HAR file."""
    entries = maybe_table(maybe_table(value).get("log")).get("entries")
    if isinstance(entries, list):
        yield from _archive(cast("list[object]", entries), name, skipped)
    else:
        yield name, 1, value


def _document(text: str, name: str, skipped: dict[str, str]) -> Iterator[tuple[str, int, object]]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRequestFile(
            f"{name}, line {error.lineno}, column {error.colno}: this is not JSON ({error.msg}); give a JSON array of "
            f"requests, or one request on each line"
        ) from error
    except RecursionError as error:
        raise _too_deep(name) from error
    if not isinstance(value, list):
        yield from _opened(value, name, skipped)
        return
    for number, record in enumerate(cast("list[object]", value), 1):
        yield f"{name}, item {number}", number, record


def _is_by_line(text: str) -> bool:
    """Whether any line is a record by itself: then a first line that is none is a broken one."""
    lines = [line for line in text.split("\n") if line.strip()]
    return len(lines) == 1 or any(line.startswith("{") and _is_object(line) for line in lines)


def _is_object(line: str) -> bool:
    try:
        return bool(json.loads(line))
    except (json.JSONDecodeError, RecursionError):
        return False


def _text(path: Path) -> str:
    if path == STDIN:
        data = b"".join(pieces_of(path))
    else:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadRequestFile(f"{path} cannot be read: {error.strerror}; check the path") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequestFile(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from error


def _too_deep(place: str) -> BadRequestFile:
    return BadRequestFile(f"{place}: the JSON is nested too deeply to be read; remove this record")


# HAR: what a browser or a proxy recorded of HTTP.


def _archive(entries: Sequence[object], name: str, skipped: dict[str, str]) -> Iterator[tuple[str, int, object]]:
    """The requests to models among all that were recorded; the others are counted."""
    found = others = 0
    for number, entry in enumerate(entries, 1):
        request = maybe_table(maybe_table(entry).get("request"))
        body = _json_in(maybe_text(maybe_table(request.get("postData")).get("text")))
        if not is_body(body):
            others += 1
            continue
        found += 1
        yield (
            f"{name}, entry {number}",
            number,
            {
                "at": maybe_table(entry).get("startedDateTime"),
                "url": maybe_text(request.get("url")),
                "request": dict(body),
                "response": _answer(maybe_table(maybe_table(maybe_table(entry).get("response")).get("content"))),
            },
        )
    if others:
        skipped[f"{name}, {others:,} entries"] = "they are not requests to a model"
    if not found:
        raise BadRequestFile(
            f"{name} holds no request to a model among {len(entries):,} entries; save the HAR with its contents"
        )


def _json_in(text: str) -> JsonObject:
    try:
        return maybe_table(json.loads(text)) if text else {}
    except (ValueError, RecursionError):
        return {}


def _answer(content: JsonObject) -> Mapping[str, Any]:
    """The answer as JSON; of a stream of events, the usage that they report."""
    text = maybe_text(content.get("text"))
    if content.get("encoding") == "base64":
        try:
            text = base64.b64decode(text).decode(errors="replace")
        except (ValueError, binascii.Error):
            return {}
    if not re.search(r"^data:", text, re.MULTILINE):
        return _json_in(text)
    usage: dict[str, Any] = {}
    for line in re.findall(r"^data:\s*(\{.*)$", text, re.MULTILINE):
        event = _json_in(line)
        for holder in (event, maybe_table(event.get("message")), maybe_table(event.get("response"))):
            known = maybe_table(holder.get("usage")) or maybe_table(holder.get("usageMetadata"))
            usage |= {key: value for key, value in known.items() if value is not None}
    return {"usage": usage} if usage else {}
