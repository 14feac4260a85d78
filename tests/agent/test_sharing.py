"""Conversations that are left in the middle, continued by somebody else, or forgotten; and memories kept apart."""

from __future__ import annotations

import asyncio
from asyncio import create_task
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import anyio
import pytest

from loom import Agent, Context, open_memory, tool
from loom.core.message import Message, ToolCallPart, ToolResultPart
from loom.core.scope import Scope
from loom.core.threads import Portal
from loom.errors import StoreConflict, UsageError
from loom.protocols.model import ModelRequest
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


def echo(request: ModelRequest) -> str:
    """Answers with how many messages it was shown."""
    return f"{len(request.messages)} messages"


def shown(model: ScriptedModel) -> str:
    """All that the last request held."""
    request = model.requests[-1]
    return "\n".join([*request.system, *(m.text for m in request.messages)])


# -- left ---------------------------------------------------------------------------------------------------------


async def test_a_stream_that_nobody_closes_gives_the_session_back() -> None:
    agent = Agent(model=ScriptedModel(echo))
    async for event in agent.stream("Hi.", session_id="s"):
        if event.type == "text":
            break
    assert (await agent.run("Hi again.", session_id="s")).text == "1 messages"


async def test_a_stream_that_is_still_held_is_an_error_and_not_a_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loom.agent.sessions._LEAVING", 0.0)
    agent = Agent(model=ScriptedModel(echo))
    stream: Any = agent.stream("Hi.", session_id="s")
    await anext(stream)
    with pytest.raises(UsageError, match="still reads a stream of session 's'"):
        await agent.run("Hi again.", session_id="s")
    await stream.aclose()
    assert (await agent.run("Hi again.", session_id="s")).turn == 1


async def test_a_tool_whose_task_was_cancelled_fails_and_the_others_answer() -> None:
    @tool
    async def given_up() -> None:
        """Wait for a task that somebody cancels."""
        task = create_task(anyio.sleep_forever())
        task.cancel()
        await task

    @tool
    async def fine() -> str:
        """Answer."""
        return "fine"

    model = ScriptedModel([(ToolCallPart("a", "given_up", {}), ToolCallPart("b", "fine", {})), "Done."])
    result = await Agent(model=model, tools=[given_up, fine]).run("Go.")
    assert result.text == "Done."
    told = [part for part in model.requests[-1].messages[-1].parts if isinstance(part, ToolResultPart)]
    assert [(part.call_id, part.is_error) for part in told] == [("a", True), ("b", False)]
    assert sorted((e.call_id, e.is_error) for e in result.events if e.type == "tool.end") == [("a", True), ("b", False)]


# -- continued ----------------------------------------------------------------------------------------------------


async def test_two_agents_on_one_file_take_turns(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'bot.db'}"
    async with Agent(model=ScriptedModel(echo), memory=url) as one, Agent(model=ScriptedModel(echo), memory=url) as two:
        told = [(await agent.run(f"{n}", session_id="s")).text for n, agent in enumerate([one, two, one, two])]
    assert told == ["1 messages", "3 messages", "5 messages", "7 messages"]


async def test_of_two_turns_at_the_same_time_one_fails_and_can_be_sent_again() -> None:
    store = MemoryCheckpointStore()
    other = Agent(model=ScriptedModel(echo), checkpoints=store)
    begun, answered = anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        """Wait until the other one has answered."""
        begun.set()
        await answered.wait()
        return "waited"

    model = ScriptedModel([ToolCallPart("a", "wait", {}), "Mine.", "Again."])
    agent = Agent(model=model, tools=[wait], checkpoints=store)

    async def interrupt() -> None:
        await begun.wait()
        await other.run("Theirs.", session_id="s")
        answered.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(interrupt)
        with pytest.raises(StoreConflict, match="was continued somewhere else"):
            await agent.run("Mine.", session_id="s")
    assert (await agent.run("Mine, again.", session_id="s")).turn == 2
    said = [m.text for m in (await agent.session(session_id="s")).messages if m.role == "user" and m.text]
    assert said == ["Mine.", "Theirs.", "Mine, again."]  # the first was saved before its tool ran
    await agent.aclose()


async def test_a_turn_that_was_not_saved_does_not_keep_an_agent_from_closing() -> None:
    store = MemoryCheckpointStore()
    agent = Agent(model=ScriptedModel(echo), checkpoints=store)
    session = await agent.session(session_id="s")
    await session.send("Mine.")
    await Agent(model=ScriptedModel(echo), checkpoints=store).run("Theirs.", session_id="s")
    with pytest.raises(StoreConflict):
        await session.send("Mine, again.")
    with pytest.raises(StoreConflict):  # this session was used past the agent, so nobody has told of it yet
        await agent.aclose()
    with pytest.raises(UsageError, match="this agent is closed"):
        await agent.run("Hi.")


async def test_what_was_forgotten_is_not_shown_again() -> None:
    store = MemoryCheckpointStore()
    agent = Agent(model=ScriptedModel(echo), checkpoints=store)
    await agent.run("My PIN is 4711.", user_id="ann", session_id="s")
    await store.forget(Scope("default", "ann"))
    result = await agent.run("Hi.", user_id="ann", session_id="s")
    assert (result.text, result.turn) == ("1 messages", 1)


async def test_the_sessions_that_stay_warm_are_those_used_last() -> None:
    agent = Agent(model=ScriptedModel(echo))
    await agent.run("Hi.", session_id="s")
    used = await agent.session(session_id="s")
    for n in range(70):
        await agent.run("Hi.", session_id=f"s{n}")
        assert await agent.session(session_id="s") is used


def test_threads_that_begin_at_the_same_time_share_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(model=ScriptedModel(echo))
    other = Thread(target=lambda: agent.run_sync("Hi.", session_id="s"))
    made: list[Portal] = []
    has_come, lock = Event(), agent._portal_lock

    class Watched(Portal):
        def __init__(self, what: str) -> None:
            made.append(self)
            if len(made) == 1:
                other.start()
                has_come.wait()  # to wait for this one to be made; or, if nothing keeps it from that, to make its own
            has_come.set()
            super().__init__(what)

    class WatchedLock:
        def __enter__(self) -> None:
            if made:
                has_come.set()
            lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()

    monkeypatch.setattr(agent, "_portal_lock", WatchedLock())
    monkeypatch.setattr("loom.agent.agent.Portal", Watched)
    agent.run_sync("Hi.", session_id="s")
    other.join()
    assert len(made) == 1
    assert agent.run_sync("Hi.", session_id="s").turn == 3
    agent.close()


# -- kept apart ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", ["mapping", "memory"])
async def test_an_agent_sees_the_namespace_of_its_memory_and_no_other(tmp_path: Path, told: str) -> None:
    path = str(tmp_path / "bot.db")
    async with Agent(model=ScriptedModel(echo), memory=f"sqlite:{path}") as bank:
        await bank.run("The PIN of my card is 4711.", user_id="ann")
    place = {"backend": "sqlite", "path": path, "namespace": "shop", "embedder": "hash"}
    model = ScriptedModel(echo)
    async with Agent(model=model, memory=place if told == "mapping" else open_memory(place)) as shop:
        await shop.run("My shoes are size 39.", user_id="ann")
        assert "4711" not in shown(model)
        await shop.run("What about the PIN?", user_id="ann")
        assert "4711" not in shown(model)
        assert "size 39" in shown(model), "what was said a moment ago in this application"


async def test_every_session_begins_with_the_conversation_of_the_context(tmp_path: Path) -> None:
    context = Context("support")
    context.foundation.add("Be brief.")
    context.convo.add(Message.user("What is tea?"))
    context.convo.add(Message.assistant("A drink."))
    model = ScriptedModel(lambda _: "ok")
    for n in range(2):
        async with Agent(context, model=model, checkpoints=f"sqlite:{tmp_path / 'bot.db'}") as agent:
            for user in ("ann", "bob"):
                await agent.run(f"{user} {n}", user_id=user, session_id="s")
    told = [[message.text for message in request.messages] for request in model.requests]
    examples = ["What is tea?", "A drink."]
    assert told[:2] == [[*examples, "ann 0"], [*examples, "bob 0"]]
    assert told[2:] == [[*examples, "ann 0", "ok", "ann 1"], [*examples, "bob 0", "ok", "bob 1"]]
    assert [part.text for entry in context.convo for part in entry.show().parts] == examples


@pytest.mark.parametrize("memory", ["inmemory", None])
def test_an_agent_that_another_loop_is_using_says_so_and_does_not_wait_for_ever(memory: str | None) -> None:
    begun, answered = Event(), Event()

    def wait() -> str:
        """Wait until the other loop was refused."""
        begun.set()
        answered.wait()
        return "waited"

    model = ScriptedModel([ToolCallPart("a", "wait", {}), "Mine.", "Again."])
    agent = Agent(model=model, tools=[wait], memory=memory)

    async def run(text: str) -> str:
        return (await agent.run(text, session_id="s")).text

    with ThreadPoolExecutor(1) as threads:
        mine = threads.submit(asyncio.run, run("Mine."))
        begun.wait()
        try:
            with pytest.raises(
                UsageError, match=r"another event loop is using this agent; call run_sync\(\) in threads"
            ):
                asyncio.run(run("Theirs."))
        finally:
            answered.set()
        assert mine.result() == "Mine."
    assert asyncio.run(run("Theirs, again.")) == "Again."


async def test_a_tool_that_asks_the_conversation_it_works_in_is_refused_at_once() -> None:
    @tool(timeout=None)
    async def again() -> str:
        """Ask again."""
        return (await agent.run("And?", session_id="s")).text

    model = ScriptedModel([ToolCallPart("a", "again", {}), "Done."])
    agent = Agent(model=model, tools=[again], memory=None)
    assert (await agent.run("Ask.", session_id="s")).text == "Done."
    assert "inside a turn of session 's', which ends only after this" in str(model.requests[-1].messages[-1])
