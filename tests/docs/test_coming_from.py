"""The page for people who come from another Loom: complete, and true.

Complete: every heading and every identifier of the five documents has its row. True: every row names a test that exists, and
every name that it spells can be had.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import pytest

import loom
from loom import Agent, Context, Memory, PromptBuilder, Session, errors
from loom.api import LoomApp
from loom.core.log import EVENT_TYPES, Checkpoint
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/reference/coming-from.md"
STATES = ("as written", "as named", "differs")
SHARE = 0.97
"""Of the rows that work, as written or as named."""

HEADINGS = {
    "000": (
        *("LOOM", "Installation", "Quick Start", "Sections", "Why this order? Prefix caching", "Features"),
        *("Cache-aware message rendering", "Visitors with deduplication", "File entries with frontmatter"),
        *("Multimodal", "Lifecycle: remember(), redact(), entry IDs", "Volatile step", "Compaction (planned)"),
        *("Development", "License"),
    ),
    "001": (
        *("Compaction, checkpointing & prompt assembly", "Compaction", "Checkpointing", "Prompt assembly — fragments"),
        *("Safety", "Skills", "Next steps", "Call patterns", "Streaming events", "Security"),
    ),
    "002": (
        *("Memory System", "Overview", "Core Concept: Metabolic Memory", "Memory Hierarchy", "Architecture Overview"),
        *("Layer Comparison", "Metabolic Process", "Automatic Promotion", "Compression", "Layer Details"),
        *("L1: Working Memory", "L2: Session Memory", "L3: Episodic Memory", "L4: Semantic Memory"),
        *("Memory Operations", "Automatic Operations", "Tool-Based Access", "Vector Search", "Embedding Providers"),
        *("Vector Stores", "External Knowledge Base", "Built-in Implementations", "Configuration", "Complete Example"),
        *("Best Practices", "Memory Configuration", "Performance Optimization", "Memory Hygiene"),
        "Related Documentation",
    ),
    "003": (
        *("Memory & Context Control", "The L1-L4 Hierarchy", "L1: Reactionary Memory (Sensory Buffer)"),
        *("L2: Working Memory (Short-Term)", "L3: Episodic Memory (Long-Term History)"),
        *("L4: Semantic Memory (Persisted Knowledge)", "Composite Memory Adapter", "Context Control & Metabolism"),
        *("1. Ingest (Eat)", "2. Digest (Process)", "3. Assimilate (Store)"),
    ),
    "004": (
        *("Memory", "What ships by default", "Three ways to construct memory", "1. URL string"),
        *("2. Dict form for tweaks", "3. Explicit instance for full control"),
        *("Tools see the active scope automatically", "Memory vs Vector stores"),
    ),
}
IDENTIFIERS = {
    "000": """
        Compactor Context FileEntry ImageEntry StringEntry StubCompactor add agent_a agent_b attention cache_breakpoints
        cache_control cache_ttl clear_volatile compile convo data focus foundation include max_age_seconds media_type name
        redact remember render role sections security_ctx step to_messages tombstone tool_output topic
    """,
    "001": """
        CheckpointStore FileCheckpointStore MemoryCheckpointStore PromptBuilder Session SessionState addFragment
        agentsMd build checkpoint checkpoint.saved compaction compaction.end compaction.start config context.pressure
        count createContextFragment createIdentityFragment createMemoryFragment createSafetyFragment
        createSkillsFragment createToolsFragment createdAt cwd date delete fraction gitBranch guards hierarchical
        list load messages platform provider readFile restore retain save sessionId sliding_window snapshot soulMd
        strategy summarize threshold timestamp tools totalUsage trigger truncate turnCount turnIndex updatedAt usage zones
    """,
    "002": """
        AgentConfig GraphKnowledgeBase InMemoryKnowledgeBase InMemoryVectorStore KnowledgeItem LoomApp
        MemoryConfig MemoryLayerConfig MemoryStrategyType OpenAIEmbeddingProvider SIMPLE VectorKnowledgeBase
        access_count action add_item agent_config api_key auto_compress build_context capacity content context_manager
        create_agent current_task embedding_provider enable_auto_migration enable_compression graph_rag_service
        knowledge_base limit max_hops memory_config model parameters promote_threshold query result retention_hours
        search_l2_memory search_l3_memory search_l4_memory search_mode source strategy system_prompt task_id
        vector_store
    """,
    "003": "CompositeMemory ContextCompressor Qdrant Redis",
    "004": """
        Agent ChromaMemory HashEmbedder LazyMemory LiteLLM OPENAI_API_KEY OpenAI OpenAIEmbedder RediSearch RunContext
        VectorStore backend chroma embedder get_run_context inmemory lives_in local memory namespace path postgres redis
        run sqlite tenant_a tool user_id with_facts
    """,
}
HOLDERS: dict[str, type] = {
    "agent": Agent,
    "app": LoomApp,
    "builder": PromptBuilder,
    "ctx": Context,
    "memory": Memory,
    "session": Session,
    "cp": Checkpoint,
}
"""What a name in the page's code stands for."""
MODULES = (
    *("loom", "loom.api", "loom.config.memory", "loom.core.record", "loom.errors", "loom.providers.knowledge"),
    *(
        "loom.memory",
        "loom.memory.chroma",
        "loom.memory.embedder",
        "loom.wrappers.composite",
        "loom.memory._upkeep.summaries",
    ),
    "loom.compactor",
)
"""Where a name that stands alone may be had from."""


class Row(NamedTuple):
    """One promise of one document."""

    id: str
    says: str
    here: str
    works: str
    test: str


@cache
def rows() -> tuple[Row, ...]:
    text = PAGE.read_text(encoding="utf-8")
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if re.match(r"\| \d{3}-\d+ \|", line)]
    assert {len(row) for row in cells} == {5}
    return tuple(Row(*(cell.strip().replace("\\|", "|") for cell in row)) for row in cells)


def rows_of(seed: str) -> list[Row]:
    return [row for row in rows() if row.id.startswith(seed)]


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions)


def code_in(text: str) -> list[str]:
    """The code of a cell, without the strings in it."""
    return [re.sub(r'"[^"]*"', '""', code) for code in re.findall(r"`([^`]+)`", text)]


def found(dotted: str) -> Any:
    """What a dotted name stands for; raises where there is nothing."""
    module, *rest = dotted.split(".")
    value: Any = import_module(module)
    for name in rest:
        module = f"{module}.{name}"
        value = getattr(value, name) if hasattr(value, name) else import_module(module)
    return value


def is_public(name: str) -> bool:
    return any(hasattr(import_module(module), name) for module in MODULES)


def test_every_row_has_a_number_a_state_and_a_test() -> None:
    assert len(rows()) >= 250
    for seed in HEADINGS:
        assert [row.id for row in rows_of(seed)] == [f"{seed}-{n:02d}" for n in range(1, len(rows_of(seed)) + 1)]
    for row in rows():
        assert row.says, row
        assert row.here, row
        assert row.works in STATES, row
        if row.works == "differs":
            assert len(row.here) > 40, f"{row.id} does not say why"


def test_every_row_names_a_test_that_exists() -> None:
    missing: set[str] = set()
    for row in rows():
        match = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.test)
        assert match, row
        if not (ROOT / match[1]).exists() or match[2] not in names_in(match[1]):
            missing.add(row.id)
    assert missing == set(), "these rows name a test that does not exist"


def test_enough_works() -> None:
    works = [row for row in rows() if row.works != "differs"]
    share = len(works) / len(rows())
    print(f"{len(works)} of {len(rows())} rows work as written or as named: {share:.1%}")  # noqa: T201  (the figure, for the log)
    assert share >= SHARE


@pytest.mark.parametrize("seed", HEADINGS)
def test_every_heading_of_a_document_has_its_place(seed: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (section,) = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if f"| {seed}-01 |" in part]
    titles = re.findall(r"^### (.+)$", section, re.MULTILINE)
    assert [name for name in HEADINGS[seed] if not any(name in title for title in titles)] == []


@pytest.mark.parametrize("seed", IDENTIFIERS)
def test_every_identifier_of_a_document_is_in_a_row(seed: str) -> None:
    said = " ".join(row.says for row in rows_of(seed)).lower()
    assert [name for name in IDENTIFIERS[seed].split() if name.lower() not in said] == []


def test_every_module_that_is_spelled_can_be_imported() -> None:
    for row in rows():
        for code in code_in(row.here):
            imported = re.fullmatch(r"from ([\w.]+) import ([\w, ]+)", code)
            if imported:
                for name in imported[2].split(", "):
                    assert found(f"{imported[1]}.{name}"), row
            for dotted in re.findall(r"\bloom(?:\.\w+)+", code):
                assert found(dotted) is not None, row


def test_every_class_and_method_that_is_spelled_is_there() -> None:
    checked = 0
    for row in rows():
        for code in code_in(row.here):
            for name in re.findall(r"(?<![\w.])[A-Z][a-z]\w+", code):
                assert name in {"None", "True", "False"} or is_public(name) or hasattr(errors, name), (
                    f"{row.id}: {name}"
                )
                checked += 1
            if code in EVENT_TYPES:
                continue
            for holder, name in re.findall(r"(?<![\w.])(\w+)\.(\w+)", code):
                if holder in HOLDERS:
                    fields = getattr(HOLDERS[holder], "__dataclass_fields__", {})
                    assert hasattr(HOLDERS[holder], name) or name in fields or name == "notes", f"{row.id}: {code}"
                    checked += 1
            for name in re.findall(r"^(create_\w+|open_\w+|load_skills|plan|explain|simulate|render)\b", code):
                assert hasattr(loom, name), f"{row.id}: {name}"
                checked += 1
    assert checked > 60


def test_what_is_not_there_is_noticed() -> None:
    with pytest.raises(ImportError):
        found("loom.memory.nowhere.Nothing")
    assert not is_public("LazyMemory")
    assert "test_that_is_not_there" not in names_in("tests/docs/test_coming_from.py")
