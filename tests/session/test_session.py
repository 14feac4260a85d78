"""A session over a scripted model: turns, tools, events, checkpoints, and going back."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from itertools import pairwise

import anyio
import pytest

from loom.context.context import Context
from loom.context.skills import Skill
from loom.core.log import Event, ToolEnd
from loom.core.message import JSON, Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.core.record import Receipt
from loom.errors import (
    BadResponse,
    ContextOverflow,
    NotFound,
    ProviderUnavailable,
    RateLimited,
    StoreConflict,
    UsageError,
)
from loom.protocols.model import ModelRequest
from loom.session.session import Session
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing import FakeClock, ScriptedModel
from loom.tools.function import tool

pytestmark = pytest.mark.anyio


class Echo:
    """A tool that says what it got."""

    def __init__(self, name: str = "echo") -> None:
        self.spec = ToolSpec(name, "Says what it got.", {"type": "object"})
        self.calls: list[JSON] = []

    async def run(self, input: JSON) -> str:
        self.calls.append(input)
        if input == {"fail": True}:
            raise ValueError("no such thing; ask for another")
        return f"echo: {input}"


class Waiting:
    """A tool that never answers."""

    spec = ToolSpec("wait", "Waits.", {"type": "object"})

    def __init__(self) -> None:
        self.started = anyio.Event()

    async def run(self, input: JSON) -> str:
        self.started.set()
        await anyio.sleep_forever()
        return str(input)


def call(id: str, name: str = "echo", **input: JSON) -> ToolCallPart:
    return ToolCallPart(id, name, input)


def types(events: Sequence[Event]) -> list[str]:
    return [event.type for event in events if event.type != "text"]


async def all_events(session: Session, text: str) -> list[Event]:
    return [event async for event in session.send(text)]


async def test_a_turn_is_answered_saved_and_told_in_order() -> None:
    session = Session(model=ScriptedModel(["Hello Ann."]), clock=FakeClock())
    events = await all_events(session, "I am Ann.")
    assert types(events) == ["session.start", "turn.start", "cache.status", "checkpoint.saved", "turn.end"]
    assert [event.seq for event in events] == list(range(len(events)))
    assert "".join(e.text for e in events if e.type == "text") == "Hello Ann."
    assert [m.text for m in session.messages] == ["I am Ann.", "Hello Ann."]
    assert session.turn == 1


async def test_awaiting_gives_the_reply() -> None:
    session = Session(model=ScriptedModel(["one", "two"]), instructions="Be brief.")
    first = await session.send("1?")
    second = await session.send("2?")
    assert (first.text, second.text, second.turn, second.stop) == ("one", "two", 2, "end")
    assert session.usage == first.usage + second.usage


async def test_a_message_is_sent_once() -> None:
    session = Session(model=ScriptedModel(["one"]))
    sending = session.send("hi")
    with pytest.raises(UsageError, match="not over"):
        _ = sending.reply
    assert (await sending).text == "one"
    with pytest.raises(UsageError, match="sent already"):
        await sending
    assert session.turn == 1


async def test_tools_run_and_their_results_come_back_in_order() -> None:
    echo = Echo()
    model = ScriptedModel([[TextPart("Looking."), call("a", n=1), call("b", fail=True), call("c", "nope")], "Done."])
    session = Session(model=model, tools=[echo])
    events = await all_events(session, "go")
    results = session.messages[2]
    assert [(p.call_id, p.is_error) for p in results.parts if isinstance(p, ToolResultPart)] == [
        ("a", False),
        ("b", True),
        ("c", True),
    ]
    assert "no such thing; ask for another" in str(results.parts[1])
    assert "there is no tool 'nope'; the tools are: echo" in str(results.parts[2])
    order = types(events)
    assert order.index("tool.start") < order.index("tool.end") < order.index("turn.end")
    assert order.count("checkpoint.saved") == 2, "after the tools, and after the answer"
    assert [m.role for m in session.messages] == ["user", "assistant", "user", "assistant"]


async def test_a_call_that_was_cut_off_is_not_run() -> None:
    from loom.core.message import Usage
    from loom.protocols.model import ModelResponse

    cut = ModelResponse(parts=(call("a"),), stop="length", usage=Usage(input=5, output=5), model="m")
    echo = Echo()
    session = Session(model=ScriptedModel([cut, "ok"]), tools=[echo])
    assert (await session.send("go")).text == "ok"
    assert echo.calls == []
    assert "cut off" in str(session.messages[2])


@pytest.mark.parametrize("name", ["functions.echo", "multi_tool_use.parallel", "", "e" * 300])
async def test_a_call_by_a_name_that_no_provider_takes_back_is_kept_under_one_that_they_take(name: str) -> None:
    echo = Echo()
    model = ScriptedModel([call("a", name=name), "ok"], name="anthropic:claude-sonnet-4-5")
    session = Session(model=model, tools=[echo])
    assert (await session.send("go")).text == "ok"
    (kept,) = session.messages[1].parts
    assert isinstance(kept, ToolCallPart)
    assert re.fullmatch(r"unknown_[A-Za-z0-9_-]{0,56}", kept.name)
    assert echo.calls == []
    assert "there is no tool" in str(session.messages[2])


async def test_a_turn_ends_after_its_last_step() -> None:
    model = ScriptedModel(lambda _: call("a"))
    session = Session(model=model, tools=[Echo()], config={"max_steps": 3})
    reply = await session.send("go")
    assert (reply.stop, len(model.requests)) == ("steps", 3)
    assert isinstance(session.messages[-1].parts[0], ToolResultPart), "no call is left open"


async def test_a_failure_of_the_moment_is_tried_again_and_told() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    model = ScriptedModel([RateLimited("slow down", retry_after=7), ProviderUnavailable("busy"), "here"])
    session = Session(model=model, sleep=sleep)
    events = await all_events(session, "hi")
    assert waited == [7, 2.0]
    assert [e.reason for e in events if e.type == "recovery"] == ["slow down", "busy"]
    assert session.messages[-1].text == "here"
    assert len(session.messages) == 2


async def test_a_failure_for_good_withdraws_the_message() -> None:
    model = ScriptedModel([ContextOverflow("too large"), "fine"])
    session = Session(model=model)
    heard: list[Event] = []
    session.subscribe(heard.append)
    with pytest.raises(ContextOverflow):
        await session.send("hi")
    assert session.messages == ()
    assert heard[-1].type == "error"
    assert (await session.send("hi")).text == "fine"
    assert len(session.log) == 2


async def test_a_reader_that_walks_away_leaves_the_session_usable() -> None:
    session = Session(model=ScriptedModel(["a long answer that comes in pieces", "again"]))
    sending = aiter(session.send("hi"))
    async for event in sending:
        if event.type == "text":
            break
    await sending.aclose()  # type: ignore[attr-defined]
    assert session.messages == ()
    assert (await session.send("hi")).text == "again"


async def test_one_turn_runs_at_a_time() -> None:
    session = Session(model=ScriptedModel(["a", "b"]))
    sending = aiter(session.send("hi"))
    await anext(sending)
    with pytest.raises(UsageError, match="is in a turn"):
        await session.send("me too")
    async for _ in sending:
        pass
    assert (await session.send("me too")).text == "b"


async def test_restore_rewind_and_fork() -> None:
    store = MemoryCheckpointStore()
    model = ScriptedModel(["1", "2", "3", "other 2", "forked 3"])
    session = Session(model=model, checkpoints=store, session_id="s", user_id="ann")
    for n in "abc":
        await session.send(n)
    resumed = Session(model=model, checkpoints=store, session_id="s", user_id="ann")
    found = await resumed.restore()
    assert (found.turn, resumed.messages, resumed.usage) == (3, session.messages, session.usage)
    await resumed.rewind(1)
    assert [m.text for m in resumed.messages] == ["a", "1"]
    await resumed.send("b!")
    assert [m.text for m in resumed.messages] == ["a", "1", "b!", "other 2"]
    forked = await resumed.fork(at=found.id)
    assert [m.text for m in forked.messages] == ["a", "1", "b", "2", "c", "3"]
    await forked.send("d")
    assert [m.text for m in resumed.messages] == ["a", "1", "b!", "other 2"]
    await resumed.rewind(0)
    assert resumed.messages == ()
    with pytest.raises(NotFound):
        await resumed.rewind(17)


async def test_a_session_continued_elsewhere_is_told_so() -> None:
    store = MemoryCheckpointStore()
    model = ScriptedModel(lambda _: "ok")
    one = Session(model=model, checkpoints=store, session_id="s", user_id="ann")
    await one.send("a")
    other = Session(model=model, checkpoints=store, session_id="s", user_id="ann")
    with pytest.raises(StoreConflict, match=r"'s' already exists; restore\(\) it"):
        await other.send("b")
    assert len(model.requests) == 1, "the model is not asked for an answer that could not be saved"
    await other.restore()
    await other.send("b")
    with pytest.raises(StoreConflict, match="continued somewhere else"):
        await one.send("c")


async def test_a_chat_without_tools_is_saved_with_its_final_answer() -> None:
    store = MemoryCheckpointStore()
    session = Session(model=ScriptedModel(["the answer"]), checkpoints=store, session_id="s")
    await session.send("hi")
    other = Session(model=ScriptedModel(), checkpoints=store, session_id="s")
    await other.restore()
    assert [m.text for m in other.messages] == ["hi", "the answer"]


async def test_the_prefix_does_not_move_over_a_conversation() -> None:
    model = ScriptedModel(lambda request: f"answer {len(request.messages)}", name="anthropic:claude-opus-5")
    session = Session(model=model, instructions="You are kind.", tools=[Echo()])
    for n in range(6):
        await session.send(f"question {n}")
    bodies = [r.rendered.body for r in model.requests if r.rendered]
    assert len(bodies) == 6
    for before, after in pairwise(bodies):
        assert after["system"] == before["system"]
        assert after["tools"] == before["tools"]
        old, new = _texts(before), _texts(after)
        assert new[: len(old)] == old


def _texts(body: dict[str, JSON]) -> list[tuple[str, str]]:
    return [(m["role"], b["text"]) for m in body["messages"] for b in m["content"]]


async def test_skills_are_activated_by_what_the_user_says_and_limit_the_tools() -> None:
    skill = Skill(
        name="commit", description="Write a commit.", content="Use short lines.", triggers=("commit",), allowed_tools=()
    )
    echo = Echo()
    session = Session(model=ScriptedModel([call("a"), "done", call("b"), "ok"]), tools=[echo], skills=[skill])
    await session.send("please commit")
    assert "Use short lines." in session.messages[0].text
    assert session.messages[1].text == "please commit"
    assert echo.calls == []
    await session.send("now something else")
    assert len(echo.calls) == 1, "the limit ends with the turn"


async def test_a_context_brings_its_conversation_along() -> None:
    context = Context("shop")
    context.foundation.add("You sell shoes.")
    context.convo.add(Message.user("earlier"))
    context.convo.add(Message.assistant("indeed"))
    seen: list[ModelRequest] = []
    model = ScriptedModel(lambda request: seen.append(request) or "ok")
    session = Session(model=model, context=context)
    await session.send("hi")
    assert [m.text for m in seen[0].messages] == ["earlier", "indeed", "hi"]
    assert seen[0].system == ("You sell shoes.",)


async def test_bad_input_is_refused_and_changes_nothing() -> None:
    session = Session(model=ScriptedModel(["ok"]))
    for bad in ("", "  \n", Message.assistant("I am the model"), 7):
        with pytest.raises(UsageError):
            session.send(bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="model"):
        Session()
    with pytest.raises(UsageError, match="no setting typo"):
        Session(model=ScriptedModel(), config={"typo": 1})
    with pytest.raises(UsageError, match="two tools"):
        Session(model=ScriptedModel(), tools=[Echo(), Echo()])
    assert (await session.send("hi")).turn == 1
    await session.aclose()
    with pytest.raises(UsageError, match="closed"):
        await session.send("hi")


async def test_a_listener_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Event) -> None:
        raise RuntimeError("display gone")

    session = Session(model=ScriptedModel(["ok"]))
    stop = session.subscribe(broken)
    assert (await session.send("hi")).text == "ok"
    assert "display gone" in caplog.text
    stop()


async def test_a_turn_goes_on_only_when_its_reader_asks_for_more() -> None:
    session = Session(model=ScriptedModel(["a long answer that comes in pieces"]))
    heard: list[Event] = []
    session.subscribe(heard.append)
    async for event in session.send("hi"):
        await anyio.wait_all_tasks_blocked()
        if event.type != "session.start":  # sent together with the event behind it
            assert heard[-1] is event


async def test_a_reader_that_is_cancelled_stops_the_turn() -> None:
    waiting = Waiting()
    session = Session(model=ScriptedModel([call("a", "wait"), "again"]), tools=[waiting])

    async def read() -> None:
        async for _ in session.send("go"):
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await waiting.started.wait()
        tasks.cancel_scope.cancel()
    assert (await session.send("go on")).text == "again"


async def test_a_failure_reaches_the_reader_once_after_its_event() -> None:
    session = Session(model=ScriptedModel([BadResponse("broken"), "fine"]))
    events: list[Event] = []

    async def read() -> None:
        async for event in session.send("hi"):
            events.append(event)  # noqa: PERF401  (a comprehension would lose them)

    with pytest.raises(BadResponse, match="broken"):
        await read()
    assert types(events) == ["session.start", "turn.start", "error"]
    assert (await session.send("hi")).text == "fine"


async def test_the_end_of_a_tool_is_told_while_another_still_runs() -> None:
    told = anyio.Event()

    class Fast:
        spec = ToolSpec("fast", "Answer.", {"type": "object"})

        async def run(self, input: JSON) -> str:
            return "fast"

    class Slow:
        spec = ToolSpec("slow", "Wait.", {"type": "object"})

        async def run(self, input: JSON) -> str:
            await told.wait()
            return "slow"

    calls = (ToolCallPart("a", "slow", {}), ToolCallPart("b", "fast", {}))
    session = Session(model=ScriptedModel([calls, "done"]), tools=[Fast(), Slow()])
    ends: list[str] = []
    async for event in session.send("go"):
        if isinstance(event, ToolEnd):
            ends.append(event.name)
            told.set()
    assert ends == ["fast", "slow"]


async def test_an_abandoned_stream_is_closed_without_waiting_for_the_garbage_collector() -> None:
    session = Session(model=ScriptedModel(["a long answer that comes in pieces", "again"]))
    gc.disable()
    try:
        async for event in session.send("hi"):
            if event.type == "text":
                break
        await anyio.wait_all_tasks_blocked()
        assert (await session.send("hi")).text == "again"
    finally:
        gc.enable()


async def test_a_turn_that_is_closed_by_another_task_ends_its_stream() -> None:
    session = Session(model=ScriptedModel([call("a", "wait"), "again"]), tools=[Waiting()])
    pending = session.send("go")
    async with anyio.create_task_group() as tasks:
        async for event in pending:
            if event.type == "tool.start":
                tasks.start_soon(pending.aclose)
    with pytest.raises(UsageError, match="not over"):
        _ = pending.reply
    assert (await session.send("go on")).text == "again"


async def test_events_of_a_tool_say_what_it_was_given_and_what_it_answered() -> None:
    def add(a: int, b: int) -> str:
        """Add numbers."""
        return f"{a + b} in all"

    calls = [ToolCallPart("c1", "add", {"a": 1, "b": 2}), ToolCallPart("c2", "add", {"a": 1}), "Done."]
    session = Session(model=ScriptedModel(calls), tools=[tool(add)])
    reply = await session.send("Add.")
    began = [event.arguments for event in reply.events if event.type == "tool.start"]
    ended = [(event.is_error, event.text) for event in reply.events if event.type == "tool.end"]
    assert began == [{"a": 1, "b": 2}, {"a": 1}]
    assert ended[0] == (False, "3 in all")
    assert ended[1][0]
    assert "the input of add is wrong" in ended[1][1]


async def test_what_a_compaction_and_a_receipt_print_can_be_read() -> None:
    session = Session(model=ScriptedModel(["word " * 400] * 9), config={"compaction": {"strategy": "truncate"}})
    for number in range(8):
        await session.send(f"Question {number}. " + "word " * 200)
    done = await session.compact()
    assert done is not None
    before, after = f"{done.tokens_before:,}", f"{done.tokens_after:,}"
    assert str(done) == f"truncate: {before} -> {after} tokens, {len(done.covered)} messages replaced"
    receipt = Receipt(removed={"episode": 2, "fact": 1, "job": 0}, pending=("a copy is on a replica",))
    assert str(receipt) == "removed: 2 episodes, 1 fact\npending: a copy is on a replica"
