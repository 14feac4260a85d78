"""Making the parts of an answer from what came over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable

from loom.core.message import JSON, Part, ToolCallPart
from loom.protocols.model import Stop


def tool_input(text: str) -> JSON:
    """The input of a tool call from its JSON text; text that is no JSON stays text, for the tool to refuse."""
    if not text.strip():
        return {}
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> JSON:
    raise ValueError(f"{constant} is no JSON")


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
    whoever runs tools tells the model to make it again.
    """
    if stop == "refusal":
        return tuple(part for part in parts if not isinstance(part, ToolCallPart)), stop
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    if stop == "length" or calls == (stop == "tool"):
        return parts, stop
    return parts, "tool" if calls else "end"
