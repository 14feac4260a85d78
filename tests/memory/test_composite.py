"""Layers over different stores: every law of a store holds, and what moves between stores is never lost or doubled."""

from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from hypothesis import settings

from loom import CompositeMemory
from loom.core.filter import Eq
from loom.core.record import Layer
from loom.engine import open_memory
from loom.errors import LoomError, NotFound, UsageError
from loom.protocols.memory_store import (
    ExportsKeys,
    KeepsJobs,
    KeepsKeys,
    KeepsVectors,
    MemoryStore,
    Prunes,
    Query,
    Reembeds,
    Touches,
)
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore
from loom.testing import FakeClock
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.testing.conformance.suite import ALICE, BOB, a_block, a_fact, a_job, an_episode
from loom.testing.fakes import START
from loom.wrappers.composite import CompositeStore

pytestmark = pytest.mark.anyio

# Checked by pyright, signatures included.
_STORE = CompositeStore(InMemoryStore(), {})
as_memory: MemoryStore = _STORE
as_pruning: Prunes = _STORE
as_touching: Touches = _STORE
as_vectors: KeepsVectors = _STORE
as_keys: KeepsKeys = _STORE
as_reembedding: Reembeds = _STORE
as_handing_over: ExportsKeys = _STORE
as_jobs: KeepsJobs = _STORE


def ram_over_ram(clock):
    """Three stores: L1, then L2 and L3, then the primary store."""
    middle = InMemoryStore(clock=clock)
    layers = {Layer.L1: InMemoryStore(clock=clock), Layer.L2: middle, Layer.L3: middle}
    return CompositeStore(InMemoryStore(clock=clock), layers)


def ram_over_sqlite(clock, path=":memory:"):
    """L1 and L2 in memory, the rest in a file."""
    hot = InMemoryStore(clock=clock)
    return CompositeStore(SqliteStore(path, clock=clock), {Layer.L1: hot, Layer.L2: hot})


class TestRamOverRam(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(ram_over_ram(clock)) as store:
            yield store


class TestRamOverSqlite(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        async with aclosing(ram_over_sqlite(clock, tmp_path / "memory.db")) as store:
            yield store


class RamOverRamMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(ram_over_ram(clock)) as store:
            yield store


class RamOverSqliteMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(ram_over_sqlite(clock)) as store:
            yield store


TestRamOverRamModel = RamOverRamMachine.TestCase
TestRamOverRamModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRamOverSqliteModel = RamOverSqliteMachine.TestCase
TestRamOverSqliteModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.fixture
def clock():
    return FakeClock()


class Stores:
    """A composite store, with its parts in sight."""

    def __init__(self, clock):
        self.hot, self.primary = InMemoryStore(clock=clock), InMemoryStore(clock=clock)
        self.both = CompositeStore(self.primary, {Layer.L1: self.hot, Layer.L2: self.hot})

    async def where(self, id):
        """In which of the two stores a record is."""
        pairs = (("hot", self.hot), ("primary", self.primary))
        return [name for name, store in pairs if await store.get(ALICE, id) is not None]


@pytest.fixture
async def stores(clock):
    made = Stores(clock)
    await made.both.bind("test:1:2", 2)
    return made


async def everything(store):
    """All that the primary store of a user is: records, what finds them, and open jobs."""
    records = await store.list(ALICE, limit=1000)
    found = await store.search_keys(ALICE, *(record.id for record in records))
    vectors = {id: None if how.vector is None else [round(x, 6) for x in how.vector] for id, how in found.items()}
    return records, found, vectors, await store.pending(ALICE)


async def filled(stores):
    """One record with all that finds it in each of the two stores."""
    await stores.both.put(ALICE, an_episode("low"), an_episode("high", layer=Layer.L3))
    await stores.both.put_keys(ALICE, {"low": {"around": "zeppelin"}, "high": {"around": "garden"}})
    await stores.both.put_vectors(ALICE, {"low": [1.0, 0.0], "high": [0.0, 1.0]})


async def test_each_record_is_in_the_store_of_its_layer(stores):
    episodes = [an_episode(layer.label, layer=layer) for layer in Layer]
    await stores.both.put(ALICE, *episodes, an_episode("old", archived_at=START), a_fact(), a_block())
    found = {id: await stores.where(id) for id in ("L1", "L2", "L3", "L4", "old", "f1", "block:persona")}
    assert found == {
        "L1": ["hot"], "L2": ["hot"], "L3": ["primary"], "L4": ["primary"], "old": ["primary"], "f1": ["primary"],
        "block:persona": ["primary"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("id", "change", "place"),
    [
        ("low", {"layer": Layer.L2}, "hot"),
        ("low", {"layer": Layer.L3}, "primary"),
        ("low", {"archived_at": START}, "primary"),
        ("high", {"layer": Layer.L1}, "hot"),
        ("high", {"layer": Layer.L4}, "primary"),
    ],
)
async def test_a_move_takes_keys_and_vector_along(stores, id, change, place):
    await filled(stores)
    _, found, vectors, _ = await everything(stores.both)
    moved = replace(await stores.both.get(ALICE, id), **change)
    await stores.both.put(ALICE, moved)
    assert await stores.where(id) == [place]
    assert await stores.both.get(ALICE, id) == moved
    assert (await everything(stores.both))[1:3] == (found, vectors)


async def test_a_move_with_another_text_leaves_the_vector_behind(stores):
    await filled(stores)
    await stores.both.put(ALICE, an_episode("low", "a piano", layer=Layer.L4))
    found = await stores.both.search_keys(ALICE, "low")
    assert (found["low"].keys, found["low"].vector) == ({"around": "zeppelin"}, None)


async def test_what_is_deleted_and_put_in_one_write_keeps_nothing(stores):
    await filled(stores)
    for id, layer in (("low", Layer.L1), ("high", Layer.L1), ("low", Layer.L4)):
        await stores.both.put_keys(ALICE, {id: {"fact": "winter"}})
        await stores.both.write(ALICE, delete=[id], put=[an_episode(id, layer=layer)])
        assert (await stores.both.search_keys(ALICE, id))[id].keys == {}
        assert len(await stores.where(id)) == 1


async def test_what_is_pruned_goes_to_the_archive_in_the_primary(stores):
    await filled(stores)
    assert await stores.both.prune(ALICE, layer=Layer.L1, keep=0) == ("low",)
    assert await stores.where("low") == ["primary"]
    assert (await stores.both.search_keys(ALICE, "low"))["low"].keys == {"around": "zeppelin"}


class Crash(BaseException):
    """The process ends here."""


class Crashing(InMemoryStore):
    """A store at whose nth change the process ends."""

    left = None

    async def _write(self, scope, write):
        self.count_down()
        return await super()._write(scope, write)

    async def _put_vectors(self, scope, vectors):
        self.count_down()
        await super()._put_vectors(scope, vectors)

    def count_down(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash


MOVES = {
    "up": [an_episode("low", layer=Layer.L3)],
    "down": [an_episode("high", layer=Layer.L1)],
    "both ways": [an_episode("low", layer=Layer.L4), an_episode("high", layer=Layer.L2)],
    "to the archive": [an_episode("low", archived_at=START)],
}


@pytest.mark.parametrize("moved", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("who", ["hot", "primary"])
async def test_a_crash_in_a_move_neither_loses_nor_doubles(clock, moved, step, who):
    hot, primary = Crashing(clock=clock), Crashing(clock=clock)
    both = CompositeStore(primary, {Layer.L1: hot, Layer.L2: hot})
    before = [an_episode("low"), an_episode("high", layer=Layer.L3)]
    await both.put(ALICE, *before)
    {"hot": hot, "primary": primary}[who].left = step
    with suppress(Crash):
        await both.put(ALICE, *moved)
    hot.left = primary.left = None
    again = CompositeStore(primary, {Layer.L1: hot, Layer.L2: hot})
    listed = await again.list(ALICE)
    allowed = {id: [r for r in (*before, *moved) if r.id == id] for id in ("high", "low")}
    assert [record.id for record in listed] == ["high", "low"]
    assert all(record in allowed[record.id] for record in listed)
    assert await again.count(ALICE) == 2
    hits = await again.search(ALICE, Query(text="tea", archived=True, limit=2))
    assert sorted(hit.item.id for hit in hits) == ["high", "low"]
    assert [await again.get(ALICE, record.id) for record in listed] == list(listed)
    await again.put(ALICE, *moved)
    expected = {r.id: r for r in (*before, *moved)}
    assert list(await again.list(ALICE)) == [expected["high"], expected["low"]]
    assert await hot.count(ALICE) + await primary.count(ALICE) == 2


async def left_twice(stores, text="tea of old"):
    """What a crash leaves: the old copy of a record that moved up."""
    await stores.both.put(ALICE, an_episode("e1", "tea anew", layer=Layer.L3))
    await stores.hot.put(ALICE, an_episode("e1", text, session_id="s1"))


async def test_of_two_copies_the_truth_counts(stores):
    await left_twice(stores)
    assert (await stores.both.get(ALICE, "e1")).text == "tea anew"
    assert await stores.both.get(ALICE.for_session("s1"), "e1") is None
    assert [r.text for r in await stores.both.list(ALICE)] == ["tea anew"]
    assert await stores.both.count(ALICE) == await stores.both.count_unembedded() == 1
    assert [record.text for _, record in await stores.both.unembedded(limit=1)] == ["tea anew"]
    assert [hit.item.text for hit in await stores.both.search(ALICE, Query(text="tea old"))] == ["tea anew"]
    assert await stores.both.search(ALICE, Query(text="old")) == ()


async def test_of_two_copies_outside_the_truth_that_of_the_higher_layer_counts(clock):
    low, high = InMemoryStore(clock=clock), InMemoryStore(clock=clock)
    both = CompositeStore(InMemoryStore(clock=clock), {Layer.L1: low, Layer.L2: high})
    await low.put(ALICE, an_episode())
    await high.put(ALICE, an_episode(layer=Layer.L2))
    assert list(await both.list(ALICE)) == [await both.get(ALICE, "e1")] == [an_episode(layer=Layer.L2)]


async def test_copies_that_do_not_count_take_nobodys_place(stores):
    for n in range(20):
        await stores.both.put(ALICE, an_episode(f"a{n:02}", "a piano", layer=Layer.L3))
        await stores.hot.put(ALICE, an_episode(f"a{n:02}", "tea tea tea"))
    await stores.both.put(ALICE, an_episode("z1", "tea with milk"), an_episode("z2", "tea with sugar"))
    assert [h.item.id for h in await stores.both.search(ALICE, Query(text="tea", limit=2))] == ["z1", "z2"]
    assert [r.id for r in await stores.both.list(ALICE, where=Eq("layer", Layer.L1), limit=1)] == ["z1"]
    assert await stores.both.count(ALICE, where=Eq("layer", Layer.L1)) == 2


@pytest.mark.parametrize("call", ["delete", "put", "put_keys", "prune"])
async def test_the_next_change_takes_the_copy_away(stores, call):
    await left_twice(stores)
    calls = {
        "delete": lambda: stores.both.delete(ALICE, "e1"),
        "put": lambda: stores.both.put(ALICE, an_episode("e1", "tea anew", layer=Layer.L4)),
        "put_keys": lambda: stores.both.put_keys(ALICE, {"e1": {"fact": "tea"}}),
        "prune": lambda: stores.both.prune(ALICE, layer=Layer.L1, keep=0),
    }
    result = await calls[call]()
    assert result in {None, 1, ()}
    assert await stores.hot.get(ALICE, "e1") is None
    assert (await stores.both.get(ALICE, "e1") is None) == (call == "delete")


BAD = {
    "a block": {"put": [a_block(version=5)]},
    "keys": {"keys": {"unknown": {"k": "tea"}}},
    "a job": {"jobs": [a_job("theirs", scope=BOB)]},
    "an episode": {"put": [an_episode("x", session_id="s2", layer=Layer.L4)]},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_what_the_truth_refuses_sets_the_layers_back(stores, bad):
    await filled(stores)
    await stores.both.put(ALICE, an_episode("mine", session_id="s1"))
    before = await everything(stores.both)
    given = {"put": [], "delete": ["mine"], "keys": {"mine": {"k": "winter"}}, "jobs": [a_job()]}
    given["put"] = [
        an_episode("mine", "a new text", session_id="s1"), an_episode("new", session_id="s1"),
        an_episode("high", session_id="s1"), an_episode("low", "elsewhere", layer=Layer.L3, session_id="s1"),
        *bad.get("put", []),
    ]  # fmt: skip
    given["keys"] |= bad.get("keys", {})
    given["jobs"] += bad.get("jobs", [])
    with pytest.raises(LoomError):
        await stores.both.write(ALICE.for_session("s1"), **given)
    assert await everything(stores.both) == before
    assert await stores.where("new") == []


async def test_one_bad_vector_and_none_is_written(stores):
    await filled(stores)
    before = await everything(stores.both)
    for good, bad in (("low", "high"), ("high", "low")):
        with pytest.raises(UsageError):
            await stores.both.put_vectors(ALICE, {good: [0.6, 0.8], bad: [1.0]})
        with pytest.raises(NotFound):
            await stores.both.put_vectors(ALICE, {good: [0.6, 0.8], "unknown": [1.0, 0.0]})
        assert await everything(stores.both) == before


async def test_a_write_that_is_cancelled_is_set_back(clock):
    class Slow(InMemoryStore):
        slow = False

        async def write(self, scope, **more):
            if self.slow:
                await anyio.sleep_forever()
            return await super().write(scope, **more)

    class Yielding(InMemoryStore):
        async def delete(self, scope, *ids):
            await anyio.lowlevel.checkpoint()
            return await super().delete(scope, *ids)

    hot, primary = Yielding(clock=clock), Slow(clock=clock)
    both = CompositeStore(primary, {Layer.L1: hot})
    await both.put(ALICE, an_episode())
    primary.slow = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(both.write, ALICE, put=[an_episode(text="changed"), an_episode("e2")], jobs=[a_job()]))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    primary.slow = False
    assert list(await both.list(ALICE)) == [an_episode()]


def test_a_store_that_lacks_a_power_is_refused():
    class Bare:
        """No store at all."""

    with pytest.raises(UsageError, match="Bare cannot be the primary store"):
        CompositeStore(Bare(), {})
    with pytest.raises(UsageError, match="Bare cannot keep L2"):
        CompositeStore(InMemoryStore(), {Layer.L2: Bare()})


@pytest.mark.parametrize(
    ("named", "homes"),
    [
        ({"l4": "a"}, "aaaa"),
        ({"l2": "a", "l4": "b"}, "aabb"),
        ({"l2": "a", "l3": "b", "l4": "c"}, "aabc"),
        ({"l1": "a", "l3": "b"}, "abbb"),
        ({"l1": "a"}, "aaaa"),
    ],
)
async def test_a_layer_without_a_store_lives_with_the_next_above(clock, named, homes):
    stores = {name: InMemoryStore(clock=clock) for name in set(homes)}
    memory = CompositeMemory(**{layer: stores[name] for layer, name in named.items()}, clock=clock)
    await memory.store.put(ALICE, *(an_episode(layer.label, layer=layer) for layer in Layer), a_fact())
    for layer, name in zip(Layer, homes, strict=True):
        assert await stores[name].get(ALICE, layer.label) is not None
    assert await stores[homes[-1]].get(ALICE, "f1") is not None
    with pytest.raises(UsageError, match="l4"):
        CompositeMemory()


async def test_a_composite_memory_is_a_memory(clock, tmp_path):
    where = {"backend": "composite", "layers": {"l2": "inmemory", "l4": f"sqlite:{tmp_path}/m.db"}, "embedder": "hash"}
    async with open_memory(where, clock=clock) as memory:
        await memory.remember("The code of the harbour gate is 4711.", user_id="alice", session_id="s1")
        for _ in range(3):
            await memory.recall("harbour gate code", user_id="alice")
        await memory.metabolize(user_id="alice")
        assert (await memory.stats(user_id="alice"))["L2"] == 1
        found = await memory.recall("harbour gate code", user_id="alice", layers=[Layer.L2])
        assert [hit.item.text for hit in found] == ["The code of the harbour gate is 4711."]
        await memory.promote(found.hits[0].item.id, user_id="alice", to=Layer.L4)
    # What was in memory is gone with the process; what was promoted or archived is not.
    async with open_memory(where, clock=clock) as memory:
        found = await memory.recall("harbour gate", user_id="alice", layers=[Layer.L4])
        assert [hit.item.text for hit in found] == ["The code of the harbour gate is 4711."]
        await memory.forget(user_id="alice")
        assert set((await memory.stats(user_id="alice")).values()) == {0}


@pytest.mark.parametrize(
    "bad",
    [
        {"backend": "composite"},
        {"backend": "composite", "layers": {}},
        {"backend": "composite", "layers": {"l5": "inmemory"}},
        {"backend": "composite", "layers": {"l4": "nowhere"}},
        {"backend": "composite", "layers": {"l4": "inmemory"}, "path": "x"},
        {"backend": "sqlite", "path": "x", "layers": {"l4": "inmemory"}},
    ],
    ids=str,
)
def test_layers_that_make_no_memory_are_refused(bad):
    with pytest.raises(UsageError):
        open_memory(bad)
