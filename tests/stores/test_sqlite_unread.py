"""Hits of a SQLite store that are not read: what ranking looks at, and the record when it is asked for."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from loom import open_memory
from loom.errors import StoreError, UsageError
from loom.protocols.memory_store import Query
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite import store as module
from loom.testing.conformance.suite import ALICE, a_fact, an_episode
from loom.testing.fakes import START

pytestmark = pytest.mark.anyio
QUERY = Query(text="tea", vector=[1.0, 0.0])


async def filled(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.bind("suite:1:2", 2)
    episodes = [an_episode(f"e{n}", f"tea number {n}", attributes={"turn": n, "topic": "t" * n}) for n in range(30)]
    await store.put(ALICE, *episodes, a_fact("f"))
    await store.put_vectors(ALICE, {f"e{n}": [1.0, n / 10] for n in range(30)})
    return store


async def test_accesses_that_wait_to_be_written_are_counted_in_what_is_read(tmp_path: Path) -> None:
    async with await filled(tmp_path / "memory.db") as store:
        await store.touch(ALICE, "e3", at=START)
        found = await store.search_columns(ALICE, QUERY, near=5)
        counted = {record.id: record for record in map(found.read, range(len(found)))}
        assert counted["e3"] == await store.get(ALICE, "e3")
        assert getattr(counted["e3"], "accesses", 0) == 1
        assert counted["e4"] == await store.get(ALICE, "e4")


async def test_without_words_or_vector_it_is_refused(tmp_path: Path) -> None:
    async with await filled(tmp_path / "memory.db") as store:
        for query in (Query(text="tea"), Query(vector=[1.0, 0.0])):
            with pytest.raises(UsageError):
                await store.search_columns(ALICE, query, near=3)


async def _read_all(store: SqliteStore, *, found: list[str]) -> None:
    hits = await store.search_columns(ALICE, QUERY, near=3)
    found += hits.ids
    for place in range(len(hits)):
        hits.read(place)


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ("text = 'tea of another'", True),
        ("speaker = 'mallory'", True),
        ("text = x'ff'", False),
        ("attributes = '{'", False),
        ("at = 'noon'", False),
        ("recorded_at = 'noon'", False),
    ],
)
async def test_a_damaged_row_is_an_error_when_it_is_found_or_read(tmp_path: Path, change: str, is_found: bool) -> None:
    path, found = tmp_path / "memory.db", list[str]()
    async with await filled(path):
        pass
    db = apsw.Connection(str(path))
    db.execute(f"UPDATE records SET {change} WHERE id = 'e1'")
    db.close()
    async with SqliteStore(path) as store:
        await store.bind("suite:1:2", 2)
        with pytest.raises(StoreError, match="is damaged"):
            await _read_all(store, found=found)
    assert ("e1" in found) == is_found


async def test_a_recall_reads_few_of_many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    counted = module.from_row

    def from_row(row: tuple[object, ...]) -> object:
        read.append(str(row[0]))
        return counted(row)

    async with open_memory(f"sqlite:{tmp_path / 'memory.db'}", facts=None) as memory:
        said = [f"The boat number {n} left the pier with {n} people and some tea." for n in range(400)]
        await memory.remember(said, user_id="ann")
        monkeypatch.setattr(module, "from_row", from_row)
        found = await memory.recall("Which boat left the pier with tea?", user_id="ann", limit=8)
        assert len(found.hits) == 8
        assert len(read) <= 40, "hundreds are ranked"
