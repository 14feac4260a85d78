"""The form of a LangGraph checkpoint in a log: its entry holds what it changed, so that a log grows by what is new.

A list that begins like the list of the checkpoint before is kept as the rest alone. Values are in LangGraph's own
serialised form. Between calls they stay in memory as private copies: what a graph does to an object it was given, or
has given, changes nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from loom.errors import MissingExtra, StoreError

try:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langgraph.checkpoint.base import PendingWrite, writes_sort_key
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.types import _DeltaSnapshot
    from pydantic import BaseModel
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

_K = TypeVar("_K")
_V = TypeVar("_V")
_LEAVES = frozenset({str, int, float, bool, type(None), bytes})
_EMPTY = frozenset({dict, list})
_MESSAGES = frozenset({AIMessage, HumanMessage, SystemMessage, ToolMessage})
_SET_FIELDS, _SET_NAMED, _SET_EXTRA, _SET_PRIVATE = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
EMPTY, SNAPSHOT = "empty", "snapshot:"
"""The form of a channel that has a version and no value; and the start of that of a delta channel's snapshot.

What was last a list stays known behind an empty channel: the next snapshot begins with the one before it.
"""


class Recent(Generic[_K, _V]):
    """A cache of the values that were used last, up to a weight; threads may share it."""

    def __init__(self, most: int, weigh: Callable[[_V], int]) -> None:
        self._most, self._weigh, self._lock = most, weigh, Lock()
        self._held, self._weight = dict[_K, _V](), 0

    def get(self, key: _K) -> _V | None:
        """The value of a key, if it is still held."""
        with self._lock:
            value = self._held.pop(key, None)
            if value is not None:
                self._held[key] = value
            return value

    def put(self, key: _K, value: _V) -> None:
        """Hold a value, and let go of those that were not used for longest."""
        with self._lock:
            self._pop(key)
            self._held[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._most and len(self._held) > 1:
                self._pop(next(iter(self._held)))

    def pop(self, key: _K) -> None:
        """Let go of a key."""
        with self._lock:
            self._pop(key)

    def drop(self, fits: Callable[[_K], bool]) -> None:
        """Let go of all keys that fit."""
        with self._lock:
            for key in [key for key in self._held if fits(key)]:
                self._pop(key)

    def _pop(self, key: _K) -> None:
        value = self._held.pop(key, None)
        self._weight -= 0 if value is None else self._weigh(value)


class Channel(NamedTuple):
    """A channel at a checkpoint: the items of a list, any other value in its serialised form, or no value."""

    version: str | float
    kind: str
    data: bytes = b""
    items: list[Any] | None = None
    size: int = 0
    """How many bytes it takes serialised, about."""

    def value(self, serde: SerializerProtocol) -> Any:
        """The value, which the caller may change."""
        if self.items is None:
            return serde.loads_typed((self.kind, self.data))
        made = [item.made(serde) if type(item) is _Message else _copied(item, serde) for item in self.items]
        return _DeltaSnapshot(made) if self.kind.startswith(SNAPSHOT) else made


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
        kept = before.items[: self.start] if before and before.items else []
        fresh = serde.loads_typed((self.kind.removeprefix(SNAPSHOT), self.data))
        more = [_Message.of(item) if type(item) in _MESSAGES else item for item in fresh]
        size = len(self.data) + (before.size if before and self.start else 0)
        return Channel(self.version, self.kind, items=[*kept, *more], size=size)


Channels: TypeAlias = Mapping[str, Channel]


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


def changes(
    before: Channels, checkpoint: Mapping[str, Any], new: Mapping[str, Any], serde: SerializerProtocol
) -> tuple[tuple[Piece, ...], dict[str, Channel]]:
    """What a checkpoint changes, given the channels before it and the versions that are new; and the channels then."""
    values, pieces, after = checkpoint["channel_values"], list[Piece](), dict(before)
    for name, version in checkpoint["channel_versions"].items():
        known = before.get(name)
        if name not in new and known is not None and known.version == version:
            continue
        if name in values:
            value: Any = values[name]
            is_snapshot = isinstance(value, _DeltaSnapshot) and _kind(value.value) is list
            value = value.value if is_snapshot else value
            start = _shared(known.items or [] if known else [], value, serde) if _kind(value) is list else None
            kind, data = serde.dumps_typed(value if start is None else value[start:])
            pieces.append(Piece(name, version, start, SNAPSHOT + kind if is_snapshot else kind, data))
            after[name] = pieces[-1].onto(known, serde)
        elif name in new:
            pieces.append(Piece(name, version, None, EMPTY, b""))
            after[name] = pieces[-1].onto(known, serde)
    return tuple(pieces), after


def _shared(kept: list[Any], given: list[Any], serde: SerializerProtocol) -> int:
    """How many items two lists have in common from the start."""
    count = 0
    for one, other in zip(kept, given, strict=False):
        if type(one) is _Message:
            # In C, because nothing else is done so often; in a field, 1 and True count as the same.
            is_same = type(other) is one.kind and one.fields == other.__dict__ and one.extra == other.__pydantic_extra__
            one = None if is_same else one.made(serde)  # noqa: PLW2901  (only where it is compared as bytes)
        else:
            is_same = _same(one, other)
        if not is_same and serde.dumps_typed(one) != serde.dumps_typed(other):
            break
        count += 1
    return count


def _same(one: Any, other: Any) -> bool:
    """Whether two values are surely alike; False says nothing yet."""
    kind = _kind(one)
    if kind is not _kind(other):
        return False  # True is not 1
    if kind in _LEAVES:
        return bool(one == other)
    if kind is dict:
        return list(one) == list(other) and all(_same(value, other[name]) for name, value in one.items())
    return kind is list and len(one) == len(other) and all(map(_same, one, other))


def _kind(value: object) -> type:
    return type(value)


def _copied(value: Any, serde: SerializerProtocol) -> Any:
    kind = _kind(value)
    if kind in _LEAVES:
        return value
    if kind is list:
        return [_copied(item, serde) for item in cast("list[Any]", value)]
    if kind is dict:
        return {name: _copied(item, serde) for name, item in cast("dict[Any, Any]", value).items()}
    return serde.loads_typed(serde.dumps_typed(value))


class _Message(NamedTuple):
    """A message taken apart, to be made again and again: with a long conversation that is what a turn costs."""

    kind: type
    fields: dict[str, Any]
    containers: tuple[tuple[str, type], ...]
    named: set[str]
    extra: Any
    private: Any

    @classmethod
    def of(cls, message: Any) -> _Message:
        """A message that was just read back, and that nobody else has."""
        fields: dict[str, Any] = message.__dict__
        containers = tuple((name, _kind(value)) for name, value in fields.items() if _kind(value) not in _LEAVES)
        named: set[str] = message.__pydantic_fields_set__
        named |= fields.keys()  # so that all copies can share it: there is nothing left that could be added
        return cls(type(message), fields, containers, named, message.__pydantic_extra__, message.__pydantic_private__)

    def made(self, serde: SerializerProtocol) -> Any:
        """An equal message, with containers of its own."""
        fields = self.fields.copy()
        for name, kind in self.containers:
            fields[name] = kind() if kind in _EMPTY and not fields[name] else _copied(fields[name], serde)
        message = cast("Any", object.__new__(self.kind))
        _SET_FIELDS(message, fields)
        _SET_NAMED(message, self.named)
        _SET_EXTRA(message, _copied(self.extra, serde))
        _SET_PRIVATE(message, _copied(self.private, serde))
        return message


Writes: TypeAlias = tuple[tuple[dict[str, Any], list[tuple[str, bytes]]], ...]
"""What tasks wrote at a checkpoint, as unpacked() gives it, in the order in which it was put."""


def merged_writes(held: Writes, serde: SerializerProtocol, only: str | None = None) -> list[PendingWrite]:
    """The writes, or those to one channel, each once and in the order in which LangGraph applies them."""
    merged: dict[tuple[str, int], tuple[str, str, tuple[str, bytes]]] = {}
    for head, values in held:
        for (index, channel), value in zip(head["writes"], values, strict=True):
            if index < 0 or (head["task"], index) not in merged:  # only errors, interrupts and the like are put anew
                merged[head["task"], index] = (head["path"], channel, value)
    order = sorted(merged, key=lambda key: writes_sort_key(merged[key][0], *key))
    found = [(task, *merged[task, index][1:]) for task, index in order]
    return [(task, name, serde.loads_typed(value)) for task, name, value in found if only in {None, name}]


def weight_of(known: CheckpointEntry | Channels | Writes) -> int:
    """About how many bytes it takes in memory."""
    if isinstance(known, CheckpointEntry):
        return 500 + sum(len(piece.data) for piece in known.pieces)
    if isinstance(known, Mapping):
        return 500 + sum(channel.size for channel in known.values())
    return 500 + sum(len(data) for _, values in known for _, data in values)
