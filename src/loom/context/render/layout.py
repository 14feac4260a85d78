"""The order every renderer follows, and the rendered body with the slots it came from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, is_
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
from loom.core.window import SECTIONS, STATIC, VOLATILE, Run, SectionName, View, Window, default_role, runs_since

NO_OUTPUT = "[The tool returned nothing.]"
_CONVO = SECTIONS.index("convo")


@dataclass(slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
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
    thinking_leads: bool = False
    """Thinking is refused unless something of the same answer follows it: nothing does where an answer was cut off."""


@dataclass(frozen=True, slots=True)
class LayoutStem:
    """What lasts of a layout: the static sections and the conversation. The next window's goes on from it."""

    heads: tuple[Run | None, ...]
    void: frozenset[str]
    system: tuple[WireSlot, ...]
    system_turn: tuple[WireMessage, ...]
    """The same as a turn, for a format that has it among the messages; none where there is no system prompt."""
    opening: tuple[WireSlot, ...]
    """What is static and stands among the turns."""
    turns: tuple[WireMessage, ...]
    tail: WireSlot | None
    """The last slot of the conversation."""
    dropped: tuple[WireSlot, ...]

    @property
    def count(self) -> int:
        """How many items of the conversation it holds."""
        head = self.heads[_CONVO]
        return head.count if head else 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A window in wire order. Turns that it shares with the window before are the very same objects."""

    tools: tuple[WireSlot, ...]
    system: tuple[WireSlot, ...]
    turns: tuple[WireMessage, ...]
    previous_tail: WireSlot | None
    """The last slot of the conversation that an earlier request already carried."""
    dropped: tuple[WireSlot, ...]
    """Reasoning left out: its seal is missing or another provider's, its prefix has changed, or nothing followed it."""
    stem: LayoutStem
    specs: tuple[ToolSpec, ...]

    @property
    def static(self) -> tuple[WireSlot, ...]:
        """Tools and everything of static sections, in wire order."""
        return (*self.tools, *self.system, *self.stem.opening)

    def slots(self) -> Iterator[WireSlot]:
        """Every slot, in wire order."""
        yield from self.tools
        yield from self.system
        for turn in self.turns:
            yield from turn.slots

    def backwards(self) -> Iterator[WireSlot]:
        """Every slot, the last one first."""
        for turn in reversed(self.turns):
            yield from reversed(turn.slots)
        yield from reversed(self.system)
        yield from reversed(self.tools)

    def places(self, wanted: Collection[WireSlot]) -> dict[WireSlot, tuple[int, int]]:
        """Where some slots stand, in wire order: the number of the turn (-2 for tools, -1 for system), and in it.

        They are looked for from both ends, because what is asked for stands in what is static or near the end.
        """
        left = set(wanted)
        found: dict[WireSlot, tuple[int, int]] = {}

        def look(slots: tuple[WireSlot, ...], number: int) -> None:
            for n, slot in enumerate(slots):
                if slot in left:
                    left.remove(slot)
                    found[slot] = (number, n)

        look(self.tools, -2)
        look(self.system, -1)
        opening = left.intersection(self.stem.opening)
        for numbers, stop in ((range(len(self.turns)), opening), (range(len(self.turns) - 1, -1, -1), left)):
            for number in numbers:
                if left.isdisjoint(stop):
                    break
                look(self.turns[number].slots, number)
        return dict(sorted(found.items(), key=lambda item: item[1]))


def lay_out(window: Window, dialect: WireDialect) -> Layout:
    """Arrange a window in wire order for one provider; it goes on from the layout of a window that went out before."""
    own: Layout | None = window.made.get((Layout, dialect))
    if own is not None and all(map(is_, own.stem.heads, window.heads)):
        return own if window.past else replace(own, previous_tail=None)  # of a window in the past, nothing is asked
    stem, previous = _stem(window, dialect)
    dropped: list[WireSlot] = []
    volatile = [slot for name in VOLATILE for slot in _slots(window, name, dialect, dropped)]
    known = next(_made(window, dialect), None)
    tools = known.tools if known and known.specs == window.tools else None
    layout = window.made[Layout, dialect] = Layout(
        tools=tuple(WireSlot(tool, "system") for tool in window.tools) if tools is None else tools,
        system=stem.system,
        turns=_joined(stem.turns, volatile),
        previous_tail=previous,
        dropped=(*stem.dropped, *dropped),
        stem=stem,
        specs=window.tools,
    )
    return layout


def _made(window: Window, dialect: WireDialect) -> Iterator[Layout]:
    """The layouts of this window and of those that went out before, latest first."""
    every = (window.made, *(past.made for past in reversed(window.past)))
    return (made[Layout, dialect] for made in every if (Layout, dialect) in made)


def _stem(window: Window, dialect: WireDialect) -> tuple[LayoutStem, WireSlot | None]:
    """The lasting part of a layout, and the last slot of the conversation that was sent before.

    A provider's own compaction block stands for everything before it, so only the newest one opens the conversation,
    and must be its very first block; what is static follows it.
    """
    found = next(filter(None, (_grown(known.stem, window, dialect) for known in _made(window, dialect))), None)
    base, runs = found or _beginning(window, dialect)
    count, sent, tail = base.count, window.sent, base.tail
    previous = tail if count == sent else None
    turns, slots, dropped = base.turns, list[WireSlot](), list[WireSlot]()
    for run in runs:
        for item in run.items:
            count += 1
            for slot in _item_slots(run, item, dialect, window.void, dropped):
                tail = slot
                if _compacts(slot):
                    turns, slots, previous = (), [slot, *base.opening], None
                else:
                    slots.append(slot)
            if count == sent:
                previous = tail
    stem = replace(
        base,
        heads=window.heads,
        void=window.void,
        turns=_joined(turns, slots),
        tail=tail,
        dropped=(*base.dropped, *dropped),
    )
    return stem, previous


def _beginning(window: Window, dialect: WireDialect) -> tuple[LayoutStem, list[Run]]:
    """What is static, and the runs of the whole conversation."""
    dropped: list[WireSlot] = []
    static = [slot for name in STATIC for slot in _slots(window, name, dialect, dropped)]
    opening = tuple(slot for slot in static if slot.role != "system")
    system = tuple(slot for slot in static if slot.role == "system")
    stem = LayoutStem(
        heads=(*window.heads[:_CONVO], None),
        void=window.void,
        system=system,
        system_turn=(WireMessage("system", system),) if system else (),
        opening=opening,
        turns=_joined((), opening),
        tail=None,
        dropped=tuple(dropped),
    )
    head = window.heads[_CONVO]
    return stem, head.chain() if head else []


def _grown(stem: LayoutStem, window: Window, dialect: WireDialect) -> tuple[LayoutStem, list[Run]] | None:
    """A stem and the runs that follow it, if the window grew out of the one it was made of."""
    if not all(map(is_, stem.heads[:_CONVO], window.heads[:_CONVO])):
        return None
    runs = runs_since(stem.heads[_CONVO], window.heads[_CONVO])
    if runs is None or (stem.void != window.void and dialect.binds_thinking and not _only_newer(stem, window, runs)):
        return None
    return stem, runs


def _only_newer(stem: LayoutStem, window: Window, runs: Iterable[Run]) -> bool:
    """Whether all that became void stands in these runs."""
    return stem.void <= window.void and window.void - stem.void <= {item.id for run in runs for item in run.items}


def _compacts(slot: WireSlot) -> bool:
    return isinstance(slot.content, NativePart) and slot.content.body.get("type") == "compaction"


def _slots(window: Window, name: SectionName, dialect: WireDialect, dropped: list[WireSlot]) -> list[WireSlot]:
    items = window.items(name)
    return [slot for run, item in items for slot in _item_slots(run, item, dialect, window.void, dropped)]


def _item_slots(
    run: Run, item: View, dialect: WireDialect, void: frozenset[str], dropped: list[WireSlot]
) -> list[WireSlot]:
    name = run.section
    role = item.role or default_role(name)
    if role == "system" and name not in STATIC and not dialect.system_turns:
        role = "user"
    volatile, label, is_file = name in VOLATILE, item.name, isinstance(item, FileView)
    slots: list[WireSlot] = []
    for part in item.parts:
        slot = WireSlot(part, role, volatile, name, run.context, item.id, label, is_file)
        if isinstance(part, TextPart):  # anybody may say it; most parts are text
            slots.append(slot)
        elif _left_out(part, dialect, void=item.id in void):
            dropped.append(slot)
        else:
            slots.append(_with_legal_role(slot))
    while dialect.thinking_leads and slots and _is_thinking(slots[-1].content):
        dropped.append(slots.pop())
    return slots


def _is_thinking(part: ToolSpec | Part) -> bool:
    return isinstance(part, ThinkingPart) or (isinstance(part, NativePart) and part.body.get("type") == "reasoning")


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


def _joined(turns: tuple[WireMessage, ...], slots: Sequence[WireSlot]) -> tuple[WireMessage, ...]:
    """Turns with more slots behind them; those of the last turn's role join it."""
    if slots and turns and turns[-1].role == slots[0].role:
        turns, slots = turns[:-1], [*turns[-1].slots, *slots]
    groups = (tuple(group) for _, group in groupby(slots, key=attrgetter("role")))
    return turns + tuple(WireMessage(group[0].role, group) for group in groups)


# Writing a layout in a wire format: its messages, and which slot each of their blocks came from.

RequestSettings: TypeAlias = Mapping[str, Any]
"""Request fields of the caller (max_tokens, tool_choice, ...), passed on as they are."""


@dataclass(frozen=True, slots=True)
class RenderedBody:
    """A request body, and the origin of each block by its path (`messages[2].content[0]`)."""

    body: dict[str, Any]
    origins: dict[str, WireSlot]


class WireWriter(ABC):
    """Writes turns in one wire format, with cache markers on the slots that have one.

    A turn is written alike wherever it stands, so that one that was written before need not be written again; `first`
    is the number of the first message that this writer makes.
    """

    system_first = False
    """Whether the system prompt is the first message."""

    def __init__(self, markers: Mapping[WireSlot, str], settings: RequestSettings, first: int = 0) -> None:
        self.markers = markers
        self.settings = settings
        self.first = first
        self.marked = False
        """Whether a marker was written."""
        self.messages: list[dict[str, Any]] = []
        self.origins: dict[str, WireSlot] = {}

    @abstractmethod
    def head(self, layout: Layout) -> dict[str, Any]:
        """The fields of a body that hold what comes before the messages."""

    @abstractmethod
    def add(self, turn: WireMessage, before: WireMessage | None) -> None:
        """Write a turn; `before` is the one that it follows."""

    @abstractmethod
    def body(self, model: str, head: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The complete request body."""

    @property
    def number(self) -> int:
        """The number of the next message."""
        return self.first + len(self.messages)

    def turns(self, layout: Layout) -> tuple[WireMessage, ...]:
        """What is written as messages."""
        return layout.stem.system_turn + layout.turns if self.system_first else layout.turns

    def blocks(
        self, path: str, slots: Iterable[WireSlot], make: Callable[[WireSlot], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """One block for each slot, in the list at a path."""
        made: list[dict[str, Any]] = []
        for slot in slots:
            self.origins[f"{path}[{len(made)}]"] = slot
            made.append(make(slot))
        return made

    def whole(self, layout: Layout, model: str) -> RenderedBody:
        """A layout from its beginning to its end."""
        head = self.head(layout)
        before: WireMessage | None = None
        for turn in self.turns(layout):
            self.add(turn, before)
            before = turn
        return RenderedBody(self.body(model, head, self.messages), self.origins)


def tool_body(slot: WireSlot, schema: str) -> dict[str, Any]:
    """A tool: its name, its description where it has one, and under the name `schema` a copy of that of its input."""
    assert isinstance(slot.content, ToolSpec)
    tool = slot.content
    head = {"name": tool.name, "description": tool.description} if tool.description else {"name": tool.name}
    return {**head, schema: deepcopy(tool.input_schema)}
