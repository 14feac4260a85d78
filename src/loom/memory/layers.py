"""What moves up from a layer, and what leaves it: pure rules over the records of one user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from loom.core.limits import RANKED
from loom.core.record import Episode, Layer
from loom.memory.config import MemoryConfig, MemoryStrategyType

_CRITICAL = re.compile(
    r"\b(?:error|exception|fail(?:ed|ure)?|crash(?:ed)?|decid(?:ed?|ing)|decision|agreed|must|never|always|important"
    r"|deadline|promise[ds]?|allerg\w+)\b",
    re.IGNORECASE,
)
"""Content that is worth keeping whether or not anybody asks for it: what went wrong, and what was decided."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """What is to happen to the records of one layer."""

    promote: tuple[Episode, ...]
    archive: tuple[Episode, ...]
    """What overflows or is too old: no longer shown, still found."""
    keep: tuple[Episode, ...]


def sort_layer(episodes: Sequence[Episode], layer: Layer, config: MemoryConfig, *, now: datetime) -> Sorted:
    """Decide for each record of a layer whether it moves up, leaves, or stays.

    The least valuable leave first: by importance, then by how often and how lately they were recalled.
    """
    settings = config.layer(layer)
    here = [e for e in episodes if e.layer == layer and e.archived_at is None]
    promote = [e for e in here if layer < Layer.L4 and deserves_promotion(e, config, now=now)]
    going = {e.id for e in promote}
    rest = [e for e in here if e.id not in going]
    expired = [e for e in rest if _is_expired(e, settings.retention_hours, now)]
    gone = {e.id for e in expired}
    staying = sorted((e for e in rest if e.id not in gone), key=value, reverse=True)
    room = len(staying) if settings.capacity is None else settings.capacity
    return Sorted(tuple(promote), tuple(expired) + tuple(staying[room:]), tuple(staying[:room]))


def deserves_promotion(episode: Episode, config: MemoryConfig, *, now: datetime) -> bool:
    """Whether a record moves up: recalled often enough, important by the strategy, or critical by its content."""
    settings = config.layer(episode.layer)
    if settings.promote_threshold and episode.accesses >= settings.promote_threshold:
        return True
    if episode.layer == Layer.L1 and is_critical(episode):
        return True
    if config.strategy is MemoryStrategyType.IMPORTANCE_BASED:
        return episode.importance >= config.importance_threshold
    if config.strategy is MemoryStrategyType.TIME_BASED and settings.retention_hours is not None:
        half = timedelta(hours=settings.retention_hours / 2)
        return episode.accesses > 0 and now - episode.recorded_at >= half
    return False


def is_critical(episode: Episode) -> bool:
    """Whether the content alone makes a record worth keeping: an error or a decision."""
    return bool(_CRITICAL.search(episode.text, 0, RANKED))


def value(episode: Episode) -> tuple[float, int, datetime, str]:
    """What a record is worth to its layer; the smallest leaves first."""
    return (episode.importance, episode.accesses, episode.accessed_at or episode.recorded_at, episode.id)


def _is_expired(episode: Episode, hours: float | None, now: datetime) -> bool:
    return hours is not None and now - episode.recorded_at >= timedelta(hours=hours)
