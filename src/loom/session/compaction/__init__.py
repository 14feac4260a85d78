"""Compaction: when a history is made smaller, what stays of it, and what replaces the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door
from loom.session.config import ClearToolsOptions, CompactionConfig, Retain, Trigger

if TYPE_CHECKING:
    from loom.session.compaction.coverage import Coverage
    from loom.session.compaction.strategies import Chain, ClearTools, SlidingWindow, Snapshot, Truncate
    from loom.session.compaction.summarize import Ask, Hierarchical, Summarize, ask_model

__all__ = [
    "Ask",
    "Chain",
    "ClearTools",
    "ClearToolsOptions",
    "CompactionConfig",
    "Coverage",
    "Hierarchical",
    "Retain",
    "SlidingWindow",
    "Snapshot",
    "Summarize",
    "Trigger",
    "Truncate",
    "ask_model",
]

_HOMES = {
    "coverage": ("Coverage",),
    "strategies": ("Chain", "ClearTools", "SlidingWindow", "Snapshot", "Truncate"),
    "summarize": ("Ask", "Hierarchical", "Summarize", "ask_model"),
}

__getattr__, _ = door(__name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names})


def __dir__() -> list[str]:
    return __all__
