"""Loom: the context-and-memory engine for LLM agents.

Importing this package does no work: each name is loaded from its home when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loom.agent.agent import Agent
    from loom.catalog import CacheRules, ModelInfo, find_model
    from loom.context.cache.explain import Explanation, explain
    from loom.context.cache.plan import CachePlan, plan
    from loom.context.cache.replay import simulate
    from loom.context.cache.simulate import Simulation
    from loom.context.context import Context, Redaction
    from loom.context.entry import DocumentEntry, Entry, ImageEntry, MessageEntry, StringEntry
    from loom.context.file_entry import FileEntry
    from loom.context.fragments import (
        Fragment,
        create_context_fragment,
        create_identity_fragment,
        create_memory_fragment,
        create_safety_fragment,
        create_tools_fragment,
    )
    from loom.context.prompt import Prompt, PromptBuilder
    from loom.context.render.messages import CacheWarning
    from loom.context.render.request import render
    from loom.context.section import Section
    from loom.context.skill_match import SkillMatch, SkillMatcher, tool_refusal
    from loom.context.skills import Skill, create_active_skill_fragment, create_skills_fragment, load_skills
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
    from loom.engine import SyncMemory, open_checkpoints, open_memory, open_memory_sync
    from loom.engine.models import open_model
    from loom.errors import LoomError
    from loom.memory.config import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
    from loom.memory.memory import Memory, Turn
    from loom.providers.models.anthropic import AnthropicModel
    from loom.providers.models.compatible import CompatibleModel
    from loom.providers.models.openai_chat import OpenAIChatModel
    from loom.providers.models.openai_responses import OpenAIModel
    from loom.session.compaction.config import CompactionConfig, Retain, Trigger
    from loom.session.config import SessionConfig
    from loom.session.restoring import SessionState
    from loom.session.sending import Reply
    from loom.session.session import Session
    from loom.stores.files import FileCheckpointStore
    from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
    from loom.stores.key_value.checkpoints import KeyValueCheckpointStore
    from loom.stores.sqlite.checkpoints import SqliteCheckpointStore
    from loom.tokens import counter_for
    from loom.tools.function import tool
    from loom.tools.run_context import get_run_context

__version__ = "0.1.0"

_HOMES = {
    "loom.agent.agent": ("Agent",),
    "loom.catalog": ("CacheRules", "ModelInfo", "find_model"),
    "loom.context.cache.explain": ("Explanation", "explain"),
    "loom.context.cache.plan": ("CachePlan", "plan"),
    "loom.context.cache.replay": ("simulate",),
    "loom.context.cache.simulate": ("Simulation",),
    "loom.context.context": ("Context", "Redaction"),
    "loom.context.entry": ("DocumentEntry", "Entry", "ImageEntry", "MessageEntry", "StringEntry"),
    "loom.context.file_entry": ("FileEntry",),
    "loom.context.fragments": (
        "Fragment",
        "create_context_fragment",
        "create_identity_fragment",
        "create_memory_fragment",
        "create_safety_fragment",
        "create_tools_fragment",
    ),
    "loom.context.prompt": ("Prompt", "PromptBuilder"),
    "loom.context.render.messages": ("CacheWarning",),
    "loom.context.render.request": ("render",),
    "loom.context.section": ("Section",),
    "loom.context.skill_match": ("SkillMatch", "SkillMatcher", "tool_refusal"),
    "loom.context.skills": ("Skill", "create_active_skill_fragment", "create_skills_fragment", "load_skills"),
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
    "loom.engine": ("SyncMemory", "open_checkpoints", "open_memory", "open_memory_sync"),
    "loom.engine.models": ("open_model",),
    "loom.errors": ("LoomError",),
    "loom.memory.config": ("MemoryConfig", "MemoryLayerConfig", "MemoryStrategyType"),
    "loom.memory.memory": ("Memory", "Turn"),
    "loom.providers.models.anthropic": ("AnthropicModel",),
    "loom.providers.models.compatible": ("CompatibleModel",),
    "loom.providers.models.openai_chat": ("OpenAIChatModel",),
    "loom.providers.models.openai_responses": ("OpenAIModel",),
    "loom.session.compaction.config": ("CompactionConfig", "Retain", "Trigger"),
    "loom.session.config": ("SessionConfig",),
    "loom.session.restoring": ("SessionState",),
    "loom.session.sending": ("Reply",),
    "loom.session.session": ("Session",),
    "loom.stores.files": ("FileCheckpointStore",),
    "loom.stores.inmemory.checkpoints": ("MemoryCheckpointStore",),
    "loom.stores.key_value.checkpoints": ("KeyValueCheckpointStore",),
    "loom.stores.sqlite.checkpoints": ("SqliteCheckpointStore",),
    "loom.tokens": ("counter_for",),
    "loom.tools.function": ("tool",),
    "loom.tools.run_context": ("get_run_context",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_NEED_ENGINE = frozenset({"Session", *(name for name in _HOME_OF if name.endswith("Model"))})
"""The engine gives models a renderer, and sessions a way to open models by name."""

__all__ = [
    "Agent",
    "AnthropicModel",
    "CachePlan",
    "CacheRules",
    "CacheWarning",
    "CompactionConfig",
    "CompatibleModel",
    "Context",
    "DocumentEntry",
    "DocumentPart",
    "Entry",
    "Explanation",
    "FileCheckpointStore",
    "FileEntry",
    "Fragment",
    "ImageEntry",
    "ImagePart",
    "KeyValueCheckpointStore",
    "LoomError",
    "Memory",
    "MemoryCheckpointStore",
    "MemoryConfig",
    "MemoryLayerConfig",
    "MemoryStrategyType",
    "Message",
    "MessageEntry",
    "ModelInfo",
    "NativePart",
    "Notice",
    "OpenAIChatModel",
    "OpenAIModel",
    "Part",
    "Prompt",
    "PromptBuilder",
    "Redaction",
    "Reply",
    "Retain",
    "Scope",
    "Section",
    "Session",
    "SessionConfig",
    "SessionState",
    "Simulation",
    "Skill",
    "SkillMatch",
    "SkillMatcher",
    "SqliteCheckpointStore",
    "StringEntry",
    "SyncMemory",
    "TextPart",
    "ThinkingPart",
    "ToolCallPart",
    "ToolResultPart",
    "ToolSpec",
    "Trigger",
    "Turn",
    "Usage",
    "Window",
    "WindowPart",
    "counter_for",
    "create_active_skill_fragment",
    "create_context_fragment",
    "create_identity_fragment",
    "create_memory_fragment",
    "create_safety_fragment",
    "create_skills_fragment",
    "create_tools_fragment",
    "explain",
    "find_model",
    "get_run_context",
    "load_skills",
    "open_checkpoints",
    "open_memory",
    "open_memory_sync",
    "open_model",
    "plan",
    "render",
    "simulate",
    "tool",
    "tool_refusal",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'loom' has no attribute {name!r}")
    if name in _NEED_ENGINE:
        import_module("loom.engine.models")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
