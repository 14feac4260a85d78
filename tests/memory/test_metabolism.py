"""Metabolism: what moves, what is archived, what is made, and that it is done once."""

from dataclasses import replace
from datetime import timedelta

import pytest

from loom.core.clock import RecordIds
from loom.core.filter import Eq
from loom.core.record import Episode, Fact, Layer, Provenance
from loom.core.scope import Scope
from loom.errors import LoomError
from loom.memory._upkeep.metabolism import MAX_ATTEMPTS, Metabolism
from loom.memory._upkeep.summaries import episode_id
from loom.memory._write.apply_claims import LearnResult
from loom.memory.config import MemoryConfig, MemoryLayerConfig
from loom.stores.inmemory import InMemoryStore
from loom.testing import FakeClock

ALICE = Scope(user_id="alice")
pytestmark = pytest.mark.anyio


class Bench:
    """A store, a metabolism over it, and a clock that stands still."""

    def __init__(self, config=None, learn=None):
        self.clock = FakeClock()
        self.store = InMemoryStore(clock=self.clock)
        self.learnt = []
        self.metabolism = Metabolism(
            self.store,
            config or MemoryConfig(),
            clock=self.clock,
            ids=RecordIds(self.clock),
            learner=self,
        )
        self.learning = learn

    async def read(self, episodes):
        return ()

    async def settle(self, scope, written):
        """Nobody else writes here."""

    async def learn(self, scope, episodes, claims):
        self.learnt += [e.id for e in episodes]
        return await self.learning(scope, episodes) if self.learning else LearnResult()

    async def add(self, *texts, scope=ALICE, **fields):
        now = self.clock.now()
        made = [
            Episode(
                id=f"e{len(await self.records(scope)) + n:03}",
                text=text,
                at=now,
                recorded_at=now,
                provenance=fields.get("provenance", Provenance("user")),
                **{k: v for k, v in fields.items() if k != "provenance"},
            )
            for n, text in enumerate(texts)
        ]
        job = self.metabolism.job(scope, "digest", key=f"digest:{made[0].id}", episodes=[e.id for e in made])
        await self.store.write(scope.for_user(), put=made, jobs=[job])
        return made

    async def records(self, scope=ALICE):
        return [r for r in await self.store.list(scope, limit=5000) if isinstance(r, Episode)]

    async def layers(self, scope=ALICE):
        shown = [e for e in await self.records(scope) if e.archived_at is None]
        return [sum(e.layer == layer for e in shown) for layer in Layer]


async def test_l1_holds_ten_and_the_rest_is_archived_not_lost():
    bench = Bench()
    await bench.add(*(f"line {n}" for n in range(25)))
    done = await bench.metabolism.run()
    assert await bench.layers() == [10, 0, 0, 0]
    assert done.counts["archived"] == 15
    assert len(await bench.records()) == 25
    assert sorted(bench.learnt) == sorted(e.id for e in await bench.records()), "each is read for facts, once"


async def test_what_was_recalled_three_times_becomes_a_statement_that_names_its_source():
    bench = Bench()
    (raw,) = await bench.add("We looked at boats. " * 30)
    for _ in range(3):
        await bench.store.touch(ALICE, raw.id, at=bench.clock.now())
    await bench.metabolism.queue_layer_jobs(ALICE)
    await bench.metabolism.run()
    statement = await bench.store.get(ALICE, f"s:{raw.id}")
    assert (statement.layer, statement.sources, statement.archived_at) == (Layer.L2, (raw.id,), None)
    assert len(statement.text) < len(raw.text)
    assert (await bench.store.get(ALICE, raw.id)).archived_at is not None


async def test_it_goes_up_to_the_last_layer_and_is_never_doubled():
    bench = Bench()
    (raw,) = await bench.add("the harbour code is 4711")
    for threshold in (3, 5, 10):
        for _ in range(threshold):
            for e in await bench.records():
                await bench.store.touch(ALICE, e.id, at=bench.clock.now())
        await bench.metabolism.queue_layer_jobs(ALICE)
        await bench.metabolism.run()
    shown = [e for e in await bench.records() if e.archived_at is None]
    assert [(e.layer, e.sources) for e in shown] == [(Layer.L4, (raw.id,))]


async def test_a_second_run_over_a_quiet_store_changes_nothing():
    bench = Bench()
    await bench.add(*(f"we decided on number {n}" for n in range(80)))
    await bench.metabolism.run()
    await bench.metabolism.queue_layer_jobs(ALICE)
    await bench.metabolism.run()
    before = await bench.records()
    await bench.metabolism.queue_layer_jobs(ALICE)
    again = await bench.metabolism.run()
    assert await bench.records() == before
    assert again.counts.get("promoted", 0) == again.counts.get("archived", 0) == 0


async def test_what_leaves_l2_is_told_by_the_episode_of_its_session():
    config = MemoryConfig(l2=MemoryLayerConfig(capacity=50, retention_hours=24))
    bench = Bench(config)
    await bench.add(*(f"we decided to take plan {n}" for n in range(4)), scope=ALICE.for_session("s1"), session_id="s1")
    await bench.metabolism.run()
    bench.clock.advance(timedelta(hours=25))
    await bench.metabolism.queue_layer_jobs(ALICE)
    await bench.metabolism.run()
    (summary,) = [e for e in await bench.records() if e.layer == Layer.L3]
    assert (summary.id, summary.session_id) == (episode_id("s1"), "s1")
    assert summary.sources == ("e000", "e001", "e002", "e003")
    assert "plan 0" in summary.text, "real sentences, never a count of units"


async def test_retention_passes_when_nothing_is_written():
    bench = Bench()
    await bench.add("hello", "there")
    await bench.metabolism.run()
    bench.clock.advance(timedelta(hours=1))
    await bench.metabolism.queue_layer_jobs(ALICE)
    await bench.metabolism.run()
    assert await bench.layers() == [0, 0, 0, 0]


async def test_trust_does_not_rise_on_the_way_up():
    bench = Bench()
    await bench.add("we decided this", provenance=Provenance("operator", trusted=True))
    await bench.add("we decided that", provenance=Provenance("web"))
    await bench.metabolism.run()
    made = {e.text: e.provenance for e in await bench.records() if e.layer == Layer.L2}
    assert {t: p.trusted for t, p in made.items()} == {"we decided this": True, "we decided that": False}


async def test_facts_are_written_with_the_job_that_learnt_them():
    async def learn(scope, episodes):
        facts = [
            Fact(
                id=f"f:{e.id}",
                subject="user",
                predicate="said",
                object=e.text,
                recorded_at=e.recorded_at,
                provenance=e.provenance,
            )
            for e in episodes
        ]
        return LearnResult(facts=tuple(facts))

    bench = Bench(learn=learn)
    await bench.add("I live in Oslo")
    done = await bench.metabolism.run()
    assert done.counts["facts"] == 1
    assert [f.object for f in await bench.store.list(ALICE, where=Eq("kind", "fact"))] == ["I live in Oslo"]


async def test_a_job_that_keeps_failing_ends_as_a_dead_letter_and_loses_nothing():
    async def learn(scope, episodes):
        raise LoomError("the model is down")

    bench = Bench(learn=learn)
    await bench.add("keep me")
    for _ in range(MAX_ATTEMPTS + 2):
        await bench.metabolism.run()
        bench.clock.advance(timedelta(minutes=5))
    (letter,) = await bench.store.dead_letters(ALICE)
    assert letter.reason == "the model is down"
    assert [e.text for e in await bench.records()] == ["keep me"]
    assert await bench.store.pending(ALICE) == 0


async def test_a_worker_that_died_is_replaced_and_its_late_write_refused():
    bench = Bench()
    await bench.add("we decided")
    now = bench.clock.now()
    (dead,) = await bench.store.lease(now=now, until=now + timedelta(seconds=30))
    assert (await bench.metabolism.run()).jobs == 0
    bench.clock.advance(timedelta(seconds=31))
    assert (await bench.metabolism.run()).jobs >= 1
    with pytest.raises(LoomError):
        await bench.store.finish(dead, put=[replace((await bench.records())[0], text="from the grave")])
    assert "from the grave" not in {e.text for e in await bench.records()}


async def test_one_users_jobs_never_touch_another():
    bench = Bench()
    bob = Scope(user_id="bob")
    await bench.add(*(f"a{n}" for n in range(12)))
    await bench.add(*(f"b{n}" for n in range(12)), scope=bob)
    await bench.metabolism.run(ALICE)
    assert await bench.layers(ALICE) == [10, 0, 0, 0]
    assert await bench.layers(bob) == [12, 0, 0, 0]


async def test_without_compression_the_record_itself_moves():
    bench = Bench(MemoryConfig(enable_compression=False))
    (raw,) = await bench.add("we decided on the long text " * 20)
    await bench.metabolism.run()
    assert [(e.id, e.layer) for e in await bench.records()] == [(raw.id, Layer.L2)]
