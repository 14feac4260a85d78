"""Working memory: what was said a moment ago, in whatever conversation."""

from __future__ import annotations

from datetime import datetime, timedelta

from loom.core.filter import And, Eq, Filter, Not, Range
from loom.core.record import Episode, Layer
from loom.core.scope import Scope
from loom.memory.config import MemoryLayerConfig
from loom.memory.listing import every
from loom.protocols.memory_store import MemoryStore


async def recent(store: MemoryStore, scope: Scope, layer: MemoryLayerConfig, *, now: datetime) -> tuple[Episode, ...]:
    """What L1 holds of a user beside the conversation that the scope names, oldest first.

    Its capacity and retention hold at once, whether or not the jobs that enforce them have run.
    """
    wanted: list[Filter] = [Eq("kind", "episode"), Eq("layer", int(Layer.L1)), Eq("archived_at", None)]
    if layer.retention_hours is not None:
        wanted.append(Range("recorded_at", low=now - timedelta(hours=layer.retention_hours)))
    if scope.session_id is not None:
        wanted.append(Not(Eq("session_id", scope.session_id)))
    found = [record async for record in every(store, scope.for_user(), And(*wanted)) if isinstance(record, Episode)]
    found.sort(key=lambda episode: (episode.at, episode.recorded_at, episode.id))
    return tuple(found if layer.capacity is None else found[-layer.capacity :])
