"""The suite can fail: stores with one planted fault each, and the law that catches it."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from loom.stores.inmemory import InMemoryStore
from loom.testing import FakeClock
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from tests.testing.laws import broken_laws
from tests.testing.mutants import (
    CAUGHT_BY,
    CountsEverybody,
    CutsIds,
    DeletesEverybodys,
    DropsTheNamespace,
    FoldsCase,
    ForgetsEverybody,
    ForgetsPrefixes,
    GetsEverybodys,
    KeepsTheOldest,
    LimitsBeforeFiltering,
    ListsEverybody,
    NormalisesIds,
    PutsOneByOne,
    ReturnsHistory,
    SearchesEverybody,
    SharesIds,
    SharesStatistics,
    TrimsIds,
)

pytestmark = pytest.mark.anyio


async def broken(make_store, only=None):
    def fixtures():
        clock = FakeClock()
        return {"clock": clock, "store": make_store(clock=clock)}

    return await broken_laws(MemoryStoreSuite, fixtures, only)


async def test_a_sound_store_breaks_no_law():
    assert await broken(InMemoryStore) == set()


@pytest.mark.parametrize("mutant", CAUGHT_BY, ids=lambda mutant: mutant.__name__)
async def test_a_planted_fault_breaks_its_law(mutant):
    law = CAUGHT_BY[mutant]
    assert await broken(mutant, only=law) == {law}


LEAKS = [
    SearchesEverybody,
    ListsEverybody,
    CountsEverybody,
    GetsEverybodys,
    DeletesEverybodys,
    ForgetsEverybody,
    ForgetsPrefixes,
    FoldsCase,
    TrimsIds,
    NormalisesIds,
    CutsIds,
    DropsTheNamespace,
    SharesIds,
    SharesStatistics,
]


@pytest.mark.parametrize("mutant", LEAKS, ids=lambda mutant: mutant.__name__)
async def test_a_leak_is_seen_by_non_interference(mutant):
    law = "test_a_user_cannot_tell_whether_others_exist"
    assert await broken(mutant, only=law) == {law}


@pytest.mark.parametrize("mutant", [FoldsCase, ReturnsHistory, LimitsBeforeFiltering, KeepsTheOldest, PutsOneByOne])
def test_a_planted_fault_is_found_by_the_model(mutant):
    class Machine(MemoryStoreMachine):
        @asynccontextmanager
        async def open_store(self, clock):
            yield mutant(clock=clock)

    quick = settings(
        max_examples=200, stateful_step_count=20, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=quick)
