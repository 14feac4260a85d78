"""The history of LangGraph's delta channels: the last snapshot, and what was written to them since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loom.adapters._langgraph_entries import EMPTY, Channel, CheckpointEntry, Writes, merged_writes, private
from loom.adapters._langgraph_log import Recent, ThreadLogs
from loom.core.log import Checkpoint
from loom.core.scope import Scope
from loom.errors import MissingExtra

try:
    from langgraph.checkpoint import base as lg
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error


class _Written(NamedTuple):
    """What was written at a checkpoint, and of what that was read: by channel, the task and the value of each write."""

    held: Writes
    read: Mapping[str, Sequence[tuple[str, Channel]]]

    @property
    def size(self) -> int:
        """How many bytes it takes serialised, about."""
        return sum(value.size for writes in self.read.values() for _, value in writes)


class DeltaHistory:
    """Reads delta channels back. What was written at a checkpoint is read once."""

    def __init__(self, logs: ThreadLogs) -> None:
        self._logs = logs
        self._written: Recent[_Written] = Recent(lambda known: known.size)
        logs.caches.append(self._written)

    async def of(
        self, scope: Scope, point: Checkpoint, channels: Sequence[str]
    ) -> Mapping[str, lg.DeltaChannelHistory]:
        """For each channel, the value of the nearest ancestor that has one, and what was written from there on."""
        size, log, ends = 32, list[tuple[str, CheckpointEntry]](), dict[str, tuple[int, int] | None]()
        while True:
            found = await self._logs.entries(scope, point, size)
            log = [*found[1:]]
            ends = {name: _seed([entry for _, entry in log], name) for name in channels}
            if None not in ends.values() or len(found) < size:
                break
            size *= 4
        history: dict[str, lg.DeltaChannelHistory] = {}
        for name, end in ends.items():
            writes = list[lg.PendingWrite]()
            for id, _ in reversed(log if end is None else log[: end[0] + 1]):
                written = await self._writes(scope, id, name)
                writes += [(task, name, value.value(self._logs.serde)) for task, value in written]
            history[name] = {"writes": writes}
            if end is not None:
                history[name]["seed"] = await self._value(scope, point, name, log[end[1]])
        return history

    async def _writes(self, scope: Scope, id: str, name: str) -> Sequence[tuple[str, Channel]]:
        """What was written to a channel at an ancestor, which has all that its children are made of."""
        held = await self._logs.writes_of(scope, id, is_over=True)
        known = self._written.get((scope, id))
        if known is None or known.held is not held:  # more was written there by going on from it once more
            known = _Written(held, {})
        if name not in known.read:
            values = [(task, value) for task, channel, value in merged_writes(held) if channel == name]
            read = [(task, private(value, self._logs.serde)) for task, value in values]
            known = _Written(held, {**known.read, name: read})
            self._written.put((scope, id), known)
        return known.read[name]

    async def _value(self, scope: Scope, point: Checkpoint, name: str, at: tuple[str, CheckpointEntry]) -> Any:
        """What a channel of a checkpoint held at the nearest ancestor that says so."""
        serde, piece = self._logs.serde, at[1].piece(name)
        if piece is None or not piece.start:
            return None if piece is None else piece.onto(None, serde).value(serde)
        entry, channels = await self._logs.state(scope, point)
        own = entry.piece(name)
        if own is None or own.kind == EMPTY:  # nothing came after it
            return channels[name]._replace(kind=piece.kind).value(serde)
        known: Channel | None = None
        for id, entry in reversed(await self._logs.entries(scope, point, point.position)):
            for one in entry.pieces:
                known = one.onto(known, serde) if one.name == name else known
            if id == at[0]:
                break
        return None if known is None else known.value(serde)


def _seed(ancestors: Sequence[CheckpointEntry], name: str) -> tuple[int, int] | None:
    """Of ancestors, nearest first: the first at which a channel has a value, and the one that says which."""
    first = 0
    for n, entry in enumerate(ancestors):
        piece = entry.piece(name)
        if piece is not None and piece.kind != EMPTY:
            return first, n
        first = first if piece is None else n + 1
    return None
