"""Search results: a record or a passage, its score, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import ClassVar, TypeAlias

from loom.core.checks import check_id, check_text
from loom.core.record import Provenance, Record, Scalar, checked_attributes
from loom.errors import UsageError


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
        object.__setattr__(self, "why", dict(self.why))


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
