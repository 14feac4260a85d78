"""The timeline of dated statements about one subject and predicate: which object was true when.

The result is a function of the set of statements alone, so the order in which they arrive cannot matter:
- a statement of zero length says nothing;
- a statement is true from its start until its stated end; an open end was not stated yet, so it takes the next end
  that another statement of the same object names;
- a statement with an end and no start is an ending: every statement of its object that began before it stops there.
  If there is none, it states that the object was true until then;
- at each moment the single-valued statement that began last hides all that began before it. Of two that began
  together, the one with the greater first source counts as later, then the one with the greater object.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from loom.core.record import Fact
from loom.memory.entities import cardinality_of, normalise

ALWAYS: Final = -1
"""An open start: before every possible time."""
FOREVER: Final = 1 << 62
"""An open end: after every possible time. Microseconds since year 1 stay below 2**59."""
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with its interval in microseconds; `fact` is the record that holds it."""

    fact: Fact
    object: str
    start: int
    end: int
    single: bool
    active: bool

    @property
    def is_ending(self) -> bool:
        """Whether it only states an end."""
        return self.start == ALWAYS and self.end != FOREVER

    @property
    def order(self) -> tuple[int, str, str, bool]:
        """Sort key: the greatest statement is the latest one."""
        return (self.start, self.fact.sources[0] if self.fact.sources else "", self.object, self.single)

    @property
    def identity(self) -> tuple[str, int, int, bool]:
        """Two statements with one identity say the same."""
        return (self.object, self.start, self.end, self.single)


@dataclass(frozen=True, slots=True)
class Segment:
    """An interval in which an object was the answer; `by` are the statements that won or began in it."""

    object: str
    start: int
    end: int
    by: tuple[Statement, ...]


def statement_of(fact: Fact) -> Statement:
    """The statement that a fact holds. A fact superseded by no other was retracted."""
    return Statement(
        fact=fact,
        object=normalise(fact.object),
        start=ALWAYS if fact.valid_from is None else _ticks(fact.valid_from),
        end=FOREVER if fact.valid_until is None else _ticks(fact.valid_until),
        single=cardinality_of(fact.predicate, fact.cardinality) == "single",
        active=fact.superseded_at is None or fact.superseded_by is not None,
    )


def moment(ticks: int) -> datetime | None:
    """The time of a boundary; None for an open one."""
    return None if ticks in {ALWAYS, FOREVER} else _FIRST + ticks * _TICK


def timeline(statements: Iterable[Statement]) -> tuple[Segment, ...]:
    """The segments that result from these statements, by start, then by object."""
    active = [s for s in statements if s.active and s.start < s.end]
    spans = sorted(_effective(active), key=lambda s: s.order)
    edges = sorted({edge for s in spans for edge in (s.start, s.end)})
    starts = [s.start for s in spans]
    one_object = len({s.object for s in spans}) < 2
    open_: dict[str, tuple[int, set[str]]] = {}
    done: list[tuple[str, int, int, set[str]]] = []
    for left in edges:
        # At the last edge nothing is true any longer, so every segment gets its end.
        answers = _answers(spans[: bisect_right(starts, left)], left, one_object=one_object)
        for name in set(open_) - set(answers):
            start, ids = open_.pop(name)
            done.append((name, start, left, ids))
        for name, by in answers.items():
            open_.setdefault(name, (left, set()))[1].update(s.fact.id for s in by)
    stated = {s.fact.id: s for s in active}
    segments: list[Segment] = []
    for name, start, end, ids in done:
        ids |= {s.fact.id for s in spans if s.object == name and start <= s.start < end}
        by = sorted((stated[id] for id in ids), key=lambda s: (s.order, s.fact.id))
        segments.append(Segment(name, start, end, tuple(by)))
    return tuple(sorted(segments, key=lambda s: (s.start, s.object)))


def _ticks(at: datetime) -> int:
    return (at - _FIRST) // _TICK


def _effective(active: Sequence[Statement]) -> list[Statement]:
    """The statements with the ends that the others imply, without those that are never true."""
    ends: dict[str, list[int]] = {}
    endings: dict[str, list[int]] = {}
    begins: dict[str, int] = {}
    for s in active:
        if s.end != FOREVER:
            ends.setdefault(s.object, []).append(s.end)
        if s.is_ending:
            endings.setdefault(s.object, []).append(s.end)
        else:
            begins[s.object] = min(s.start, begins.get(s.object, s.start))
    spans: list[Statement] = []
    for s in active:
        if s.is_ending and begins.get(s.object, FOREVER) < s.end:
            continue
        stops = (endings if s.end != FOREVER else ends).get(s.object, [])
        end = min([s.end, *(stop for stop in stops if stop > s.start)])
        if end > s.start:
            spans.append(s if end == s.end else replace(s, end=end))
    return spans


def _answers(begun: Sequence[Statement], at: int, *, one_object: bool) -> dict[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    for s in reversed(begun):
        if at < s.end:
            found.setdefault(s.object, []).append(s)
            if s.single or one_object:
                break
    return found
