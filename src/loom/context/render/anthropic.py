"""Anthropic Messages: the arguments of `client.messages.create(**body)`."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from copy import deepcopy
from hashlib import sha256
from typing import Any

from loom.context.render.layout import (
    Layout,
    RenderedBody,
    RequestSettings,
    WireDialect,
    WireMessage,
    WireSlot,
    WireWriter,
)
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
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicWriter(WireWriter):
    """Writes the messages of Anthropic."""

    def head(self, layout: Layout) -> dict[str, Any]:
        """The tools and the system prompt."""
        fields: dict[str, Any] = {}
        if layout.tools:
            fields["tools"] = self.blocks("tools", layout.tools, self._block)
        if layout.system:
            fields["system"] = self.blocks("system", layout.system, self._block)
        return fields

    def add(self, turn: WireMessage, before: WireMessage | None) -> None:  # noqa: ARG002
        """Write a turn as one message."""
        content = self.blocks(f"messages[{self.number}].content", turn.slots, self._block)
        self.messages.append({"role": turn.role, "content": content})

    def body(self, model: str, head: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The complete request body."""
        return {"model": model, "max_tokens": DEFAULT_MAX_TOKENS, **self.settings, **head, "messages": messages}

    def _block(self, slot: WireSlot) -> dict[str, Any]:
        made = _tool(slot.content) if isinstance(slot.content, ToolSpec) else _block(slot.content)
        ttl = self.markers.get(slot)
        if ttl and may_mark(slot):
            made["cache_control"] = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
            self.marked = True
        return made


def render(layout: Layout, model: str, markers: Mapping[WireSlot, str], settings: RequestSettings) -> RenderedBody:
    """A complete request body, with cache markers on the slots that have one."""
    return AnthropicWriter(markers, settings).whole(layout, model)


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
            return {"type": "tool_use", "id": _call_id(id), "name": name, "input": part.arguments}
        case ToolResultPart(call_id, content, is_error):
            made = {"type": "tool_result", "tool_use_id": _call_id(call_id), "content": [_block(c) for c in content]}
            return {**made, "is_error": True} if is_error else made
        case ThinkingPart(_, _, redacted) if redacted is not None:
            return {"type": "redacted_thinking", "data": redacted}
        case ThinkingPart(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature or ""}
        case NativePart(_, body):
            return deepcopy(body)


def _call_id(id: str) -> str:
    """An id of a tool call in the letters that Anthropic takes: other providers' may have a dot or a colon."""
    if not _NOT_IN_IDS.search(id):
        return id
    return f"{_NOT_IN_IDS.sub('_', id)}_{sha256(id.encode()).hexdigest()[:8]}"
