"""The laws of a memory store, with those of its optional protocols."""

from __future__ import annotations

import pytest

from loom.protocols.memory_store import MemoryStore
from loom.testing.clock import FakeClock
from loom.testing.conformance.apart import ApartLaws
from loom.testing.conformance.epochs import EpochLaws
from loom.testing.conformance.handover import HandoverLaws
from loom.testing.conformance.jobs import JobLaws
from loom.testing.conformance.powers import KeyLaws, PruneLaws, TouchLaws, VectorLaws
from loom.testing.conformance.records import RecordLaws
from loom.testing.conformance.reembeds import ReembedLaws
from loom.testing.conformance.scopes import ScopeLaws
from loom.testing.conformance.searches import SearchLaws
from loom.testing.conformance.suite import Suite


class MemoryStoreSuite(
    RecordLaws,
    ScopeLaws,
    SearchLaws,
    PruneLaws,
    TouchLaws,
    VectorLaws,
    ReembedLaws,
    KeyLaws,
    HandoverLaws,
    ApartLaws,
    JobLaws,
    EpochLaws,
    Suite,
):
    """Subclass it, override the fixture `store`, and every law runs; protocols that a store lacks are skipped."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The store's clock, which moves only when a law advances it."""
        return FakeClock()

    @pytest.fixture
    async def store(self, clock: FakeClock) -> MemoryStore:
        """An empty store that takes its time from `clock`; closed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `store`")
