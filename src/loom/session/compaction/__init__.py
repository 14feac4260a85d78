"""Compaction: when a history is made smaller, what stays of it, and what replaces the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.session.compaction.chain import Chain
    from loom.session.compaction.clear_tools import ClearTools
    from loom.session.compaction.config import ClearToolsOptions, CompactionConfig, Retain, Trigger
    from loom.session.compaction.coverage import Coverage
    from loom.session.compaction.snapshot import Snapshot
    from loom.session.compaction.summarize import Ask, Hierarchical, Summarize, ask_model
    from loom.session.compaction.windows import SlidingWindow, Truncate

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
    "chain": ("Chain",),
    "coverage": ("Coverage",),
    "clear_tools": ("ClearTools",),
    "config": ("ClearToolsOptions", "CompactionConfig", "Retain", "Trigger"),
    "snapshot": ("Snapshot",),
    "summarize": ("Ask", "Hierarchical", "Summarize", "ask_model"),
    "windows": ("SlidingWindow", "Truncate"),
}

__getattr__, __dir__ = door(__name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names})
