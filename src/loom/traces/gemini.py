"""Gemini, as REST writes it (camelCase, top level) and as its SDK does (snake_case, under `config`)."""

from __future__ import annotations

import re
from typing import Any, Final

from loom.catalog import CacheRules
from loom.core.message import ThinkingPart
from loom.core.window import Level
from loom.traces._blocks import (
    BlockCollector,
    BlockPlace,
    JsonObject,
    ShownPart,
    WireFormat,
    as_list,
    document,
    image,
    maybe_table,
    maybe_text,
    refuse,
    table,
    tables,
)

_HUMP = re.compile(r"(?<=[a-z])([A-Z])")


def head(body: JsonObject, out: BlockCollector) -> Level:
    """The blocks of the tools and of the system instruction."""
    path, config = ("config.", table(body["config"], "config")) if body.get("config") else ("", body)
    for at, tool in tables(config.get("tools"), f"{path}tools"):
        _tools(tool, at, out)
    key, system = _field(config, "system_instruction")
    if system is not None:
        _content(system, BlockPlace("system", "system", path + key), out)
    return "messages"


def read(contents: object, first: int, level: Level, out: BlockCollector) -> Level:
    """The blocks of contents."""
    _content(contents, BlockPlace(level, "user", "contents"), out, first)
    return level


def settings(body: JsonObject, _out: BlockCollector) -> dict[Level, dict[str, Any]]:
    """An explicit cache stands before everything; of no other parameter is it known to matter."""
    config = maybe_table(body.get("config")) or body
    return {"tools": {"cached_content": _field(config, "cached_content")[1]}}


def automatic(_body: JsonObject, _out: BlockCollector, _rules: CacheRules) -> str | None:
    """Gemini takes no breakpoints."""
    return None


def _field(table: JsonObject, name: str) -> tuple[str, Any]:
    """A field by its snake_case name, in either spelling: the name as it was sent, and the value."""
    found = ((key, value) for key, value in table.items() if _HUMP.sub(r"_\1", key).lower() == name)
    return next(found, (name, None))


def _tools(tool: JsonObject, path: str, out: BlockCollector) -> None:
    key, declared = _field(tool, "function_declarations")
    out.add_tools(declared, f"{path}.{key}")
    others = {name: value for name, value in tool.items() if name != key and value is not None}
    if others:
        out.add_tool(others, path)


def _content(value: object, place: BlockPlace, out: BlockCollector, first: int = 0) -> None:
    """A content: a string, one part, a list of parts, or an object with a role and parts."""
    if isinstance(value, str):
        out.add_text(place, value)
        return
    items = as_list(value)
    if items is not None:
        for i, item in enumerate(items, first):
            _content(item, place.under(f"[{i}]"), out)
        return
    given = table(value, place.path)
    if "parts" not in given:
        _part(given, place, out)
        return
    named = maybe_text(given.get("role")) or place.role
    role = "assistant" if named == "model" else named
    inside = BlockPlace(place.level, role if place.level == "messages" else "system", f"{place.path}.parts")
    _content(given["parts"], inside, out)


def _part(part: JsonObject, place: BlockPlace, out: BlockCollector) -> None:
    if isinstance(part.get("text"), str):
        if part.get("thought") is True:
            out.add(place, "thinking", part, lambda _: out.shown(ThinkingPart(part["text"], provider="gemini")))
        else:
            out.add_text(place, part["text"], part)
        return
    for name, kind in (("function_call", "tool_use"), ("function_response", "tool_result")):
        found = maybe_table(_field(part, name)[1])
        if found:
            out.add(place, kind, part, lambda _, kind=kind, found=found: _call_tokens(kind, found, out))
            return
    blob = maybe_table(_field(part, "inline_data")[1] or _field(part, "file_data")[1])
    if blob:
        media = maybe_text(_field(blob, "mime_type")[1])
        kind = _media_kind(media)
        out.add(place, kind, part, lambda _: out.rest(part) if kind == "other" else out.shown(_shown(blob, media)))
        return
    if not part:
        refuse(place.path, part, 'a part such as {"text": ...}')
    out.add(place, "other", part, lambda _: out.rest(part))


def _call_tokens(kind: str, call: JsonObject, out: BlockCollector) -> int:
    return out.call(call.get("id"), call.get("name"), call.get("args" if kind == "tool_use" else "response"))


def _media_kind(media: str) -> str:
    if media.startswith("image/"):
        return "image"
    return "document" if media == "application/pdf" or media.startswith("text/") else "other"


def _shown(blob: JsonObject, media: str) -> ShownPart:
    return (image if media.startswith("image/") else document)(blob.get("data"), media)


FORMAT: Final = WireFormat("contents", head, read, settings, automatic, "gemini")
