"""The embedded engine of Qdrant keeps every law of a vector store, alone and beside SQLite."""

import sys
from contextlib import asynccontextmanager

import pytest
from hypothesis import settings

from loom.core.filter import Eq
from loom.errors import MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.protocols.vector_store import VectorItem
from loom.stores.qdrant import QdrantVectorStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite, VectorStoreSuite
from loom.testing.conformance.suite import ALICE
from loom.testing.fakes import START
from loom.wrappers.indexed import IndexedStore
from tests.stores.engine_laws import EngineLaws
from tests.stores.engines import needs_package
from tests.stores.index_laws import IndexLaws

pytestmark = [pytest.mark.anyio, needs_package("qdrant_edge")]


@pytest.fixture
async def edge(tmp_path):
    """Makes stores in one folder, and closes them."""
    made = []

    def opened(**named):
        made.append(QdrantVectorStore(f"edge:{tmp_path}/edge", **named))
        return made[-1]

    yield opened
    for store in made:
        await store.aclose()


class TestFolder(EngineLaws, VectorStoreSuite):
    @pytest.fixture
    async def store(self, edge):
        return edge()


class TestLaws(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path, edge):
        primary = SqliteStore(tmp_path / "memory.db", clock=clock, durability="fast")
        async with IndexedStore(primary, edge(), clock=clock) as store:
            yield store


class TestIndex(IndexLaws):
    child = "from loom.stores.qdrant import QdrantVectorStore; index = QdrantVectorStore(f'edge:{folder}')"

    def open_index(self, folder):
        return QdrantVectorStore(f"edge:{folder}")


def test_a_model_of_a_memory_store_agrees(tmp_path):
    names = iter(range(1000))

    class Machine(MemoryStoreMachine):
        @asynccontextmanager
        async def open_store(self, clock):
            index = QdrantVectorStore(f"edge:{tmp_path}/{next(names)}")
            async with IndexedStore(SqliteStore(":memory:", clock=clock), index, clock=clock) as store:
                await store.bind("machine:1:2", 2)
                yield store

    Machine.TestCase.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
    Machine.TestCase("runTest").runTest()


async def test_what_is_in_a_folder_stays(edge):
    store = edge()
    await store.bind("e:1:2", 2)
    await store.upsert(ALICE, [VectorItem("a", [1.0, 0.0], {"n": 1, "at": START})])
    await store.aclose()
    store = edge()
    assert await store.bound() == ("e:1:2", 2)
    (hit,) = await store.search(ALICE, [1.0, 0.0], where=Eq("meta.at", START))
    assert dict(hit.attributes) == {"n": 1, "at": START}


async def test_a_folder_belongs_to_one_store_at_a_time(edge):
    first, second = edge(), edge()
    await first.bind("e:1:2", 2)
    with pytest.raises(StoreUnavailable, match="is open in process"):
        await second.bind("e:1:2", 2)
    await first.aclose()
    await second.bind("e:1:2", 2)
    await second.aclose()
    with pytest.raises(UsageError, match="closed"):
        await second.bound()


async def test_collections_never_meet_and_stay_in_their_folder(edge, tmp_path):
    """Whatever their names."""
    names = ["loom", "../loom", "..", "/loom", "Loom", "loom "]
    stores = [edge(collection=name) for name in names]
    for number, store in enumerate(stores):
        await store.upsert(ALICE, [VectorItem(str(number), [1.0, 0.0])])
    for number, store in enumerate(stores):
        assert await store.ids(ALICE) == (str(number),)
    assert [file.name for file in tmp_path.iterdir()] == ["edge"]
    await stores[0].clear()
    assert (await stores[0].ids(ALICE), await stores[1].ids(ALICE)) == ((), ("1",))


async def test_one_who_died_while_making_it_leaves_no_collection(edge, tmp_path):
    """Its points without the file that says whose they are; and that file without its points is said to be damaged."""
    store = edge()
    await store.upsert(ALICE, [VectorItem("old", [1.0, 0.0, 0.0])])
    await store.aclose()
    (about,) = tmp_path.rglob("loom.json")
    about.unlink()
    store = edge()
    assert (await store.bound(), await store.users()) == (None, ())
    await store.upsert(ALICE, [VectorItem("new", [1.0, 0.0])])
    assert await store.ids(ALICE) == ("new",)
    await store.aclose()
    about.parent.joinpath("points").rename(tmp_path / "elsewhere")
    store = edge()
    with pytest.raises(StoreError, match=r"cannot be read.* delete it"):
        await store.ids(ALICE)
    await store.clear()
    assert await store.ids(ALICE) == ()


async def test_a_missing_engine_is_said_with_its_extra(edge, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    with pytest.raises(MissingExtra, match=r"loom-context\[qdrant-edge\]|qdrant-edge"):
        await edge().users()
    assert list(tmp_path.iterdir()) == []
