"""Records as rows with a checksum: what the disk changed since it was written is noticed when it is read.

The columns that are changed alone (accesses, the layer, the archive) are left out of the checksum; of those, and of
rows that an older Loom wrote without one, only the types are checked.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from loom.core.record import Episode, Fact, Record
from loom.stores import record_rows
from loom.stores.damage import DamagedData

WRITTEN = (*record_rows.COLUMNS, "checksum")
"""The columns that are written with a record."""
SELECTED = f"{record_rows.SELECTED}, r.checksum, r.user"

_CHECKSUM = len(record_rows.COLUMNS)
_USER = _CHECKSUM + 1
_ACCESSES = record_rows.COLUMNS.index("accesses")
_MAYBE_INT, _MAYBE_STR = int | None, str | None
_EPISODE_TYPES = (
    *(str, str, str, str, int, int, _MAYBE_STR, int, int, _MAYBE_STR, _MAYBE_STR, float),
    *(int, _MAYBE_INT, _MAYBE_INT, _MAYBE_STR),
)


def to_row(record: Record, user: int) -> tuple[Any, ...]:
    """The values of WRITTEN for a record of a user."""
    row = record_rows.to_row(record)
    return (*row, checksum(row, user))


def from_row(row: tuple[Any, ...]) -> Record:
    """The record of a row that starts with SELECTED.

    Raises:
        DamagedData: it is not the row that was written.
    """
    stored = row[_CHECKSUM]
    try:
        is_sound = stored is None or stored == checksum(row, row[_USER])
    except (TypeError, ValueError, OverflowError):  # a column is not even of its type
        is_sound = False
    if row[1] == Episode.kind and (stored is None or type(row[_ACCESSES]) is not int):
        is_sound = is_sound and _has_right_types(row)
    if not is_sound:
        raise DamagedData(f"record {row[0]!r} is not what was written")
    return record_rows.from_row(row)


def checksum(row: tuple[Any, ...], user: int) -> int:
    """The checksum of a row that starts with COLUMNS: a record that became another user's has another one."""
    id, kind, text, origin, trusted, recorded_at, sources, at, _, session_id, speaker, importance = row[:12]
    if kind == Episode.kind:
        line = (
            f"{id}\0{kind}\0{text}\0{origin}\0{trusted}\0{recorded_at}\0{sources}\0{at}\0{session_id}\0{speaker}\0"
            f"{importance + 0.0}\0{row[15]}"  # a whole number comes back as a fraction
        )
    elif kind == Fact.kind:
        confidence = row[23] + 0.0
        line = f"{id}\0{kind}\0{origin}\0{trusted}\0{recorded_at}\0{sources}\0{row[16:23]}\0{confidence}\0{row[24]}"
    else:
        line = f"{id}\0{kind}\0{text}\0{origin}\0{trusted}\0{row[25:_CHECKSUM]}"
    return crc32(line.encode(), user)


def _has_right_types(row: tuple[Any, ...]) -> bool:
    return all(isinstance(value, kind) for value, kind in zip(row, _EPISODE_TYPES, strict=False))
