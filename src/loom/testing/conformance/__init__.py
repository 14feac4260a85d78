"""Conformance suites: the laws of each protocol as tests that a backend inherits. Needs pytest and hypothesis."""

from pkgutil import iter_modules

import pytest

# Shipped asserts say as much as a test's own when they fail.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from loom.testing.conformance.checkpoint_log import CheckpointStoreSuite  # noqa: E402
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
