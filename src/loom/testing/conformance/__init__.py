"""Conformance suites: the laws of each protocol as tests that a backend inherits. Needs pytest and hypothesis."""

import pytest

# Shipped asserts say as much as a test's own when they fail.
_ASSERTING = ("embedder", "jobs", "machine", "powers", "records", "scopes", "searches", "traces", "vector_store")
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _ASSERTING))

from loom.testing.conformance.embedder import EmbedderSuite  # noqa: E402
from loom.testing.conformance.machine import MemoryStoreMachine  # noqa: E402
from loom.testing.conformance.memory_store import MemoryStoreSuite  # noqa: E402
from loom.testing.conformance.suite import Suite, needs  # noqa: E402
from loom.testing.conformance.traces import check_non_interference  # noqa: E402
from loom.testing.conformance.vector_store import VectorStoreSuite  # noqa: E402

__all__ = [
    "EmbedderSuite",
    "MemoryStoreMachine",
    "MemoryStoreSuite",
    "Suite",
    "VectorStoreSuite",
    "check_non_interference",
    "needs",
]
