"""The order every renderer follows, and the rendered body with the slots it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias

from loom.context.file_entry import FileView
from loom.core.message import (
    DocumentPart,
    ImagePart,
    NativePart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    plain,
)
from loom.core.window import STATIC, VOLATILE, SectionName, Window, default_role

NO_OUTPUT = "[The tool returned nothing.]"


@dataclass(frozen=True, slots=True, eq=False)
class WireSlot:
    """One position on the wire: a tool, or a part of an entry. Two slots are never equal: a place is not a value."""

    content: ToolSpec | Part
    role: Role
    volatile: bool = False
    section: SectionName | None = None
    context: str = ""
    entry: str = ""
    label: str | None = None
    file: bool = False


@dataclass(frozen=True, slots=True)
class WireMessage:
    """Consecutive slots of one role."""

    role: Role
    slots: tuple[WireSlot, ...]


@dataclass(frozen=True, slots=True)
class WireDialect:
    """A provider's rules that the layout depends on."""

    provider: str
    system_turns: bool = False
    """A system message may stand among the turns; otherwise its text joins a user turn."""
    binds_thinking: bool = True
    """Thinking whose prefix changed is refused, so it is left out; no more than the model's own catalogue row says."""
    thinking: Literal["any", "sealed", "signed", "none"] = "any"
    """Which of its own thinking a provider takes back: any, what is signed or redacted, what is signed, or none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A window in wire order."""

    tools: tuple[WireSlot, ...]
    system: tuple[WireSlot, ...]
    turns: tuple[WireMessage, ...]
    previous_tail: WireSlot | None
    """The last slot of the conversation that an earlier request already carried."""
    dropped: tuple[WireSlot, ...]
    """Reasoning left out: its seal is missing or another provider's, or its prefix has changed."""

    def slots(self) -> Iterator[WireSlot]:
        """Every slot, in wire order."""
        yield from self.tools
        yield from self.system
        for turn in self.turns:
            yield from turn.slots


def lay_out(window: Window, dialect: WireDialect) -> Layout:
    """Arrange a window in wire order for one provider."""
    dropped: list[WireSlot] = []
    system: list[WireSlot] = []
    turns: list[WireSlot] = []
    previous: WireSlot | None = None
    for name in STATIC:
        for slot in _slots(window, name, dialect, dropped):
            (system if slot.role == "system" else turns).append(slot)
    convo, previous = _conversation(window, dialect, dropped)
    # A provider's own compaction must be the very first block; what is static follows it.
    turns = [*convo[:1], *turns, *convo[1:]] if convo and _compacts(convo[0]) else turns + convo
    for name in VOLATILE:
        turns += _slots(window, name, dialect, dropped)
    return Layout(
        tools=tuple(WireSlot(tool, "system") for tool in window.tools),
        system=tuple(system),
        turns=_grouped(turns),
        previous_tail=previous,
        dropped=tuple(dropped),
    )


def _conversation(
    window: Window, dialect: WireDialect, dropped: list[WireSlot]
) -> tuple[list[WireSlot], WireSlot | None]:
    """The slots of the conversation, and the last one that was sent before.

    A provider's own compaction block stands for everything before it, so only the newest one opens the list.
    """
    slots: list[WireSlot] = []
    previous: WireSlot | None = None
    for number, found in enumerate(_item_slots(window, "convo", dialect, dropped)):
        for slot in found:
            if _compacts(slot):
                slots.clear()
                previous = None
            slots.append(slot)
        if number == window.sent - 1 and slots:
            previous = slots[-1]
    return slots, previous


def _compacts(slot: WireSlot) -> bool:
    return isinstance(slot.content, NativePart) and slot.content.body.get("type") == "compaction"


def _slots(window: Window, name: SectionName, dialect: WireDialect, dropped: list[WireSlot]) -> list[WireSlot]:
    return [slot for slots in _item_slots(window, name, dialect, dropped) for slot in slots]


def _item_slots(
    window: Window, name: SectionName, dialect: WireDialect, dropped: list[WireSlot]
) -> Iterator[list[WireSlot]]:
    static, volatile = name in STATIC, name in VOLATILE
    for run, item in window.items(name):
        role = item.role or default_role(name)
        if role == "system" and not static and not dialect.system_turns:
            role = "user"
        slots: list[WireSlot] = []
        for part in item.parts:
            slot = WireSlot(part, role, volatile, name, run.context, item.id, item.name, isinstance(item, FileView))
            if _left_out(part, dialect, void=item.id in window.void):
                dropped.append(slot)
            else:
                slots.append(_with_legal_role(slot))
        yield slots


def _with_legal_role(slot: WireSlot) -> WireSlot:
    """A slot with a role that may carry it: system takes text only, and a model sends no pictures."""
    part = slot.content
    if isinstance(part, ToolResultPart):
        return replace(slot, role="user", content=_without_empty_text(part))
    if isinstance(part, ToolCallPart | ThinkingPart):
        return replace(slot, role="assistant") if slot.role != "assistant" else slot
    if isinstance(part, ImagePart | DocumentPart):
        if slot.role == "assistant":
            return replace(slot, content=TextPart(plain(part)))
        return replace(slot, role="user") if slot.role != "user" else slot
    return slot


def _without_empty_text(result: ToolResultPart) -> ToolResultPart:
    """A result with something in each part: providers refuse empty text."""
    content = tuple(c for c in result.content if not isinstance(c, TextPart) or c.text.strip())
    if len(content) == len(result.content) > 0:
        return result
    return replace(result, content=content or (TextPart(NO_OUTPUT),))


def _left_out(part: Part, dialect: WireDialect, *, void: bool) -> bool:
    if isinstance(part, ThinkingPart):
        accepted = {
            "any": part.text or part.signature or part.redacted,
            "sealed": part.signature or part.redacted,
            "signed": part.signature,
            "none": None,
        }
        foreign = part.provider != dialect.provider
        return foreign or not accepted[dialect.thinking] or (void and dialect.binds_thinking)
    return isinstance(part, NativePart) and part.provider != dialect.provider


def _grouped(slots: Iterable[WireSlot]) -> tuple[WireMessage, ...]:
    groups = (tuple(group) for _, group in groupby(slots, key=lambda slot: slot.role))
    return tuple(WireMessage(group[0].role, group) for group in groups)


# A rendered request: its body, and which slot each of its blocks came from.

RequestSettings: TypeAlias = Mapping[str, Any]
"""Request fields of the caller (max_tokens, tool_choice, ...), passed on as they are."""


@dataclass(slots=True)
class RenderedBody:
    """A request body under construction, and the origin of each block by its path (`messages[2].content[0]`)."""

    body: dict[str, Any]
    origins: dict[str, WireSlot] = field(default_factory=dict[str, WireSlot])

    def blocks(
        self, path: str, slots: Iterable[WireSlot], make: Callable[[WireSlot], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """One block for each slot, in the list at a path."""
        made: list[dict[str, Any]] = []
        for slot in slots:
            self.origins[f"{path}[{len(made)}]"] = slot
            made.append(make(slot))
        return made


def tool_body(slot: WireSlot, schema: str) -> dict[str, Any]:
    """A tool: its name, its description where it has one, and under the name `schema` a copy of that of its input."""
    assert isinstance(slot.content, ToolSpec)
    tool = slot.content
    head = {"name": tool.name, "description": tool.description} if tool.description else {"name": tool.name}
    return {**head, schema: deepcopy(tool.input_schema)}
