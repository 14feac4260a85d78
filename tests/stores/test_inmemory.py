"""The in-memory store keeps every law of a memory store."""

import math
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import settings

from loom.errors import UsageError
from loom.protocols.memory_store import KeepsJobs, KeepsKeys, KeepsVectors, MemoryStore, Prunes, Query, Touches
from loom.stores.inmemory import InMemoryStore
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.testing.conformance.suite import ALICE, a_job, an_episode

# Checked by pyright, signatures included.
as_memory: MemoryStore = InMemoryStore()
as_pruning: Prunes = InMemoryStore()
as_touching: Touches = InMemoryStore()
as_vectors: KeepsVectors = InMemoryStore()
as_keys: KeepsKeys = InMemoryStore()
as_jobs: KeepsJobs = InMemoryStore()


class TestInMemory(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(InMemoryStore(clock=clock)) as store:
            yield store

    async def test_a_closed_store_says_so(self, store):
        await store.aclose()
        with pytest.raises(UsageError, match="closed"):
            await store.put(ALICE, an_episode())
        with pytest.raises(UsageError, match="closed"):
            await store.search(ALICE, Query(text="tea"))

    async def test_nothing_of_a_user_is_kept_after_the_last_record(self, store):
        await store.put(ALICE, an_episode())
        await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
        await store.delete(ALICE, "e1")
        await store.get(ALICE, "e1")
        assert store._states == {}

    async def test_scores_are_those_of_bm25(self, store):
        # N=2, n=1, tf=1, 1 of 3 words against an average of 2: idf ln(1 + 1.5/1.5), tf 2.2 / (1 + 1.2 * 0.625)
        await store.put(ALICE, an_episode("e1", "tea"), an_episode("e2", "green big piano"))
        (hit,) = await store.search(ALICE, Query(text="tea"))
        assert hit.score == pytest.approx(math.log(2) * 2.2 / 1.75)

    async def test_a_new_text_takes_its_vector_away(self, store):
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        await store.put(ALICE, an_episode(text="a piano"))
        assert await store.search(ALICE, Query(vector=[1.0, 0.0])) == ()

    async def test_a_job_may_queue_itself_again(self, store, clock):
        await store.write(ALICE, jobs=[a_job()])
        (lease,) = await store.lease(now=clock.now(), until=clock.advance(60))
        await store.finish(lease, jobs=[a_job()])
        assert await store.pending(ALICE) == 1

    async def test_what_makes_no_sense_is_refused(self, store, clock):
        now = clock.now()
        with pytest.raises(UsageError, match="limit=0"):
            await store.list(ALICE, limit=0)
        with pytest.raises(UsageError, match="ends before it starts"):
            await store.lease(now=now, until=now)
        with pytest.raises(UsageError, match="keep=-1"):
            await store.prune(ALICE, layer=1, keep=-1)
        with pytest.raises(UsageError, match="time without a zone"):
            await store.touch(ALICE, "e1", at=now.replace(tzinfo=None))
        await store.write(ALICE, jobs=[a_job()])
        with pytest.raises(UsageError, match="another key"):
            await store.write(ALICE, jobs=[a_job(key="other")])


class InMemoryMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(InMemoryStore(clock=clock)) as store:
            yield store


TestInMemoryModel = InMemoryMachine.TestCase
TestInMemoryModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
