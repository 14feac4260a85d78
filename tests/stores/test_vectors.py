from datetime import UTC, datetime

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.filter import And, Eq, Not, Range
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, UsageError
from loom.protocols.vector_store import VectorItem, VectorStore
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.testing.conformance import VectorStoreSuite

pytestmark = pytest.mark.anyio

ALICE, BOB = Scope(user_id="alice"), Scope(user_id="bob")


@pytest.fixture
async def store():
    made = InMemoryVectorStore()
    yield made
    await made.aclose()


class TestLaws(VectorStoreSuite):
    @pytest.fixture
    async def store(self):
        made = InMemoryVectorStore()
        yield made
        await made.aclose()


def _items(**vectors):
    return [VectorItem(id, vector) for id, vector in vectors.items()]


async def _ids(store, scope, vector, **how):
    return [hit.id for hit in await store.search(scope, vector, **how)]


def test_it_is_a_vector_store():
    assert isinstance(InMemoryVectorStore(), VectorStore)


async def test_nearest_first_with_the_cosine(store):
    await store.upsert(ALICE, _items(same=[1, 0], near=[3, 4], across=[0, 2], against=[-5, 0]))
    hits = await store.search(ALICE, [2, 0])
    assert [(hit.id, round(hit.score, 9)) for hit in hits] == [
        ("same", 1.0), ("near", 0.6), ("across", 0.0), ("against", -1.0),
    ]  # fmt: skip
    assert await _ids(store, ALICE, [2, 0], limit=2) == ["same", "near"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 300), limit=st.integers(1, 40))
async def test_the_answer_is_that_of_comparing_with_each(seed, count, limit):
    rng = np.random.default_rng(seed)
    rows, asked = rng.integers(-3, 4, (count, 5)).astype(float), rng.normal(size=5)
    rows[~rows.any(axis=1)] = 1.0
    store = InMemoryVectorStore()
    await store.upsert(ALICE, [VectorItem(f"v{place:03}", row) for place, row in enumerate(rows)])
    # Rows that point the same way are divided to one and the same row, so that their cosines are equal to the bit.
    primitive = rows / np.gcd.reduce(rows.astype(int), axis=1)[:, None]
    cosines = [float(np.dot(row, asked) / np.linalg.norm(row) / np.linalg.norm(asked)) for row in primitive]
    expected = sorted((-cosine, f"v{place:03}") for place, cosine in enumerate(cosines))[:limit]
    hits = await store.search(ALICE, asked, limit=limit)
    assert [hit.id for hit in hits] == [id for _, id in expected]
    assert [-hit.score for hit in hits] == pytest.approx([cosine for cosine, _ in expected], abs=1e-8)


async def test_multiples_tie_and_ids_decide(store):
    vector = np.array([0.1, 0.7, -0.3])
    for scale, id in ((3.0, "b"), (1e-200, "a"), (0.3333, "d"), (1e200, "c")):
        await store.upsert(ALICE, [VectorItem(id, vector * scale)])
    assert await _ids(store, ALICE, [1, 2, 3], limit=3) == ["a", "b", "c"]
    assert await _ids(store, ALICE, [1e-3, 2e-3, 3e-3]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "bad", [[float("nan"), 1], [float("inf"), 1], [0, 0], [1, 2, 3], [], ["a", "b"], [[1, 2]]], ids=str
)
async def test_a_bad_vector_is_refused_and_nothing_of_its_batch_stays(store, bad):
    await store.upsert(ALICE, _items(kept=[1, 0]))
    with pytest.raises(UsageError, match="vector bad"):
        await store.upsert(ALICE, [VectorItem("good", [0, 1]), VectorItem("bad", bad)])
    with pytest.raises(UsageError, match="the vector to search for"):
        await store.search(ALICE, bad)
    assert await _ids(store, ALICE, [1, 1]) == ["kept"]


async def test_the_first_upsert_fixes_the_dimension_for_all_users(store):
    await store.upsert(ALICE, [])
    await store.upsert(ALICE, _items(a=[1, 0]))
    with pytest.raises(UsageError, match="3 numbers, and this store holds vectors of 2"):
        await store.upsert(BOB, _items(a=[1, 0, 0]))


async def test_a_batch_of_two_dimensions_fixes_none(store):
    with pytest.raises(UsageError):
        await store.upsert(ALICE, [VectorItem("a", [1, 0]), VectorItem("b", [1, 0, 0])])
    await store.upsert(ALICE, _items(a=[1, 0, 0]))
    assert await store.count(ALICE) == 1


async def test_another_embedder_is_refused(store):
    await store.bind("mine:1:2", 2)
    await store.bind("mine:1:2", 2)
    with pytest.raises(EmbedderMismatch, match="vectors from mine:1:2"):
        await store.bind("other:1:2", 2)
    with pytest.raises(UsageError):
        await store.bind("mine:1:2", 3)
    with pytest.raises(UsageError):
        await store.upsert(ALICE, _items(a=[1, 0, 0]))


async def test_the_filter_comes_before_the_limit(store):
    day = datetime(2026, 5, 1, tzinfo=UTC)
    await store.upsert(
        ALICE,
        [
            VectorItem(f"v{place:02}", [1, place], {"even": place % 2 == 0, "at": day, "n": place})
            for place in range(40)
        ],
    )
    fits = And(Eq("meta.even", value=True), Range("meta.n", 31), Eq("meta.at", day))
    assert await _ids(store, ALICE, [1, 0], limit=3, where=fits) == ["v32", "v34", "v36"]
    assert await _ids(store, ALICE, [1, 0], limit=2, where=Not(Eq("id", "v00"))) == ["v01", "v02"]


async def test_scopes_never_meet(store):
    other = Scope(namespace="n", user_id="alice")
    for scope, id in ((ALICE, "a"), (BOB, "b"), (other, "c")):
        await store.upsert(scope, _items(**{id: [1, 0], "shared": [1, 1]}))
    assert await _ids(store, ALICE, [1, 0]) == ["a", "shared"]
    assert await store.delete(BOB, "a", "c", "shared", "shared") == 1
    assert await store.forget(other) == 2
    assert [await store.count(scope) for scope in (ALICE, BOB, other)] == [2, 1, 0]


async def test_sessions_of_a_user(store):
    one, two = ALICE.for_session("one"), ALICE.for_session("two")
    await store.upsert(one, _items(a=[1, 0], x=[0, 1]))
    await store.upsert(two, _items(b=[1, 0], x=[1, 1]))
    assert await _ids(store, one, [1, 0]) == ["a", "x"]
    assert [hit.score for hit in await store.search(one, [1, 0])] == [1.0, 0.0]
    assert await _ids(store, ALICE, [1, 0]) == ["a", "b", "x", "x"]
    assert await store.delete(two, "a") == 0
    await store.upsert(ALICE, _items(x=[1, 0]))
    assert await _ids(store, ALICE, [1, 0]) == ["a", "b", "x"]
    assert await store.forget(one) == 1
    assert await _ids(store, ALICE, [1, 0]) == ["b", "x"]


async def test_what_was_deleted_is_never_found_again(store):
    await store.upsert(ALICE, [VectorItem(f"v{place:02}", [1.0, place]) for place in range(50)])
    gone = [f"v{place:02}" for place in range(0, 50, 3)]
    assert await store.delete(ALICE, *gone, "never there") == len(gone)
    left = await store.search(ALICE, [1, 0], limit=100)
    assert [hit.id for hit in left] == [f"v{place:02}" for place in range(50) if place % 3]
    assert [hit.score for hit in left] == pytest.approx([(1 + p * p) ** -0.5 for p in range(50) if p % 3], abs=1e-8)


async def test_what_a_caller_changes_later_changes_nothing_here(store):
    vector = np.array([1.0, 0.0])
    await store.upsert(ALICE, [VectorItem("a", vector)])
    vector[:] = [0.0, 1.0]
    (hit,) = await store.search(ALICE, [1, 0])
    assert hit.score == 1.0


async def test_a_large_search_gives_the_same_as_a_small_one_while_others_write(store):
    rng = np.random.default_rng(5)
    rows, asked = rng.normal(size=(9_000, 256)), rng.normal(size=256)
    names = [f"v{place:05}" for place in range(len(rows))]
    await store.upsert(ALICE, [VectorItem(id, row) for id, row in zip(names, rows, strict=True)])
    best = [names[place] for place in np.argsort(-(rows @ asked) / np.linalg.norm(rows, axis=1))[:10]]
    found = []

    async def search():
        found.append(await _ids(store, ALICE, asked))

    async def write():
        await store.delete(ALICE, *names)
        await store.upsert(ALICE, [VectorItem("new", asked)])

    async with anyio.create_task_group() as group:
        for step in (search, search, write):
            group.start_soon(step)
    assert found == [best, best]
    assert await _ids(store, ALICE, asked) == ["new"]


async def test_an_empty_store_finds_nothing_and_closes_twice(store):
    assert await store.search(ALICE, [1, 0]) == ()
    assert (await store.delete(ALICE, "a"), await store.count(ALICE), await store.forget(ALICE)) == (0, 0, 0)
    with pytest.raises(UsageError, match="limit=0"):
        await store.search(ALICE, [1, 0], limit=0)
    await store.aclose()
    await store.aclose()
