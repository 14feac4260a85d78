"""An agent as a tool of another one, and going on with a turn that was cut off."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from loom import Agent, FileCheckpointStore, MemoryCheckpointStore, Session, get_run_context, open_memory, tool
from loom.core.message import Message, ToolCallPart, ToolResultPart
from loom.errors import NotFound, UsageError
from loom.protocols.model import ModelRequest
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio

PRICED = "anthropic:claude-sonnet-4-5"


def ask(task: str, name: str = "expert") -> ToolCallPart:
    return ToolCallPart("c", name, {"task": task})


def last_result(model: ScriptedModel) -> ToolResultPart:
    parts = [part for message in model.requests[-1].messages for part in message.parts]
    return next(part for part in reversed(parts) if isinstance(part, ToolResultPart))


def result_text(model: ScriptedModel) -> str:
    return str(last_result(model).content[0].text)  # type: ignore[union-attr]


# -- an agent as a tool ---------------------------------------------------------------------------------------


async def test_an_agent_answers_as_a_tool_for_the_user_of_the_run() -> None:
    seen: list[tuple[str, int, Any]] = []

    @tool
    def note() -> str:
        """Note who asks."""
        run = get_run_context()
        seen.append((run.user_id, run.depth, run.metadata["plan"]))
        return "noted"

    inner_model = ScriptedModel([ToolCallPart("n", "note", {}), "It is 4."])
    inner = Agent("You add numbers, exactly.", model=inner_model, tools=[note], name="expert")
    model = ScriptedModel([ask("Add 2 and 2."), "Four."])
    outer = Agent(model=model, tools=[inner.as_tool()])
    result = await outer.run("What is 2 + 2?", user_id="ann", session_id="s", metadata={"plan": "pro"})
    assert result.text == "Four."
    assert result_text(model) == "It is 4."
    assert seen == [("ann", 1, "pro")]
    (spec,) = [spec for spec in model.requests[0].tools if spec.name == "expert"]
    assert (spec.description, spec.input_schema["required"]) == ("You add numbers, exactly.", ["task"])
    assert inner_model.requests[0].messages[-1].text == "Add 2 and 2."


async def test_what_it_spends_is_on_both_bills_and_counts_for_the_ceiling() -> None:
    inner = Agent("x " * 20_000, model=ScriptedModel(lambda _: "ok", name=PRICED), name="expert", memory=None)
    outer = Agent(model=ScriptedModel([ask("Go."), "Done."], name=PRICED), tools=[inner.as_tool()], memory=None)
    result = await outer.run("Go.")
    assert inner.bill.requests == 1
    assert outer.bill.requests == 3
    assert inner.cost
    assert outer.cost
    assert result.cost == pytest.approx(outer.cost)
    assert result.usage == outer.usage
    assert (result.cost or 0) > inner.cost > 0.01
    outer.model._replies = iter([ask("Go."), "Done."])  # type: ignore[attr-defined]
    assert (await outer.run("Go.", max_cost=0.02)).stop == "cost"


async def test_an_agent_inside_a_run_stops_at_the_ceiling_of_that_run() -> None:
    @tool
    def again() -> str:
        """Go on."""
        return "on"

    inner_model = ScriptedModel(lambda _: ToolCallPart("a", "again", {}), name=PRICED)
    inner = Agent("x " * 9_000, model=inner_model, tools=[again], name="expert", memory=None)
    outer = Agent(model=ScriptedModel([ask("Go."), "Done."], name=PRICED), tools=[inner.as_tool()], memory=None)
    result = await outer.run("Go.", max_cost=0.05)
    assert result.stop == "cost"
    assert result.cost
    assert 0.05 <= result.cost < 0.1
    assert len(inner_model.requests) < 5


async def test_a_ceiling_that_nobody_could_keep_ends_the_run() -> None:
    inner = Agent(model=ScriptedModel(lambda _: "ok"), name="expert", memory=None)
    outer = Agent(model=ScriptedModel([ask("Go."), "Done."], name=PRICED), tools=[inner.as_tool()], memory=None)
    result = await outer.run("Go.", max_cost=5)
    assert (result.stop, result.cost) == ("cost", None)
    assert any("what this run has cost is not known" in note for note in result.notes)


async def test_it_shares_no_memory_unless_it_is_given_one() -> None:
    async def asked(**options: Any) -> str:
        inner_model = ScriptedModel(lambda _: "ok")
        inner = Agent(model=inner_model, name="expert", **options)
        outer = Agent(
            model=ScriptedModel(["ok", ask("Where does the user live?"), "ok"]), tools=[inner.as_tool()], **options
        )
        await outer.run("I live in Lisbon.", user_id="ann")
        await outer.run("Ask.", user_id="ann")
        return str(inner_model.requests[-1].messages)

    assert "Lisbon" not in await asked()
    assert "Lisbon" in await asked(memory=open_memory("inmemory"))


async def test_each_call_is_a_conversation_of_its_own() -> None:
    def count(request: ModelRequest) -> str:
        return f"{len(request.messages)} messages"

    inner = Agent(model=ScriptedModel(count), name="expert", memory=None)
    model = ScriptedModel([ask("one"), ask("two"), "Done."])
    await Agent(model=model, tools=[inner.as_tool(name="helper", description="Helps.")]).run("Go.")
    model = ScriptedModel([ask("one", "helper"), ask("two", "helper"), "Done."])
    await Agent(model=model, tools=[inner.as_tool(name="helper", description="Helps.")]).run("Go.")
    parts = [p for m in model.requests[-1].messages for p in m.parts if isinstance(p, ToolResultPart)]
    assert [part.content[0].text for part in parts] == ["1 messages", "1 messages"]  # type: ignore[union-attr]


async def test_agents_that_call_each_other_end_at_a_depth() -> None:
    agents: list[Agent] = []

    def script(request: ModelRequest) -> Any:
        results = [p for m in request.messages for p in m.parts if isinstance(p, ToolResultPart)]
        return str(results[-1].content[0].text) if results else ask("Go on.")  # type: ignore[union-attr]

    class Loop:
        """The tool of an agent that does not exist yet."""

        spec = Agent(model=ScriptedModel()).as_tool(name="expert").spec

        async def run(self, input: Any) -> Any:
            return await agents[0].as_tool(name="expert", max_depth=2).run(input)

    agents.append(Agent(model=ScriptedModel(script, name=PRICED), tools=[Loop()], memory=None))
    result = await agents[0].run("Go.")
    assert "3 agents call each other already" in result.text
    assert result.cost == pytest.approx(agents[0].cost), "an agent below itself is billed once"


async def test_a_tool_that_cannot_be_one_is_refused() -> None:
    agent = Agent(model=ScriptedModel(), name="no name for a tool!")
    with pytest.raises(UsageError, match="a tool cannot be called"):
        agent.as_tool()
    with pytest.raises(UsageError, match="max_depth=0"):
        agent.as_tool(name="x", max_depth=0)
    model = ScriptedModel([ToolCallPart("c", "x", {"task": " "}), "Oh."])
    await Agent(model=model, tools=[agent.as_tool(name="x")]).run("Go.")
    assert "give `task`, a text" in result_text(model)


async def test_an_agent_that_fails_is_an_error_of_the_tool() -> None:
    inner = Agent(model=ScriptedModel(), name="expert")
    model = ScriptedModel([ask("Go."), "I could not."])
    assert (await Agent(model=model, tools=[inner.as_tool()]).run("Go.")).text == "I could not."
    assert last_result(model).is_error


# -- resume ---------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends."""


@tool
def step() -> str:
    """Do a step."""
    return "stepped"


async def test_a_turn_that_a_crash_cut_goes_on_in_another_process(tmp_path: Path) -> None:
    def crash(request: ModelRequest) -> Any:
        if len(request.messages) > 1:
            raise Crash
        return ToolCallPart("c", "step", {})

    url = f"sqlite:{tmp_path / 'bot.db'}"
    agent = Agent(model=ScriptedModel(crash), tools=[step], memory=url)
    with pytest.raises(Crash):
        await agent.run("Do it; I live in Lisbon.", user_id="ann", session_id="s")
    model = ScriptedModel(["Done."])
    async with Agent(model=model, tools=[step], memory=url) as other:
        result = await other.resume(user_id="ann", session_id="s")
        assert (result.text, result.turn) == ("Done.", 1)
        assert next(m.text for m in model.requests[0].messages if m.role == "user") == "Do it; I live in Lisbon."
        assert result_text(model) == "stepped"
        assert result.remembered
        assert [r.text for r in result.remembered.kept] == ["Do it; I live in Lisbon.", "Done."]
        with pytest.raises(UsageError, match="has nothing to resume: its last turn is complete"):
            await other.resume(user_id="ann", session_id="s")


async def test_a_tool_that_a_killed_process_had_begun_is_told_and_not_run_again(tmp_path: Path) -> None:
    program = """
import sys, time
from loom import Agent, ToolCallPart, tool
from loom.testing import ScriptedModel

@tool
def pay() -> str:
    '''Pay.'''
    print("paid", flush=True)
    time.sleep(600)
    return "paid"

model = ScriptedModel([ToolCallPart("c", "pay", {})])
Agent(model=model, tools=[pay], memory=sys.argv[1], facts=None).run_sync("Pay.", session_id="s")
"""
    url = f"sqlite:{tmp_path / 'bot.db'}"
    async with await anyio.open_process([sys.executable, "-c", program, url], stderr=None) as process:
        assert process.stdout is not None
        assert await process.stdout.receive()  # it is inside the tool now
        process.kill()
    model = ScriptedModel(["I do not know whether it was paid."])
    async with Agent(model=model, tools=[step], memory=url, facts=None) as agent:
        result = await agent.resume(session_id="s")
        assert (result.text, result.turn) == ("I do not know whether it was paid.", 1)
        assert "interrupted before this call answered" in result_text(model)


async def test_a_turn_that_was_cancelled_in_a_tool_goes_on_in_another_agent() -> None:
    begun, store = anyio.Event(), MemoryCheckpointStore()

    @tool
    async def pay() -> str:
        """Pay."""
        begun.set()
        await anyio.sleep_forever()
        return "never"

    agent = Agent(model=ScriptedModel([ToolCallPart("c", "pay", {})]), tools=[pay], checkpoints=store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(agent.run, "Pay.", session_id="s"))
        await begun.wait()
        tasks.cancel_scope.cancel()
    model = ScriptedModel(["I do not know whether it was paid."])
    result = await Agent(model=model, tools=[pay], checkpoints=store).resume(session_id="s")
    assert result.text == "I do not know whether it was paid."
    assert "interrupted before this call answered" in result_text(model)


async def test_a_call_that_was_interrupted_is_told_and_not_made_again() -> None:
    times: list[int] = []

    @tool
    async def pay() -> str:
        """Pay."""
        times.append(1)
        raise Crash

    model = ScriptedModel([ToolCallPart("c", "pay", {}), "I do not know whether it was paid."])
    session = Session(model=model, tools=[pay])
    with pytest.raises(BaseException):  # noqa: B017, PT011  (a group of the crash)
        await session.send("Pay.")
    reply = await session.resume()
    assert reply.text == "I do not know whether it was paid."
    assert times == [1]
    assert "interrupted before this call answered" in result_text(model)
    assert reply.turn == 1


async def test_a_run_that_its_ceiling_ended_goes_on_with_a_higher_one() -> None:
    model = ScriptedModel([ToolCallPart("c", "step", {}), "Done."], name=PRICED)
    async with Agent("x " * 9_000, model=model, tools=[step]) as agent:
        assert (await agent.run("Go.", session_id="s", max_cost=0.001)).stop == "cost"
        result = await agent.resume(session_id="s", max_cost=1)
        assert (result.text, result.stop) == ("Done.", "end")


async def test_a_turn_that_had_its_steps_goes_on() -> None:
    model = ScriptedModel([ToolCallPart("c", "step", {}), "Done."])
    agent = Agent(model=model, tools=[step], config={"max_steps": 1})
    assert (await agent.run("Go.", session_id="s")).stop == "steps"
    assert (await agent.resume(session_id="s")).text == "Done."


def test_resume_without_an_event_loop() -> None:
    model = ScriptedModel([ToolCallPart("c", "step", {}), "Done."])
    with Agent(model=model, tools=[step], config={"max_steps": 1}) as agent:
        agent.run_sync("Go.", session_id="s")
        assert agent.resume_sync(session_id="s").text == "Done."


async def test_resume_with_a_message_is_another_turn(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path)
    model = ScriptedModel(["One.", "Two."])
    agent = Agent(model=model, checkpoints=store)
    await agent.run("1", session_id="s")
    assert (await agent.resume("2", session_id="s")).turn == 2


async def test_there_is_nothing_to_resume() -> None:
    agent = Agent(model=ScriptedModel(["Hi."]))
    with pytest.raises(NotFound, match="has no conversation 's'"):
        await agent.resume(session_id="s")
    with pytest.raises(UsageError, match="nothing was said in it yet"):
        Session(model=ScriptedModel()).resume()
    session = Session(model=ScriptedModel(["Hi."]))
    await session.send(Message.user("Hello."))
    with pytest.raises(UsageError, match="its last turn is complete; give it a message"):
        session.resume()
