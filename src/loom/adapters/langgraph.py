"""LangGraph's checkpointer on a checkpoint store of Loom: a thread is a session, a checkpoint an entry of its log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loom.adapters._langgraph_log import EMPTY, Threads, graph_id, log_id, merged_writes
from loom.adapters._shared import Owner, home_of_checkpoints
from loom.adapters.langgraph_store import LoomStore
from loom.core.clock import Clock, SystemClock
from loom.core.log import Checkpoint as Point
from loom.core.scope import Scope
from loom.errors import MissingExtra, ScopeRequired, UsageError
from loom.protocols.checkpoint_store import CheckpointStore

try:
    from langgraph.checkpoint import base as lg
    from langgraph.checkpoint.serde.base import SerializerProtocol
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["LoomSaver", "LoomStore"]


class LoomSaver(Owner, lg.BaseCheckpointSaver[int]):
    """Keeps the state of LangGraph's threads in any checkpoint store of Loom; a thread grows by what is new in it.

    Args:
        url: where it is: `sqlite:./graph.db`, `files:FOLDER`, `postgres://...`, `redis://...`, `inmemory`; or a store
            that is open, which stays open when this one is closed.
        user_id: whose threads they are. Without it, every run says so: `{"configurable": {"user_id": ...}}`. The same
            thread_id of two users is two threads.
        namespace: keeps threads apart from other sessions of that user in the same place.
        serde: LangGraph's serializer; its own by default, which never pickles.
        clock: what time it is.
    """

    def __init__(
        self,
        url: str | CheckpointStore,
        *,
        user_id: str | None = None,
        namespace: str = "langgraph",
        serde: SerializerProtocol | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._home, self._clock = home_of_checkpoints(url), clock or SystemClock()
        self._user_id, self._namespace = user_id, namespace
        self._threads = Threads(self.serde, self._clock)

    def get_tuple(self, config: RunnableConfig) -> lg.CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its thread."""
        return self._home.run(lambda store: self._get(store, config))

    async def aget_tuple(self, config: RunnableConfig) -> lg.CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its thread."""
        return await self._home.call(lambda store: self._get(store, config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[lg.CheckpointTuple]:
        """The checkpoints of a thread, or of all threads of the user, newest first."""
        yield from self._home.run(lambda store: self._list(store, config, filter, before, limit))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[lg.CheckpointTuple]:
        """The checkpoints of a thread, or of all threads of the user, newest first."""
        for found in await self._home.call(lambda store: self._list(store, config, filter, before, limit)):
            yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: lg.Checkpoint,
        metadata: lg.CheckpointMetadata,
        new_versions: lg.ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint behind the one that the config names."""
        return self._home.run(lambda store: self._put(store, config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: lg.Checkpoint,
        metadata: lg.CheckpointMetadata,
        new_versions: lg.ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint behind the one that the config names."""
        return await self._home.call(lambda store: self._put(store, config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote, beside the checkpoint it ran at."""
        self._home.run(lambda store: self._put_writes(store, config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote, beside the checkpoint it ran at."""
        await self._home.call(lambda store: self._put_writes(store, config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread of the user, without a trace in the store."""
        self._home.run(lambda store: self._delete_thread(store, thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread of the user, without a trace in the store."""
        await self._home.call(lambda store: self._delete_thread(store, thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs, in all threads of the user; what later ones are made of stays."""
        self._home.run(lambda store: self._delete_for_runs(store, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs, in all threads of the user; what later ones are made of stays."""
        await self._home.call(lambda store: self._delete_for_runs(store, run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one of the user, which should be new."""
        self._home.run(
            lambda store: self._threads.copy(
                store, self._scope(None, source_thread_id), self._scope(None, target_thread_id)
            )
        )

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one of the user, which should be new."""
        await self._home.call(
            lambda store: self._threads.copy(
                store, self._scope(None, source_thread_id), self._scope(None, target_thread_id)
            )
        )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads (`delete`), or all but the newest of each namespace (`keep_latest`)."""
        self._home.run(lambda store: self._prune(store, thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads (`delete`), or all but the newest of each namespace (`keep_latest`)."""
        await self._home.call(lambda store: self._prune(store, thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        """What was written to delta channels since their last snapshot."""
        return self._home.run(lambda store: self._delta_history(store, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        """What was written to delta channels since their last snapshot."""
        return await self._home.call(lambda store: self._delta_history(store, config, channels))

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> lg.BaseCheckpointSaver[int]:
        """The same saver, which reads more types."""
        made = super().with_allowlist(extra_allowlist)
        if isinstance(made, LoomSaver) and made is not self:
            made._threads = Threads(made.serde, self._clock)
        return made

    def _scope(self, user_id: object, thread_id: object = None) -> Scope:
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
        scope = self._scope(asked.get("user_id"), asked["thread_id"])
        return scope, asked.get("checkpoint_ns", ""), asked.get("checkpoint_id")

    def _config(self, scope: Scope, ns: str, id: str) -> RunnableConfig:
        whose = {} if self._user_id else {"user_id": scope.user_id}
        return {"configurable": {**whose, "thread_id": scope.session_id, "checkpoint_ns": ns, "checkpoint_id": id}}

    async def _point(self, store: CheckpointStore, config: RunnableConfig) -> tuple[Scope, Point | None]:
        scope, ns, id = self._named(config)
        if id:
            return scope, await store.load(scope, log_id(ns, id))
        return scope, await self._threads.newest(store, scope, ns)

    async def _get(self, store: CheckpointStore, config: RunnableConfig) -> lg.CheckpointTuple | None:
        scope, point = await self._point(store, config)
        return await self._tuple(store, scope, point) if point and "ns" in point.attributes else None

    async def _tuple(self, store: CheckpointStore, scope: Scope, point: Point) -> lg.CheckpointTuple:
        entry, channels = await self._threads.state_at(store, scope, point)
        checkpoint, ns = self.serde.loads_typed(entry.checkpoint), point.attributes["ns"]
        held = {
            name: channels[name]
            for name, version in checkpoint["channel_versions"].items()
            if name in channels and channels[name].version == version and channels[name].kind != EMPTY
        }
        checkpoint["channel_values"] = {name: channel.value(self.serde) for name, channel in held.items()}
        return lg.CheckpointTuple(
            self._config(scope, ns, graph_id(point)),
            checkpoint,
            self.serde.loads_typed(entry.metadata),
            self._config(scope, ns, entry.parent) if entry.parent else None,
            merged_writes(await self._threads.writes(store, scope, point.id), self.serde),
        )

    async def _put(
        self,
        store: CheckpointStore,
        config: RunnableConfig,
        checkpoint: lg.Checkpoint,
        metadata: lg.CheckpointMetadata,
        new_versions: lg.ChannelVersions,
    ) -> RunnableConfig:
        scope, ns, parent = self._named(config)
        about = lg.get_checkpoint_metadata(config, metadata)
        await self._threads.put(store, scope, ns, parent, checkpoint, about, new_versions)
        return self._config(scope, ns, checkpoint["id"])

    async def _put_writes(
        self, store: CheckpointStore, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> None:
        scope, ns, id = self._named(config)
        if not id:
            raise UsageError("the config names no checkpoint_id that the writes belong to")
        await self._threads.put_writes(store, scope, log_id(ns, id), writes, task, path)

    async def _list(
        self,
        store: CheckpointStore,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Sequence[lg.CheckpointTuple]:
        asked: dict[str, Any] = config.get("configurable", {}) if config else {}
        scope = self._named(config)[0] if config else self._scope(None)
        wanted = {"ns": asked["checkpoint_ns"]} if "checkpoint_ns" in asked else {}
        wanted |= {name: value for name, value in (filter or {}).items() if name == "run_id" and isinstance(value, str)}
        points = [one for one in await store.list(scope, attributes=wanted) if "ns" in one.attributes]
        points.sort(key=graph_id, reverse=True)
        if asked.get("checkpoint_id"):
            points = [one for one in points if graph_id(one) == asked["checkpoint_id"]]
        if before and (end := lg.get_checkpoint_id(before)):
            points = [one for one in points if graph_id(one) < end]
        # Oldest first, because each state is read as what it adds to the one before.
        few = points if filter else points[:limit]
        found = [await self._tuple(store, scope.for_session(one.session_id), one) for one in reversed(few)]
        fitting = [one for one in reversed(found) if _fits(one.metadata, filter)]
        return fitting[:limit]

    async def _delete_thread(self, store: CheckpointStore, thread_id: str) -> None:
        scope = self._scope(None, thread_id)
        await store.forget(scope)
        self._threads.forget(lambda key: key[0] == scope)

    async def _delete_for_runs(self, store: CheckpointStore, run_ids: Sequence[str]) -> None:
        user = self._scope(None)
        for run_id in run_ids:
            for point in await store.list(user, attributes={"run_id": run_id}):
                await self._threads.delete(store, user.for_session(point.session_id), point.id)

    async def _prune(self, store: CheckpointStore, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in {"keep_latest", "delete"}:
            raise UsageError(f"prune() has no strategy {strategy!r}; use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self._delete_thread(store, thread_id)
            else:
                await self._threads.prune(store, self._scope(None, thread_id))

    async def _delta_history(
        self, store: CheckpointStore, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        scope, point = await self._point(store, config)
        if point is None:
            return {name: {"writes": []} for name in channels}
        return await self._threads.delta_history(store, scope, point, channels)


def _fits(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    return all(metadata.get(name) == value for name, value in (filter or {}).items())
