"""The checkpoint store in Postgres keeps every law of the protocol."""

from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import settings

from loom.errors import FormatTooNew, StoreConflict
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.stores.postgres import PostgresCheckpointStore, PostgresStore
from loom.testing.conformance import CheckpointStoreMachine, CheckpointStoreSuite
from loom.testing.conformance.checkpoint_log import a_record
from loom.testing.conformance.checkpoint_store import CHAT, a_checkpoint, a_message, save, save_turns, texts_of
from loom.testing.conformance.suite import ALICE, an_episode
from tests.stores.appending import check_processes
from tests.stores.postgres.conftest import started
from tests.stores.session_ids import check_session_ids

pytestmark = pytest.mark.anyio

# Checked by pyright, signatures included.
as_checkpoints: CheckpointStore = PostgresCheckpointStore("postgresql:")
as_forking: Forks = PostgresCheckpointStore("postgresql:")
as_pruning: PrunesCheckpoints = PostgresCheckpointStore("postgresql:")


class TestPostgres(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock, server):
        async with PostgresCheckpointStore(server.app, clock=clock) as store:
            yield store


class TestWithoutRowSecurity(CheckpointStoreSuite):
    """As a superuser, whom row-level security does not bind: the statements alone keep every law."""

    @pytest.fixture
    async def store(self, clock, server):
        async with PostgresCheckpointStore(server.admin, clock=clock, allow_owner=True) as store:
            yield store


class PostgresMachine(CheckpointStoreMachine):
    is_new = True

    @asynccontextmanager
    async def open_store(self, clock):
        server = started()
        if self.is_new:
            self.is_new = False
            server.empty()
        async with PostgresCheckpointStore(server.app, clock=clock) as store:
            yield store


TestPostgresModel = PostgresMachine.TestCase
TestPostgresModel.settings = settings(max_examples=10, stateful_step_count=25, deadline=None)


async def test_memory_and_sessions_share_a_schema_and_are_forgotten_apart(server):
    async with PostgresCheckpointStore(server.app) as sessions, PostgresStore(server.app) as memory:
        await save_turns(sessions, CHAT, "c1", "c2")
        await memory.put(ALICE, an_episode())
        await memory.forget(ALICE)
        await save(sessions, CHAT, "c3", "more", after=await sessions.load(CHAT))
        assert len(await texts_of(sessions, CHAT, "c3")) == 5
        receipt = await sessions.forget(ALICE)
        assert "loom store sweep" in receipt.pending[-1]
        assert set(server.rows().values()) == {0}


async def test_of_writers_in_many_stores_one_goes_on(server):
    stores = [PostgresCheckpointStore(server.app, pool_size=2) for _ in range(3)]
    first = await save(stores[0], CHAT, "c1", "first")
    won = []

    async def write(store, number):
        try:
            mine = a_checkpoint(f"d{number}", position=2, parent="c1")
            await store.save(CHAT, mine, entries=[a_message(f"m{number}", f"mine {number}")], head=first.id)
            won.append(number)
        except StoreConflict:
            pass

    async with anyio.create_task_group() as tasks:
        for number in range(9):
            tasks.start_soon(write, stores[number % 3], number)
    assert len(won) == 1
    assert await texts_of(stores[0], CHAT, f"d{won[0]}") == ["first", f"mine {won[0]}"]
    for store in stores:
        await store.aclose()


async def test_equal_parts_are_stored_once_and_go_with_their_last_use(server):
    async with PostgresCheckpointStore(server.app) as store:
        first = await save(store, CHAT, "c1", "same")
        await save(store, CHAT, "c2", "same", after=first)
        assert server.execute("SELECT uses FROM loom.checkpoint_parts") == [(2,)]
        await store.delete(CHAT, "c2")
        assert server.execute("SELECT uses FROM loom.checkpoint_parts") == [(1,)]
        await store.delete(CHAT, "c1")
        assert server.execute("SELECT uses FROM loom.checkpoint_parts") == []


async def test_a_checkpoint_of_a_newer_format_is_refused(server):
    async with PostgresCheckpointStore(server.app) as store:
        await save(store, CHAT, "c1", "tea")
        newer = (
            "convert_to(replace(convert_from(data, 'UTF8'), '\"format_version\":2', '\"format_version\":99'), 'UTF8')"
        )
        server.execute(f"UPDATE loom.checkpoint_nodes SET data = {newer}")
        with pytest.raises(FormatTooNew):
            await store.load(CHAT)


async def test_a_session_id_is_a_scope_of_the_default_user(server):
    async with PostgresCheckpointStore(server.app) as store:
        await check_session_ids(store)


@pytest.mark.parametrize("once", [False, True], ids=["each", "once"])
async def test_two_processes_that_append_lose_nothing(once, server):
    await check_processes(server.app, once=once)


async def test_bytes_are_stored_as_they_are_and_go_with_the_session(server):
    body, value = bytes(range(256)), {"n": "1" * 1000}  # a small value stands in its entry
    async with PostgresCheckpointStore(server.app) as store:
        await store.append(CHAT, [a_record("r1", body), a_record("r2", value), a_record("small", {"n": 1})], once=True)
        await store.append(CHAT, [a_record("r1", body), a_record("r3", value)], once=True, attributes={"run": "x"})
        parts = server.execute("SELECT body FROM loom.checkpoint_parts ORDER BY uses")
        assert parts == [(body,), (b'{"n":"%s"}' % (b"1" * 1000),)]
        rows = server.rows()
        assert (rows["checkpoint_entry_ids"], rows["checkpoint_indexed"]) == (3, 1)
        await store.forget(CHAT)
        assert {table for table, amount in server.rows().items() if amount} == {"marks"}  # of the user's writes
