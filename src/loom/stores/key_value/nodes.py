"""The checkpoints of one user as keys: their order, sessions and parents are in the names, the rest in the values."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.message import JSON
from loom.core.message_codec import (
    check_format,
    checkpoint_from_dict,
    checkpoint_to_dict,
    entry_from_dict,
    entry_to_dict,
    from_bytes,
    to_bytes,
)
from loom.stores.damage import reading

_FORMAT: Final = 1
NO_PARENT: Final = "-"
_FIELDS: Final = 5


def digest(text: str) -> str:
    """A text as 32 characters that may stand in a key."""
    return sha256(text.encode()).hexdigest()[:32]


def node_id(session_id: str, checkpoint_id: str) -> str:
    """The digest of a checkpoint of a session; the length keeps the two apart."""
    return digest(f"{len(session_id)}:{session_id}{checkpoint_id}")


@dataclass(frozen=True, slots=True)
class KeyNode:
    """A save, as its key names it. `live`: it has a checkpoint; else it stays because others continue its log."""

    number: int
    id: str
    """The digest of the session and the checkpoint."""
    parent: str
    session: str
    entries: int
    live: bool

    @property
    def name(self) -> str:
        """The name by which a child refers to its parent. Names sort in the order of saving."""
        return f"{self.number:012d}_{self.id}"

    @property
    def key(self) -> str:
        """The key, without the prefix of all keys of the user."""
        parts = (self.name, self.parent, self.session, str(self.entries), "c" if self.live else "x")
        return ".".join(parts)


def node_of(key: str) -> KeyNode | None:
    """The save that a key names; None where it is not of this form."""
    parts = key.split(".")
    number, _, id = parts[0].partition("_")
    if len(parts) != _FIELDS or not number.isdecimal() or not parts[3].isdecimal() or parts[4] not in ("c", "x"):
        return None
    return KeyNode(int(number), id, parts[1], parts[2], int(parts[3]), parts[4] == "c")


@dataclass(frozen=True, slots=True)
class Save:
    """A save as it is stored: one value."""

    checkpoint: Checkpoint | None
    entries: tuple[LogEntry, ...]

    def to_bytes(self) -> bytes:
        """The value."""
        entries: list[JSON] = [entry_to_dict(entry) for entry in self.entries]
        checkpoint = None if self.checkpoint is None else checkpoint_to_dict(self.checkpoint)
        return to_bytes({"format": _FORMAT, "checkpoint": checkpoint, "entries": entries})

    @classmethod
    def from_bytes(cls, value: bytes) -> Save:
        """The save of a value; raises DamagedData and FormatTooNew."""
        with reading("a save of a conversation"):
            data = from_bytes(value)
            check_format(data["format"], "a save of a conversation")
            checkpoint = None if data["checkpoint"] is None else checkpoint_from_dict(data["checkpoint"])
            return cls(checkpoint, tuple(entry_from_dict(entry) for entry in data["entries"]))
