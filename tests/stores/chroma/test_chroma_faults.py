"""A Chroma server that dies, falls silent and comes back, under load: the primary store goes on, and the index catches up."""

import random
from contextlib import aclosing, suppress

import anyio
import pytest
from anyio import to_thread

from loom.errors import StoreUnavailable
from loom.protocols.memory_store import Query
from loom.stores.chroma import ChromaVectorStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.suite import ALICE, DAY, an_episode, listed
from loom.testing.fakes import FakeClock
from loom.testing.servers import chroma, proxy
from loom.wrappers.indexed import IndexedStore
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]

WRITERS = 4
WRITES = 15
EVERY = 15
EMBEDDER = ("faults:1:8", 8)


def vector_of(id):
    chance = random.Random(id)
    return [chance.gauss(0, 1) for _ in range(8)]


class Load:
    """Writers who each find at once what they wrote, with trouble again and again."""

    def __init__(self, url, folder, trouble):
        self.clock = FakeClock()
        primary = SqliteStore(folder / "memory.db", clock=self.clock, durability="fast")
        self.store = IndexedStore(primary, ChromaVectorStore(url, timeout=0.5), clock=self.clock)
        self.trouble = trouble
        self.written, self.deleted, self.failures = set(), set(), set()
        self.acknowledged = self.troubles = 0
        self.one_at_a_time = anyio.Lock()

    async def run(self):
        await self.store.bind(*EMBEDDER)
        async with anyio.create_task_group() as tasks:
            for writer in range(WRITERS):
                tasks.start_soon(self._write, writer)

    async def _write(self, writer):
        for number in range(WRITES):
            id = f"w{writer}.{number:02}"
            await self.store.put(ALICE, an_episode(id))
            await self.store.put_vectors(ALICE, {id: vector_of(id)})
            self.written.add(id)
            (hit,) = await self.store.search(ALICE, Query(vector=vector_of(id), limit=1))
            assert hit.item.id == id
            if number % 5 == 4:
                await self.store.delete(ALICE, id)
                self.deleted.add(id)
            self.failures.add(self.store.failure)
            self.clock.advance(DAY)  # long enough to look again whether the index is back
            self.acknowledged += 1
            if self.acknowledged % EVERY == 0:
                async with self.one_at_a_time:
                    self.troubles += 1
                    await self.trouble()

    async def check(self):
        """Everything is there once, in the primary store and, when it is back, in the index."""
        due = sorted(self.written - self.deleted)
        assert await listed(self.store, ALICE) == due
        self.failures.clear()
        while None not in self.failures:  # on a busy machine an answer may come too late more than once
            self.clock.advance(DAY)
            await self.store.search(ALICE, Query(vector=vector_of("x")))
            self.failures.add(self.store.failure)
        assert sorted(await self.store._index.ids(ALICE)) == due
        assert (await self.store.verify()).is_equal
        hits = await self.store.search(ALICE, Query(vector=vector_of("x"), limit=1000))
        assert sorted(hit.item.id for hit in hits) == due

    async def aclose(self):
        await self.store.aclose()


async def test_a_server_that_is_killed_and_comes_back_costs_nothing(tmp_path):
    with chroma() as server:

        def restart():
            server.kill()
            server.start()

        async with aclosing(Load(server.url, tmp_path, lambda: to_thread.run_sync(restart))) as load:
            await load.run()
            assert load.troubles == WRITERS * WRITES // EVERY
            assert any(failure and "cannot be reached" in failure for failure in load.failures)
            await load.check()


@pytest.mark.parametrize("is_dropped", [False, True], ids=["thawed", "dropped"])
async def test_a_network_that_falls_silent_costs_nothing(is_dropped, chroma_server, tmp_path):
    async with proxy("127.0.0.1", chroma_server.port) as network:

        async def silence():
            network.freeze()
            known = max(id for id in load.written if int(id[-2:]) % 5 != 4)  # one that nobody deletes meanwhile
            (hit,) = await load.store.search(ALICE, Query(vector=vector_of(known), limit=1))
            assert hit.item.id == known
            if is_dropped:
                network.drop()
            network.thaw()

        index = ChromaVectorStore(chroma_server.url)
        await index.clear()
        await index.aclose()
        async with aclosing(Load(f"http://127.0.0.1:{network.port}", tmp_path, silence)) as load:
            await load.run()
            assert load.troubles == WRITERS * WRITES // EVERY
            assert any(failure and "cannot be reached" in failure for failure in load.failures)
            await load.check()


CALLS = {
    "upsert": lambda index: index.upsert(ALICE, []),
    "bound": lambda index: index.bound(),
    "search": lambda index: index.search(ALICE, vector_of("x")),
    "delete": lambda index: index.delete(ALICE, "a"),
    "count": lambda index: index.count(ALICE),
    "forget": lambda index: index.forget(ALICE),
    "ids": lambda index: index.ids(ALICE),
    "vectors": lambda index: index.vectors(ALICE, "a"),
    "users": lambda index: index.users(),
    "clear": lambda index: index.clear(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_new", [False, True], ids=["connected", "new"])
async def test_a_call_into_a_silent_network_ends(call, is_new, chroma_server):
    async with (
        proxy("127.0.0.1", chroma_server.port) as network,
        aclosing(ChromaVectorStore(f"http://127.0.0.1:{network.port}", prefix="silent", timeout=0.3)) as index,
    ):
        if not is_new:
            await answered(index.users)
        network.freeze()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await CALLS[call](index)
        network.drop()
        network.thaw()
        assert await answered(index.users) == ()


async def answered(call):
    """The answer, once it comes in time: the time of a call that is to be given up is short."""
    while True:
        with suppress(StoreUnavailable):
            return await call()
