"""Layers: access counts, promotion, importance, and what leaves a layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256

from loom.core.checks import RANKED
from loom.core.clock import Clock
from loom.core.record import Episode, Hit, Layer
from loom.core.scope import Scope
from loom.memory.config import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
from loom.protocols.memory_store import Job, Store, Touches

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
    settings = _settings(config, layer)
    here = [e for e in episodes if e.layer == layer and e.archived_at is None]
    promote = [e for e in here if e.id not in moved and deserves_promotion(e, config, now=now)]
    going = {e.id for e in promote}
    rest = [e for e in here if e.id not in going]
    expired = [e for e in rest if _is_expired(e, settings.retention_hours, now)]
    gone = {e.id for e in expired}
    staying = [e for e in rest if e.id not in gone]
    staying.sort(key=lambda e: (e.importance, e.accesses, e.accessed_at or e.recorded_at, e.id), reverse=True)
    room = len(staying) if settings.capacity is None else settings.capacity
    return LayerPlan(tuple(promote), tuple(expired) + tuple(staying[room:]), tuple(staying[:room]))


def _settings(config: MemoryConfig, layer: Layer) -> MemoryLayerConfig:
    return (config.l1, config.l2, config.l3, config.l4)[layer - 1]


def deserves_promotion(episode: Episode, config: MemoryConfig, *, now: datetime) -> bool:
    """Whether a record moves up: recalled often enough, important, or critical by its content.

    Importance alone moves a record into L2; only the importance-based strategy moves it further.
    """
    if episode.layer == Layer.L4:
        return False
    settings = _settings(config, episode.layer)
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
    below = _settings(config, Layer(episode.layer - 1)).promote_threshold if episode.layer > Layer.L1 else 0
    by_count = bool(below) and episode.accesses >= below
    stays = by_count or (episode.layer == Layer.L2 and is_important(episode, config))
    return replace(episode, archived_at=None) if stays else None


def is_important(episode: Episode, config: MemoryConfig) -> bool:
    """Whether a record was marked as important enough."""
    return episode.importance > 0 and episode.importance >= config.importance_threshold


def is_critical(episode: Episode) -> bool:
    """Whether the content alone makes a record worth keeping, such as an error or a decision."""
    return bool(_CRITICAL.search(episode.text, 0, RANKED))


def _is_expired(episode: Episode, hours: float | None, now: datetime) -> bool:
    """Retention counts from when a record was written or last recalled, whichever is later."""
    since = max(episode.recorded_at, episode.accessed_at or episode.recorded_at)
    return hours is not None and now - since >= timedelta(hours=hours)


# Counts accesses: a recall counts for the record found and for its successor, the statement made from it.
#
# An archived record whose count has become high enough is brought back by a job, one layer at a time.

REVIVE = "revive"
"""The kind of job that brings records back from the archive."""
LAYER_JOBS = {Layer.L1: "digest", Layer.L2: "assimilate", Layer.L3: "sediment", Layer.L4: "sediment"}
"""The kind of job that checks each layer."""


def statement_id(id: str) -> str:
    """The id of the statement that is made from a record when it moves into L2."""
    return f"s:{id}"


async def successor(store: Store, user: Scope, record: Episode) -> Episode:
    """The statement that replaced a record when it moved into L2, or else the record itself."""
    if record.sources:
        return record
    made = await store.get(user, statement_id(record.id))
    return made if isinstance(made, Episode) else record


class Accesses:
    """Counts the records that were recalled."""

    def __init__(self, store: Store, config: MemoryConfig, *, clock: Clock, make_job: Callable[..., Job]) -> None:
        self._store, self._config, self._clock, self._make_job = store, config, clock, make_job

    async def count(self, scope: Scope, hits: Iterable[Hit]) -> None:
        """Count one access of each record that was found, and of the statement made from it.

        The store ignores ids that do not exist, so the statement is touched without reading it first. It is only read
        for an archived record that was recalled often enough to come back.
        """
        found = {hit.item.id: hit.item for hit in hits if isinstance(hit.item, Episode)}
        if not found or not isinstance(self._store, Touches):
            return
        user, now = scope.for_user(), self._clock.now()
        made = [statement_id(e.id) for e in found.values() if _may_have_successor(e)]
        await self._store.touch(user, *dict.fromkeys([*found, *made]), at=now)
        jobs: dict[str, Job] = {}
        for record in found.values():
            counted = replace(record, accesses=record.accesses + 1, accessed_at=now)
            job = await self._due(user, counted)
            if job is not None:
                jobs.setdefault(job.key, job)
        if jobs:
            await self._store.write(user, jobs=list(jobs.values()))

    async def _due(self, user: Scope, record: Episode) -> Job | None:
        """The job that this access makes due, if any: a check of its layer, or its return from the archive."""
        now = self._clock.now()
        if _may_have_successor(record) and revived(record, self._config, now=now) is not None:
            record = await successor(self._store, user, record)
        if record.archived_at is not None:
            comes_back = revived(record, self._config, now=now) is not None
            return self._make_job(user, REVIVE, key=revive_key(record.id), records=[record.id]) if comes_back else None
        # Only the access that reaches a threshold queues a job: a program that never runs jobs must not pile them up.
        before = replace(record, accesses=max(0, record.accesses - 1))
        reached = deserves_promotion(record, self._config, now=now)
        if not reached or deserves_promotion(before, self._config, now=now):
            return None
        return self._make_job(user, LAYER_JOBS[record.layer])


def revive_key(id: str) -> str:
    """The job key of a record's return: one is open at a time. Hashed, because an id may be as long as a key."""
    return f"{REVIVE}:{sha256(id.encode()).hexdigest()[:32]}"


def _may_have_successor(record: Episode) -> bool:
    return record.archived_at is not None and not record.sources


# Sets the importance of records, as a caller or a model rates them.


async def with_importance(
    store: Store, user: Scope, importance: Mapping[str, float], *, may_fall: bool = False
) -> list[Episode]:
    """The records, and their successors, whose importance changes; ids that do not exist are ignored.

    Unless `may_fall`, importance only rises.
    """
    found: dict[str, Episode] = {}
    for id, value in importance.items():
        record = await store.get(user, id)
        if not isinstance(record, Episode):
            continue
        for episode in (record, await successor(store, user, record)):
            if episode.importance < value or (may_fall and episode.importance != value):
                found[episode.id] = replace(episode, importance=value)
    return list(found.values())
