"""Files that are not this Loom's own: refused, and left as they are to the last byte."""

import apsw
import pytest

from loom.errors import StoreError
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.checkpoints import SqliteCheckpointStore
from loom.stores.sqlite.schema import has_checkpoints
from loom.testing.conformance.suite import ALICE, an_episode
from tests.stores.sqlite_files import execute

pytestmark = pytest.mark.anyio


def everything_in(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def is_left_alone(folder, store, refusal):
    before = everything_in(folder)
    with pytest.raises(StoreError, match=refusal):
        await store.forget(ALICE)
    await store.aclose()
    assert everything_in(folder) == before


@pytest.mark.parametrize("mode", ["delete", "wal", "wal with a log"])
@pytest.mark.parametrize("name", ["other.db", "a folder? 100%#.db"])
@pytest.mark.parametrize("kind", [SqliteStore, SqliteCheckpointStore])
async def test_not_a_byte_of_another_programs_file_is_changed(tmp_path, mode, name, kind):
    made = apsw.Connection(str(tmp_path / "made.db"))
    made.execute("CREATE TABLE theirs (n)")
    if mode != "delete":
        made.execute("PRAGMA journal_mode=wal").fetchall()
    if mode == "wal with a log":
        made.execute("INSERT INTO theirs VALUES (1)")
    # A copy of an open file is what a program that was killed leaves behind.
    folder = tmp_path / "theirs"
    folder.mkdir()
    for end in ("", "-wal") if mode == "wal with a log" else ("",):
        (folder / f"{name}{end}").write_bytes((tmp_path / f"made.db{end}").read_bytes())
    made.close()
    await is_left_alone(folder, kind(folder / name), "another program")
    assert execute(folder / name, "SELECT name FROM sqlite_schema") == [("theirs",)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("kind", [SqliteStore, SqliteCheckpointStore])
async def test_not_a_byte_of_a_newer_file_is_changed(tmp_path, mode, kind):
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.put(ALICE, an_episode())
    execute(tmp_path / "memory.db", f"PRAGMA user_version=99; PRAGMA journal_mode={mode}")
    await is_left_alone(tmp_path, kind(tmp_path / "memory.db"), "format 99")


async def test_not_a_byte_of_newer_checkpoints_is_changed(tmp_path):
    async with SqliteCheckpointStore(tmp_path / "sessions.db"):
        pass
    execute(tmp_path / "sessions.db", "UPDATE meta SET value = '99' WHERE name = 'checkpoints'")
    await is_left_alone(tmp_path, SqliteCheckpointStore(tmp_path / "sessions.db"), "upgrade Loom")


async def test_what_another_program_has_in_its_log_alone_is_seen(tmp_path):
    path = tmp_path / "other.db"
    theirs = apsw.Connection(str(path))
    theirs.execute("PRAGMA journal_mode=wal; CREATE TABLE theirs (n)").fetchall()
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore(path).put(ALICE, an_episode())
    assert theirs.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    theirs.close()


def test_asking_for_checkpoints_changes_nothing(tmp_path):
    execute(tmp_path / "other.db", "CREATE TABLE theirs (n); PRAGMA journal_mode=wal")
    before = everything_in(tmp_path)
    with pytest.raises(StoreError, match="another program"):
        has_checkpoints(str(tmp_path / "other.db"))
    assert everything_in(tmp_path) == before
