"""The logs of LangGraph's threads in a checkpoint store: entries are appended, and read back from what is known.

A checkpoint continues its parent. What tasks wrote at it has its id and a number: the first is 1, and a writer takes
the next one that is free, so that several may write at once and all of it is found without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from threading import Lock
from typing import Any, Generic, TypeVar

from loom.adapters._langgraph_entries import Channels, CheckpointEntry, Writes, unpacked
from loom.core.clock import Clock
from loom.core.log import Checkpoint, Recorded
from loom.core.scope import Scope
from loom.errors import MissingExtra, NotFound, StoreConflict
from loom.protocols.checkpoint_store import CheckpointStore

try:
    from langgraph.checkpoint.serde.base import SerializerProtocol
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

KIND, ROOT = "langgraph", "root"
"""The kind of the entries; and the id of the empty checkpoint that every thread begins at."""
KNOWN = 16_000_000
"""Bytes of what was used last that stay in memory, of each kind: a long thread has 2 to 5 million."""
_ABOUT = 500
"""Bytes that anything takes beside its values."""

_V = TypeVar("_V")


def log_id(ns: str, id: str) -> str:
    """The id of a checkpoint in the session of its thread, which holds those of subgraphs too."""
    return f"{sha256(ns.encode()).hexdigest()[:16]}.{id}" if ns else id


def graph_id(point: Checkpoint) -> str:
    """The id that LangGraph knows a checkpoint by."""
    return point.id.partition(".")[2] if point.attributes["ns"] else point.id


class Recent(Generic[_V]):
    """What was used last of checkpoints, by the scope of the thread and the id; up to a size, and shared by threads."""

    def __init__(self, size: Callable[[_V], int]) -> None:
        self._size, self._lock = size, Lock()
        self._held, self._total = dict[tuple[Scope, str], _V](), 0

    def get(self, key: tuple[Scope, str]) -> _V | None:
        """The value of a key, if it is still held."""
        with self._lock:
            value = self._held.pop(key, None)
            if value is not None:
                self._held[key] = value
            return value

    def put(self, key: tuple[Scope, str], value: _V, over: Callable[[_V], bool] = lambda _: True) -> None:
        """Hold a value, where one is held only `over` that; and let go of those that were not used for longest."""
        with self._lock:
            held = self._held.get(key)
            if held is not None and not over(held):
                return
            self._pop(key)
            self._held[key] = value
            self._total += _ABOUT + self._size(value)
            while self._total > KNOWN and len(self._held) > 1:
                self._pop(next(iter(self._held)))

    def pop(self, key: tuple[Scope, str]) -> None:
        """Let go of a key."""
        with self._lock:
            self._pop(key)

    def drop(self, fits: Callable[[Scope], bool]) -> None:
        """Let go of all threads that fit."""
        with self._lock:
            for key in [key for key in self._held if fits(key[0])]:
                self._pop(key)

    def _pop(self, key: tuple[Scope, str]) -> None:
        value = self._held.pop(key, None)
        self._total -= 0 if value is None else _ABOUT + self._size(value)


class ThreadLogs:
    """The logs of all threads. What is known of one is by the id of a checkpoint, and what that holds never changes."""

    def __init__(self, store: CheckpointStore, serde: SerializerProtocol, clock: Clock) -> None:
        self.store, self.serde, self._clock = store, serde, clock
        self._channels: Recent[Channels] = Recent(lambda known: sum(one.size for one in known.values()))
        self._entries: Recent[CheckpointEntry] = Recent(lambda known: sum(len(piece.data) for piece in known.pieces))
        self._writes: Recent[Writes] = Recent(lambda known: sum(len(data) for _, all in known for _, data in all))
        self.caches: list[Recent[Any]] = [self._channels, self._entries, self._writes]

    def forget(self, fits: Callable[[Scope], bool]) -> None:
        """Let go of what is known of threads."""
        for known in self.caches:
            known.drop(fits)

    async def append(
        self, scope: Scope, body: bytes, *, id: str, parent: str | None, attributes: Mapping[str, str]
    ) -> None:
        """Append an entry behind its parent; StoreConflict where the id is there, NotFound where the parent is not."""
        entries = [Recorded(id, self._clock.now(), KIND, body)]
        try:
            await self.store.append(scope, entries, id=id, parent=parent or ROOT, attributes=attributes)
        except NotFound:
            if parent is not None:
                raise
            with suppress(StoreConflict):  # another process was first
                await self.store.append(scope, [], id=ROOT)
            await self.store.append(scope, entries, id=id, parent=ROOT, attributes=attributes)

    def put(self, scope: Scope, id: str, entry: CheckpointEntry, channels: Channels) -> None:
        """Know an entry that was appended."""
        self._entries.put((scope, id), entry)
        self._channels.put((scope, id), channels)
        self._channels.pop((scope, entry.before or ""))  # a thread goes on from its end, as a rule

    async def channels_of(self, scope: Scope, id: str) -> Channels | None:
        """The channels of a checkpoint; None where it is not there."""
        held = self._channels.get((scope, id))
        if held is None:
            point = await self.store.load(scope, id)
            held = (await self.state(scope, point))[1] if point and "ns" in point.attributes else None
        return held

    async def state(self, scope: Scope, point: Checkpoint) -> tuple[CheckpointEntry, Channels]:
        """A checkpoint and its channels; reads what is behind the nearest ancestor whose channels are known."""
        size = 2
        while True:
            log = await self.entries(scope, point, size)
            held = [self._channels.get((scope, id)) for id, _ in log]
            first = next((n for n, one in enumerate(held) if one is not None), len(log))
            if first < len(log) or len(log) < size:
                channels = dict(held[first] or {}) if first < len(log) else {}
                for _, entry in reversed(log[:first]):
                    channels |= {one.name: one.onto(channels.get(one.name), self.serde) for one in entry.pieces}
                self._channels.put((scope, point.id), channels)
                return log[0][1], channels
            size *= 8

    async def entries(self, scope: Scope, point: Checkpoint, size: int) -> Sequence[tuple[str, CheckpointEntry]]:
        """A checkpoint and those it continues, nearest first, at most `size`."""
        log, id = list[tuple[str, CheckpointEntry]](), point.id
        while len(log) < size and id is not None and (entry := self._entries.get((scope, id))) is not None:
            log.append((id, entry))
            id = entry.before
        if id is None or len(log) == size:
            return log
        found = await self.store.recorded(scope, point.id, kind=KIND, after=max(0, point.position - size))
        log = [(one.id, CheckpointEntry.unpack(one.body)) for one in reversed(found)]
        for id, entry in reversed(log):
            self._entries.put((scope, id), entry)
        return log

    async def put_writes(self, scope: Scope, id: str, body: bytes) -> None:
        """Append what a task wrote at a checkpoint."""
        held = self._writes.get((scope, id)) or ()
        while True:
            # Not behind the checkpoint, which LangGraph may still be saving.
            number, before = f"{id}+{len(held) + 1}", f"{id}+{len(held)}" if held else None
            try:
                await self.append(scope, body, id=number, parent=before, attributes={"writes": id})
                break
            except StoreConflict:  # another task or process was first
                held = await self.writes_of(scope, id)
            except NotFound:  # another process removed those before
                self._writes.pop((scope, id))
                held = ()
        self._know_writes(scope, id, (*held, unpacked(body)))

    async def writes_of(self, scope: Scope, id: str, *, is_over: bool = False) -> Writes:
        """All that was written at a checkpoint; what is known of one that `is_over` is all there is."""
        held = self._writes.get((scope, id))
        if is_over and held is not None:
            return held
        held = held or ()
        count, last = len(held), None
        while (found := await self.store.load(scope, f"{id}+{count + 1}")) is not None:
            count, last = count + 1, found
        if last is not None:
            fresh = await self.store.recorded(scope, last.id, kind=KIND, after=last.position - (count - len(held)))
            held = (*held, *(unpacked(one.body) for one in fresh))
        self._know_writes(scope, id, held)
        return held

    def _know_writes(self, scope: Scope, id: str, writes: Writes) -> None:
        # Of two threads that write at one moment, the first may come here last.
        self._writes.put((scope, id), writes, over=lambda held: len(held) <= len(writes))
