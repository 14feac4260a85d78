"""Conformance suites: the laws of each protocol as tests that a backend inherits. Needs pytest and hypothesis."""

import pytest

# Shipped asserts say as much as a test's own when they fail.
_ASSERTING = (
    "checkpoint_store", "embedder", "isolation", "jobs", "knowledge_base", "machines", "memory_store",
    "memory_store_optional", "model", "suite", "vector_store",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _ASSERTING))

from loom.testing.conformance.checkpoint_store import CheckpointStoreSuite  # noqa: E402
from loom.testing.conformance.embedder import EmbedderSuite  # noqa: E402
from loom.testing.conformance.isolation import ErasureSuite, check_non_interference  # noqa: E402
from loom.testing.conformance.knowledge_base import (  # noqa: E402
    KnowledgeBaseMachine,
    KnowledgeBaseSuite,
    SharedKnowledgeSuite,
)
from loom.testing.conformance.machines import CheckpointStoreMachine, MemoryStoreMachine  # noqa: E402
from loom.testing.conformance.memory_store import MemoryStoreSuite  # noqa: E402
from loom.testing.conformance.model import ModelSuite, WireModelSuite  # noqa: E402
from loom.testing.conformance.suite import Suite, needs  # noqa: E402
from loom.testing.conformance.vector_store import VectorStoreSuite  # noqa: E402

__all__ = [
    "CheckpointStoreMachine",
    "CheckpointStoreSuite",
    "EmbedderSuite",
    "ErasureSuite",
    "KnowledgeBaseMachine",
    "KnowledgeBaseSuite",
    "MemoryStoreMachine",
    "MemoryStoreSuite",
    "ModelSuite",
    "SharedKnowledgeSuite",
    "Suite",
    "VectorStoreSuite",
    "WireModelSuite",
    "check_non_interference",
    "needs",
]
