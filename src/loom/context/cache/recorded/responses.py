"""OpenAI Responses: instructions, then items that are messages, calls, outputs and reasoning."""

from __future__ import annotations

from typing import Final

from loom.context.cache.prompt import Level
from loom.context.cache.recorded import openai_parts
from loom.context.cache.recorded.blocks import BlockCollector, BlockPlace
from loom.context.cache.recorded.fields import JsonObject, maybe_text, refuse, tables, text_of
from loom.core.message import NativePart
from loom.errors import BadRequestFile

_ELSEWHERE: Final = ("previous_response_id", "conversation")


def read(body: JsonObject, out: BlockCollector) -> None:
    """The blocks of a request: tools, instructions, then the input."""
    out.marker_ttl = openai_parts.marker_ttl(body)
    _check_whole(body)
    out.add_tools(body.get("tools"), "tools")
    level: Level = "system"
    given = body.get("instructions")
    if isinstance(given, str):
        out.add_text(BlockPlace("system", "system", "instructions"), given)
    elif given:
        level = _items(given, "instructions", level, out)
    if isinstance(body.get("input"), str):
        out.add_text(BlockPlace("messages", "user", "input"), body["input"])
    else:
        _items(body.get("input"), "input", level, out)


def _check_whole(body: JsonObject) -> None:
    for name in _ELSEWHERE:
        if body.get(name):
            raise BadRequestFile(
                f"{name} is {body[name]!r}: the prompt goes on from a state that only the provider has, so the "
                f"record shows just its end; record requests that send their whole input"
            )


def _items(value: object, name: str, level: Level, out: BlockCollector) -> Level:
    for path, entry in tables(value, name):
        role = entry.get("role")
        opening = isinstance(role, str) and role in openai_parts.OPENING
        level = "system" if level == "system" and opening else "messages"
        if (entry.get("type") or "message") == "message":
            place = BlockPlace(level, text_of(role, f"{path}.role"), f"{path}.content")
            openai_parts.content(entry.get("content"), place, out)
        else:
            _item(entry, maybe_text(role), level, path, out)
    return level


def _item(item: JsonObject, role: str, level: Level, path: str, out: BlockCollector) -> None:
    type = text_of(item.get("type"), f"{path}.type")
    if type.endswith("_output"):
        if "output" not in item:
            refuse(path, item, 'a tool output with an "output"')
        openai_parts.tool_result(item, "output", BlockPlace(level, "tool", path), out)
        return
    body, marker = out.split(item, path)
    place = BlockPlace(level, role or "assistant", path)
    if type.endswith("_call"):
        given = body.get("arguments", body.get("input", body.get("action")))
        name = body.get("name") or type
        out.add(place, "tool_use", body, lambda _: out.call(body.get("call_id"), name, given), marker)
    elif type in {"reasoning", "compaction"}:
        kind = "thinking" if type == "reasoning" else type
        out.add(place, kind, body, lambda _: out.part(NativePart("openai", body)), marker)
    else:
        out.add(place, "other", body, lambda _: out.rest(body), marker)
