"""Pictures of the inspector as SVG: layers, the lives of facts, and the graph of who is connected.

Every text is escaped. Colours come from the style sheet, by class; nothing is told by colour alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from loom.core.record import Fact


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
_ROW: Final = 30
_WIDE: Final = 960
_LABEL: Final = 300
MOST_LIVES: Final = 200
"""Facts of one picture; the list below has all of them."""
MOST_NODES: Final = 60
"""Names in the graph, those with most facts first."""


def layers_chart(counts: Mapping[str, int]) -> str:
    """The layers from left to right, each with its number of records, and where they go from there."""
    boxes = list[str]()
    for number, (label, name) in enumerate(_LAYERS.items()):
        x = 8 + number * 190
        boxes.append(
            f'<g><rect class="box" x="{x}" y="10" width="150" height="64" rx="8"/>'
            f'<text class="figure" x="{x + 75}" y="40" text-anchor="middle">{counts.get(label, 0):,}</text>'
            f'<text x="{x + 75}" y="60" text-anchor="middle">{label if label != "archived" else ""} {name}</text></g>'
        )
        if number < len(_LAYERS) - 1:
            boxes.append(f'<path class="flow" d="M{x + 152} 42 h30 m-6 -5 l6 5 l-6 5"/>')
    told = ", ".join(f"{name} {counts.get(label, 0):,}" for label, name in _LAYERS.items())
    label = escape(f"records by layer: {told}")
    return f'<svg viewBox="0 0 {_WIDE} 84" role="img" aria-label="{label}">{"".join(boxes)}</svg>'


def lives_chart(facts: Sequence[Fact], *, now: datetime, link: str) -> str:
    """The life of each fact as a bar from when it became true to when it ceased to be; retired ones are faded."""
    shown = sorted(facts, key=lambda fact: (fact.subject, fact.predicate, fact.recorded_at))[:MOST_LIVES]
    if not shown:
        return ""
    moments = [at for fact in shown for at in (fact.valid_from or fact.recorded_at, fact.valid_until) if at is not None]
    first, last = min(moments).timestamp(), max(*moments, now).timestamp()
    span = max(last - first, 1.0)

    def place(at: datetime) -> float:
        return _LABEL + (at.timestamp() - first) / span * (_WIDE - _LABEL - 16)

    rows = list[str]()
    for number, fact in enumerate(shown):
        y = 24 + number * _ROW
        begin, end = place(fact.valid_from or fact.recorded_at), place(fact.valid_until or now)
        state = "retired" if fact.superseded_at else "ended" if fact.valid_until and fact.valid_until <= now else "true"
        label = fact.text if len(fact.text) <= 38 else f"{fact.text[:37]}\N{HORIZONTAL ELLIPSIS}"
        about = f"{fact.text}: {state}, true from {_day(fact.valid_from)} until {_day(fact.valid_until)}"
        arrow = "" if fact.valid_until else f'<path class="life {state}" d="M{end:.1f} {y - 8} l8 8 l-8 8 z"/>'
        rows.append(
            f'<a href="{escape(link.format(id=quote(fact.id, safe="")))}"><g><title>{escape(about)}</title>'
            f'<text x="{_LABEL - 10}" y="{y + 4}" text-anchor="end" class="{state}">{escape(label)}</text>'
            f'<rect class="life {state}" x="{begin:.1f}" y="{y - 8}" width="{max(3.0, end - begin):.1f}" '
            f'height="16" rx="3"/>'
            f"{arrow}</g></a>"
        )
    height = 24 + len(shown) * _ROW + 16
    axis = (
        f'<line class="axis" x1="{_LABEL}" x2="{_LABEL}" y1="8" y2="{height - 22}"/>'
        f'<text x="{_LABEL}" y="{height - 4}">{_day(datetime.fromtimestamp(first, UTC))}</text>'
        f'<text x="{_WIDE - 8}" y="{height - 4}" text-anchor="end">{_day(datetime.fromtimestamp(last, UTC))}</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDE} {height}" role="group" aria-label="the lives of {len(shown)} facts">{axis}'
        f"{''.join(rows)}</svg>"
    )


def _day(at: datetime | None) -> str:
    return "open" if at is None else f"{at:%Y-%m-%d}"


def graph_chart(facts: Sequence[Fact], *, link: str) -> str:
    """Who and what is connected: names on a circle, larger with more facts, and a line for each fact between two."""
    degree = Counter[str]()
    for fact in facts:
        degree.update((fact.subject, fact.object))
    names = [name for name, _ in degree.most_common(MOST_NODES)]
    if not names:
        return ""
    side, centre = 720, 360
    places: dict[str, tuple[float, float]] = {}
    for number, name in enumerate(sorted(names, key=lambda one: (-degree[one], one))):
        turn = 2 * math.pi * number / len(names) - math.pi / 2
        ring = 90 if number == 0 and len(names) > 2 else 260
        places[name] = (centre + ring * math.cos(turn), centre + ring * math.sin(turn))
    places[names[0]] = (centre, centre) if len(names) > 2 else places[names[0]]
    lines = [
        f'<line class="edge" x1="{places[f.subject][0]:.1f}" y1="{places[f.subject][1]:.1f}" '
        f'x2="{places[f.object][0]:.1f}" y2="{places[f.object][1]:.1f}"><title>{escape(f.text)}</title></line>'
        for f in facts
        if f.subject in places and f.object in places
    ]
    nodes = list[str]()
    for name, (x, y) in places.items():
        size = 6 + 5 * math.sqrt(degree[name])
        anchor = "middle" if abs(x - centre) < 40 else "start" if x > centre else "end"
        at = x if anchor == "middle" else x + size + 4 if anchor == "start" else x - size - 4
        low = y - size - 6 if anchor == "middle" else y + 4
        label = name if len(name) <= 24 else f"{name[:23]}\N{HORIZONTAL ELLIPSIS}"
        nodes.append(
            f'<a href="{escape(link.format(name=quote(name, safe="")))}"><g><title>{escape(name)}: {degree[name]} facts'
            f'</title><circle class="node" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}"/>'
            f'<text x="{at:.1f}" y="{low:.1f}" text-anchor="{anchor}">{escape(label)}</text></g></a>'
        )
    return (
        f'<svg class="graph" viewBox="-120 0 {side + 240} {side}" role="group" '
        f'aria-label="{len(names)} names and {len(lines)} facts between them">{"".join(lines)}{"".join(nodes)}</svg>'
    )


_SECTIONS: Final = ("tools", "foundation", "focus", "topic", "convo", "recalled", "step", "attention")


def window_bar(sections: Mapping[str, int], *, wide: bool = False) -> str:
    """The window of one request: a bar with a part for each section, as long as its tokens."""
    total = sum(sections.values())
    if not total:
        return ""
    width, height = (_WIDE, 44) if wide else (160, 14)
    x, parts = 0.0, list[str]()
    known = [name for name in _SECTIONS if name in sections]
    for name in (*known, *(other for other in sections if other not in _SECTIONS)):
        size = sections[name] / total * width
        kind = _SECTIONS.index(name) if name in _SECTIONS else len(_SECTIONS)
        share = f"{name}: {sections[name]:,} tokens, {sections[name] / total:.0%}"
        text = f'<text x="{x + 4:.1f}" y="27">{escape(name)}</text>' if wide and size > 8 * len(name) + 8 else ""
        rect = f'<rect class="s{kind}" x="{x:.1f}" y="0" width="{max(size - 1, 0.5):.1f}" height="{height}"/>'
        parts.append(f"<g><title>{escape(share)}</title>{rect}{text}</g>")
        x += size
    label = escape(", ".join(f"{name} {count:,}" for name, count in sections.items()))
    told = f'<p class="dim">{label}</p>' if wide else ""
    return (
        f'<svg class="window{"" if wide else " small"}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>{told}"
    )
