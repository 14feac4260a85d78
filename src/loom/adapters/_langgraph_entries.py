"""The form of LangGraph's checkpoints in a log: each entry holds what it changed, so that a log grows by what is new.

A list that begins like the list of the checkpoint before is kept as the rest alone. Values are in LangGraph's own
serialised form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from loom.adapters._langgraph_values import Items, items_of
from loom.errors import MissingExtra, StoreError

try:
    from langgraph.checkpoint.base import writes_sort_key
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.types import _DeltaSnapshot
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

EMPTY, _SNAPSHOT = "empty", "snapshot:"
"""The form of a channel that has a version and no value; and the start of that of a delta channel's snapshot.

What was last a list stays known behind an empty channel: the next snapshot begins with the one before it.
"""


class Channel(NamedTuple):
    """A channel at a checkpoint: the items of a list, any other value in its serialised form, or no value."""

    version: str | float
    kind: str
    data: bytes = b""
    items: Items | None = None
    size: int = 0
    """How many bytes it takes serialised, about."""

    def value(self, serde: SerializerProtocol) -> Any:
        """The value, which the caller may change."""
        if self.items is None:
            return serde.loads_typed((self.kind, self.data))
        return _DeltaSnapshot(self.items.copies()) if self.kind.startswith(_SNAPSHOT) else self.items.copies()


def private(value: tuple[str, bytes], serde: SerializerProtocol) -> Channel:
    """A serialised value as a channel without a version, which is read only once where it is a list."""
    read, (kind, data) = serde.loads_typed(value), value
    return Channel(0, kind, data, items_of(read, serde) if _is_list(read) else None, len(data))


class Piece(NamedTuple):
    """What an entry says of one channel: the first `start` items of the list before stay, and `data` follows."""

    name: str
    version: str | float
    start: int | None
    kind: str
    data: bytes

    def onto(self, before: Channel | None, serde: SerializerProtocol) -> Channel:
        """The channel behind this piece."""
        if self.kind == EMPTY and before is not None:
            return before._replace(version=self.version, kind=EMPTY, data=b"")
        if self.start is None:
            return Channel(self.version, self.kind, self.data, size=len(self.data))
        fresh: list[Any] = serde.loads_typed((self.kind.removeprefix(_SNAPSHOT), self.data))
        if not self.start or before is None or before.items is None:
            return Channel(self.version, self.kind, items=items_of(fresh, serde), size=len(self.data))
        size = before.size + len(self.data)
        return Channel(self.version, self.kind, items=before.items.then(self.start, fresh), size=size)


Channels: TypeAlias = Mapping[str, Channel]


def changes(
    before: Channels, checkpoint: Mapping[str, Any], new: Mapping[str, Any], serde: SerializerProtocol
) -> tuple[tuple[Piece, ...], Channels]:
    """What a checkpoint changes, given the channels before it and the versions that are new; and the channels then."""
    values, pieces, after = checkpoint["channel_values"], list[Piece](), dict(before)
    for name, version in checkpoint["channel_versions"].items():
        known = before.get(name)
        if name not in new and known is not None and known.version == version:
            continue
        is_empty = name not in values  # also in the copy of a checkpoint, which names no version as new
        piece = (
            Piece(name, version, None, EMPTY, b"") if is_empty else _piece(name, version, known, values[name], serde)
        )
        pieces.append(piece)
        after[name] = piece.onto(known, serde)
    return tuple(pieces), after


def _piece(name: str, version: str | float, known: Channel | None, value: Any, serde: SerializerProtocol) -> Piece:
    inner: Any = value.value if isinstance(value, _DeltaSnapshot) else value
    if not _is_list(inner):
        return Piece(name, version, None, *serde.dumps_typed(value))
    start = 0 if known is None or known.items is None else known.items.shared(inner)
    kind, data = serde.dumps_typed(inner[start:])
    return Piece(name, version, start, kind if inner is value else _SNAPSHOT + kind, data)


def _is_list(value: object) -> bool:
    return type(value) is list


class CheckpointEntry(NamedTuple):
    """A checkpoint in a log: `before` is the id of the entry it continues, `parent` the checkpoint LangGraph names."""

    before: str | None
    parent: str | None
    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    pieces: tuple[Piece, ...]

    def pack(self) -> bytes:
        """The bytes of it: one line of JSON, then the values."""
        values = [self.checkpoint, self.metadata, *((piece.kind, piece.data) for piece in self.pieces)]
        head = {"before": self.before, "parent": self.parent, "pieces": [piece[:3] for piece in self.pieces]}
        return packed(head, values)

    @classmethod
    def unpack(cls, body: object) -> CheckpointEntry:
        """The entry of pack()."""
        head, (checkpoint, metadata, *values) = unpacked(body)
        named: Iterable[tuple[str, str | float, int | None]] = head["pieces"]
        pieces = [Piece(*one, *value) for one, value in zip(named, values, strict=True)]
        return cls(head["before"], head["parent"], checkpoint, metadata, tuple(pieces))

    def piece(self, name: str) -> Piece | None:
        """What it says of a channel."""
        return next((piece for piece in self.pieces if piece.name == name), None)


def packed(head: dict[str, Any], values: Sequence[tuple[str, bytes]]) -> bytes:
    """One line of JSON that says what follows, then serialised values."""
    line = json.dumps({**head, "values": [(kind, len(data)) for kind, data in values]}, separators=(",", ":"))
    return b"\n".join((line.encode(), b"".join(data for _, data in values)))


def unpacked(body: object) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """The line and the values of packed()."""
    if not isinstance(body, bytes):
        raise StoreError("an entry of this thread was not written by LoomSaver; give the graph a thread_id of its own")
    line, _, data = body.partition(b"\n")
    head, at, values = json.loads(line), 0, list[tuple[str, bytes]]()
    for kind, size in head["values"]:
        values.append((kind, data[at : at + size]))
        at += size
    return head, values


Writes: TypeAlias = tuple[tuple[dict[str, Any], list[tuple[str, bytes]]], ...]
"""What tasks wrote at a checkpoint, as unpacked() gives it, in the order in which it was put."""


def merged_writes(held: Writes) -> list[tuple[str, str, tuple[str, bytes]]]:
    """The task, the channel and the value of each write, once and in the order in which LangGraph applies them."""
    merged: dict[tuple[str, int], tuple[str, str, tuple[str, bytes]]] = {}
    for head, values in held:
        for (index, channel), value in zip(head["writes"], values, strict=True):
            if index < 0 or (head["task"], index) not in merged:  # only errors, interrupts and the like are put anew
                merged[head["task"], index] = (head["path"], channel, value)
    order = sorted(merged, key=lambda key: writes_sort_key(merged[key][0], *key))
    return [(task, *merged[task, index][1:]) for task, index in order]
