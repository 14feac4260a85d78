"""A copy of a user that starts from a snapshot is the one that was read row by row, and nothing outlives its removal."""

import gc
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from types import FunctionType, ModuleType

import numpy as np
import pytest

from loom.protocols.memory_store import Query
from loom.stores.redis import search
from loom.testing.conformance import ErasureSuite, MemoryStoreSuite
from loom.testing.conformance.suite import ALICE, BOB, an_episode, ids_of, listed
from loom.testing.fakes import FakeClock
from tests.memory.test_erasure import opened
from tests.stores.redis.conftest import cluster_store, new_store, twin_of

pytestmark = pytest.mark.anyio

SPOKEN = ["the red boat", "a boat at sea", "the garden is green", "tea in the garden", "a green boat"]


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Every copy that reads rows leaves a snapshot, in small parts."""
    monkeypatch.setattr(search, "_LEAST_ROWS", 1)
    monkeypatch.setattr(search, "_PART", 512)


@pytest.fixture
def no_copies(monkeypatch):
    """Nothing is held: each call begins with the snapshot."""
    monkeypatch.setattr(search.LocalCopies, "_settle", search.LocalCopies._drop)


@pytest.mark.usefixtures("no_copies")
class TestFromSnapshots(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(new_store(clock)) as store:
            yield store


@pytest.mark.usefixtures("no_copies")
class TestErasureFromSnapshots(ErasureSuite):
    stride = 3

    @pytest.fixture
    async def memories(self):
        one = new_store()
        async with AsyncExitStack() as stack:
            yield await opened(stack, one, twin_of(one))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=[new_store, cluster_store])
async def store(request, clock):
    async with aclosing(request.param(clock)) as store:
        await store.bind("m:1:2", 2)
        await store.put(ALICE, *(an_episode(f"e{place}", text=text) for place, text in enumerate(SPOKEN)))
        await store.put_keys(ALICE, {"e1": {"around": "waves and sails"}, "e3": {"around": "cups"}})
        await store.put_vectors(ALICE, {f"e{place}": [1.0, place] for place in range(4)})
        yield store


def another(store, clock):
    """The store as another process would open it."""
    if store._names.is_spread:
        return cluster_store(clock, prefix=store._names.prefix)
    return twin_of(store, clock=clock)


async def answers(store):
    """What searches and lists say, scores and reasons included."""
    asked = [Query(text=text) for text in ("boat", "green tea", "sails cups", "storm")]
    asked.append(Query(text="boat garden sails", vector=[1.0, 2.0], limit=9))
    answered = [await store.search(ALICE, query) for query in asked]
    return [[(hit.item, hit.score, hit.why) for hit in hits] for hits in answered], await listed(store, ALICE)


async def rows_read(store, monkeypatch):
    """How many rows a search reads, beside the snapshot."""
    read = []
    take = search.LocalCopy.take
    with monkeypatch.context() as patch:
        patch.setattr(search.LocalCopy, "take", lambda copy, rows, left: [read.extend(rows), take(copy, rows, left)][1])
        await store.search(ALICE, Query(text="boat"))
    return len(read)


async def snapshot(store):
    return await store._link.call("HGETALL", store._names.user(ALICE).snapshot)


async def test_a_copy_from_a_snapshot_answers_like_one_of_rows(store, clock, monkeypatch):
    due = await answers(store)
    assert len(await snapshot(store)) > 3
    async with aclosing(another(store, clock)) as two:
        assert await rows_read(two, monkeypatch) == 0
        assert await answers(two) == due


async def test_what_came_later_is_read_on_top(store, clock, monkeypatch):
    await answers(store)
    await store.put(ALICE, an_episode("e5", text="another red boat"))
    await store.put_keys(ALICE, {"e1": {"around": "waves and sails\nand storm"}})
    await store.put_vectors(ALICE, {"e4": [0.5, 1.0]})
    await store.touch(ALICE, "e0", at=clock.now())
    due = await answers(store)
    async with aclosing(another(store, clock)) as two:
        assert await rows_read(two, monkeypatch) == 4
        assert await answers(two) == due
    # It had read most of the user row by row, and left a snapshot of its own.
    async with aclosing(another(store, clock)) as three:
        assert await rows_read(three, monkeypatch) == 0
        assert await answers(three) == due


REMOVALS = {
    "delete": lambda store: store.delete(ALICE, "e1"),
    "another text": lambda store: store.put(ALICE, an_episode("e1", text="nothing of it")),
    "another key": lambda store: store.put_keys(ALICE, {"e1": {"around": "cups"}}),
    "no key": lambda store: store.put_keys(ALICE, {"e1": {"around": ""}}),
    "forget": lambda store: store.forget(ALICE),
    "rebind": lambda store: store.rebind("m:2:2", 2),
}


async def test_no_snapshot_holds_an_attribute_or_a_speaker_that_was_taken_back(store, clock):
    await answers(store)
    held = an_episode("told", "the sea is calm", attributes={"phone": "4711", "topic": "sea"}, speaker="Anna")
    for left in (replace(held, attributes={"topic": "sea"}), replace(held, speaker=None)):
        await store.put(ALICE, held)
        async with aclosing(another(store, clock)) as two:
            await answers(two)
        await store.touch(ALICE, "told", at=clock.now())
        await store.put(ALICE, left)
        assert await snapshot(store) == {}


@pytest.mark.parametrize("removal", REMOVALS)
async def test_no_snapshot_holds_what_was_removed(store, clock, removal):
    await answers(store)
    async with aclosing(another(store, clock)) as two:
        await answers(two)
        await REMOVALS[removal](store)
        assert await snapshot(store) == {}
        due = [await ids_of(two, ALICE, text) for text in ("sea", "sails")]
        async with aclosing(another(store, clock)) as three:
            assert [await ids_of(three, ALICE, text) for text in ("sea", "sails")] == due


def held_by(thing, seen):
    """All text that an object holds, as bytes; not what its code and its types hold."""
    if id(thing) in seen or isinstance(thing, type | FunctionType | ModuleType):
        return
    seen[id(thing)] = thing
    if isinstance(thing, str | bytes | bytearray):
        yield thing.encode() if isinstance(thing, str) else bytes(thing)
    elif isinstance(thing, memoryview):
        yield bytes(thing.obj)
    elif isinstance(thing, np.ndarray):
        yield from held_by(thing.base, seen)
    for other in gc.get_referents(thing):
        yield from held_by(other, seen)


WORDS = {"delete": (b"sea", b"sail"), "another text": (b"sea",), "another key": (b"sail",), "no key": (b"sail",)}


@pytest.mark.parametrize("removal", WORDS)
async def test_no_copy_from_a_snapshot_holds_what_was_removed(store, clock, removal):
    await answers(store)
    async with aclosing(another(store, clock)) as two:
        await ids_of(two, ALICE, "tea")
        (copy,) = two._copies._held.values()
        before = b" ".join(held_by(copy.records, {}))
        assert all(word in before for word in WORDS[removal])
        await REMOVALS[removal](store)
        due = await answers(store)
        assert await answers(two) == due
        assert [*two._copies._held.values()] == [copy], "it was not read anew"
        after = b" ".join(held_by(copy.records, {}))
        assert b"garden" in after
        assert not any(word in after for word in WORDS[removal])


async def test_an_older_snapshot_is_not_used_once_something_was_removed(store, clock):
    await answers(store)
    held, key = await snapshot(store), store._names.user(ALICE).snapshot
    await store.delete(ALICE, "e1")
    await store._link.call("HSET", key, *(part for both in held.items() for part in both))
    async with aclosing(another(store, clock)) as two:
        assert "e1" not in await listed(two, ALICE)
        assert await ids_of(two, ALICE, "sea sails") == []


@pytest.mark.parametrize("part", ["0", "head"])
@pytest.mark.parametrize("data", [b"", b"\0" * 400, b"\xff" * 512, b"[2]"])
async def test_a_damaged_snapshot_is_not_used(store, clock, part, data):
    due = await answers(store)
    await store._link.call("HSET", store._names.user(ALICE).snapshot, part, data)
    async with aclosing(another(store, clock)) as two:
        assert await answers(two) == due


async def test_a_user_has_no_part_in_the_snapshot_of_another(store):
    await answers(store)
    await store.put(BOB, an_episode("e1", text="a boat of Bob"))
    assert await ids_of(store, BOB, "boat") == ["e1"]
    await store.forget(BOB)
    assert await snapshot(store) != {}
