"""`remember(learn=True)`: facts and the place in L1 are written with the text; `upkeep` runs the other jobs later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loom import open_memory
from loom.core.record import Episode, Fact
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory.config import MemoryConfig, MemoryLayerConfig
from loom.protocols.extractor import Extraction

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


async def test_a_decision_moves_up_with_its_write_and_the_next_layer_is_checked_by_upkeep() -> None:
    async with open_memory("inmemory", facts="rules") as memory:
        done = await memory.remember("We decided to ship on Friday.", user_id="ann", session_id="s", learn=True)
        assert done.promoted == 1
        assert (await memory.stats(user_id="ann"))["L2"] == 1
        assert (await memory.stats(user_id="ann"))["jobs"] == 1
        report = await memory.upkeep(user_id="ann")
        assert report is not None
        assert report.jobs == 1
        assert (await memory.stats(user_id="ann"))["jobs"] == 0
        assert await memory.upkeep(user_id="ann") is None


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
