"""Pictures of the inspector as SVG: layers, the lives of facts, who is connected, windows, and a conversation.

Every text is escaped. Colours come from the style sheet, by class; nothing is told by colour alone.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from markupsafe import Markup

from loom.core.record import Fact
from loom.text.fence import plain_text


def drawn(picture: str) -> Markup:
    """A picture or a part of a page whose texts were escaped when it was made."""
    return Markup(picture)  # noqa: S704


_LAYERS: Final = {
    "L1": "working",
    "L2": "session",
    "L3": "episodic",
    "L4": "semantic",
    "archived": "archive",
}
_WIDE: Final = 960
_NARROW: Final = 400
"""The width of a picture for a narrow screen; a page has both, and shows the one that fits."""
MOST_NODES: Final = 60
"""Names in the graph, those with most facts first."""


def layers_list(counts: Mapping[str, int]) -> str:
    """The layers in the order in which records go through them, each with its number of records."""
    items = (
        f"<li><b>{counts.get(label, 0):,}</b>{'' if label == 'archived' else f'{label} '}{name}</li>"
        for label, name in _LAYERS.items()
    )
    return f'<ol class="layers" aria-label="Records by layer">{"".join(items)}</ol>'


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time that a picture shows, from its left edge to its right one."""

    first: float
    last: float

    @classmethod
    def of(cls, facts: Sequence[Fact], now: datetime) -> TimeSpan:
        """The time since these facts were learned, as much again before it, and half of it behind; the rest is cut."""
        seen = [at.timestamp() for fact in facts for at in _moments(fact)] or [now.timestamp()]
        learned = min((fact.recorded_at.timestamp() for fact in facts), default=now.timestamp())
        today = max(now.timestamp(), max((fact.recorded_at.timestamp() for fact in facts), default=0.0))
        span = max(today - learned, 86_400.0)
        return cls(max(min(seen), learned - span), max(today, min(max(seen), today + span / 2)))

    def place(self, at: datetime) -> float:
        """Where a moment stands, as a part of the width."""
        span = max(self.last - self.first, 1.0)
        return min(max((at.timestamp() - self.first) / span, 0.0), 1.0)


def _moments(fact: Fact) -> list[datetime]:
    named = (fact.valid_from or fact.recorded_at, fact.valid_until, fact.recorded_at, fact.superseded_at)
    return [at for at in named if at is not None]


@dataclass(frozen=True, slots=True)
class LivesFrame:
    """Where the parts of the picture of lives are: words beside the bars, or above them on a narrow screen."""

    width: int
    left: int
    row: int
    letters: int
    top: int
    """From the top of a row to the middle of its bar."""
    ticks: int

    @property
    def room(self) -> int:
        """The width of the bars."""
        return self.width - self.left - 24


_DAYS: Final = 4 * 86_400
"""Seconds from which on the days of the axis differ."""
BESIDE: Final = LivesFrame(width=_WIDE, left=290, row=28, letters=33, top=16, ticks=4)
ABOVE: Final = LivesFrame(width=400, left=8, row=46, letters=44, top=32, ticks=2)


def lives_chart(
    facts: Sequence[Fact], *, now: datetime, span: TimeSpan, link: str | None = None, frame: LivesFrame = BESIDE
) -> str:
    """Both times of each fact: a bar while it is true, and a mark where it was learned, or given up.

    What was given up is dashed and struck through, what has ended is grey. The line is the day of which the picture
    tells: what was learned behind it is not known yet. `link` has a place for the id of a fact.
    """
    if not facts:
        return ""
    height = 4 + len(facts) * frame.row

    def place(at: datetime) -> float:
        return frame.left + span.place(at) * frame.room

    drawing = _Drawing(frame, place, span.first, now, link)
    rows = "".join(drawing.life(fact, frame.top + n * frame.row) for n, fact in enumerate(facts))
    known, ticks = place(now), list[str]()
    for n in range(frame.ticks + 1):
        x = frame.left + frame.room * n / frame.ticks
        at = datetime.fromtimestamp(span.first + (span.last - span.first) * n / frame.ticks, UTC)
        day = _day(at) if span.last - span.first > _DAYS else f"{at:%m-%d %H:%M}"
        anchor = "start" if n == 0 else "end" if n == frame.ticks else "middle"
        ticks.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        ticks.append(f'<text class="tick" x="{x:.1f}" y="{height + 16}" text-anchor="{anchor}">{day}</text>')
    line = (
        f'<g class="known"><line x1="{known:.1f}" x2="{known:.1f}" y1="0" y2="{height}"/>'
        f'<path d="M{known - 8:.1f} {height} h16 l-8 -12 z"/></g>'
    )
    about = escape(f"{len(facts)} facts, as known on {_day(now)}")
    return (
        f'<svg class="lives{" narrow" if frame is ABOVE else ""}" viewBox="0 0 {frame.width} {height + 24}" '
        f'role="group" aria-label="{about}" data-first="{span.first:.0f}" data-last="{span.last:.0f}" '
        f'data-from="{frame.left / frame.width:.4f}" data-room="{frame.room / frame.width:.4f}">'
        f"{''.join(ticks)}{rows}{line}</svg>"
    )


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Draws the lives of facts in one frame."""

    frame: LivesFrame
    place: Callable[[datetime], float]
    first: float
    now: datetime
    link: str | None

    def life(self, fact: Fact, y: int) -> str:
        """The row of a fact, whose bar has its middle at `y`."""
        now, begun = self.now, fact.valid_from or fact.recorded_at
        begin, end = self.place(begun), self.place(fact.valid_until or now)
        ended = fact.valid_until is not None and fact.valid_until <= now
        state = "retired" if fact.superseded_at else "ended" if ended else "true"
        place = f'x="{begin:.1f}" y="{y - 8}" width="{max(3.0, end - begin):.1f}" height="16" rx="3"'
        arrow = "" if fact.valid_until else f'<path class="life {state}" d="M{end:.1f} {y - 8} l8 8 l-8 8 z"/>'
        row = (
            f"<title>{escape(self._about(fact, state))}</title>{self._words(words_of(fact), state, y)}"
            f'<rect class="life {state}" {place}/>{arrow}{self._marks(fact, begun, begin, y)}'
        )
        if self.link is None:
            return f"<g>{row}</g>"
        return f'<a href="{escape(self.link.format(id=quote(fact.id, safe="")))}"><g>{row}</g></a>'

    def _about(self, fact: Fact, state: str) -> str:
        words = f"{words_of(fact)}: {_STATES[state]}; true from {_day(fact.valid_from)} to {_day(fact.valid_until)}"
        words += f", learned {_day(fact.recorded_at)}"
        return f"{words}, given up {_day(fact.superseded_at)}" if fact.superseded_at else words

    def _words(self, words: str, state: str, y: int) -> str:
        text = escape(_cut(words, self.frame.letters))
        if self.frame is ABOVE:
            return f'<text x="{self.frame.left}" y="{y - 14}" class="{state}">{text}</text>'
        return f'<text x="{self.frame.left - 12}" y="{y + 4}" text-anchor="end" class="{state}">{text}</text>'

    def _marks(self, fact: Fact, begun: datetime, begin: float, y: int) -> str:
        marks = f'<path class="learned" d="M{self.place(fact.recorded_at):.1f} {y - 6} l6 6 l-6 6 l-6 -6 z"/>'
        if fact.superseded_at:
            x = self.place(fact.superseded_at) - 4
            marks += f'<path class="given-up" d="M{x:.1f} {y - 4} l8 8 m0 -8 l-8 8"/>'
        if begun.timestamp() < self.first:
            marks += f'<path class="earlier" d="M{begin + 9:.1f} {y - 4} l-5 4 l5 4"/>'
        return marks


_STATES: Final = {"true": "holds", "ended": "has ended", "retired": "no longer believed"}
LIVES_LEGEND: Final = (
    '<p class="legend"><span><i class="life-true"></i>holds</span><span><i class="life-ended"></i>has ended</span>'
    '<span><i class="life-retired"></i><s>no longer believed</s></span>'
    '<span><b aria-hidden="true">\N{BLACK DIAMOND}</b> learned</span>'
    '<span><b aria-hidden="true">\N{MULTIPLICATION SIGN}</b> given up</span>'
    '<span><b aria-hidden="true">|</b> as known on</span></p>'
)
"""What the marks of the lives mean."""


def words_of(fact: Fact) -> str:
    """A fact as people read it."""
    if fact.predicate.startswith("instruction"):
        return fact.object
    return f"{fact.subject} {fact.predicate.replace('_', ' ')} {fact.object}"


def _cut(text: str, length: float) -> str:
    """The beginning of a text, at most as wide as so many common letters."""
    text, left = plain_text(text[: int(length) * 4]), length
    for place, letter in enumerate(text):
        left -= _width(letter)
        if left < 0:
            return f"{text[:place]}\N{HORIZONTAL ELLIPSIS}"
    return text


def _width(letter: str) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in {"W", "F"}:
        return 1.9
    return 1.6 if letter in "MW@%" else 1.2 if letter.isupper() else 1.0


def _day(at: datetime | None) -> str:
    return "open" if at is None else at.date().isoformat()


class GraphFrame(NamedTuple):
    """Where the names of a graph stand: a circle of few names, whose labels lie beside them, or of many."""

    width: int
    heights: tuple[int, int]
    radii: tuple[tuple[int, int], tuple[int, int]]
    letters: tuple[int, int]
    is_narrow: bool = False


BROAD: Final = GraphFrame(_WIDE, (560, 800), ((300, 215), (250, 250)), (22, 22))
NARROW: Final = GraphFrame(400, (520, 400), ((135, 205), (95, 95)), (15, 12), is_narrow=True)


def graph_chart(facts: Sequence[Fact], *, link: str, frame: GraphFrame = BROAD) -> str:
    """Who and what is connected: names on a circle, larger with more facts, and a line for each fact between two."""
    degree = Counter[str]()
    for fact in facts:
        degree.update({fact.subject, fact.object})
    names = [name for name, _ in degree.most_common(MOST_NODES)]
    if not names:
        return ""
    many = len(names) > _FEW
    height = frame.heights[many]
    places = _ring(names, frame.width / 2, height / 2, frame.radii[many])
    between: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        if fact.subject != fact.object and fact.subject in places and fact.object in places:
            between.setdefault((fact.subject, fact.object), []).append(fact)
    labelled = len(between) <= _LABELLED and not frame.is_narrow
    edges = "".join(_edge(several, places, labelled=labelled) for several in between.values())
    label = _turned_label if many else _label_below if frame.is_narrow else _label_beside
    nodes = "".join(
        _node(name, degree[name], places[name], label, letters=frame.letters[many], link=link) for name in places
    )
    return (
        f'<svg class="graph{" narrow" if frame.is_narrow else ""}" viewBox="0 0 {frame.width} {height}" role="group" '
        f'aria-label="{len(names)} names and {sum(map(len, between.values()))} facts between them">{edges}{nodes}</svg>'
    )


_FEW: Final = 16
"""Names whose labels fit beside each other; those of more are turned."""
_LABELLED: Final = 24
"""Lines that have their words on them."""

Spot: TypeAlias = tuple[float, float, float]
"""Where a name stands, and in which direction from the middle; the one in the middle has 0 for it."""


def _ring(names: Sequence[str], x: float, y: float, radius: tuple[float, float]) -> dict[str, Spot]:
    """The name with most facts in the middle, the others around it."""
    centred = len(names) > 2
    around = names[1:] if centred else names
    places: dict[str, Spot] = {names[0]: (x, y, 0.0)} if centred else {}
    for number, name in enumerate(around):
        turn = 2 * math.pi * (number + 0.5) / len(around) - math.pi / 2
        places[name] = (x + radius[0] * math.cos(turn), y + radius[1] * math.sin(turn), math.degrees(turn))
    return places


def _edge(facts: Sequence[Fact], places: Mapping[str, Spot], *, labelled: bool) -> str:
    """The line of all facts between two names."""
    (x1, y1, _), (x2, y2, _) = places[facts[0].subject], places[facts[0].object]
    line = f'<line class="edge" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    words = ("instruction" if one.predicate.startswith("instruction") else one.predicate for one in facts)
    label = escape(_cut(", ".join(dict.fromkeys(words)).replace("_", " "), 26))
    at = 0.58  # nearer to the object, so that the words of lines from one name do not meet
    text = f'<text class="word" x="{x1 + (x2 - x1) * at:.1f}" y="{y1 + (y2 - y1) * at + 4:.1f}" text-anchor="middle">'
    told = escape("\n".join(words_of(one) for one in facts[:20]))
    return f"<g><title>{told}</title>{line}{f'{text}{label}</text>' if labelled else ''}</g>"


def _node(
    name: str, facts: int, spot: Spot, label: Callable[[Spot, float, str], str], *, letters: int, link: str
) -> str:
    size = min(6 + 4 * math.sqrt(facts), 26.0)
    words = escape(_cut(name, letters))
    text = _label_above(spot, size, words) if spot[2] == 0 else label(spot, size, words)
    count = f"{facts} fact{'' if facts == 1 else 's'}"
    return (
        f'<a href="{escape(link.format(name=quote(name, safe="")))}"><g><title>{escape(name)}: {count}</title>'
        f'<circle class="node" cx="{spot[0]:.1f}" cy="{spot[1]:.1f}" r="{size:.1f}"/>{text}</g></a>'
    )


def _side(spot: Spot) -> tuple[int, str]:
    """On which side of its name a label stands, and from where it is written."""
    return (1, "start") if math.cos(math.radians(spot[2])) >= 0 else (-1, "end")


def _label_above(spot: Spot, size: float, words: str) -> str:
    return f'<text class="name" x="{spot[0]:.1f}" y="{spot[1] - size - 6:.1f}" text-anchor="middle">{words}</text>'


def _label_below(spot: Spot, size: float, words: str) -> str:
    return f'<text class="name" x="{spot[0]:.1f}" y="{spot[1] + size + 14:.1f}" text-anchor="middle">{words}</text>'


def _label_beside(spot: Spot, size: float, words: str) -> str:
    side, anchor = _side(spot)
    x, y = spot[0] + side * (size + 6), spot[1] + 4
    return f'<text class="name" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _turned_label(spot: Spot, size: float, words: str) -> str:
    x, y, turn = spot
    side, anchor = _side(spot)
    angle = turn if side > 0 else turn + 180
    place = f'transform="translate({x:.1f} {y:.1f}) rotate({angle:.1f})" x="{side * (size + 5):.1f}" y="4"'
    return f'<text class="name" {place} text-anchor="{anchor}">{words}</text>'


# -- the windows of requests

SECTIONS: Final = ("tools", "foundation", "focus", "topic", "convo", "recalled", "step", "attention")
"""The sections in the order in which a prompt has them."""


@dataclass(frozen=True, slots=True)
class SectionUse:
    """A section of one request: its tokens, and how many of them were read, written, or neither."""

    name: str
    tokens: int
    read: float | None
    written: float | None
    fresh: float | None
    usd: float | None

    @property
    def kind(self) -> int:
        """The number of its colour."""
        return _colour(self.name)


def ordered(sections: Mapping[str, int]) -> list[tuple[str, int]]:
    """Sections as a prompt has them; those with other names come last."""
    known = [name for name in SECTIONS if sections.get(name)]
    return [(name, sections[name]) for name in (*known, *(other for other in sections if other not in SECTIONS))]


def small_bar(sections: Mapping[str, int]) -> str:
    """The window of one request in a row of a table."""
    total = sum(sections.values())
    if not total:
        return ""
    x, parts = 0.0, list[str]()
    for name, tokens in ordered(sections):
        size = tokens / total * 160
        rect = f'<rect class="s{_colour(name)}" x="{x:.1f}" y="0" width="{max(size - 1, 0.5):.1f}" height="14"/>'
        parts.append(f"<g><title>{escape(f'{name}: {tokens:,} tokens, {tokens / total:.0%}')}</title>{rect}</g>")
        x += size
    label = escape(", ".join(f"{name} {tokens:,}" for name, tokens in ordered(sections)))
    return f'<svg class="window small" viewBox="0 0 160 14" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def window_bar(uses: Sequence[SectionUse], cache: Mapping[str, int] | None, *, width: int = _WIDE) -> str:
    """The window of one request: above, a part for each section, as long as its tokens; below, what the cache did.

    `cache` has the tokens that were read, written and neither, in this order; None where that was not reported. A cache
    holds the start of a prompt, so both rows go from left to right as the prompt does.
    """
    total = sum(use.tokens for use in uses)
    if not total:
        return ""
    x, parts = 0.0, list[str]()
    for use in uses:
        size = use.tokens / total * width
        told = escape(_told(use, total))
        name = _cut(use.name, (size - 12) / 7.5) if size > 90 else use.name
        fits = sum(map(_width, name)) * 7.5 <= size - 8
        text = f'<text class="in" x="{x + 6:.1f}" y="29">{escape(name)}</text>' if fits else ""
        rect = f'<rect class="s{use.kind}" x="{x:.1f}" y="4" width="{max(size - 2, 1):.1f}" height="40" rx="3"/>'
        parts.append(f'<g role="img" aria-label="{told}"><title>{told}</title>{rect}{text}</g>')
        x += size
    label = escape(f"a window of {total:,} tokens: " + ", ".join(f"{use.name} {use.tokens:,}" for use in uses))
    return (
        f'<svg class="window" viewBox="0 0 {width} 84" role="group" aria-label="{label}">'
        f"{''.join(parts)}{_cache_row(cache, width)}</svg>"
    )


def _told(use: SectionUse, total: int) -> str:
    text = f"{use.name}: {use.tokens:,} tokens, {use.tokens / total:.0%} of the window"
    if use.read is not None and use.written is not None and use.fresh is not None:
        text += f"; read {use.read:,.0f}, written {use.written:,.0f}, neither {use.fresh:,.0f}"
    return text + ("" if use.usd is None else f"; ${use.usd:.6f}")


def _cache_row(cache: Mapping[str, int] | None, width: int) -> str:
    if cache is None or not sum(cache.values()):
        return (
            f'<g><rect class="unknown" x="1" y="50" width="{width - 2}" height="14" rx="3"/>'
            f'<text x="6" y="80">what the cache did was not reported</text></g>'
        )
    whole, x, parts = sum(cache.values()), 0.0, list[str]()
    words = {
        kind: f"{'neither' if kind == 'fresh' else kind} {tokens:,} ({tokens / whole:.0%})"
        for kind, tokens in cache.items()
    }
    for kind, tokens in cache.items():
        size = tokens / whole * width
        told = escape(words[kind])
        rect = f'<rect class="{kind}" x="{x:.1f}" y="50" width="{max(size - 2, 1):.1f}" height="14" rx="3"/>'
        if tokens:
            parts.append(f'<g role="img" aria-label="{told}"><title>{told}</title>{rect}</g>')
        x += size
    return f'{"".join(parts)}<text x="0" y="80">{escape(", ".join(words.values()))}</text>'


def sections_chart(windows: Sequence[Mapping[str, int]], hrefs: Sequence[str]) -> str:
    """One bar for each request in the order of time, by section."""
    return "".join(_section_bars(windows, hrefs, width) for width in (_NARROW, _WIDE))


def _section_bars(windows: Sequence[Mapping[str, int]], hrefs: Sequence[str], wide: int) -> str:
    top = max((sum(sections.values()) for sections in windows), default=0) or 1
    room = 190 if len(windows) > 12 else 96
    base, step = 22 + room, (wide - 62) / max(len(windows), 24)
    bars = list[str]()
    for number, (sections, href) in enumerate(zip(windows, hrefs, strict=True)):
        y, parts = float(base), list[str]()
        for name, tokens in ordered(sections):
            height = room * tokens / top
            y -= height
            width = max(0.6, step - (1.5 if step > 5 else 0.3))
            place = f'x="{58 + number * step:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            parts.append(f'<rect class="s{_colour(name)}" {place}/>')
        told = escape(", ".join(f"{name} {tokens:,}" for name, tokens in ordered(sections)) or "sections not recorded")
        told = f"request {number + 1}: {told}"
        bars.append(f'<a href="{escape(href)}" aria-label="{told}"><g><title>{told}</title>{"".join(parts)}</g></a>')
    axis = (
        f'<line class="axis" x1="58" x2="{58 + len(windows) * step:.1f}" y1="{base}" y2="{base}"/>'
        f'<text x="52" y="30" text-anchor="end">{top:,}</text>'
        f'<text x="52" y="{base}" text-anchor="end">0</text>'
    )
    return (
        f'<svg class="bars{" narrow" if wide == _NARROW else ""}" viewBox="0 0 {wide} {base + 6}" role="group" '
        f'aria-label="{len(windows):,} requests by section">{axis}{"".join(bars)}</svg>'
    )


def sections_legend(windows: Iterable[Mapping[str, int]]) -> str:
    """What the colours of these windows mean."""
    used = ordered({name: 1 for sections in windows for name in sections})
    names = "".join(f'<span><i class="s{_colour(name)}"></i>{escape(name)}</span>' for name, _ in used)
    return f'<p class="legend">{names}<span>tokens of each prompt, by estimate</span></p>'


def _colour(section: str) -> int:
    """The number of the colour of a section."""
    return SECTIONS.index(section) if section in SECTIONS else len(SECTIONS)


# -- a conversation on a line


@dataclass(frozen=True, slots=True)
class LineMark:
    """A thing on the line of a conversation."""

    kind: str
    """`user`, `assistant`, `tool`, `compaction` or `other`."""
    told: str
    href: str
    covered: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """A conversation that was forked from this one."""

    after: int
    """How many entries it took over."""
    name: str
    href: str


_SHAPES: Final[Mapping[str, str]] = {
    "user": "M{x:.1f} 54 v-22",
    "assistant": "M{x:.1f} 54 v-12",
    "tool": "M{x:.1f} 54 m-3 -18 h6 v6 h-6 z",
    "other": "M{x:.1f} 54 v-5",
}
_COLUMNS: Final = 320


def line_chart(marks: Sequence[LineMark], *, points: Sequence[int], branches: Sequence[Branch]) -> str:
    """A conversation from left to right: turns, tools, compactions with what they cover, checkpoints and forks.

    `points` are the positions of checkpoints. Of more entries than there is room for, neighbours share a column.
    """
    size = -(-len(marks) // _COLUMNS) or 1
    shared = f"each column is {size} entries" if size > 1 else ""
    return "".join(_line(marks, points, branches, size, width) for width in (_NARROW, _WIDE)) + (
        '<p class="legend"><span><i class="m-user"></i>user</span><span><i class="m-assistant"></i>assistant</span>'
        '<span><i class="m-tool"></i>tool</span>'
        '<span><b aria-hidden="true">\N{BLACK DOWN-POINTING TRIANGLE}</b> compaction</span>'
        '<span><i class="m-covered"></i>covered by it</span><span><i class="m-point"></i>checkpoint</span>'
        f'<span><b aria-hidden="true">\N{RIGHTWARDS ARROW}</b> fork</span><span>{shared}</span></p>'
    )


def _line(marks: Sequence[LineMark], points: Sequence[int], branches: Sequence[Branch], size: int, width: int) -> str:
    """The line in one of its widths, with so many entries in a column."""
    columns = [marks[start : start + size] for start in range(0, len(marks), size)]
    step = min((width - 40) / max(len(columns), 1), 26.0)

    def place(position: float) -> float:
        return 20 + position / size * step

    parts = [f'<line class="thread" x1="14" x2="{place(len(marks)) + 6:.1f}" y1="54" y2="54"/>']
    for number, column in enumerate(columns):
        x = place((number + 0.5) * size)
        if any(mark.covered for mark in column):
            parts.append(f'<rect class="covered" x="{x - step / 2:.1f}" y="28" width="{step + 0.3:.1f}" height="26"/>')
        parts.append(_column(column, x))
    distinct = {round(place(point), 0): point for point in points}
    parts += (f'<path class="point" d="M{place(position):.1f} 58 v8"/>' for position in distinct.values())
    for number, branch in enumerate(branches[:_BRANCHES]):
        y, x = 92 + number * 22, place(branch.after)
        words = _cut(branch.name, 22 if width == _NARROW else 34)
        beside = f'x="{x + 28:.1f}"' if x + 28 + 8 * len(words) < width else f'x="{x - 8:.1f}" text-anchor="end"'
        parts.append(
            f'<a href="{escape(branch.href)}"><g><title>{escape(branch.name)}</title>'
            f'<path class="branch" d="M{x:.1f} 66 V{y - 12} q0 8 8 8 h14 m-6 -5 l6 5 l-6 5"/>'
            f'<text {beside} y="{y}">{escape(words)}</text></g></a>'
        )
    height = 78 + 22 * min(len(branches), _BRANCHES)
    about = f"{len(marks):,} entries, {len(points):,} checkpoints, {len(branches):,} forks"
    kind = "line narrow" if width == _NARROW else "line"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="group" aria-label="{about}">{"".join(parts)}</svg>'
    )


_BRANCHES: Final = 5


def _column(column: Sequence[LineMark], x: float) -> str:
    """The marks of one column; the most telling of them is the link."""
    first = min(column, key=lambda mark: ("compaction", "tool", "user", "assistant", "other").index(mark.kind))
    shapes = "".join(
        f'<path class="m-{kind}" d="{_SHAPES[kind].format(x=x)}"/>'
        for kind in ("other", "assistant", "user", "tool")
        if any(mark.kind == kind for mark in column)
    )
    if first.kind == "compaction":
        shapes += f'<path class="m-compaction" d="M{x - 7:.1f} 8 h14 l-7 12 z m7 12 v34"/>'
    told = escape(_cut(first.told, 160) if len(column) == 1 else f"{_cut(first.told, 120)} and {len(column) - 1} more")
    return (
        f'<a href="{escape(first.href)}" aria-label="{told}"><g><title>{told}</title>'
        f'<rect class="reach" x="{x - 4:.1f}" y="6" width="8" height="50"/>{shapes}</g></a>'
    )
