"""A run: what it remembers without being told to, its name, its ceiling, who approves its tools, what it tells of memory."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider

from loom import Agent, Session, get_run_context, tool
from loom.api import AgentConfig, LoomApp
from loom.core.log import Event
from loom.core.message import ToolCallPart, ToolResultPart
from loom.errors import CostExceeded, UsageError
from loom.protocols.tool import ToolRequest
from loom.testing import ScriptedModel, run_context

pytestmark = pytest.mark.anyio

PRICED = "anthropic:claude-sonnet-4-5"


@tool
async def whoami() -> str:
    """Who asks."""
    run = get_run_context()
    return f"{run.user_id} {run.run_id}"


@tool
def count_words(text: str) -> int:
    """Count the words of a text for the user of the run."""
    assert get_run_context().user_id == "ann"
    return len(text.split())


def calling(*names: str) -> list[Any]:
    """A script that calls tools, one answer each, and ends."""
    return [*(ToolCallPart(f"c{n}", name, {}) for n, name in enumerate(names)), "Done."]


def results(model: ScriptedModel) -> list[tuple[bool, str]]:
    """What tools answered, as the model was shown it last."""
    parts = [part for message in model.requests[-1].messages for part in message.parts]
    return [(part.is_error, part.content[0].text) for part in parts if isinstance(part, ToolResultPart)]  # type: ignore[union-attr]


def types(events: tuple[Event, ...]) -> list[str]:
    return [event.type for event in events]


# -- memory by default ----------------------------------------------------------------------------------------


async def test_an_agent_remembers_without_being_told_to() -> None:
    async with Agent("...") as agent:
        await agent.run("I live in Lisbon.", user_id="ann")
        assert "Lisbon" in (await agent.run("Where do I live?", user_id="ann")).text
        assert "Lisbon" not in (await agent.run("Where do I live?", user_id="bob")).text
    async with Agent("...") as another:
        assert "Lisbon" not in (await another.run("Where do I live?", user_id="ann")).text


async def test_without_a_memory_nothing_is_remembered() -> None:
    async with Agent("...", memory=None) as agent:
        assert agent.memory is None
        result = await agent.run("I live in Lisbon.", user_id="ann")
        assert (result.recalled, result.remembered) == (None, None)
        assert "Lisbon" not in (await agent.run("Where do I live?", user_id="ann")).text


def test_the_memory_that_is_not_named_learns_like_one_that_is() -> None:
    for model in ("offline:memory", PRICED, ScriptedModel()):
        plain, named = Agent(model=model), Agent(model=model, memory="inmemory")
        assert plain.memory
        assert named.memory
        assert (plain.notes, plain.memory.facts_mode) == (named.notes, named.memory.facts_mode)


async def test_an_agent_of_an_application_remembers_as_well() -> None:
    async with LoomApp() as app:
        agent = app.create_agent(AgentConfig(name="plain"))
        await agent.run("I live in Lisbon.", user_id="ann")
        assert "Lisbon" in (await agent.run("Where do I live?", user_id="ann")).text
        assert app.create_agent(AgentConfig(name="bare", memory=None)).memory is None


# -- the name of a run ----------------------------------------------------------------------------------------


async def test_every_run_has_a_name_of_its_own_that_tools_results_and_events_tell() -> None:
    model = ScriptedModel([*calling("whoami"), *calling("whoami")])
    async with Agent(model=model, tools=[whoami]) as agent:
        first = await agent.run("Who?", user_id="ann", session_id="s")
        assert results(model) == [(False, f"ann {first.run_id}")]
        second = await agent.run("Who?", user_id="ann", session_id="s")
    assert first.run_id
    assert second.run_id
    assert first.run_id != second.run_id
    assert [event.run_id for event in first.events if event.type == "turn.start"] == [first.run_id]


async def test_a_span_of_a_turn_names_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Seen(TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            tracer = super().get_tracer(*args, **kwargs)
            start = tracer.start_span
            tracer.start_span = lambda *a, **k: started.append(k.get("attributes") or {}) or start(*a, **k)  # type: ignore[method-assign]
            return tracer

    provider = Seen()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    async with Agent(model=ScriptedModel(["Hi."])) as agent:
        result = await agent.run("Hi.")
    assert [a["loom.run.id"] for a in started if "loom.run.id" in a] == [result.run_id]


async def test_the_tool_of_a_plain_session_knows_its_run_too() -> None:
    model = ScriptedModel(calling("whoami"))
    session = Session(model=model, tools=[whoami], user_id="ann")
    reply = await session.send("Who?")
    assert results(model) == [(False, f"ann {reply.run_id}")]


async def test_a_tool_can_be_tested_alone_in_a_run_of_the_test() -> None:
    with run_context(user_id="ann", metadata={"plan": "pro"}) as run:
        assert count_words("one two") == 2
        assert await count_words.run({"text": "one two three"}) == "3"
        assert get_run_context() is run
        assert (run.session_id, run.run_id, run.metadata["plan"]) == ("test-session", "test-run", "pro")
    with pytest.raises(UsageError, match=r"not inside a run.*loom.testing.run_context"):
        get_run_context()


# -- what a run may cost --------------------------------------------------------------------------------------


@tool
async def dig() -> str:
    """Dig on."""
    return "deeper"


async def test_a_run_ends_at_its_ceiling_and_says_so() -> None:
    model = ScriptedModel(lambda _: ToolCallPart("c", "dig", {}), name=PRICED)
    async with Agent("Dig. " * 3_000, model=model, tools=[dig]) as agent:
        result = await agent.run("Go.", session_id="s", max_cost=0.02)
        assert result.stop == "cost"
        assert result.cost
        assert result.cost >= 0.02
        assert len(model.requests) < 5
        assert any("has cost $0.0" in note and "of at most $0.0200" in note for note in result.notes)
        session = await agent.session(session_id="s")
        last = session.messages[-1].parts[0]
        assert isinstance(last, ToolResultPart), "the call that was not made has its result"
        assert "the call was not made" in str(last)
        model._script = lambda _: "Done."
        assert (await agent.run("And now?", session_id="s")).text == "Done."


async def test_a_run_below_its_ceiling_is_not_touched() -> None:
    async with Agent(model=ScriptedModel(calling("dig"), name=PRICED), tools=[dig], config={"max_cost": 1.0}) as agent:
        result = await agent.run("Go.")
        assert (result.text, result.stop) == ("Done.", "end")


async def test_the_ceiling_of_a_run_stands_above_that_of_the_agent() -> None:
    model = ScriptedModel(calling("dig"), name=PRICED)
    async with Agent("Dig. " * 3_000, model=model, tools=[dig], config={"max_cost": 0.001}) as agent:
        assert (await agent.run("Go.", max_cost=5)).stop == "end"
        model._replies = iter(calling("dig"))
        assert (await agent.run("Go.")).stop == "cost"


async def test_a_summary_that_costs_what_the_run_may_cost_ends_it_before_the_question() -> None:
    model = ScriptedModel(lambda _: "word " * 2_000, name=PRICED, context_window=10_000)
    compaction = {"strategy": "summarize", "trigger": {"type": "messages", "threshold": 4}, "retain": {"count": 2}}
    agent = Agent(model=model, memory=None, compaction={**compaction, "retain": {"type": "messages", "count": 2}})
    for n in range(2):
        await agent.run(f"{n} " + "word " * 1_000, session_id="s")
    before = (await agent.session(session_id="s")).turn
    with pytest.raises(CostExceeded, match=r"has cost \$0.0.* of at most \$0.0010"):
        await agent.run("And?", session_id="s", max_cost=0.001)
    session = await agent.session(session_id="s")
    assert session.turn == before
    assert "And?" not in [message.text for message in session.messages]


async def test_what_the_memory_learns_in_the_background_does_not_count() -> None:
    model = ScriptedModel(lambda _: "ok", name=PRICED)
    async with Agent(model=model, facts="model") as agent:
        for n in range(6):
            assert (await agent.run(f"My dog number {n} is called Rex.", max_cost=0.01)).stop == "end"


@pytest.mark.parametrize("wrong", [0, -1, True, "1", float("nan"), float("inf")])
async def test_a_ceiling_is_an_amount_of_money(wrong: Any) -> None:
    with pytest.raises(UsageError, match="max_cost="):
        await Agent(model=ScriptedModel(["ok"], name=PRICED)).run("Hi.", max_cost=wrong)
    with pytest.raises(UsageError, match="max_cost="):
        Agent(model=ScriptedModel(["ok"], name=PRICED), config={"max_cost": wrong})


async def test_a_model_without_a_price_has_no_ceiling() -> None:
    with pytest.raises(UsageError, match=r"max_cost=0.5 needs the price of scripted:model, which is not known"):
        await Agent(model=ScriptedModel(["ok"])).run("Hi.", max_cost=0.5)
    compaction = {"strategy": "summarize", "summary_model": ScriptedModel()}
    with pytest.raises(UsageError, match="needs the price of scripted:model"):
        await Agent(model=ScriptedModel(["ok"], name=PRICED), compaction=compaction).run("Hi.", max_cost=0.5)


# -- who approves tools ---------------------------------------------------------------------------------------


async def test_a_call_is_made_only_if_it_is_approved() -> None:
    asked: list[ToolRequest] = []

    def approve(request: ToolRequest) -> bool | str:
        asked.append(request)
        assert get_run_context() == request.run
        return {"dig": True, "whoami": "names are private"}.get(request.name, False)

    model = ScriptedModel([[ToolCallPart("a", "dig", {}), ToolCallPart("b", "whoami", {})], "Done."])
    async with Agent(model=model, tools=[dig, whoami], approve=approve) as agent:
        result = await agent.run("Go.", user_id="ann", metadata={"role": "guest"})
    refused = "the call was refused, and not made: names are private"
    assert results(model) == [(False, "deeper"), (True, refused)]
    assert [(r.name, r.call_id, r.run.user_id, r.run.metadata) for r in asked] == [
        ("dig", "a", "ann", {"role": "guest"}),
        ("whoami", "b", "ann", {"role": "guest"}),
    ]
    told = [event for event in result.events if event.type.startswith("tool.")]
    assert types(tuple(told)) == ["tool.refused", "tool.start", "tool.start", "tool.end", "tool.end"]
    assert (told[0].call_id, told[0].name, told[0].reason) == ("b", "whoami", "names are private")  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [False, None, "", 1, object()])
async def test_whatever_is_not_true_is_a_refusal(answer: Any) -> None:
    model = ScriptedModel(calling("dig"))
    await Agent(model=model, tools=[dig], approve=lambda _: answer).run("Go.")
    assert results(model) == [(True, "the call was refused, and not made: it was not approved")]


async def test_a_hook_that_raises_refuses_in_words_and_the_run_goes_on() -> None:
    async def approve(_: ToolRequest) -> bool:
        raise RuntimeError("postgres://secret")

    model = ScriptedModel(calling("dig"))
    result = await Agent(model=model, tools=[dig], approve=approve).run("Go.")
    assert result.text == "Done."
    assert results(model) == [(True, "the call was refused, and not made: its approval failed (RuntimeError)")]
    assert "secret" not in str(result.events)


async def test_an_async_hook_may_wait_for_a_person() -> None:
    decided = anyio.Event()
    waiting = anyio.Event()

    async def approve(_: ToolRequest) -> bool:
        waiting.set()
        await decided.wait()
        return True

    model = ScriptedModel(calling("dig"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Agent(model=model, tools=[dig], approve=approve).run, "Go.")
        await waiting.wait()
        assert len(model.requests) == 1
        decided.set()
    assert results(model) == [(False, "deeper")]


async def test_the_tool_of_a_session_is_approved_the_same_way() -> None:
    model = ScriptedModel(calling("dig"))
    await Session(model=model, tools=[dig], approve=lambda request: request.name != "dig").send("Go.")
    assert results(model)[0][0] is True


# -- what it tells of memory ----------------------------------------------------------------------------------


async def test_the_events_of_a_run_tell_what_memory_did() -> None:
    async with Agent(model=ScriptedModel(lambda _: "ok")) as agent:
        first = await agent.run("I live in Lisbon.", user_id="ann")
        assert types(first.events)[-3:] == ["memory.remembered", "turn.end", "memory.learned"]
        assert first.remembered
        kept, learnt = first.events[-3], first.events[-1]
        assert (kept.ids, kept.count) == (tuple(r.id for r in first.remembered.kept), 2)  # type: ignore[union-attr]
        assert (learnt.by, learnt.facts, learnt.usage.input) == ("rules", 1, 0)  # type: ignore[union-attr]
        second = await agent.run("Where do I live?", user_id="ann")
        recalled = next(event for event in second.events if event.type == "memory.recalled")
        assert second.recalled
        assert recalled.ids == tuple(hit.item.id for hit in second.recalled.hits)
        assert recalled.count == len(recalled.ids) > 0
        assert "Lisbon" not in str([event for event in second.events if event.type.startswith("memory")])


async def test_a_promotion_is_told() -> None:
    async with Agent(model=ScriptedModel(lambda _: "ok")) as agent:
        assert agent.memory
        await agent.memory.remember("The gate code is 4711.", user_id="ann")
        promoted: list[int] = []
        for n in range(6):
            result = await agent.run(f"What is the gate code, {n}?", user_id="ann")
            promoted += [event.count for event in result.events if event.type == "memory.promoted"]
        assert sum(promoted) >= 1


async def test_a_stream_tells_the_same() -> None:
    async with Agent(model=ScriptedModel(lambda _: "ok")) as agent:
        told = [event.type async for event in agent.stream("I live in Lisbon.", user_id="ann")]
        assert told[-3:] == ["memory.remembered", "turn.end", "memory.learned"]


async def test_without_a_memory_no_event_speaks_of_it() -> None:
    result = await Agent(model=ScriptedModel(["ok"]), memory=None).run("I live in Lisbon.")
    assert not [event for event in result.events if event.type.startswith("memory")]
