"""Token usage, with one meaning for every provider: `input` is the whole prompt, cache reads and writes included.

Each function takes the provider's own usage object as a mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loom.core.message import Part, Usage
from loom.protocols.model import ModelRequest
from loom.tokens import EstimateCounter, count_messages, count_tool


def anthropic_usage(reported: Mapping[str, Any]) -> Usage:
    """Anthropic counts what was read, what was written and the rest apart: their sum is the prompt."""
    read, written = _count(reported, "cache_read_input_tokens"), _count(reported, "cache_creation_input_tokens")
    return Usage(
        input=_count(reported, "input_tokens") + read + written,
        output=_count(reported, "output_tokens"),
        cache_read=read,
        cache_write=written,
    )


def responses_usage(reported: Mapping[str, Any]) -> Usage:
    """OpenAI Responses: the input is the whole prompt."""
    details: Mapping[str, Any] = reported.get("input_tokens_details") or {}
    return _inclusive(_count(reported, "input_tokens"), _count(reported, "output_tokens"), details)


def chat_usage(reported: Mapping[str, Any]) -> Usage:
    """OpenAI Chat, and services like it; DeepSeek puts its cache hits beside the sums."""
    details: Mapping[str, Any] = reported.get("prompt_tokens_details") or {
        "cached_tokens": reported.get("prompt_cache_hit_tokens")
    }
    return _inclusive(_count(reported, "prompt_tokens"), _count(reported, "completion_tokens"), details)


def usage_or_estimate(reported: Usage, request: ModelRequest, parts: Iterable[Part]) -> Usage:
    """The reported usage, or an estimate: every prompt has tokens, so a count of 0 means that none was reported."""
    return reported if reported.input else estimated_usage(request, parts)


def estimated_usage(request: ModelRequest, parts: Iterable[Part]) -> Usage:
    """The estimated usage of an answer; nothing is known of its cache."""
    counter = EstimateCounter()
    system = sum(counter.count(text) for text in request.system)
    tools = sum(count_tool(tool, counter) for tool in request.tools)
    return Usage(
        input=system + tools + count_messages(request.messages, counter),
        output=sum(counter.count_part(part) for part in parts),
    )


def _inclusive(input: int, output: int, details: Mapping[str, Any]) -> Usage:
    """A usage whose input already holds the cached part; a provider that counts more than all of it is cut down."""
    read = min(_count(details, "cached_tokens"), input)
    written = min(_count(details, "cache_write_tokens"), input - read)
    return Usage(input=input, output=output, cache_read=read, cache_write=written)


def _count(reported: Mapping[str, Any], name: str) -> int:
    """A count that may be missing or null; anything else that is not a number is an error of the answer."""
    value = reported.get(name)
    return 0 if value is None else max(0, int(value))
