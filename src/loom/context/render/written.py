"""A layout as it is written and read once, without markers: a later window writes, reads and counts what it adds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from loom.context.render.layout import Layout, RequestSettings, WireMessage, WireSlot, WireWriter
from loom.core.message import Part
from loom.core.window import Block, BlockOrigin, Level, Window, hash_prefixes
from loom.errors import BadRequestFile
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import CalibratedCounter, EstimateCounter
from loom.traces._blocks import BlockCollector, BlockPlace, WireFormat, canonical

Count = tuple[int, ...]
"""What a block counts: tokens that are the same for every model, then each text or part as its counter counted it."""


Markers = tuple[tuple[WireSlot, str], ...]
"""Slots, each with the lifetime of the marker on it."""


class TurnStart(NamedTuple):
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
    start: TurnStart
    marked: dict[Markers, MarkedHead] = field(default_factory=dict[Markers, MarkedHead])
    """The same with the markers that it was last sent with."""


@dataclass(frozen=True, slots=True)
class WrittenLayout:
    """The messages and blocks of a layout, and the hash of each prefix. What an earlier window wrote is shared."""

    settings: RequestSettings
    head: WrittenHead
    turns: tuple[WireMessage, ...]
    starts: tuple[TurnStart, ...]
    """Of each turn, and at last where the next one would begin."""
    messages: tuple[dict[str, Any], ...]
    blocks: tuple[Block, ...]
    counts: tuple[Count, ...]
    nodes: tuple[bytes, ...]
    level_settings: dict[Level, str]

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
        scaled = _Scaled(counter.scale if isinstance(counter, CalibratedCounter) else 1.0)
        return tuple(accumulate(map(scaled.__getitem__, self.counts)))


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
                'the request names no model; add "model" to the record, or say which model it was sent to'
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
            starts.append(TurnStart(len(messages), len(out.found), level, out.cites))
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
        return WrittenHead(layout.tools, layout.system, fields, TurnStart(0, len(out.found), level, cites=False))

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


def counted_by(counter: TokenCounter) -> object:
    """What blocks have to be counted by, so that their counts can be shared."""
    return _base(counter)


def _base(counter: TokenCounter) -> TokenCounter:
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
