"""LangGraph's checkpointer on a checkpoint store of Loom: a thread is a session, a checkpoint an entry of its log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from loom.adapters._langgraph_threads import Threads
from loom.adapters._langgraph_upkeep import ThreadUpkeep
from loom.adapters._shared import Owner, home_of_checkpoints
from loom.adapters.langgraph_store import LoomStore
from loom.core.clock import Clock, SystemClock
from loom.errors import MissingExtra
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
        self._home = home_of_checkpoints(url)
        self._options: dict[str, Any] = {"user_id": user_id, "namespace": namespace, "clock": clock or SystemClock()}
        self._open()

    def _open(self) -> None:
        self._threads = Threads(self._home.of, self.serde, **self._options)
        self._upkeep = ThreadUpkeep(self._threads)

    def get_tuple(self, config: RunnableConfig) -> lg.CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its thread."""
        return self._home.run(lambda _: self._threads.get(config))

    async def aget_tuple(self, config: RunnableConfig) -> lg.CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its thread."""
        return await self._home.call(lambda _: self._threads.get(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[lg.CheckpointTuple]:
        """The checkpoints of a thread, or of all threads of the user, newest first."""
        yield from self._home.run(lambda _: self._threads.list(config, filter, before, limit))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[lg.CheckpointTuple]:
        """The checkpoints of a thread, or of all threads of the user, newest first."""
        for found in await self._home.call(lambda _: self._threads.list(config, filter, before, limit)):
            yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: lg.Checkpoint,
        metadata: lg.CheckpointMetadata,
        new_versions: lg.ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint behind the one that the config names."""
        return self._home.run(lambda _: self._threads.put(config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: lg.Checkpoint,
        metadata: lg.CheckpointMetadata,
        new_versions: lg.ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint behind the one that the config names."""
        return await self._home.call(lambda _: self._threads.put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote, beside the checkpoint it ran at."""
        self._home.run(lambda _: self._threads.put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote, beside the checkpoint it ran at."""
        await self._home.call(lambda _: self._threads.put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread of the user, without a trace in the store."""
        self._home.run(lambda _: self._upkeep.delete_thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread of the user, without a trace in the store."""
        await self._home.call(lambda _: self._upkeep.delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs, in all threads of the user; what later ones are made of stays."""
        self._home.run(lambda _: self._upkeep.delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs, in all threads of the user; what later ones are made of stays."""
        await self._home.call(lambda _: self._upkeep.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one of the user, which should be new."""
        self._home.run(lambda _: self._upkeep.copy_thread(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one of the user, which should be new."""
        await self._home.call(lambda _: self._upkeep.copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads (`delete`), or all but the newest of each namespace (`keep_latest`)."""
        self._home.run(lambda _: self._upkeep.prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads (`delete`), or all but the newest of each namespace (`keep_latest`)."""
        await self._home.call(lambda _: self._upkeep.prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        """What was written to delta channels since their last snapshot."""
        return self._home.run(lambda _: self._threads.delta_history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        """What was written to delta channels since their last snapshot."""
        return await self._home.call(lambda _: self._threads.delta_history(config, channels))

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> LoomSaver:
        """The same saver, which reads more types."""
        made = cast("LoomSaver", super().with_allowlist(extra_allowlist))
        if made is not self:
            made._open()  # noqa: SLF001  (another of the same kind)
        return made
