"""Configuration of memory: four layers, when records move between them, and by which strategy."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any, cast

from loom.core.checks import KEPT_VERSIONS, MAX_VERSIONS
from loom.errors import UsageError
from loom.protocols.knowledge_base import KnowledgeBase

MAX_CAPACITY = 1_000_000


class MemoryStrategyType(StrEnum):
    """The rule by which a record moves up before its layer is full."""

    SIMPLE = "simple"
    """Recalled often enough; in L1 also if it is important, or an error or a decision."""
    TIME_BASED = "time_based"
    """As SIMPLE, or if half of its retention has passed and it was recalled at least once."""
    IMPORTANCE_BASED = "importance_based"
    """As SIMPLE, or if it is important, in every layer."""


class _Unset(Enum):
    """Placeholder of a field that was not given, until its layer is known."""

    OWN = "the default of its layer"


_OWN = cast("Any", _Unset.OWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayerConfig:
    """One layer. None is unbounded; with a `promote_threshold` of 0 nothing moves up by being recalled.

    Fields that are not given take the default of the layer that this becomes in a MemoryConfig.
    """

    capacity: int | None = _OWN
    retention_hours: float | None = _OWN
    auto_compress: bool = _OWN
    promote_threshold: int = _OWN

    def __post_init__(self) -> None:
        capacity, hours, threshold = (_given(self, n) for n in ("capacity", "retention_hours", "promote_threshold"))
        if capacity is not None and not 1 <= capacity <= MAX_CAPACITY:
            raise UsageError(f"a layer has capacity={capacity}; give 1 to {MAX_CAPACITY:,}, or None for no limit")
        if hours is not None and hours <= 0:
            raise UsageError(f"a layer has retention_hours={hours}; give hours, or None to keep for ever")
        if threshold is not None and threshold < 0:
            raise UsageError(f"a layer has promote_threshold={threshold}; give 0 or more")

    def with_defaults(self, own: MemoryLayerConfig) -> MemoryLayerConfig:
        """These settings, with those of `own` for fields that were not given."""
        unset = {f.name: getattr(own, f.name) for f in fields(self) if getattr(self, f.name) is _Unset.OWN}
        return replace(self, **unset) if unset else self


def _given(layer: MemoryLayerConfig, name: str) -> float | None:
    value = getattr(layer, name)
    return None if value is _Unset.OWN else value


_DEFAULTS = {
    "l1": MemoryLayerConfig(capacity=10, retention_hours=1, promote_threshold=3, auto_compress=True),
    "l2": MemoryLayerConfig(capacity=50, retention_hours=24, promote_threshold=5, auto_compress=True),
    "l3": MemoryLayerConfig(capacity=200, retention_hours=168, promote_threshold=10, auto_compress=True),
    "l4": MemoryLayerConfig(capacity=1000, retention_hours=None, promote_threshold=0, auto_compress=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The four layers of every user, and how facts are learned."""

    strategy: MemoryStrategyType = MemoryStrategyType.SIMPLE
    l1: MemoryLayerConfig = field(default_factory=lambda: _DEFAULTS["l1"])
    l2: MemoryLayerConfig = field(default_factory=lambda: _DEFAULTS["l2"])
    l3: MemoryLayerConfig = field(default_factory=lambda: _DEFAULTS["l3"])
    l4: MemoryLayerConfig = field(default_factory=lambda: _DEFAULTS["l4"])
    enable_auto_migration: bool = True
    """A move into a layer queues a check of that layer; otherwise it waits for `metabolize()`."""
    enable_compression: bool = True
    knowledge_base: KnowledgeBase | None = None
    """A corpus that `recall` searches too; its passages come after remembered hits."""
    importance_threshold: float = 0.6
    """From this importance on a record moves into L2 even if it is never recalled, and up to L4 with the
    importance-based strategy. 0, the importance of unmarked records, never counts."""
    standing_tokens: int = 400
    """Maximum tokens of standing preferences and instructions in every turn; the newest are kept."""
    block_versions: int = KEPT_VERSIONS
    """Old texts of each pinned block that are kept for block_history(), up to 1,000; 0 keeps none."""
    learn_turns: int = 4
    """Number of turns of a user that a model reads with one request."""
    learn_seconds: float = 30.0
    """Seconds a user is idle before a model reads pending turns, however few."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", MemoryStrategyType(self.strategy))
        for name, own in _DEFAULTS.items():
            object.__setattr__(self, name, getattr(self, name).with_defaults(own))
        if not 0 <= self.importance_threshold <= 1:
            raise UsageError(f"importance_threshold={self.importance_threshold}; give a share from 0 to 1")
        if self.standing_tokens < 0:
            raise UsageError(f"standing_tokens={self.standing_tokens}; give 0 or more")
        if not 0 <= self.block_versions <= MAX_VERSIONS:
            raise UsageError(f"block_versions={self.block_versions}; give 0 to {MAX_VERSIONS:,}")
        if self.learn_turns < 1 or not self.learn_seconds >= 0:
            given = f"learn_turns={self.learn_turns}, learn_seconds={self.learn_seconds}"
            raise UsageError(f"{given}; give 1 turn or more, and 0 seconds or more")
