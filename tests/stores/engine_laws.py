"""What an engine for vectors has to answer like the vector store in memory: ties, and filters of every kind."""

import random

from loom.core.filter import And, Eq, In, Not, Or, Range
from loom.protocols.vector_store import VectorItem
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.testing.conformance.suite import ALICE, DAY
from loom.testing.fakes import START

VALUES = [1, 1.0, True, "1", None, 0.5, START, START + DAY, "", "tea", "n:1", 2**60]
FILTERS = [
    None, *(Eq("meta.a", value) for value in VALUES), In("meta.a", (1, "tea")), In("meta.a", (None, 1)), In("meta.a", ()),
    In("id", ("v01", "v02", "nobody")), Eq("id", "v03"), Eq("id", 3), Not(Eq("meta.a", 1)), Eq("meta.x y.'$", "é"),
    Or(Eq("meta.a", 1), Eq("meta.a", "tea")), And(Eq("meta.a", 1), Not(Eq("id", "v01"))), Range("meta.a", 0, 1),
    Range("meta.a", START), Eq("session_id", "s1"), Eq("session_id", None), And(Eq("meta.a", 1), In("id", ())),
]  # fmt: skip


class EngineLaws:
    """Subclass it with the fixture `store` of a suite."""

    async def test_of_many_equal_vectors_the_first_ids_are_found(self, store):
        """However few are asked for, and in whatever order they came."""
        ids = [f"v{number:03}" for number in range(120)]
        await store.upsert(ALICE, [VectorItem(id, [2.0, 1.0]) for id in random.Random(1).sample(ids, 120)])
        await store.upsert(ALICE, [VectorItem("z", [1.0, 1.0]), VectorItem("best", [1.0, 0.0])])
        for limit in (1, 4, 30):
            assert [hit.id for hit in await store.search(ALICE, [1.0, 0.0], limit=limit)] == ["best", *ids][:limit]

    async def test_filters_mean_what_they_mean_in_memory(self, store):
        """Values of every type under names with any character, and sessions."""
        reference, chance = InMemoryVectorStore(), random.Random(3)
        for number in range(60):
            attributes = {"a": chance.choice(VALUES)} | ({"x y.'$": "é"} if number % 7 == 0 else {})
            item = VectorItem(f"v{number:02}", [chance.gauss(0, 1) for _ in range(4)], attributes)
            scope = chance.choice([ALICE, ALICE.for_session("s1"), ALICE.for_session("s2")])
            for each in (store, reference):
                await each.upsert(scope, [item])
        for scope in (ALICE, ALICE.for_session("s1")):
            for where in FILTERS:
                for limit in (1, 7, 100):
                    asked = [chance.gauss(0, 1) for _ in range(4)]
                    found = [(h.id, h.attributes) for h in await store.search(scope, asked, limit=limit, where=where)]
                    expected = await reference.search(scope, asked, limit=limit, where=where)
                    assert found == [(hit.id, hit.attributes) for hit in expected], where

    async def test_what_a_user_writes_replaces_what_their_sessions_have(self, store):
        """One vector under an id is left; another session's of the same id are two."""
        one, two = ALICE.for_session("one"), ALICE.for_session("two")
        await store.upsert(one, [VectorItem("x", [0.0, 1.0]), VectorItem("a", [1.0, 0.0])])
        await store.upsert(two, [VectorItem("x", [1.0, 1.0])])
        assert [hit.id for hit in await store.search(ALICE, [1.0, 0.0])] == ["a", "x", "x"]
        await store.upsert(ALICE, [VectorItem("x", [1.0, 0.0])])
        assert [hit.id for hit in await store.search(ALICE, [1.0, 0.0])] == ["a", "x"]
        assert (await store.count(ALICE), await store.count(one), await store.count(two)) == (2, 1, 0)
        assert await store.forget(one) == 1
