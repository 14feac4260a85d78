"""OpenAI Chat Completions, which most other providers and gateways speak too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from loom.context.cache.prompt import Level
from loom.context.cache.recorded import openai_parts
from loom.context.cache.recorded.blocks import BlockCollector, BlockPlace
from loom.context.cache.recorded.fields import JsonObject, maybe_table, maybe_text, table, tables, text_of

_REASONING: Final = ("reasoning_content", "reasoning", "reasoning_details")


def read(body: JsonObject, out: BlockCollector) -> None:
    """The blocks of a request: tools, the opening system messages, then the rest."""
    out.marker_ttl = openai_parts.marker_ttl(body)
    for name in ("tools", "functions"):
        out.add_tools(body.get(name), name)
    level: Level = "system"
    for path, message in tables(body.get("messages"), "messages"):
        role = text_of(message.get("role"), f"{path}.role")
        level = "system" if level == "system" and role in openai_parts.OPENING else "messages"
        _message(message, BlockPlace(level, role, path), out)


def _message(message: JsonObject, place: BlockPlace, out: BlockCollector) -> None:
    if place.role in {"tool", "function"}:
        openai_parts.tool_result(message, "content", place, out)
        return
    before = len(out.found)
    for name in _REASONING:
        if message.get(name):
            thought = {name: message[name]}
            out.add(place.under(f".{name}"), "thinking", thought, lambda _, thought=thought: out.rest(thought))
    openai_parts.content(message.get("content"), place.under(".content"), out, message.get("name"))
    if message.get("refusal"):
        out.add_text(place.under(".refusal"), maybe_text(message["refusal"]))
    for path, call in tables(message.get("tool_calls"), f"{place.path}.tool_calls"):
        _call(call, replace(place, path=path), out)
    if message.get("function_call"):
        _call(table(message["function_call"], f"{place.path}.function_call"), place.under(".function_call"), out)
    if message.get("audio"):
        out.add(place.under(".audio"), "other", message["audio"], lambda _: out.rest(message["audio"]))
    if len(out.found) > before:
        out.mark_last(out.split(message, place.path)[1])


def _call(call: JsonObject, place: BlockPlace, out: BlockCollector) -> None:
    body, marker = out.split(call, place.path)
    named = maybe_table(body.get("function", body.get("custom", body)))
    given = named.get("arguments", named.get("input"))
    out.add(place, "tool_use", body, lambda _: out.call(body.get("id"), named.get("name"), given), marker)
