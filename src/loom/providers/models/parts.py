"""Making the parts of an answer from what came over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import isfinite

from loom.core.checks import join_surrogates
from loom.core.message import JSON, NativePart, Part, TextPart, ThinkingPart, ToolCallPart
from loom.protocols.model import Chunk, ModelResponse, Stop, TextChunk, ToolCallChunk


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
