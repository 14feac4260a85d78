"""What one write of many records leaves in a SQLite file, and what a session costs that is looked for."""

import random
from contextlib import nullcontext
from datetime import timedelta
from statistics import median

import apsw
import pytest

from loom.core.filter import Eq
from loom.core.scope import Scope
from loom.engine import open_memory
from loom.errors import NotFound, StaleWrite, StoreUnavailable
from loom.protocols.memory_store import Query
from loom.stores.base import LeaseRequest
from loom.stores.sqlite import SqliteStore, file, index, records
from loom.stores.sqlite.connection import connect
from loom.testing.conformance.suite import ALICE, BOB, a_fact, a_job, an_episode
from loom.testing.fakes import START
from tests.timing import until

pytestmark = pytest.mark.anyio

SESSION = ALICE.for_session("s1")


async def test_the_index_equals_the_records_after_writes_of_many(small_runs):
    chance = random.Random(11)
    async with SqliteStore(":memory:") as store:
        for step in range(60):
            ids = chance.choices([f"e{n:02}" for n in range(step + 5)], k=chance.randint(2, 9))
            said = [" ".join(chance.choices(["tea", "milk", "jam", "café", "the the"], k=3)) for _ in ids]
            keys = {
                id: {"around": "\n".join(chance.sample(said, 2)), "asked": chance.choice(["", "tea"])} for id in ids
            }
            there = [record.id for record in await store.list(ALICE, limit=500)]
            gone = [id for id in there if chance.random() < 0.1]
            new = [an_episode(id, text) for id, text in zip(ids, said, strict=True)]
            await store.write(ALICE, delete=gone, put=new, keys=keys)
            found = await store.verify()
            assert found.is_equal, (step, found)
        assert await store.count(ALICE) > 20


async def test_a_turn_is_written_with_few_statements(tmp_path, monkeypatch):
    done: list[str] = []

    def traced(path, **rules):
        db = connect(path, **rules)
        db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: None if event["trigger"] else done.append(event["sql"]))
        return db

    monkeypatch.setattr(file, "connect", traced)
    async with open_memory(f"sqlite:{tmp_path / 'turns.db'}", facts="rules") as memory:
        for number in range(4):
            done.clear()
            await memory.remember(f"I had tea number {number}.", user_id="ann", session_id="s1")
    assert len(done) <= 20, "\n".join(done)


@pytest.mark.parametrize("first", [False, apsw.FullError("disk is full")], ids=["held by a reader", "disk full"])
async def test_a_log_that_cannot_be_emptied_ends_no_later_write(tmp_path, monkeypatch, first):
    truncated, tried = file._truncated, []
    outcomes = [first, apsw.FullError("disk is full"), apsw.IOError("disk error")]

    def failing(db, milliseconds):
        tried.append(milliseconds)
        if not outcomes:
            return truncated(db, milliseconds)
        outcome = outcomes.pop(0)
        if outcome:
            raise outcome
        return outcome

    monkeypatch.setattr(file, "_truncated", failing)
    async with SqliteStore(tmp_path / "full.db") as store:
        await store.put(ALICE, an_episode())
        if first:
            with pytest.raises(StoreUnavailable, match="disk is full"):
                await store.forget(ALICE)
        else:
            assert (await store.forget(ALICE)).pending
        writer = await store._file.opened()
        for number in range(4):
            done = writer.submit(lambda db: db.execute("UPDATE users SET removed = removed + 1").fetchall())
            await until(lambda done=done: done.done() or not writer._thread.is_alive())
            assert done.done(), f"write {number} waits for ever"
        await until(lambda: not writer._is_unscrubbed)
        assert (tmp_path / "full.db-wal").stat().st_size == 0
    assert len(tried) == 4


async def test_vectors_go_to_new_records_and_to_old_ones_in_one_write():
    async with SqliteStore(":memory:") as store:
        await store.bind("test:2", 2)
        await store.write_embedded(ALICE, {"e1": [1.0, 0.0]}, put=[an_episode("e1", "tea")])
        again = {"e1": [0.0, 1.0], "e2": [1.0, 0.0]}
        await store.write_embedded(ALICE, again, put=[an_episode("e2", "milk")])
        found = await store.search(ALICE, Query(vector=[1.0, 0.0]))
        assert [(hit.item.id, hit.why["dense"]) for hit in found] == [("e2", 1.0), ("e1", 0.0)]
        with pytest.raises(NotFound, match="e3"):
            await store.write_embedded(ALICE, {"e3": [1.0, 0.0]}, put=[an_episode("e4", "jam")])
        assert (await store.verify()).is_equal


async def test_an_id_that_comes_twice_in_a_write_is_kept_as_it_came_last():
    async with SqliteStore(":memory:") as store:
        await store.put(ALICE, an_episode("e1", "tea"), an_episode("e2", "milk"), an_episode("e1", "jam"))
        assert [record.text for record in await store.list(ALICE)] == ["jam", "milk"]
        assert await store.search(ALICE, Query(text="tea")) == ()
        assert [hit.item.id for hit in await store.search(ALICE, Query(text="jam"))] == ["e1"]
        assert (await store.verify()).is_equal


async def test_a_term_and_a_text_longer_than_an_entry_can_say_count_as_the_most():
    async with SqliteStore(":memory:") as store:
        await store.put(ALICE, an_episode("e1", "tea " * 70_000), an_episode("e2", "tea"))
        assert (await store.verify()).is_equal


async def test_a_text_without_words_is_kept_and_found_by_none():
    async with SqliteStore(":memory:") as store:
        await store.write(ALICE, put=[an_episode("e1", "!!!")], keys={"e1": {"around": "..."}})
        await store.put(ALICE, an_episode("e1", "tea"))
        await store.put(ALICE, an_episode("e1", "?"))
        assert [record.text for record in await store.list(ALICE)] == ["?"]
        assert await store.search(ALICE, Query(text="tea")) == ()
        assert (await store.verify()).is_equal


@pytest.mark.parametrize("few", [1, 4, 1000])
@pytest.mark.parametrize("turns", [0, 3, 8])
@pytest.mark.parametrize("facts", [0, 3, 8])
async def test_a_session_is_listed_whole_however_much_there_is(monkeypatch, few, turns, facts):
    monkeypatch.setattr(records, "_FEW", few)
    async with SqliteStore(":memory:") as store:
        said = [an_episode(f"e{n}", "tea", session_id="s1") for n in range(turns)]
        known = [a_fact(f"f{n}") for n in range(facts)]
        other = [an_episode(f"d{n}", "tea", session_id="s2") for n in range(5)]
        await store.put(ALICE, *reversed(said), *other, *known)
        assert await store.list(SESSION, where=Eq("kind", "episode")) == tuple(said)
        assert await store.list(SESSION) == (*said, *known)
        assert await store.list(SESSION, after="e1", limit=2) == (*said[2:], *known)[:2]
        assert await store.count(SESSION) == turns + facts
        assert await store.count(SESSION, where=Eq("kind", "episode")) == turns


async def test_a_session_is_found_without_a_look_at_all_others(tmp_path):
    path = tmp_path / "memory.db"

    async def steps_of_a_list(store, records_more):
        await store.put(ALICE, *(an_episode(f"e{n:04}", "tea", session_id=f"s{n % 50}") for n in records_more))
        db, steps = connect(str(path)), 0

        def count_steps():
            nonlocal steps
            steps += 1
            return False

        db.set_progress_handler(count_steps, 1)
        assert records.select(db, 1, ALICE.for_session("new"), where=Eq("kind", "episode"), after=None, limit=9) == []
        db.close()
        return steps

    async with SqliteStore(path, durability="fast") as store:
        few, many = await steps_of_a_list(store, range(100)), await steps_of_a_list(store, range(100, 1000))
    assert 0 < many == few


class Counted:
    """What remembering one text takes: bytes that are written, and steps of statements, which every row read adds to."""

    def __init__(self, memory, path):
        self._memory, self._log = memory, path.with_name(f"{path.name}-wal")
        self._writer = memory.store._file._writer._db
        self._steps = 0

    def _count(self, event):
        self._steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    async def remember(self, number):
        await self._memory.store.scrub()
        self._steps = 0
        self._writer.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)
        text = f"turn {number} about zeppelins over the lake, " + "and what people said of them that day " * 3
        await self._memory.remember(text, user_id="u", session_id="new")
        self._writer.trace_v2(0, None)
        return self._log.stat().st_size, self._steps


async def test_a_remember_writes_and_reads_the_same_however_much_there_is(tmp_path):
    path, typical = tmp_path / "memory.db", {}
    async with open_memory(f"sqlite:{path}", embedder="static", with_facts=False) as memory:
        for size in (10, 10_000):
            for start in range(0, size, 1000):
                said = [f"text {n} of many, about trains" for n in range(start, min(start + 1000, size))]
                await memory.remember(said, user_id="u", session_id=f"s{size}.{start}")
            counted = Counted(memory, path)
            each = [await counted.remember(n) for n in range(index.TAIL)]
            bytes_of, steps = zip(*each, strict=True)
            # One of so many indexes them all, and some split pages: they take more, and the mean has to bear that.
            typical[size] = median(bytes_of), median(steps)
            assert sum(bytes_of) / len(bytes_of) < 32_000
            assert max(bytes_of) < 400_000
    (few_bytes, few_steps), (many_bytes, many_steps) = typical.values()
    # Of many, the trees are one level deeper: some pages of 1 KB more.
    assert many_bytes <= few_bytes + 4 * 1024 < 32_000
    assert many_steps <= 1.2 * few_steps


async def test_a_lease_looks_at_each_job_of_a_user_once(tmp_path):
    """A user who has been away comes back to one due job for every conversation. Pairs of them would be too many."""

    async def steps_of_a_lease(store, numbers):
        await store.write(ALICE, jobs=[a_job(f"j{n:04}", run_at=START + timedelta(seconds=n)) for n in numbers])
        now = START + timedelta(days=1)
        db, steps = connect(store._file.path), 0

        def count_steps():
            nonlocal steps
            steps += 1
            return False

        for held in (False, True):  # and again, while that one is worked on
            asked = LeaseRequest(now, now + timedelta(minutes=1), 16, ALICE, ("digest", "episode"), in_order=True)
            db.set_progress_handler(count_steps, 1)
            assert len(records.lease(db, asked)) == (0 if held else 1)
            db.set_progress_handler(None)
        db.execute("UPDATE jobs SET until = NULL")
        db.close()
        return steps

    async with SqliteStore(tmp_path / "jobs.db") as store:
        few, many = await steps_of_a_lease(store, range(10)), await steps_of_a_lease(store, range(10, 1000))
    assert many <= 100 * few


@pytest.mark.parametrize(
    ("then", "is_good"),
    [("nothing", True), ("a text is removed", False), ("they are forgotten", False), ("another is forgotten", False)],
)
async def test_what_was_prepared_for_an_unknown_user_is_good_for_a_new_one(then, is_good):
    """Otherwise the second message of each new user would be written twice: the first one made the user known."""
    async with SqliteStore(":memory:") as store:
        await store.put(BOB, an_episode())
        since = await store.epoch(ALICE)
        await store.write(ALICE, put=[an_episode("e1"), an_episode("e2")], since=since)
        if then == "a text is removed":
            await store.write(ALICE, delete=["e1"])
        elif then == "they are forgotten":
            await store.forget(ALICE)
            await store.put(ALICE, an_episode("e1"))
        elif then == "another is forgotten":
            await store.forget(BOB)
        with nullcontext() if is_good else pytest.raises(StaleWrite):
            await store.write(ALICE, put=[an_episode("late")], since=since)
        assert (await store.get(ALICE, "late") is not None) == is_good


@pytest.mark.parametrize("seed", [11, 20])  # of 25, those in which a copy is left before the sweep
async def test_a_sweep_leaves_no_copy_of_a_row_that_was_moved(tmp_path, seed):
    """SQLite leaves some where a page is split, in the part of it that is not used."""
    chance, path = random.Random(seed), tmp_path / "moved.db"
    users = [Scope(user_id=f"u{number}") for number in range(8)]
    async with SqliteStore(path, durability="fast") as store:
        said = {f"e{n:03}": (chance.choice(users), f"{n:03}word " + "a" * chance.randrange(40, 300)) for n in range(60)}
        for id, (user, text) in said.items():
            await store.put(user, an_episode(id, text))
        gone = chance.sample(sorted(said), 30)
        for id in gone:
            await store.delete(said[id][0], id)
        assert await store.sweep() == ()
        held = path.read_bytes() + path.with_name("moved.db-wal").read_bytes()
        assert [id for id in gone if said[id][1][:8].encode() in held] == []
        assert (await store.verify()).is_equal
