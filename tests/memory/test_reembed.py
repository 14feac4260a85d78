"""Another embedder: nothing is lost, nothing is mixed, and one command repairs it."""

import pytest

from loom.core.record import Layer
from loom.core.scope import Scope
from loom.engine import open_memory
from loom.errors import EmbedderMismatch, ProviderUnavailable, UsageError
from loom.memory._write import write
from loom.memory._write import write as reembed
from loom.memory.memory import Memory
from loom.protocols.memory_store import Query
from loom.providers.embedding.local import HashEmbedder
from loom.stores.inmemory import InMemoryStore

pytestmark = pytest.mark.anyio
COMMAND = "loom memory reembed"
OLD, NEW = HashEmbedder(dimension=64), HashEmbedder(dimension=96)


class Failing:
    """The new embedder, out of order after so many texts."""

    identity, dimension = NEW.identity, NEW.dimension

    def __init__(self, texts):
        self.left = texts

    async def embed(self, texts, *, purpose):
        self.left -= len(texts)
        if self.left < 0:
            raise ProviderUnavailable("the embedder is out of order; try again")
        return await NEW.embed(texts, purpose=purpose)


class Stores:
    """One set of data, opened again and again."""

    def __init__(self, where):
        self.where = where
        self.store = InMemoryStore() if where is None else None

    def open(self, embedder, **more):
        if self.store is not None:
            return Memory(self.store, embedder=embedder, **more)
        return open_memory(self.where, embedder=embedder, **more)


@pytest.fixture(params=["inmemory", "sqlite"])
def stores(request, tmp_path):
    return Stores(None if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db")


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(reembed, "BATCH", 2)


async def dense(memory, embedder=NEW, user_id="alice"):
    """How many records are found by their vectors."""
    await memory.store.bind(embedder.identity, embedder.dimension)
    (vector,) = await embedder.embed(["boat"], purpose="query")
    query = Query(vector=vector, limit=50, archived=True)
    return len(await memory.store.search(Scope(memory.namespace, user_id), query))


async def test_with_another_embedder_text_is_kept_and_found_by_words_and_says_how_to_fix_it(stores):
    old, new = stores.open(OLD), stores.open(NEW)
    await old.remember("the boat is red", user_id="alice")
    done = await new.remember("the boat is blue", user_id="alice")
    assert len(done.kept) == 1
    assert COMMAND in done.notes[0]
    told = await new.instruct("never mention my boat", user_id="alice")
    assert COMMAND in told.notes[0]
    found = await new.recall("boat", user_id="alice")
    assert {"the boat is red", "the boat is blue"} <= {hit.item.text for hit in found}
    assert COMMAND in found.notes[0]
    with pytest.raises(EmbedderMismatch, match=COMMAND):
        await new.store.bind(NEW.identity, NEW.dimension)
    assert await dense(old, OLD) == 1, "the old vectors are as they were"


async def test_reembed_exchanges_the_vectors_of_everybody(stores, small_batches):
    old, new = stores.open(OLD), stores.open(NEW)
    other = stores.open(OLD, namespace="another")
    await old.remember([f"boat {n}" for n in range(5)], user_id="alice", session_id="s1")
    await old.remember("a boat", user_id="bob")
    await other.remember("a boat elsewhere", user_id="alice")
    seen = []
    done = await new.reembed(progress=lambda *at: seen.append(at))
    assert (done.embedder, done.records, done.exchanged) == (NEW.identity, 7, True)
    assert seen == [(2, 7), (4, 7), (6, 7), (7, 7)]
    assert [await dense(new, user_id=user) for user in ("alice", "bob")] == [5, 1]
    assert await dense(stores.open(NEW, namespace="another")) == 1
    found = await old.recall("boat", user_id="alice")
    assert COMMAND in found.notes[0], "now the old one is the other one"
    again = await new.reembed()
    assert (again.records, again.exchanged) == (0, False)


async def test_work_that_was_broken_off_goes_on_where_it_stopped(stores, small_batches):
    old = stores.open(OLD)
    await old.remember([f"boat {n}" for n in range(7)], user_id="alice")
    with pytest.raises(ProviderUnavailable):
        await stores.open(Failing(texts=1 + 4)).reembed()
    new = stores.open(NEW)
    assert await dense(new) == 4
    assert len(await new.recall("which boat?", user_id="alice", limit=50)) == 7, "all of them are found by words"
    done = await new.reembed()
    assert (done.records, done.exchanged) == (3, False)
    assert await dense(new) == 7


async def test_an_embedder_that_does_not_work_takes_nothing_away(stores):
    old = stores.open(OLD)
    await old.remember("a boat", user_id="alice")
    with pytest.raises(ProviderUnavailable):
        await stores.open(Failing(texts=0)).reembed()
    assert await dense(old, OLD) == 1


async def test_what_was_kept_while_the_embedder_was_down_gets_its_vector(stores):
    done = await stores.open(Failing(texts=0)).remember("a boat", user_id="alice")
    assert COMMAND in done.notes[0]
    new = stores.open(NEW)
    assert (await new.reembed()).records == 1
    assert await dense(new) == 1


async def test_what_was_made_from_turns_gets_a_vector_once_it_came_to_stay(stores):
    old, new = stores.open(OLD), stores.open(NEW)
    (turn,) = (await old.remember("we decided on the red boat", user_id="alice")).kept
    await old.metabolize(user_id="alice")
    assert (await old.stats(user_id="alice"))["L2"] == 1
    assert (await new.reembed()).records == 1
    await new.promote(f"s:{turn.id}", user_id="alice", to=Layer.L4)
    assert (await old.reembed()).records == 2
    assert await dense(old, OLD) == 2


async def test_what_is_forgotten_meanwhile_is_passed_over(stores):
    old = stores.open(OLD)
    done = await old.remember(["boat 1", "boat 2", "boat 3"], user_id="alice")

    class Forgetting(Failing):
        async def embed(self, texts, *, purpose):
            if "boat 2" in texts:
                await old.forget(done.kept[1].id, user_id="alice")
            return await super().embed(texts, purpose=purpose)

    assert (await stores.open(Forgetting(texts=100)).reembed()).records == 2
    assert await dense(stores.open(NEW)) == 2


async def test_without_an_embedder_or_the_power_it_is_refused(stores):
    with pytest.raises(UsageError, match="no embedder"):
        await Memory(InMemoryStore()).reembed()

    class Plain:
        def __init__(self):
            self.inner = InMemoryStore()
            for name in ("put", "get", "list", "count", "search", "delete", "forget", "write", "lease", "finish"):
                setattr(self, name, getattr(self.inner, name))

    with pytest.raises(UsageError, match="Plain cannot replace its vectors"):
        await Memory(Plain(), embedder=NEW).reembed()


async def test_a_long_import_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr(write, "BATCH", 2)
    memory = Memory(InMemoryStore(), embedder=NEW)
    await memory.remember(["one", "two", "three"], user_id="alice")
    lines = [line async for line in memory.export(user_id="alice")]
    seen = []
    await memory.import_(lines, user_id="bob", progress=lambda *at: seen.append(at))
    assert seen == [(2, 3), (3, 3)]


def test_a_memory_says_which_embedder_it_uses_and_why():
    assert open_memory("inmemory", embedder="hash").embedder_note.startswith("embedding with hash:")
    assert "because" in open_memory("inmemory").embedder_note
    assert Memory(InMemoryStore(), embedder=NEW).embedder_note == f"embedding with {NEW.identity}"
    assert Memory(InMemoryStore()).embedder_note == "no embedder"
