"""How memory is set up; the home of these names is loom.memory.config."""

from loom.memory.config import MemoryConfig, MemoryLayerConfig, MemoryStrategyType

__all__ = ["MemoryConfig", "MemoryLayerConfig", "MemoryStrategyType"]
