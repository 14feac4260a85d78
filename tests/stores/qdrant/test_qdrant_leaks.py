"""A Qdrant store that forgets whose vectors it touches is found out: one planted fault each."""

from uuid import NAMESPACE_OID, uuid5

import pytest

from loom.stores._vector_entries import ID, TENANT
from loom.stores.qdrant import QdrantVectorStore, connection
from loom.stores.qdrant import store as vectors
from tests.stores.engines import needs_package
from tests.stores.vector_leaks import NAMES, LeakLaws

pytestmark = pytest.mark.anyio

Store = QdrantVectorStore


def without_user(method):
    """A method that asks for everybody's; the others ask as they should."""
    original, sound = getattr(Store, method), vectors._of

    async def leaking(store, *args, **named):
        vectors._of = lambda scope, wanted: list(wanted)
        try:
            return await original(store, *args, **named)
        finally:
            vectors._of = sound

    return Store, method, leaking


async def forget_everybody(store, scope):
    held = await store.count(scope)
    await store.clear()
    return held


def without(name, key):
    """An engine that forgets a condition."""
    sound = getattr(connection, name)
    return connection, name, lambda fits: sound(fits._replace(wanted=[one for one in fits.wanted if one.key != key]))


LEAKS = {
    **{name: (vectors, "tenant_of", leak) for name, leak in NAMES.items()},
    "never names the user": (vectors, "_of", lambda scope, wanted: list(wanted)),
    **{
        f"{method} does not name the user": without_user(method)
        for method in ("_write", "search", "delete", "count", "forget", "ids", "vectors")
    },
    "one vector for one id of all users": (vectors, "entry_id", lambda scope, id: str(uuid5(NAMESPACE_OID, id))),
    "one vector for one id of all namespaces": (
        vectors,
        "entry_id",
        lambda scope, id: str(uuid5(NAMESPACE_OID, f"{scope.user_id}\0{scope.session_id}\0{id}")),
    ),
    "forgets everybody": (Store, "forget", forget_everybody),
    "ignores the session": (vectors, "wanted_by", lambda scope, where: []),
}


def of_engine(name):
    return {"the engine forgets the user": without(name, TENANT), "the engine forgets the ids": without(name, ID)}


@needs_package("qdrant_client")
class TestClient(LeakLaws):
    leaks = LEAKS | of_engine("_filter")

    def open_index(self, folder):
        return QdrantVectorStore()


@needs_package("qdrant_edge")
class TestEdge(LeakLaws):
    leaks = LEAKS | of_engine("_edge_filter")

    def open_index(self, folder):
        return QdrantVectorStore(f"edge:{folder}")
