"""LangGraph's threads as sessions of a checkpoint store: what a config names, what is put there, and what is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from loom.adapters._langgraph_delta import DeltaHistory
from loom.adapters._langgraph_entries import EMPTY, CheckpointEntry, changes, merged_writes, packed
from loom.adapters._langgraph_log import ThreadLogs, graph_id, log_id
from loom.core.clock import Clock
from loom.core.log import Checkpoint
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

_TRIES = 5


class Threads:
    """The threads of a user, or of the users that configs name."""

    def __init__(
        self,
        store: CheckpointStore,
        serde: SerializerProtocol,
        *,
        user_id: str | None,
        namespace: str,
        clock: Clock,
    ) -> None:
        self.logs = ThreadLogs(store, serde, clock)
        self._store, self._serde = store, serde
        self._user_id, self._namespace = user_id, namespace
        self._delta = DeltaHistory(self.logs)

    def scope(self, thread_id: object = None, user_id: object = None) -> Scope:
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
        scope = self.scope(asked["thread_id"], asked.get("user_id"))
        return scope, asked.get("checkpoint_ns", ""), asked.get("checkpoint_id")

    def _config(self, scope: Scope, ns: str, id: str) -> RunnableConfig:
        whose = {} if self._user_id else {"user_id": scope.user_id}
        return {"configurable": {**whose, "thread_id": scope.session_id, "checkpoint_ns": ns, "checkpoint_id": id}}

    async def _point(self, config: RunnableConfig) -> tuple[Scope, Checkpoint | None]:
        scope, ns, id = self._named(config)
        if not id:
            return scope, next(iter(await self._store.list(scope, attributes={"ns": ns}, limit=1)), None)
        found = await self._store.load(scope, log_id(ns, id))
        return scope, found if found and "ns" in found.attributes else None

    async def get(self, config: RunnableConfig) -> lg.CheckpointTuple | None:
        """The checkpoint that a config names, or the newest."""
        scope, point = await self._point(config)
        return None if point is None else await self._tuple(scope, point)

    async def _tuple(self, scope: Scope, point: Checkpoint) -> lg.CheckpointTuple:
        entry, channels = await self.logs.state(scope, point)
        checkpoint, ns = self._serde.loads_typed(entry.checkpoint), point.attributes["ns"]
        held = {
            name: channels[name]
            for name, version in checkpoint["channel_versions"].items()
            if name in channels and channels[name].version == version and channels[name].kind != EMPTY
        }
        checkpoint["channel_values"] = {name: channel.value(self._serde) for name, channel in held.items()}
        writes = merged_writes(await self.logs.writes_of(scope, point.id))
        return lg.CheckpointTuple(
            self._config(scope, ns, graph_id(point)),
            checkpoint,
            self._serde.loads_typed(entry.metadata),
            self._config(scope, ns, entry.parent) if entry.parent else None,
            [(task, name, self._serde.loads_typed(value)) for task, name, value in writes],
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
        scope = self._named(config)[0] if config else self.scope()
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
            known = await self.logs.channels_of(scope, before) if before else None
            before = before if known is not None else None
            pieces, channels = changes(known or {}, checkpoint, new_versions, self._serde)
            entry = CheckpointEntry(before, parent, *dumped, pieces)
            try:
                await self.logs.append(scope, entry.pack(), id=id, parent=before, attributes=about)
            except NotFound:  # another process removed the parent
                self.logs.forget(lambda thread: thread == scope)
            except StoreConflict:
                await self._store.delete(scope, id)
            else:
                self.logs.put(scope, id, entry, channels)
                return self._config(scope, ns, checkpoint["id"])
        raise StoreConflict(f"other processes changed thread {scope.session_id!r} under this write; try again")

    async def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str) -> None:
        """Keep what a task wrote at a checkpoint."""
        scope, ns, named = self._named(config)
        if not named:
            raise UsageError("the config names no checkpoint_id that the writes belong to")
        names = [(lg.WRITES_IDX_MAP.get(name, n), name) for n, (name, _) in enumerate(writes)]
        values = [self._serde.dumps_typed(value) for _, value in writes]
        body = packed({"task": task, "path": path, "writes": names}, values)
        await self.logs.put_writes(scope, log_id(ns, named), body)

    async def delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        """For each channel, the value of the nearest ancestor that has one, and what was written from there on."""
        scope, point = await self._point(config)
        if point is None:
            return {name: {"writes": []} for name in channels}
        return await self._delta.of(scope, point, channels)
