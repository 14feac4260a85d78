"""What people get wrong when they make and use an agent, and what it says; and how the place of a memory is named."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from loom import Agent, tool
from loom.api import AgentConfig, LoomApp
from loom.config.memory import MemoryConfig
from loom.core.message import ToolCallPart
from loom.errors import ScopeRequired, UsageError
from loom.protocols.model import ModelRequest
from loom.testing import ScriptedModel, ScriptFinished

pytestmark = pytest.mark.anyio


def echo(request: ModelRequest) -> str:
    """Answers with how many messages it was shown."""
    return f"{len(request.messages)} messages"


@pytest.mark.parametrize("wrong", [{"tools": [5]}, {"tools": "len"}, {"instructions": 5}], ids=str)
def test_what_an_agent_cannot_be_made_of_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(
        UsageError, match=r"is not a tool; give a function|is not a list of tools|instructions are text, a Context"
    ):
        Agent(**{"model": ScriptedModel(echo), **wrong})


async def test_an_empty_session_id_is_none_at_all() -> None:
    with pytest.raises(ScopeRequired):
        await Agent(model=ScriptedModel(echo)).run("Hi.", session_id="")


async def test_a_closed_agent_says_that_it_is_closed() -> None:
    agent = Agent(model=ScriptedModel(echo))
    await agent.run("Hi.", session_id="s")
    await agent.aclose()
    uses = (agent.run, agent.resume, agent.preview)
    for use in uses:
        with pytest.raises(UsageError, match="this agent is closed; make another one"):
            await use("Hi.", session_id="s")
    with pytest.raises(UsageError, match="this agent is closed"):
        await agent.session()
    await agent.aclose()


@pytest.mark.parametrize("place", ["inmemory", "sqlite:{}/m.db"])
async def test_an_agent_that_is_closed_during_a_run_says_so(tmp_path: Any, place: str) -> None:
    begun, closed = anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await closed.wait()
        return "waited"

    model = ScriptedModel([ToolCallPart("a", "wait", {}), "Never saved."])
    agent = Agent(model=model, tools=[wait], memory=place.format(tmp_path))

    async def run(message: str, says: str) -> None:
        with pytest.raises(UsageError, match=says):
            await agent.run(message, session_id="s")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, "Hi.", "this agent was closed during a turn of session 's', which could not end")
        await begun.wait()
        tasks.start_soon(run, "And?", "this agent is closed; make another one")  # it waits for the turn before it
        await anyio.wait_all_tasks_blocked()
        await agent.aclose()
        closed.set()


@pytest.mark.parametrize("how", ["sqlite:{}", "SQLite:{}", {"backend": "sqlite", "path": "{}"}, {"url": "sqlite:{}"}])
async def test_sessions_are_saved_beside_the_memory_however_its_file_is_named(tmp_path: Any, how: Any) -> None:
    path = str(tmp_path / "bot.db")
    place = how.format(path) if isinstance(how, str) else {k: v.format(path) for k, v in how.items()}
    async with Agent(model=ScriptedModel(echo), memory=place) as agent:
        await agent.run("Hi.", session_id="s")
    async with Agent(model=ScriptedModel(echo), memory=place) as agent:
        assert (await agent.run("Hi.", session_id="s")).turn == 2


async def test_a_tool_that_wants_to_end_the_program_is_told_to_the_model() -> None:
    @tool
    def parse() -> None:
        raise SystemExit(2)

    model = ScriptedModel([ToolCallPart("a", "parse", {}), "Oh."])
    assert (await Agent(model=model, tools=[parse]).run("Parse.")).text == "Oh."
    assert "SystemExit: 2" in str(model.requests[-1].messages[-1].parts[0])


@pytest.mark.parametrize("store", ["inmemory", "sqlite:{}", "composite:?primary=sqlite:{}"])
async def test_an_application_takes_every_place_that_a_memory_takes(tmp_path: Any, store: str) -> None:
    async with LoomApp(model=ScriptedModel(echo), url=store.format(tmp_path / "app.db")) as app:
        agent = app.create_agent(AgentConfig(name="a", memory=MemoryConfig()))
        await agent.run("I live in Lisbon.", user_id="ann")
        assert agent.memory
        assert (await agent.memory.recall("Where do I live?", user_id="ann")).hits


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"role": "user", "content": "Hi."}, r"give text, or Message\.user"),
        ([{"role": "user", "content": "Hi."}], "give the newest message alone"),
        ("  ", "the message is empty"),
        (None, "give text"),
    ],
)
async def test_what_is_not_a_message_of_the_user_says_what_to_give(given: Any, says: str) -> None:
    async with Agent(model=ScriptedModel(echo)) as agent:
        with pytest.raises(UsageError, match=says):
            await agent.run(given, user_id="ann")


async def test_without_a_model_a_question_is_not_noted_and_how_to_name_one_is_said_once() -> None:
    async with Agent() as agent:
        first = await agent.run("Where is the boat?", user_id="ann", session_id="s")
        assert first.text.startswith("Nothing about this is in memory (no language model is connected")
        second = await agent.run("The boat is in Yokohama.", user_id="ann", session_id="s")
        assert second.text == "Noted."
        third = await agent.run("Where is the boat?", user_id="ann", session_id="s")
        assert third.text.startswith("From memory:\n")
        assert "Where is" not in third.text


def test_an_agent_says_how_to_stream_without_await() -> None:
    agent: Any = Agent(model=ScriptedModel(echo))
    with pytest.raises(AttributeError, match=r"run_sync\(text, user_id=\.\.\.\) and its \.events"):
        agent.stream_sync("Hi.")


async def test_a_script_that_is_one_text_or_too_short_says_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"the script is one text, 'Hi\.'; give a list of answers"):
        ScriptedModel("Hi.")  # a text is a list of texts, too
    with pytest.raises(ScriptFinished, match="add one for each request, tool calls included"):
        await Agent(model=ScriptedModel([])).run("Hi.")
