"""Which records move up from a layer and which are archived: pure rules over the records of one user."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from loom.core.limits import RANKED
from loom.core.record import Episode, Layer
from loom.memory.config import MemoryConfig, MemoryStrategyType

_CRITICAL = re.compile(
    r"\b(?:error|exception|fail(?:ed|ure)?|crash(?:ed)?|decid(?:ed?|ing)|decision|agreed|must|never|always|important"
    r"|deadline|promise[ds]?|allerg\w+)\b",
    re.IGNORECASE,
)
"""Content that is kept even if it is never recalled: errors, decisions, promises, allergies."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What happens to the records of one layer."""

    promote: tuple[Episode, ...]
    archive: tuple[Episode, ...]
    """Records over capacity or past retention: no longer shown, still searchable."""
    keep: tuple[Episode, ...]


def sort_layer(
    episodes: Sequence[Episode], layer: Layer, config: MemoryConfig, *, now: datetime, moved: Collection[str] = ()
) -> LayerPlan:
    """Decide for each record of a layer whether it moves up, is archived, or stays.

    Records that `moved` in this pass do not move again. Over capacity, the least valuable are archived first: by
    importance, then by how often and how recently they were recalled.
    """
    settings = config.layer(layer)
    here = [e for e in episodes if e.layer == layer and e.archived_at is None]
    promote = [e for e in here if e.id not in moved and deserves_promotion(e, config, now=now)]
    going = {e.id for e in promote}
    rest = [e for e in here if e.id not in going]
    expired = [e for e in rest if _is_expired(e, settings.retention_hours, now)]
    gone = {e.id for e in expired}
    staying = sorted((e for e in rest if e.id not in gone), key=retention_value, reverse=True)
    room = len(staying) if settings.capacity is None else settings.capacity
    return LayerPlan(tuple(promote), tuple(expired) + tuple(staying[room:]), tuple(staying[:room]))


def deserves_promotion(episode: Episode, config: MemoryConfig, *, now: datetime) -> bool:
    """Whether a record moves up: recalled often enough, important, or critical by its content.

    Importance alone moves a record into L2; only the importance-based strategy moves it further.
    """
    if episode.layer == Layer.L4:
        return False
    settings = config.layer(episode.layer)
    if settings.promote_threshold and episode.accesses >= settings.promote_threshold:
        return True
    if episode.layer == Layer.L1 and (is_important(episode, config) or is_critical(episode)):
        return True
    if config.strategy is MemoryStrategyType.IMPORTANCE_BASED:
        return is_important(episode, config)
    if config.strategy is MemoryStrategyType.TIME_BASED and settings.retention_hours is not None:
        half = timedelta(hours=settings.retention_hours / 2)
        return episode.accesses > 0 and now - episode.recorded_at >= half
    return False


def revived(episode: Episode, config: MemoryConfig, *, now: datetime) -> Episode | None:
    """An archived record in the layer that its access count deserves, one above its own at most; None if lower.

    A record of L1 comes back in L2 or not at all: below the threshold of L1 its time there is simply over.
    """
    if deserves_promotion(episode, config, now=now):
        return replace(episode, layer=Layer(episode.layer + 1), archived_at=None)
    below = config.layer(Layer(episode.layer - 1)).promote_threshold if episode.layer > Layer.L1 else 0
    by_count = bool(below) and episode.accesses >= below
    stays = by_count or (episode.layer == Layer.L2 and is_important(episode, config))
    return replace(episode, archived_at=None) if stays else None


def is_important(episode: Episode, config: MemoryConfig) -> bool:
    """Whether a record was marked as important enough."""
    return episode.importance > 0 and episode.importance >= config.importance_threshold


def is_critical(episode: Episode) -> bool:
    """Whether the content alone makes a record worth keeping, such as an error or a decision."""
    return bool(_CRITICAL.search(episode.text, 0, RANKED))


def retention_value(episode: Episode) -> tuple[float, int, datetime, str]:
    """The value of a record to its layer; the smallest is archived first."""
    return (episode.importance, episode.accesses, episode.accessed_at or episode.recorded_at, episode.id)


def _is_expired(episode: Episode, hours: float | None, now: datetime) -> bool:
    """Retention counts from when a record was written or last recalled, whichever is later."""
    since = max(episode.recorded_at, episode.accessed_at or episode.recorded_at)
    return hours is not None and now - since >= timedelta(hours=hours)
