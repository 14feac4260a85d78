"""Times of records while others write to the same file: looked up only where somebody may be ahead."""

import sys
from datetime import timedelta
from subprocess import run

import pytest

from loom.errors import StoreUnavailable
from loom.memory.memory import Memory
from loom.protocols.memory_store import SeesOthers
from loom.stores.sqlite import SqliteStore
from loom.testing import FakeClock
from loom.testing.fakes import START

pytestmark = pytest.mark.anyio
ANN, BOB = {"user_id": "ann"}, {"user_id": "bob"}
AHEAD = timedelta(hours=1)
_ELSEWHERE = """
import sys, asyncio
from datetime import timedelta
from loom.memory.memory import Memory
from loom.stores.sqlite import SqliteStore
from loom.testing import FakeClock
from loom.testing.fakes import START

async def write():
    async with Memory(SqliteStore(sys.argv[1]), clock=FakeClock(START + timedelta(hours=1))) as memory:
        await memory.remember("from a process whose clock is ahead", user_id=sys.argv[2])

asyncio.run(write())
"""


class Counted(SqliteStore):
    """Counts the lists that are read, and fails some of them."""

    lists = failures = 0

    async def list(self, *args, **named):
        self.lists += 1
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("held by another process")
        return await super().list(*args, **named)


@pytest.fixture
async def store(tmp_path):
    async with Counted(tmp_path / "memory.db") as store:
        yield store


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def memory(store, clock):
    return Memory(store, clock=clock)


def write_elsewhere(path, user):
    """Another process, whose clock is an hour ahead, writes to the file."""
    run([sys.executable, "-c", _ELSEWHERE, str(path / "memory.db"), user], check=True)


async def said_at(memory, *, user_id):
    return (await memory.remember("hello", user_id=user_id)).kept[0].recorded_at


async def test_while_nobody_else_writes_a_user_is_looked_at_once(memory, store, clock):
    for _ in range(4):
        await said_at(memory, **ANN)
        clock.advance(0.6)
    assert store.lists == 1
    await said_at(memory, **BOB)
    assert store.lists == 2, "nothing is known of a user before the first look"


async def test_a_process_that_was_idle_looks_again(memory, clock, tmp_path):
    await said_at(memory, **ANN)
    await said_at(memory, **ANN)
    clock.advance(5)
    write_elsewhere(tmp_path, "ann")
    assert await said_at(memory, **ANN) > START + AHEAD


async def test_what_another_process_writes_is_found_by_the_write_after_the_next(memory, clock, tmp_path):
    for _ in range(3):
        await said_at(memory, **ANN)
        clock.advance(0.6)
    write_elsewhere(tmp_path, "ann")
    await said_at(memory, **BOB)
    clock.advance(0.6)
    assert await said_at(memory, **ANN) > START + AHEAD, "the write for bob has seen that somebody else wrote"


async def test_a_look_at_one_user_is_none_at_another(memory, clock, tmp_path):
    await said_at(memory, **ANN)
    await said_at(memory, **BOB)
    clock.advance(0.6)
    write_elsewhere(tmp_path, "bob")
    await said_at(memory, **ANN)
    clock.advance(0.6)
    await said_at(memory, **ANN)
    assert await said_at(memory, **BOB) > START + AHEAD


async def test_two_memories_of_one_process_whose_clocks_disagree(memory, clock, tmp_path):
    async with SqliteStore(tmp_path / "memory.db") as second:
        other = Memory(second, clock=FakeClock(START + AHEAD))
        for _ in range(3):
            await said_at(memory, **ANN)
            clock.advance(0.6)
        told = await said_at(other, **ANN)
        clock.advance(0.6)
        await said_at(memory, **BOB)
        clock.advance(0.6)
        assert await said_at(memory, **ANN) > told


async def test_a_look_that_failed_is_repeated(memory, store, clock, tmp_path):
    write_elsewhere(tmp_path, "ann")
    await memory.remember("hello", **BOB)  # the store has looked for others
    clock.advance(0.1)
    store.failures = 1
    times = []
    for number in range(4):
        times += [(await memory.remember(f"turn {number}", **ANN)).kept[0].recorded_at]
        clock.advance(0.6)
    assert store.failures == 0
    assert [time > START + AHEAD for time in times] == [False, False, True, True]


async def test_a_store_counts_its_looks_and_what_others_wrote(memory, store, tmp_path):
    assert isinstance(store, SeesOthers)
    at = await said_at(memory, **ANN)
    before = store.others
    assert before.latest == at
    await said_at(memory, **ANN)
    assert (store.others.checks > before.checks, store.others.changes) == (True, before.changes)
    write_elsewhere(tmp_path, "bob")
    await said_at(memory, **ANN)
    assert store.others.changes == before.changes + 1
    assert SqliteStore(tmp_path / "other.db").others is None
