"""The checkpoint stores keep every law of the protocol."""

import tempfile
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from loom.errors import StoreConflict, StoreUnavailable, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.stores.files import FileCheckpointStore
from loom.stores.inmemory import MemoryCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore
from loom.testing.conformance import CheckpointStoreMachine, CheckpointStoreSuite
from loom.testing.conformance.checkpoint_store import CHAT, a_checkpoint, save, save_turns
from tests.stores.session_ids import check_session_ids

pytestmark = pytest.mark.anyio

# Checked by pyright, signatures included.
stores: list[CheckpointStore] = [MemoryCheckpointStore(), FileCheckpointStore("x"), SqliteCheckpointStore(":memory:")]
forking: list[Forks] = [MemoryCheckpointStore(), FileCheckpointStore("x"), SqliteCheckpointStore(":memory:")]
pruning: list[PrunesCheckpoints] = [
    MemoryCheckpointStore(),
    FileCheckpointStore("x"),
    SqliteCheckpointStore(":memory:"),
]


class TestMemory(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(MemoryCheckpointStore(clock=clock)) as store:
            yield store


class TestFiles(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        async with aclosing(FileCheckpointStore(tmp_path / "sessions", clock=clock)) as store:
            yield store


class TestSqlite(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        async with SqliteCheckpointStore(tmp_path / "sessions.db", clock=clock) as store:
            yield store


class TestSqliteInMemory(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with SqliteCheckpointStore(":memory:", clock=clock) as store:
            yield store


class MemoryMachine(CheckpointStoreMachine):
    is_durable = False

    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(MemoryCheckpointStore(clock=clock)) as store:
            yield store


class FolderMachine(CheckpointStoreMachine):
    """A machine whose store lives in a folder of its own."""

    folder = None

    def place(self):
        if self.folder is None:
            self.folder = tempfile.TemporaryDirectory()
        return Path(self.folder.name)

    def teardown(self):
        super().teardown()
        if self.folder is not None:
            self.folder.cleanup()


class FileMachine(FolderMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(FileCheckpointStore(self.place() / "sessions", clock=clock)) as store:
            yield store


class SqliteMachine(FolderMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with SqliteCheckpointStore(self.place() / "sessions.db", clock=clock, durability="fast") as store:
            yield store


quick = settings(max_examples=50, stateful_step_count=25, deadline=None)
TestMemoryModel = MemoryMachine.TestCase
TestMemoryModel.settings = quick
TestFileModel = FileMachine.TestCase
TestFileModel.settings = quick
TestSqliteModel = SqliteMachine.TestCase
TestSqliteModel.settings = quick


def opened(kind, folder):
    if kind == "files":
        return FileCheckpointStore(folder / "sessions")
    return SqliteCheckpointStore(folder / "sessions.db") if kind == "sqlite" else MemoryCheckpointStore()


every = pytest.mark.parametrize("kind", ["memory", "files", "sqlite"])
durable = pytest.mark.parametrize("kind", ["files", "sqlite"])


@every
async def test_a_closed_store_says_so(kind, tmp_path):
    store = opened(kind, tmp_path)
    await save(store, CHAT, "c1", "tea")
    await store.aclose()
    await store.aclose()
    with pytest.raises(UsageError, match="closed"):
        await store.load(CHAT)
    with pytest.raises(UsageError, match="closed"):
        await store.save(CHAT, a_checkpoint("c2"), entries=(), head="c1")


@every
async def test_a_session_id_is_a_scope_of_the_default_user(kind, tmp_path):
    async with aclosing(opened(kind, tmp_path)) as store:
        await check_session_ids(store)


@durable
async def test_two_stores_of_one_place_see_each_other(kind, tmp_path):
    async with aclosing(opened(kind, tmp_path)) as one, aclosing(opened(kind, tmp_path)) as two:
        first = await save(one, CHAT, "c1", "tea")
        assert await two.load(CHAT) == first
        second = await save(two, CHAT, "c2", "milk", after=first)
        with pytest.raises(StoreConflict):
            await one.save(CHAT, a_checkpoint("c3", position=1, parent="c1"), entries=(), head="c1")
        assert await one.load(CHAT) == second
        await two.forget(CHAT)
        assert await one.load(CHAT) is None
        await save_turns(two, CHAT, "c1", "c2")
        assert len(await one.history(CHAT, "c2")) == 4


@durable
async def test_a_place_that_cannot_be_written_is_unavailable(kind, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    store = opened(kind, tmp_path / "file")
    with pytest.raises(StoreUnavailable):
        await save(store, CHAT, "c1", "tea")
    await store.aclose()
