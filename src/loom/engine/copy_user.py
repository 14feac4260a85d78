"""One user's records, keys, vectors and jobs from one store to another, page by page.

What the other store has already is compared and left alone, so that a copy that was broken off goes on where it
stopped, and one that is done changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from loom.core.filter import In
from loom.core.record import Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import StaleWrite
from loom.memory.guarded import TRIES
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import FoundBy
from loom.protocols.whole_store import WholeStore
from loom.stores.index_check import NEAR, is_same

PAGE = 200
Progress: TypeAlias = Callable[[int], None]
"""Called with the number of records that were copied since the last call."""


@dataclass(slots=True)
class _Change:
    """The writes of one page. Records in the way are deleted before, with their keys and vectors."""

    put: list[Record] = field(default_factory=list[Record])
    delete: list[str] = field(default_factory=list[str])
    keys: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    vectors: dict[str, Vector] = field(default_factory=dict[str, Vector])
    records: int = 0


async def pages(store: WholeStore, user: Scope) -> AsyncGenerator[tuple[Record, ...]]:
    """All records of a user, by id."""
    after: str | None = None
    while page := await store.list(user, after=after, limit=PAGE):
        yield page
        after = page[-1].id


async def copy_user(
    source: WholeStore, target: WholeStore, user: Scope, *, with_vectors: bool, progress: Progress
) -> int:
    """Copy everything of a user; returns how many records were written.

    What is forgotten at the source meanwhile is not left behind in the target.
    """
    written, copied = 0, set[str]()
    for _ in range(TRIES):
        epoch = await source.epoch(user)
        written += await _copy_pages(source, target, user, copied, with_vectors=with_vectors, progress=progress)
        if await source.epoch(user) == epoch:
            break
        left = [record.id async for page in pages(source, user) for record in page]
        if gone := copied.difference(left):
            await target.delete(user, *gone)
            copied -= gone
        progress = _silent  # the records were counted
    else:
        raise StaleWrite(user.user_id)
    jobs = await source.open_jobs(user)
    if jobs:
        await target.write(user, jobs=jobs)
    return written


async def _copy_pages(
    source: WholeStore,
    target: WholeStore,
    user: Scope,
    copied: set[str],
    *,
    with_vectors: bool,
    progress: Progress,
) -> int:
    written = 0
    async for page in pages(source, user):
        change = await _planned(source, target, user, page, with_vectors=with_vectors)
        if change.delete:
            await target.delete(user, *change.delete)
        if change.put or change.keys:
            await target.write(user, put=change.put, keys=change.keys)
        if change.vectors:
            await target.put_vectors(user, change.vectors)
        copied |= {record.id for record in page}
        written += change.records
        progress(len(page))
    return written


def _silent(_: int) -> None:
    """No progress is reported."""


async def _planned(
    source: WholeStore, target: WholeStore, user: Scope, page: Sequence[Record], *, with_vectors: bool
) -> _Change:
    ids = tuple(record.id for record in page)
    there = {record.id: record for record in await target.list(user, where=In("id", ids), limit=len(ids))}
    finds, has = await source.found_by(user, *ids), await target.found_by(user, *there)
    change = _Change()
    for record in page:
        old, given, held = there.get(record.id), finds.get(record.id, FoundBy()), has.get(record.id, FoundBy())
        if old is not None and _is_in_the_way(record, old, given, held):
            change.delete.append(record.id)
            old, held = None, FoundBy()
        if old != record:
            change.put += _leading_to(record)
            change.records += 1
            if old is not None and old.text != record.text:
                held = FoundBy(held.keys)  # the vector of another text goes with that text
        if given.keys != held.keys:
            change.keys[record.id] = dict.fromkeys(held.keys, "") | dict(given.keys)
        if with_vectors and given.vector is not None and not _holds(held, given.vector):
            change.vectors[record.id] = given.vector
    return change


def _is_in_the_way(record: Record, old: Record, given: FoundBy, held: FoundBy) -> bool:
    """Whether the old record must be deleted first: a block with other versions, a vector that should not be there."""
    is_other_block = isinstance(record, WorkingBlock) and old != record
    return is_other_block or (held.vector is not None and given.vector is None)


def _leading_to(record: Record) -> list[Record]:
    """The records to write for this one: of a block all versions up to it, as a store takes only the next one."""
    if not isinstance(record, WorkingBlock):
        return [record]
    return [replace(record, version=version) for version in range(1, record.version + 1)]


def _holds(held: FoundBy, vector: Vector) -> bool:
    return held.vector is not None and is_same(held.vector, vector, within=NEAR)
