"""What forget() takes: records, a session, a user, or whatever came before a moment."""

from datetime import timedelta

import pytest

from loom import open_memory
from loom.errors import StaleWrite, UsageError
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio


async def test_what_came_before_a_moment_goes_and_the_rest_stays():
    clock = FakeClock()
    async with open_memory("inmemory", embedder="hash", clock=clock) as memory:
        await memory.remember("I live in Oslo.", user_id="alice", session_id="s1")
        await memory.assert_fact("Ann", "likes", "tea", user_id="alice")
        await memory.set_block("persona", "calm", user_id="alice")
        await memory.metabolize(user_id="alice")
        moment = clock.advance(timedelta(days=1))
        await memory.remember("I moved to Rome.", user_id="alice", session_id="s1")
        await memory.assert_fact("Ben", "likes", "rum", user_id="alice")
        await memory.set_block("style", "short", user_id="alice")
        await memory.metabolize(user_id="alice")
        receipt = await memory.forget(user_id="alice", before=moment)
        assert receipt.removed["episode"] == 1
        assert [fact.text for fact in await memory.facts(user_id="alice")] == ["Ben likes rum", "user lives_in Rome"]
        assert [block.name for block in await memory.blocks(user_id="alice")] == ["style"]
        assert (await memory.forget(user_id="alice", before=moment)).removed == {}


async def test_of_a_session_only_its_turns_go():
    clock = FakeClock()
    async with open_memory("inmemory", embedder="hash", clock=clock) as memory:
        for session in ("s1", "s2"):
            await memory.remember("It rains.", user_id="alice", session_id=session)
        await memory.set_block("persona", "calm", user_id="alice")
        later = clock.advance(60)
        assert (await memory.forget(user_id="alice", session_id="s1", before=later)).removed == {"episode": 1}
        assert len(await memory.blocks(user_id="alice")) == 1


async def test_ids_and_a_moment_together_are_refused():
    async with open_memory("inmemory", embedder="hash") as memory:
        with pytest.raises(UsageError, match="not both"):
            await memory.forget("e1", user_id="alice", before=FakeClock().now())
        with pytest.raises(UsageError, match="without a zone"):
            await memory.forget(user_id="alice", before=FakeClock().now().replace(tzinfo=None))


async def test_a_text_made_from_what_was_forgotten_is_not_remembered():
    async with open_memory("inmemory", embedder="hash") as memory:
        said = (await memory.remember("My PIN is 4711.", user_id="alice")).kept[0].id
        await memory.remember("It rains.", user_id="alice")
        epoch = await memory.epoch(user_id="alice")
        await memory.forget(said, user_id="alice")
        with pytest.raises(StaleWrite):
            await memory.remember("The PIN was 4711.", user_id="alice", since=epoch)
        await memory.remember("Hello.", user_id="alice", session_id="s1", since=await memory.epoch(user_id="alice"))
        assert (await memory.stats(user_id="alice"))["L1"] == 2
