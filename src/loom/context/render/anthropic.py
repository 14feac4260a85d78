"""Anthropic Messages: the arguments of `client.messages.create(**body)`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from loom.context.render.layout import Layout, RenderedBody, RequestSettings, WireDialect, WireSlot
from loom.core.message import (
    DocumentPart,
    ImagePart,
    NativePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)

DEFAULT_MAX_TOKENS = 4096
DIALECT = WireDialect("anthropic", thinking="sealed")


def render(layout: Layout, model: str, markers: Mapping[WireSlot, str], settings: RequestSettings) -> RenderedBody:
    """A complete request body, with cache markers on the slots that have one."""
    out = RenderedBody({"model": model, "max_tokens": DEFAULT_MAX_TOKENS, **settings})

    def block(slot: WireSlot) -> dict[str, Any]:
        made = _tool(slot.content) if isinstance(slot.content, ToolSpec) else _block(slot.content)
        ttl = markers.get(slot)
        if ttl and may_mark(slot):
            made["cache_control"] = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
        return made

    if layout.tools:
        out.body["tools"] = out.blocks("tools", layout.tools, block)
    if layout.system:
        out.body["system"] = out.blocks("system", layout.system, block)
    out.body["messages"] = [
        {"role": turn.role, "content": out.blocks(f"messages[{i}].content", turn.slots, block)}
        for i, turn in enumerate(layout.turns)
    ]
    return out


def may_mark(slot: WireSlot) -> bool:
    """Whether a block may carry a cache marker: reasoning may not."""
    return not isinstance(slot.content, ThinkingPart)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    if "anthropic" in tool.native:
        return deepcopy(tool.native["anthropic"])
    made: dict[str, Any] = {"name": tool.name, "input_schema": deepcopy(tool.input_schema)}
    return {**made, "description": tool.description} if tool.description else made


def _block(part: Part) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ImagePart(data, media_type):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case DocumentPart(data, media_type, name):
            source = {"type": "base64", "media_type": media_type, "data": data}
            if media_type.startswith("text/"):
                text = base64.b64decode(data).decode("utf-8", "replace")
                source = {"type": "text", "media_type": "text/plain", "data": text}
            made: dict[str, Any] = {"type": "document", "source": source}
            return {**made, "title": name} if name else made
        case ToolCallPart(id, name):
            return {"type": "tool_use", "id": id, "name": name, "input": part.arguments}
        case ToolResultPart(call_id, content, is_error):
            made = {"type": "tool_result", "tool_use_id": call_id, "content": [_block(c) for c in content]}
            return {**made, "is_error": True} if is_error else made
        case ThinkingPart(_, _, redacted) if redacted is not None:
            return {"type": "redacted_thinking", "data": redacted}
        case ThinkingPart(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature or ""}
        case NativePart(_, body):
            return deepcopy(body)
