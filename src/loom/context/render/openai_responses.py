"""OpenAI Responses: the arguments of `client.responses.create(**body)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from loom.context.render.body import RenderedBody, RequestSettings, tool_head, tool_schema
from loom.context.render.layout import Layout, WireDialect, WireMessage, WireSlot
from loom.context.render.openai_chat import Marks, answer, arguments, data_url, file_name, may_mark
from loom.core.message import (
    DocumentPart,
    ImagePart,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

__all__ = ["DIALECT", "may_mark", "render"]

DIALECT = WireDialect("openai", system_turns=True, thinking="signed")
"""A reasoning item comes back under its id."""


def render(layout: Layout, model: str, markers: Mapping[WireSlot, str], settings: RequestSettings) -> RenderedBody:
    """A complete request body, with cache markers on the slots that have one.

    The system prompt is the first input item and not `instructions`, which cannot carry a marker.
    """
    out = RenderedBody({"model": model, **settings})
    marks = Marks(markers, settings)
    made = _Input(out, marks)
    if layout.tools:
        out.body["tools"] = out.blocks("tools", layout.tools, _tool)
    if layout.system:
        made.add(WireMessage("system", layout.system))
    for turn in layout.turns:
        made.add(turn)
    out.body["input"] = made.items
    out.body.update(marks.options())
    return out


@dataclass(slots=True)
class _Input:
    """The input items of a request, as they are made turn by turn."""

    out: RenderedBody
    marks: Marks
    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, turn: WireMessage) -> None:
        """Add what a turn says: its content as messages, everything else as items of their own."""
        for is_content, group in groupby(turn.slots, key=_is_content):
            if is_content:
                content = self.out.blocks(f"input[{len(self.items)}].content", group, self._block)
                self.items.append({"role": "developer" if turn.role == "system" else "user", "content": content})
                continue
            for slot in group:
                if isinstance(slot.content, ToolResultPart):
                    self._add_result(slot, slot.content)
                else:
                    part = ".content" if isinstance(slot.content, TextPart) else ""
                    self.out.origins[f"input[{len(self.items)}]{part}"] = slot
                    self.items.append(_item(slot))

    def _block(self, slot: WireSlot) -> dict[str, Any]:
        assert isinstance(slot.content, TextPart | ImagePart | DocumentPart)
        block = _content(slot.content)
        self.marks.put(slot, block)
        return block

    def _add_result(self, slot: WireSlot, result: ToolResultPart) -> None:
        output = [_content(part) for part in answer(result)]
        self.marks.put(slot, output[-1])
        at = f"input[{len(self.items)}]"
        self.out.origins.update({f"{at}.output[{i}]": slot for i in range(len(output))})
        self.items.append({"type": "function_call_output", "call_id": result.call_id, "output": output})


def _is_content(slot: WireSlot) -> bool:
    return slot.role != "assistant" and isinstance(slot.content, TextPart | ImagePart | DocumentPart)


def _tool(slot: WireSlot) -> dict[str, Any]:
    return {"type": "function", **tool_head(slot), "parameters": tool_schema(slot), "strict": False}


def _content(part: TextPart | ImagePart | DocumentPart) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"type": "input_text", "text": text}
        case ImagePart():
            return {"type": "input_image", "detail": "auto", "image_url": data_url(part)}
        case DocumentPart():
            return {"type": "input_file", "filename": file_name(part), "file_data": data_url(part)}


def _item(slot: WireSlot) -> dict[str, Any]:
    match slot.content:
        case TextPart(text, phase):  # a list of output parts goes only with the id of the answer it came from
            answer_text = {"role": "assistant", "content": text}
            return {**answer_text, "phase": phase} if phase else answer_text
        case ToolCallPart(id, name) as call:
            return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments(call)}
        case ThinkingPart(text, signature, redacted):
            summary = [{"type": "summary_text", "text": text}] if text else []
            item: dict[str, Any] = {"type": "reasoning", "id": signature, "summary": summary}
            return {**item, "encrypted_content": redacted} if redacted else item
        case NativePart(_, body):
            return dict(body)
        case other:
            raise AssertionError(f"the layout let a {type(other).__name__} of {slot.role} through")
