"""One recorded request: its envelope in a log, its format, its blocks, and the usage that was reported."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

from loom.catalog import find_model
from loom.core.message import Usage
from loom.core.window import RequestBlocks
from loom.errors import BadRequestFile
from loom.protocols.token_counter import TokenCounter
from loom.traces import anthropic, gemini, openai
from loom.traces._blocks import (
    JsonObject,
    KnownBlocks,
    WireFormat,
    as_list,
    maybe_table,
    maybe_text,
    refuse,
    rows,
    table,
)

# The log around a request: where its body is, which model its address names, and when it was sent.

_INSIDE: Final = ("request", "body", "json", "params", "content", "input")
"""Where a log keeps a request, in the order in which they are looked into."""
_TIMES: Final = ("at", "timestamp", "time", "startTime")
_URLS: Final = ("url", "path", "endpoint")
_MODEL_IN_URL: Final = re.compile(r"/(?:models|model|deployments)/([^/:?]+)")
_DEPTH: Final = 4
_MILLISECONDS: Final = 1e11
"""A larger number of seconds lies thousands of years ahead, so it counts milliseconds."""
_MICROSECONDS: Final = 1e14
_NANOSECONDS: Final = 1e17


def read_recorded(obj: Mapping[str, object]) -> tuple[JsonObject, float | None]:
    """The request body in a log record, and when it was sent; a bare body is its own record.

    Understands `{"request": ...}`, `{"body": ...}`, `{"url": ..., "body" | "json" | "content": ...}`, the lines of
    batch files, and any of these inside another. A body may be JSON text.
    """
    record = table(obj, "the record")
    at: float | None = None
    model = ""
    for _ in range(_DEPTH):
        record = _with_messages(record)
        at = _time(record) if at is None else at
        model = model or _model(record)
        if is_body(record):
            break
        inner = _inner(record)
        if inner is None:
            break
        record = inner
    body = {key: value for key, value in record.items() if key not in _TIMES}
    if model and not body.get("model"):
        body["model"] = model
    return body, at


def _with_messages(record: JsonObject) -> JsonObject:
    """A record whose messages a log keeps as JSON text, with the messages themselves."""
    messages = record.get("messages")
    if not isinstance(messages, str) or not messages.lstrip().startswith("["):
        return record
    try:
        return {**record, "messages": json.loads(messages)}
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRequestFile(
            f"messages is text, but not whole JSON ({error}); record the body without cutting it"
        ) from error


def model_of(obj: Mapping[str, object]) -> str:
    """The model that a record names; empty if it names none."""
    return maybe_text(read_recorded(obj)[0].get("model")).removeprefix("models/")


def is_body(record: JsonObject) -> bool:
    """Whether this is a request itself, and not a log around one."""
    if "contents" in record or isinstance(record.get("messages"), list):
        return True
    return isinstance(record.get("input"), str | list) or "instructions" in record


def _inner(record: JsonObject) -> JsonObject | None:
    for name in _INSIDE:
        value = record.get(name)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise BadRequestFile(
                    f"{name} is text, but not whole JSON ({error}); record the body without cutting it"
                ) from error
        if isinstance(value, Mapping):
            return cast("JsonObject", value)
    return None


def _model(record: JsonObject) -> str:
    named = maybe_text(record.get("model")) or maybe_text(record.get("modelId"))
    if named:
        return named
    found = next((_MODEL_IN_URL.search(maybe_text(record.get(name))) for name in _URLS if record.get(name)), None)
    return found[1] if found else ""


def _time(record: JsonObject) -> float | None:
    for name in _TIMES:
        value = record.get(name)
        if value is not None and not isinstance(value, Mapping | list):
            return _seconds(value, name)
    return None


def _seconds(value: object, name: str) -> float:
    seconds = _number(value.strip()) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        refuse(name, value, "a time, in seconds or as 2026-11-15T08:30:00Z")
    scales = ((_NANOSECONDS, 1e9), (_MICROSECONDS, 1e6), (_MILLISECONDS, 1e3))
    return seconds / next((scale for least, scale in scales if seconds > least), 1.0)


def _number(text: str) -> float | None:
    """Seconds, from a number or a moment written as text; None where it is neither."""
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


_ANTHROPIC_BLOCKS: Final = (anthropic.KINDS - {"text"}) | {"server_tool_use", "search_result"}
_CHAT_ROLES: Final = frozenset({"system", "developer", "tool", "function"})
_CHAT_FIELDS: Final = frozenset(
    {"functions", "max_completion_tokens", "prompt_cache_key", "prompt_cache_options", "response_format"}
)
_ANSWERS: Final = frozenset({"choices", "candidates", "output", "stop_reason"})
_ACCEPTED: Final = (
    "an Anthropic Messages, OpenAI Chat or OpenAI Responses body, or a Gemini one (with messages, input or contents)"
)


def read_request(
    body: Mapping[str, Any],
    *,
    provider: str | None = None,
    model: str | None = None,
    counter: TokenCounter,
    at: float | None = None,
    made: KnownBlocks | None = None,
) -> RequestBlocks:
    """Reads one request, or a log record around it, as a prompt.

    The format is read from the body. `provider`, `model` and `at` replace what the record says; requests that
    share a `made` share their equal blocks.

    Raises:
        BadRequestFile: this is not a request, or it does not hold its whole prompt.
    """
    request, sent = read_recorded(body)
    name = model or maybe_text(request.get("model")).removeprefix("models/")
    form = _format(request, provider, name)
    owner = provider or _owner(request, form, find_model(name).provider)
    return form.prompt(request, provider=owner, model=name, counter=counter, at=sent if at is None else at, made=made)


def check_request(obj: Mapping[str, object]) -> None:
    """Whether a record holds a request of a known format, without reading its blocks.

    Raises:
        BadRequestFile: it does not.
    """
    body = read_recorded(obj)[0]
    _format(body, None, maybe_text(body.get("model")))


def _owner(body: JsonObject, form: WireFormat, by_model: str) -> str:
    if maybe_text(body.get("anthropic_version")).startswith("bedrock"):
        return "bedrock"
    return form.provider if form.provider and by_model == "generic" else by_model


def _format(body: JsonObject, provider: str | None, model: str) -> WireFormat:
    if "contents" in body:
        return gemini.FORMAT
    if "messages" in body:
        return anthropic.FORMAT if _is_anthropic(body, provider, model) else openai.CHAT
    if body.get("object") != "response" and ("input" in body or "instructions" in body):
        return openai.RESPONSES
    if _ANSWERS & body.keys():
        raise BadRequestFile(
            "this is a model's answer, not a request; record the request body, and the answer next to it as "
            '{"request": ..., "response": ...}'
        )
    keys = ", ".join(list(body)[:8]) or "nothing at all"
    raise BadRequestFile(f"no request was found in a record with {keys}; give {_ACCEPTED}")


def _is_anthropic(body: JsonObject, provider: str | None, model: str) -> bool:
    """Whether a body with messages is Anthropic's. Where it could be either, its owner decides."""
    tools = [maybe_table(tool) for tool in rows(body.get("tools"), "tools")]
    messages = [
        maybe_table(m) or refuse(f"messages[{i}]", m, "a message with a role and content")
        for i, m in enumerate(rows(body["messages"], "messages"))
    ]
    types = {maybe_text(maybe_table(part).get("type")) for m in messages for part in as_list(m.get("content")) or ()}
    if {"system", "anthropic_version"} & body.keys() or any("input_schema" in tool for tool in tools):
        return True
    if _CHAT_FIELDS & body.keys() or any("function" in tool for tool in tools):
        return False
    if any(maybe_text(m.get("role")) in _CHAT_ROLES or m.get("tool_calls") for m in messages):
        return False
    if types & _ANTHROPIC_BLOCKS:
        return True
    return (provider or find_model(model).provider) in {"anthropic", "bedrock"}


# Usage as each provider reports it, brought to one meaning.

_USAGES: Final = ("usage", "usageMetadata", "usage_metadata")
_USAGE_INSIDE: Final = ("response", "result", "message", "body", "output")


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
    inside = (_find(record[name], depth - 1) for name in _USAGE_INSIDE if name in record)
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
    return _usage(usage, total, output, read, ()) + Usage(output=_count_in(usage, thought))


def _deepseek(usage: JsonObject) -> Usage | None:
    if "prompt_cache_hit_tokens" not in usage:
        return None
    read, missed = _count_in(usage, ("prompt_cache_hit_tokens",)), _count_in(usage, ("prompt_cache_miss_tokens",))
    return Usage(input=read + missed, output=_count_in(usage, ("completion_tokens",)), cache_read=read)


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
    read = _count_in(usage, ("cache_read_input_tokens",))
    split = maybe_table(usage.get("cache_creation"))
    parts = sum(_count_in(split, (name,)) for name in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"))
    write = _count_in(usage, ("cache_creation_input_tokens",)) or parts
    return Usage(
        input=_count_in(usage, ("input_tokens",)) + read + write,
        output=_count_in(usage, ("output_tokens",)),
        cache_read=read,
        cache_write=write,
    )


_Names: TypeAlias = tuple[str, ...]


def _usage(usage: JsonObject, input: _Names, output: _Names, read: _Names, write: _Names) -> Usage:
    return Usage(
        input=_count_in(usage, input),
        output=_count_in(usage, output),
        cache_read=_count_in(usage, read),
        cache_write=_count_in(usage, write),
    )


def _count_in(usage: JsonObject, names: _Names) -> int:
    """The first of these fields that holds a count."""
    values = (usage.get(name) for name in names)
    counts = (v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < math.inf)
    return next(map(int, counts), 0)
