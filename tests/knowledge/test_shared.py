"""What a knowledge base does where others write to its store, or stop in the middle of it."""

import pytest

from loom.core.scope import Scope
from loom.errors import StoreError, StoreUnavailable
from loom.knowledge.vector import VectorKnowledgeBase
from loom.protocols.knowledge_base import Document
from loom.protocols.vector_store import VectorItem
from loom.providers.embedding.local import HashEmbedder
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.testing.conformance import SharedKnowledgeSuite
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio

ENTRIES = Scope(namespace="knowledge", user_id="default")
CHANGES = Scope(namespace="knowledge.changes", user_id="default")


def over(store, kind=VectorKnowledgeBase, **more):
    return kind(embedding_provider=HashEmbedder(), vector_store=store, **more)


def doc(id, text):
    return Document(id=id, text=text)


async def found(base, query):
    return sorted(hit.item.text for hit in await base.search(query, limit=99))


class Silent(InMemoryVectorStore):
    """A store on which a writer stops before it tells others."""

    is_silent = False

    async def upsert(self, scope, items):
        if self.is_silent and scope.namespace == CHANGES.namespace:
            raise StoreUnavailable("the connection broke; try again")
        await super().upsert(scope, items)


async def test_what_a_writer_did_not_announce_is_found_all_the_same():
    store = Silent()
    one, two = over(store), over(store)
    await two.add(doc("b", "Bruno drinks coffee."))
    assert await found(one, "drinks") == ["Bruno drinks coffee."]
    store.is_silent = True
    with pytest.raises(StoreUnavailable):
        await one.add(doc("a", "Anna drinks tea."))
    assert await found(two, "Anna tea") == ["Anna drinks tea.", "Bruno drinks coffee."]
    with pytest.raises(StoreUnavailable):
        await one.remove("a")
    assert await found(two, "Anna tea") == ["Bruno drinks coffee."]


class Late(InMemoryVectorStore):
    """A store in which a document vanishes between the list of entries and the reading of one."""

    misses = 0

    async def payloads(self, scope, *ids):
        if type(self).misses:
            type(self).misses -= 1
            return {}
        return await super().payloads(scope, *ids)


async def test_what_vanished_while_it_was_read_is_looked_for_again():
    store = Late()
    await over(store).add(doc("a", "Anna drinks tea."))
    two = over(store, words_weight=1.0)
    Late.misses = 1
    assert await found(two, "Anna") == []
    assert await found(two, "Anna") == ["Anna drinks tea."]


async def test_writers_that_went_away_leave_little_behind():
    store = InMemoryVectorStore()
    watcher = over(store)
    for number in range(250):
        await over(store).add(doc(f"d{number}", f"Anna drinks tea on day {number}."))
    assert await store.count(CHANGES) <= 101
    assert len(await found(watcher, "Anna drinks tea")) == 99
    assert len(watcher.corpus) == 250


async def test_what_others_keep_in_the_store_is_left_alone():
    store = InMemoryVectorStore()
    base = over(store)
    await store.bind(HashEmbedder().identity, HashEmbedder().dimension)
    (vector,) = await HashEmbedder().embed(["tea"], purpose="document")
    await store.upsert(ENTRIES, [VectorItem("old#0", vector), VectorItem("a-b-c", vector, payload="{}")])
    await base.add(doc("a", "Anna drinks tea."))
    assert await found(base, "tea") == ["Anna drinks tea."]
    assert await base.remove("a") == 1
    assert sorted(await store.ids(ENTRIES)) == ["a-b-c", "old#0"]


async def test_an_entry_that_cannot_be_read_is_named():
    store = InMemoryVectorStore()
    await over(store).add(doc("a", "Anna drinks tea."))
    (id,) = await store.ids(ENTRIES)
    (vector,) = await HashEmbedder().embed(["tea"], purpose="document")
    await store.upsert(ENTRIES, [VectorItem(id, vector, payload='{"id": 3}')])
    with pytest.raises(StoreError, match=id):
        await over(store).search("tea")


async def test_no_version_of_a_document_is_left_in_the_store():
    store = InMemoryVectorStore()
    one, two = over(store, chunk_size=40, chunk_overlap=0), over(store)
    for number in range(6):
        await (one, two)[number % 2].add(
            doc("a", f"Anna drinks tea on day {number}. Bruno drinks coffee on day {number}.")
        )
    assert await found(one, "Anna") == ["Anna drinks tea on day 5. Bruno drinks coffee on day 5."]
    assert await store.count(ENTRIES) == 1


class Plain:
    """A vector store that has no payloads."""

    def __init__(self):
        self._store = InMemoryVectorStore()

    def __getattr__(self, name):
        if name in {"ids", "payloads"}:
            raise AttributeError(name)
        return getattr(self._store, name)


async def test_a_store_without_payloads_serves_the_base_that_wrote():
    store = Plain()
    one, two = over(store), over(store)
    await one.add(doc("a", "Anna drinks tea."))
    assert await found(one, "tea") == ["Anna drinks tea."]
    await one.add(doc("a", "Anna drinks coffee."))
    assert await found(one, "Anna") == ["Anna drinks coffee."]
    assert await found(two, "Anna") == []
    assert await one.remove("a") == 1
    assert await store.count(ENTRIES) == 0


# -- the suite can fail ---------------------------------------------------------------------------------------


class LooksOnce(VectorKnowledgeBase):
    async def _current_corpus(self):
        if not self.corpus.passages:
            await self.shared.refresh()
        return self.corpus

    async def _by_vector(self, vector, pool, words, where):
        return (await super()._by_vector(vector, pool, words, where))[0], True


class RemovesItsOwn(VectorKnowledgeBase):
    async def remove(self, *document_ids):
        return await super().remove(*(id for id in document_ids if id in self.corpus))


CAUGHT_BY = {
    LooksOnce: "test_a_base_that_was_there_before_finds_it_too",
    RemovesItsOwn: "test_the_second_removes_what_the_first_added",
}


async def broken(kind, only=None):
    def fixtures():
        store = InMemoryVectorStore()

        async def another():
            return over(store, kind, chunk_size=60, chunk_overlap=20)

        return {"another": another}

    return await broken_laws(SharedKnowledgeSuite, fixtures, only)


async def test_a_sound_base_breaks_no_law():
    assert await broken(VectorKnowledgeBase) == set()


@pytest.mark.parametrize(("mutant", "law"), CAUGHT_BY.items())
async def test_a_planted_fault_breaks_its_law(mutant, law):
    assert law in await broken(mutant, only=law)
