"""A request for one provider and model: laid out, its cache markers placed, and rendered."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, chain, dropwhile, islice, takewhile
from typing import Any, NamedTuple

from loom.catalog import KNOWN_AS, CacheRules, Catalog, ModelInfo, find_model
from loom.context.render import anthropic, gemini, openai
from loom.context.render.layout import (
    Layout,
    RequestSettings,
    WireDialect,
    WireMessage,
    WireSlot,
    WireWriter,
    lay_out,
)
from loom.core.checks import did_you_mean
from loom.core.message import Message, Part, TextPart, ToolCallPart, ToolResultPart
from loom.core.window import (
    SECTIONS,
    VOLATILE,
    Block,
    BlockOrigin,
    Level,
    PrefixChain,
    RequestBlocks,
    SectionName,
    Window,
    hash_prefixes,
    positions,
    section_name,
)
from loom.errors import BadCacheTTL, BadRequestFile, TooManyBreakpoints, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import CalibratedCounter, EstimateCounter
from loom.traces._blocks import BlockCollector, BlockPlace, WireFormat, canonical
from loom.traces.anthropic import FORMAT as ANTHROPIC
from loom.traces.gemini import FORMAT as GEMINI
from loom.traces.openai import CHAT, RESPONSES

# Placement of cache markers: on the last part whose prefix will be the same in the next request.

MAX_BREAKPOINTS = 4
"""Breakpoints a caller may name: the smallest limit of the providers that take any."""

_LOOKBACK_MARGIN = 2
"""Positions kept free at the end of a lookback, for blocks a provider adds itself: one marker too many costs nothing,
a prefix out of reach costs the whole conversation again."""

_KINDS: dict[type, str] = {ToolCallPart: "call", ToolResultPart: "result"}
_PREVIOUS_END = "end of the previous request, out of reach of the new end"

_REMARKED = 24
"""How many earlier ends are marked again where an entry is found only at a marker of the new request."""


@dataclass(slots=True)
class Placement:
    """The markers of one request, why each is there, and what a person should know."""

    ttl: str | None
    markers: dict[WireSlot, str] = field(default_factory=dict[WireSlot, str])
    reasons: dict[WireSlot, str] = field(default_factory=dict[WireSlot, str])
    warnings: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def mark(self, slot: WireSlot | None, reason: str) -> None:
        """Mark a slot, once."""
        if slot is not None and self.ttl is not None and slot not in self.markers:
            self.markers[slot] = self.ttl
            self.reasons[slot] = reason

    def unmark(self, slot: WireSlot) -> None:
        """Take a marker away."""
        del self.markers[slot], self.reasons[slot]


def place(
    layout: Layout,
    rules: CacheRules,
    may_mark: Callable[[WireSlot], bool],
    *,
    breakpoints: Sequence[str] | None = None,
    ttl_seconds: float | None = None,
    automatic: bool = False,
) -> Placement:
    """Choose the markers of a request.

    The end of the conversation is always marked. `breakpoints` names sections to mark at their
    end; None marks the end of everything static. Raises on unknown sections, on more than four, and on a
    lifetime that means nothing. `automatic` says that the caller asked the provider for a breakpoint of its own,
    which takes a place.
    """
    names = _named(breakpoints)
    ttl, snapped = legal_ttl(ttl_seconds, rules)
    placement = Placement(ttl)
    if snapped:
        placement.warnings.append(("ttl_snapped", snapped))
    if not rules.max_markers:
        if names:
            placement.warnings.append(("no_markers", "this provider takes no cache markers; it finds prefixes itself"))
        return placement
    if names is None:
        placement.mark(_last(layout.static, may_mark), "end of what is static")
    for name in names or ():
        _mark_section(placement, layout, may_mark, name)
    convo = _end(layout, may_mark)
    placement.mark(convo, "end of the conversation")
    if rules.matching == "exact":  # no limit to keep to: of more markers than it takes, the provider uses the latest
        _mark_past_ends(placement, layout, may_mark)
    else:
        _mark_previous_tail(placement, layout, rules, may_mark)
        _keep_to_limit(placement, rules.max_markers - automatic, layout, convo)
    return placement


def _end(layout: Layout, may_mark: Callable[[WireSlot], bool]) -> WireSlot | None:
    """The last slot of the conversation that may carry a marker."""
    return next((slot for slot in layout.backwards() if slot.section == "convo" and may_mark(slot)), None)


def legal_ttl(seconds: float | None, rules: CacheRules) -> tuple[str | None, str | None]:
    """The provider's lifetime nearest to `seconds`, and what to say where that is another one."""
    if seconds is None:
        return rules.default_ttl, None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadCacheTTL(seconds)
    if not math.isfinite(seconds) or seconds <= 0:
        raise BadCacheTTL(seconds)
    if not rules.ttls:
        return rules.default_ttl, f"cache_ttl={seconds:g} has no effect: this provider chooses the lifetime itself"
    nearest = min(rules.ttls, key=lambda name: (abs(rules.ttls[name] - seconds), rules.ttls[name]))
    if rules.ttls[nearest] == seconds:
        return nearest, None
    known = ", ".join(f"{name} ({lifetime:g} s)" for name, lifetime in rules.ttls.items())
    return nearest, f"cache_ttl={seconds:g} became {nearest}: the lifetimes of this provider are {known}"


def _named(breakpoints: Sequence[str] | None) -> list[SectionName] | None:
    if breakpoints is None:
        return None
    names = [breakpoints] if isinstance(breakpoints, str) else list(breakpoints)
    sections: list[SectionName] = [section_name(name) for name in names]
    if len(sections) > MAX_BREAKPOINTS:
        raise TooManyBreakpoints(tuple(sections), MAX_BREAKPOINTS)
    return sections


def _mark_section(
    placement: Placement, layout: Layout, may_mark: Callable[[WireSlot], bool], name: SectionName
) -> None:
    """Mark a section's last part, or, where it is empty, the last part before it: the same prefix."""
    if name in VOLATILE:
        message = f"no breakpoint on {name}: it changes with every request, so a prefix that ends there never hits"
        placement.warnings.append(("volatile_breakpoint", message))
        return
    in_section = [slot for slot in layout.static if slot.section == name]
    own = _end(layout, may_mark) if name == "convo" else _last(in_section, may_mark)
    if own is None:
        own = _last([slot for slot in layout.static if _rank(slot) < SECTIONS.index(name)], may_mark)
        placement.warnings.append(
            ("empty_section", f"{name} is empty; its breakpoint is at the end of what precedes it")
        )
    placement.mark(own, f"end of {name}")


def _mark_previous_tail(
    placement: Placement, layout: Layout, rules: CacheRules, may_mark: Callable[[WireSlot], bool]
) -> None:
    """Mark where the last request ended, if a lookback from the new end would not reach it."""
    previous = layout.previous_tail
    if previous is None:
        return
    slots = layout.backwards()
    added = list(takewhile(lambda slot: slot is not previous, slots))
    passed = list(dropwhile(lambda slot: slot.volatile or not may_mark(slot), added))  # it ends with what may be marked
    kinds = [_KINDS.get(type(slot.content), "") for slot in reversed(passed)]
    if max(positions(kinds, collapse_runs=rules.collapse_runs), default=0) > rules.lookback - _LOOKBACK_MARGIN:
        earlier = (slot for slot in chain([previous], slots) if not slot.volatile and may_mark(slot))
        placement.mark(next(earlier, None), _PREVIOUS_END)


def _mark_past_ends(placement: Placement, layout: Layout, may_mark: Callable[[WireSlot], bool]) -> None:
    """Mark earlier ends again: with exact matching an entry is found only at a marker of the new request."""
    last = (turn.slots[-1] for turn in reversed(layout.turns) if turn.role != "assistant")
    ends = list(islice((slot for slot in last if not slot.volatile and may_mark(slot)), _REMARKED))[::-1]
    if layout.previous_tail is not None:
        until = dropwhile(lambda slot: slot is not layout.previous_tail, layout.backwards())
        ends += islice((slot for slot in until if not slot.volatile and may_mark(slot)), 1)
    for slot in ends[-_REMARKED:]:
        placement.mark(slot, "end of an earlier request")
    placement.markers = {slot: placement.markers[slot] for slot in layout.places(placement.markers)}


def _keep_to_limit(placement: Placement, limit: int, layout: Layout, tail: WireSlot | None) -> None:
    """Give up the earliest markers first: a later one covers everything before it.

    Two never give way: the end, where the next request looks, and the end of the previous request, which is read now.
    """
    if len(placement.markers) <= limit:
        return
    marked = layout.places(placement.markers)
    for victim in [s for s in marked if s is not tail and placement.reasons[s] != _PREVIOUS_END]:
        if len(placement.markers) <= limit:
            return
        message = (
            f"the breakpoint at the {placement.reasons[victim]} gave way: {limit} markers are the most a request takes"
        )
        placement.warnings.append(("breakpoint_dropped", message))
        placement.unmark(victim)


def _rank(slot: WireSlot) -> int:
    return SECTIONS.index(slot.section) if slot.section else -1


def _last(slots: Sequence[WireSlot], wanted: Callable[[WireSlot], bool]) -> WireSlot | None:
    return next((slot for slot in reversed(slots) if wanted(slot)), None)


# The target of a request: provider, model, and the catalogue's data about it.


@dataclass(frozen=True, slots=True)
class Target:
    """A provider and a model, as the caller named them."""

    provider: str
    model: str
    """The model as it is sent; `info.model` is the id the catalogue knows it by."""
    info: ModelInfo


def target_for(provider: str | None, model: str) -> Target:
    """The target of a request; `provider:model` names both at once.

    Raises:
        UsageError: there is no such provider.
    """
    if not isinstance(model, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"model={model!r} names no model; give text, such as 'claude-sonnet-5'")
    known = (*Catalog.current().providers, *KNOWN_AS)
    head, colon, rest = model.partition(":")
    if colon and head.lower() in known and provider in (None, head.lower()):
        provider, model = head.lower(), rest
    if provider is None:
        info = find_model(model)
        return Target(info.provider, model, info)
    if provider not in known:
        raise UsageError(
            f"there is no provider {provider!r}; the providers are {', '.join(known)}; "
            f"use 'compatible' for a server that speaks the OpenAI Chat form{did_you_mean(str(provider), known)}"
        )
    return Target(provider, model, find_model(model, KNOWN_AS.get(provider, provider)))


class _Renderer(NamedTuple):
    dialect: WireDialect
    writer: Callable[..., WireWriter]
    may_mark: Callable[[WireSlot], bool]
    form: WireFormat = CHAT
    """How its requests are read back, as the cache sees them."""


def _reasoning(provider: str) -> _Renderer:
    """The form of a service that wants its reasoning back, as DeepSeek does after a tool call, or else refuses.

    Nothing of it is sealed, so nothing is bound to a prefix.
    """
    dialect = WireDialect(provider, system_turns=True, binds_thinking=False)
    return _Renderer(dialect, partial(openai.ChatWriter, system_role="system", reasoning=True), openai.may_mark)


# Most servers that speak the Chat form know the system prompt by its older role.
_COMPATIBLE = _Renderer(openai.CHAT_DIALECT, partial(openai.ChatWriter, system_role="system"), openai.may_mark)
_ANTHROPIC = _Renderer(anthropic.DIALECT, anthropic.AnthropicWriter, anthropic.may_mark, ANTHROPIC)
_RENDERERS: dict[str, _Renderer] = {
    "anthropic": _ANTHROPIC,
    "bedrock": _ANTHROPIC,
    "openai": _Renderer(openai.RESPONSES_DIALECT, openai.ResponsesWriter, openai.may_mark, RESPONSES),
    "openai_chat": _Renderer(openai.CHAT_DIALECT, openai.ChatWriter, openai.may_mark),
    "gemini": _Renderer(gemini.DIALECT, gemini.GeminiWriter, gemini.may_mark, GEMINI),
    "deepseek": _reasoning("deepseek"),
    "xai": _reasoning("xai"),
}


# A layout as it is written and read once, without markers: a later window writes, reads and counts what it adds.

Count = tuple[int, ...]
"""What a block counts: tokens that are the same for every model, then each text or part as its counter counted it."""


Markers = tuple[tuple[WireSlot, str], ...]
"""Slots, each with the lifetime of the marker on it."""


class TurnOffset(NamedTuple):
    """Where a turn begins: so many messages and blocks come before it, at this level."""

    messages: int
    blocks: int
    level: Level
    cites: bool
    """Whether citations were asked for before it."""


class MarkedHead(NamedTuple):
    """What comes before the messages with markers on it."""

    fields: dict[str, Any]
    marked: list[int]
    """The positions of the blocks that carry them."""
    origins: dict[str, WireSlot]


@dataclass(frozen=True, slots=True)
class WrittenHead:
    """What comes before the messages; the same as long as tools and system prompt are."""

    tools: tuple[WireSlot, ...]
    system: tuple[WireSlot, ...]
    fields: dict[str, Any]
    start: TurnOffset
    marked: dict[Markers, MarkedHead] = field(default_factory=dict[Markers, MarkedHead])
    """The same with the markers that it was last sent with."""


@dataclass(frozen=True, slots=True)
class WrittenLayout:
    """The messages and blocks of a layout, and the hash of each prefix. What an earlier window wrote is shared."""

    settings: RequestSettings
    head: WrittenHead
    turns: tuple[WireMessage, ...]
    starts: tuple[TurnOffset, ...]
    """Of each turn, and at last where the next one would begin."""
    messages: tuple[dict[str, Any], ...]
    blocks: tuple[Block, ...]
    counts: tuple[Count, ...]
    nodes: tuple[bytes, ...]
    level_settings: dict[Level, str]
    sums: dict[float, tuple[int, ...]] = field(default_factory=dict[float, tuple[int, ...]])
    """Tokens up to the end of each block at the scale that was last asked for."""

    @property
    def stable(self) -> int:
        """How many blocks come before the first volatile one; those stand at the end."""
        volatile = 0
        for block in reversed(self.blocks):
            if not block.volatile:
                break
            volatile += 1
        return len(self.blocks) - volatile

    def ends(self, counter: TokenCounter) -> tuple[int, ...]:
        """Tokens up to the end of each block, as a counter on the same base counts them now."""
        scale = counter.scale if isinstance(counter, CalibratedCounter) else 1.0
        if scale not in self.sums:
            self.sums.clear()
            self.sums[scale] = tuple(accumulate(map(_Scaled(scale).__getitem__, self.counts)))
        return self.sums[scale]


@dataclass(frozen=True, slots=True)
class WrittenForm:
    """How layouts are written and read for one target."""

    provider: str
    model: str
    writer: Callable[..., WireWriter]
    form: WireFormat

    def write(
        self, window: Window, layout: Layout, settings: RequestSettings, counter: TokenCounter, by: object
    ) -> WrittenLayout:
        """A layout of a window, going on from that of the latest one before; `by` says which counts can be shared."""
        if not self.model:
            raise BadRequestFile(
                'the request names no model; add "model" to the record, or say which it was: model=, or --model NAME'
            )
        key = (WrittenLayout, self.provider, self.model, by)
        every = (window.made, *(past.made for past in reversed(window.past)))
        known = next((made[key] for made in every if key in made and _fits(made[key], layout, settings)), None)
        written = window.made[key] = self._written(layout, settings, _base(counter), known)
        return written

    def _written(
        self, layout: Layout, settings: RequestSettings, counter: TokenCounter, known: WrittenLayout | None
    ) -> WrittenLayout:
        plain = self.writer({}, settings)
        turns = plain.turns(layout)
        out = _CountingCollector(counter)
        if known is None:
            head, kept = self._head(layout, plain, out), 0
            before = WrittenLayout(settings, head, (), (head.start,), (), tuple(out.found), tuple(out.counts), (), {})
        else:
            before, head, kept = known, known.head, _shared(known.turns, turns)
            if kept == len(turns) == len(known.turns):
                return known
        start = before.starts[kept]
        starts, messages = list(before.starts[: kept + 1]), list(before.messages[: start.messages])
        out.found, out.counts = list(before.blocks[: start.blocks]), list(before.counts[: start.blocks])
        level, out.cites = start.level, start.cites
        for number in range(kept, len(turns)):
            writer = self.writer({}, settings, len(messages))
            writer.add(turns[number], turns[number - 1] if number else None)
            out.origins = writer.origins
            level = self.form.read(writer.messages, len(messages), level, out)
            messages += writer.messages
            starts.append(TurnOffset(len(messages), len(out.found), level, out.cites))
        salts = self.form.level_settings(plain.body(self.model, head.fields, []), out)
        nodes = before.nodes[: start.blocks] if salts == before.level_settings else ()
        blocks = tuple(out.found)
        return WrittenLayout(
            settings=settings,
            head=head,
            turns=turns,
            starts=tuple(starts),
            messages=tuple(messages),
            blocks=blocks,
            counts=tuple(out.counts),
            nodes=hash_prefixes(self.provider, self.model, salts, blocks, nodes),
            level_settings=salts,
        )

    def _head(self, layout: Layout, writer: WireWriter, out: _CountingCollector) -> WrittenHead:
        fields = writer.head(layout)
        out.origins = writer.origins
        level = self.form.head(writer.body(self.model, fields, []), out)
        return WrittenHead(layout.tools, layout.system, fields, TurnOffset(0, len(out.found), level, cites=False))

    def marked_head(self, written: WrittenLayout, layout: Layout, markers: dict[WireSlot, str]) -> MarkedHead:
        """What comes before the messages with markers on it."""
        head, key = written.head, tuple(markers.items())
        if not markers:
            return MarkedHead(head.fields, [], {})
        if key not in head.marked:
            writer, finder = self.writer(markers, written.settings), _MarkerFinder()
            fields = writer.head(layout)
            self.form.head(writer.body(self.model, fields, []), finder)
            head.marked.clear()
            head.marked[key] = MarkedHead(fields, finder.marked, writer.origins)
        return head.marked[key]

    def marked_turn(
        self, written: WrittenLayout, number: int, markers: dict[WireSlot, str]
    ) -> tuple[WireWriter, list[int]]:
        """A turn written once more, with markers on it, and the blocks that carry them."""
        start, turns = written.starts[number], written.turns
        writer, finder = self.writer(markers, written.settings, start.messages), _MarkerFinder()
        writer.add(turns[number], turns[number - 1] if number else None)
        self.form.read(writer.messages, start.messages, start.level, finder)
        return writer, [start.blocks + at for at in finder.marked]


def _base(counter: TokenCounter) -> TokenCounter:
    """What blocks are counted by: a counter that learns scales the counts of another one, which stay."""
    return counter.base if isinstance(counter, CalibratedCounter) else counter


def _fits(known: WrittenLayout, layout: Layout, settings: RequestSettings) -> bool:
    """Whether what comes before the messages is the same."""
    head = known.head
    return head.tools is layout.tools and head.system is layout.system and known.settings == settings


def _shared(known: Sequence[WireMessage], turns: Sequence[WireMessage]) -> int:
    """How many leading turns are the very same; where one is, so are all before it."""
    return bisect_left(range(min(len(known), len(turns))), True, key=lambda i: known[i] is not turns[i])


class _Scaled(dict[Count, int]):
    """The tokens of counts at one scale; a CalibratedCounter rounds each text and part on its own."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self._scale = scale

    def __missing__(self, count: Count) -> int:
        fixed, *pieces = count
        found = self[count] = fixed + sum(max(1, round(piece * self._scale)) for piece in pieces)
        return found


class _Recorder:
    """A counter that notes what it counted."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self.name, self.error = counter.name, counter.error
        self.pieces: list[int] = []

    def count(self, text: str) -> int:
        return self._noted(self._counter.count(text))

    def count_part(self, part: Part) -> int:
        return self._noted(self._counter.count_part(part))

    def _noted(self, count: int) -> int:
        if count:
            self.pieces.append(count)
        return count


class _CountingCollector(BlockCollector):
    """Collects blocks with their origin and their counts."""

    def __init__(self, counter: TokenCounter) -> None:
        self._recorder = _Recorder(counter)
        super().__init__(self._recorder)
        self.counts: list[Count] = []
        self.origins: dict[str, WireSlot] = {}

    def add(
        self, place: BlockPlace, kind: str, body: object, count: Callable[[str], int], marker: str | None = None
    ) -> None:
        content, slot = canonical(body), self.origins.get(place.path)
        self._recorder.pieces = []
        tokens = count(content)
        self.counts.append((tokens - sum(self._recorder.pieces), *self._recorder.pieces))
        origin, volatile = (_origin(slot), slot.volatile) if slot else (None, False)
        self.found.append(
            Block(place.level, place.role, kind, content, tokens, place.path, marker, origin, volatile=volatile)
        )


_UNASKED = EstimateCounter()


class _MarkerFinder(BlockCollector):
    """Finds out which blocks carry a marker, and nothing else."""

    def __init__(self) -> None:
        super().__init__(_UNASKED)
        self._seen = 0
        self.marked: list[int] = []

    def add(
        self,
        place: BlockPlace,  # noqa: ARG002
        kind: str,  # noqa: ARG002
        body: object,  # noqa: ARG002
        count: Callable[[str], int],  # noqa: ARG002
        marker: str | None = None,
    ) -> None:
        if marker:
            self.marked.append(self._seen)
        self._seen += 1


def _origin(slot: WireSlot) -> BlockOrigin | None:
    return BlockOrigin(slot.section, slot.entry, slot.context, slot.label, slot.file) if slot.section else None


class WireRequest(NamedTuple):
    """A request as it is sent, and as its cache sees it.

    The messages that it shares with an earlier one are the very same objects in both bodies: nobody may change them.
    """

    body: dict[str, Any]
    chain: PrefixChain
    origins: dict[str, WireSlot]
    """Of the blocks that carry a marker, and those beside them, by path."""


class Request:
    """A request ready to send."""

    def __init__(
        self,
        window: Window,
        target: Target,
        layout: Layout,
        placement: Placement,
        *,
        cache: bool,
        settings: RequestSettings,
    ) -> None:
        self.target = target
        self.layout = layout
        self.placement = placement
        self._window = window
        self._markers: Mapping[WireSlot, str] = placement.markers if cache else {}
        self._settings = settings
        self._renderer = _RENDERERS.get(target.provider, _COMPATIBLE)

    @cached_property
    def body(self) -> dict[str, Any]:
        """The complete body, which belongs to the caller: the keyword arguments of the provider's own client."""
        return self._renderer.writer(self._markers, self._settings).whole(self.layout, self.target.model).body

    def wire(self, counter: TokenCounter, by: object = None) -> WireRequest:
        """The request as it is sent and cached. Only what no window before it held is written, read and counted.

        `by` names the counts where the counter is one of many that count alike.
        """
        target, renderer = self.target, self._renderer
        form = WrittenForm(target.provider, target.model, renderer.writer, renderer.form)
        by = _base(counter) if by is None else by
        written = form.write(self._window, self.layout, self._settings, counter, by)
        head_markers, by_turn = self._by_place(written)
        head = form.marked_head(written, self.layout, head_markers)
        messages, marked, origins = list(written.messages), list(head.marked), dict(head.origins)
        for number, markers in by_turn.items():
            turn, found = form.marked_turn(written, number, markers)
            messages[written.starts[number].messages : written.starts[number + 1].messages] = turn.messages
            origins |= turn.origins
            marked += found
        writer = renderer.writer(self._markers, self._settings)
        writer.marked = bool(marked)
        body = writer.body(target.model, head.fields, messages)
        return WireRequest(body, self._chain(written, marked, body, counter), origins)

    def prompt(self, counter: TokenCounter) -> RequestBlocks:
        """The request as its cache sees it; each block knows the entry that it came from."""
        return self.wire(counter).chain.prompt

    def _by_place(self, written: WrittenLayout) -> tuple[dict[WireSlot, str], dict[int, dict[WireSlot, str]]]:
        """The markers of what comes before the messages, and those of each turn by its number."""
        offset = len(written.turns) - len(self.layout.turns)
        before: dict[WireSlot, str] = {}
        by_turn: dict[int, dict[WireSlot, str]] = {}
        for slot, (turn, _) in self.layout.places(self._markers).items():
            markers = before if turn + offset < 0 else by_turn.setdefault(turn + offset, {})
            markers[slot] = self._markers[slot]
        return before, by_turn

    def _chain(
        self, written: WrittenLayout, marked: list[int], body: dict[str, Any], counter: TokenCounter
    ) -> PrefixChain:
        target = self.target
        automatic = None
        if written.blocks:
            automatic = self._renderer.form.automatic(body, BlockCollector(counter), target.info.cache)
        return PrefixChain(
            provider=target.provider,
            model=target.model,
            blocks=written.blocks,
            nodes=written.nodes,
            ends=written.ends(counter),
            marks=dict.fromkeys(marked, self.placement.ttl or ""),
            automatic=automatic,
            settings=written.level_settings if written.blocks else {},
            stable=written.stable,
        )


def prepare(
    window: Window,
    provider: str,
    model: str,
    *,
    cache: bool = True,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Request:
    """Lay a window out for a provider, and place its cache markers."""
    if not isinstance(window, Window):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a request is made of a window, not of {type(window).__name__}; call compile() first")
    target = target_for(provider, model)
    info = target.info
    dialect, _, may_mark, form = _RENDERERS.get(target.provider, _COMPATIBLE)
    binds = dialect.binds_thinking and (info.binds_thinking or not info.known)
    layout = lay_out(window, replace(dialect, binds_thinking=binds))
    _check_settings(settings or {}, layout, form.messages)
    placement = place(
        layout,
        info.cache,
        may_mark,
        breakpoints=cache_breakpoints,
        ttl_seconds=cache_ttl,
        automatic="cache_control" in (settings or {}),
    )
    if not cache and info.cache.implicit:  # without a word from us the provider would place a breakpoint itself
        settings = {"prompt_cache_options": {"mode": "explicit"}, **(settings or {})}
    return Request(window, target, layout, placement, cache=cache, settings=settings or {})


def _check_settings(settings: Mapping[str, Any], layout: Layout, messages: str) -> None:
    """Refuse a setting that what the window holds itself would replace."""
    held = {messages: True, "tools": layout.tools, "system": layout.system, "system_instruction": layout.system}
    lost = next((name for name in settings if held.get(name)), None)
    if lost:
        raise UsageError(f"{lost}= would be lost, because the window has its own; add what is in it to the context")


def render(
    window: Window,
    provider: str,
    model: str,
    *,
    cache: bool = True,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """The complete request body of a window: the keyword arguments of the provider's own client.

    Providers: `anthropic`, `bedrock`, `openai` (Responses), `openai_chat`, `gemini`, those of the catalogue that
    speak the Chat form (`deepseek`, `xai`, `vllm`, ...), and `compatible` for any other server that does.
    `settings` are passed on as they are (max_tokens, tool_choice, ...).
    """
    request = prepare(
        window,
        provider,
        model,
        cache=cache,
        cache_breakpoints=cache_breakpoints,
        cache_ttl=cache_ttl,
        settings=settings,
    )
    return request.body


def cache_resource(window: Window, model: str, *, ttl: int = 3600, display_name: str | None = None) -> dict[str, Any]:
    """The arguments of `client.caches.create` for a Gemini cache of what is static in a window."""
    layout = lay_out(window, gemini.DIALECT)
    return gemini.cache_resource(layout, target_for("gemini", model).model, ttl, display_name)


# A window without a provider: system texts and messages, for models that make their own request.


def neutral(
    window: Window, *, provider: str, binds_thinking: bool = True
) -> tuple[tuple[str, ...], tuple[Message, ...]]:
    """The system texts and the messages of a window, in wire order; `provider` says whose thinking may stay."""
    layout = lay_out(window, WireDialect(provider, binds_thinking=binds_thinking))
    system = tuple(slot.content.text for slot in layout.system if isinstance(slot.content, TextPart))
    turns = ((turn.role, tuple(slot.content for slot in turn.slots)) for turn in layout.turns)
    return system, tuple(Message(role, parts) for role, parts in turns)  # pyright: ignore[reportArgumentType]


# Chat messages with Anthropic cache markers, the system message first: what `Context.to_messages` returns.


class CacheWarning(UserWarning):
    """A cache setting was changed or ignored."""


_WORTH_A_WARNING = {"ttl_snapped", "volatile_breakpoint", "breakpoint_dropped"}


def chat_messages(
    window: Window, *, cache_breakpoints: Sequence[str] | None = None, cache_ttl: float | None = None
) -> list[dict[str, Any]]:
    """The window as messages; `[0]["content"]` is the system prompt, the rest are the turns.

    No breakpoints at all (an empty list) is the wish for messages without a marker, as `render(cache=False)` has it.
    """
    marked = cache_breakpoints is None or bool(cache_breakpoints)
    request = prepare(window, "anthropic", "", cache=marked, cache_breakpoints=cache_breakpoints, cache_ttl=cache_ttl)
    for code, message in request.placement.warnings:
        if code in _WORTH_A_WARNING:
            warnings.warn(message, CacheWarning, stacklevel=3)
    return [{"role": "system", "content": request.body.get("system", [])}, *request.body["messages"]]
