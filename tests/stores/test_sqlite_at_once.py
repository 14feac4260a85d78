"""Reads of a SQLite file that were quick the last time are done on the event loop, and wait for nothing there."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import apsw
import pytest

from loom import open_memory
from loom.core.filter import And, Eq, Range
from loom.core.record import Layer
from loom.protocols.memory_store import Query
from loom.stores._search import Vectors
from loom.stores.sqlite import connection, index, search
from loom.stores.sqlite import file as sqlite_file
from loom.stores.sqlite.connection import Database, holding, spend
from loom.stores.sqlite.file import Pace, SqliteFile
from loom.stores.sqlite.store import SqliteStore
from loom.testing.conformance.suite import ALICE, an_episode

pytestmark = pytest.mark.anyio

WHAT = ("list", "alice")
QUICK, SLOW = 0.0, 1.0


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    file = SqliteFile(tmp_path / "x.db")
    await file.view(lambda db: db.execute("SELECT 1").fetchall())  # leaves an open connection
    yield file
    await file.aclose()


def thread(_: Database) -> int:
    return threading.get_ident()


async def test_a_read_runs_where_it_was_quick_enough_to_run(file):
    here = threading.get_ident()
    assert await file.view(thread) != here
    assert await file.view(thread, WHAT) != here, "nothing is known of it"
    file._pace.note(WHAT, QUICK)
    assert await file.view(thread, WHAT) == here
    assert await file.view(thread, ("list", "bob")) != here, "of another user nothing is known"
    file._pace.note(WHAT, SLOW)
    places = [await file.view(thread, WHAT) for _ in range(20)]
    assert here not in places[:5], "a slow one is not forgotten at once"
    assert places[-1] == here


async def test_between_two_reads_on_the_event_loop_everything_else_goes_on(file):
    """Otherwise the event loop would be late for everybody by the sum of what they take."""
    here, order, places = threading.get_ident(), list[str](), list[int]()
    file._pace.note(WHAT, QUICK)

    async def read() -> None:
        places.append(await file.view(lambda db: order.append("read") or thread(db), WHAT))

    async def work() -> None:
        while len(places) < 5:
            order.append("else")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        for _ in range(5):
            tasks.start_soon(read)
    assert places == [here] * 5
    assert "read read" not in " ".join(order), order


async def test_how_long_a_read_took_decides_where_the_next_one_runs(file):
    assert not file._pace.is_quick(WHAT)
    await file.view(thread, WHAT)
    assert file._pace._seconds[WHAT] > 0
    file._pace.note(WHAT, QUICK)
    await file.view(thread, WHAT)
    assert file._pace._seconds[WHAT] > 0, "measured on the event loop, too"


async def test_how_many_paces_are_known_is_bounded(file):
    for number in range(10_000):
        file._pace.note((str(number),), QUICK)
    assert len(file._pace._seconds) <= 4096
    assert file._pace.is_quick(("9999",))


def refused(error: Callable[[], Exception]) -> Callable[[Database], int]:
    """A read that fails on the event loop."""
    here = threading.get_ident()

    def read(db: Database) -> int:
        if threading.get_ident() == here:
            raise error()
        return thread(db)

    return read


@pytest.mark.parametrize("error", [apsw.BusyError, apsw.LockedError])
async def test_what_another_process_holds_is_waited_for_in_a_thread(file, error):
    file._pace.note(WHAT, QUICK)
    assert await file.view(refused(error), WHAT) != threading.get_ident()
    assert await file.view(thread, WHAT), "the connections are sound"


async def test_an_error_on_the_event_loop_is_the_error_of_the_read(file):
    file._pace.note(WHAT, QUICK)
    with pytest.raises(ZeroDivisionError):
        await file.view(refused(ZeroDivisionError), WHAT)
    assert await file.view(thread, WHAT)


async def test_a_lock_is_waited_for_in_a_thread(file):
    lock, asked = threading.Lock(), anyio.Event()
    file._pace.note(WHAT, QUICK)
    places: list[int] = []

    def read(db: Database) -> int:
        places.append(thread(db))
        with holding(lock):
            return places[-1]

    async def ask() -> None:
        assert await file.view(read, WHAT) != threading.get_ident()
        asked.set()

    with lock:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while len(places) < 2:
                await anyio.lowlevel.checkpoint()  # the event loop goes on
            assert not asked.is_set()
            lock.release()
            await asked.wait()
            lock.acquire()
    assert places[0] == threading.get_ident() != places[1]


async def test_other_tasks_go_on_between_many_quick_reads(file):
    done = False

    async def other() -> None:
        nonlocal done
        done = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(10):
            file._pace.note(WHAT, QUICK)
            await file.view(thread, WHAT)
        assert done


async def test_what_is_found_is_the_same_on_the_event_loop_and_in_a_thread(tmp_path):
    async with open_memory(f"sqlite:{tmp_path}/x.db") as memory:
        store = memory.store
        assert isinstance(store, SqliteStore)
        for number in range(30):
            await memory.remember(f"Plum {number} grows in garden {number % 7}.", user_id="alice", session_id="s")
        found = []
        for seconds in (SLOW, QUICK):
            store._file._pace.note(("search", "default", "alice"), seconds)
            hits = (await memory.recall("Which plum grows in garden 3?", user_id="alice", limit=20)).hits
            found.append([(hit.item.id, hit.score, dict(hit.why)) for hit in hits])
        assert found[0] == found[1] != []


@pytest.fixture
async def large(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store whose user has little in the first layer and much in the fourth."""
    async with SqliteStore(tmp_path / "large.db", durability="fast") as store:
        many = [replace(an_episode(f"e{n:05}", f"plum number {n}"), layer=Layer.L4) for n in range(2_000)]
        await store.put(ALICE, *many, an_episode("new", "a pear"))
        yield store


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of the driver on the event loop gave."""
    here, given = threading.get_ident(), list[int]()
    made = connection.KnownRecords.made

    def counted(known: connection.KnownRecords, row: Any) -> Any:
        given.extend([1] if threading.get_ident() == here else [])
        return made(known, row)

    monkeypatch.setattr(connection.KnownRecords, "made", counted)
    return given


def living(layer: Layer) -> And:
    return And(Eq("kind", "episode"), Eq("layer", int(layer)), Eq("archived_at", None))


async def test_a_long_list_is_not_read_on_the_event_loop_because_a_short_one_was_quick(large, read_here):
    for _ in range(2):
        await large.read_together(ALICE, living(Layer.L1), living(Layer.L2))
    read_here.clear()
    assert sum(map(len, (await large.read_together(ALICE, living(Layer.L3), living(Layer.L4))).lists)) == 2_000
    assert read_here == []


async def test_a_list_that_became_long_is_left_to_a_thread(large, read_here, monkeypatch):
    """Whatever was quick: where nothing is waited for, few rows are read."""
    monkeypatch.setattr(Pace, "is_quick", lambda *_: True)
    for where in (living(Layer.L4), Range("id", low="e", high="f")):
        read_here.clear()
        assert len((await large.read_together(ALICE, where)).lists[0]) == 2_000
        assert len(read_here) < 1_000


async def test_a_search_that_has_much_to_bring_in_is_left_to_a_thread(large, monkeypatch):
    here, brought = threading.get_ident(), list[int]()
    append = Vectors.append

    def counted(vectors: Vectors, numbers: Any, block: Any) -> None:
        brought.extend([len(numbers)] if threading.get_ident() == here else [])
        append(vectors, numbers, block)

    monkeypatch.setattr(Vectors, "append", counted)
    monkeypatch.setattr(connection, "_AT_ONCE", 5_000.0)
    await large.bind("suite:1:2", 2)
    await large.put_vectors(ALICE, {f"e{n:05}": [1.0, n / 10] for n in range(2_000)})
    monkeypatch.setattr(Pace, "is_quick", lambda *_: True)
    query = Query(text="plum", vector=[1.0, 0.0], archived=True)
    for where in (None, Eq("speaker", "nobody")):
        assert len(await large.search_columns(ALICE, replace(query, where=where), near=20)) == (
            20 if where is None else 0
        )
    assert brought == []


async def test_a_read_that_takes_long_goes_on_in_a_thread_and_is_not_tried_each_time(file, monkeypatch):
    here, opened, tried = threading.get_ident(), list[str](), list[int]()
    connect = sqlite_file.connect
    monkeypatch.setattr(sqlite_file, "connect", lambda path: opened.append(path) or connect(path))

    def read(db: Database) -> int:
        tried.extend([1] if thread(db) == here else [])
        spend(1_000_000)
        return thread(db)

    file._pace.note(WHAT, QUICK)
    assert here not in [await file.view(read, WHAT) for _ in range(100)]
    assert 1 <= len(tried) <= 12
    assert opened == [], "the connection is kept"


LONG = "tea and plums and pears " * 20_000


async def test_long_texts_are_not_analysed_on_the_event_loop(tmp_path, monkeypatch):
    here, analysed = threading.get_ident(), list[int]()
    words_of = index._words_of

    def counted(text: str) -> list[str]:
        analysed.extend([len(text)] if threading.get_ident() == here else [])
        return words_of(text)

    monkeypatch.setattr(index, "_words_of", counted)
    monkeypatch.setattr(Pace, "is_quick", lambda *_: True)
    async with SqliteStore(tmp_path / "x.db", durability="fast") as store:
        await store.bind("suite:1:2", 2)
        await store.put(ALICE, an_episode("short", "tea"))
        query = Query(text="tea", vector=[1.0, 0.0], archived=True, limit=50)
        await store.search_columns(ALICE, query, near=20)
        for number in range(3):
            await store.put(ALICE, an_episode(f"e{number}", LONG))
            assert len(await store.search_columns(ALICE, query, near=20)) == number + 2
    assert sum(analysed) < 1_000


async def test_many_long_texts_are_not_read_on_the_event_loop(tmp_path, monkeypatch):
    here, read = threading.get_ident(), list[int]()
    monkeypatch.setattr(
        sqlite_file.SqliteFile,
        "_paced",
        lambda _, what, act: (read.append(0), act())[1] if threading.get_ident() != here else _watched(act, read),
    )
    monkeypatch.setattr(Pace, "is_quick", lambda *_: True)
    async with SqliteStore(tmp_path / "x.db", durability="fast") as store:
        await store.bind("suite:1:2", 2)
        await store.put(ALICE, *(an_episode(f"e{n}", LONG) for n in range(70)))
        query = Query(text="tea", vector=[1.0, 0.0], archived=True, limit=70)
        assert len(await store.search_columns(ALICE, query, near=20)) == 70
        assert read == ["gave up", 0]


def _watched(act: Callable[[], Any], read: list[Any]) -> Any:
    try:
        return act()
    except connection.TakesLong:
        read.append("gave up")
        raise


async def test_many_postings_are_not_scored_on_the_event_loop(tmp_path, monkeypatch):
    here, scored = threading.get_ident(), list[int]()
    parts_of = index.parts_of

    def counted(held: Any, lengths: Any) -> Any:
        scored.extend([len(held)] if threading.get_ident() == here else [])
        return parts_of(held, lengths)

    monkeypatch.setattr(index, "parts_of", counted)
    monkeypatch.setattr(Pace, "is_quick", lambda *_: True)
    words = [f"{first}{second}um" for first in "bcdfghklmnprst" for second in "aeiou"]
    async with SqliteStore(tmp_path / "x.db", durability="fast") as store:
        await store.bind("suite:1:2", 2)
        for start in range(0, 2_000, 500):
            await store.put(ALICE, *(an_episode(f"e{start + n}", " ".join(words)) for n in range(500)))
        for question, is_here in ((words[0], True), (" ".join(words), False)):
            scored.clear()
            query = Query(text=question, vector=[1.0, 0.0], archived=True, limit=20)
            assert len(await store.search_columns(ALICE, query, near=20)) == 20
            assert bool(scored) == is_here


@pytest.mark.parametrize("exact_numbers", [1_000_000, 0])
async def test_a_filter_that_no_column_answers_makes_few_records_on_the_event_loop(large, monkeypatch, exact_numbers):
    here, made = threading.get_ident(), list[int]()
    from_row = search.from_row

    def counted(row: Any) -> Any:
        made.extend([1] if threading.get_ident() == here else [])
        return from_row(row)

    monkeypatch.setattr(search, "from_row", counted)
    large._cache = index.SearchCache(2**26, exact_numbers=exact_numbers)
    await large.bind("suite:1:2", 2)
    await large.put_vectors(ALICE, {f"e{n:05}": [1.0, n / 10] for n in range(2_000)})
    query = Query(text="plum", vector=[1.0, 0.0], archived=True)
    await large.search_columns(ALICE, query, near=20)
    monkeypatch.setattr(Pace, "is_quick", lambda *_: True)
    nothing = And(Range("id", low="e00500"), Eq("meta.topic", "nothing"))
    assert len(await large.search_columns(ALICE, replace(query, where=nothing), near=20)) == 0
    assert len(made) < 1_000
