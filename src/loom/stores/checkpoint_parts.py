"""The entries of one save as bytes that name their parts, and the parts themselves, each stored once by its hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from loom.core.checkpoint import LogEntry
from loom.core.message import JSON, Part
from loom.core.message_codec import entry_from_dict, entry_to_dict, from_bytes, part_from_dict, part_to_dict, to_bytes
from loom.stores.damage import DamagedData, reading

HASH = 32
"""How many bytes name a part."""


@dataclass(frozen=True, slots=True)
class PackedEntries:
    """Entries whose parts are replaced by their place in `hashes`; `bodies` are the parts by hash, each once."""

    entries: bytes
    hashes: tuple[bytes, ...]
    bodies: Mapping[bytes, bytes]


def pack_entries(entries: Sequence[LogEntry]) -> PackedEntries:
    """Entries as they are stored."""
    hashes: list[bytes] = []
    bodies: dict[bytes, bytes] = {}

    def put(part: Part) -> int:
        body = to_bytes(part_to_dict(part))
        hashes.append(sha256(body).digest())
        bodies[hashes[-1]] = body
        return len(hashes) - 1

    packed: list[JSON] = [entry_to_dict(entry, put) for entry in entries]
    return PackedEntries(to_bytes(packed), tuple(hashes), bodies)


def unpack_entries(pieces: Sequence[tuple[bytes, Sequence[bytes]]], bodies: Mapping[bytes, bytes]) -> list[LogEntry]:
    """The entries of saves in order: of each the bytes and the hashes that pack_entries() gave."""
    for hash, body in bodies.items():
        if sha256(body).digest() != hash:
            raise DamagedData(f"the part {hash.hex()[:12]} of a conversation is not what was written")
    with reading("the log of a conversation"):
        parts = {hash: part_from_dict(from_bytes(body)) for hash, body in bodies.items()}
        unpacked: list[LogEntry] = []
        for entries, hashes in pieces:
            of_piece = [parts[hash] for hash in hashes]
            unpacked += [entry_from_dict(entry, of_piece.__getitem__) for entry in from_bytes(entries)]
    return unpacked
