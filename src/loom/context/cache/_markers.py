"""Placement of cache markers: on the last part whose prefix will be the same in the next request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loom.catalog import CacheRules
from loom.context.render.layout import Layout, WireSlot
from loom.core.cache_blocks import positions
from loom.core.message import ToolCallPart, ToolResultPart
from loom.core.window import SECTIONS, VOLATILE, SectionName, section_name
from loom.errors import BadCacheTTL, TooManyBreakpoints

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
    stable = [slot for slot in layout.slots() if not slot.volatile and may_mark(slot)]
    if names is None:
        placement.mark(_last(stable, lambda s: s.section != "convo"), "end of what is static")
    for name in names or ():
        _mark_section(placement, stable, name)
    convo = [slot for slot in stable if slot.section == "convo"]
    placement.mark(convo[-1] if convo else None, "end of the conversation")
    if rules.matching == "exact":  # no limit to keep to: of more markers than it takes, the provider uses the latest
        _mark_past_ends(placement, layout, stable)
    else:
        _mark_previous_tail(placement, layout, rules, stable)
        _keep_to_limit(placement, rules.max_markers - automatic, layout, convo[-1] if convo else None)
    return placement


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


def _mark_section(placement: Placement, stable: list[WireSlot], name: SectionName) -> None:
    """Mark a section's last part, or, where it is empty, the last part before it: the same prefix."""
    if name in VOLATILE:
        message = f"no breakpoint on {name}: it changes with every request, so a prefix that ends there never hits"
        placement.warnings.append(("volatile_breakpoint", message))
        return
    own = _last(stable, lambda slot: slot.section == name)
    if own is None:
        own = _last(stable, lambda slot: _rank(slot) < SECTIONS.index(name))
        placement.warnings.append(
            ("empty_section", f"{name} is empty; its breakpoint is at the end of what precedes it")
        )
    placement.mark(own, f"end of {name}")


def _mark_previous_tail(placement: Placement, layout: Layout, rules: CacheRules, stable: list[WireSlot]) -> None:
    """Mark where the last request ended, if a lookback from the new end would not reach it."""
    tail = stable[-1] if stable else None
    if layout.previous_tail is None or tail is None:
        return
    slots = list(layout.slots())
    order = {slot: number for number, slot in enumerate(slots)}
    start, end = order[layout.previous_tail], order[tail]
    kinds = [_KINDS.get(type(slot.content), "") for slot in slots[start + 1 : end + 1]]
    if max(positions(kinds, collapse_runs=rules.collapse_runs), default=0) > rules.lookback - _LOOKBACK_MARGIN:
        placement.mark(_last(stable, lambda slot: order[slot] <= start), _PREVIOUS_END)


def _mark_past_ends(placement: Placement, layout: Layout, stable: list[WireSlot]) -> None:
    """Mark earlier ends again: with exact matching an entry is found only at a marker of the new request."""
    known = set(stable)
    order = {slot: number for number, slot in enumerate(layout.slots())}
    ends = [turn.slots[-1] for turn in layout.turns if turn.role != "assistant" and turn.slots[-1] in known]
    if layout.previous_tail is not None:
        start = order[layout.previous_tail]
        ends += [slot for slot in stable if order[slot] <= start][-1:]
    for slot in ends[-_REMARKED:]:
        placement.mark(slot, "end of an earlier request")
    placement.markers = dict(sorted(placement.markers.items(), key=lambda item: order[item[0]]))


def _keep_to_limit(placement: Placement, limit: int, layout: Layout, tail: WireSlot | None) -> None:
    """Give up the earliest markers first: a later one covers everything before it.

    Two never give way: the end, where the next request looks, and the end of the previous request, which is read now.
    """
    marked = [slot for slot in layout.slots() if slot in placement.markers]
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
