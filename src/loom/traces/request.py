"""One recorded request: its envelope in a log, its format, and its blocks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

from loom.catalog import CacheRules, find_model
from loom.core.cache_blocks import Level, RequestBlocks
from loom.errors import BadRequestFile
from loom.protocols.token_counter import TokenCounter
from loom.traces import anthropic, gemini, openai
from loom.traces._blocks import (
    BlockCollector,
    JsonObject,
    KnownBlocks,
    as_list,
    canonical,
    maybe_table,
    maybe_text,
    refuse,
    rows,
    table,
)

# The log around a request: where its body is, which model its address names, and when it was sent.

_INSIDE: Final = ("request", "body", "json", "params", "content", "input")
"""Where a log keeps a request, in the order in which they are looked into."""
_TIMES: Final = ("at", "timestamp", "time")
_URLS: Final = ("url", "path", "endpoint")
_MODEL_IN_URL: Final = re.compile(r"/(?:models|model|deployments)/([^/:?]+)")
_DEPTH: Final = 4
_MILLISECONDS: Final = 1e11
"""A larger number of seconds lies thousands of years ahead, so it counts milliseconds."""
_MICROSECONDS: Final = 1e14


def read_recorded(obj: Mapping[str, object]) -> tuple[JsonObject, float | None]:
    """The request body in a log record, and when it was sent; a bare body is its own record.

    Understands `{"request": ...}`, `{"body": ...}`, `{"url": ..., "body" | "json" | "content": ...}`, the lines of
    batch files, and any of these inside another. A body may be JSON text.
    """
    record = table(obj, "the record")
    at: float | None = None
    model = ""
    for _ in range(_DEPTH):
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
    scale = 1e6 if seconds > _MICROSECONDS else 1e3 if seconds > _MILLISECONDS else 1.0
    return seconds / scale


def _number(text: str) -> float | None:
    """Seconds, from a number or a moment written as text; None where it is neither."""
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


LevelSettings: TypeAlias = dict[Level, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The reader of one wire format."""

    read: Callable[[JsonObject, BlockCollector], None]
    settings: Callable[[JsonObject], LevelSettings]
    automatic: Callable[[JsonObject, BlockCollector, CacheRules], str | None]
    provider: str | None = None
    """Whose format it is, where others do not speak it."""


_ANTHROPIC: Final = WireFormat(anthropic.read, anthropic.settings, anthropic.automatic, "anthropic")
_CHAT: Final = WireFormat(openai.read_chat, openai.settings, openai.automatic)
_RESPONSES: Final = WireFormat(openai.read_responses, openai.settings, openai.automatic)
_GEMINI: Final = WireFormat(gemini.read, gemini.settings, gemini.automatic, "gemini")

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
    if not name:
        raise BadRequestFile('the request names no model; add "model" to the record, or say which model it was sent to')
    owner = provider or _owner(request, form, find_model(name).provider)
    blocks = BlockCollector(counter, made)
    form.read(request, blocks)
    if not blocks.found:
        raise BadRequestFile("the request has no content at all; record the request body as it was sent")
    return RequestBlocks(
        provider=owner,
        model=name,
        blocks=tuple(blocks.found),
        automatic=form.automatic(request, blocks, find_model(name, owner).cache),
        settings=_settings(form.settings(request)),
        at=sent if at is None else at,
    )


def _settings(found: LevelSettings) -> dict[Level, str]:
    texts: dict[Level, str] = {}
    for level, values in found.items():
        given = {name: value for name, value in values.items() if value is not None}
        if given:
            texts[level] = canonical(given)
    return texts


def _owner(body: JsonObject, form: WireFormat, by_model: str) -> str:
    if maybe_text(body.get("anthropic_version")).startswith("bedrock"):
        return "bedrock"
    return form.provider if form.provider and by_model == "generic" else by_model


def _format(body: JsonObject, provider: str | None, model: str) -> WireFormat:
    if "contents" in body:
        return _GEMINI
    if "messages" in body:
        return _ANTHROPIC if _is_anthropic(body, provider, model) else _CHAT
    if body.get("object") != "response" and ("input" in body or "instructions" in body):
        return _RESPONSES
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
    types = {maybe_table(part).get("type") for m in messages for part in as_list(m.get("content")) or ()}
    if {"system", "anthropic_version"} & body.keys() or any("input_schema" in tool for tool in tools):
        return True
    if _CHAT_FIELDS & body.keys() or any("function" in tool for tool in tools):
        return False
    if any(m.get("role") in _CHAT_ROLES or m.get("tool_calls") for m in messages):
        return False
    if types & _ANTHROPIC_BLOCKS:
        return True
    return (provider or find_model(model).provider) in {"anthropic", "bedrock"}
