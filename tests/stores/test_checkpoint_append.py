"""Appending to files: by several processes, at the cost of what is new, and without a byte left when it is forgotten."""

import shutil

import apsw
import pytest

from loom.core.log import Recorded
from loom.core.message import Message
from loom.errors import UsageError
from loom.stores import _packed as packing
from loom.stores.files import FileCheckpointStore
from loom.stores.inmemory import MemoryCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore
from loom.testing.conformance.checkpoint_log import a_record, entry_ids
from loom.testing.conformance.checkpoint_store import CHAT, a_message, save, save_turns
from loom.testing.conformance.suite import ALICE
from loom.testing.fakes import START
from tests.stores.appending import check_processes
from tests.stores.sqlite_files import execute
from tests.stores.test_checkpoint_golden import GOLDEN

pytestmark = pytest.mark.anyio

places = pytest.mark.parametrize("place", ["files:{}/sessions", "sqlite:{}/sessions.db"], ids=["files", "sqlite"])


@places
@pytest.mark.parametrize("once", [False, True], ids=["each", "once"])
async def test_two_processes_that_append_lose_nothing(place, once, tmp_path):
    await check_processes(place.format(tmp_path), once=once)


def opened(place, folder):
    return FileCheckpointStore(folder / "sessions") if "files" in place else SqliteCheckpointStore(folder / "s.db")


def bytes_in(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@places
async def test_no_byte_of_what_was_recorded_stays(place, tmp_path):
    async with opened(place, tmp_path) as store:
        await save_turns(store, ALICE.for_session("other"), "c1")
        entries = [
            a_record("canary-id", {"canary-name": ["canary-value"]}, kind="canary.kind"),
            a_record("r2", b"canary-bytes" * 900),
            a_message("m1", "canary-text"),
        ]
        first = await store.append(CHAT, entries, attributes={"canary-attribute": "canary-set"}, once=True)
        await store.append(CHAT, [a_record("canary-late", "canary-late"), entries[0]], once=True)
        fork = await store.fork(CHAT, first.id, session_id="canary-fork")
        await store.append(ALICE.for_session("canary-fork"), [a_record("canary-f", b"canary-f")], once=True)
        assert bytes_in(tmp_path).count(b"canary") > 10
        assert "canary-attribute" in fork.attributes
        await store.forget(ALICE.for_session("canary-fork"))
        assert b"canary-f" not in bytes_in(tmp_path)
        await store.forget(CHAT)
        left = bytes_in(tmp_path)
        assert b"canary" not in left
        assert b"Y2FuYXJ5" not in left, "not in base64 either"
        assert len(await store.list(ALICE)) == 1


async def test_bytes_are_stored_as_they_are(tmp_path):
    body = bytes(range(256)) * 400
    async with SqliteCheckpointStore(tmp_path / "s.db") as store:
        await store.append(CHAT, [a_record("r1", body)])
        await store.append(CHAT, [a_record("r2", body), a_record("r3", "x" * 2000), a_record("r4", "x" * 2000)])
    value = b'"%b"' % (b"x" * 2000)
    assert execute(tmp_path / "s.db", "SELECT body FROM checkpoint_parts ORDER BY part") == [(body,), (value,)]


@pytest.mark.parametrize("make", [MemoryCheckpointStore, lambda: SqliteCheckpointStore(":memory:")])
async def test_a_small_value_is_kept_in_its_entry(make):
    small, long = {"n": 1, "text": "\ud800 \u00e9"}, {"text": "x" * 1024}
    store = make()
    made = await store.append(CHAT, [a_record("r1", small), a_record("r2", long), a_record("r3", b"")])
    assert [entry.body for entry in await store.recorded(CHAT)] == [small, long, b""]
    assert [entry.body for entry in await store.history(CHAT, made.id, bodies=False)] == [None, None, None]
    await store.aclose()


async def test_a_small_value_takes_no_row(tmp_path):
    async with SqliteCheckpointStore(tmp_path / "s.db") as store:
        await store.append(CHAT, [a_record("r1", {"n": 1}), a_record("r2", {"n": 1})])
    assert execute(tmp_path / "s.db", "SELECT count(*) FROM checkpoint_parts") == [(0,)]
    assert execute(tmp_path / "s.db", "SELECT count(*) FROM checkpoint_part_keys") == [(0,)]


async def test_a_log_is_read_at_the_cost_of_what_is_returned(tmp_path, monkeypatch):
    """Neither parts nor entries before the position are decoded, and no part of a message for recorded entries."""
    decoded = []
    real = packing.part_from_dict
    monkeypatch.setattr(packing, "part_from_dict", lambda data: decoded.append(data["text"]) or real(data))
    store = MemoryCheckpointStore()
    entries = [(a_message(f"m{n}", f"text {n}"), a_record(f"r{n}", {"n": n})) for n in range(50)]
    made = [await store.append(CHAT, both) for both in entries]
    decoded.clear()
    assert len(await store.history(CHAT, made[-1].id, after=96)) == 4
    assert decoded == ["text 48", "text 49"]
    assert [one.body for one in await store.recorded(CHAT, after=90)] == [{"n": n} for n in range(45, 50)]
    assert decoded == ["text 48", "text 49"]


async def test_sqlite_reads_no_save_before_the_position(tmp_path):
    """What is before it may even be damaged."""
    async with SqliteCheckpointStore(tmp_path / "s.db") as store:
        made = [await store.append(CHAT, [a_message(f"m{n}")], once=True) for n in range(6)]
        execute(tmp_path / "s.db", "UPDATE checkpoint_nodes SET entries = x'00' WHERE node < 4")
        assert [entry.id for entry in await store.history(CHAT, made[-1].id, after=3)] == ["m3", "m4", "m5"]
        again = await store.append(CHAT, [a_message("m0"), a_message("m6")], once=True)
        assert again.position == 7, "the index knows m0 without the log"
        assert [(one.checkpoints, one.entries) for one in await store.sessions(ALICE)] == [(7, 7)]


async def test_an_earlier_file_gets_the_index(tmp_path):
    shutil.copy(GOLDEN / "format1" / "sessions.db", tmp_path / "s.db")
    async with SqliteCheckpointStore(tmp_path / "s.db") as store:
        before = await entry_ids(store, CHAT)
        await store.append(CHAT, [a_message(before[0]), a_message("new")], once=True)
        assert await entry_ids(store, CHAT) == [*before, "new"]
    assert execute(tmp_path / "s.db", "SELECT value FROM meta WHERE name = 'checkpoints'") == [("3",)]


async def test_a_number_that_is_given_again_is_not_taken_for_the_old_one(tmp_path):
    async with SqliteCheckpointStore(tmp_path / "s.db") as store:
        first = await store.append(CHAT, [a_message("m1")], once=True)
        second = await store.append(CHAT, [a_message("m2")], once=True)
        await store.append(CHAT, [a_message("m2")], once=True)  # the index is complete up to the second
        await store.delete(CHAT, second.id)
        await save(store, CHAT, "c3", "x", after=first)
        await store.append(CHAT, [a_message("m2"), a_message("c3.0")], once=True)
        assert await entry_ids(store, CHAT) == ["m1", "c3.0", "m2"]
    db = apsw.Connection(str(tmp_path / "s.db"))
    assert db.execute("SELECT count(*) FROM checkpoint_entry_ids").fetchall() == [(2,)]
    db.close()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (object(), "neither JSON nor bytes"),
        (float("nan"), "neither JSON nor bytes"),
        ({1, 2}, "neither JSON nor bytes"),
        ("x" * 50_000_001, "at most 50,000,000"),
        (b"x" * 50_000_001, "at most 50,000,000"),
    ],
    ids=["object", "nan", "set", "long text", "many bytes"],
)
def test_what_cannot_be_recorded_is_refused_in_words(body, says):
    with pytest.raises(UsageError, match=says):
        Recorded("r1", START, "test.state", body)


def test_a_kind_is_a_name():
    for kind in ("", " ", "a" * 201, "\0"):
        with pytest.raises(UsageError):
            Recorded("r1", START, kind, None)


def test_what_is_recorded_is_what_json_reads_back():
    assert Recorded("r1", START, "k", {1: (2, 3)}).body == {"1": [2, 3]}
    assert Recorded("r1", START, "k", bytearray(b"x")).body == b"x"
    assert Recorded("r1", START, "k", memoryview(b"xyz")[::2]).body == b"xz"


async def test_messages_of_a_checkpoint_leave_out_what_is_recorded():
    store = MemoryCheckpointStore()
    await store.append("s1", [a_record("r1", 1), a_message("m1"), a_record("r2", b"2")])
    found = await store.load("s1")
    assert found.messages == (Message.user("we drank tea"),)
