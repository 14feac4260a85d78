"""Parts and usage of an answer, as every provider's wire gives them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from loom.core.checks import join_surrogates
from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, ModelSettings, Stop, TextChunk, ToolCallChunk
from loom.text.tokens import EstimateCounter, count_messages, count_tool


def tool_input(text: str) -> JSON:
    """The input of a tool call from its JSON text; text that is not JSON stays text, for the tool to refuse."""
    if not text.strip():
        return {}
    try:
        return json.loads(text, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is not a number that could be sent back")
    return number


def plain_settings(settings: ModelSettings, *, max_output: str | None, stop: str | None) -> dict[str, JSON]:
    """The settings that a request gives and all providers have, under a provider's own names; None has no field."""
    given = {max_output: settings.max_output, "temperature": settings.temperature, stop: list(settings.stop) or None}
    return {name: value for name, value in given.items() if name and value is not None}


class Repairer:
    """Makes the chunks of a stream whole where it cut a character in two, as servers do that count in UTF-16.

    The first half waits for the second. A half that stays alone is replaced: it could not be stored, nor sent back.
    """

    def __init__(self) -> None:
        self._held: dict[type[Chunk], str] = {}

    def chunks(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The chunks with whole characters."""
        for chunk in chunks:
            if isinstance(chunk, ModelResponse):
                if self._held.get(TextChunk):
                    yield TextChunk(join_surrogates(self._held[TextChunk]))
                yield replace(chunk, parts=tuple(_repaired(part) for part in chunk.parts))
            elif isinstance(chunk, ToolCallChunk):
                yield replace(chunk, json=join_surrogates(chunk.json))
            else:
                text = self._held.pop(type(chunk), "") + chunk.text
                if "\ud800" <= text[-1:] <= "\udbff":
                    text, self._held[type(chunk)] = text[:-1], text[-1]
                if text:
                    yield replace(chunk, text=join_surrogates(text))


def _repaired(part: Part) -> Part:
    match part:
        case TextPart(text) | ThinkingPart(text):
            return replace(part, text=join_surrogates(text))
        case ToolCallPart(_, _, input):
            return replace(part, input=_repaired_json(input))
        case NativePart(_, body):
            return replace(part, body=_repaired_json(body))
        case _:
            return part


def _repaired_json(value: JSON) -> JSON:
    return json.loads(join_surrogates(json.dumps(value, ensure_ascii=False)))


def unique_calls(parts: Iterable[Part], answer_id: str | None) -> tuple[Part, ...]:
    """The parts, with an id of its own for every tool call: some servers send none, or the same one twice."""
    taken: set[str] = set()
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCallPart) and (not part.id or part.id in taken):
            place = len(taken)
            id = f"{part.id or 'call'}_{answer_id or 'answer'}_{place}"
            kept.append(ToolCallPart(id, part.name, part.input))
            taken.add(id)
        else:
            taken |= {part.id} if isinstance(part, ToolCallPart) else set()
            kept.append(part)
    return tuple(kept)


def ended(parts: tuple[Part, ...], stop: Stop) -> tuple[tuple[Part, ...], Stop]:
    """The parts and why they ended, made to agree about tool calls.

    What a model asked for before it refused is not asked for. A call that was cut off stays, under `length`:
    the session tells the model to make it again.
    """
    if stop == "refusal":
        return tuple(part for part in parts if not isinstance(part, ToolCallPart)), stop
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    if stop == "length" or calls == (stop == "tool"):
        return parts, stop
    return parts, "tool" if calls else "end"


# Token usage, with one meaning for every provider: `input` is the whole prompt, cache reads and writes included.
#
# Each function takes the provider's own usage object as a mapping.


def anthropic_usage(reported: Mapping[str, Any]) -> Usage:
    """Anthropic counts what was read, what was written and the rest apart: their sum is the prompt."""
    read, written = _count(reported, "cache_read_input_tokens"), _count(reported, "cache_creation_input_tokens")
    return Usage(
        input=_count(reported, "input_tokens") + read + written,
        output=_count(reported, "output_tokens"),
        cache_read=read,
        cache_write=written,
    )


def anthropic_cache(reported: Mapping[str, Any]) -> dict[str, int]:
    """What Anthropic said of its cache; a copy of its wire may leave any of it out."""
    split: Mapping[str, Any] = reported.get("cache_creation") or {}
    return _named(
        read=reported.get("cache_read_input_tokens"),
        write=reported.get("cache_creation_input_tokens"),
        **{"5m": split.get("ephemeral_5m_input_tokens"), "1h": split.get("ephemeral_1h_input_tokens")},
    )


def openai_cache(reported: Mapping[str, Any]) -> dict[str, int]:
    """What an OpenAI form, Responses or Chat, said of the cache."""
    details: Mapping[str, Any] = reported.get("input_tokens_details") or reported.get("prompt_tokens_details") or {}
    read = details.get("cached_tokens", reported.get("prompt_cache_hit_tokens"))
    return _named(read=read, write=details.get("cache_write_tokens"))


def _named(**counts: Any) -> dict[str, int]:
    return {name: max(0, int(count)) for name, count in counts.items() if count is not None}


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
    if reported.input:
        return reported
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
