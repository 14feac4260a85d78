"""Recorded requests in order, from a file or lines, with the usage that each reported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

from loom.catalog import find_model
from loom.core.cache_blocks import RequestBlocks
from loom.core.message import Usage
from loom.errors import BadRequestFile
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import counter_for
from loom.traces._blocks import JsonObject, KnownBlocks, maybe_table
from loom.traces.request import model_of, read_request

# Usage as each provider reports it, brought to one meaning.

_USAGES: Final = ("usage", "usageMetadata", "usage_metadata")
_INSIDE: Final = ("response", "result", "message", "body", "output")
_DEPTH: Final = 4


def read_usage(obj: object) -> Usage | None:
    """The usage in a log record, a response or a usage object; None where there is none.

    `input` is the whole prompt, whatever the provider calls its parts.
    """
    return _find(obj, _DEPTH)


def _find(value: object, depth: int) -> Usage | None:
    record = _opened(value)
    if not record or not depth:
        return None
    for name in _USAGES:
        if name in record:
            return _normalised(maybe_table(record[name]))
    own = _normalised(record)
    inside = (_find(record[name], depth - 1) for name in _INSIDE if name in record)
    return own or next((found for found in inside if found), None)


def _opened(value: object) -> JsonObject:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return {}
    return maybe_table(value)


def _normalised(usage: JsonObject) -> Usage | None:
    for form in (_loom, _gemini, _deepseek, _openai, _anthropic):
        found = form(usage)
        if found is not None:
            return found
    return None


def _loom(usage: JsonObject) -> Usage | None:
    if not {"input", "cache_read"} <= usage.keys():
        return None
    return _usage(usage, ("input",), ("output",), ("cache_read",), ("cache_write",))


def _gemini(usage: JsonObject) -> Usage | None:
    total = ("prompt_token_count", "promptTokenCount", "total_input_tokens")
    if not usage.keys() & set(total):
        return None
    read = ("cached_content_token_count", "cachedContentTokenCount", "total_cached_tokens")
    output = ("candidates_token_count", "candidatesTokenCount", "total_output_tokens")
    thought = ("thoughts_token_count", "thoughtsTokenCount", "total_thought_tokens")
    return _usage(usage, total, output, read, ()) + Usage(output=_number(usage, thought))


def _deepseek(usage: JsonObject) -> Usage | None:
    if "prompt_cache_hit_tokens" not in usage:
        return None
    read, missed = _number(usage, ("prompt_cache_hit_tokens",)), _number(usage, ("prompt_cache_miss_tokens",))
    return Usage(input=read + missed, output=_number(usage, ("completion_tokens",)), cache_read=read)


def _openai(usage: JsonObject) -> Usage | None:
    details = maybe_table(usage.get("input_tokens_details")) or maybe_table(usage.get("prompt_tokens_details"))
    if "prompt_tokens" not in usage and "input_tokens_details" not in usage:
        return None
    # Gateways report Anthropic's names next to a total.
    flat = {**usage, **{key: value for key, value in details.items() if value is not None}}
    return _usage(
        flat,
        ("prompt_tokens", "input_tokens"),
        ("completion_tokens", "output_tokens"),
        ("cached_tokens", "cache_read_input_tokens", "cached_prompt_text_tokens"),
        ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens"),
    )


def _anthropic(usage: JsonObject) -> Usage | None:
    if "input_tokens" not in usage:
        return None
    read = _number(usage, ("cache_read_input_tokens",))
    split = maybe_table(usage.get("cache_creation"))
    parts = sum(_number(split, (name,)) for name in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"))
    write = _number(usage, ("cache_creation_input_tokens",)) or parts
    return Usage(
        input=_number(usage, ("input_tokens",)) + read + write,
        output=_number(usage, ("output_tokens",)),
        cache_read=read,
        cache_write=write,
    )


_Names: TypeAlias = tuple[str, ...]


def _usage(usage: JsonObject, input: _Names, output: _Names, read: _Names, write: _Names) -> Usage:
    return Usage(
        input=_number(usage, input),
        output=_number(usage, output),
        cache_read=_number(usage, read),
        cache_write=_number(usage, write),
    )


def _number(usage: JsonObject, names: _Names) -> int:
    """The first of these fields that holds a count."""
    values = (usage.get(name) for name in names)
    return next((int(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v >= 0), 0)


_JSON_KINDS: dict[type, str] = {type(None): "null", bool: "true or false", str: "a text", list: "a list"}


class Trace(NamedTuple):
    """Requests in order, and what the provider reported for each, where the record says."""

    prompts: tuple[RequestBlocks, ...]
    usages: tuple[Usage | None, ...]


def read_trace(
    lines: Iterable[str],
    *,
    counter: TokenCounter | None = None,
    provider: str | None = None,
    model: str | None = None,
    name: str = "the trace",
) -> Trace:
    """Reads one request or log record from each line; empty lines are passed over.

    `name` is what messages call the source. Without a `counter`, the model of the first request decides.

    Raises:
        BadRequestFile: a line cannot be read; the message names it.
    """
    records = _records(lines, name)
    return _read(records, counter, provider, model, name)


def read_trace_file(
    path: str | os.PathLike[str],
    *,
    counter: TokenCounter | None = None,
    provider: str | None = None,
    model: str | None = None,
) -> Trace:
    """Reads a file of requests: one on each line, a JSON array of them, or a single one over many lines.

    Raises:
        BadRequestFile: the file or a record in it cannot be read; the message names file and line.
    """
    name = os.fspath(path)
    text = _text(Path(path))
    start = text.lstrip()[:1]
    if start == "[" or (start == "{" and not _is_by_line(text)):
        records = _document(text, name)
    else:
        records = _records(text.split("\n"), name)  # splitlines would cut a text at its own line separators
    return _read(records, counter, provider, model, name)


def read_record_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a file that holds one request, or one log record around it.

    Raises:
        BadRequestFile: the file cannot be read, or holds something else.
    """
    name = os.fspath(path)
    records = list(_document(_text(Path(path)), name))
    if len(records) != 1 or not isinstance(records[0][1], dict):
        raise BadRequestFile(f"{name} holds {len(records)} records; give a file with one request, as one JSON object")
    return cast("dict[str, Any]", records[0][1])


def _read(
    records: Iterable[tuple[str, object]],
    counter: TokenCounter | None,
    provider: str | None,
    model: str | None,
    name: str,
) -> Trace:
    prompts: list[RequestBlocks] = []
    usages: list[Usage | None] = []
    made: KnownBlocks = {}
    for place, record in records:
        if not isinstance(record, dict):
            kind = _JSON_KINDS.get(type(record), "a number")
            raise BadRequestFile(f"{place}: this is {kind}, not a JSON object; give one request in each record")
        given = cast("dict[str, Any]", record)
        try:
            counter = counter or counter_for(find_model(model or model_of(given), provider))
            prompts.append(read_request(given, provider=provider, model=model, counter=counter, made=made))
        except BadRequestFile as error:
            raise BadRequestFile(f"{place}: {error}") from error
        except RecursionError as error:
            raise _too_deep(place) from error
        usages.append(read_usage(given))
    if not prompts:
        raise BadRequestFile(f"{name} is empty; record at least one request, as one JSON object on a line")
    return Trace(tuple(prompts), tuple(usages))


def _records(lines: Iterable[str], name: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{name}, line {number}", _parsed(line, f"{name}, line {number}")


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


def _document(text: str, name: str) -> Iterator[tuple[str, object]]:
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
        yield name, value
        return
    for i, record in enumerate(cast("list[object]", value)):
        yield f"{name}, item {i}", record


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
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadRequestFile(f"{path} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise BadRequestFile(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from error


def _too_deep(place: str) -> BadRequestFile:
    return BadRequestFile(f"{place}: the JSON is nested too deeply to be read; remove this record")
