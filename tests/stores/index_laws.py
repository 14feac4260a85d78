"""Laws of a memory store with an index beside it, over any engine.

A test file of an engine subclasses IndexLaws, says where the engine keeps its files, and how it is opened.
"""

import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import anyio
import pytest

from loom.core.filter import And, Eq, In, Not, Range
from loom.core.record import Layer, rank_key
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.memory_store import IndexDifference, Query, UserDifference
from loom.protocols.vector_store import VectorItem
from loom.stores import _search
from loom.stores.inmemory.vectors import InMemoryVectorStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.isolation import WORDS, observe, random_trace
from loom.testing.conformance.suite import ALICE, BOB, DAY, a_fact, a_job, an_episode
from loom.testing.fakes import START, FakeClock
from loom.wrappers.delegating import DelegatingStore
from loom.wrappers.indexed import OUTBOX, IndexedStore
from tests.stores.switched import Switched

EMBEDDER = ("laws:1:3", 3)
X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]


class IndexLaws:
    """Subclass it and override `open_index`."""

    child = ""
    """Source that makes `index` from `folder`, for a process of its own."""

    def open_index(self, folder):
        raise NotImplementedError

    @pytest.fixture
    def clock(self):
        return FakeClock()

    @pytest.fixture
    def open_store(self, tmp_path, clock):
        def opened():
            primary = SqliteStore(tmp_path / "memory.db", clock=clock, durability="fast")
            return IndexedStore(primary, Switched(self.open_index(tmp_path / "index")), clock=clock)

        return opened

    @pytest.fixture
    async def store(self, open_store):
        async with open_store() as store:
            await store.bind(*EMBEDDER)
            yield store

    async def test_it_answers_like_the_truth_alone(self, store, clock, monkeypatch):
        """Words, vectors and both; filters, sessions, times and limits; in the same order, for the same reasons."""
        monkeypatch.setattr(_search, "_FIRST", 1)  # so that it has to look deeper, and may not stop too early
        chance = random.Random(7)
        async with SqliteStore(":memory:", clock=clock) as alone:
            await alone.bind(*EMBEDDER)
            await fill(chance, store, alone)
            asked, hits = [a_query(chance) for _ in range(120)], 0
            for scope, query in asked:
                expected, found = await alone.search(scope, query), await store.search(scope, query)
                hits += len(expected)
                assert [hit.item for hit in found] == [hit.item for hit in expected]
                for one, other in zip(found, expected, strict=True):
                    assert dict(one.why) == pytest.approx(dict(other.why), abs=1e-5)
        assert hits > 120
        assert store.failure is None
        assert (await store.verify()).is_equal

    @pytest.mark.parametrize("how", ["in one go", "step by step", "without the index"])
    async def test_words_and_nearness_apart_are_those_of_the_truth_alone(self, how, store, clock, monkeypatch):
        """Whatever the primary store can do, and also while the index is down."""
        monkeypatch.setattr(_search, "_TO_SPARE", 0)  # so that it has to look deeper, and may not stop too early
        chance = random.Random(11)
        async with SqliteStore(":memory:", clock=clock) as alone:
            await alone.bind(*EMBEDDER)
            await fill(chance, store, alone)
            if how == "step by step":
                store._primary = DelegatingStore(store._primary)
            store._index.is_down = how == "without the index"
            for scope, query in [a_query(chance) for _ in range(60)]:
                asked, near = replace(query, text=chance.choice(WORDS)), chance.choice([1, 5, 50])
                expected = {hit.item: hit.why for hit in await alone.search_hybrid(scope, asked, near=near)}
                found = await store.search_hybrid(scope, asked, near=near)
                assert {hit.item for hit in found} == expected.keys()
                assert list(found) == sorted(found, key=rank_key)
                for hit in found:
                    assert dict(hit.why) == pytest.approx(dict(expected[hit.item]), abs=1e-5)
        assert (store.failure is None) is (how != "without the index")

    @pytest.mark.parametrize("seed", range(3))
    async def test_one_user_sees_nothing_of_another(self, seed, open_store, tmp_path, clock):
        """What a user sees is the same, to the last score, whether or not there is another one."""
        trace = random_trace(random.Random(seed), steps=40)
        scopes = {"A": Scope(user_id="al"), "B": Scope(user_id="al:1")}
        async with open_store() as store:
            together = await observe(store, trace, scopes)
        shutil.rmtree(tmp_path / "index", ignore_errors=True)
        for file in tmp_path.glob("memory.db*"):
            file.unlink()
        async with open_store() as store:
            alone = await observe(store, [step for step in trace if step[1] == "A"], scopes)
        assert [seen for seen in together if seen[0] == "A"] == [seen for seen in alone if seen[0] == "A"]

    async def test_while_the_index_is_down_the_truth_answers(self, store, clock):
        """Nothing is lost, and the index catches up when it is back."""
        await store.put(ALICE, an_episode("e1", "piano"), an_episode("e2", "piano"), an_episode("e3", "piano"))
        await store.put_vectors(ALICE, {"e1": X, "e3": Y})
        store._index.is_down = True
        await store.put_vectors(ALICE, {"e2": X})
        await store.delete(ALICE, "e3")
        assert [hit.item.id for hit in await store.search(ALICE, Query(vector=X))] == ["e1", "e2"]
        assert store.failure == "the index is down"
        store._index.is_down = False
        assert sorted(await store._index.ids(ALICE)) == ["e1", "e3"]
        clock.advance(DAY)
        assert [hit.item.id for hit in await store.search(ALICE, Query(vector=X))] == ["e1", "e2"]
        assert sorted(await store._index.ids(ALICE)) == ["e1", "e2"]
        assert store.failure is None
        assert (await store.verify()).is_equal

    async def test_what_is_written_while_it_catches_up_is_found_in_it(self, store, clock):
        """A writer does not wait for an index that is behind; who brings it into step does that writer's part too."""
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        store._index.is_down = True
        await store.put_vectors(ALICE, {"e1": X})
        store._index.is_down = False
        clock.advance(DAY)

        async def write_meanwhile():
            await store.put_vectors(ALICE, {"e2": Y})

        store._index.before["upsert"] = write_meanwhile
        assert [hit.item.id for hit in await store.search(ALICE, Query(vector=Y, limit=1))] == ["e2"]
        assert store.failure is None
        assert (await store.verify()).is_equal

    async def test_it_catches_up_once_at_a_time(self, store, clock):
        """Whoever comes meanwhile is answered by the truth, however long it takes."""
        await store.put(ALICE, an_episode("e1"))
        store._index.is_down = True
        await store.put_vectors(ALICE, {"e1": X})
        store._index.is_down = False
        clock.advance(DAY)

        async def again():
            pytest.fail("it catches up twice at a time")

        async def search_meanwhile():
            clock.advance(DAY)
            store._index.before["bound"] = again
            assert [hit.item.id for hit in await store.search(ALICE, Query(vector=X))] == ["e1"]
            assert store._index.before.pop("bound") is again

        store._index.before["upsert"] = search_meanwhile
        assert [hit.item.id for hit in await store.search(ALICE, Query(vector=X))] == ["e1"]
        assert store.failure is None
        assert (await store.verify()).is_equal

    @pytest.mark.parametrize("how", ["put", "write", "finish"])
    async def test_a_record_that_says_something_else_has_no_vector(self, how, store, clock):
        """It would be found for what it no longer says; one that says the same keeps its own."""
        await store.put(ALICE, an_episode("e1", "piano"), an_episode("e2", "piano"))
        await store.put_vectors(ALICE, {"e1": X, "e2": X})
        again = (an_episode("e1", "violin"), an_episode("e2", "piano", layer=Layer.L2))
        if how == "put":
            await store.put(ALICE, *again)
        elif how == "write":
            await store.write(ALICE, put=again)
        else:
            await store.write(ALICE, jobs=[a_job(scope=ALICE)])
            (lease,) = await store.lease(now=clock.now() + DAY, until=clock.now() + 2 * DAY)
            await store.finish(lease, put=again)
        assert await store._index.ids(ALICE) == ("e2",)
        assert [hit.item.id for hit in await store.search(ALICE, Query(vector=X))] == ["e2"]
        assert (await store.verify()).is_equal

    async def test_a_worker_that_looks_for_jobs_repairs_the_index(self, store, clock):
        """No search is needed to catch up."""
        await store.put(ALICE, an_episode())
        store._index.is_down = True
        await store.put_vectors(ALICE, {"e1": X})
        store._index.is_down = False
        clock.advance(DAY)
        await store.lease(now=clock.now(), until=clock.now() + DAY)
        assert await store._index.ids(ALICE) == ("e1",)

    async def test_a_forgotten_user_has_no_vectors(self, store):
        """His name is not even in the outbox, and nobody else's vectors are touched."""
        for scope in (ALICE, BOB):
            await store.put(scope, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"))
            await store.put_vectors(scope, {"e1": X, "e2": X})
        await store.forget(ALICE.for_session("s1"))
        assert await store._index.ids(ALICE) == ("e2",)
        receipt = await store.forget(ALICE)
        assert (await store._index.ids(ALICE), await store._index.users()) == ((), (BOB,))
        assert await store._primary.list(OUTBOX) == ()
        assert receipt.pending == ((store._index.residue,) if store._index.residue else ())

    async def test_what_could_not_be_forgotten_yet_is_said(self, store, clock):
        """The records are gone at once, the vectors when the index can be reached."""
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": X})
        store._index.is_down = True
        receipt = await store.forget(ALICE)
        assert any("still in the index" in words for words in receipt.pending)
        store._index.is_down = False
        clock.advance(DAY)
        await store.lease(now=clock.now(), until=clock.now() + DAY)
        assert await store._index.users() == ()

    async def test_to_forget_needs_no_embedder(self, open_store):
        """A process that never said bind() removes vectors too."""
        async with open_store() as store:
            await store.bind(*EMBEDDER)
            await store.put(ALICE, an_episode(), an_episode("e2"))
            await store.put_vectors(ALICE, {"e1": X, "e2": X})
        async with open_store() as store:
            await store.delete(ALICE, "e1")
            assert await store._index.ids(ALICE) == ("e2",)
            await store.forget(ALICE)
            assert await store._index.users() == ()

    async def test_verify_counts_every_difference_and_repairs_it(self, store):
        """Missing, wrong and extra vectors, those of unknown users too."""
        await store.put(ALICE, *(an_episode(id) for id in ("gone", "wrong", "right", "none")))
        await store.put(BOB, an_episode())
        await store.put_vectors(ALICE, {"gone": X, "wrong": X, "right": X})
        await store.put_vectors(BOB, {"e1": Y})
        await store._index.delete(ALICE, "gone")
        await store._index.upsert(ALICE, [VectorItem("wrong", Y), VectorItem("none", Y)])
        await store._index.upsert(Scope(user_id="stranger"), [VectorItem("x", Z)])
        expected = {"users": 3, "vectors": 4, "missing": 1, "wrong": 1, "extra": 2}
        assert await store.verify() == IndexDifference(**expected)
        done = await store.verify(repair=True)
        assert done == IndexDifference(**expected, is_repaired=True)
        assert done.by_user == (
            UserDifference(user=ALICE, what="vectors", missing=1, wrong=1, extra=1),
            UserDifference(user=Scope(user_id="stranger"), what="vectors", extra=1),
        )
        assert await store.verify() == IndexDifference(users=2, vectors=4)
        assert await store._index.users() == (ALICE, BOB)

    async def test_a_lost_index_is_built_again(self, open_store, tmp_path):
        """At the next bind(), or by a repair: whose vectors they are is known to the primary store."""
        async with open_store() as store:
            await store.bind(*EMBEDDER)
            await store.put(ALICE, an_episode("a", "piano"), an_episode("b", "piano"))
            await store.put_vectors(ALICE, {"a": X, "b": Y})
            await store._index.clear()
        async with open_store() as store:
            assert await store.verify() == IndexDifference(users=1, vectors=2, missing=2)
            assert (await store.verify(repair=True)).is_repaired
            assert await store.verify() == IndexDifference(users=1, vectors=2)
            await store._index.clear()
            await store.aclose()
        async with open_store() as store:
            await store.bind(*EMBEDDER)
            assert await store.verify() == IndexDifference(users=1, vectors=2)
            assert [hit.item.id for hit in await store.search(ALICE, Query(vector=X))] == ["a", "b"]

    async def test_an_index_of_another_embedder_is_built_again(self, store, open_store):
        """rebind() empties it, and an index that is not the primary store's is never believed."""
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": X})
        assert await store.rebind("other:1:2", 2)
        assert (await store._index.bound(), await store._index.users()) == (("other:1:2", 2), ())
        await store.put_vectors(ALICE, {"e1": [0.0, 1.0]})
        await store._index.clear()
        await store._index.bind(*EMBEDDER)
        await store._index.upsert(ALICE, [VectorItem("e1", X)])
        await store.aclose()
        async with open_store() as again:
            await again.bind("other:1:2", 2)
            assert await again._index.bound() == ("other:1:2", 2)
            assert (await again.verify()).is_equal

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("call", ["upsert", "delete"])
    async def test_a_killed_process_leaves_an_index_that_heals(self, call, when, open_store, tmp_path):
        """Killed between truth and index, or between index and outbox; the next process puts it right."""
        source = CHILD.format(index=self.child, call=call, is_after=when == "after")
        given = [sys.executable, "-c", source, str(tmp_path)]
        child = await anyio.run_process(given, check=False, stderr=subprocess.PIPE)
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        async with open_store() as store:
            assert (await store.verify()).is_equal is (when == "after")
            await store.bind(*EMBEDDER)
            assert (await store.verify()).is_equal
            expected = ["e1", "e2", "e3"] if call == "upsert" else ["e1"]
            assert sorted(await store._index.ids(ALICE)) == expected
            assert [hit.item.id for hit in await store.search(ALICE, Query(vector=X))] == expected

    async def test_of_two_writers_the_newest_truth_stays(self, store, clock, tmp_path):
        """Also where the earlier one writes the index last."""
        primary = SqliteStore(tmp_path / "memory.db", clock=clock, durability="fast")
        other = IndexedStore(primary, store._index._index, clock=clock)
        await other.bind(*EMBEDDER)
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))

        async def overtake():
            await other.put_vectors(ALICE, {"e1": Y})
            await other.delete(ALICE, "e2")

        store._index.before["upsert"] = overtake
        await store.put_vectors(ALICE, {"e1": X, "e2": X})
        assert dict(await store._index.vectors(ALICE, "e1", "e2")) == {"e1": Y}
        assert (await store.verify()).is_equal
        await primary.aclose()

    async def test_the_outbox_is_not_for_others_to_see(self, store):
        """Not as a user, and not as a record without a vector; and it does not grow."""
        for number in range(5):
            await store.put(ALICE, an_episode(f"e{number}"))
            await store.put_vectors(ALICE, {f"e{number}": X})
        await store.put(BOB, an_episode())
        assert await store.users() == (ALICE, BOB)
        assert await store.unembedded(limit=1) == ((BOB, an_episode()),)
        assert await store.count_unembedded() == 1
        assert await store._primary.count(OUTBOX) == 1
        await store._outbox.flush()
        assert await store._primary.count(OUTBOX) == 0

    async def test_a_store_that_cannot_be_compared_is_not_an_index(self, tmp_path):
        """Nor can a store without every power be the primary store."""
        primary = SqliteStore(tmp_path / "memory.db")
        with pytest.raises(UsageError, match="cannot be an index"):
            IndexedStore(primary, InMemoryVectorStore())
        with pytest.raises(UsageError, match="cannot be the primary store"):
            IndexedStore(InMemoryVectorStore(), self.open_index(tmp_path / "index"))


CHILD = """
import os, signal, sys
from pathlib import Path

import anyio

from loom.wrappers.indexed import IndexedStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.suite import ALICE, an_episode

folder = Path(sys.argv[1]) / "index"
{index}
original = index.{call}


async def killed(*args, **named):
    if {is_after}:
        await original(*args, **named)
    os.kill(os.getpid(), signal.SIGKILL)


async def main():
    store = IndexedStore(SqliteStore(folder.parent / "memory.db"), index)
    await store.bind("laws:1:3", 3)
    await store.put(ALICE, *(an_episode(id, "piano") for id in ("e1", "e2", "e3")))
    await store.put_vectors(ALICE, {{"e1": [1.0, 0.0, 0.0]}})
    if "{call}" == "delete":
        await store.put_vectors(ALICE, {{"e2": [1.0, 0.0, 0.0], "e3": [1.0, 0.0, 0.0]}})
    index.{call} = killed
    if "{call}" == "delete":
        await store.delete(ALICE, "e2", "e3")
    await store.put_vectors(ALICE, {{"e2": [1.0, 0.0, 0.0], "e3": [1.0, 0.0, 0.0]}})


anyio.run(main)
"""


async def fill(chance, *stores):
    """The same records and vectors in each store: many that tie, some without a vector, some gone again."""
    for scope in (ALICE, BOB):
        for number in range(40):
            text = " ".join(chance.choices(WORDS, k=3))
            how = {"session_id": chance.choice([None, "s1"]), "layer": chance.choice(list(Layer))}
            how["archived_at"] = chance.choice([None, None, START])
            record = an_episode(f"e{number:02}", text, attributes={"n": number % 3}, **how)
            if number % 5 == 0:
                record = a_fact(f"f{number:02}", text, superseded_at=chance.choice([None, START + DAY]))
            vector = [chance.choice([-2.0, 0.0, 1.0]), chance.choice([0.0, 1.0]), 1.0]
            for store in stores:
                await store.put(scope, record)
                if number % 4:
                    await store.put_vectors(scope, {record.id: vector})
                if number % 11 == 0:
                    await store.delete(scope, record.id)


def a_query(chance):
    text = chance.choice(["", "", chance.choice(WORDS), " ".join(chance.choices(WORDS, k=2))])
    where = chance.choice(
        [
            None, None, Eq("meta.n", 1), In("meta.n", (0, 2)), Not(Eq("kind", "fact")), Range("id", "e20", "e35"),
            And(Eq("layer", Layer.L2), Eq("meta.n", 1)), Eq("id", "e13"), In("id", ()),
        ]
    )  # fmt: skip
    scope = chance.choice([ALICE, BOB, ALICE.for_session("s1"), Scope(user_id="nobody")])
    how = {"archived": chance.random() < 0.3, "history": chance.random() < 0.3}
    vector = [chance.gauss(0, 1) for _ in range(3)]
    return scope, Query(text=text, vector=vector, where=where, limit=chance.choice([1, 3, 10, 100]), **how)
