"""Usage as each provider reports it, brought to one meaning."""

from __future__ import annotations

import json
from typing import Final, TypeAlias

from loom.context.cache.recorded.fields import JsonObject, maybe_table
from loom.core.message import Usage

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
