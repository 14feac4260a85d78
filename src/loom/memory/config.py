"""How memory is set up: four layers, when things move between them, and by which strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from loom.core.record import Layer
from loom.errors import UsageError
from loom.protocols.knowledge_base import KnowledgeBase

MAX_CAPACITY = 1_000_000


class MemoryStrategyType(StrEnum):
    """What makes a record worth moving up before its layer is full."""

    SIMPLE = "simple"
    """How often it was recalled."""
    TIME_BASED = "time_based"
    """That, or that half of its retention has passed and it was recalled at least once."""
    IMPORTANCE_BASED = "importance_based"
    """That, or how important it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayerConfig:
    """One layer. None is unbounded; a `promote_threshold` of 0 means that nothing moves up by being recalled."""

    capacity: int | None = 10
    retention_hours: float | None = None
    auto_compress: bool = True
    promote_threshold: int = 3

    def __post_init__(self) -> None:
        if self.capacity is not None and not 1 <= self.capacity <= MAX_CAPACITY:
            raise UsageError(f"a layer has capacity={self.capacity}; give 1 to {MAX_CAPACITY:,}, or None for no limit")
        if self.retention_hours is not None and self.retention_hours <= 0:
            raise UsageError(
                f"a layer has retention_hours={self.retention_hours}; give hours, or None to keep for ever"
            )
        if self.promote_threshold < 0:
            raise UsageError(f"a layer has promote_threshold={self.promote_threshold}; give 0 or more")


def _layer(capacity: int, hours: float | None, threshold: int, *, compress: bool = True) -> MemoryLayerConfig:
    return MemoryLayerConfig(
        capacity=capacity, retention_hours=hours, promote_threshold=threshold, auto_compress=compress
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The four layers of every user, with the defaults of the design."""

    strategy: MemoryStrategyType = MemoryStrategyType.SIMPLE
    l1: MemoryLayerConfig = field(default_factory=lambda: _layer(10, 1, 3))
    l2: MemoryLayerConfig = field(default_factory=lambda: _layer(50, 24, 5))
    l3: MemoryLayerConfig = field(default_factory=lambda: _layer(200, 168, 10))
    l4: MemoryLayerConfig = field(default_factory=lambda: _layer(1000, None, 0, compress=False))
    enable_auto_migration: bool = True
    """A move into a layer brings about a look at it; otherwise that waits for `metabolize()`."""
    enable_compression: bool = True
    knowledge_base: KnowledgeBase | None = None
    """A corpus that `recall` searches too; its passages stand behind what is remembered."""
    importance_threshold: float = 0.6
    """From where on a record counts as important (importance-based strategy)."""
    standing_tokens: int = 400
    """Tokens that standing preferences and instructions may take in every turn; the newest are kept."""
    learn_turns: int = 4
    """How many turns of a user wait before a model reads them, all with one request."""
    learn_seconds: float = 30.0
    """How long a user is quiet before a model reads what waits, however little it is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", MemoryStrategyType(self.strategy))
        if not 0 <= self.importance_threshold <= 1:
            raise UsageError(f"importance_threshold={self.importance_threshold}; give a share from 0 to 1")
        if self.standing_tokens < 0:
            raise UsageError(f"standing_tokens={self.standing_tokens}; give 0 or more")
        if self.learn_turns < 1 or not self.learn_seconds >= 0:
            given = f"learn_turns={self.learn_turns}, learn_seconds={self.learn_seconds}"
            raise UsageError(f"{given}; give 1 turn or more, and 0 seconds or more")

    def layer(self, layer: Layer) -> MemoryLayerConfig:
        """The settings of one layer."""
        return (self.l1, self.l2, self.l3, self.l4)[layer - 1]
