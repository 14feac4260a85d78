"""Facts with two time axes: what a new claim changes, and their history.

Every claim is stored as a statement, a fact with the interval that was claimed. The timeline of all statements of one
subject and predicate (see loom.memory.timeline) is what is believed. If the believed interval differs from a
statement's, a version holds it: its id is the statement's plus `~` and a number, and the statement is superseded. A
statement that was never believed as claimed has `superseded_at` equal to `recorded_at`: no query returns it, but it
keeps the result independent of the order in which claims arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from loom.core.checks import as_utc
from loom.core.clock import RecordIds
from loom.core.record import Claim, Fact, Provenance
from loom.errors import NotFound
from loom.memory._facts.entities import NO_ALIASES, Aliases, cardinality_of, normalise, predicate_key
from loom.text.fence import one_line

# The timeline of dated statements about one subject and predicate: which object was true when.
#
# The result is a function of the set of statements alone, so the order in which they arrive cannot matter:
# - a statement of zero length says nothing;
# - a statement is true from its start until its stated end; an open end was not stated yet, so it takes the next end
#   that another statement of the same object names;
# - a statement with an end and no start is an ending: every statement of its object that began before it stops there.
#   If there is none, it states that the object was true until then;
# - at each moment the single-valued statement that began last hides all that began before it. Of two that began
#   together, the one with the greater first source counts as later, then the one with the greater object.

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


ChangeKind: TypeAlias = Literal[
    "new", "again", "supersedes", "split", "bounded", "ends", "retracted", "restored", "nothing"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """The facts to write in one transaction, the kind of change, and the reason in one line.

    `new` adds to what was known; `again` adds sources, and may widen the interval; `supersedes` closes the interval of
    another object, `split` leaves it on both sides; `bounded` is an older claim that a newer one limits; `ends` closes
    without a new object; `nothing` writes nothing.
    """

    put: tuple[Fact, ...]
    what: ChangeKind
    reason: str


def slot_of(fact: Fact | Claim, aliases: Aliases = NO_ALIASES) -> tuple[str, str]:
    """The subject and predicate under which facts compete. Facts of different slots do not affect each other."""
    return (aliases.key(fact.subject), predicate_key(fact.predicate))


def statements_of(facts: Iterable[Fact]) -> list[Statement]:
    """The statements among facts, without the versions that only hold believed intervals."""
    known = {fact.id: fact for fact in facts}
    return [statement_of(fact) for fact in known.values() if _origin(fact.id, known) == fact.id]


def assert_claim(
    existing: Sequence[Fact],
    claim: Claim,
    *,
    now: datetime,
    ids: RecordIds,
    provenance: Provenance,
    aliases: Aliases = NO_ALIASES,
) -> FactChange:
    """The change that a claim makes.

    `existing` are the user's facts, including retired ones; other subjects and predicates are ignored. A claim with
    neither start nor end begins `now`; one with an end and no start states that something has ended.
    """
    slot = _Slot(existing, slot_of(claim, aliases), aliases, now)
    claimed = _fact_of(claim, slot.now, provenance)
    new = statement_of(claimed)
    same = [s for s in slot.statements if s.identity == new.identity]
    if any(not s.active and set(claimed.sources) <= set(s.fact.sources) for s in same):
        return FactChange(put=(), what="nothing", reason=f"{claimed.text}: these sources were taken back before")
    known = next((s for s in same if s.active), None)
    if known is None:
        new = statement_of(replace(claimed, id=ids.next_id()))
        return _describe(slot, new, slot.settle([*slot.statements, new], cause=new.fact.id, fresh=new))
    merged = replace(known, fact=_merged(known.fact, claimed))
    slot.facts[known.fact.id] = merged.fact
    put = slot.settle([merged if s is known else s for s in slot.statements], cause=merged.fact.id)
    if merged.fact != known.fact and all(fact.id != merged.fact.id for fact in put):
        put = (*put, merged.fact)
    changed = f"{len(claimed.sources)} source(s) added" if put else "nothing new in it"
    return FactChange(put=put, what="again" if put else "nothing", reason=f"{claimed.text}: said before, {changed}")


def retract(existing: Sequence[Fact], fact: Fact, *, now: datetime, aliases: Aliases = NO_ALIASES) -> FactChange:
    """Retract a fact: it is not believed any longer, and what it had closed or hidden is believed again."""
    slot = _Slot(existing, slot_of(fact, aliases), aliases, now)
    stored = slot.stored(fact)
    back = slot.supporting(stored)
    # The retired fact keeps the sources of all its statements, so that restore() finds exactly these again.
    sources = tuple(dict.fromkeys([*stored.sources, *(source for s in back for source in s.fact.sources)]))
    slot.facts[stored.id] = replace(stored, sources=sources)
    return slot.without(back, "retracted", f"{stored.text}: taken back")


def restore(existing: Sequence[Fact], fact: Fact, *, now: datetime, aliases: Aliases = NO_ALIASES) -> FactChange:
    """Undo what retired a fact: its retraction, or the one fact that superseded it, which is retracted."""
    slot = _Slot(existing, slot_of(fact, aliases), aliases, now)
    stored = slot.stored(fact)
    gone = {s.fact.id for s in slot.retracted_for(stored)}
    if stored.superseded_at is not None and gone:
        again = [replace(s, active=True) if s.fact.id in gone else s for s in slot.statements]
        put = slot.settle(again, cause=min(gone), touched=gone)
        return FactChange(put=put, what="restored", reason=f"{stored.text}: believed again")
    winners = [s for s in slot.statements if s.active and s.fact.id == stored.superseded_by]
    rivals = [s for s in winners if s.object != normalise(stored.object) or s.is_ending]
    if not rivals:
        return FactChange(put=(), what="nothing", reason=f"{stored.text}: no other fact retired it")
    return slot.without(rivals, "restored", f"{stored.text}: what retired it ({rivals[0].fact.text}) is taken back")


def supporting_ids(existing: Sequence[Fact], fact: Fact, *, aliases: Aliases = NO_ALIASES) -> set[str]:
    """The ids of the statements that a stored fact is based on, its own included."""
    slot = _Slot(existing, slot_of(fact, aliases), aliases, fact.recorded_at)
    return {_origin(fact.id, slot.facts), *(s.fact.id for s in slot.supporting(slot.stored(fact)))}


def versions_of(existing: Iterable[Fact], gone: Container[str]) -> set[str]:
    """The ids of these statements and of their versions."""
    known = {fact.id for fact in existing}
    return {id for id in known if id in gone or _origin(id, known) in gone}


def resettle_without(
    existing: Sequence[Fact], gone: Container[str], *, now: datetime, aliases: Aliases = NO_ALIASES
) -> tuple[Fact, ...]:
    """What to write when statements and their versions are deleted: what they had closed is believed again."""
    left = [fact for fact in existing if fact.id not in gone]
    return resettle(left, [fact for fact in existing if fact.id in gone], now=now, aliases=aliases)


def resettle(
    existing: Sequence[Fact], beside: Iterable[Fact], *, now: datetime, aliases: Aliases = NO_ALIASES
) -> tuple[Fact, ...]:
    """What to write where the stored facts differ from the timeline of all statements; usually nothing.

    Two processes that decide at the same time do not see each other's facts. That leaves two believed facts where one
    is possible, or loses the sources of the first writer. `beside` are the facts as this process wrote them.
    """
    beside = list(beside)
    known = {fact.id: fact for fact in existing}
    put: dict[str, Fact] = {}
    for written in beside:
        stored = known.get(written.id)
        if stored is not None and not {*written.sources} <= {*stored.sources}:
            known[written.id] = put[written.id] = _merged(stored, written)
    for key in dict.fromkeys(slot_of(fact, aliases) for fact in beside):
        slot = _Slot(tuple(known.values()), key, aliases, now)
        statements = slot.statements
        if not any(s.single for s in statements):
            # Multi-valued: objects do not compete, so only those written can change. A slot may hold thousands more.
            objects = {normalise(fact.object) for fact in beside}
            statements = [s for s in statements if s.object in objects]
        put |= {fact.id: fact for fact in slot.settle(statements, cause=None)}
    return tuple(put.values())


class _Slot:
    """The facts of one subject and predicate, and the operations on them."""

    def __init__(self, existing: Sequence[Fact], key: tuple[str, str], aliases: Aliases, now: datetime) -> None:
        self.facts = {f.id: f for f in existing if predicate_key(f.predicate) == key[1] and slot_of(f, aliases) == key}
        self.statements = statements_of(self.facts.values())
        # A clock that was set back must not make a belief end before it began.
        seen = [at for f in self.facts.values() for at in (f.recorded_at, f.superseded_at) if at is not None]
        self.now = max([as_utc(now, "now"), *seen])

    def stored(self, fact: Fact) -> Fact:
        """The stored form of a fact."""
        if fact.id not in self.facts:
            raise NotFound(f"fact {fact.id} ({fact.text}) is not among the facts given; pass all facts of the user")
        return self.facts[fact.id]

    def supporting(self, fact: Fact) -> list[Statement]:
        """The statements that a fact is based on."""
        view, left = statement_of(fact), list(self.statements)
        if fact.superseded_at is not None:
            return [s for s in left if s.fact.id == _origin(fact.id, self.facts) and s.active]
        # Removing the statements behind a fact may uncover others that yield the very same fact: remove those too.
        while by := [s for segment in timeline(left) if _shape(segment) == _shape(view) for s in segment.by]:
            left = [replace(s, active=False) if s in by else s for s in left]
        # An ending without its beginning would state that the thing was true until then: it goes too.
        before, after = _begins(self.statements, view.object), _begins(left, view.object)
        gone = {s.fact.id for s in left if not s.active}
        gone |= {s.fact.id for s in left if s.object == view.object and s.is_ending and before < s.end <= after}
        return [s for s in self.statements if s.active and s.fact.id in gone]

    def retracted_for(self, fact: Fact) -> list[Statement]:
        """The retracted statements that a fact was based on."""
        view, sources = statement_of(fact), set(fact.sources)
        return [
            s
            for s in self.statements
            if not s.active
            and s.object == view.object
            and (s.fact.id == _origin(fact.id, self.facts) or (s.start < view.end and view.start < s.end))
            and sources >= set(s.fact.sources)
        ]

    def without(self, back: Sequence[Statement], what: ChangeKind, reason: str) -> FactChange:
        """The change that retracts statements."""
        gone = {s.fact.id for s in back}
        if not gone:
            return FactChange(put=(), what="nothing", reason=f"{reason} before")
        rest = [replace(s, active=False) if s.fact.id in gone else s for s in self.statements]
        return FactChange(put=self.settle(rest, cause=None, touched=gone), what=what, reason=reason)

    def settle(
        self,
        statements: Sequence[Statement],
        *,
        cause: str | None,
        fresh: Statement | None = None,
        touched: Iterable[str] = (),
    ) -> tuple[Fact, ...]:
        """The writes that make the believed facts equal to the timeline of these statements.

        `cause` is the statement that retires others, `fresh` a new one, `touched` those retracted or restored.
        """
        by_id = {s.fact.id: s for s in statements}
        touched = set(touched)
        if (cause or touched) and not any(s.single for s in statements):
            # Multi-valued: objects do not compete, so only those named can change.
            objects = {by_id[id].object for id in (*touched, cause) if id is not None}
            statements = [s for s in statements if s.object in objects]
        objects = {s.object for s in statements}
        live = sorted(
            (f for f in self.facts.values() if f.superseded_at is None and normalise(f.object) in objects),
            key=attrgetter("id"),
        )
        gone = {id for id in touched if not by_id[id].active}
        shapes = {_shape(statement_of(f)): f for f in reversed(live) if f.id not in gone}
        put: dict[str, Fact] = {}
        kept: set[str] = set()
        for segment in timeline(statements):
            wanted = self._believed(segment, shapes.get(_shape(segment)), fresh, put)
            kept.add(wanted.id)
            if wanted != self.facts.get(wanted.id):
                put[wanted.id] = wanted
        for fact in live:
            if fact.id not in kept:
                put[fact.id] = replace(fact, superseded_at=self.now, superseded_by=cause or fact.id)
        if fresh is not None and fresh.fact.id not in put:
            carrier = next((f.id for f in put.values() if f.superseded_at is None), fresh.fact.id)
            put[fresh.fact.id] = replace(fresh.fact, superseded_at=self.now, superseded_by=carrier)
        for id in touched:
            fact = put.get(id, self.facts[id])
            put[id] = replace(fact, superseded_by=None if id in gone else fact.superseded_by or id)
        return tuple(put.values())

    def _believed(self, segment: Segment, fact: Fact | None, fresh: Statement | None, put: dict[str, Fact]) -> Fact:
        """The fact for a segment: the stored one with this interval, the new statement, or a new version."""
        if fact is None and fresh is not None and _shape(fresh) == _shape(segment):
            fact = fresh.fact
        sources = [source for s in segment.by for source in s.fact.sources]
        confidence = max(s.fact.confidence for s in segment.by)
        if fact is not None:
            sources = tuple(dict.fromkeys((*fact.sources, *sources)))
            return replace(fact, sources=sources, confidence=max(confidence, fact.confidence))
        face = segment.by[0].fact
        number = 1
        while (id := f"{face.id}~{number}") in self.facts or id in put:
            number += 1
        return replace(
            face,
            id=id,
            valid_from=moment(segment.start),
            valid_until=moment(segment.end),
            recorded_at=self.now,
            superseded_at=None,
            superseded_by=None,
            sources=tuple(dict.fromkeys(sources)),
            confidence=confidence,
            provenance=_joined([s.fact.provenance for s in segment.by]),
        )


def _origin(id: str, known: Container[str]) -> str:
    """The id of the statement that a version belongs to."""
    head, mark, number = id.rpartition("~")
    return head if mark and number.isdigit() and head in known else id


def _shape(interval: Statement | Segment) -> tuple[str, int, int]:
    return (interval.object, interval.start, interval.end)


def _begins(statements: Iterable[Statement], object: str) -> int:
    """When an object first began, according to the statements."""
    starts = [s.start for s in statements if s.active and s.object == object and not s.is_ending and s.start < s.end]
    return min(starts, default=FOREVER)


def _joined(parts: Sequence[Provenance]) -> Provenance:
    if len({p.origin for p in parts}) > 1:
        return Provenance.derived(parts)
    return Provenance(parts[0].origin, trusted=all(p.trusted for p in parts))


def _fact_of(claim: Claim, now: datetime, provenance: Provenance) -> Fact:
    """The claim as a fact with a placeholder id."""
    starts = now if claim.valid_from is None and claim.valid_until is None else claim.valid_from
    return Fact(
        id="claimed",
        subject=one_line(claim.subject),
        predicate=one_line(predicate_key(claim.predicate)),
        object=one_line(claim.object),
        recorded_at=now,
        provenance=provenance,
        valid_from=starts,
        valid_until=claim.valid_until,
        confidence=claim.confidence,
        cardinality=claim.cardinality,
        sources=tuple(dict.fromkeys(claim.sources)),
    )


def _merged(known: Fact, again: Fact) -> Fact:
    """A fact with the sources of its repetition; the origin becomes the user's once the user states it.

    The first source stays the greatest, because it breaks ties between statements of one time.
    """
    first = max(known.sources[:1] + again.sources[:1])
    sources = tuple(dict.fromkeys((first, *known.sources, *again.sources)))
    origin = again if again.provenance.origin == "user" != known.provenance.origin else known
    confidence = max(known.confidence, again.confidence)
    return replace(known, sources=sources, confidence=confidence, provenance=origin.provenance)


def _describe(slot: _Slot, new: Statement, put: tuple[Fact, ...]) -> FactChange:
    """The change that a new statement makes, with its kind and reason."""
    own = [f for f in put if normalise(f.object) == new.object]
    retired = [f for f in put if f.superseded_at is not None and f.id in slot.facts]
    rivals = {normalise(f.object): f for f in retired if normalise(f.object) != new.object}
    text = new.fact.text
    if new.is_ending and any(f in own for f in retired):
        return FactChange(put=put, what="ends", reason=f"{text}: over since {new.fact.valid_until}")
    if rivals:
        closed = ", ".join(sorted(f.object for f in rivals.values()))
        left = [f for f in put if f.superseded_at is None and normalise(f.object) in rivals]
        split = len(left) > len({normalise(f.object) for f in left})
        reason = f"{text}: {'divides' if split else 'closes'} {closed}"
        return FactChange(put=put, what="split" if split else "supersedes", reason=reason)
    believed = any(f.id == new.fact.id and f.superseded_at is None for f in own)
    before = [statement_of(f) for f in slot.facts.values() if f.superseded_at is None]
    if any(s.object == new.object and s.start < new.end and new.start < s.end for s in before):
        return FactChange(put=put, what="again", reason=f"{text}: said before, sources and interval joined")
    if believed:
        return FactChange(put=put, what="new", reason=f"{text}: not known before")
    return FactChange(put=put, what="bounded", reason=f"{text}: gives way where another statement is later")
