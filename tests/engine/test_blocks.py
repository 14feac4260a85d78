"""Writers of one block: a blind write always holds, one over a version holds only while that stands."""

import anyio
import pytest

from loom.errors import StoreConflict, UsageError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def memories(place):
    """Two memories on one place."""
    async with place() as first, place() as second:
        yield first, second


async def test_every_blind_write_holds_however_many_write(memories):
    written = []

    async def write(number):
        memory = memories[number % 2]
        written.append(await memory.set_block("plan", f"text {number}", user_id="ann"))

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(write, number)
    assert sorted(block.version for block in written) == list(range(1, 41))
    (stored,) = await memories[0].blocks(user_id="ann")
    assert stored == max(written, key=lambda block: block.version)


async def test_of_writes_over_one_version_one_holds_and_the_others_see_it(memories):
    seen = await memories[0].set_block("plan", "sail", user_id="ann")
    won, lost = [], []

    async def write(number):
        memory = memories[number % 2]
        try:
            won.append(await memory.set_block("plan", f"text {number}", user_id="ann", version=seen.version))
        except StoreConflict as error:
            lost.append(error)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(write, number)
    (winner,) = won
    assert [error.current for error in lost] == [winner] * 9
    assert f"it has version 2 now, with the text '{winner.text}'" in str(lost[0])
    again = await memories[1].set_block("plan", "row", user_id="ann", version=lost[0].current.version)
    assert (again.version, await memories[0].blocks(user_id="ann")) == (3, (again,))


async def test_no_update_is_lost_where_each_builds_on_what_it_read(memories):
    async def count_up(memory):
        while True:
            found = {block.name: block for block in await memory.blocks(user_id="ann")}
            number, version = (int(found["n"].text), found["n"].version) if found else (0, 0)
            try:
                return await memory.set_block("n", str(number + 1), user_id="ann", version=version)
            except StoreConflict:
                continue

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(count_up, memories[number % 2])
    (stored,) = await memories[0].blocks(user_id="ann")
    assert (stored.text, stored.version) == ("12", 12)


async def test_a_block_that_must_be_new_or_was_forgotten(memories):
    memory, other = memories
    first = await memory.set_block("plan", "sail", user_id="ann", version=0)
    with pytest.raises(StoreConflict, match="'plan' was to follow version 0, but it has version 1 now") as refused:
        await other.set_block("plan", "row", user_id="ann", version=0)
    assert refused.value.current == first
    await other.forget(first.id, user_id="ann")
    with pytest.raises(StoreConflict, match="the block does not exist; create it with version=0") as refused:
        await memory.set_block("plan", "row", user_id="ann", version=first.version)
    assert refused.value.current is None
    with pytest.raises(UsageError, match="version=-1 is not a version"):
        await memory.set_block("plan", "row", user_id="ann", version=-1)
    assert await memory.blocks(user_id="ann") == ()


async def test_the_texts_of_all_writers_stay_readable_in_their_order(memories):
    async def write(number):
        await memories[number % 2].set_block("plan", f"text {number}", user_id="ann")

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(write, number)
    first, second = [await memory.block_history("plan", user_id="ann") for memory in memories]
    assert first == second
    assert [version.number for version in first] == list(range(1, 21))
    assert {version.text for version in first} == {f"text {number}" for number in range(20)}
    lines = [line async for line in memories[0].export(user_id="ann")]
    await memories[1].import_(lines, user_id="bob")
    assert await memories[0].block_history("plan", user_id="bob") == first
    await memories[0].forget("block:plan", user_id="ann")
    assert [line async for line in memories[1].export(user_id="ann")][1:] == []
    assert await memories[0].block_history("plan", user_id="bob") == first
