"""Records in an append-only file, each with its length and checksum, so that half a write is seen."""

from __future__ import annotations

import struct
from zlib import crc32

from loom.errors import StoreError

_MARK = b"\xffLM\n"
"""Begins each frame, and cannot stand inside one: the byte FF is never part of UTF-8."""
_HEADER = struct.Struct("<4sII")
HEADER_SIZE = _HEADER.size
MAX_PAYLOAD = 2**32 - 1


def framed(payload: bytes) -> bytes:
    """A frame: mark, length, checksum, payload."""
    return _HEADER.pack(_MARK, len(payload), _checksum(payload)) + payload


def frames_of(data: bytes, what: str) -> tuple[list[tuple[int, bytes]], int]:
    """The frames as (offset, payload), and where the last whole one ends.

    After it there may be a write that was cut short. Raises StoreError if a whole frame comes after a broken one:
    that is damage, and cutting there would lose acknowledged saves.
    """
    found: list[tuple[int, bytes]] = []
    end = 0
    while (payload := _payload_at(data, end)) is not None:
        found.append((end, payload))
        end += HEADER_SIZE + len(payload)
    later = data.find(_MARK, end + 1)
    while later != -1:
        if _payload_at(data, later) is not None:
            raise StoreError(f"{what} is damaged at byte {end} and sound again at {later}; restore it from a copy")
        later = data.find(_MARK, later + 1)
    return found, end


def _payload_at(data: bytes, offset: int) -> bytes | None:
    if len(data) - offset < HEADER_SIZE:
        return None
    mark, length, checksum = _HEADER.unpack_from(data, offset)
    payload = data[offset + HEADER_SIZE : offset + HEADER_SIZE + length]
    if mark != _MARK or len(payload) != length or _checksum(payload) != checksum:
        return None
    return payload


def _checksum(payload: bytes) -> int:
    return crc32(payload, crc32(len(payload).to_bytes(4, "little")))
