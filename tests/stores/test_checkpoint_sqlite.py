"""What the SQLite checkpoint store promises of its file."""

import shutil

import apsw
import pytest

from loom.core.scope import Scope
from loom.errors import FormatTooNew, StoreError
from loom.protocols.memory_store import Query
from loom.stores.sqlite import SqliteCheckpointStore, SqliteStore, checkpoints, schema
from loom.testing.conformance.checkpoint_store import CHAT, everything, ids_in, save, save_turns, texts_of
from loom.testing.conformance.suite import ALICE, an_episode
from tests.stores.sqlite_files import execute
from tests.stores.test_checkpoint_golden import GOLDEN

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sessions.db"


def rows_in(path):
    tables = ("users", "sessions", "nodes", "parts", "part_keys", "attributes")
    return [execute(path, f"SELECT count(*) FROM checkpoint_{table}")[0][0] for table in tables]


@pytest.mark.parametrize("memory_first", [True, False])
async def test_memory_and_checkpoints_share_a_file(path, memory_first):
    made = [SqliteStore(path), SqliteCheckpointStore(path)]
    async with made[not memory_first], made[memory_first]:
        memory, checkpoints = made
        first = None
        for n in range(20):
            await memory.put(ALICE, an_episode(f"e{n}"))
            first = await save(checkpoints, CHAT, f"c{n}", "tea", after=first)
        await memory.forget(ALICE)
        assert len(await texts_of(checkpoints, CHAT, "c19")) == 20
        await memory.put(ALICE, an_episode("e1"))
        await checkpoints.forget(ALICE)
        assert len(await memory.search(ALICE, Query(text="tea"))) == 1
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


async def test_a_file_of_its_own_has_small_pages(path):
    async with SqliteCheckpointStore(path):
        pass
    assert execute(path, "PRAGMA page_size") == [(512,)]
    assert execute(path, "PRAGMA journal_mode") == [("wal",)]


async def test_forgetting_leaves_no_byte_and_no_row(path):
    eve = Scope("n", "canary-user", "canary-session")
    async with SqliteCheckpointStore(path) as store:
        await save_turns(store, CHAT, "c1", "c2")
        due, before = await everything(store, ALICE), rows_in(path)
        last = await save(store, eve, "canary-id", "canary text", "canary " * 5_000)
        await save(store, eve, "c2", "canary text", after=last)
        fork = await store.fork(eve, "c2", session_id="canary-fork")
        await save(store, eve.for_session("canary-fork"), "c3", "canary end", after=fork)
        await store.delete(eve, "canary-id")
        files = list(path.parent.iterdir())
        assert b"canary" in b"".join(file.read_bytes() for file in files)
        assert (await store.forget(eve.for_user())).pending == ()
        assert b"canary" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert rows_in(path) == before
        assert await everything(store, ALICE) == due


async def test_an_open_reader_makes_the_receipt_say_what_is_pending(path, monkeypatch):
    monkeypatch.setattr("loom.stores.sqlite.file._SCRUB_MILLISECONDS", 1)
    async with SqliteCheckpointStore(path) as store:
        await save_turns(store, CHAT, "c1")
        reader = apsw.Connection(str(path))
        cursor = reader.execute("SELECT * FROM checkpoint_nodes")
        next(cursor)
        receipt = await store.forget(CHAT)
        assert "write-ahead log" in receipt.pending[0]
        cursor.close(True)
        reader.close()
        assert (await store.forget(CHAT)).pending == ()


async def test_equal_parts_are_stored_once_and_go_with_their_last_use(path):
    async with SqliteCheckpointStore(path) as store:
        first = await save(store, CHAT, "c1", "same", "same", "one")
        await save(store, ALICE.for_session("other"), "c1", "same")
        await save(store, Scope(user_id="bob", session_id="chat"), "c1", "same")
        assert rows_in(path)[3] == 3  # bob's part is not shared
        await save(store, CHAT, "c2", "same", "two", after=first)
        assert execute(path, "SELECT sum(uses) FROM checkpoint_part_keys") == [(7,)]
        await store.delete(CHAT, "c2")
        assert rows_in(path)[3] == 3
        await store.forget(CHAT)
        assert rows_in(path)[3] == 2
        assert await texts_of(store, ALICE.for_session("other"), "c1") == ["same"]


async def test_parts_with_equal_hashes_are_told_apart(path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_hash", lambda _: 7)
    async with SqliteCheckpointStore(path) as store:
        first = await save(store, CHAT, "c1", "tea", "milk", "tea")
        await save(store, CHAT, "c2", "milk", after=first)
        assert await texts_of(store, CHAT, "c2") == ["tea", "milk", "tea", "milk"]
        assert rows_in(path)[3] == 2
        await store.delete(CHAT, "c2")
        assert await texts_of(store, CHAT, "c1") == ["tea", "milk", "tea"]
        await store.forget(ALICE)
        assert rows_in(path) == [0, 0, 0, 0, 0, 0]


async def test_a_newer_format_is_refused_and_not_touched(path):
    async with SqliteCheckpointStore(path) as store:
        await save_turns(store, CHAT, "c1")
    execute(path, "UPDATE meta SET value = '4' WHERE name = 'checkpoints'")
    store = SqliteCheckpointStore(path)
    with pytest.raises(FormatTooNew, match="upgrade Loom"):
        await save(store, CHAT, "c2", "x")
    await store.aclose()
    execute(path, "UPDATE meta SET value = '3' WHERE name = 'checkpoints'")
    async with SqliteCheckpointStore(path) as store:
        assert await ids_in(store, CHAT) == ["c1"]


async def test_a_newer_checkpoint_in_the_file_is_refused(path):
    async with SqliteCheckpointStore(path) as store:
        await save_turns(store, CHAT, "c1")
        execute(path, "UPDATE checkpoint_nodes SET format = 3")
        with pytest.raises(FormatTooNew):
            await store.load(CHAT)


async def test_a_file_of_another_program_is_refused(path):
    execute(path, "CREATE TABLE theirs (x)")
    store = SqliteCheckpointStore(path)
    with pytest.raises(StoreError, match="another program"):
        await store.load(CHAT)
    await store.aclose()
    assert execute(path, "SELECT name FROM sqlite_schema") == [("theirs",)]


async def test_the_indexes_are_used(path):
    async with SqliteCheckpointStore(path) as store:
        await save_turns(store, CHAT, "c1", "c2")
    for sql in (
        "SELECT node FROM checkpoint_nodes WHERE session = 1 AND id = 'c1'",
        "SELECT 1 FROM checkpoint_nodes WHERE parent = 1",
        "SELECT part FROM checkpoint_part_keys WHERE user = 1 AND hash = 2",
    ):
        (plan,) = execute(path, f"EXPLAIN QUERY PLAN {sql}")
        assert "SEARCH" in plan[3], plan


@pytest.fixture
def steps(monkeypatch):
    """How many steps SQLite took for the statements of connections that are opened from here on, by their text."""
    counted = {}

    def count(event):
        counted[event["sql"]] = event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def watch(db):
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, watch])
    return counted


@pytest.mark.parametrize("scope", [CHAT, ALICE], ids=["session", "user"])
@pytest.mark.parametrize("asked", [{"run": "0"}, {"kind": "b"}, {"all": "yes", "kind": "b"}, {"run": "none"}], ids=str)
async def test_checkpoints_with_an_attribute_are_found_at_the_cost_of_those(scope, asked, path, steps):
    """The first of many, the last of many, one among those that have another attribute, and one that is not there."""
    async with SqliteCheckpointStore(path) as store:
        taken = []
        for start, end in ((0, 20), (20, 1000)):
            for n in range(start, end):
                attributes = {"run": str(n), "kind": "a", "all": "yes"}
                await store.append(CHAT, [], id=f"c{n}", attributes=attributes | ({"kind": "b"} if n == 10 else {}))
            steps.clear()
            found = await store.list(scope, attributes=asked, limit=1)
            assert [one.id for one in found] == (
                [] if asked == {"run": "none"} else ["c0" if "run" in asked else "c10"]
            )
            taken.append(sum(count for sql, count in steps.items() if "checkpoint" in sql))
        assert taken[1] < 2 * taken[0] or (len(asked) > 1 and taken[1] < 20 * 1000), taken


async def test_attributes_go_with_their_checkpoint(path):
    async with SqliteCheckpointStore(path) as store:
        for n in range(5):
            await store.append(CHAT, [], id=f"c{n}", attributes={"run": "canary", "n": str(n)})
        await store.delete(CHAT, "c1")
        execute(path, "UPDATE checkpoint_nodes SET more = x'00' WHERE id = 'c2'")
        assert await store.prune(CHAT, keep=1) == ("c0", "c2", "c3")
        assert execute(path, "SELECT count(*) FROM checkpoint_attributes") == [(2,)]
        assert [one.id for one in await store.list(CHAT, attributes={"run": "canary"})] == ["c4"]
        await store.forget(CHAT)
    assert rows_in(path) == [0, 0, 0, 0, 0, 0]


async def test_attributes_with_equal_hashes_are_told_apart(path, monkeypatch):
    monkeypatch.setattr(schema, "attribute_hash", lambda *_: 7)
    monkeypatch.setattr(checkpoints, "attribute_hash", lambda *_: 7)
    async with SqliteCheckpointStore(path) as store:
        await store.append(CHAT, [], id="c1", attributes={"run": "a"})
        await store.append(CHAT, [], id="c2", attributes={"run": "b", "n": "1"})
        assert [one.id for one in await store.list(CHAT, attributes={"run": "a"}, limit=1)] == ["c1"]
        assert [one.id for one in await store.list(CHAT, attributes={"n": "1", "run": "b"})] == ["c2"]
        await store.delete(CHAT, "c2")
        assert [one.id for one in await store.list(CHAT, attributes={"run": "a"})] == ["c1"]


async def test_an_earlier_file_gets_the_index_of_attributes(path):
    shutil.copy(GOLDEN / "format2" / "sessions.db", path)
    recorded = CHAT.for_session("recorded")
    async with SqliteCheckpointStore(path) as store:
        had = [one for one in await store.list(recorded) if one.attributes]
        assert had
        assert [*await store.list(recorded, attributes={"run": "r\u00e9"})] == had
    assert execute(path, "SELECT count(*) FROM checkpoint_attributes") == [(sum(len(one.attributes) for one in had),)]
