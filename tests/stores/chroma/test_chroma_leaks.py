"""A Chroma store that forgets whose vectors it touches is found out: one planted fault each."""

from itertools import chain

import pytest

from loom.protocols.vector_store import VectorItem
from loom.stores.chroma import store as vectors
from loom.testing.conformance.suite import ALICE
from tests.stores.engines import needs_package
from tests.stores.vector_leaks import NAMES, LeakLaws

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]

Store = vectors.ChromaVectorStore


def of_everybody(method, joined):
    """A method that does what it does to the vectors of all users."""
    original = getattr(Store, method)

    async def leaking(store, scope, *args, **named):
        users = {scope.for_user(), *await store.users()}
        return joined([await original(store, user, *args, **named) for user in users])

    return Store, method, leaking


def merged(found):
    return {id: vector for one in found for id, vector in one.items()}


def best_of(found):
    return tuple(sorted(chain(*found), key=lambda hit: (-hit.score, hit.id))[:10])


LEAKS = {
    **{name: (vectors, "tenant_of", leak) for name, leak in NAMES.items()},
    "one collection for all": (Store, "_name", lambda store, scope: f"{store._prefix}-user-all"),
    "upsert writes for everybody": of_everybody("upsert", lambda found: None),
    "search finds everybody's": of_everybody("search", best_of),
    "delete removes everybody's": of_everybody("delete", sum),
    "count counts everybody's": of_everybody("count", sum),
    "forget forgets everybody": of_everybody("forget", sum),
    "ids lists everybody's": of_everybody("ids", lambda found: tuple(chain(*found))),
    "vectors gives everybody's": of_everybody("vectors", merged),
    "users names one who has none": (Store, "_users", lambda store, client: (ALICE,)),
    "ignores the session": (vectors, "wanted_by", lambda scope, where: []),
    "keeps what a session had": (vectors, "_found", lambda *args, **named: iter(())),
}


class TestInMemory(LeakLaws):
    leaks = LEAKS

    def open_index(self, folder):
        return Store()


async def left_by_clearing(folder):
    """What is left to one store after another cleared its own, in one folder."""
    one, other = Store(folder, prefix="one"), Store(folder, prefix="other")
    for store in (one, other):
        await store.upsert(ALICE, [VectorItem("a", [1.0, 0.0])])
    await one.clear()
    left = await other.ids(ALICE)
    for store in (one, other):
        await store.aclose()
    return left


async def test_stores_of_one_folder_never_meet(tmp_path):
    assert await left_by_clearing(tmp_path) == ("a",)


async def test_a_store_that_clears_all_collections_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Store, "_collections", lambda store, client: [one for one in client.list_collections() if "-user-" in one.name]
    )
    assert await left_by_clearing(tmp_path) == ()
