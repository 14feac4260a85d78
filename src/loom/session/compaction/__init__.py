"""Compaction: when a history is made smaller, what stays of it, and what replaces the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.session.compaction.coverage import Coverage
    from loom.session.compaction.strategies import Chain, ClearTools, SlidingWindow, Snapshot, Truncate
    from loom.session.compaction.summarize import Ask, Hierarchical, Summarize, ask_model
    from loom.session.config import ClearToolsOptions, CompactionConfig, Retain, Trigger

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
    "config": ("ClearToolsOptions", "CompactionConfig", "Retain", "Trigger"),
    "compaction.coverage": ("Coverage",),
    "compaction.strategies": ("Chain", "ClearTools", "SlidingWindow", "Snapshot", "Truncate"),
    "compaction.summarize": ("Ask", "Hierarchical", "Summarize", "ask_model"),
}

__getattr__, __dir__ = door(__name__, {name: f"loom.session.{home}" for home in _HOMES for name in _HOMES[home]})
