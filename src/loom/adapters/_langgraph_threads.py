"""LangGraph's threads as sessions of a checkpoint store: what is saved where, and read back from what is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from loom.adapters._langgraph_state import (
    EMPTY,
    Channel,
    Channels,
    CheckpointEntry,
    Recent,
    Writes,
    changes,
    merged_writes,
    packed,
    unpacked,
    weight_of,
)
from loom.core.clock import Clock
from loom.core.log import Checkpoint, Recorded
from loom.core.scope import Scope
from loom.errors import MissingExtra, NotFound, ScopeRequired, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore

try:
    from langgraph.checkpoint import base as lg
    from langgraph.checkpoint.serde.base import SerializerProtocol
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

_KIND, _ROOT = "langgraph", "root"
"""The kind of the entries; and the id of the empty checkpoint that every thread begins at."""
_TRIES = 5
_KNOWN = 16_000_000
"""Bytes of what was used last that stay in memory, of each kind: a long thread has 2 to 5 million."""


def log_id(ns: str, id: str) -> str:
    """The id of a checkpoint in the session of its thread, which holds those of subgraphs too."""
    return f"{sha256(ns.encode()).hexdigest()[:16]}.{id}" if ns else id


def graph_id(point: Checkpoint) -> str:
    """The id that LangGraph knows a checkpoint by."""
    return point.id.partition(".")[2] if point.attributes["ns"] else point.id


class _Newest(NamedTuple):
    """The newest checkpoint of each namespace of a thread, as long as it has so many and the last is of that time."""

    saves: int
    at: datetime
    points: Mapping[str, Checkpoint | None]


class Threads:
    """LangGraph's threads as sessions of a checkpoint store.

    A checkpoint continues its parent. What tasks wrote at it has its id and a number: the first is 1, and a writer
    takes the next one that is free, so that several may write at once and all of it is found without a search.
    """

    def __init__(
        self,
        store: CheckpointStore,
        serde: SerializerProtocol,
        *,
        user_id: str | None,
        namespace: str,
        clock: Clock,
    ) -> None:
        self._store, self._serde, self._clock = store, serde, clock
        self._user_id, self._namespace = user_id, namespace
        self._entries: Recent[tuple[Scope, str], CheckpointEntry] = Recent(_KNOWN, weight_of)
        self._channels: Recent[tuple[Scope, str], Channels] = Recent(_KNOWN, weight_of)
        self._writes: Recent[tuple[Scope, str], Writes] = Recent(_KNOWN, weight_of)
        self._newest: Recent[Scope, _Newest] = Recent(4096, lambda known: 1 + len(known.points))

    def _scope(self, thread_id: object = None, user_id: object = None) -> Scope:
        """A thread, or all threads of the user."""
        user = self._user_id or user_id
        if not user:
            raise ScopeRequired(
                "LoomSaver does not know whose threads these are; give LoomSaver(..., user_id='alice'), or for a run "
                '{"configurable": {"user_id": "alice", "thread_id": ...}}'
            )
        scope = Scope(self._namespace, str(user))
        return scope if thread_id is None else scope.for_session(str(thread_id))

    def _named(self, config: RunnableConfig) -> tuple[Scope, str, str | None]:
        """The thread, the namespace and the checkpoint that a config names."""
        asked: dict[str, Any] = config.get("configurable", {})
        if asked.get("thread_id") is None:
            raise UsageError('the config names no thread; give {"configurable": {"thread_id": ...}}')
        scope = self._scope(asked["thread_id"], asked.get("user_id"))
        return scope, asked.get("checkpoint_ns", ""), asked.get("checkpoint_id")

    def _config(self, scope: Scope, ns: str, id: str) -> RunnableConfig:
        whose = {} if self._user_id else {"user_id": scope.user_id}
        return {"configurable": {**whose, "thread_id": scope.session_id, "checkpoint_ns": ns, "checkpoint_id": id}}

    async def _point(self, config: RunnableConfig) -> tuple[Scope, Checkpoint | None]:
        scope, ns, id = self._named(config)
        found = await self._store.load(scope, log_id(ns, id)) if id else await self._newest_in(scope, ns)
        return scope, found if found and "ns" in found.attributes else None

    async def get(self, config: RunnableConfig) -> lg.CheckpointTuple | None:
        """The checkpoint that a config names, or the newest."""
        scope, point = await self._point(config)
        return None if point is None else await self._tuple(scope, point)

    async def _tuple(self, scope: Scope, point: Checkpoint) -> lg.CheckpointTuple:
        entry, channels = await self._state(scope, point)
        checkpoint, ns = self._serde.loads_typed(entry.checkpoint), point.attributes["ns"]
        held = {
            name: channels[name]
            for name, version in checkpoint["channel_versions"].items()
            if name in channels and channels[name].version == version and channels[name].kind != EMPTY
        }
        checkpoint["channel_values"] = {name: channel.value(self._serde) for name, channel in held.items()}
        return lg.CheckpointTuple(
            self._config(scope, ns, graph_id(point)),
            checkpoint,
            self._serde.loads_typed(entry.metadata),
            self._config(scope, ns, entry.parent) if entry.parent else None,
            merged_writes(await self._writes_of(scope, point.id), self._serde),
        )

    async def list(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Sequence[lg.CheckpointTuple]:
        """Checkpoints of a thread, or of all threads of the user, newest first."""
        asked: dict[str, Any] = config.get("configurable", {}) if config else {}
        scope = self._named(config)[0] if config else self._scope()
        wanted = {"ns": asked["checkpoint_ns"]} if "checkpoint_ns" in asked else {}
        wanted |= {name: value for name, value in (filter or {}).items() if name == "run_id" and isinstance(value, str)}
        points = [one for one in await self._store.list(scope, attributes=wanted) if "ns" in one.attributes]
        points.sort(key=graph_id, reverse=True)
        if asked.get("checkpoint_id"):
            points = [one for one in points if graph_id(one) == asked["checkpoint_id"]]
        if before and (end := lg.get_checkpoint_id(before)):
            points = [one for one in points if graph_id(one) < end]
        # Oldest first, because each state is read as what it adds to the one before.
        few = reversed(points if filter else points[:limit])
        found = [await self._tuple(scope.for_session(one.session_id), one) for one in few]
        found.reverse()
        if filter:
            found = [one for one in found if all(one.metadata.get(name) == value for name, value in filter.items())]
        return found[:limit]

    async def _newest_in(self, scope: Scope, ns: str) -> Checkpoint | None:
        """The checkpoint of a namespace that was saved last."""
        session = next(iter(await self._store.sessions(scope)), None)
        if session is None:
            return None
        known = self._newest.get(scope)
        if known is None or (known.saves, known.at) != (session.checkpoints, session.last_at):
            known = _Newest(session.checkpoints, session.last_at, {})  # another process was here
        if ns not in known.points:
            found = next(iter(await self._store.list(scope, attributes={"ns": ns}, limit=1)), None)
            known = known._replace(points={**known.points, ns: found})
            self._newest.put(scope, known)
        return known.points[ns]

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: lg.Checkpoint,
        metadata: lg.CheckpointMetadata,
        new_versions: lg.ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint behind the one that the config names; one with the same id is replaced."""
        scope, ns, parent = self._named(config)
        id, told = log_id(ns, checkpoint["id"]), cast("dict[str, Any]", lg.get_checkpoint_metadata(config, metadata))
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        dumped = self._serde.dumps_typed(rest), self._serde.dumps_typed(told)
        about = {"ns": ns, **({"run_id": str(told["run_id"])} if "run_id" in told else {})}
        for _ in range(_TRIES):
            before = log_id(ns, parent) if parent else None
            known = await self._channels_of(scope, before) if before else None
            before = before if known is not None else None
            pieces, channels = changes(known or {}, checkpoint, new_versions, self._serde)
            entry = CheckpointEntry(before, parent, *dumped, pieces)
            try:
                await self._append(scope, entry.pack(), id=id, parent=before, attributes=about)
            except NotFound:  # another process removed the parent
                self._channels.pop((scope, before or ""))
            except StoreConflict:
                await self._store.delete(scope, id)
            else:
                self._entries.put((scope, id), entry)
                self._channels.put((scope, id), channels)
                self._channels.pop((scope, before or ""))  # a thread goes on from its end, as a rule
                return self._config(scope, ns, checkpoint["id"])
        raise StoreConflict(f"other processes changed thread {scope.session_id!r} under this write; try again")

    async def _append(
        self, scope: Scope, body: bytes, *, id: str, parent: str | None, attributes: dict[str, str]
    ) -> None:
        entries = [Recorded(id, self._clock.now(), _KIND, body)]
        try:
            made = await self._store.append(scope, entries, id=id, parent=parent or _ROOT, attributes=attributes)
        except NotFound:
            if parent is not None:
                raise
            with suppress(StoreConflict):  # another process was first
                await self._store.append(scope, [], id=_ROOT)
            made = await self._store.append(scope, entries, id=id, parent=_ROOT, attributes=attributes)
        known = self._newest.get(scope)
        if known is not None:
            points = {**known.points, attributes["ns"]: made} if "ns" in attributes else known.points
            self._newest.put(scope, _Newest(known.saves + 1, made.at, points))

    async def _channels_of(self, scope: Scope, id: str) -> Channels | None:
        """The channels of a checkpoint; None where it is not there."""
        held = self._channels.get((scope, id))
        if held is None:
            point = await self._store.load(scope, id)
            held = (await self._state(scope, point))[1] if point and "ns" in point.attributes else None
        return held

    async def _state(self, scope: Scope, point: Checkpoint) -> tuple[CheckpointEntry, Channels]:
        """A checkpoint and its channels; reads what is behind the nearest ancestor whose channels are known."""
        size = 2
        while True:
            log = await self._log(scope, point, size)
            held = [self._channels.get((scope, id)) for id, _ in log]
            first = next((n for n, one in enumerate(held) if one is not None), len(log))
            if first < len(log) or len(log) < size:
                channels = dict(held[first] or {}) if first < len(log) else {}
                for _, entry in reversed(log[:first]):
                    channels |= {one.name: one.onto(channels.get(one.name), self._serde) for one in entry.pieces}
                self._channels.put((scope, point.id), channels)
                return log[0][1], channels
            size *= 8

    async def _log(self, scope: Scope, point: Checkpoint, size: int) -> Sequence[tuple[str, CheckpointEntry]]:
        """A checkpoint and those it continues, nearest first, at most `size`."""
        log, id = list[tuple[str, CheckpointEntry]](), point.id
        while len(log) < size and id is not None and (entry := self._entries.get((scope, id))) is not None:
            log.append((id, entry))
            id = entry.before
        if id is None or len(log) == size:
            return log
        found = await self._store.recorded(scope, point.id, kind=_KIND, after=max(0, point.position - size))
        log = [(one.id, CheckpointEntry.unpack(one.body)) for one in reversed(found)]
        for id, entry in reversed(log):
            self._entries.put((scope, id), entry)
        return log

    async def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str) -> None:
        """Keep what a task wrote at a checkpoint."""
        scope, ns, named = self._named(config)
        if not named:
            raise UsageError("the config names no checkpoint_id that the writes belong to")
        id = log_id(ns, named)
        names = [(lg.WRITES_IDX_MAP.get(name, n), name) for n, (name, _) in enumerate(writes)]
        values = [self._serde.dumps_typed(value) for _, value in writes]
        body = packed({"task": task, "path": path, "writes": names}, values)
        held = self._writes.get((scope, id)) or ()
        while True:
            # Not behind the checkpoint, which LangGraph may still be saving.
            number, before = f"{id}+{len(held) + 1}", f"{id}+{len(held)}" if held else None
            try:
                await self._append(scope, body, id=number, parent=before, attributes={"writes": id})
                break
            except StoreConflict:  # another task or process was first
                held = await self._writes_of(scope, id)
            except NotFound:  # another process removed those before
                self._writes.pop((scope, id))
                held = ()
        self._writes.put((scope, id), (*held, unpacked(body)))

    async def _writes_of(self, scope: Scope, id: str) -> Writes:
        """All that was written at a checkpoint."""
        held = self._writes.get((scope, id)) or ()
        count, last = len(held), None
        while (found := await self._store.load(scope, f"{id}+{count + 1}")) is not None:
            count, last = count + 1, found
        if last is not None:
            fresh = await self._store.recorded(scope, last.id, kind=_KIND, after=last.position - (count - len(held)))
            held = (*held, *(unpacked(one.body) for one in fresh))
        self._writes.put((scope, id), held)
        return held

    async def delete_thread(self, thread_id: str) -> None:
        """Remove a thread."""
        scope = self._scope(thread_id)
        await self._store.forget(scope)
        self._forget(lambda key: key[0] == scope)

    async def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs and their writes; what later ones are made of stays."""
        for run_id in run_ids:
            for point in await self._store.list(self._scope(), attributes={"run_id": run_id}):
                scope, number = self._scope(point.session_id), 1
                while await self._store.delete(scope, f"{point.id}+{number}"):
                    number += 1
                await self._store.delete(scope, point.id)
        self._forget(lambda key: key[0].for_user() == self._scope())

    def _forget(self, fits: Callable[[tuple[Scope, str]], bool]) -> None:
        """Let go of what is known of checkpoints, by the scope of the thread and the id."""
        for known in (self._entries, self._channels, self._writes):
            known.drop(fits)
        self._newest.drop(lambda scope: fits((scope, "")))

    async def copy_thread(self, source_id: str, target_id: str) -> None:
        """Copy a thread; what a removed checkpoint had is copied with those that continue it."""
        source, target = self._scope(source_id), self._scope(target_id)
        if await self._store.sessions(target):
            raise StoreConflict(f"thread {target_id!r} is already there; copy into a new one, or delete it before")
        copied: dict[str, int] = {}
        for point in reversed(await self._store.list(source)):
            is_whole = point.parent in copied or "writes" not in point.attributes
            start = copied.get(point.parent or "", 0) if is_whole else point.position - 1
            entries = (
                await self._store.recorded(source, point.id, kind=_KIND, after=start) if point.position > start else ()
            )
            parent = point.parent if point.parent in copied else _ROOT if copied else None
            await self._store.append(target, entries, id=point.id, parent=parent, attributes=point.attributes)
            copied[point.id] = point.position

    async def prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        """Remove all checkpoints of threads, or all but the newest of each namespace."""
        if strategy not in {"keep_latest", "delete"}:
            raise UsageError(f"prune() has no strategy {strategy!r}; use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            await (self.delete_thread(thread_id) if strategy == "delete" else self._keep_newest(self._scope(thread_id)))

    async def _keep_newest(self, scope: Scope) -> None:
        """Remove older checkpoints, and the writes that no delta channel of the newest is made of."""
        points = await self._store.list(scope)
        newest = {point.attributes["ns"]: point for point in reversed(points) if "ns" in point.attributes}
        kept, needed = {_ROOT, *(point.id for point in newest.values())}, set[str]()
        for point in newest.values():
            entry = (await self._log(scope, point, 1))[0][1]
            told: dict[str, Any] = self._serde.loads_typed(entry.metadata)
            counted: dict[str, tuple[int, int]] = told.get("counters_since_delta_snapshot") or {}
            steps = 1 + max((steps for _, steps in counted.values()), default=-1)
            needed |= {id for id, _ in await self._log(scope, point, 1 + steps)}
        for point in points:
            if point.attributes.get("writes") not in needed and point.id not in kept:
                await self._store.delete(scope, point.id)
        self._forget(lambda key: key[0] == scope)

    async def delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        """For each channel, the value of the nearest ancestor that has one, and what was written from there on."""
        scope, point = await self._point(config)
        if point is None:
            return {name: {"writes": []} for name in channels}
        size, log, ends = 32, list[tuple[str, CheckpointEntry]](), dict[str, tuple[int, int] | None]()
        while True:
            found = await self._log(scope, point, size)
            log = found[1:]
            ends = {name: _seed([entry for _, entry in log], name) for name in channels}
            if None not in ends.values() or len(found) < size:
                break
            size *= 4
        history: dict[str, lg.DeltaChannelHistory] = {}
        for name, end in ends.items():
            writes = list[lg.PendingWrite]()
            for id, _ in reversed(log if end is None else log[: end[0] + 1]):
                held = self._writes.get((scope, id))  # an ancestor has all that its children are made of
                held = await self._writes_of(scope, id) if held is None else held
                writes += merged_writes(held, self._serde, only=name)
            history[name] = {"writes": writes}
            if end is not None:
                history[name]["seed"] = await self._value(scope, point, name, log[end[1]])
        return history

    async def _value(self, scope: Scope, point: Checkpoint, name: str, at: tuple[str, CheckpointEntry]) -> Any:
        """What a channel of a checkpoint held at the nearest ancestor that says so."""
        piece = next(piece for piece in at[1].pieces if piece.name == name)
        if not piece.start:
            return piece.onto(None, self._serde).value(self._serde)
        entry, channels = await self._state(scope, point)
        if all(one.name != name or one.kind == EMPTY for one in entry.pieces):  # nothing came after it
            return channels[name]._replace(kind=piece.kind).value(self._serde)
        known: Channel | None = None
        for id, entry in reversed(await self._log(scope, point, point.position)):
            for one in entry.pieces:
                known = one.onto(known, self._serde) if one.name == name else known
            if id == at[0]:
                break
        return None if known is None else known.value(self._serde)


def _seed(ancestors: Sequence[CheckpointEntry], name: str) -> tuple[int, int] | None:
    """Of ancestors, nearest first: the first at which a channel has a value, and the one that says which."""
    first = 0
    for n, entry in enumerate(ancestors):
        for piece in entry.pieces:
            if piece.name == name and piece.kind != EMPTY:
                return first, n
            if piece.name == name:
                first = n + 1
    return None
