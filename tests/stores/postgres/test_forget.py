"""No byte of a forgotten user is left in any file of the server once an administrator has swept it."""

import struct

import psycopg
import pytest

from loom.core.scope import Scope
from loom.stores._record_table import unit_vector
from loom.stores.postgres import PostgresCheckpointStore, PostgresStore, sweep_schema
from loom.testing.conformance.checkpoint_store import save
from loom.testing.conformance.suite import BOB
from loom.testing.conformance.suite import an_episode as a_record
from tests.stores.postgres.conftest import new_server
from tests.stores.test_sqlite_crash import NUMBERS, USER, WORDS, traces, write_canaries

pytestmark = pytest.mark.anyio

EVE = Scope(user_id=USER)
WRITTEN = {word[-9:].encode() for word in (*WORDS, USER)}


@pytest.fixture
def own():
    """A server that no other test has written to; a small write-ahead log is soon written around."""
    with new_server(min_wal_size="32MB", max_wal_size="48MB") as server:
        yield server


def looked_for():
    """What a scan looks for: words in several encodings, and vectors as pgvector keeps them."""
    unit = unit_vector(NUMBERS, 4, "a vector")
    texts = [trace for trace in traces() if len(trace) > 4]
    return [*texts, *(struct.pack("<2f", *unit[place : place + 2]) for place in range(3))]


def found_in(folder):
    """Which of it is in any file of the server: tables, indexes, catalogues, the write-ahead log and the log."""
    files = [file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()]
    return [trace for trace in looked_for() if any(trace in data for data in files)]


async def remember(url):
    async with PostgresStore(url) as memory, PostgresCheckpointStore(url) as sessions:
        await memory.bind("test:4", 4)
        await memory.put(BOB, *(a_record(f"b{n}") for n in range(50)))
        await write_canaries(memory, EVE)
        await save(sessions, EVE.for_session(WORDS[3]), WORDS[4], f"say {WORDS[0]}")


async def forget(url):
    async with PostgresStore(url) as memory, PostgresCheckpointStore(url) as sessions:
        return await memory.forget(EVE), await sessions.forget(EVE)


async def test_a_receipt_says_what_sweeps_and_then_nothing_is_left(own):
    before = found_in(own.folder)
    await remember(own.url("loom_app"))
    with psycopg.connect(own.url(), autocommit=True) as db:
        db.execute("ANALYZE; CHECKPOINT")
    (own.folder / "planted").write_bytes(b" ".join(looked_for()))
    assert found_in(own.folder) == looked_for()
    (own.folder / "planted").unlink()
    written = set(found_in(own.folder))
    assert written >= WRITTEN
    assert sum(len(trace) == 8 for trace in written) >= 3
    for receipt in await forget(own.url("loom_app")):
        assert ["loom store sweep" in words for words in receipt.pending] == [True]
    assert set(found_in(own.folder)) >= WRITTEN
    assert await sweep_schema(own.url()) == ()
    assert (before, found_in(own.folder)) == ([], [])
    async with PostgresStore(own.url("loom_app")) as store:
        assert await store.count(BOB) == 50


@pytest.mark.parametrize("left_out", ["_rewrite_tables", "_overwrite_log"])
async def test_half_a_sweep_is_found_out(own, left_out, monkeypatch):
    async def nothing(*_):
        pass

    await remember(own.url("loom_app"))
    await forget(own.url("loom_app"))
    monkeypatch.setattr(f"loom.stores.postgres.store.{left_out}", nothing)
    await sweep_schema(own.url())
    assert found_in(own.folder) != []
    monkeypatch.undo()
    await sweep_schema(own.url())
    assert found_in(own.folder) == []


async def test_a_transaction_that_still_sees_removed_rows_is_named(own):
    await remember(own.url("loom_app"))
    with psycopg.connect(own.url()) as db:
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        db.execute("SELECT 1")
        await forget(own.url("loom_app"))
        (pending,) = await sweep_schema(own.url())
        assert pending.startswith(f"process {db.info.backend_pid} of the server still sees")
        assert found_in(own.folder) != []
        db.rollback()
    assert await sweep_schema(own.url()) == ()
    assert found_in(own.folder) == []
