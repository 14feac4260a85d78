"""Anthropic Messages: tools, system, then content blocks, with `cache_control` on any of them."""

from __future__ import annotations

from typing import Any, Final

from loom.catalog import CacheRules
from loom.core.message import NativePart, TextPart, ThinkingPart
from loom.core.window import Level
from loom.errors import BadRequestFile
from loom.traces._blocks import (
    UNSEEN_DOCUMENT,
    UNSEEN_IMAGE,
    BlockCollector,
    BlockPlace,
    JsonObject,
    ShownPart,
    WireFormat,
    canonical,
    document,
    image,
    maybe_table,
    maybe_text,
    refuse,
    tables,
    text_body,
    text_of,
    without_payloads,
)

KINDS: Final = frozenset(
    {"text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking", "compaction"}
)


def head(body: JsonObject, out: BlockCollector) -> Level:
    """The blocks before the messages, in the order in which Anthropic hashes them."""
    thread = maybe_table(body.get("thread"))
    if thread.get("type") == "continue":
        raise BadRequestFile(
            f"thread continues {thread.get('previous_message_id')!r}: the prompt goes on from a state that only the "
            f"provider has, so the record shows just its end; record requests that send their whole messages"
        )
    out.add_tools(body.get("tools"), "tools")
    _content(body.get("system"), BlockPlace("system", "system", "system"), out)
    return "messages"


def read(messages: object, first: int, level: Level, out: BlockCollector) -> Level:
    """The blocks of messages."""
    for path, message in tables(messages, "messages", first):
        role = text_of(message.get("role"), f"{path}.role")
        _content(message.get("content"), BlockPlace(level, role, f"{path}.content"), out)
        if setting := message.get("output_config"):  # of a system message: it holds from there on, and has no words
            place = BlockPlace(level, role, f"{path}.output_config")
            out.add(place, "other", {"output_config": setting}, lambda _: 0)
    return level


def settings(body: JsonObject, out: BlockCollector) -> dict[Level, dict[str, Any]]:
    """The parameters that invalidate from a level on."""
    output = maybe_table(body.get("output_config"))
    thinking = body.get("thinking")
    return {
        "tools": {"mcp_servers": body.get("mcp_servers") or None},
        "system": {
            "speed": None if body.get("speed") == "standard" else body.get("speed"),
            "format": output.get("format") or body.get("output_format"),
            "citations": True if out.cites else None,
        },
        "messages": {
            "tool_choice": _tool_choice(maybe_table(body.get("tool_choice"))),
            "thinking": None if maybe_table(thinking).get("type") == "disabled" else thinking,
            "effort": None if output.get("effort") == "high" else output.get("effort"),
        },
    }


def automatic(body: JsonObject, out: BlockCollector, _rules: CacheRules) -> str | None:
    """The lifetime of the automatic breakpoint, which a marker on the request itself asks for."""
    return out.split({"cache_control": body.get("cache_control")}, "the request")[1]


def _tool_choice(choice: JsonObject) -> JsonObject | None:
    kept = {k: v for k, v in choice.items() if (k, v) != ("disable_parallel_tool_use", False)}
    return None if kept in ({}, {"type": "auto"}) else kept


def _content(content: object, place: BlockPlace, out: BlockCollector) -> None:
    if isinstance(content, str):
        out.add_text(place, content)
        return
    for path, block in tables(content, place.path):
        add_block(block, place.at(path), out)


def add_block(block: JsonObject, place: BlockPlace, out: BlockCollector) -> None:
    """One content block; its kind is its type, where Anthropic's cache tells it apart."""
    type = block.get("type")
    if not isinstance(type, str):
        refuse(place.path, block, 'a content block with a "type", such as {"type": "text", "text": ...}')
    if place.level == "messages" and maybe_table(block.get("citations")).get("enabled") is True:
        out.cites = True
    if type == "text":
        out.add_text(place, text_of(block.get("text"), f"{place.path}.text"), block)
        return
    body, marker = out.split(block, place.path)
    if type == "tool_result":
        body, inner = _plain_result(body, place, out)
        marker = marker or inner
    kind = type if type in KINDS else "other"
    out.add(place, kind, body, lambda _: _tokens(kind, body, out), marker)


def _plain_result(body: JsonObject, place: BlockPlace, out: BlockCollector) -> tuple[JsonObject, str | None]:
    """A tool result whose content is a list without markers, and the last marker that stood in it."""
    content = body.get("content")
    if content is None:
        return body, None
    parts = [text_body(content)] if isinstance(content, str) else content
    marker: str | None = None
    plain: list[JsonObject] = []
    for path, part in tables(parts, f"{place.path}.content"):
        kept, found = out.split(part, path)
        marker = found or marker
        plain.append(text_body(maybe_text(kept.get("text")), kept) if kept.get("type") == "text" else kept)
    return {**body, "content": plain}, marker


def _tokens(kind: str, block: JsonObject, out: BlockCollector) -> int:
    match kind:
        case "image" | "document":
            return out.shown(_shown(block))
        case "tool_use":
            return out.call(block.get("id"), block.get("name"), block.get("input"))
        case "tool_result":
            return out.result(block.get("tool_use_id"), (_shown(part) for part in block.get("content") or ()))
        case "thinking":
            return out.shown(ThinkingPart(maybe_text(block.get("thinking")), maybe_text(block.get("signature"))))
        case "redacted_thinking":
            return out.shown(ThinkingPart(redacted=maybe_text(block.get("data"))))
        case "compaction":
            return out.shown(NativePart("anthropic", block))
        case _:
            return out.rest(block)


def _shown(block: JsonObject) -> ShownPart:
    source = maybe_table(block.get("source"))
    match block.get("type"):
        case "text":
            return TextPart(maybe_text(block.get("text")))
        case "image":
            return image(source.get("data"), source.get("media_type")) if source else UNSEEN_IMAGE
        case "document" if source.get("type") in ("text", "content"):
            return TextPart(maybe_text(source.get("data")) or canonical(source.get("content")))
        case "document":
            return document(source.get("data"), source.get("media_type")) if source else UNSEEN_DOCUMENT
        case _:
            return TextPart(canonical(without_payloads(block)))


FORMAT: Final = WireFormat("messages", head, read, settings, automatic, "anthropic")
