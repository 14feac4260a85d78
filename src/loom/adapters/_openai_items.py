"""Items of the OpenAI Agents SDK in a log: which are shown, and how a compactor reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from loom.core.log import Recorded, Shown
from loom.core.message import Message, NativePart, Part, TextPart, ToolCallPart, ToolResultPart, plain

ITEM: Final = "openai_agents.item"
POP: Final = "openai_agents.pop"
"""Its body is the id of the item that was taken back."""
COMPACTION: Final = "openai_agents.compaction"
"""Its body is a list of changes: the ids of a run of items, and the items that are shown instead."""

Items: TypeAlias = dict[str, Any]
"""Items in order, by the ids of their entries."""


def originals(log: Sequence[Recorded]) -> Items:
    """The items that were added and not taken back."""
    popped = {entry.body for entry in log if entry.kind == POP}
    return {entry.id: entry.body for entry in log if entry.kind == ITEM and entry.id not in popped}


def shown_items(log: Sequence[Recorded]) -> Items:
    """The items as the compactions show them; one that covers an item that was taken back does not count any more."""
    items = originals(log)
    for entry in log:
        made: Any = entry.body
        if entry.kind == COMPACTION and fits([*items], made):
            first = {change["covers"][0]: (n, change["items"]) for n, change in enumerate(made)}
            gone = {id for change in made for id in change["covers"]}
            after: Items = {}
            for id, item in items.items():
                number, new = first.get(id, (0, [] if id in gone else [item]))
                after |= {id: item} if id not in gone else {f"{entry.id}.{number}.{m}": x for m, x in enumerate(new)}
            items = after
    return items


def fits(ids: Sequence[str], made: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each change covers a run of these."""
    places = {id: n for n, id in enumerate(ids)}
    starts = [(places.get(change["covers"][0], len(ids)), change["covers"]) for change in made]
    return all([*ids[start : start + len(covers)]] == covers for start, covers in starts)


def as_messages(items: Items) -> tuple[list[Shown], dict[str, list[str]]]:
    """Items as messages that a compactor reads; reasoning goes with the item that it led to."""
    shown, groups, waiting = list[Shown](), dict[str, list[str]](), dict[str, Any]()
    last = next(reversed(items), None)
    for id, item in items.items():
        waiting[id] = item
        if item.get("type") != "reasoning" or id == last:
            thoughts = [NativePart("openai", value) for value in [*waiting.values()][:-1]]
            role, parts = _message(item)
            shown.append(Shown(id, Message("assistant" if thoughts else role, (*thoughts, *parts))))
            groups[id], waiting = [*waiting], {}
    return shown, groups


def _message(item: Mapping[str, Any]) -> tuple[Any, tuple[Part, ...]]:
    kind, role = item.get("type", "message"), item.get("role", "assistant")
    if kind == "function_call":
        return "assistant", (ToolCallPart(str(item["call_id"]), str(item["name"]), item.get("arguments")),)
    if kind == "function_call_output":
        return "user", (ToolResultPart(str(item["call_id"]), (TextPart(_text(item.get("output")) or " "),)),)
    if kind == "message":
        role = "system" if role in {"system", "developer"} else role
        return role, (TextPart(_text(item.get("content")) or " "),)
    return "assistant", (NativePart("openai", dict(item)),)


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    parts = cast("list[dict[str, Any]]", content if isinstance(content, list) else [content])
    return "\n".join(str(part.get("text") or json.dumps(part)) for part in parts)


def as_items(message: Message | None) -> list[Any]:
    """The items that are given for a message that a compactor wrote."""
    made: list[Any] = []
    for part in message.parts if message else ():
        match part:
            case ToolCallPart():
                arguments = part.input if isinstance(part.input, str) else json.dumps(part.input)
                made.append({"type": "function_call", "call_id": part.id, "name": part.name, "arguments": arguments})
            case ToolResultPart():
                text = "\n".join(map(plain, part.content))
                made.append({"type": "function_call_output", "call_id": part.call_id, "output": text})
            case NativePart():
                made.append(part.body)
            case _:
                made.append({"role": message.role if message else "user", "content": plain(part)})
    return made
