"""The public names: a change here is a change for users."""

import subprocess
import sys

import loom
import loom.compactor


def test_exported_names():
    assert loom.__all__ == [
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
    assert loom.compactor.__all__ == ["Compactor", "Replacement", "Rewrite", "Shown", "StubCompactor"]


def test_every_name_can_be_had_and_is_listed():
    assert loom.__all__
    assert all(getattr(loom, name) is not None for name in loom.__all__)
    assert set(loom.__all__) <= set(dir(loom))
    assert set(loom._HOME_OF) == set(loom.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    assert not hasattr(loom, "Kontext")


def test_importing_does_no_work():
    script = (
        "import sys, os, threading; before = set(os.listdir('.')); import loom;"
        "heavy = {'typer', 'rich', 'yaml', 'pydantic', 'numpy', 'anthropic', 'openai', 'google', 'splintr', 'asyncio'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert not [m for m in sys.modules if m.startswith('loom.')], 'submodules are loaded when they are used';"
        "assert threading.active_count() == 1 and set(os.listdir('.')) == before"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_context_needs_no_optional_package_and_no_command_line():
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['splintr', 'anthropic', 'openai', 'google.genai', 'typer', 'rich']));"
        "from loom import Context, StringEntry, plan;"
        "c = Context('c'); c.foundation.add(StringEntry('hello')); c.to_messages();"
        "print(plan(c.compile(), 'openai', 'gpt-4o').error)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert float(done.stdout) > 0, "without the vocabulary the count is an estimate, and says so"
