"""Layers that live: what is asked again climbs one layer at a time, what was archived comes back, importance counts."""

import json
from datetime import timedelta

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom import open_memory
from loom.config.memory import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
from loom.core.filter import Eq
from loom.core.record import Claim, Layer
from loom.core.scope import Scope
from loom.errors import NotFound, StoreUnavailable, UsageError
from loom.memory._upkeep.summaries import episode_id, waiting_jobs
from loom.memory._write.extract_llm import LlmExtractor
from loom.memory.memory import Memory
from loom.protocols.extractor import Extraction
from loom.stores.inmemory import InMemoryStore
from loom.testing import FakeClock, ScriptedModel, run_context
from loom.tools.memory import memory_tools

pytestmark = pytest.mark.anyio

ALICE = Scope(user_id="alice")
USER = {"user_id": "alice"}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
GATE = "The gate code is 4711."


@pytest.fixture
def clock():
    return FakeClock()


def opened(clock, **options):
    """A memory that finds by words alone, so that a question finds what it names and nothing else."""
    return Memory(InMemoryStore(clock=clock), clock=clock, **options)


async def episodes(memory):
    return await memory.store.list(ALICE, where=Eq("kind", "episode"), limit=5000)


async def living(memory):
    """The texts of each layer."""
    found = {layer: [] for layer in Layer}
    for e in await episodes(memory):
        if e.archived_at is None:
            found[e.layer].append(e.text)
    return {layer.label: texts for layer, texts in found.items() if texts}


async def call(memory, name, **arguments):
    """What a memory tool answers in a run of alice."""
    (chosen,) = [t for t in memory_tools(memory) if t.spec.name == name]
    with run_context(user_id="alice", session_id="s"):
        return await chosen.run(arguments)


@pytest.mark.parametrize("jobs", ["after every recall", "once a day"])
async def test_what_is_asked_for_fourteen_days_ends_in_l4_and_is_found_there(clock, jobs):
    memory = opened(clock)
    await memory.remember([GATE, *(f"Boat {n} was painted." for n in range(12))], **USER)
    for _ in range(14):
        for _ in range(3):
            clock.advance(3 * HOUR)
            assert len(await memory.recall("gate code", limit=3, **USER)) == 1
            if jobs == "after every recall":
                await memory.metabolize(**USER)
        clock.advance(15 * HOUR)
        await memory.metabolize(**USER)
    assert await living(memory) == {"L4": [GATE]}
    (known,) = [e for e in await episodes(memory) if e.layer is Layer.L4]
    assert known.accesses == 42
    assert GATE in str(await call(memory, "search_l4_memory", query="gate code"))
    assert "Nothing was found" in str(await call(memory, "search_l2_memory", query="gate code"))


SMALL_TALK = ["My boat is blue.", "We had soup for lunch.", "The printer is jammed.", "Ann called.", "I read of bees."]


@pytest.mark.parametrize("embedder", ["static", "hash"])
async def test_what_only_fills_the_places_of_an_answer_does_not_move_up(clock, embedder):
    async with open_memory("inmemory", embedder=embedder, clock=clock) as memory:
        for text in (GATE, *SMALL_TALK):
            await memory.remember([text, {"role": "assistant", "content": "ok"}], session_id="s", **USER)
        for _ in range(12):
            found = await memory.recall("What is the gate code?", **USER)
            assert len(found) > 1, "the rest of the memory is returned as well"
            clock.advance(HOUR)
            await memory.metabolize(**USER)
        counted = {e.text: e.accesses for e in await episodes(memory) if e.accesses}
        assert counted == {GATE: 12}
        assert (await living(memory))["L4"] == [GATE]


async def test_what_is_found_by_its_meaning_alone_counts_where_it_is_the_best(clock):
    async with open_memory("inmemory", embedder="static", clock=clock) as memory:
        await memory.remember([*SMALL_TALK, "Our dog is called Biscuit."], **USER)
        found = await memory.recall("puppy", **USER)
        best = found.hits[0].item
        assert (await memory.get(best.id, **USER)).accesses == 1
        assert sum(e.accesses for e in await episodes(memory)) <= 2


async def test_a_pass_moves_a_record_one_layer_and_no_more(clock):
    memory = opened(clock)
    await memory.remember(GATE, **USER)
    for _ in range(20):
        await memory.recall("gate code", **USER)
    seen = []
    for _ in range(4):
        await memory.metabolize(**USER)
        seen += list(await living(memory))
    assert seen == ["L2", "L3", "L4", "L4"]


async def test_what_is_archived_and_asked_again_comes_back_to_the_layer_its_count_deserves(clock):
    memory = opened(clock)
    await memory.remember([GATE, "The boat is blue."], **USER)
    await memory.metabolize(**USER)
    clock.advance(2 * DAY)
    await memory.metabolize(**USER)
    assert await living(memory) == {}
    seen = []
    for _ in range(10):
        clock.advance(timedelta(minutes=1))
        await memory.recall("gate code", **USER)
        await memory.metabolize(**USER)
        seen.append(await living(memory))
    assert seen == [{}, {}, *[{"L2": [GATE]}] * 2, *[{"L3": [GATE]}] * 5, {"L4": [GATE]}]


async def test_a_statement_that_left_l2_returns_there_itself_and_stays_for_its_hours(clock):
    memory = opened(clock)
    await memory.remember(GATE, **USER)
    for _ in range(3):
        await memory.recall("gate code", **USER)
    await memory.metabolize(**USER)
    clock.advance(25 * HOUR)
    await memory.metabolize(**USER)
    assert await living(memory) == {}
    await memory.recall("gate code", **USER)
    done = await memory.metabolize(**USER)
    assert (await living(memory), done.counts["returned"]) == ({"L2": [GATE]}, 1)
    clock.advance(23 * HOUR)
    await memory.metabolize(**USER)
    assert await living(memory) == {"L2": [GATE]}
    clock.advance(HOUR)
    await memory.metabolize(**USER)
    assert await living(memory) == {}
    assert sorted(e.text for e in await episodes(memory)) == [GATE, GATE], "the turn and one statement, no more"


async def test_a_worker_brings_back_what_deserves_it_without_being_told_to_look(clock):
    memory = opened(clock)
    await memory.remember(GATE, **USER)
    await memory.metabolize(**USER)
    clock.advance(2 * HOUR)
    await memory.metabolize(**USER)
    seen = []
    for _ in range(10):
        await memory.recall("gate code", **USER)
        await memory.metabolize()  # of everybody: the jobs that are due, without a look at every layer
        seen += [layer for layer in await living(memory) if layer not in seen]
    assert seen == ["L2", "L3", "L4"]


TOPICS = ("gate code", "boat colour", "bakery hours")
STEPS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(TOPICS)), max_size=40)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_jobs_after_every_recall_and_once_a_day_come_to_the_same(steps):
    ends = []
    for often in (True, False):
        clock = FakeClock()
        memory = opened(clock)
        await memory.remember([f"The {topic} is known." for topic in TOPICS], session_id="s1", **USER)
        next_day = clock.now() + DAY
        for hours, topic in steps:
            for _ in range(hours):
                clock.advance(HOUR)
                if clock.now() >= next_day:
                    await memory.metabolize(**USER)
                    next_day += DAY
            await memory.recall(topic, **USER)
            if often:
                await memory.metabolize(**USER)
        for _ in range(12):  # quiet days
            clock.advance(DAY)
            await memory.metabolize(**USER)
        told = [e for e in await episodes(memory) if e.id == episode_id("s1")]
        assert len(told) == 1, "the session has one episode, however often jobs ran"
        records = [e for e in await episodes(memory) if e not in told]
        ends.append({e.text: (e.layer, e.accesses, e.archived_at is None) for e in records if e.sources})
        shown = [e.text for e in records if e.archived_at is None]
        assert len(shown) == len(set(shown)), "nothing is in two layers"
    assert ends[0] == ends[1]


async def test_the_archive_is_not_among_the_records_of_a_layer(clock):
    memory = opened(clock)
    await memory.remember(GATE, **USER)
    assert len(await memory.recall("gate", layers=[Layer.L1], **USER)) == 1
    clock.advance(2 * HOUR)
    await memory.metabolize(**USER)
    assert len(await memory.recall("gate", layers=[Layer.L1], **USER)) == 0
    assert len(await memory.recall("gate", **USER)) == 1


# -- importance -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", MemoryStrategyType)
async def test_what_is_marked_as_important_moves_into_l2_under_every_strategy(clock, strategy):
    memory = opened(clock, config=MemoryConfig(strategy=strategy))
    kept = (await memory.remember([GATE, "The boat is blue."], **USER)).kept
    marked = await memory.mark(kept[0].id, importance=0.9, **USER)
    assert marked.importance == 0.9
    await memory.metabolize(**USER)
    assert (await living(memory))["L2"] == [GATE]
    for _ in range(3):
        await memory.metabolize(**USER)
    top = "L4" if strategy is MemoryStrategyType.IMPORTANCE_BASED else "L2"
    assert (await living(memory))[top] == [GATE], "only the strategy that is named for it goes further"


async def test_marking_brings_back_what_was_archived_and_reaches_what_speaks_for_it(clock):
    memory = opened(clock)
    id = (await memory.remember(GATE, **USER)).kept[0].id
    clock.advance(2 * HOUR)
    await memory.metabolize(**USER)
    assert await living(memory) == {}
    await memory.mark(id, importance=1, **USER)
    await memory.metabolize(**USER)
    assert await living(memory) == {"L2": [GATE]}
    assert (await memory.mark(id, importance=0, **USER)).importance == 0
    (statement,) = [e for e in await episodes(memory) if e.sources]
    assert statement.importance == 0


async def test_marking_says_what_is_wrong(clock):
    memory = opened(clock)
    with pytest.raises(NotFound, match="has no episode 'nothing'"):
        await memory.mark("nothing", importance=0.5, **USER)
    with pytest.raises(UsageError, match="from 0 to 1"):
        await memory.mark("nothing", importance=2, **USER)


async def test_a_model_marks_what_it_remembers_as_important(clock):
    memory = opened(clock)
    await call(memory, "remember", text="The user needs an EpiPen.", importance=0.9)
    await memory.metabolize(**USER)
    assert await living(memory) == {"L2": ["The user needs an EpiPen."]}


@pytest.mark.parametrize("facts", ["rules", "model"])
async def test_an_extractor_says_how_important_what_was_said_is(clock, facts):
    class Careful:
        async def extract(self, episodes, *, known=()):
            claims = [
                Claim(subject="user", predicate="needs", object="EpiPen", sources=(e.id,), importance=0.9)
                for e in episodes
                if "EpiPen" in e.text
            ]
            return Extraction(claims=tuple(claims))

    found = {"extractor": Careful()} if facts == "rules" else {"reader": Careful(), "facts": "model"}
    memory = opened(clock, **found)
    await memory.remember(["I carry an EpiPen.", "The boat is blue."], **USER)
    await memory.metabolize(**USER)
    await memory.metabolize(**USER)
    assert await living(memory) == {"L1": ["The boat is blue."], "L2": ["I carry an EpiPen."]}
    await memory.aclose()


@pytest.mark.parametrize(("said", "importance"), [(0.9, 0.9), (7, 1.0), (-1, 0.0), ("high", 0.0), (True, 0.0)])
async def test_what_a_model_calls_important_stays_within_bounds(clock, said, importance):
    fact = {"sources": ["e1"], "subject": "user", "predicate": "needs", "object": "EpiPen", "importance": said}
    memory = opened(clock)
    kept = (await memory.remember("I carry an EpiPen.", **USER)).kept
    found = await LlmExtractor(ScriptedModel([json.dumps({"facts": [fact]})])).extract(kept)
    assert [claim.importance for claim in found.claims] == [importance]


async def test_promoting_a_turn_whose_statement_speaks_for_it_moves_the_statement(clock):
    memory = opened(clock)
    id = (await memory.remember(GATE, importance=0.9, **USER)).kept[0].id
    await memory.metabolize(**USER)
    moved = await memory.promote(id, **USER)
    assert (moved.layer, moved.sources) == (Layer.L3, (id,))
    assert await living(memory) == {"L3": [GATE]}


def test_a_field_that_is_not_given_is_the_default_of_its_layer():
    config = MemoryConfig(l2=MemoryLayerConfig(capacity=7), l4=MemoryLayerConfig())
    assert (config.l2.capacity, config.l2.retention_hours, config.l2.promote_threshold) == (7, 24, 5)
    assert config.l4 == MemoryConfig().l4
    assert isinstance(config.l4.auto_compress, bool)


async def test_a_layer_that_an_import_filled_empties_where_no_jobs_are_run(clock):
    """A program that only remembers, as a server does, without a worker."""
    async with opened(clock) as memory:
        held = [f"In year {number} a boat called {number} was built." for number in range(600)]
        for start in range(0, 600, 100):
            await memory.remember(held[start : start + 100], session_id=f"old{start}", **USER)
        assert (await memory.stats(**USER))["L1"] == 600
        for number in range(30):
            await memory.remember(f"I like plum number {number}.", session_id="now", learn=True, **USER)
        after = await memory.stats(**USER)
        assert after["L1"] <= memory.config.l1.capacity
        assert sum(after[name] for name in ("L1", "L2", "L3", "L4", "archived")) >= 630


class SlowStore(InMemoryStore):
    """A store whose jobs are written when the test lets them."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.may_write = anyio.Event()
        self.written = 0
        self.error = None

    async def write(self, scope, *, jobs=(), **changes):
        if jobs and not changes.get("put"):
            await self.may_write.wait()
            if self.error is not None:
                raise self.error
            self.written += 1
        return await super().write(scope, jobs=jobs, **changes)


async def aged(store, clock):
    """A memory whose record was archived, and recalled until it may come back."""
    memory = Memory(store, clock=clock)
    await memory.remember(GATE, **USER)
    store.may_write.set()
    await memory.metabolize(**USER)
    clock.advance(2 * DAY)
    await memory.metabolize(**USER)
    for _ in range(2):
        await memory.recall("gate code", **USER)
    store.may_write, store.written = anyio.Event(), 0
    return memory


async def test_a_recall_does_not_wait_for_the_jobs_that_it_makes_due(clock):
    store = SlowStore(clock)
    memory = await aged(store, clock)
    with anyio.fail_after(60):  # it would wait for ever
        found = await memory.recall("gate code", **USER)
    assert [hit.text for hit in found.hits] == [GATE]
    assert not store.written, "it came back while the job was not written"
    store.may_write.set()
    await memory.metabolize(**USER)
    assert await living(memory) == {"L2": [GATE]}


async def test_what_could_not_be_queued_is_queued_by_the_next_recall(clock):
    store = SlowStore(clock)
    memory = await aged(store, clock)
    store.error = StoreUnavailable("the disk is gone")
    store.may_write.set()
    await memory.recall("gate code", **USER)
    await anyio.wait_all_tasks_blocked()
    store.error = None
    assert not await waiting_jobs(store, ALICE, clock.now())
    await memory.recall("gate code", **USER)
    await anyio.wait_all_tasks_blocked()
    assert await waiting_jobs(store, ALICE, clock.now())


async def test_what_a_recall_made_due_is_not_queued_for_a_user_who_is_forgotten(clock):
    store = SlowStore(clock)
    memory = await aged(store, clock)
    await memory.recall("gate code", **USER)
    await anyio.wait_all_tasks_blocked()
    await store.forget(ALICE)  # by another process, while the job waits to be written
    store.may_write.set()
    await anyio.wait_all_tasks_blocked()
    assert not await waiting_jobs(store, ALICE, clock.now())
    assert not await store.list(ALICE, limit=1)


async def test_what_many_recalls_at_once_count_past_a_threshold_moves_up(clock):
    store = SlowStore(clock)
    memory = await aged(store, clock)
    store.may_write.set()
    await memory.recall("gate code", **USER)
    await memory.metabolize(**USER)
    assert await living(memory) == {"L2": [GATE]}
    for _ in range(6):
        await memory.recall("gate code", **USER)
    async with memory.worker(every=0.0):
        while "L3" not in await living(memory):
            await anyio.lowlevel.checkpoint()
