"""How a LangGraph checkpoint is kept in a log: its entry holds what it changed, so that a log grows by what is new.

A list that begins like the list of the checkpoint before is kept as the rest alone. Values are in LangGraph's own
serialised form. Between calls they stay in memory as private copies: what a graph does to an object it was given, or
has given, changes nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar, cast

from loom.core.clock import Clock
from loom.core.log import Checkpoint, Recorded
from loom.core.scope import Scope
from loom.errors import MissingExtra, NotFound, StoreConflict, StoreError, UsageError
from loom.protocols.checkpoint_store import CheckpointStore

try:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langgraph.checkpoint.base import WRITES_IDX_MAP, DeltaChannelHistory, PendingWrite, writes_sort_key
    from langgraph.checkpoint.serde.base import SerializerProtocol
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
_KIND, _ROOT = "langgraph", "root"
"""The kind of the entries; and the id of the empty checkpoint that every thread begins at."""
_TRIES = 5
EMPTY = "empty"
"""The form of a channel that has a version and no value."""


class Recent(Generic[_K, _V]):
    """A cache of the values that were used last; threads may share it."""

    def __init__(self, size: int) -> None:
        self._size, self._held, self._lock = size, dict[_K, _V](), Lock()

    def get(self, key: _K) -> _V | None:
        """The value of a key, if it is still held."""
        with self._lock:
            value = self._held.pop(key, None)
            if value is not None:
                self._held[key] = value
            return value

    def put(self, key: _K, value: _V) -> None:
        """Hold a value, and let go of the one that was not used for longest."""
        with self._lock:
            self._held.pop(key, None)
            self._held[key] = value
            if len(self._held) > self._size:
                del self._held[next(iter(self._held))]

    def pop(self, key: _K) -> None:
        """Let go of a key."""
        with self._lock:
            self._held.pop(key, None)

    def drop(self, fits: Callable[[_K], bool]) -> None:
        """Let go of all keys that fit."""
        with self._lock:
            self._held = {key: value for key, value in self._held.items() if not fits(key)}


class Channel(NamedTuple):
    """A channel at a checkpoint: the items of a list, any other value in its serialised form, or no value."""

    version: str | float
    kind: str
    data: bytes = b""
    items: list[Any] | None = None

    def value(self, serde: SerializerProtocol) -> Any:
        """The value, which the caller may change."""
        if self.items is not None:
            return [item.made(serde) if type(item) is _Message else _copied(item, serde) for item in self.items]
        return serde.loads_typed((self.kind, self.data))


class Piece(NamedTuple):
    """What an entry says of one channel: the first `start` items of the list before stay, and `data` follows."""

    name: str
    version: str | float
    start: int | None
    kind: str
    data: bytes

    def onto(self, before: Channel | None, serde: SerializerProtocol) -> Channel:
        """The channel behind this piece."""
        if self.start is None:
            return Channel(self.version, self.kind, self.data)
        kept = before.items[: self.start] if before and before.items else []
        fresh = serde.loads_typed((self.kind, self.data))
        more = [_Message.of(item) if type(item) in _MESSAGES else item for item in fresh]
        return Channel(self.version, self.kind, items=[*kept, *more])


Channels = Mapping[str, Channel]


class Entry(NamedTuple):
    """A checkpoint in the log: `before` is the id of the entry it continues, `parent` the checkpoint LangGraph names."""

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
    def unpack(cls, body: object) -> Entry:
        """The entry of pack()."""
        head, (checkpoint, metadata, *values) = unpacked(body)
        pieces = (Piece(*named, *value) for named, value in zip(head["pieces"], values, strict=True))
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
    values, pieces, after = checkpoint["channel_values"], list[Piece](), dict[str, Channel]()
    for name, version in checkpoint["channel_versions"].items():
        known = before.get(name)
        if name not in new and known is not None and known.version == version:
            after[name] = known
        elif name in values:
            value = values[name]
            start = _shared(known.items or [] if known else [], value, serde) if type(value) is list else None
            kind, data = serde.dumps_typed(value if start is None else value[start:])
            pieces.append(Piece(name, version, start, kind, data))
            after[name] = pieces[-1].onto(known, serde)
        elif name in new:
            pieces.append(Piece(name, version, None, EMPTY, b""))
            after[name] = pieces[-1].onto(None, serde)
    return tuple(pieces), after


def _shared(kept: list[Any], given: list[Any], serde: SerializerProtocol) -> int:
    """How many items two lists have in common from the start."""
    count = 0
    for one, other in zip(kept, given, strict=False):
        if type(one) is _Message:
            is_same = type(other) is one.kind and one.fields == other.__dict__
            one = None if is_same else one.made(serde)  # noqa: PLW2901  (only where it is compared as bytes)
        else:
            is_same = _same(one, other)
        if not is_same and serde.dumps_typed(one) != serde.dumps_typed(other):
            break
        count += 1
    return count


def _same(one: Any, other: Any) -> bool:
    """Whether two values are surely alike; False says nothing yet."""
    kind = type(one)
    if kind is not type(other):
        return False  # True is not 1
    if kind in _LEAVES:
        return bool(one == other)
    if kind is dict:
        return list(one) == list(other) and all(_same(value, other[name]) for name, value in one.items())
    return kind is list and len(one) == len(other) and all(map(_same, one, other))


def _copied(value: Any, serde: SerializerProtocol) -> Any:
    kind = type(value)
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
        containers = tuple((name, type(value)) for name, value in fields.items() if type(value) not in _LEAVES)
        named: set[str] = message.__pydantic_fields_set__
        named |= fields.keys()  # so that all copies can share it: there is nothing left that could be added
        return cls(type(message), fields, containers, named, message.__pydantic_extra__, message.__pydantic_private__)

    def made(self, serde: SerializerProtocol) -> Any:
        """An equal message, with containers of its own."""
        fields = self.fields.copy()
        for name, kind in self.containers:
            fields[name] = kind() if kind in _EMPTY and not fields[name] else _copied(fields[name], serde)
        message = object.__new__(self.kind)
        _SET_FIELDS(message, fields)
        _SET_NAMED(message, self.named)
        _SET_EXTRA(message, _copied(self.extra, serde))
        _SET_PRIVATE(message, _copied(self.private, serde))
        return message


def merged_writes(bodies: Iterable[object], serde: SerializerProtocol) -> list[PendingWrite]:
    """The writes that were put for a checkpoint, each once, in the order in which LangGraph applies them."""
    held: dict[tuple[str, int], tuple[str, str, tuple[str, bytes]]] = {}
    for body in bodies:
        head, values = unpacked(body)
        for (index, channel), value in zip(head["writes"], values, strict=True):
            if index < 0 or (head["task"], index) not in held:  # only errors, interrupts and the like are put anew
                held[head["task"], index] = (head["path"], channel, value)
    order = sorted(held, key=lambda key: writes_sort_key(held[key][0], *key))
    return [(key[0], held[key][1], serde.loads_typed(held[key][2])) for key in order]


def log_id(ns: str, id: str) -> str:
    """The id of a checkpoint in the session of its thread, which holds those of subgraphs too."""
    return f"{sha256(ns.encode()).hexdigest()[:16]}.{id}" if ns else id


def graph_id(point: Checkpoint) -> str:
    """The id that LangGraph knows a checkpoint by."""
    return point.id.partition(".")[2] if point.attributes["ns"] else point.id


class _Newest(NamedTuple):
    """The newest checkpoint of each namespace of a thread, as long as it has so many and the last is of that time."""

    count: int
    at: datetime
    points: Mapping[str, Checkpoint | None]


class Threads:
    """LangGraph's threads as sessions of a checkpoint store.

    A checkpoint continues its parent. The writes of its tasks stand behind it, numbered, beside the checkpoint that
    comes next: whoever puts some tries the next number.
    """

    def __init__(self, serde: SerializerProtocol, clock: Clock) -> None:
        self._serde, self._clock = serde, clock
        self._entries: Recent[tuple[Scope, str], Entry] = Recent(2048)
        self._channels: Recent[tuple[Scope, str], Channels] = Recent(256)
        self._writes: Recent[tuple[Scope, str], tuple[object, ...]] = Recent(2048)
        self._newest: Recent[Scope, _Newest] = Recent(1024)

    async def newest(self, store: CheckpointStore, scope: Scope, ns: str) -> Checkpoint | None:
        """The checkpoint of a namespace that was saved last."""
        session = next(iter(await store.sessions(scope)), None)
        if session is None:
            return None
        known = self._newest.get(scope)
        if known is None or (known.count, known.at) != (session.checkpoints, session.last_at):
            known = _Newest(session.checkpoints, session.last_at, {})  # another process was here
        if ns not in known.points:
            found = next(iter(await store.list(scope, attributes={"ns": ns}, limit=1)), None)
            known = known._replace(points={**known.points, ns: found})
            self._newest.put(scope, known)
        return known.points[ns]

    async def put(
        self,
        store: CheckpointStore,
        scope: Scope,
        ns: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> None:
        """Keep a checkpoint behind its parent; one with the same id is replaced."""
        id, rest = log_id(ns, checkpoint["id"]), {k: v for k, v in checkpoint.items() if k != "channel_values"}
        dumped = self._serde.dumps_typed(rest), self._serde.dumps_typed(metadata)
        about = {name: str(metadata[name]) for name in ("run_id", "source", "step") if name in metadata}
        for _ in range(_TRIES):
            before = log_id(ns, parent) if parent else None
            known = await self.channels(store, scope, before) if before else None
            before = before if known is not None else None
            pieces, channels = changes(known or {}, checkpoint, new_versions, self._serde)
            entry = Entry(before, parent, *dumped, pieces)
            try:
                await self._append(store, scope, entry.pack(), id=id, parent=before, attributes={"ns": ns, **about})
            except NotFound:  # another process removed the parent
                self._channels.pop((scope, before or ""))
            except StoreConflict:
                await store.delete(scope, id)
            else:
                self._entries.put((scope, id), entry)
                self._channels.put((scope, id), channels)
                self._channels.pop((scope, before or ""))  # a thread goes on from its end, as a rule
                return
        raise StoreConflict(f"other processes changed thread {scope.session_id!r} under this write; try again")

    async def _append(
        self, store: CheckpointStore, scope: Scope, body: bytes, *, id: str, parent: str | None, attributes: dict[str, str]
    ) -> None:
        entries = [Recorded(id, self._clock.now(), _KIND, body)]
        try:
            made = await store.append(scope, entries, id=id, parent=parent or _ROOT, attributes=attributes)
        except NotFound:
            if parent is not None:
                raise
            with suppress(StoreConflict):  # another process was first
                await store.append(scope, [], id=_ROOT)
            made = await store.append(scope, entries, id=id, parent=_ROOT, attributes=attributes)
        known = self._newest.get(scope)
        if known is not None:
            points = {**known.points, attributes["ns"]: made} if "ns" in attributes else known.points
            self._newest.put(scope, _Newest(known.count + 1, made.at, points))

    async def channels(self, store: CheckpointStore, scope: Scope, id: str) -> Channels | None:
        """The channels of a checkpoint; None where it is not there."""
        held = self._channels.get((scope, id))
        if held is None:
            point = await store.load(scope, id)
            held = (await self.state_at(store, scope, point))[1] if point and "ns" in point.attributes else None
        return held

    async def state_at(self, store: CheckpointStore, scope: Scope, point: Checkpoint) -> tuple[Entry, Channels]:
        """A checkpoint and its channels; reads what is behind the nearest ancestor whose channels are known."""
        size = 2
        while True:
            log = await self._log(store, scope, point, size)
            held = [self._channels.get((scope, id)) for id, _ in log]
            first = next((n for n, one in enumerate(held) if one is not None), len(log))
            if first < len(log) or len(log) < size:
                channels = dict(held[first] or {}) if first < len(log) else {}
                for _, entry in reversed(log[:first]):
                    channels |= {one.name: one.onto(channels.get(one.name), self._serde) for one in entry.pieces}
                self._channels.put((scope, point.id), channels)
                return log[0][1], channels
            size *= 8

    async def _log(
        self, store: CheckpointStore, scope: Scope, point: Checkpoint, size: int
    ) -> Sequence[tuple[str, Entry]]:
        """A checkpoint and those it continues, nearest first, at most `size`."""
        log, id = list[tuple[str, Entry]](), point.id
        while len(log) < size and id is not None and (entry := self._entries.get((scope, id))) is not None:
            log.append((id, entry))
            id = entry.before
        if id is None or len(log) == size:
            return log
        found = await store.recorded(scope, point.id, kind=_KIND, after=max(0, point.position - size))
        log = [(one.id, Entry.unpack(one.body)) for one in reversed(found)]
        for id, entry in reversed(log):
            self._entries.put((scope, id), entry)
        return log

    async def put_writes(
        self, store: CheckpointStore, scope: Scope, id: str, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> None:
        """Keep what a task wrote."""
        names = [(WRITES_IDX_MAP.get(name, n), name) for n, (name, _) in enumerate(writes)]
        values = [self._serde.dumps_typed(value) for _, value in writes]
        body = packed({"task": task, "path": path, "writes": names}, values)
        held = self._writes.get((scope, id)) or ()
        while True:
            # Not behind the checkpoint, which LangGraph may still be saving.
            number, before = f"{id}+{len(held) + 1}", f"{id}+{len(held)}" if held else None
            try:
                await self._append(store, scope, body, id=number, parent=before, attributes={"writes": id})
                break
            except StoreConflict:  # another task or process was first
                held = await self.writes(store, scope, id)
            except NotFound:  # another process removed those before
                self._writes.pop((scope, id))
                held = ()
        self._writes.put((scope, id), (*held, body))

    async def writes(self, store: CheckpointStore, scope: Scope, id: str) -> tuple[object, ...]:
        """The bodies of all writes that were put for a checkpoint, oldest first."""
        held = self._writes.get((scope, id)) or ()
        count, last = len(held), None
        while (found := await store.load(scope, f"{id}+{count + 1}")) is not None:
            count, last = count + 1, found
        if last is not None:
            fresh = await store.recorded(scope, last.id, kind=_KIND, after=last.position - (count - len(held)))
            held = (*held, *(one.body for one in fresh))
        self._writes.put((scope, id), held)
        return held

    async def delete(self, store: CheckpointStore, scope: Scope, id: str) -> None:
        """Remove a checkpoint and its writes; what later ones are made of stays."""
        number = 1
        while await store.delete(scope, f"{id}+{number}"):
            number += 1
        await store.delete(scope, id)
        self.forget(lambda key: key == (scope, id))

    def forget(self, fits: Callable[[tuple[Scope, str]], bool]) -> None:
        """Let go of what is known of checkpoints, by the scope of the thread and the id."""
        for known in (self._entries, self._channels, self._writes):
            known.drop(fits)
        self._newest.drop(lambda scope: fits((scope, "")))

    async def copy(self, store: CheckpointStore, source: Scope, target: Scope) -> None:
        """Copy a thread; what a removed checkpoint had is copied with those that continue it."""
        copied: dict[str, int] = {}
        for point in reversed(await store.list(source)):
            is_whole = point.parent in copied or "writes" not in point.attributes
            start = copied.get(point.parent or "", 0) if is_whole else point.position - 1
            entries = await store.recorded(source, point.id, kind=_KIND, after=start) if point.position > start else ()
            parent = point.parent if point.parent in copied else _ROOT if copied else None
            await store.append(target, entries, id=point.id, parent=parent, attributes=point.attributes)
            copied[point.id] = point.position

    async def prune(self, store: CheckpointStore, scope: Scope) -> None:
        """Remove all but the newest checkpoint of each namespace, and writes that no delta channel needs any more."""
        points = await store.list(scope)
        newest = {point.attributes["ns"]: point for point in reversed(points) if "ns" in point.attributes}
        kept, needed = {_ROOT, *(point.id for point in newest.values())}, set[str]()
        for point in newest.values():
            entry = (await self._log(store, scope, point, 1))[0][1]
            counted = self._serde.loads_typed(entry.metadata).get("counters_since_delta_snapshot") or {}
            steps = 1 + max((steps for _, steps in counted.values()), default=-1)
            needed |= {id for id, _ in await self._log(store, scope, point, 1 + steps)}
        for point in points:
            if point.attributes.get("writes") not in needed and point.id not in kept:
                await store.delete(scope, point.id)
        self.forget(lambda key: key[0] == scope and key[1] not in kept)

    async def delta_history(
        self, store: CheckpointStore, scope: Scope, point: Checkpoint, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """For each channel, the value of the nearest ancestor that has one, and what was written from there on."""
        size, log, ends = 32, list[tuple[str, Entry]](), dict[str, tuple[int, int] | None]()
        while True:
            found = await self._log(store, scope, point, size)
            log = found[1:]
            ends = {name: _seed([entry for _, entry in log], name) for name in channels}
            if None not in ends.values() or len(found) < size:
                break
            size *= 4
        history: dict[str, DeltaChannelHistory] = {}
        for name, end in ends.items():
            writes = list[PendingWrite]()
            for id, _ in reversed(log if end is None else log[: end[0] + 1]):
                held = self._writes.get((scope, id))  # an ancestor has all that its children are made of
                held = await self.writes(store, scope, id) if held is None else held
                writes += [write for write in merged_writes(held, self._serde) if write[1] == name]
            history[name] = {"writes": writes}
            if end is not None:
                history[name]["seed"] = await self._value(store, scope, point, name, log[end[1]])
        return history

    async def _value(
        self, store: CheckpointStore, scope: Scope, point: Checkpoint, name: str, at: tuple[str, Entry]
    ) -> Any:
        """What a channel holds since an ancestor of a checkpoint, which says so."""
        channel = next(piece for piece in at[1].pieces if piece.name == name)
        if channel.start:  # the rest of a list: from the beginning
            log = await self._log(store, scope, point, point.position)
            known: Channel | None = None
            for id, entry in reversed(log):
                for piece in entry.pieces:
                    known = piece.onto(known, self._serde) if piece.name == name else known
                if id == at[0] and known is not None:
                    return known.value(self._serde)
        return channel.onto(None, self._serde).value(self._serde)


def _seed(ancestors: Sequence[Entry], name: str) -> tuple[int, int] | None:
    """Of ancestors, nearest first: the first at which a channel has a value, and the one that says which."""
    first = 0
    for n, entry in enumerate(ancestors):
        for piece in entry.pieces:
            if piece.name == name and piece.kind != EMPTY:
                return first, n
            if piece.name == name:
                first = n + 1
    return None
