"""The checkpoints of one user as keys: their order, sessions and parents are in the names, the rest in the values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
from loom.core.scope import Scope
from loom.stores.damage import DamagedData, reading

_FORMAT: Final = 1
_NO_PARENT: Final = "-"
_FIELDS: Final = 5


def digest(text: str) -> str:
    """A text as 32 characters that may stand in a key."""
    return sha256(text.encode()).hexdigest()[:32]


def user_prefix(root: str, scope: Scope) -> str:
    """What all keys of a user begin with."""
    return f"{root}{sha256(scope.for_user().key().encode()).hexdigest()}/"


@dataclass(frozen=True, slots=True)
class KeyNode:
    """A save, as its key tells it. `live`: it has a checkpoint; else only others continue its log."""

    number: int
    id: str
    """The digest of the session and the checkpoint."""
    parent: str
    session: str
    entries: int
    live: bool

    @property
    def name(self) -> str:
        """What a child calls its parent."""
        return f"{self.number:012d}_{self.id}"

    @property
    def key(self) -> str:
        """The key, without what all keys of the user begin with."""
        parts = (self.name, self.parent, self.session, str(self.entries), "c" if self.live else "x")
        return ".".join(parts)


def node_of(key: str) -> KeyNode | None:
    """The save that a key names; None where it is not of this form."""
    parts = key.split(".")
    number, _, id = parts[0].partition("_")
    if len(parts) != _FIELDS or not number.isdecimal() or not parts[3].isdecimal() or parts[4] not in ("c", "x"):
        return None
    return KeyNode(int(number), id, parts[1], parts[2], int(parts[3]), parts[4] == "c")


class KeyTree:
    """All saves of a user."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.nodes: dict[str, KeyNode] = {}
        self.doubled: list[KeyNode] = []
        """Keys that a deletion wrote anew and did not come to remove."""
        for node in sorted(filter(None, map(node_of, keys)), key=lambda node: (node.number, node.id, node.live)):
            if node.name in self.nodes:  # without its checkpoint comes first: somebody deleted that
                self.doubled.append(node)
            self.nodes.setdefault(node.name, node)

    def find(self, session_id: str, id: str | None) -> KeyNode | None:
        """The save of a checkpoint; without an id, of the one last saved."""
        held = self.of(session_id)
        wanted = None if id is None else node_id(session_id, id)
        return next((node for node in held if wanted is None or node.id == wanted), None)

    def of(self, session_id: str | None) -> list[KeyNode]:
        """Saves with a checkpoint, of one session or of all, last saved first."""
        session = None if session_id is None else digest(session_id)
        found = [node for node in self.nodes.values() if node.live and session in (None, node.session)]
        return found[::-1]

    def chain(self, node: KeyNode) -> list[KeyNode]:
        """The saves from the beginning of the log to this one."""
        found = [node]
        while found[-1].parent != _NO_PARENT:
            parent = self.nodes.get(found[-1].parent)
            if parent is None:
                raise DamagedData(f"the log before save {found[-1].number} of a conversation is missing")
            found.append(parent)
        return found[::-1]

    def next(self, session_id: str, checkpoint_id: str, parent: KeyNode | None, entries: int) -> KeyNode:
        """A save that comes after all others."""
        number = 1 + max((node.number for node in self.nodes.values()), default=-1)
        above = parent.name if parent is not None else _NO_PARENT
        return KeyNode(number, node_id(session_id, checkpoint_id), above, digest(session_id), entries, live=True)

    def without(self, nodes: Sequence[KeyNode]) -> tuple[list[KeyNode], list[KeyNode]]:
        """What to remove, and what to keep without its checkpoint, where these checkpoints are deleted."""
        children: dict[str, int] = {}
        for node in self.nodes.values():
            children[node.parent] = children.get(node.parent, 0) + 1
        dead = {node.name for node in nodes} | {node.name for node in self.nodes.values() if not node.live}
        gone: dict[str, KeyNode] = {}
        for start in nodes:
            node: KeyNode | None = start
            while node is not None and node.name in dead and node.name not in gone and not children.get(node.name):
                gone[node.name] = node
                children[node.parent] = children.get(node.parent, 0) - 1
                node = self.nodes.get(node.parent)
        return list(gone.values()), [node for node in nodes if node.name not in gone]

    def behind(self, nodes: Sequence[KeyNode]) -> list[KeyNode]:
        """The saves that these continue, themselves included, each once."""
        found: dict[str, KeyNode] = {}
        for start in nodes:
            node: KeyNode | None = start
            while node is not None and node.name not in found:
                found[node.name] = node
                node = self.nodes.get(node.parent)
        return list(found.values())


def node_id(session_id: str, checkpoint_id: str) -> str:
    """The digest of a checkpoint of a session; the length keeps the two apart."""
    return digest(f"{len(session_id)}:{session_id}{checkpoint_id}")


def dead(node: KeyNode) -> KeyNode:
    """The save without its checkpoint."""
    return replace(node, live=False)


@dataclass(frozen=True, slots=True)
class Save:
    """What a value holds."""

    checkpoint: Checkpoint | None
    entries: tuple[LogEntry, ...]

    def to_bytes(self) -> bytes:
        """The value."""
        entries: list[JSON] = [entry_to_dict(entry) for entry in self.entries]
        checkpoint = None if self.checkpoint is None else checkpoint_to_dict(self.checkpoint)
        return to_bytes({"format": _FORMAT, "checkpoint": checkpoint, "entries": entries})

    @classmethod
    def from_bytes(cls, value: bytes) -> Save:
        """What a value holds; raises DamagedData where it is none, and FormatTooNew."""
        with reading("a save of a conversation"):
            data = from_bytes(value)
            check_format(data["format"], "a save of a conversation")
            checkpoint = None if data["checkpoint"] is None else checkpoint_from_dict(data["checkpoint"])
            return cls(checkpoint, tuple(entry_from_dict(entry) for entry in data["entries"]))
