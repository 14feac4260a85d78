"""Results of memory calls: what was remembered, recalled, extracted and forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loom.core.doors import Late
from loom.core.message import Usage
from loom.core.record import Fact, Hit, Record
from loom.core.scope import Scope
from loom.errors import LoomError
from loom.telemetry import Bill
from loom.text.fence import one_line

if TYPE_CHECKING:
    import html
else:
    html = Late("html")

_NOTES = 20
"""Notes that are collected until learned() is called."""

REPEATED = "remembered before under this key"
"""Why content that is stored already is skipped."""

OTHER_TEXT = "another text is kept under this key, and stays; upsert() replaces it"
"""Why content is skipped if its key holds another text."""


def reason_of(error: Exception) -> str:
    """Why something failed, in one line."""
    return str(error) if isinstance(error, LoomError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Skip:
    """Content that was not stored, and why."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The result of a write: the records `kept`, which are durable and can be recalled at once, and those `skipped`."""

    kept: tuple[Record, ...]
    facts: tuple[Fact, ...] = ()
    """With `learn=True`, the facts that were learned from it, and those that they retired."""
    promoted: int = 0
    """With `learn=True`, how many records moved up a layer with it."""
    archived: int = 0
    """With `learn=True`, how many records left the layers, to make room for it."""
    skipped: tuple[Skip, ...] = ()
    notes: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """The hits of a recall, best first, with notes about the search.

    `searched` is the number of records in the memory. Where a store would have to count them, it is None unless nothing
    like the question was found.
    `confidence` is how likely it is that the memory holds anything about the question, from 0 to 1.
    """

    hits: tuple[Hit, ...]
    scope: Scope
    searched: int | None = None
    tokens: int = 0
    confidence: float = 0.0
    problems: tuple[str, ...] = ()
    """The notes that tell of a part of the search that failed, or of a question that was cut."""
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def text(self) -> str:
        """The texts of the hits, one per line; of a long one the part that matches."""
        return "\n".join(hit.text for hit in self.hits)

    def __str__(self) -> str:
        lines = [f"{hit.score:.3f}  {one_line(hit.text)}" for hit in self.hits]
        found = f"nothing was found for user {self.scope.user_id!r} in {self.searched or 0:,} records"
        return "\n".join([*(lines or [found]), *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        """A table of the hits, for notebooks."""
        rows = [f"<tr><td>{hit.score:.3f}</td><td>{html.escape(hit.text)}</td></tr>" for hit in self.hits]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table><tr><th>score</th><th>text</th></tr>{''.join(rows)}</table>{notes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metabolized:
    """The result of running jobs."""

    jobs: int = 0
    counts: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    notes: tuple[str, ...] = ()
    """Instructions that were learned, that wait for confirmation, or that newer ones retired."""
    failed: tuple[str, ...] = ()
    """Why jobs failed; they are retried, or moved to the dead letters."""
    bill: Bill = field(default_factory=Bill)
    """The cost of learning by a model."""

    def __add__(self, later: Metabolized) -> Metabolized:
        return Metabolized(
            jobs=self.jobs + later.jobs,
            counts=Counter(self.counts) + Counter(later.counts),
            notes=(*self.notes, *later.notes)[-_NOTES:],
            failed=(*self.failed, *later.failed)[-_NOTES:],
            bill=self.bill + later.bill,
        )

    def with_learned(self, found: Sequence[Learned], *, waiting: int = 0) -> Metabolized:
        """The same, with the reports of a model added; `waiting` turns have no model to read them."""
        left = f"{waiting:,} turn(s) wait for a model: use this memory in an agent that has one, or give extractor="
        return Metabolized(
            jobs=self.jobs + sum(report.turns for report in found),
            counts={**self.counts, "facts": self.counts.get("facts", 0) + sum(report.facts for report in found)},
            notes=(*self.notes, *(note for report in found for note in report.notes), *((left,) if waiting else ())),
            failed=(*self.failed, *(report.failed for report in found if report.failed)),
            bill=sum((report.bill for report in found), self.bill),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a model learned from the remembered turns of a user, and what it cost."""

    user_id: str
    turns: int = 0
    facts: int = 0
    """Facts that were written: new ones, and those they retired."""
    episodes: int = 0
    """Conversations whose episode it wrote."""
    bill: Bill = field(default_factory=Bill)
    notes: tuple[str, ...] = ()
    """Instructions that were retired, and parts of replies that could not be used."""
    failed: str = ""
    """Why turns could not be read, if they could not; they are retried, or moved to the dead letters."""

    def __add__(self, later: Learned) -> Learned:
        return Learned(
            user_id=self.user_id,
            turns=self.turns + later.turns,
            facts=self.facts + later.facts,
            episodes=self.episodes + later.episodes,
            bill=self.bill + later.bill,
            notes=(*self.notes, *later.notes)[-_NOTES:],
            failed=later.failed or self.failed,
        )

    def __str__(self) -> str:
        done = list[str]()
        if self.turns or not self.episodes:
            read = f"read {self.turns:,} remembered turn{'' if self.turns == 1 else 's'}"
            done.append(f"{read} and wrote {self.facts:,} fact{'' if self.facts == 1 else 's'}")
        if self.episodes:
            done.append(f"wrote the episode of {self.episodes:,} conversation{'' if self.episodes == 1 else 's'}")
        return f"a model {', and '.join(done)}: {self.bill}" + (f"; it failed: {self.failed}" if self.failed else "")
