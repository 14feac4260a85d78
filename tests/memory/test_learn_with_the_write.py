"""`remember(learn=True)`: facts and the place in L1 are written with the text; `upkeep` runs the other jobs later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from loom import Memory, open_memory
from loom.core.record import Episode, Fact, Layer, Record
from loom.core.scope import Scope
from loom.memory._upkeep.summaries import is_session_episode
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory.config import MemoryConfig, MemoryLayerConfig
from loom.protocols.extractor import Extraction
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio


async def test_facts_are_known_at_once_and_no_job_looks_for_them_again() -> None:
    async with open_memory("inmemory", facts="rules") as memory:
        done = await memory.remember("I live in Lisbon.", user_id="ann", learn=True)
        assert [(fact.predicate, fact.object) for fact in done.facts] == [("lives_in", "Lisbon")]
        assert [fact.object for fact in await memory.facts(user_id="ann")] == ["Lisbon"]
        assert (await memory.stats(user_id="ann"))["jobs"] == 0
        moved = await memory.remember("I moved to Porto.", user_id="ann", session_id="s", learn=True)
        assert "Porto" in {fact.object for fact in moved.facts}
        assert [fact.object for fact in await memory.facts(user_id="ann")] == ["Porto"]


async def test_without_it_a_job_learns() -> None:
    async with open_memory("inmemory", facts="rules") as memory:
        assert (await memory.remember("I live in Lisbon.", user_id="ann")).facts == ()
        assert await memory.facts(user_id="ann") == ()
        await memory.metabolize(user_id="ann")
        assert [fact.object for fact in await memory.facts(user_id="ann")] == ["Lisbon"]


async def test_what_no_longer_fits_into_l1_is_archived_with_the_same_write() -> None:
    config = MemoryConfig(l1=MemoryLayerConfig(capacity=2))
    async with open_memory("inmemory", facts="rules", config=config) as memory:
        done = [await memory.remember(f"Note {n}.", user_id="ann", session_id="s", learn=True) for n in range(4)]
        assert [one.archived for one in done] == [0, 0, 1, 1]
        stats = await memory.stats(user_id="ann")
        assert (stats["L1"], stats["archived"]) == (2, 2)


async def test_a_decision_moves_up_with_its_write_and_the_next_layer_is_checked_with_it() -> None:
    config = MemoryConfig(l2=MemoryLayerConfig(capacity=1))
    async with open_memory("inmemory", facts="rules", config=config) as memory:
        for number, text in enumerate(("We decided to ship on Friday.", "We decided to paint the boat blue.")):
            done = await memory.remember(text, user_id="ann", session_id=f"s{number}", learn=True)
            assert done.promoted == 1
            await memory.end_session(user_id="ann", session_id=f"s{number}")
        stats = await memory.stats(user_id="ann")
        assert (stats["L2"], stats["jobs"]) == (1, 0), "the first statement made room for the second"
        assert await memory.upkeep(user_id="ann") is None


async def test_a_layer_makes_room_at_once_and_the_job_of_the_session_writes_its_episode() -> None:
    config, clock = MemoryConfig(l2=MemoryLayerConfig(capacity=1)), FakeClock()
    async with open_memory("inmemory", facts="rules", config=config, clock=clock) as memory:
        for text in ("We decided to ship on Friday.", "We decided to paint the boat blue."):
            await memory.remember(text, user_id="ann", session_id="s", learn=True)
        stats = await memory.stats(user_id="ann")
        assert (stats["L2"], stats["L3"], stats["jobs"]) == (1, 0, 0), "no job runs with the turn"
        assert await memory.upkeep(user_id="ann") is None
        clock.advance(timedelta(hours=2))
        done = await memory.metabolize(user_id="ann")
        assert done.counts["episodes"] == 1
        (episode,) = [record for record in await _records(memory) if is_session_episode(record)]
        assert "ship on Friday" in episode.text, "what made room is in the episode"


async def test_a_session_without_an_episode_or_a_job_for_one_gets_the_job() -> None:
    config, clock = MemoryConfig(l2=MemoryLayerConfig(capacity=1)), FakeClock()
    async with open_memory("inmemory", facts="rules", config=config, clock=clock) as first:
        for text in ("We decided to ship on Friday.", "We decided to eat soup."):
            await first.remember(text, user_id="ann", session_id="s", learn=True)
        lines = [line async for line in first.export(user_id="ann")]
    async with open_memory("inmemory", facts="rules", config=config, clock=clock) as memory:
        await memory.import_(lines, user_id="ann")  # records travel, jobs do not
        clock.advance(timedelta(minutes=1))  # of two statements, the older one makes room
        await memory.remember("We decided to paint the boat.", user_id="ann", session_id="t", learn=True)
        await memory.metabolize(user_id="ann")
        clock.advance(timedelta(hours=2))
        await memory.metabolize(user_id="ann")
        sessions = [r.session_id for r in await _records(memory) if isinstance(r, Episode) and is_session_episode(r)]
        assert sorted(filter(None, sessions)) == ["s", "t"]


GATE = "The gate code is 4711."


async def asked_often(memory: Memory, clock: FakeClock) -> None:
    """A user who wrote a turn, of which one record was archived, and is asked for until it deserves to come back."""
    await memory.remember([GATE, "The boat is blue."], user_id="ann")
    await memory.metabolize(user_id="ann")
    clock.advance(timedelta(days=2))
    await memory.metabolize(user_id="ann")
    await memory.upkeep(user_id="ann")
    for _ in range(3):
        assert (await memory.recall("gate code", user_id="ann")).hits[0].text == GATE
    assert [e.text for e in await _in_l2(memory)] == []


async def _records(memory: Memory) -> list[Record]:
    return [*await memory.store.list(Scope(memory.namespace, "ann"))]


async def _in_l2(memory: Memory) -> list[Episode]:
    found = [record for record in await _records(memory) if isinstance(record, Episode)]
    return [episode for episode in found if episode.layer is Layer.L2 and episode.archived_at is None]


async def test_what_was_recalled_often_comes_back_with_the_write_of_the_next_turn() -> None:
    clock = FakeClock()
    async with open_memory("inmemory", facts="rules", clock=clock) as memory:
        await asked_often(memory, clock)
        assert (await memory.stats(user_id="ann"))["jobs"] == 0, "nothing was queued for it"
        await memory.remember("It rains.", user_id="ann", learn=True)
        assert [e.text for e in await _in_l2(memory)] == [GATE]
        assert (await memory.stats(user_id="ann"))["jobs"] == 0


@pytest.mark.parametrize("whose", ["ann", None])
async def test_without_a_turn_metabolize_brings_it_back(whose: str | None) -> None:
    clock = FakeClock()
    async with open_memory("inmemory", facts="rules", clock=clock) as memory:
        await asked_often(memory, clock)
        assert (await memory.metabolize(user_id=whose)).counts["returned"] == 1
        assert [e.text for e in await _in_l2(memory)] == [GATE]
        assert not (await memory.metabolize(user_id=whose)).counts.get("returned")


async def test_closing_brings_it_back_too(tmp_path: Path) -> None:
    clock, url = FakeClock(), f"sqlite:{tmp_path / 'memory.db'}"
    async with open_memory(url, facts="rules", clock=clock) as memory:
        await asked_often(memory, clock)
    async with open_memory(url, facts="rules", clock=clock) as memory:
        assert [e.text for e in await _in_l2(memory)] == [GATE]


async def test_what_is_forgotten_before_the_next_turn_does_not_come_back() -> None:
    clock = FakeClock()
    async with open_memory("inmemory", facts="rules", clock=clock) as memory:
        await asked_often(memory, clock)
        gone = [hit.item.id for hit in (await memory.recall("gate code", user_id="ann")).hits if hit.text == GATE]
        await memory.forget(*gone, user_id="ann")
        await memory.remember("It rains.", user_id="ann", learn=True)
        await memory.metabolize(user_id="ann")
        assert GATE not in [record.text for record in await _records(memory)]


class Broken(RuleExtractor):
    """Rules that fail until they are repaired."""

    is_broken = True

    async def extract(self, episodes: Sequence[Episode], *, known: Sequence[Fact] = ()) -> Extraction:
        if self.is_broken:
            raise RuntimeError("no extraction today")
        return await super().extract(episodes, known=known)


async def test_text_is_kept_if_nothing_can_be_learnt_and_a_job_tries_again() -> None:
    extractor = Broken()
    async with open_memory("inmemory", extractor=extractor) as memory:
        done = await memory.remember("I live in Lisbon.", user_id="ann", learn=True)
        assert len(done.kept) == 1
        assert "no extraction today" in done.notes[0]
        assert (await memory.stats(user_id="ann"))["jobs"] == 1
        extractor.is_broken = False
        assert (await memory.metabolize(user_id="ann")).failed == ()
        assert [fact.object for fact in await memory.facts(user_id="ann")] == ["Lisbon"]
