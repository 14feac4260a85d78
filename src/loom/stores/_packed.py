"""Log entries as stores keep them: packed, their parts apart by hash or number, and read in part.

A packed entry refers to its parts, and a recorded one to a body that is not small, by number. What is not wanted of a
log is neither decoded nor asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeAlias, TypeVar

from loom.core.codec import (
    Data,
    all_from_bytes,
    entry_from_dict,
    entry_to_dict,
    from_bytes,
    part_from_dict,
    part_to_dict,
    to_bytes,
)
from loom.core.log import LogEntry, Recorded
from loom.core.message import JSON, Part
from loom.stores.base import DamagedData, reading

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Which entries of a log are read, and how much of them. Those that are not wanted are not decoded."""

    whole: bool = True
    """The log from its beginning; otherwise only what the save of the checkpoint added."""
    last: int | None = None
    """Only so many entries at the end: no save before them is read."""
    recorded: bool = False
    """Only recorded entries."""
    kind: str | None = None
    """Only recorded entries of this kind."""
    bodies: bool = True
    """Whether the bodies of recorded entries are read."""

    @property
    def is_partial(self) -> bool:
        """Whether parts of the saves that are read may be left where they are."""
        return self.recorded or not self.bodies

    def enough(self, entries: int) -> bool:
        """Whether so many entries at the end of a log are all that is wanted."""
        return not self.whole or (self.last is not None and entries >= self.last)

    def cut(self, entries: Sequence[_T]) -> Sequence[_T]:
        """The entries at the end that are wanted."""
        return entries if self.last is None else entries[max(0, len(entries) - self.last) :]

    def chosen(self, entries: Sequence[Data]) -> Sequence[Data]:
        """The entries, as they are stored, that are wanted."""
        cut = self.cut(entries)
        return [entry for entry in cut if self.takes(entry)] if self.recorded else cut

    def takes(self, entry: Data) -> bool:
        """Whether an entry, as it is stored, is wanted."""
        return not self.recorded or (entry["type"] == "recorded" and self.kind in (None, entry["kind"]))


ALL: Final = LogSlice()
NO_BODIES: Final = LogSlice(bodies=False)
ITS_OWN: Final = LogSlice(whole=False)


HASH = 32
"""How many bytes name a part."""
_SMALL = 1024
"""Bytes of an entry up to which a recorded value is kept in it: the values of a journal, say, are never equal, and to
look for one among the parts costs more than to write it."""


@dataclass(frozen=True, slots=True)
class PackedEntries:
    """Entries whose parts are replaced by their place in `hashes`; `bodies` are the parts by hash, each once."""

    entries: bytes
    hashes: tuple[bytes, ...]
    bodies: Mapping[bytes, bytes]


def pack_entries(entries: Sequence[LogEntry]) -> PackedEntries:
    """Entries as they are stored by backends that share parts by hash."""
    hashes: list[bytes] = []
    bodies: dict[bytes, bytes] = {}

    def keep(body: bytes) -> int:
        hashes.append(sha256(body).digest())
        bodies[hashes[-1]] = body
        return len(hashes) - 1

    def put(part: Part) -> int:
        return keep(to_bytes(part_to_dict(part)))

    def put_body(body: JSON | bytes) -> Data:
        return {"bytes": keep(body)} if isinstance(body, bytes) else {"json": keep(to_bytes(body))}

    return PackedEntries(encoded_entries(entries, put, put_body), tuple(hashes), bodies)


def encoded_entries(
    entries: Sequence[LogEntry], put: Callable[[Part], JSON], put_body: Callable[[JSON | bytes], Data]
) -> bytes:
    """The bytes of packed entries; a small value that was recorded is kept in its entry."""
    texts: list[bytes] = []
    for entry in entries:
        text = b""
        if isinstance(entry, Recorded) and not isinstance(entry.body, bytes):
            text = to_bytes(entry_to_dict(entry))
        is_small = 0 < len(text) <= _SMALL
        texts.append(text if is_small else to_bytes(entry_to_dict(entry, put, put_body)))
    return b"[%b]" % b",".join(texts)


def part_numbers(entry: Data) -> Sequence[int]:
    """The numbers of the parts of a packed entry."""
    if "parts" in entry:
        return entry["parts"]
    if "replacements" not in entry:
        return ()
    replaced = [one["message"] for one in entry["replacements"] if "message" in one]
    return [part for message in replaced for part in message.get("parts", ())]


def body_number(entry: Data) -> int | None:
    """The number of the body of a packed entry, where that is recorded."""
    return entry.get("json", entry.get("bytes"))


def numbers_in(entry: Data, *, bodies: bool = True) -> Sequence[int]:
    """The numbers of everything that a packed entry refers to."""
    body = body_number(entry)
    return part_numbers(entry) if body is None else (body,) if bodies else ()


Piece: TypeAlias = tuple[bytes, Sequence[bytes]]
"""Of a save, the bytes and the hashes that pack_entries() gave."""


def needed_hashes(pieces: Sequence[Piece], wanted: LogSlice) -> list[bytes]:
    """The parts and bodies that unpack_entries() will ask for, each once."""
    with reading("the log of a conversation"):
        chosen = _chosen(pieces, wanted)
        found = (hashes[number] for entry, hashes in chosen for number in numbers_in(entry, bodies=wanted.bodies))
        return list(dict.fromkeys(found))


def _chosen(pieces: Sequence[Piece], wanted: LogSlice) -> list[tuple[Data, Sequence[bytes]]]:
    saves: list[list[Data]] = all_from_bytes([data for data, _ in pieces])
    entries = [(entry, hashes) for save, (_, hashes) in zip(saves, pieces, strict=True) for entry in save]
    return [one for one in wanted.cut(entries) if wanted.takes(one[0])]


def unpack_entries(pieces: Sequence[Piece], bodies: Mapping[bytes, bytes], wanted: LogSlice = ALL) -> list[LogEntry]:
    """The entries of saves in order, or those that are wanted."""
    for hash, body in bodies.items():
        if sha256(body).digest() != hash:
            raise DamagedData(f"the part {hash.hex()[:12]} of a conversation is not what was written")
    with reading("the log of a conversation"):
        chosen = _chosen(pieces, wanted)
        used = [*dict.fromkeys(hashes[number] for entry, hashes in chosen for number in part_numbers(entry))]
        values = map(part_from_dict, all_from_bytes([bodies[hash] for hash in used]))
        parts = dict(zip(used, values, strict=True))
        unpacked: list[LogEntry] = []
        get, get_body, last = parts.__getitem__, no_body, None
        for entry, hashes in chosen:
            if hashes is not last:  # of another save
                last, get = hashes, [parts.get(hash) for hash in hashes].__getitem__
                get_body = _Bodies(hashes, bodies).read if wanted.bodies else no_body
            unpacked.append(entry_from_dict(entry, get, get_body))  # pyright: ignore[reportArgumentType]
    return unpacked


@dataclass(slots=True)
class _Bodies:
    """The bodies of recorded entries of one save."""

    hashes: Sequence[bytes]
    bodies: Mapping[bytes, bytes]

    def read(self, entry: Data) -> JSON | bytes:
        if "body" in entry:
            return entry["body"]
        if "bytes" in entry:
            return self.bodies[self.hashes[entry["bytes"]]]
        return from_bytes(self.bodies[self.hashes[entry["json"]]])


def no_body(_: Data) -> None:
    """The body of a recorded entry that is not read."""


def ids_in(entries: bytes) -> list[str]:
    """The ids of packed entries."""
    with reading("the log of a conversation"):
        return [entry["id"] for entry in from_bytes(entries)]
