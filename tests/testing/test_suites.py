"""The form of the suites: laws cannot be rewritten, powers are optional, and each suite can fail."""

import random
from contextlib import aclosing

import pytest

from loom.errors import UsageError
from loom.protocols.memory_store import KeepsJobs, MemoryStore, Prunes
from loom.protocols.vector_store import VectorItem
from loom.providers.embedding.local import HashEmbedder
from loom.stores.inmemory import InMemoryStore
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.testing import FakeClock
from loom.testing.conformance import EmbedderSuite, MemoryStoreSuite, Suite, VectorStoreSuite, needs
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio


class BareStore:
    """A memory store without any optional power."""

    def __init__(self, clock):
        self._inner = InMemoryStore(clock=clock)
        self.put, self.get, self.delete = self._inner.put, self._inner.get, self._inner.delete
        self.list, self.count, self.forget = self._inner.list, self._inner.count, self._inner.forget
        self.aclose = self._inner.aclose

    async def search(self, scope, query):
        if query.vector is not None:
            raise UsageError("this store keeps no vectors; ask in words")
        return await self._inner.search(scope, query)


class TestBareStore(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(BareStore(clock)) as store:
            yield store

    def test_it_has_no_power(self, clock):
        assert isinstance(BareStore(clock), MemoryStore)
        assert not isinstance(BareStore(clock), Prunes | KeepsJobs)


class TestVectors(VectorStoreSuite):
    @pytest.fixture
    async def store(self):
        async with aclosing(InMemoryVectorStore()) as store:
            yield store


class TestHashing(EmbedderSuite):
    factory = "loom.providers.embedding.local:HashEmbedder"

    @pytest.fixture
    async def embedder(self):
        return HashEmbedder()


class TestWithoutFactory(EmbedderSuite):
    @pytest.fixture
    async def embedder(self):
        return HashEmbedder(64)


class ASuite(Suite):
    async def test_one(self):
        """A law."""

    @needs(Prunes, KeepsJobs)
    async def test_powers(self, store):
        """A law of powers."""
        raise AssertionError(store)


def test_a_law_cannot_be_rewritten():
    with pytest.raises(TypeError, match=r"Cheat\.test_one rewrites a law"):
        type("Cheat", (ASuite,), {"test_one": lambda self: None})
    with pytest.raises(TypeError, match=r"Deeper\.test_the_newest_wins"):
        type("Deeper", (TestBareStore,), {"test_the_newest_wins": lambda self: None})


def test_a_law_may_be_excused_with_a_reason():
    @pytest.mark.xfail(reason="no such index")
    async def excused(self):
        raise NotImplementedError

    @pytest.mark.xfail
    async def silent(self):
        raise NotImplementedError

    assert type("Honest", (ASuite,), {"test_one": excused}).test_one is excused
    with pytest.raises(TypeError, match="rewrites a law"):
        type("Silent", (ASuite,), {"test_one": silent})


def test_a_backend_may_add_tests_of_its_own():
    assert type("More", (ASuite,), {"test_two": lambda self: None}).test_one is ASuite.test_one


async def test_a_law_of_powers_is_skipped_without_them():
    with pytest.raises(pytest.skip.Exception, match="BareStore is not Prunes and KeepsJobs"):
        await ASuite().test_powers(store=BareStore(FakeClock()))
    with pytest.raises(AssertionError):
        await ASuite().test_powers(store=InMemoryStore())


class NoFilter(InMemoryVectorStore):
    async def search(self, scope, vector, *, limit=10, where=None):
        hits = await super().search(scope, vector, limit=limit)
        return tuple(hit for hit in hits if where is None or where.matches(hit))


class NoUser(InMemoryVectorStore):
    async def search(self, scope, vector, **more):
        for namespace, user in list(self._users):
            hits = await super().search(type(scope)(namespace, user), vector, **more)
            if hits:
                return hits
        return ()


class TakesNaN(InMemoryVectorStore):
    async def upsert(self, scope, items):
        finite = [item for item in items if all(x == x for x in item.vector)]  # noqa: PLR0124 - NaN is not itself
        await super().upsert(scope, finite)


class OneByOne(InMemoryVectorStore):
    async def upsert(self, scope, items):
        for item in items:
            await super().upsert(scope, [item])


class DotProduct(InMemoryVectorStore):
    async def search(self, scope, vector, **more):
        hits = await super().search(scope, vector, **more)
        return tuple(type(hit)(hit.id, hit.score * sum(vector), hit.attributes) for hit in hits)


class Approximate(InMemoryVectorStore):
    async def upsert(self, scope, items):
        await super().upsert(
            scope, [VectorItem(i.id, [round(x) or 1e-9 for x in i.vector], i.attributes) for i in items]
        )


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (NoFilter, "test_filters_come_before_the_limit"),
        (NoUser, "test_scopes_never_meet"),
        (TakesNaN, "test_a_bad_vector_is_refused"),
        (OneByOne, "test_a_bad_vector_is_refused"),
        (DotProduct, "test_scale_changes_no_answer"),
        (Approximate, "test_up_to_a_thousand_the_answer_is_exact"),
    ],
)
async def test_a_fault_of_a_vector_store_is_caught(mutant, law):
    assert await broken_laws(VectorStoreSuite, lambda: {"store": mutant()}, law) == {law}


class Random(HashEmbedder):
    async def embed(self, texts, *, purpose="document"):
        return [[random.random() for _ in range(self.dimension)] for _ in texts]


class Zeros(HashEmbedder):
    async def embed(self, texts, *, purpose="document"):
        return [[0.0] * self.dimension for _ in texts]


class Batched(HashEmbedder):
    async def embed(self, texts, *, purpose="document"):
        return [[x * len(texts) for x in vector] for vector in await super().embed(texts, purpose=purpose)]


class Backwards(HashEmbedder):
    async def embed(self, texts, *, purpose="document"):
        return list(reversed(await super().embed(texts, purpose=purpose)))


class Forgiving(HashEmbedder):
    async def embed(self, texts, *, purpose="document"):
        return await super().embed([text.strip() or "x" for text in texts], purpose=purpose)


class Misnamed(HashEmbedder):
    @property
    def identity(self):
        return "hash"


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (Random, "test_the_same_text_has_the_same_vector"),
        (Zeros, "test_each_text_has_a_vector_of_the_dimension"),
        (Batched, "test_a_batch_gives_what_its_texts_give"),
        (Backwards, "test_a_batch_gives_what_its_texts_give"),
        (Forgiving, "test_an_empty_text_is_refused"),
        (Misnamed, "test_the_identity_names_the_dimension"),
    ],
)
async def test_a_fault_of_an_embedder_is_caught(mutant, law):
    assert await broken_laws(EmbedderSuite, lambda: {"embedder": mutant()}, law) == {law}
