"""The SQLite store finds the nearest vectors, exactly among few and by estimate among many."""

import random
import sys
from contextlib import asynccontextmanager

import anyio
import numpy as np
import pytest

from loom.core.filter import Eq, In
from loom.errors import NotFound
from loom.protocols.memory_store import Query
from loom.stores._search import cosines
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.index import SearchCache
from loom.testing.conformance import MemoryStoreSuite
from loom.testing.conformance.isolation import observe, random_trace
from loom.testing.conformance.suite import ALICE, BOB, an_episode
from loom.testing.fakes import FakeClock
from tests.stores.test_nearest import some_vectors
from tests.stores.test_sqlite import rounded

pytestmark = pytest.mark.anyio
MANY = 3_000


def estimating(path, **options):
    """A store that keeps sketches from the first vector on."""
    store = SqliteStore(path, **options)
    store._cache = SearchCache(2**29, exact_numbers=0)
    return store


class TestSqliteByEstimate(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        async with estimating(tmp_path / "memory.db", clock=clock) as store:
            yield store


@pytest.mark.parametrize("seed", range(10))
async def test_estimates_answer_like_the_store_in_memory(seed):
    trace = random_trace(random.Random(seed), steps=60)
    scopes = {"A": ALICE, "B": BOB}
    async with estimating(":memory:", clock=FakeClock()) as store:
        seen = await observe(store, trace, scopes)
    assert rounded(seen) == rounded(await observe(InMemoryStore(clock=FakeClock()), trace, scopes))


@asynccontextmanager
async def filled(matrix, path=":memory:", *, open_store=estimating):
    async with open_store(path, durability="fast") as store:
        await store.bind("test", matrix.shape[1])
        for first in range(0, len(matrix), 1000):
            places = range(first, min(first + 1000, len(matrix)))
            episodes = [an_episode(f"e{n:05}", f"word{n % 7}", attributes={"hundredth": n % 100}) for n in places]
            await store.put(ALICE, *episodes)
            await store.put_vectors(ALICE, {f"e{n:05}": matrix[n] for n in places})
        yield store


def nearest(matrix, query, places, limit):
    """Ids of the nearest by comparing all, with their cosines."""
    scores = cosines(matrix, query)
    return sorted(((float(scores[n]), f"e{n:05}") for n in places), key=lambda one: (-one[0], one[1]))[:limit]


async def found(store, query, **fields):
    hits = await store.search(ALICE, Query(vector=query, **fields))
    return [(hit.score, hit.item.id) for hit in hits]


async def shares(store, matrix, places, **fields):
    """Which share of the nearest is found, of many questions."""
    hit = []
    for query in some_vectors(12, 30):
        expected = nearest(matrix, query, places, fields["limit"])
        got = await found(store, query, **fields)
        assert got == sorted(got, key=lambda one: (-one[0], one[1]))
        exact = {id: score for score, id in nearest(matrix, query, range(len(matrix)), len(matrix))}
        assert [score for score, _ in got] == pytest.approx([exact[id] for _, id in got], abs=2e-6)
        hit.append(len({id for _, id in got} & {id for _, id in expected}) / len(expected))
    return np.mean(hit)


async def test_few_vectors_are_found_exactly_after_any_history():
    chance, oracle = random.Random(4), {}
    matrix = some_vectors(10, 600)
    async with SqliteStore(":memory:") as exact, estimating(":memory:") as estimated:
        for store in (exact, estimated):
            await store.bind("test", 64)
        for step in range(120):
            id, vector = f"e{chance.randrange(40):05}", matrix[step]
            is_gone = chance.random() < 0.3
            for store in (exact, estimated):
                if is_gone:
                    await store.delete(ALICE, id)
                else:
                    await store.put(ALICE, an_episode(id))
                    await store.put_vectors(ALICE, {id: vector})
            oracle.pop(id, None) if is_gone else oracle.update({id: vector})
            query = matrix[chance.randrange(600)]
            scores = {id: float(cosines(held[np.newaxis], query)[0]) for id, held in oracle.items()}
            expected = sorted(((score, id) for id, score in scores.items()), key=lambda one: (-one[0], one[1]))[:10]
            assert await found(exact, query) == expected
            assert await found(estimated, query) == expected


async def test_estimates_find_the_nearest_of_many():
    matrix = some_vectors(11, MANY)
    async with filled(matrix) as store:
        assert await shares(store, matrix, range(MANY), limit=10) >= 0.99
        assert await shares(store, matrix, range(MANY), limit=100) >= 0.97


async def test_a_filter_counts_before_the_limit():
    matrix = some_vectors(11, 7_000)
    async with filled(matrix) as store:
        some = [n for n in range(7_000) if n % 100 == 1]
        assert await shares(store, matrix, some, limit=10, where=Eq("meta.hundredth", 1)) >= 0.99
        few = [5, 1500, 1501, 6999]
        only = In("id", tuple(f"e{n:05}" for n in few))
        assert await shares(store, matrix, few, limit=10, where=only) == 1
        assert await shares(store, matrix, few, limit=2, where=only) == 1
        assert await found(store, matrix[0], where=Eq("id", "nobody")) == []


async def test_words_and_vectors_add_up_where_cosines_are_estimated():
    matrix = some_vectors(11, MANY)
    async with filled(matrix) as store, filled(matrix, open_store=SqliteStore) as exact:
        for query in some_vectors(13, 5):
            asked = Query(text="word3", vector=query, limit=20)
            hits = await store.search(ALICE, asked)
            assert hits == await exact.search(ALICE, asked)
            assert len(hits) == 20
            assert all(set(hit.why) == {"bm25", "dense"} for hit in hits)


async def test_a_search_sees_what_was_just_written_changed_or_taken_away():
    matrix = some_vectors(11, MANY)
    query = some_vectors(14, 1)[0]
    async with filled(matrix) as store:
        (_, first), (_, second) = await found(store, query, limit=2)
        await store.put(ALICE, an_episode("new"))
        await store.put_vectors(ALICE, {"new": query})
        assert [id for _, id in await found(store, query, limit=3)] == ["new", first, second]
        await store.put_vectors(ALICE, {"new": -query})
        assert [id for _, id in await found(store, query, limit=2)] == [first, second]
        assert await found(store, -query, limit=1) == [(1.0, "new")]
        await store.put(ALICE, an_episode(first, "other words, and no vector of them yet"))
        assert [id for _, id in await found(store, query, limit=1)] == [second]
        assert await found(store, query, where=Eq("id", first)) == []
        await store.delete(ALICE, second, "new")
        assert second not in {id for _, id in await found(store, query, limit=5)}


async def test_sketches_of_what_others_removed_are_let_go_when_they_are_many(tmp_path):
    matrix = some_vectors(11, 1600)
    path = tmp_path / "memory.db"
    async with filled(matrix, path) as store, SqliteStore(path) as other:
        await found(store, matrix[0])
        (held,) = store._cache._held.values()
        await other.delete(ALICE, *(f"e{n:05}" for n in range(200)))
        await found(store, matrix[0])
        assert len(held.vectors) == 1600
        await other.delete(ALICE, "e00200")
        assert await found(store, matrix[300], limit=1) == [(1.0, "e00300")]
        assert len(held.vectors) == 1399


async def test_equal_vectors_score_equal_and_go_by_id():
    matrix = np.repeat(some_vectors(11, 3), [10, 2000, 10], axis=0)
    async with filled(matrix) as store:
        got = await found(store, matrix[500], limit=20)
        assert {score for score, _ in got} == {1.0}
        assert [id for _, id in got] == [f"e{n:05}" for n in range(10, 30)]


async def test_what_is_held_in_memory_stays_within_its_bound():
    matrix = some_vectors(11, 300)
    async with filled(matrix) as store:
        await store.put(BOB, an_episode("b"))
        await store.put_vectors(BOB, {"b": matrix[0]})
        store._cache = SearchCache(15_000, exact_numbers=0)
        await store.search(BOB, Query(vector=matrix[0]))
        assert len(store._cache._held) == 1
        for _ in range(2):  # more than the bound: it works, and nothing is kept
            assert await found(store, matrix[7], limit=1) == [(1.0, "e00007")]
            assert store._cache._held == {}


async def test_another_process_writes_and_the_next_search_sees_it(tmp_path):
    matrix = some_vectors(11, 1500)
    path = tmp_path / "memory.db"
    script = (
        "import anyio, sys\n"
        "from loom.stores.sqlite import SqliteStore\n"
        "from loom.testing.conformance.suite import ALICE, an_episode\n"
        "async def main():\n"
        "    async with SqliteStore(sys.argv[1]) as store:\n"
        "        await store.put(ALICE, an_episode('theirs'))\n"
        "        await store.put_vectors(ALICE, {'theirs': [1.0] * 64})\n"
        "        await store.delete(ALICE, 'e00003')\n"
        "anyio.run(main)\n"
    )
    async with filled(matrix, path) as store:
        assert await found(store, matrix[3], limit=1) == [(1.0, "e00003")]
        await anyio.run_process([sys.executable, "-c", script, str(path)])
        assert await found(store, np.ones(64), limit=1) == [(1.0, "theirs")]
        assert "e00003" not in {id for _, id in await found(store, matrix[3], limit=5)}


async def test_what_only_words_find_is_compared_too():
    matrix = some_vectors(11, MANY)
    async with filled(matrix) as store:
        hits = await store.search_hybrid(ALICE, Query(text="word3", vector=matrix[500], limit=400), near=10)
    assert len(hits) > 400
    numbers = [int(hit.item.id[1:]) for hit in hits]
    assert [hit.why["dense"] for hit in hits] == pytest.approx(cosines(matrix[numbers], matrix[500]).tolist(), abs=1e-5)


async def test_accesses_are_seen_at_once_and_written_with_the_next_change(tmp_path):
    at = FakeClock().now()
    async with SqliteStore(tmp_path / "memory.db") as store, SqliteStore(tmp_path / "memory.db") as other:
        await store.put(ALICE, an_episode("e1", "tea"), an_episode("e2", "tea", session_id="s1"))
        for scope in (ALICE, ALICE.for_session("s1"), ALICE.for_session("s2")):
            await store.touch(scope, "e1", "e2", at=at)
        for query in (Query(text="tea"), Query(text="tea", where=Eq("accesses", 2))):
            hits = {hit.item.id: hit.item.accesses for hit in await store.search(ALICE, query)}
            assert hits["e2"] == 2
        assert {id: (await store.get(ALICE, id)).accesses for id in ("e1", "e2")} == {"e1": 1, "e2": 2}
        await store.touch(ALICE, "e1", at=at)
        assert (await other.get(ALICE, "e1")).accesses == 1
        await store.put(BOB, an_episode("b"))
        assert (await other.get(ALICE, "e1")).accesses == 2
        await store.touch(ALICE, "e1", at=at)
    async with SqliteStore(tmp_path / "memory.db") as store:
        assert (await store.get(ALICE, "e1")).accesses == 3
        for _ in range(400):
            await store.touch(ALICE, "e1", "e2", "e1", at=at)
        async with SqliteStore(tmp_path / "memory.db") as other:
            assert (await other.get(ALICE, "e1")).accesses > 500
        with pytest.raises(NotFound):
            await store.put_keys(ALICE, {"unknown": {"around": "tea"}})
        assert (await store.get(ALICE, "e1")).accesses == 803


async def test_of_many_who_write_and_search_at_once_each_finds_what_they_wrote(tmp_path):
    def vector_of(id: str) -> list[float]:
        chance = random.Random(id)
        return [chance.gauss(0, 1) for _ in range(8)]

    async with SqliteStore(tmp_path / "memory.db", durability="fast") as store:
        await store.bind("many:1:8", 8)
        missed = list[str]()

        async def write(writer: int) -> None:
            for number in range(25):
                id = f"w{writer}.{number:02}"
                await store.put(ALICE, an_episode(id))
                await store.put_vectors(ALICE, {id: vector_of(id)})
                (hit,) = await store.search(ALICE, Query(vector=vector_of(id), limit=1))
                missed.extend([id] if hit.item.id != id else [])

        async with anyio.create_task_group() as tasks:
            for writer in range(4):
                tasks.start_soon(write, writer)
        assert missed == []
