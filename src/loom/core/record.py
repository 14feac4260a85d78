"""Memory records (episodes, facts, working blocks), whether each may be trusted, and search results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from math import fsum, isfinite
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from loom.core.checks import as_utc, check_id, check_share, check_text
from loom.errors import UsageError

Scalar: TypeAlias = str | int | float | bool | datetime | None
"""What an attribute of a record, and the value of a filter, may be."""

Origin: TypeAlias = Literal["operator", "user", "assistant", "tool", "file", "web", "import", "derived"]
ORIGINS: tuple[Origin, ...] = get_args(Origin)

Cardinality: TypeAlias = Literal["single", "multi", "inferred"]
CARDINALITIES: tuple[Cardinality, ...] = get_args(Cardinality)


class Layer(IntEnum):
    """The four layers, from what is at hand to what is known."""

    WORKING = L1 = 1
    SESSION = L2 = 2
    EPISODIC = L3 = 3
    SEMANTIC = L4 = 4

    @property
    def label(self) -> str:
        """`L1` to `L4`."""
        return f"L{self.value}"

    @classmethod
    def _missing_(cls, value: object) -> Layer:
        raise UsageError(f"there is no layer {value!r}; use Layer.L1 to Layer.L4, or 1 to 4")


def layers_of(given: Layer | Iterable[Layer]) -> tuple[Layer, ...]:
    """One layer or several, as several; a text is one, as it was written."""
    several = (given,) if isinstance(given, int | str) else given
    return tuple(Layer(one) for one in several)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a text, and whether it may be taken as an instruction.

    Only the caller grants trust. Text that is not trusted stays data, at any depth of derivation.
    """

    origin: Origin
    trusted: bool = False

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise UsageError(f"the origin {self.origin!r} is not known; use one of {', '.join(ORIGINS)}")

    @classmethod
    def derived(cls, inputs: Iterable[Provenance]) -> Provenance:
        """The provenance of what is made from `inputs`: trusted only if every one of them is."""
        parts = tuple(inputs)
        if not parts:
            raise UsageError("derived() was given no inputs; name what the new text was made from")
        return cls("derived", trusted=all(p.trusted for p in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Something that happened: a turn, a tool result, a statement or a summary of several.

    `at` is when it happened and `recorded_at` when Loom learned of it; retention counts from there, or from the last
    recall.
    `sources` are the ids of the records it was made from; empty for raw experience.
    An archived episode is no longer shown, but stays searchable.
    """

    kind: ClassVar[str] = "episode"

    id: str
    text: str
    at: datetime
    recorded_at: datetime
    provenance: Provenance
    layer: Layer = Layer.WORKING
    session_id: str | None = None
    speaker: str | None = None
    importance: float = 0.0
    accesses: int = 0
    accessed_at: datetime | None = None
    archived_at: datetime | None = None
    sources: tuple[str, ...] = ()
    attributes: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar], hash=False)

    def __post_init__(self) -> None:
        check_id(self.id, "the id of an episode")
        check_text(self.text, f"the text of episode {self.id}")
        check_share(self.importance, f"the importance of episode {self.id}")
        if self.session_id is not None:
            check_id(self.session_id, f"the session_id of episode {self.id}")
        if self.speaker is not None:
            check_text(self.speaker, f"the speaker of episode {self.id}")
        if self.accesses < 0:
            raise UsageError(f"episode {self.id} has {self.accesses} accesses; count from 0")
        _set_utc(self, "at", "recorded_at", "accessed_at", "archived_at")
        _set_sources(self)
        object.__setattr__(self, "layer", Layer(self.layer))
        object.__setattr__(self, "attributes", checked_attributes(self.attributes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A statement with two time axes, each a half-open interval.

    It was true from `valid_from` until `valid_until`; Loom believed it from `recorded_at` until
    `superseded_at`. None leaves an end open. `superseded_by` names the fact that retired this one, so
    that a retirement can be taken back. Asserting a fact again adds to `sources`.
    """

    kind: ClassVar[str] = "fact"

    id: str
    subject: str
    predicate: str
    object: str
    recorded_at: datetime
    provenance: Provenance
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    superseded_at: datetime | None = None
    superseded_by: str | None = None
    confidence: float = 1.0
    cardinality: Cardinality = "inferred"
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a fact")
        for name, value in (("subject", self.subject), ("predicate", self.predicate), ("object", self.object)):
            check_text(value, f"the {name} of fact {self.id}")
        check_share(self.confidence, f"the confidence of fact {self.id}")
        if self.cardinality not in CARDINALITIES:
            known = ", ".join(CARDINALITIES)
            raise UsageError(f"fact {self.id} has the cardinality {self.cardinality!r}; use one of {known}")
        _set_sources(self)
        _set_utc(self, "valid_from", "valid_until", "recorded_at", "superseded_at")
        _check_interval(self.id, "valid", self.valid_from, self.valid_until)
        _check_interval(self.id, "believed", self.recorded_at, self.superseded_at)

    @property
    def text(self) -> str:
        """The statement as one line."""
        return f"{self.subject} {self.predicate} {self.object}"

    def is_current(self, at: datetime, known_at: datetime) -> bool:
        """Whether this was true at `at`, according to what was believed at `known_at`."""
        at, known_at = as_utc(at, "at"), as_utc(known_at, "known_at")
        return _inside(at, self.valid_from, self.valid_until) and _inside(
            known_at, self.recorded_at, self.superseded_at
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingBlock:
    """A named text pinned for one user. `version` rises by one with every change; the text may be empty."""

    kind: ClassVar[str] = "block"

    name: str
    text: str
    updated_at: datetime
    provenance: Provenance
    version: int = 1

    def __post_init__(self) -> None:
        check_id(self.id, "the name of a working block")
        check_text(self.name, "the name of a working block")
        check_text(self.text, f"the text of block {self.name!r}", may_be_empty=True)
        if self.version < 1:
            raise UsageError(f"block {self.name!r} has the version {self.version}; versions start at 1")
        _set_utc(self, "updated_at")

    @property
    def id(self) -> str:
        """The block's id among the records of its user."""
        return f"block:{self.name}"


Record: TypeAlias = Episode | Fact | WorkingBlock


def latest_of(records: Iterable[Record]) -> datetime | None:
    """The latest time at which one of these episodes and facts was recorded or retired."""
    return max((_written(r) for r in records if isinstance(r, Episode | Fact)), default=None)


def _written(record: Episode | Fact) -> datetime:
    retired = record.superseded_at if isinstance(record, Fact) else None
    return max(record.recorded_at, retired or record.recorded_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of a forget: removed records counted by kind, and what is still pending, in words.

    An empty `pending` is a promise: nothing is left.
    """

    removed: Mapping[str, int] = field(hash=False)
    pending: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {kind}{'s' * (count != 1)}" for kind, count in self.removed.items() if count)
        return "\n".join([f"removed: {counts or 'nothing'}", *(f"pending: {one}" for one in self.pending)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReceipt:
    """What one store removed of a user; `store` names it, in words."""

    store: str
    removed: Mapping[str, int] = field(hash=False)
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """The receipt of erasing a user: each store by itself, and all of them together."""

    user_id: str
    stores: tuple[StoreReceipt, ...]

    @property
    def removed(self) -> Mapping[str, int]:
        """What was removed in all, counted by kind."""
        total: Counter[str] = Counter()
        for receipt in self.stores:
            total.update(receipt.removed)
        return dict(total)

    @property
    def pending(self) -> tuple[str, ...]:
        """What could not be removed yet, each line once; empty is a promise that nothing is left."""
        return tuple(dict.fromkeys(line for receipt in self.stores for line in receipt.pending))


def changed(episode: Episode, **fields: Any) -> Episode:
    """A copy with other fields, unchecked: `replace` takes longer, and one recall makes hundreds."""
    copy = object.__new__(Episode)
    for set_slot, value in zip(_SLOT_SETTERS.values(), _slots_of(episode), strict=True):
        set_slot(copy, value)
    for name, value in fields.items():
        _SLOT_SETTERS[name](copy, value)
    return copy


_SLOT_SETTERS = {name: Episode.__dict__[name].__set__ for name in Episode.__slots__}
_slots_of = attrgetter(*Episode.__slots__)


def with_attributes(episode: Episode, more: Mapping[str, Scalar]) -> Episode:
    """The episode with more attributes. Only those are checked: the rest was, when the episode was made."""
    return changed(episode, attributes={**episode.attributes, **checked_attributes(more)})


def checked_attributes(attributes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A private copy of a record's attributes; refuses what no store can keep or compare."""
    for name in attributes:
        check_text(name, "the name of an attribute")
    return {name: checked_scalar(value, f"the attribute {name!r}") for name, value in attributes.items()}


def checked_scalar(value: Scalar, what: str) -> Scalar:
    """The value, times in UTC; refuses other types, NaN and infinities."""
    if isinstance(value, datetime):
        return as_utc(value, what)
    if isinstance(value, str):
        check_text(value, what, may_be_empty=True)
    elif isinstance(value, float) and not isfinite(value):
        raise UsageError(f"{what} is {value!r}; give a finite number")
    elif not isinstance(value, int | float | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} has the type {type(value).__name__}; give text, a number, a bool, a time or None")
    return value


def _set_utc(record: Record, *names: str) -> None:
    for name in names:
        at: datetime | None = getattr(record, name)
        if at is not None:
            object.__setattr__(record, name, as_utc(at, f"{name} of {record.kind} {record.id}"))


def _set_sources(record: Episode | Fact) -> None:
    if isinstance(record.sources, str):
        raise UsageError(f"the sources of {record.kind} {record.id} are one text; give a tuple of ids")
    for source in record.sources:
        check_id(source, f"a source of {record.kind} {record.id}")
    object.__setattr__(record, "sources", tuple(record.sources))


def _check_interval(id: str, what: str, start: datetime | None, end: datetime | None) -> None:
    if start is not None and end is not None and end < start:
        raise UsageError(f"fact {id} is {what} from {start} until {end}: the end lies before the start; swap them")


def _inside(at: datetime, start: datetime | None, end: datetime | None) -> bool:
    return (start is None or start <= at) and (end is None or at < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A stated fact, before memory decides what to do with it. `sources` are the episodes that say it.

    With `retracts` it takes a fact back: what is known of the subject under the predicate with this object, or with any
    where the object is empty, is over since `valid_until`; `valid_from` is the time of that statement. A fact that is
    not known is not retracted. `changes` says that something else was so before, in the words of the claim.
    `importance` is that of the episodes: they become at least as important.
    """

    subject: str
    predicate: str
    object: str
    sources: tuple[str, ...]
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    confidence: float = 1.0
    cardinality: Cardinality = "inferred"
    retracts: bool = False
    changes: bool = False
    importance: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("subject", self.subject), ("predicate", self.predicate)):
            check_text(value, f"the {name} of a claim")
        check_text(self.object, "the object of a claim", may_be_empty=self.retracts)
        check_share(self.confidence, "the confidence of a claim")
        check_share(self.importance, "the importance of a claim")
        if not self.sources:
            raise UsageError(
                f"the claim {self.subject} {self.predicate} {self.object} has no source; name the episodes"
            )


# Search results: a record or a passage, its score, and why.


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of a document: `text` is its characters from `start` to `end`."""

    kind: ClassVar[str] = "passage"

    id: str
    document_id: str
    text: str
    start: int
    end: int
    provenance: Provenance
    source: str = ""
    attributes: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar], hash=False)

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a passage")
        check_id(self.document_id, f"the document_id of passage {self.id}")
        check_text(self.text, f"the text of passage {self.id}")
        if not 0 <= self.start < self.end:
            raise UsageError(f"passage {self.id} runs from {self.start} to {self.end}; give 0 <= start < end")
        object.__setattr__(self, "attributes", checked_attributes(self.attributes))


HitItem: TypeAlias = Record | Passage


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a long text that matches a question: its characters from `start` to `end`."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Hit:
    """One result. `why` holds the score of each signal that spoke for it (`bm25`, `dense`, `time`, ...).

    `passage` is the part of a long record that matches; None if the record is short enough to be shown whole.
    """

    item: HitItem
    score: float
    why: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    passage: Excerpt | None = None

    @property
    def text(self) -> str:
        """What to show: the passage that matches, with marks where it was cut, or the whole text."""
        if self.passage is None:
            return self.item.text
        before = "\u2026 " if self.passage.start else ""
        after = " \u2026" if self.passage.end < len(self.item.text) else ""
        return f"{before}{self.passage.text}{after}"

    def __post_init__(self) -> None:
        for name, value in (("score", self.score), *self.why.items()):
            if not isfinite(value):
                raise UsageError(f"the hit {self.item.id} has {name}={value!r}; give a finite number")
        object.__setattr__(self, "why", dict(self.why.items()))


def scored(item: HitItem, why: dict[str, float]) -> Hit:
    """A hit that the sum of its signals is the score of, made without a check: its numbers were computed here.

    One recall makes hundreds.
    """
    hit = object.__new__(Hit)
    object.__setattr__(hit, "item", item)
    object.__setattr__(hit, "score", fsum(why.values()))
    object.__setattr__(hit, "why", why)
    object.__setattr__(hit, "passage", None)
    return hit


def rank_key(hit: Hit) -> tuple[float, str]:
    """The order of every search: best score first, then by id, so that equal scores never swap."""
    return (-hit.score, hit.item.id)


def joined(by_words: Iterable[Hit], by_vector: Iterable[Hit], cosines: Mapping[str, float]) -> list[Hit]:
    """Hits by words and hits by vector as one list, best first, each with its cosine as the signal `dense`."""
    found = {hit.item.id: hit for hit in by_words}
    for hit in by_vector:
        found.setdefault(hit.item.id, scored(hit.item, {}))
    return sorted((_with_cosine(hit, cosines.get(id)) for id, hit in found.items()), key=rank_key)


def _with_cosine(hit: Hit, cosine: float | None) -> Hit:
    return hit if cosine is None else scored(hit.item, {**hit.why, "dense": cosine})
