"""Agent.forget: one call erases a person, whatever is going on."""

from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import anyio
import pytest

from loom import Agent, open_memory
from loom.errors import NotFound
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing import FakeClock, ScriptedModel
from loom.testing.fakes import Interrupter

pytestmark = pytest.mark.anyio

WORD = "Zebra4711"


@asynccontextmanager
async def agent_on(place, *, says=("Noted.",) * 9, **options):
    async with Agent(model=ScriptedModel(list(says)), memory=place, **options) as agent:
        yield agent


async def test_memory_sessions_and_the_file_hold_nothing_of_a_person(tmp_path):
    file = tmp_path / "bot.db"
    async with agent_on(f"sqlite:{file}") as agent:
        await agent.run(f"My PIN is {WORD}.", user_id="alice", session_id="s1")
        await agent.run("And I live in Oslo.", user_id="alice", session_id="s2")
        await agent.run("I like tea.", user_id="bob", session_id="s1")
        erased = await agent.forget("alice")
        assert [receipt.store for receipt in erased.stores] == ["memory", "sessions"]
        assert erased.removed["episode"] == 4
        assert erased.removed["checkpoint"] == 2
        assert erased.pending == ()
        assert not await agent.memory.recall("PIN", user_id="alice")
        assert (await agent.session(user_id="alice", session_id="s1")).messages == ()
        assert (await agent.session(user_id="bob", session_id="s1")).messages != ()
        assert await agent.memory.recall("tea", user_id="bob")
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert WORD.encode() not in left
    assert b"alice" not in left


async def test_forgetting_in_memory_says_that_conversations_are_left(tmp_path):
    async with agent_on(f"sqlite:{tmp_path}/bot.db") as agent:
        await agent.run(f"My PIN is {WORD}.", user_id="alice", session_id="s1")
        await agent.run("Hello.", user_id="bob", session_id="s1")
        receipt = await agent.memory.forget(user_id="alice")
        (line,) = receipt.pending
        assert "1 saved conversation(s) of 'alice'" in line
        assert "loom forget" in line
        assert (await agent.forget("alice")).pending == ()
        assert (await agent.memory.forget(user_id="alice")).pending == ()


async def test_a_session_that_somebody_holds_is_of_no_use_any_more(tmp_path):
    async with agent_on(f"sqlite:{tmp_path}/bot.db") as agent:
        await agent.run(f"My PIN is {WORD}.", user_id="alice", session_id="s1")
        held = await agent.session(user_id="alice", session_id="s1")
        await agent.forget("alice")
        assert held.messages == ()
        with pytest.raises(NotFound, match="forgotten"):
            await held.send("What was it?")
        again = await agent.run("Hello, who am I?", user_id="alice", session_id="s1")
        assert again.turn == 1


async def test_another_process_that_goes_on_with_the_session_is_refused(tmp_path):
    place = f"sqlite:{tmp_path}/bot.db"
    async with agent_on(place) as one, agent_on(place) as other:
        await one.run(f"My PIN is {WORD}.", user_id="alice", session_id="s1")
        held = await one.session(user_id="alice", session_id="s1")
        await other.forget("alice")
        with pytest.raises(NotFound, match="forgotten"):
            await held.send("Go on.")
        assert (await other.session(user_id="alice", session_id="s1")).messages == ()


async def test_forget_before_a_moment_keeps_what_came_later():
    clock = FakeClock()
    async with agent_on("inmemory", clock=clock) as agent:
        await agent.run(f"My PIN is {WORD}.", user_id="alice", session_id="old")
        moment = clock.advance(timedelta(days=1))
        clock.advance(60)
        await agent.run("I like tea.", user_id="alice", session_id="new")
        erased = await agent.forget("alice", before=moment)
        assert erased.removed["checkpoint"] == 1
        assert not [hit for hit in await agent.memory.recall(WORD, user_id="alice") if WORD in hit.item.text]
        assert await agent.memory.recall("tea", user_id="alice")
        assert (await agent.session(user_id="alice", session_id="new")).messages != ()
        assert (await agent.session(user_id="alice", session_id="old")).messages == ()


async def forgotten_at(step, **options):
    """A turn during which its user is forgotten, at one of its steps; False where it has fewer."""
    memory, checkpoints, steps = open_memory("inmemory", embedder="hash"), MemoryCheckpointStore(), Interrupter()
    async with memory, agent_on(memory, checkpoints=checkpoints, **options) as agent:
        for _ in range(3):
            await agent.run(f"My PIN is {WORD}.", user_id="alice", session_id="s1")
        steps.watch(memory.store)
        steps.watch(checkpoints)
        async with anyio.create_task_group() as tasks:

            async def forget():
                tasks.start_soon(agent.forget, "alice")
                await anyio.wait_all_tasks_blocked()

            async with steps.counting(step, forget):
                with suppress(NotFound):
                    await agent.run("Go on.", user_id="alice", session_id="s1")
        session = await agent.session(user_id="alice", session_id="s1")
        if steps.reached:
            recalled = [hit.item.text for hit in await memory.recall(WORD, user_id="alice")]
            assert WORD not in f"{recalled} {session.messages} {session.log}", step
        return steps.reached


@pytest.mark.parametrize("compacts", [False, True], ids=["plain", "compacting"])
async def test_a_person_stays_forgotten_at_every_step_of_a_turn(compacts):
    """The turn ends with NotFound, or as if it had come before or after; nothing of before is left."""
    trigger, retain = {"type": "messages", "threshold": 4}, {"type": "messages", "count": 2}
    options = {"compaction": {"trigger": trigger, "retain": retain}} if compacts else {}
    step = 0
    while await forgotten_at(step, **options):
        step += 1
    assert step > 10


async def test_an_answer_that_repeats_what_was_forgotten_is_not_remembered():
    async with open_memory("inmemory", embedder="hash") as memory:
        said = (await memory.remember(f"My PIN is {WORD}.", user_id="alice")).kept[0].id

        class Forgetful(ScriptedModel):
            async def complete(self, request):
                await memory.forget(said, user_id="alice")
                return await super().complete(request)

        async with Agent(model=Forgetful([f"Your PIN is {WORD}."]), memory=memory) as agent:
            result = await agent.run("What is my PIN?", user_id="alice")
            found = [record.text async for record in memory.list(user_id="alice", kind="episode")]
        assert result.recalled is not None
        assert any("forgotten meanwhile" in note for note in result.notes)
        assert found == ["What is my PIN?"]


async def test_a_person_whom_another_process_forgot_does_not_come_back_when_the_agent_closes(tmp_path):
    file = tmp_path / "bot.db"
    async with Agent(model=ScriptedModel(lambda _: "ok"), memory=f"sqlite:{file}", facts="rules") as agent:
        await agent.run("We decided to ship on Friday.", user_id="zoe-4711", session_id="s")
        await agent.run("I live in Oslo.", user_id="bob", session_id="s")
        async with Agent(model=ScriptedModel(lambda _: "ok"), memory=f"sqlite:{file}") as other:
            await other.forget("zoe-4711")
    assert b"zoe-4711" not in file.read_bytes()
    assert b"Oslo" in file.read_bytes()
