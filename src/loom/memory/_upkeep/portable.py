"""Export and import of records as JSON lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from anyio import to_thread

from loom.core.codec import FORMAT, record_from_dict, record_to_dict
from loom.core.record import Episode, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import NotFound, StaleWrite, UsageError
from loom.memory._history import is_old, replaced_text
from loom.memory._shared import get_all, retry_stale
from loom.memory._write.ingest import ContextKeys, check_record
from loom.memory._write.write import ProgressCallback
from loom.memory.results import Remembered, Skip
from loom.protocols.memory_store import Store

Write: TypeAlias = Callable[[Sequence[Record], ProgressCallback | None], Awaitable[Remembered]]
"""Writes records, and reports its progress."""

_PAGE = 500
_CHARS = 4_000_000
"""Maximum characters of a batch; the records of a page usually have far fewer."""
_MOST_VERSIONS = 1000
"""An imported block begins with this version at the most: a store counts up to it one by one."""
_THERE = "there before under this id, and written again"


async def lines_of(records: AsyncIterable[Record]) -> AsyncIterator[str]:
    """Records as JSON lines; the first line names the format."""
    yield json.dumps({"loom": "memory", "format": FORMAT})
    async for record in records:
        yield json.dumps(record_to_dict(record), ensure_ascii=False)


def batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in batches that are read and written together."""
    batch, chars = list[str](), 0
    for line in lines:
        batch.append(line)
        chars += len(line)
        if len(batch) >= _PAGE or chars >= _CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


async def import_lines(
    lines: Iterable[str], write: Write, *, start: int = 0, progress: ProgressCallback | None = None
) -> Remembered:
    """Read records batch by batch and pass each batch to `write`; `start` lines were imported before.

    Raises:
        UsageError: a line is not a record; the message names it, and the lines that were imported.
    """
    if isinstance(lines, str | bytes):
        raise UsageError("import_ was given one text, not lines; give an open file, or text.splitlines()")
    kept, skipped, notes = list[Record](), list[Skip](), dict[str, None]()
    for batch in batches(lines):
        try:
            records = await to_thread.run_sync(records_of, batch, start)
        except UsageError as error:
            done = f"lines 1 to {start:,} are imported; correct it and import all of it again, nothing is added twice"
            raise UsageError(f"{error}; {done if start else 'nothing was imported'}") from error.__cause__
        written = await write(records, _offset(progress, len(kept)))
        kept += written.kept
        skipped += written.skipped
        notes |= dict.fromkeys(written.notes)
        start += len(batch)
    return Remembered(kept=tuple(kept), skipped=tuple(skipped), notes=tuple(notes))


def _offset(progress: ProgressCallback | None, done: int) -> ProgressCallback | None:
    """Progress of the whole import; the total grows batch by batch."""
    return None if progress is None else lambda now, total: progress(done + now, done + total)


def records_of(lines: Iterable[str], start: int = 0) -> list[Record]:
    """The records of JSON lines, all checked before any is used; raises UsageError naming a line that is not one."""
    found = [_record_of(number, line) for number, line in enumerate(lines, start + 1) if line.strip()]
    return [record for record in found if record is not None]


def _record_of(number: int, line: str) -> Record | None:
    try:
        data: Any = json.loads(line.removeprefix("\ufeff") if number == 1 else line)
        if isinstance(data, dict) and "loom" not in data:
            return check_record(record_from_dict(data))  # pyright: ignore[reportUnknownArgumentType]
    except RecursionError:
        raise UsageError(f"line {number} is nested too deeply to be read") from None
    except UsageError as error:
        raise UsageError(f"line {number}: {error}") from error
    except ValueError as error:
        raise UsageError(f"line {number} is not JSON ({error})") from error
    if not isinstance(data, dict):
        raise UsageError(f"line {number} is not a JSON object")
    version: Any = data.get("format", 0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(version, int) or version > FORMAT:
        raise UsageError(f"this export has format {version!r}; this Loom reads up to {FORMAT}")
    return None


async def put_records(
    store: Store, user: Scope, records: Iterable[Record], *, neighbours: ContextKeys, keep: int
) -> tuple[list[Episode], tuple[Skip, ...]]:
    """Write records in one transaction, then the search keys of the turns among them.

    A block whose text is replaced leaves its old text behind, with at most `keep` of them.
    Returns the episodes, and a skip for each record that existed already.
    """
    newest = {record.id: record for record in records}
    before = await get_all(store, user, list(newest))

    async def put(epoch: str) -> list[Episode]:
        known = await get_all(store, user, list(newest))
        # A record that existed at first and does not now was forgotten meanwhile, and must stay forgotten.
        wanted = {id: given for id, given in newest.items() if id in known or id not in before}
        written, too_many = list[Record](), list[str]()
        for id, given in wanted.items():
            old = known.get(id)
            following = _following(old, given)
            written += following
            if following and isinstance(old, WorkingBlock) and not is_old(old):
                saved, ids = await replaced_text(store, user, old, keep=keep, taken=wanted)
                written += saved
                too_many += (gone for gone in ids if gone not in wanted)
        await store.write(user, put=written, delete=too_many, since=epoch)
        return [record for record in written if isinstance(record, Episode)]

    async def put_keys(epoch: str) -> None:
        keys = await neighbours.keys_among(episodes, user=user)
        try:
            await store.write(user, keys=keys, since=epoch)
        except NotFound as error:  # a turn was forgotten since it was read; a store may look at it before the epoch
            raise StaleWrite(user.user_id) from error

    episodes = await retry_stale(store, user, put)
    neighbours.forget(user)
    await retry_stale(store, user, put_keys)
    return episodes, tuple(Skip(given.text[:80], _THERE) for id, given in newest.items() if id in before)


def _following(old: Record | None, record: Record) -> list[Record]:
    """What to write for a record: of a block all versions up to its own, because a store takes only the next one.

    An existing block gets the version after the stored one, or nothing if that has the same text.
    """
    if not isinstance(record, WorkingBlock):
        return [record]
    if not isinstance(old, WorkingBlock):
        return [replace(record, version=version) for version in range(1, min(record.version, _MOST_VERSIONS) + 1)]
    is_same = (old.text, old.provenance) == (record.text, record.provenance)
    return [] if is_same else [replace(record, version=old.version + 1)]
