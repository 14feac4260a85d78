"""Users whose names are almost the one that was asked for, for operators."""

import pytest

from loom import Scope, open_memory
from loom.admin.maintenance import SIMILAR, similar_users

pytestmark = pytest.mark.anyio


async def similar(memory, name):
    return [one.user_id for one in await similar_users(memory.store, Scope(user_id=name))]


@pytest.fixture
async def memory(place):
    async with place() as memory:
        yield memory


@pytest.mark.parametrize("asked", ["Alice", "alice ", " a l i c e", "alic", "alicee", "alcie", "alyce", "ALICE"])
async def test_case_spaces_and_one_letter(memory, asked):
    for name in ("alice", "bob", "alexander", "al"):
        await memory.remember("Tea.", user_id=name)
    assert await similar(memory, asked) == ["alice"]


@pytest.mark.parametrize("asked", ["alice", "alcei", "alicexy", "li", "x", "bo"])
async def test_what_differs_in_more_is_not_similar(memory, asked):
    await memory.remember("Tea.", user_id="alice")
    await memory.remember("Tea.", user_id="b")
    assert await similar(memory, asked) == []


async def test_other_namespaces_are_not_read(memory):
    for space in ("a", "default", "z"):
        await memory.view(namespace=space).remember("Tea.", user_id=f"Alice{space[0]}")
    assert await similar(memory, "aliced") == ["Aliced"]
    assert await similar(memory, "alice") == ["Aliced"]


async def test_the_nearest_come_first_with_their_records_and_only_a_few(memory):
    for letter in "qrstuvw":
        await memory.remember("Tea.", user_id=f"anna{letter}")
    await memory.remember(["Green tea.", "Coffee with milk."], user_id="ANNA")
    found = await similar_users(memory.store, Scope(user_id="anna"))
    assert found[0] == ("ANNA", 2)
    assert len(found) == SIMILAR


async def test_more_users_than_one_page():
    async with open_memory("inmemory", embedder="hash") as memory:
        for number in range(1005):
            await memory.set_block("n", "x", user_id=f"user-{number:05}")
        assert (await similar(memory, "USER-01004"))[0] == "user-01004"
