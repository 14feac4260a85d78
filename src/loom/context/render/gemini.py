"""Gemini: the arguments of `client.models.generate_content(**body)` and of `client.caches.create(**resource)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from loom.context.render.layout import (
    Layout,
    RenderedBody,
    RequestSettings,
    WireDialect,
    WireMessage,
    WireSlot,
    WireWriter,
    tool_body,
)
from loom.core.message import (
    DocumentPart,
    ImagePart,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    plain,
)
from loom.core.window import STATIC
from loom.errors import BadCacheTTL, UsageError

DIALECT = WireDialect("gemini")


class GeminiWriter(WireWriter):
    """Writes the contents of Gemini; the settings go into the config of a body, and there are no markers."""

    def head(self, layout: Layout) -> dict[str, Any]:
        """The tools and the system prompt, as fields of a config."""
        config: dict[str, Any] = {}
        if layout.tools:
            declared = self.blocks(
                "config.tools[0].function_declarations",
                layout.tools,
                partial(tool_body, schema="parameters_json_schema"),
            )
            config["tools"] = [{"function_declarations": declared}]
        if layout.system:
            parts = self.blocks("config.system_instruction.parts", layout.system, lambda slot: _part(slot, ""))
            config["system_instruction"] = {"parts": parts}
        return config

    def add(self, turn: WireMessage, before: WireMessage | None) -> None:
        """Write a turn, if anything of it is a part of its own."""
        parts, origins = _parts(turn.slots, _tool_names(before, turn))
        if parts:
            at = f"contents[{self.number}]"
            self.origins.update({f"{at}.{path}": slot for path, slot in origins.items()})
            self.messages.append({"role": "model" if turn.role == "assistant" else "user", "parts": parts})

    def add_all(self, turns: Iterable[WireMessage], whole: Iterable[WireMessage]) -> list[dict[str, Any]]:
        """Write turns that hold only some of the slots of the whole ones."""
        before: WireMessage | None = None
        for turn, complete in zip(turns, whole, strict=True):
            if turn.slots:
                self.add(turn, before)
            before = complete
        return self.messages

    def body(self, model: str, head: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The complete request body."""
        return {"model": model, "contents": messages, "config": {**self.settings, **head}}


def render(
    layout: Layout,
    model: str,
    markers: Mapping[WireSlot, str],
    settings: RequestSettings,
    *,
    cached_content: str | None = None,
) -> RenderedBody:
    """A complete request body.

    With `cached_content`, the name of a resource made by `cache_resource`, what lives there is left out.
    """
    out = GeminiWriter(markers, settings)
    if cached_content is None:
        return out.whole(layout, model)
    contents = out.add_all(_turns(layout, static=False), layout.turns)
    return RenderedBody(out.body(model, {"cached_content": cached_content}, contents), out.origins)


def may_mark(slot: WireSlot) -> bool:  # noqa: ARG001  (one signature for all renderers)
    """Whether a block may carry a cache marker: none may."""
    return False


def cache_resource(layout: Layout, model: str, ttl_seconds: int, display_name: str | None = None) -> dict[str, Any]:
    """A cache of everything static: the tools, the system prompt and the turns before the conversation.

    It cannot be changed once made: a window whose static part is another one needs another cache.
    """
    if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int) or ttl_seconds <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadCacheTTL(ttl_seconds)
    out = GeminiWriter({}, {})
    config = out.head(layout)
    contents = out.add_all(_turns(layout, static=True), layout.turns)
    if contents:
        config["contents"] = contents
    if not config:
        raise UsageError("there is nothing static to cache; add tools, or entries to foundation, focus or topic")
    config["ttl"] = f"{ttl_seconds}s"
    if display_name:
        config["display_name"] = display_name
    return {"model": model, "config": config}


def _turns(layout: Layout, *, static: bool) -> list[WireMessage]:
    """The turns with the slots that stand in static sections, or with those that do not; some may be empty."""
    return [WireMessage(t.role, tuple(s for s in t.slots if (s.section in STATIC) == static)) for t in layout.turns]


def _tool_names(before: WireMessage | None, turn: WireMessage) -> dict[WireSlot, str]:
    """The tool that each result of a turn came from: a result has to name it, and only the call before it knows."""
    called: dict[str, str] = {}
    names: dict[WireSlot, str] = {}
    for slot in (*(before.slots if before else ()), *turn.slots):
        match slot.content:
            case ToolCallPart(id, name):
                called[id] = name
            case ToolResultPart(call_id):
                names[slot] = called.get(call_id, call_id)
            case _:
                pass
    return names


def _parts(
    slots: tuple[WireSlot, ...], names: Mapping[WireSlot, str]
) -> tuple[list[dict[str, Any]], dict[str, WireSlot]]:
    """The parts of a turn, and where each slot went.

    A signature without text is not a part of its own: it seals the part after it, or, where it is the last thing
    a message says, the part before it (a stream sends it last).
    """
    parts: list[dict[str, Any]] = []
    origins: dict[str, WireSlot] = {}
    waiting: WireSlot | None = None
    last: WireSlot | None = None
    for slot, after in zip(slots, (*slots[1:], None), strict=True):
        waiting = waiting if waiting and waiting.entry == slot.entry else None
        if isinstance(slot.content, ThinkingPart) and not slot.content.text:
            waiting = slot
            if not (last and last.entry == slot.entry and (after is None or after.entry != slot.entry)):
                continue
        else:
            origins[f"parts[{len(parts)}]"] = last = slot
            parts.append(_part(slot, names.get(slot, "")))
        if waiting and "thought_signature" not in parts[-1]:
            parts[-1]["thought_signature"] = _signature(waiting)
            origins[f"parts[{len(parts) - 1}].thought_signature"] = waiting
            waiting = None
    return parts, origins


def _signature(slot: WireSlot) -> str:
    assert isinstance(slot.content, ThinkingPart)
    return slot.content.signature or slot.content.redacted or ""


def _part(slot: WireSlot, tool_name: str) -> dict[str, Any]:
    match slot.content:
        case TextPart(text):
            return {"text": text}
        case ImagePart() | DocumentPart() as media:
            return _inline(media)
        case ToolCallPart(id, name) as call:
            return {"function_call": {"id": id, "name": name, "args": call.arguments}}
        case ToolResultPart() as result:
            return {"function_response": _response(result, tool_name)}
        case ThinkingPart(text):
            sealed = {"thought_signature": signature} if (signature := _signature(slot)) else {}
            return {"text": text, "thought": True, **sealed}
        case NativePart(_, body):
            return dict(body)
        case ToolSpec(name):
            raise AssertionError(f"the tool {name!r} stands in a turn")


def _inline(part: ImagePart | DocumentPart) -> dict[str, Any]:
    return {"inline_data": {"mime_type": part.media_type, "data": part.data}}


def _response(result: ToolResultPart, tool_name: str) -> dict[str, Any]:
    text = "\n".join(map(plain, result.content))
    response = {"error": text} if result.is_error else {"result": text}
    made: dict[str, Any] = {"id": result.call_id, "name": tool_name, "response": response}
    media = [_inline(part) for part in result.content if not isinstance(part, TextPart)]
    return {**made, "parts": media} if media else made
