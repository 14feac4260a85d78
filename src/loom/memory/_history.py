"""Old texts of blocks and standing instructions: who changed what, and when.

The text that a block had before is a record of its own, written in the transaction that replaces it: a block with a
reserved name, which ends with a number. So every store keeps, copies, exports and forgets it like any other record.
Standing instructions are facts, and their history is that of the facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from loom.core.checks import MAX_ID_BYTES
from loom.core.doors import Late
from loom.core.filter import And, Eq, Range
from loom.core.record import Fact, Origin, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import NotFound, UsageError
from loom.memory._facts.facts import Segment, moment
from loom.memory._facts.instructions import PREFIX, item_text, may_replace, standing_segments
from loom.memory._shared import OLD, every
from loom.protocols.memory_store import MemoryStore
from loom.text.fence import one_line

if TYPE_CHECKING:
    import difflib
else:
    difflib = Late("difflib")

_BLOCK: Final = "block:"
_DIGITS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVersion:
    """One text that a block or a standing instruction had, from `since` to `until`; None if it still has it."""

    id: str
    """The record that holds it; forget() takes it."""
    number: int
    text: str
    since: datetime | None
    until: datetime | None = None
    origin: Origin = "user"
    """Who wrote it."""
    trusted: bool = False
    sources: tuple[str, ...] = ()
    """The turns that an instruction was learned from."""

    @property
    def title(self) -> str:
        """Its number, author and time, on one line."""
        since = f", {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        return f"version {self.number} by {self.origin}{since}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHistory:
    """The texts of one block or instruction, oldest first; the last is the current one, unless it has ended.

    `str()` shows each change as a diff, for people.
    """

    name: str
    versions: tuple[TextVersion, ...]

    def __iter__(self) -> Iterator[TextVersion]:
        return iter(self.versions)

    def __len__(self) -> int:
        return len(self.versions)

    def diff(self, number: int | None = None) -> str:
        """What a version changed, the last one if none is named, as a unified diff against the version before it.

        Raises:
            NotFound: there is no version with this number; it may have been dropped since.
        """
        at = len(self.versions) - 1
        if number is not None:
            at = next((place for place, version in enumerate(self.versions) if version.number == number), -1)
        if at < 0:
            kept = ", ".join(str(version.number) for version in self.versions)
            raise NotFound(f"{self.name!r} has no version {number}; these are kept: {kept or 'none'}")
        new, old = self.versions[at], self.versions[at - 1] if at else None
        lines = difflib.unified_diff(
            old.text.splitlines() if old else [],
            new.text.splitlines(),
            f"{one_line(self.name)} {old.title}" if old else "nothing",
            f"{one_line(self.name)} {new.title}",
            lineterm="",
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        parts = [self.diff(version.number) or f"+++ {version.title}: the same text" for version in self.versions]
        if self.versions and self.versions[0].number > 1:
            parts.insert(0, f"versions before {self.versions[0].number} are not kept")
        if self.versions and (ended := self.versions[-1].until):
            parts.append(f"ended {ended:%Y-%m-%d %H:%M:%S}")
        return "\n\n".join(parts)


# Blocks.


def is_old(record: Record) -> bool:
    """Whether a record is an old text of a block."""
    return isinstance(record, WorkingBlock) and record.name.startswith(OLD)


def check_is_free(name: str) -> None:
    """Refuse a name that is reserved for old texts."""
    if isinstance(name, str) and name.startswith(OLD):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a block cannot be called {name!r}: {OLD!r} begins the names of old texts; use another name")


def old_ids(records: Iterable[Record], gone: Collection[str]) -> set[str]:
    """The ids of the old texts of blocks, given the ids of the blocks that are to go."""
    names = [id.removeprefix(_BLOCK) for id in gone if id.startswith(_BLOCK)]
    starts = tuple(_start(name) for name in names if not name.startswith(OLD))
    return {record.id for record in records if starts and is_old(record) and _is_of(record.id, starts)}


def _start(name: str) -> str:
    """How the ids of the old texts of a block begin. A name that leaves no room for the number is hashed."""
    start = f"{_BLOCK}{OLD}{name}:"
    is_too_long = len(start.encode()) + _DIGITS > MAX_ID_BYTES
    return f"{_BLOCK}{OLD}{sha256(name.encode()).hexdigest()}:" if is_too_long else start


def _is_of(id: str, starts: tuple[str, ...]) -> bool:
    """Whether an id is one of these beginnings and a number: the names of blocks may hold a colon, too."""
    return id.startswith(starts) and id[:-_DIGITS] in starts and id[-_DIGITS:].isdigit()


async def _old_texts(store: MemoryStore, user: Scope, name: str) -> dict[int, WorkingBlock]:
    """The old texts of a block by number, oldest first."""
    start = _start(name)
    where = And(Eq("kind", "block"), Range("id", low=start, high=f"{start[:-1]};"))
    found = [record async for record in every(store, user, where) if _is_of(record.id, (start,))]
    return {int(record.id[-_DIGITS:]): record for record in found if isinstance(record, WorkingBlock)}


async def replaced_text(
    store: MemoryStore, user: Scope, current: WorkingBlock, *, keep: int, taken: Collection[str] = ()
) -> tuple[tuple[WorkingBlock, ...], tuple[str, ...]]:
    """What to write beside a block that is about to get another text: the old text, and the ids of those too many.

    A number is that of the block's version, unless it was counted from 1 again: then they go on from the last one.
    `taken` are ids that are written at the same time.
    """
    old, start = await _old_texts(store, user, current.name), _start(current.name)
    others = [int(id[-_DIGITS:]) for id in taken if _is_of(id, (start,))]
    number = max([current.version, *(1 + other for other in (*old, *others))])
    name = f"{start.removeprefix(_BLOCK)}{number:0{_DIGITS}}"
    saved = WorkingBlock(name=name, text=current.text, updated_at=current.updated_at, provenance=current.provenance)
    ids = [record.id for record in old.values()]
    room = max(0, keep - 1)
    return ((saved,) if keep else ()), tuple(ids[: max(0, len(ids) - room)])


async def block_history(store: MemoryStore, user: Scope, name: str) -> TextHistory:
    """All texts of a block that are kept; raises NotFound if the user has no such block."""
    current = await store.get(user, f"{_BLOCK}{name}")
    if not isinstance(current, WorkingBlock) or is_old(current):
        raise NotFound(f"user {user.user_id!r} has no block {name!r}; blocks() lists them")
    old = await _old_texts(store, user, name)
    last = max(current.version, max(old, default=0) + 1)
    texts = [*old.items(), (last, current)]
    ends = [block.updated_at for _, block in texts[1:]]
    return TextHistory(
        name=name,
        versions=tuple(
            TextVersion(
                id=block.id,
                number=number,
                text=block.text,
                since=block.updated_at,
                until=until,
                origin=block.provenance.origin,
                trusted=block.provenance.trusted,
            )
            for (number, block), until in zip(texts, [*ends, None], strict=True)
        ),
    )


# Standing instructions.


def standing_histories(facts: Sequence[Fact], *, now: datetime) -> tuple[TextHistory, ...]:
    """The history of each standing preference and instruction, those that changed last first."""
    chains = list[list[Segment]]()
    for segment in sorted(standing_segments(facts), key=lambda one: (one.start, one.object)):
        before = next((chain for chain in chains if _follows(segment, chain[-1])), None)
        chains.append([segment]) if before is None else before.append(segment)
    chains.sort(key=lambda chain: (chain[-1].start, chain[-1].object), reverse=True)
    return tuple(_standing_history(chain, now) for chain in chains)


def _follows(segment: Segment, last: Segment) -> bool:
    """Whether an instruction took the place of another: it begins when that ends, and contradicts it."""
    return segment.start == last.end and may_replace(segment.by[-1].fact, last.by[-1].fact)


def _standing_history(chain: Sequence[Segment], now: datetime) -> TextHistory:
    versions = list[TextVersion]()
    for number, segment in enumerate(chain, 1):
        fact, until = segment.by[-1].fact, moment(segment.end)
        versions.append(
            TextVersion(
                id=fact.id,
                number=number,
                text=item_text(fact),
                since=moment(segment.start),
                until=until if until is not None and until <= now else None,
                origin=fact.provenance.origin,
                trusted=all(statement.fact.provenance.trusted for statement in segment.by),
                sources=tuple(dict.fromkeys(source for s in segment.by for source in s.fact.sources)),
            )
        )
    topic = chain[-1].by[-1].fact.predicate.removeprefix(PREFIX).replace("_", " ")
    return TextHistory(name=topic, versions=tuple(versions))
