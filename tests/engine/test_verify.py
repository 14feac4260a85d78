"""Verifying a store: every index is compared with the records it is of, part by part, and built again from them."""

import apsw
import pytest

from loom.admin.maintenance import verify_store
from loom.core.record import Layer
from loom.core.scope import Scope
from loom.engine.urls import Opening, store_at
from loom.protocols.memory_store import Query
from loom.stores import _search
from loom.stores.sqlite import SqliteStore, index
from loom.testing.conformance.suite import ALICE, BOB, a_block, a_fact, an_episode

pytestmark = pytest.mark.anyio

EMBEDDER = ("verify:1:2", 2)
X = [1.0, 0.0]


@pytest.fixture(autouse=True)
def small_runs(monkeypatch):
    """Runs of 2, 8 and 32 numbers, so that a few records fill and join many; all are indexed when they are written."""
    monkeypatch.setattr(index, "TAIL", 1)
    monkeypatch.setattr(index, "BLOCK", 5)
    monkeypatch.setattr(index, "SKETCHES", (index.SKETCH_WORDS * 8 + 1) * 5)
    monkeypatch.setattr(_search, "RUN", 2)
    monkeypatch.setattr(_search, "LARGER_RUNS", (32, 8))


async def filled(path):
    """A file of two users, and the file again for harm."""
    async with SqliteStore(path) as store:
        await store.bind(*EMBEDDER)
        for number in range(45):
            await store.put(ALICE, an_episode(f"e{number}", f"we drank tea number {number} \n tea\ntea"))
        await store.put(ALICE, a_fact(), a_block())
        await store.put_keys(ALICE, {"e1": {"near": "cakes and tea"}, "f1": {"near": "boats"}})
        await store.delete(ALICE, "e7", "e30")
        await store.put(ALICE, an_episode("e3", "now it is coffee"))
        await store.put_vectors(ALICE, {"e1": X, "e2": X})
        await store.put(BOB, an_episode())
        await store.put_vectors(BOB, {"e1": X})


async def searched(path):
    async with SqliteStore(path) as store:
        asked = [await store.search(ALICE, Query(text=text, limit=100)) for text in ("tea number", "coffee", "boats")]
        return [[(hit.item.id, hit.score) for hit in hits] for hits in asked]


def harmed(path, *statements):
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    assert db.total_changes()
    db.close()


async def test_a_sound_file_has_no_difference(tmp_path):
    await filled(tmp_path / "m.db")
    async with SqliteStore(tmp_path / "m.db") as store:
        found = await store.verify()
        assert found.is_equal
        assert (found.users, found.vectors, found.by_user) == (2, 3, ())
        assert not (await store.verify(repair=True)).is_repaired


HARMS = {
    "missing": "DELETE FROM postings WHERE user = 1 AND term LIKE 'tea%'",
    "extra": "INSERT INTO postings VALUES (1, 0, 'whisky', 'bm25', (SELECT entries FROM postings WHERE user = 1 LIMIT 1))",
    "stray": "INSERT INTO postings VALUES (1, 3, 'tea', 'bm25', (SELECT entries FROM postings WHERE user = 1 LIMIT 1))",
    "wrong": "UPDATE postings SET entries = CAST(substr(entries, 1, 4) || x'0900' || substr(entries, 7) AS BLOB) "
    "WHERE user = 1 AND term LIKE 'coffe%'",
    "torn": "UPDATE postings SET entries = CAST(entries || x'00' AS BLOB) WHERE user = 1 AND term LIKE 'coffe%'",
    "twice": "UPDATE postings SET entries = CAST(entries || entries AS BLOB) WHERE user = 1 AND term LIKE 'coffe%'",
    "lengths": "UPDATE lengths SET words = words + 1 WHERE user = 1 AND signal = 'bm25'",
    "keys": "DELETE FROM postings WHERE user = 1 AND signal = 'bm25.near'",
    "links": "UPDATE links SET data = CAST(x'07' || substr(data, 2) AS BLOB) WHERE row = 1 << 32",
    "indexed": "UPDATE users SET indexed = indexed - 1 WHERE user = 1",
    "count": "UPDATE users SET records = records + 1 WHERE user = 1",
}


@pytest.mark.parametrize("harm", HARMS)
async def test_a_harmed_word_index_is_found_and_built_again(tmp_path, harm):
    path = tmp_path / "m.db"
    await filled(path)
    before = await searched(path)
    harmed(path, HARMS[harm])
    async with SqliteStore(path) as store:
        found = await store.verify()
        assert [(one.user, one.what) for one in found.by_user] == [(ALICE, "words")]
        assert not found.is_repaired
        assert (await store.verify(repair=True)).is_repaired
        assert (await store.verify()).is_equal
        assert await store.count(ALICE) == 45
        await store.put(ALICE, an_episode("new", "tea"))  # and it goes on in step
        assert (await store.verify()).is_equal
        await store.delete(ALICE, "new")
    assert await searched(path) == before


async def test_a_sketch_without_a_vector_is_found_and_taken_away(tmp_path):
    path = tmp_path / "m.db"
    await filled(path)
    torn = "CAST(substr(data, 1, length(data) - 1) || x'01' AS BLOB)"
    harmed(path, f"UPDATE sketches SET data = {torn} WHERE row = 1 << 32")
    async with SqliteStore(path) as store:
        found = await store.verify(repair=True)
        assert [(one.user, one.what, one.extra) for one in found.by_user] == [(ALICE, "vectors", 1)]
        assert (await store.verify()).is_equal
        assert len(await store.search(ALICE, Query(vector=X, limit=5))) == 2


async def test_a_vector_that_is_none_is_taken_away(tmp_path):
    path = tmp_path / "m.db"
    await filled(path)
    harmed(path, "UPDATE vectors SET data = x'00' WHERE user = 2")
    async with SqliteStore(path) as store:
        found = await store.verify(repair=True)
        assert [(one.user, one.what, one.wrong) for one in found.by_user] == [(BOB, "vectors", 1)]
        assert [record.id for _, record in await store.unembedded(limit=1000) if _ == BOB] == ["e1"]
        assert (await store.verify()).is_equal


async def test_a_row_that_points_to_nothing_is_a_problem_that_stays(tmp_path):
    path = tmp_path / "m.db"
    await filled(path)
    harmed(path, "PRAGMA foreign_keys=OFF", "INSERT INTO keys VALUES (99, 'near', 'nothing')")
    store = SqliteStore(path)
    (found,) = await verify_store(store, repair=True)
    assert found.difference.problems == ("keys: a row points to nothing",)
    assert not found.is_right
    await store.aclose()


async def test_a_composed_store_is_verified_down_to_its_parts(tmp_path, redis_url):
    where = f"composite:?primary=sqlite:{tmp_path}/t.db&vectors=qdrant:{tmp_path}/v&l2={redis_url}"
    store = store_at(where, Opening())
    await store.bind(*EMBEDDER)
    await store.put(ALICE, an_episode("hot"), an_episode("l3", layer=Layer.L3), a_fact())
    await store.put_vectors(ALICE, {"hot": X, "l3": X})
    await store.parts["primary"]._index.delete(ALICE, "l3")
    await store.aclose()
    harmed(tmp_path / "t.db", "DELETE FROM postings WHERE term = 'tea'")
    store = store_at(where, Opening())  # nobody says whose vectors they are, and nobody has to
    found = await verify_store(store)
    assert [(one.part, one.store) for one in found] == [
        ("primary.primary", "SqliteStore"),
        ("primary", "IndexedStore"),
        ("l1+l2", "RedisStore"),
    ]
    assert [one.is_right for one in found] == [False, False, True]
    assert found[2].difference is None
    assert found[1].difference.by_user[0].missing == 1
    assert [one.is_right for one in await verify_store(store, repair=True)] == [True, True, True]
    assert [one.difference.is_equal for one in await verify_store(store) if one.difference] == [True, True]
    await store.aclose()


async def test_an_index_that_was_lost_is_built_from_the_primary(tmp_path, postgres_url):
    where = {"backend": "qdrant", "path": str(tmp_path / "v"), "primary": postgres_url}
    store = store_at(where, Opening())
    await store.bind(*EMBEDDER)
    await store.put(Scope("n", "u"), an_episode())
    await store.put_vectors(Scope("n", "u"), {"e1": X})
    await store._index.clear()
    await store.aclose()
    store = store_at(where, Opening())
    found = await verify_store(store, repair=True)
    assert [(one.part, one.difference and one.difference.missing) for one in found] == [("primary", None), ("store", 1)]
    assert await store._index.ids(Scope("n", "u")) == ("e1",)
    assert await store._index.bound() == EMBEDDER
    await store.aclose()
