"""Loom: the context-and-memory engine for LLM agents.

Importing this package does no work: each name is loaded from its home when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loom.catalog import CacheRules, ModelInfo, find_model
    from loom.context.cache.explain import Explanation, explain
    from loom.context.cache.plan import CachePlan, plan
    from loom.context.cache.replay import simulate
    from loom.context.cache.simulate import Simulation
    from loom.context.context import Context, Redaction
    from loom.context.entry import DocumentEntry, Entry, ImageEntry, MessageEntry, StringEntry
    from loom.context.file_entry import FileEntry
    from loom.context.render.messages import CacheWarning
    from loom.context.render.request import render
    from loom.context.section import Section
    from loom.core.message import (
        DocumentPart,
        ImagePart,
        Message,
        NativePart,
        Part,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolResultPart,
        ToolSpec,
        Usage,
    )
    from loom.core.scope import Scope
    from loom.core.window import Notice, Window, WindowPart
    from loom.engine import SyncMemory, open_memory, open_memory_sync
    from loom.errors import LoomError
    from loom.memory.config import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
    from loom.memory.memory import Memory, Turn
    from loom.tokens import counter_for

__version__ = "0.1.0"

_HOMES = {
    "loom.catalog": ("CacheRules", "ModelInfo", "find_model"),
    "loom.context.cache.explain": ("Explanation", "explain"),
    "loom.context.cache.plan": ("CachePlan", "plan"),
    "loom.context.cache.replay": ("simulate",),
    "loom.context.cache.simulate": ("Simulation",),
    "loom.context.context": ("Context", "Redaction"),
    "loom.context.entry": ("DocumentEntry", "Entry", "ImageEntry", "MessageEntry", "StringEntry"),
    "loom.context.file_entry": ("FileEntry",),
    "loom.context.render.messages": ("CacheWarning",),
    "loom.context.render.request": ("render",),
    "loom.context.section": ("Section",),
    "loom.core.message": (
        "DocumentPart",
        "ImagePart",
        "Message",
        "NativePart",
        "Part",
        "TextPart",
        "ThinkingPart",
        "ToolCallPart",
        "ToolResultPart",
        "ToolSpec",
        "Usage",
    ),
    "loom.core.scope": ("Scope",),
    "loom.core.window": ("Notice", "Window", "WindowPart"),
    "loom.engine": ("SyncMemory", "open_memory", "open_memory_sync"),
    "loom.errors": ("LoomError",),
    "loom.memory.config": ("MemoryConfig", "MemoryLayerConfig", "MemoryStrategyType"),
    "loom.memory.memory": ("Memory", "Turn"),
    "loom.tokens": ("counter_for",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CachePlan",
    "CacheRules",
    "CacheWarning",
    "Context",
    "DocumentEntry",
    "DocumentPart",
    "Entry",
    "Explanation",
    "FileEntry",
    "ImageEntry",
    "ImagePart",
    "LoomError",
    "Memory",
    "MemoryConfig",
    "MemoryLayerConfig",
    "MemoryStrategyType",
    "Message",
    "MessageEntry",
    "ModelInfo",
    "NativePart",
    "Notice",
    "Part",
    "Redaction",
    "Scope",
    "Section",
    "Simulation",
    "StringEntry",
    "SyncMemory",
    "TextPart",
    "ThinkingPart",
    "ToolCallPart",
    "ToolResultPart",
    "ToolSpec",
    "Turn",
    "Usage",
    "Window",
    "WindowPart",
    "counter_for",
    "explain",
    "find_model",
    "open_memory",
    "open_memory_sync",
    "plan",
    "render",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'loom' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
