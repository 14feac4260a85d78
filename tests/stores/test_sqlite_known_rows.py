"""Searches of a SQLite store keep the rows they looked at: less is read, and every change is seen all the same."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

from loom.core.filter import And, Eq, In
from loom.core.record import Episode, Layer
from loom.errors import NotFound, StoreError, UsageError
from loom.protocols.memory_store import Query
from loom.stores.sqlite import SqliteStore, connection, search
from loom.stores.sqlite.connection import connect, sizes_of
from loom.stores.sqlite.file import Pace
from loom.stores.sqlite.index import NewestTexts
from loom.testing.conformance.suite import ALICE, an_episode
from loom.testing.fakes import START
from tests.stores.sqlite_files import execute

pytestmark = pytest.mark.anyio
QUERY = Query(text="tea", vector=[1.0, 0.0], archived=True, limit=200)


@pytest.fixture
async def store(tmp_path: Path):
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.bind("suite:1:2", 2)
        await store.put(ALICE, *(an_episode(f"e{n}", f"tea number {n}") for n in range(90)))
        await store.put_vectors(ALICE, {f"e{n}": [1.0, n / 10] for n in range(90)})
        yield store


async def found_by(store: SqliteStore) -> dict[str, Episode]:
    """What a search finds, by id."""
    hits = await store.search_columns(ALICE, QUERY, near=200)
    records = map(hits.read, range(len(hits)))
    return {record.id: record for record in records if isinstance(record, Episode)}


async def test_a_second_search_reads_only_what_is_new(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, texts = list[int](), list[str]()

    def counting(seen: list[Any], call: Callable[..., Any], of: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            seen.extend(of(*given))
            return call(*given)

        return counted

    whole, add = search._Rows._read_whole, NewestTexts._add
    monkeypatch.setattr(search._Rows, "_read_whole", counting(rows, whole, lambda _, numbers: numbers))
    monkeypatch.setattr(NewestTexts, "_add", counting(texts, add, lambda _, signal, number, text: [text]))
    assert len(await found_by(store)) == 90
    assert len(rows) == 90
    rows.clear()
    texts.clear()
    await found_by(store)
    assert (rows, texts) == ([], [])
    await store.put(ALICE, an_episode("new", "tea at last"))
    assert "new" in await found_by(store)
    assert (rows, texts) == ([90], ["tea at last"])


async def test_changes_of_another_process_are_seen(store: SqliteStore, tmp_path: Path) -> None:
    before = await found_by(store)
    script = """
import anyio, sys
from loom.core.record import Layer
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.suite import ALICE, an_episode
from loom.testing.fakes import START
from tests.stores.sqlite_files import execute

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        await store.put(ALICE, an_episode("e2", "tea number 2", layer=Layer.L3, archived_at=START))
        await store.delete(ALICE, "e4")

anyio.run(main)
"""
    await store.touch(ALICE, "e1", at=START)
    await store.write(ALICE)  # a revision of this process, and behind it those of the other one
    done = await anyio.run_process([sys.executable, "-c", script, str(tmp_path / "memory.db")])
    assert done.returncode == 0
    await store.delete(ALICE, "e5")
    after = await found_by(store)
    assert after["e2"].layer is Layer.L3
    assert before.keys() - after.keys() == {"e4", "e5"}


async def test_a_write_that_failed_is_not_taken_for_a_change(store: SqliteStore, tmp_path: Path) -> None:
    before = await found_by(store)
    with pytest.raises(NotFound):
        await store.write(ALICE, delete=["e4"], keys={"nobody": {"asked": "tea"}})
    assert await found_by(store) == before
    log = (await store._file.opened()).changes
    revision = execute(tmp_path / "memory.db", "SELECT revision FROM users")[0][0]
    assert log.between(1, revision, revision + 1) is None, "another process may make this revision"


async def test_a_view_from_before_a_change_does_not_see_it(store: SqliteStore) -> None:
    """What is known is newer than the view then: the view reads its own rows."""
    await found_by(store)
    started, changed = threading.Event(), threading.Event()

    def old_view(db: Any) -> list[Any]:
        sizes = sizes_of(db, 1)
        started.set()
        changed.wait()
        with store._cache.rows(1, sizes) as known:
            request = search._request(1, ALICE, QUERY, START)
            return search._Rows(db, request, known).of([4, 5])

    seen = list[list[Any]]()

    async def view() -> None:
        seen.append(await store._view(old_view))

    async with anyio.create_task_group() as group:
        group.start_soon(view)
        await anyio.to_thread.run_sync(started.wait)
        await store.delete(ALICE, "e4")
        assert "e4" not in await found_by(store)
        changed.set()
    assert [row and row[0] for row in seen[0]] == ["e4", "e5"]
    assert "e4" not in await found_by(store)


async def test_changes_of_another_connection_are_seen(store: SqliteStore, tmp_path: Path) -> None:
    before = await found_by(store)
    async with SqliteStore(tmp_path / "memory.db") as other:
        await other.touch(ALICE, "e1", at=START)
        moved = replace(before["e2"], layer=Layer.L3, archived_at=START)
        await other.write(ALICE, put=[moved, replace(before["e89"], text="tea, but not that one")], delete=["e4"])
    after = await found_by(store)
    assert after["e1"].accesses == before["e1"].accesses + 1
    assert after["e2"] == moved
    assert after["e89"].text == "tea, but not that one", "of the newest texts, which are not indexed yet"
    assert "e4" not in after
    assert after["e5"] == before["e5"]


@pytest.mark.parametrize("seed", range(6))
async def test_a_store_that_searched_before_answers_like_one_that_did_not(
    store: SqliteStore, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for step in range(12):
        known = await found_by(store)
        id = chance.choice(sorted(known))
        match chance.randrange(5):
            case 0:
                await store.put(ALICE, an_episode(f"n{step}", f"tea and words {step}"))
            case 1:
                await store.delete(ALICE, id)
            case 2:
                await store.put(ALICE, replace(known[id], text=f"tea was changed {step}"))
            case 3:
                await store.put(ALICE, replace(known[id], archived_at=None if known[id].archived_at else START))
            case _:
                await store.touch(ALICE, id, at=START)
        async with SqliteStore(tmp_path / "memory.db") as fresh:
            await store.write(ALICE)  # accesses that wait are written
            assert await found_by(store) == await found_by(fresh)
            mine, theirs = [await s.search_columns(ALICE, QUERY, near=200) for s in (store, fresh)]
            assert [*mine.ids] == [*theirs.ids]
            assert mine.signals.keys() == theirs.signals.keys()
            for name, column in mine.signals.items():
                np.testing.assert_array_equal(column, theirs.signals[name])


async def test_records_that_are_read_together_again_are_as_they_are_now(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = In("id", ("e1", "e2", "e3", "e4"))

    async def read() -> dict[str, Episode]:
        (found,) = (await store.read_together(ALICE, wanted)).lists
        return {record.id: record for record in found if isinstance(record, Episode)}

    first = await read()
    with monkeypatch.context() as patch:
        patch.delattr(connection, "from_row")  # no row is read twice
        assert await read() == first
    path = store._file.path
    async with SqliteStore(path) as other:  # as another process would
        await other.touch(ALICE, "e1", at=START)
        await other.put(ALICE, replace(first["e2"], layer=Layer.L2), replace(first["e3"], text="milk"))
        await other.delete(ALICE, "e4")
    again = await read()
    assert (again["e1"].accesses, again["e2"].layer, again["e3"].text) == (1, Layer.L2, "milk")
    assert "e4" not in again
    db = connect(path)
    db.execute("UPDATE records SET text = 'other' WHERE id = 'e1'")
    db.close()
    with pytest.raises(StoreError, match="e1"):
        await read()


async def test_a_search_that_fails_hides_nothing_from_those_after_it(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    execute(path, "UPDATE records SET speaker = CAST(x'ff' AS TEXT) WHERE id = 'e5'")
    for _ in range(2):
        with pytest.raises(StoreError):
            await found_by(store)
    execute(path, "UPDATE records SET speaker = NULL WHERE id = 'e5'")
    assert len(await found_by(store)) == 90


async def test_newest_texts_that_cannot_be_read_count_once_when_they_can(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await store.search(ALICE, replace(QUERY, vector=None))
    add = NewestTexts._add

    def failing(tail: NewestTexts, signal: str, number: int, text: str) -> None:
        if text == "tea at last":
            raise MemoryError
        add(tail, signal, number, text)

    await store.put(ALICE, an_episode("other", "plums"), an_episode("new", "tea at last"))
    with monkeypatch.context() as patch:
        patch.setattr(NewestTexts, "_add", failing)
        for _ in range(2):
            with pytest.raises(StoreError, match="more memory than there is"):
                await store.search(ALICE, replace(QUERY, vector=None))
    again = await store.search(ALICE, replace(QUERY, vector=None))
    await store.delete(ALICE, "other", "new")
    assert len(again) == len(whole) + 1
    async with SqliteStore(store._file.path) as fresh:
        await fresh.put(ALICE, an_episode("other", "plums"), an_episode("new", "tea at last"))
        expected = await fresh.search(ALICE, replace(QUERY, vector=None))
    assert [(hit.item.id, hit.score) for hit in again] == [(hit.item.id, hit.score) for hit in expected]


async def test_a_caller_who_changes_a_record_changes_none_of_the_store(store: SqliteStore) -> None:
    first = And(Eq("kind", "episode"), Eq("layer", 1), Eq("archived_at", None))
    for _ in range(2):
        for record in (await store.read_together(ALICE, first)).lists[0]:
            assert isinstance(record, Episode)
            assert not record.attributes
            assert isinstance(record.attributes, dict)
            record.attributes["role"] = "system"


async def test_long_texts_that_are_kept_are_counted(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "long.db", vector_cache_bytes=2**20) as store:
        await store.put(ALICE, *(an_episode(f"e{n}", "tea " * 25_000) for n in range(30)))
        for _ in range(2):
            await store.search(ALICE, Query(text="tea", limit=30))
        assert store._cache._used <= 2**20


LIVING = And(Eq("kind", "episode"), Eq("layer", 1), Eq("archived_at", None))


async def test_long_texts_of_records_that_every_turn_reads_are_counted_and_bounded(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "long.db", vector_cache_bytes=2**24) as store:
        await store.put(ALICE, *(an_episode(f"e{n}", "tea " * 250_000) for n in range(30)))
        await store.read_together(ALICE, LIVING)
        ((_, held),) = store._cache._held.items()
        assert 4_000_000 < held.records.chars < 6_000_000
        assert store._cache._used >= held.records.chars
        await store.put(ALICE, *(an_episode(f"s{n:05}", "tea") for n in range(3_000)))
        assert len((await store.read_together(ALICE, LIVING)).lists[0]) == 3_030
        assert len(held.records) <= 1_024


@pytest.mark.parametrize("forgets", ["record", "session", "user"])
async def test_what_is_forgotten_is_not_kept_in_memory(store: SqliteStore, forgets: str) -> None:
    secret = replace(an_episode("secret", "tea: the code is 4711"), session_id="s")
    await store.put(ALICE, secret)
    await store.read_together(ALICE, LIVING)
    assert "secret" in await found_by(store)
    if forgets == "record":
        await store.delete(ALICE, "secret")
    else:
        await store.forget(replace(ALICE, session_id="s") if forgets == "session" else ALICE)
    assert not store._cache._held


def told(store: SqliteStore) -> str:
    """All text that is kept of users."""
    kept = list[Any]()
    for held in store._cache._held.values():
        kept += [held.rows._by_condition, *held.tail.entries, *held.records._by_id.items()]
    return repr(kept)


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("forgets", ["record", "user"])
async def test_what_another_process_forgets_is_not_kept_in_memory(
    store: SqliteStore, tmp_path: Path, forgets: str, *, comes_back: bool
) -> None:
    await store.put(ALICE, an_episode("secret", "tea: the code is 4711"))
    await store.read_together(ALICE, LIVING)
    assert "secret" in await found_by(store)
    assert "4711" in told(store)
    async with SqliteStore(tmp_path / "memory.db") as other:
        await (other.delete(ALICE, "secret") if forgets == "record" else other.forget(ALICE))
        if comes_back:
            await other.put(ALICE, an_episode("new", "tea"))
    assert ("new" in await found_by(store)) == comes_back
    await store.read_together(ALICE, LIVING)
    assert "4711" not in told(store)
    assert bool(store._cache._held) == (comes_back or forgets == "record")


async def test_a_search_that_began_before_a_removal_keeps_nothing_of_what_was_removed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put(ALICE, an_episode("secret", "tea: the code is 4711"))
    await found_by(store)
    started, changed = threading.Event(), threading.Event()
    search_columns = search.search_columns

    def late(*args: Any, **named: Any) -> Any:
        started.set()
        changed.wait()
        return search_columns(*args, **named)

    seen = list[dict[str, Episode]]()

    async def look() -> None:
        seen.append(await found_by(store))

    with monkeypatch.context() as patch:
        patch.setattr(search, "search_columns", late)
        patch.setattr(Pace, "is_quick", lambda *_: False)
        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await anyio.to_thread.run_sync(started.wait)
            await store.delete(ALICE, "secret")
            changed.set()
    assert "secret" in seen[0], "it is of the moment when it began"
    assert "4711" not in told(store)
    assert "secret" not in await found_by(store)


async def test_how_many_users_are_known_by_name_is_bounded(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_USERS", 2)
    for name in "abc":
        scope = replace(ALICE, user_id=name)
        await store.put(scope, an_episode("e", "tea"))
        await store.search_columns(scope, QUERY, near=20)
    assert len(store._cache._users._numbers) == len(store._cache._held) == 2


async def test_an_access_of_what_no_record_can_be_called_is_refused_at_once(store: SqliteStore) -> None:
    with pytest.raises(UsageError, match="an id to touch"):
        await store.touch(ALICE, "\ud800", at=START)
    await store.put(ALICE, an_episode("after", "tea"))
    assert await store.get(ALICE, "after")
