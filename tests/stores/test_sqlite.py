"""The SQLite store keeps every law of a memory store, and those of its own."""

import asyncio
import math
import random
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.filter import FIELDS, And, Eq, In, Not, Or, Range
from loom.core.record import rank_key
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, FormatTooNew, StoreConflict, StoreError, StoreUnavailable, UsageError
from loom.protocols.memory_store import KeepsJobs, KeepsKeys, KeepsVectors, MemoryStore, Prunes, Query, Touches
from loom.stores import _search
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore, index
from loom.stores.sqlite.connection import condition, connect, patiently, translate_errors
from loom.stores.sqlite.records import change
from loom.stores.sqlite.schema import MEMORY_PAGE_BYTES, VERSION, migrate
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.testing.conformance.isolation import observe, random_trace
from loom.testing.conformance.suite import ALICE, BOB, DAY, a_block, a_fact, an_episode, one_of_each
from loom.testing.fakes import START, FakeClock
from loom.text.words import query_terms, terms
from tests.stores.sqlite_files import execute
from tests.timing import until

pytestmark = pytest.mark.anyio

# Checked by pyright, signatures included.
as_memory: MemoryStore = SqliteStore(":memory:")
as_pruning: Prunes = SqliteStore(":memory:")
as_touching: Touches = SqliteStore(":memory:")
as_vectors: KeepsVectors = SqliteStore(":memory:")
as_keys: KeepsKeys = SqliteStore(":memory:")
as_jobs: KeepsJobs = SqliteStore(":memory:")


class TestSqlite(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, tmp_path):
        async with SqliteStore(tmp_path / "memory.db", clock=clock) as store:
            yield store


class TestSqliteInMemory(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with SqliteStore(":memory:", clock=clock) as store:
            yield store


class SqliteMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with SqliteStore(":memory:", clock=clock) as store:
            yield store


TestSqliteModel = SqliteMachine.TestCase
TestSqliteModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def rounded(value):
    """The same value, numbers cut to what 32-bit vectors can say."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("tail", [1, 5, index.TAIL])
@pytest.mark.parametrize("seed", range(20))
async def test_it_answers_like_the_store_in_memory(seed, tail, monkeypatch):
    monkeypatch.setattr(index, "TAIL", tail)
    trace = random_trace(random.Random(seed), steps=60)
    scopes = {"A": ALICE, "B": BOB}
    async with SqliteStore(":memory:", clock=FakeClock()) as store:
        seen = await observe(store, trace, scopes)
    assert len(seen) > 10
    assert rounded(seen) == rounded(await observe(InMemoryStore(clock=FakeClock()), trace, scopes))


async def test_a_newer_file_is_refused_with_both_versions(tmp_path):
    path = tmp_path / "memory.db"
    async with SqliteStore(path) as store:
        await store.put(ALICE, an_episode())
    execute(path, "PRAGMA user_version=99")
    with pytest.raises(FormatTooNew, match=rf"format 99, .* up to {VERSION};"):
        await SqliteStore(path).get(ALICE, "e1")
    execute(path, f"PRAGMA user_version={VERSION}")
    async with SqliteStore(path) as store:
        assert await store.get(ALICE, "e1") == an_episode()


async def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    with pytest.raises(StoreError, match="not a sound SQLite file"):
        await SqliteStore(path).count(ALICE)
    with pytest.raises(StoreUnavailable, match=r"cannot be opened.*; make the folder .*no first"):
        await SqliteStore(tmp_path / "no" / "folder.db").count(ALICE)
    with pytest.raises(StoreUnavailable, match="it is a folder: name a file in it"):
        await SqliteStore(tmp_path).count(ALICE)


async def test_a_file_that_another_process_is_writing_into_is_not_taken_for_damaged(tmp_path):
    """As a file stands while its log is brought into it: the head knows of pages that are only in the log."""
    path, half = tmp_path / "memory.db", tmp_path / "half.db"
    async with SqliteStore(path) as store:
        await store.put(ALICE, an_episode())
        shutil.copy(f"{path}-wal", f"{half}-wal")
    head = path.read_bytes()[:MEMORY_PAGE_BYTES]
    half.write_bytes(head)
    async with SqliteStore(half) as store:
        assert await store.get(ALICE, "e1") == an_episode()


async def test_it_opens_at_the_first_use_and_not_after_closing(tmp_path):
    store = SqliteStore(tmp_path / "memory.db")
    assert list(tmp_path.iterdir()) == []
    await store.put(ALICE, an_episode())
    await store.aclose()
    with pytest.raises(UsageError, match="closed"):
        await store.get(ALICE, "e1")
    assert [file.name for file in tmp_path.iterdir()] == ["memory.db"]


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("fast", 1)])
async def test_the_file_is_written_by_the_rules(tmp_path, durability, synchronous):
    async with SqliteStore(tmp_path / "memory.db", durability=durability) as store:
        db = store._file._writer._db
        rules = ("synchronous", "journal_mode", "secure_delete", "foreign_keys", "busy_timeout")
        found = [db.execute(f"PRAGMA {rule}").fetchone()[0] for rule in rules]
        assert found == [synchronous, "wal", 1, 1, 10_000]
    with pytest.raises(UsageError, match="'safe'"):
        SqliteStore("x.db", durability="safe")


async def test_stores_of_one_file_share_a_writer_and_the_most_durable_wish_holds(tmp_path):
    path = tmp_path / "memory.db"
    async with SqliteStore(path, durability="fast") as one, SqliteStore(path) as other:
        assert one._file._writer is other._file._writer
        await one.put(ALICE, an_episode())
        assert one._file._writer._db.execute("PRAGMA synchronous").fetchone() == (2,)
        await one.aclose()
        await other.put(ALICE, an_episode("e2"))
        assert await other.count(ALICE) == 2


async def test_a_failing_write_does_not_hurt_those_committed_with_it(tmp_path):
    async with SqliteStore(tmp_path / "memory.db") as store:
        outcomes = await asyncio.gather(
            *(store.put(ALICE, an_episode(f"e{n}"), *([a_block(version=9)] if n % 3 == 0 else [])) for n in range(30)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [StoreConflict, type(None), type(None)] * 10
        assert await store.count(ALICE) == 20
        assert len(await store.search(ALICE, Query(text="tea", limit=100))) == 20


async def test_a_cancelled_write_is_whole_or_not_there(tmp_path):
    async with SqliteStore(tmp_path / "memory.db") as store:
        tries, kept = 0, set()
        while tries < 20 or not 0 < len(kept) < 2 * tries:  # until one came too late to be stopped, and one did not
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.put, ALICE, an_episode(f"a{tries}"), an_episode(f"b{tries}"))
                for _ in range(tries):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            tries += 1
            kept = {record.id for record in await store.list(ALICE, limit=10_000)}
            assert all((f"a{n}" in kept) == (f"b{n}" in kept) for n in range(tries))


async def test_a_loop_is_woken_once_for_all_that_one_commit_holds(tmp_path, monkeypatch):
    loop, woken = asyncio.get_running_loop(), []
    begun, may_end = threading.Event(), threading.Event()
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.put(ALICE, an_episode("e"))
        writer = store._file.writer
        held = writer.submit(lambda _: (begun.set(), may_end.wait()), alone=True)
        begun.wait()
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(store.put, ALICE, an_episode(f"e{number}"))
            await until(lambda: writer._tasks.qsize() == 20)
            real = loop.call_soon_threadsafe
            monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *given: (woken.append(given), real(*given))[1])
            may_end.set()
        assert held.done()
        assert len(woken) == 1
        assert await store.count(ALICE) == 21


async def test_a_write_that_is_cancelled_while_it_waits_is_not_done(tmp_path):
    begun, may_end = threading.Event(), threading.Event()
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.put(ALICE, an_episode("e"))
        writer = store._file.writer
        writer.submit(lambda _: (begun.set(), may_end.wait()), alone=True)
        begun.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, ALICE, an_episode("a"))
            await until(lambda: writer._tasks.qsize() == 1)
            tasks.cancel_scope.cancel()
        may_end.set()
        await store.put(ALICE, an_episode("b"))
        assert {record.id for record in await store.list(ALICE)} == {"b", "e"}


def test_several_loops_write_to_one_file_at_once(tmp_path):
    async def write(user):
        async with SqliteStore(tmp_path / "memory.db") as store, anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(store.put, Scope("test", user), an_episode(f"e{number}"))
        async with SqliteStore(tmp_path / "memory.db") as store:
            return await store.count(Scope("test", user))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda user: anyio.run(write, user), "abcd")) == [50] * 4


def reference_scores(texts, query):
    """BM25 by the book, over these texts alone."""
    counted = {id: Counter(terms(text)) for id, text in texts.items()}
    average = sum(words.total() for words in counted.values()) / len(counted)
    scores = Counter()
    for term in query_terms(query):
        holding = [id for id, words in counted.items() if term in words]
        idf = math.log(1 + (len(counted) - len(holding) + 0.5) / (len(holding) + 0.5))
        for id in holding:
            times, length = counted[id][term], counted[id].total()
            scores[id] += idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length / average))
    return scores


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 31, 32, 33, 40, 71, 200])
def test_every_number_lies_in_one_run(size, small_runs):
    runs = list(_search.runs_of(size))
    assert runs == sorted({_search.run_of(number, size) for number in range(size)})
    for number in range(size):
        assert _search.run_of(number, size) == max(start for start in runs if start <= number)


async def test_full_runs_are_joined(tmp_path, small_runs):
    async with SqliteStore(tmp_path / "memory.db", durability="fast") as store:
        for n in range(75):
            await store.put(ALICE, an_episode(f"e{n:02}", f"tea number{n}"))
            await store.put(BOB, an_episode(f"e{n:02}", f"tea number{n}"), an_episode(f"f{n:02}", "tea"))
            sizes = execute(tmp_path / "memory.db", "SELECT user, next_number, indexed FROM users ORDER BY user")
            assert [size for _, size, _ in sizes] == [n + 1, 2 * n + 2]
            assert all(0 <= size - indexed < index.TAIL for _, size, indexed in sizes)
            found = execute(tmp_path / "memory.db", "SELECT user, run FROM postings WHERE term = 'tea' ORDER BY 1, 2")
            assert found == [(user, run) for user, _, indexed in sizes for run in _search.runs_of(indexed)]
        assert len(await store.search(ALICE, Query(text="tea", limit=500))) == 75


async def test_scores_are_bm25_over_the_users_own_texts_across_runs(tmp_path):
    chance = random.Random(3)
    words = [f"word{n}" for n in range(60)]
    texts = {
        f"e{n:04}": " ".join(chance.choices(words, k=chance.randint(1, 30)))
        for n in range(_search.LARGER_RUNS[-1] + 2 * _search.RUN + 40)
    }
    async with SqliteStore(tmp_path / "memory.db", durability="fast") as store:
        rare = dict.fromkeys(list(texts)[::97], "anna")
        await store.put(ALICE, *(an_episode(id, text, speaker=rare.get(id)) for id, text in texts.items()))
        await store.put(BOB, *(an_episode(f"b{n}", "word1 word2") for n in range(200)))
        expected = reference_scores(texts, "word1 the word2 word3")
        hits = await store.search(ALICE, Query(text="word1 the word2 word3", limit=5_000))
        assert {hit.item.id: hit.score for hit in hits} == pytest.approx(dict(expected), rel=1e-12)
        ordered = sorted(hits, key=rank_key)
        assert list(hits) == ordered
        for limit in (1, 7, 300):
            assert list(await store.search(ALICE, Query(text="word1 the word2 word3", limit=limit))) == ordered[:limit]
            query = Query(text="word1 the word2 word3", limit=limit, where=Eq("speaker", "anna"))
            assert list(await store.search(ALICE, query)) == [hit for hit in ordered if hit.item.speaker][:limit]


async def test_the_index_equals_the_records_after_any_history(tmp_path, small_runs):
    chance = random.Random(5)
    async with SqliteStore(tmp_path / "memory.db", durability="fast") as store:
        await store.bind("test:2", 2)
        for step in range(150):
            id, text = f"e{chance.randrange(12)}", " ".join(chance.choices(["tea", "milk", "jam", "bread", "the"], k=3))
            match chance.randrange(5):
                case 0 | 1:
                    await store.put(ALICE, an_episode(id, text, session_id=f"s{step % 2}"))
                case 2:
                    await store.delete(ALICE, id)
                case 3 if await store.get(ALICE, id):
                    await store.put_keys(ALICE, {id: {chance.choice("kl"): chance.choice([text, ""])}})
                    await store.put_vectors(ALICE, {id: [step, 1.0]})
                case 4 if step % 7 == 0:
                    await store.forget(ALICE.for_session("s1"))
                case _:
                    pass
        async with SqliteStore(tmp_path / "again.db", durability="fast") as again:
            await again.put(ALICE, *await store.list(ALICE))
            keys = execute(tmp_path / "memory.db", "SELECT id, k.kind, k.text FROM keys AS k JOIN records USING (row)")
            assert len(keys) > 2
            for id, kind, text in keys:
                await again.put_keys(ALICE, {id: {kind: text}})
            for text in ("tea", "milk jam", "bread the"):
                expected = await again.search(ALICE, Query(text=text, limit=50))
                assert len(expected) > 0
                assert await store.search(ALICE, Query(text=text, limit=50)) == expected
        vectors = execute(tmp_path / "memory.db", "SELECT id FROM vectors JOIN records USING (row) ORDER BY id")
        dense = await store.search(ALICE, Query(vector=[1.0, 0.0], limit=50))
        assert sorted(hit.item.id for hit in dense) == [id for (id,) in vectors] != []


async def test_a_search_sees_vectors_that_another_store_wrote_or_took_away(tmp_path):
    path = tmp_path / "memory.db"
    async with SqliteStore(path) as one, SqliteStore(path, vector_cache_bytes=0) as other:
        await one.bind("test:2", 2)
        await one.put(ALICE, an_episode("e1"), an_episode("e2"), an_episode("e3"))
        await one.put_vectors(ALICE, {"e1": [1, 0]})
        for store in (one, other):
            assert [h.item.id for h in await store.search(ALICE, Query(vector=[1, 0]))] == ["e1"]
        await other.put_vectors(ALICE, {"e2": [1, 1], "e3": [0, 1]})
        assert [h.item.id for h in await one.search(ALICE, Query(vector=[1, 0]))] == ["e1", "e2", "e3"]
        await other.put_vectors(ALICE, {"e1": [-1, 0]})
        await other.delete(ALICE, "e3")
        found = await one.search(ALICE, Query(vector=[1, 0]))
        assert [(h.item.id, h.score) for h in found] == [("e2", pytest.approx(0.5**0.5, abs=1e-6)), ("e1", -1.0)]
        assert len(one._cache._held) == 1
        assert len(other._cache._held) == 0


RECORDS = [
    *one_of_each(),
    an_episode("e1", speaker="anna", importance=1, attributes={"n": 1}),
    an_episode("e2", at=START + DAY, layer=3, accesses=2, accessed_at=START, session_id="s"),
    a_fact(sources=("e2",), valid_until=START + DAY),
    a_block(),
]
VALUES = st.sampled_from(
    [
        "e1",
        "episode",
        "anna",
        "s",
        "",
        "user",
        "tea",
        0,
        1,
        1.0,
        2,
        3,
        True,
        False,
        None,
        START,
        START + DAY,
        2**70,
        0.5,
    ]
)
FIELD = st.sampled_from([*FIELDS, "meta.n"])
LEAVES = st.one_of(
    st.builds(Eq, FIELD, VALUES),
    st.builds(In, FIELD, st.lists(VALUES, max_size=3).map(tuple)),
    st.builds(Range, FIELD, st.sampled_from(["a", "e2"]), st.sampled_from(["f", None])),
    st.builds(Range, FIELD, st.sampled_from([0, 1.5, 2**70]), st.sampled_from([3, None])),
    st.builds(Range, FIELD, st.just(START), st.sampled_from([START + DAY, None])),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: And(*parts)),
        st.lists(inner, max_size=3).map(lambda parts: Or(*parts)),
        inner.map(Not),
    ),
    max_leaves=6,
)


@given(FILTERS)
@settings(max_examples=300, deadline=None)
def test_a_condition_says_what_the_filter_says(where):
    made = condition(where)
    db = connect(":memory:")
    migrate(db, ":memory:")
    change(db, ALICE, put=RECORDS)
    found = {row[0] for row in db.execute(f"SELECT id FROM records AS r WHERE {made.sql}", made.values)}
    expected = {record.id for record in RECORDS if where.matches(record)}
    db.close()
    assert found == expected if made.exact else found >= expected


async def test_a_filter_too_wide_for_sql_still_holds(tmp_path):
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        wide = Or(*(Eq("id", f"x{n}") for n in range(3_000)), Eq("id", "e2"))
        assert [record.id for record in await store.list(ALICE, where=wide)] == ["e2"]
        assert [hit.item.id for hit in await store.search(ALICE, Query(text="tea", where=wide))] == ["e2"]


async def test_an_empty_look_leaves_no_trace_of_a_user(tmp_path):
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.delete(ALICE, "e1")
        await store.touch(ALICE, "e1", at=START)
        await store.forget(ALICE)
        assert await store.search(ALICE, Query(text="tea")) == ()
        assert store._file._writer._db.execute("SELECT count(*) FROM users").fetchone() == (0,)


async def test_numbers_beyond_the_files_range_are_refused(tmp_path):
    async with SqliteStore(tmp_path / "memory.db") as store:
        with pytest.raises(UsageError, match="64 bits"):
            await store.put(ALICE, an_episode("e1", accesses=2**70))
        assert await store.count(ALICE) == 0


async def test_a_file_that_stays_locked_is_unavailable(tmp_path):
    path = str(tmp_path / "memory.db")
    holder, other = connect(path), connect(path)
    holder.execute("BEGIN IMMEDIATE")
    other.set_busy_timeout(1)
    with pytest.raises(StoreUnavailable, match="held by another process"), translate_errors(path):
        patiently(lambda: other.execute("BEGIN IMMEDIATE"), seconds=0)
    holder.execute("ROLLBACK")
    patiently(lambda: other.execute("BEGIN IMMEDIATE"), seconds=0)
    assert other.in_transaction
    holder.close()
    other.close()


async def test_closing_while_others_write_lets_nobody_wait_for_ever(tmp_path):
    store = SqliteStore(tmp_path / "memory.db", durability="fast")
    await store.put(ALICE, an_episode())
    *outcomes, _ = await asyncio.gather(
        *(store.put(ALICE, an_episode(f"e{n}")) for n in range(50)), store.aclose(), return_exceptions=True
    )
    kept = sum(outcome is None for outcome in outcomes)
    assert {type(outcome) for outcome in outcomes} <= {type(None), UsageError}
    async with SqliteStore(tmp_path / "memory.db") as again:
        assert await again.count(ALICE) >= max(kept, 1)


async def test_vectors_of_an_embedder_that_another_process_left_behind_are_refused(tmp_path):
    """Binding again costs no read; what compares or writes vectors sees that the file is another embedder's now."""
    async with SqliteStore(tmp_path / "memory.db") as mine, SqliteStore(tmp_path / "memory.db") as theirs:
        await mine.bind("one:1:2", 2)
        await mine.put(ALICE, an_episode("e1", "tea"))
        await theirs.rebind("two:1:2", 2)
        await mine.bind("one:1:2", 2)
        asked = Query(text="tea", vector=[1.0, 0.0])
        for call in (mine.search(ALICE, asked), mine.search_hybrid(ALICE, asked, near=1)):
            with pytest.raises(EmbedderMismatch, match="two:1:2"):
                await call
        with pytest.raises(EmbedderMismatch, match="two:1:2"):
            await mine.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert [hit.item.id for hit in await mine.search(ALICE, Query(text="tea"))] == ["e1"]
        await mine.bind("two:1:2", 2)
        assert [hit.item.id for hit in await mine.search(ALICE, asked)] == ["e1"]
