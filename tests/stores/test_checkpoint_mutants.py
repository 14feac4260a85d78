"""The checkpoint suite can fail: stores with one planted fault each, and the law that catches it."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from loom.errors import LoomError
from loom.stores.inmemory import MemoryCheckpointStore
from loom.testing import FakeClock
from loom.testing.conformance import CheckpointStoreMachine, CheckpointStoreSuite
from tests.stores.checkpoint_mutants import CAUGHT_BY, FOUND_BY_THE_MODEL
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio


async def broken(make_store, only=None):
    def fixtures():
        clock = FakeClock()
        return {"clock": clock, "store": make_store(clock=clock)}

    return await broken_laws(CheckpointStoreSuite, fixtures, only)


async def test_a_sound_store_breaks_no_law():
    assert await broken(MemoryCheckpointStore) == set()


@pytest.mark.parametrize("mutant", CAUGHT_BY, ids=lambda mutant: mutant.__name__)
async def test_a_planted_fault_breaks_its_law(mutant):
    law = CAUGHT_BY[mutant]
    assert await broken(mutant, only=law) == {law}


@pytest.mark.parametrize("mutant", FOUND_BY_THE_MODEL, ids=lambda mutant: mutant.__name__)
def test_a_planted_fault_is_found_by_the_model(mutant):
    class Machine(CheckpointStoreMachine):
        is_durable = False

        @asynccontextmanager
        async def open_store(self, clock):
            yield mutant(clock=clock)

    quick = settings(
        max_examples=300, stateful_step_count=25, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    with pytest.raises((AssertionError, LoomError, pytest.fail.Exception)):
        run_state_machine_as_test(Machine, settings=quick)
