"""Working memory: the recent turns of a user in other conversations."""

from __future__ import annotations

from datetime import datetime, timedelta

from loom.core.filter import And, Eq, Filter, Not, Range
from loom.core.record import Episode, Layer
from loom.core.scope import Scope
from loom.memory.config import MemoryLayerConfig
from loom.memory.listing import every
from loom.protocols.memory_store import MemoryStore


async def recent(store: MemoryStore, scope: Scope, layer: MemoryLayerConfig, *, now: datetime) -> tuple[Episode, ...]:
    """The records of a user in L1, without those of the conversation in `scope`, oldest first.

    Capacity and retention of L1 apply, even if the jobs that enforce them have not run.
    """
    wanted: list[Filter] = [Eq("kind", "episode"), Eq("layer", int(Layer.L1)), Eq("archived_at", None)]
    if layer.retention_hours is not None:
        wanted.append(Range("recorded_at", low=now - timedelta(hours=layer.retention_hours)))
    if scope.session_id is not None:
        wanted.append(Not(Eq("session_id", scope.session_id)))
    found = [record async for record in every(store, scope.for_user(), And(*wanted)) if isinstance(record, Episode)]
    found.sort(key=lambda episode: (episode.at, episode.recorded_at, episode.id))
    return tuple(found if layer.capacity is None else found[-layer.capacity :])
