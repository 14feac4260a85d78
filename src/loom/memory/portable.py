"""Records as JSON lines: everything of a user in a form that another Loom reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from loom.core.codec import FORMAT, record_from_dict, record_to_dict
from loom.core.filter import In
from loom.core.record import Episode, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.memory.checked import checked_record
from loom.memory.metabolism import Store
from loom.memory.neighbours import Neighbours
from loom.memory.values import Skip

_PAGE = 500
_THERE = "there before under this id, and written again"


async def lines_of(records: AsyncIterable[Record]) -> AsyncIterator[str]:
    """Records as JSON lines; the first one says the format."""
    yield json.dumps({"loom": "memory", "format": FORMAT})
    async for record in records:
        yield json.dumps(record_to_dict(record), ensure_ascii=False)


def records_of(lines: Iterable[str]) -> list[Record]:
    """The records of JSON lines, all of them checked before any is used.

    Raises:
        UsageError: a line is no record; the message says which one.
    """
    found = [_record_of(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return [record for record in found if record is not None]


def _record_of(number: int, line: str) -> Record | None:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"line {number} is not JSON ({error}); nothing was imported") from error
    if not isinstance(data, dict):
        raise UsageError(f"line {number} is no JSON object; nothing was imported")
    if "loom" not in data:
        try:
            return checked_record(record_from_dict(data))  # pyright: ignore[reportUnknownArgumentType]
        except UsageError as error:
            raise UsageError(f"line {number}: {error}; nothing was imported") from error
    version: Any = data.get("format", 0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(version, int) or version > FORMAT:
        raise UsageError(f"this export has format {version!r}; this Loom reads up to {FORMAT}; nothing was imported")
    return None


async def put_records(
    store: Store, user: Scope, records: Iterable[Record], *, neighbours: Neighbours
) -> tuple[list[Episode], tuple[Skip, ...]]:
    """Write records, all or none, then the keys of the turns among them.

    Returns the episodes, and what was there already under its id.
    """
    newest = {record.id: record for record in records}
    known = await _known(store, user, list(newest))
    written = [record for id, given in newest.items() if (record := _following(known.get(id), given)) is not None]
    episodes = [record for record in written if isinstance(record, Episode)]
    await store.write(user, put=written)
    neighbours.forget(user)
    await store.write(user, keys=await neighbours.keys_among(episodes, user=user))
    return episodes, tuple(Skip(given.text[:80], _THERE) for id, given in newest.items() if id in known)


async def _known(store: Store, user: Scope, ids: Sequence[str]) -> dict[str, Record]:
    """Those of these records that are there."""
    found: dict[str, Record] = {}
    for start in range(0, len(ids), _PAGE):
        page = tuple(ids[start : start + _PAGE])
        found |= {record.id: record for record in await store.list(user, where=In("id", page), limit=_PAGE)}
    return found


def _following(old: Record | None, record: Record) -> Record | None:
    """The record as it is to be written: a block follows the one that is there; None if that says the same."""
    if not isinstance(record, WorkingBlock):
        return record
    if not isinstance(old, WorkingBlock):
        return replace(record, version=1)
    is_same = (old.text, old.provenance) == (record.text, record.provenance)
    return None if is_same else replace(record, version=old.version + 1)
