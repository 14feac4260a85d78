"""OpenAI Chat Completions, OpenAI Responses, and servers compatible with Chat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, ClassVar, Literal, TypeAlias

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
    FAILED,
    JSON,
    ContentPart,
    DocumentPart,
    ImagePart,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    plain,
)

SystemRole: TypeAlias = Literal["developer", "system"]
DEFAULT_TTL = "30m"
CHAT_DIALECT = WireDialect("openai_chat", system_turns=True, thinking="none")
"""Chat has no place for reasoning, nor for the blocks of Responses."""


def render_chat(
    layout: Layout,
    model: str,
    markers: Mapping[WireSlot, str],
    settings: RequestSettings,
    *,
    system_role: SystemRole = "developer",
    reasoning: bool = False,
) -> RenderedBody:
    """A complete request body, with cache markers on the slots that have one."""
    return ChatWriter(markers, settings, system_role=system_role, reasoning=reasoning).whole(layout, model)


def may_mark(slot: WireSlot) -> bool:
    """Whether a block may carry a cache marker: what goes into the model may, tools and its own words may not."""
    if isinstance(slot.content, ToolResultPart):
        return True
    return slot.role != "assistant" and isinstance(slot.content, ContentPart)


class _OpenAIWriter(WireWriter):
    """What both formats of OpenAI share: the system prompt is the first message, and how a marker is written."""

    system_first = True

    def put(self, slot: WireSlot, block: dict[str, Any]) -> None:
        """Mark the end of a block, if its slot has a marker.

        A marker without a lifetime takes the request's own, so the default is left out only where both are it.
        """
        ttl = self.markers.get(slot)
        if ttl and may_mark(slot):
            options: JSON = self.settings.get("prompt_cache_options") or {}
            default = ttl == DEFAULT_TTL == options.get("ttl", DEFAULT_TTL)
            block["prompt_cache_breakpoint"] = {"mode": "explicit"} if default else {"mode": "explicit", "ttl": ttl}
            self.marked = True

    def body(self, model: str, head: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The complete request body. Markers need a field that older models refuse, so without them it is left out."""
        made = {"model": model, **self.settings, **head, self.field: messages}
        if self.marked and "prompt_cache_options" not in self.settings:
            made["prompt_cache_options"] = {"mode": "explicit"}
        return made

    field: ClassVar[str]
    """The name that the messages have in a body."""


def data_url(part: ImagePart | DocumentPart) -> str:
    """A picture or document as a data: URL."""
    return f"data:{part.media_type};base64,{part.data}"


def file_name(part: DocumentPart) -> str:
    """The name of a document; a file sent as data has to have one."""
    return part.name or ("document.pdf" if part.media_type == "application/pdf" else "document")


def arguments(call: ToolCallPart) -> str:
    """The input of a tool call as JSON text, its keys in the order given; an object, as servers want it."""
    return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))


def answer(result: ToolResultPart) -> tuple[ContentPart, ...]:
    """What a tool answered. A failed call is marked in the text: the format has no field for it."""
    if not result.is_error:
        return result.content
    first, *rest = result.content
    if isinstance(first, TextPart):
        return (TextPart(f"{FAILED}\n{first.text}"), *rest)
    return (TextPart(FAILED), first, *rest)


class ChatWriter(_OpenAIWriter):
    """Writes the messages of Chat Completions.

    `system_role` is what the server calls the role of instructions: OpenAI says developer, most others system.
    `reasoning` says that the server wants its reasoning back with every tool call, be it empty.
    """

    field = "messages"

    def __init__(
        self,
        markers: Mapping[WireSlot, str],
        settings: RequestSettings,
        first: int = 0,
        *,
        system_role: SystemRole = "developer",
        reasoning: bool = False,
    ) -> None:
        super().__init__(markers, settings, first)
        self.system_role = system_role
        self.reasoning = reasoning

    def head(self, layout: Layout) -> dict[str, Any]:
        """The tools."""
        return {"tools": self.blocks("tools", layout.tools, _chat_tool)} if layout.tools else {}

    def add(self, turn: WireMessage, before: WireMessage | None) -> None:  # noqa: ARG002
        """Write a turn; one may become several messages."""
        if turn.role == "assistant":
            self._add_assistant(turn.slots)
            return
        for is_results, group in groupby(turn.slots, key=lambda slot: isinstance(slot.content, ToolResultPart)):
            if is_results:
                self._add_results(tuple(group))
            else:
                role = self.system_role if turn.role == "system" else "user"
                content = self.blocks(f"{self._at}.content", group, lambda slot: self._marked(slot, _part(slot)))
                self.messages.append({"role": role, "content": content})

    @property
    def _at(self) -> str:
        """The path of the next message."""
        return f"messages[{self.number}]"

    def _add_assistant(self, slots: Iterable[WireSlot]) -> None:
        at = self._at
        content: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        thoughts: list[str] = []
        for slot in slots:
            if isinstance(slot.content, ThinkingPart):
                self.origins[f"{at}.reasoning_content"] = slot
                thoughts.append(slot.content.text)
            elif isinstance(slot.content, ToolCallPart):
                self.origins[f"{at}.tool_calls[{len(calls)}]"] = slot
                calls.append(_call(slot.content))
            else:
                self.origins[f"{at}.content[{len(content)}]"] = slot
                content.append(_part(slot))
        message: dict[str, Any] = {"role": "assistant"}
        if thoughts or (calls and self.reasoning):
            message["reasoning_content"] = "".join(thoughts)
        if content:
            message["content"] = content
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)

    def _add_results(self, slots: tuple[WireSlot, ...]) -> None:
        """Add a tool message for each result, then what these could not carry: they take text only."""
        carried: list[tuple[WireSlot, dict[str, Any]]] = []
        for slot in slots:
            assert isinstance(slot.content, ToolResultPart)
            result = slot.content
            content: list[dict[str, Any]] = [{"type": "text", "text": plain(part)} for part in answer(result)]
            media = [(slot, _media(part)) for part in result.content if not isinstance(part, TextPart)]
            self._marked(slot, media[-1][1] if media else content[-1])
            carried += media
            self.origins.update({f"{self._at}.content[{i}]": slot for i in range(len(content))})
            self.messages.append({"role": "tool", "tool_call_id": result.call_id, "content": content})
        if carried:
            self.origins.update({f"{self._at}.content[{i}]": slot for i, (slot, _) in enumerate(carried)})
            self.messages.append({"role": "user", "content": [block for _, block in carried]})

    def _marked(self, slot: WireSlot, block: dict[str, Any]) -> dict[str, Any]:
        self.put(slot, block)
        return block


def _chat_tool(slot: WireSlot) -> dict[str, Any]:
    return {"type": "function", "function": tool_body(slot, "parameters")}


def _call(call: ToolCallPart) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments(call)}
    return {"id": call.id, "type": "function", "function": function}


def _part(slot: WireSlot) -> dict[str, Any]:
    part = slot.content
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, NativePart):
        return dict(part.body)
    assert isinstance(part, ImagePart | DocumentPart), f"the layout let a {type(part).__name__} of {slot.role} through"
    return _media(part)


def _media(part: ImagePart | DocumentPart) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": data_url(part)}}
    return {"type": "file", "file": {"filename": file_name(part), "file_data": data_url(part)}}


# OpenAI Responses: the arguments of `client.responses.create(**body)`.

RESPONSES_DIALECT = WireDialect("openai", system_turns=True, thinking="signed", thinking_leads=True)
"""A reasoning item comes back under its id, and with the item that it led to."""


def render_responses(
    layout: Layout, model: str, markers: Mapping[WireSlot, str], settings: RequestSettings
) -> RenderedBody:
    """A complete request body, with cache markers on the slots that have one."""
    return ResponsesWriter(markers, settings).whole(layout, model)


class ResponsesWriter(_OpenAIWriter):
    """Writes the input items of Responses.

    The system prompt is the first of them and not `instructions`, which cannot carry a marker.
    """

    field = "input"

    def head(self, layout: Layout) -> dict[str, Any]:
        """The tools."""
        return {"tools": self.blocks("tools", layout.tools, _responses_tool)} if layout.tools else {}

    def add(self, turn: WireMessage, before: WireMessage | None) -> None:  # noqa: ARG002
        """Write a turn: its content as messages, everything else as items of their own."""
        for is_content, group in groupby(turn.slots, key=_is_content):
            if is_content:
                content = self.blocks(f"input[{self.number}].content", group, self._block)
                self.messages.append({"role": "developer" if turn.role == "system" else "user", "content": content})
                continue
            for slot in group:
                if isinstance(slot.content, ToolResultPart):
                    self._add_result(slot, slot.content)
                else:
                    part = ".content" if isinstance(slot.content, TextPart) else ""
                    self.origins[f"input[{self.number}]{part}"] = slot
                    self.messages.append(_item(slot))

    def _block(self, slot: WireSlot) -> dict[str, Any]:
        assert isinstance(slot.content, ContentPart)
        block = _content(slot.content)
        self.put(slot, block)
        return block

    def _add_result(self, slot: WireSlot, result: ToolResultPart) -> None:
        output = [_content(part) for part in answer(result)]
        self.put(slot, output[-1])
        at = f"input[{self.number}]"
        self.origins.update({f"{at}.output[{i}]": slot for i in range(len(output))})
        self.messages.append({"type": "function_call_output", "call_id": result.call_id, "output": output})


def _is_content(slot: WireSlot) -> bool:
    return slot.role != "assistant" and isinstance(slot.content, ContentPart)


def _responses_tool(slot: WireSlot) -> dict[str, Any]:
    return {"type": "function", **tool_body(slot, "parameters"), "strict": False}


def _content(part: ContentPart) -> dict[str, Any]:
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
