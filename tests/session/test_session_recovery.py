"""What a session does where something goes wrong between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loom.context.context import Context
from loom.context.skills import Skill
from loom.core.log import Event
from loom.core.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolSpec
from loom.engine import open_memory
from loom.errors import (
    BadResponse,
    ContextOverflow,
    NotFound,
    ProviderUnavailable,
    StoreConflict,
    StoreUnavailable,
    UsageError,
)
from loom.protocols.model import Chunk, ModelRequest
from loom.session.session import Session
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing.fakes import FakeClock, Reply, ScriptedModel

pytestmark = pytest.mark.anyio

KEEP_ONE = {"compaction": {"strategy": "truncate", "retain": {"type": "messages", "count": 1}}}
CALL = ToolCallPart("c1", "look", {})


class Look:
    """A tool that returns what it was made with."""

    spec = ToolSpec("look", "Look.", {"type": "object"})

    def __init__(self, output: Any = "seen") -> None:
        self.output = output

    async def run(self, input: Any) -> Any:
        return self.output


class LostAnswer(MemoryCheckpointStore):
    """Saves, but fails to say so the first time."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    async def save(self, *args: Any, **named: Any) -> None:
        await super().save(*args, **named)
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


# -- turns ----------------------------------------------------------------------------------------------------


async def test_rewind_to_a_turn_is_its_end_and_not_the_middle_of_the_next() -> None:
    session = Session(model=ScriptedModel(["one", CALL, "two", "forked"]), tools=[Look()])
    await session.send("first")
    await session.send("second")
    other = await session.fork(at=1)
    assert texts(other) == ["first", "one"]
    await session.rewind(1)
    assert texts(session) == ["first", "one"]
    with pytest.raises(NotFound, match=r"checkpoints\(\) lists them"):
        await session.rewind(9)


async def test_a_turn_that_failed_midway_is_not_the_end_of_a_turn() -> None:
    model = ScriptedModel(["one", CALL, UsageError("no"), "two"])
    store = MemoryCheckpointStore()
    session = Session(model=model, tools=[Look()], checkpoints=store)
    await session.send("first")
    with pytest.raises(UsageError):
        await session.send("second")
    assert len(session.messages) == 5  # what the model has answered stays
    await session.checkpoint()
    assert [c.unfinished for c in await session.checkpoints()] == [True, True, True, False]
    again = Session(model=model, checkpoints=store, session_id=session.id)
    await again.restore()
    assert len(again.messages) == 5
    await again.rewind(1)
    assert texts(again) == ["first", "one"]


async def test_a_message_that_is_withdrawn_leaves_no_compaction_that_covers_it() -> None:
    """Skill instructions joined the history with the message; a compaction that covers them cannot outlive them."""
    refused = ContextOverflow("too large", limit=400, size=500)
    replies: list[Reply] = [*["fine " * 30] * 3, refused, refused, "done"]
    skill = Skill(name="deploy", description="Deploy.", content="Deploy carefully. " * 40, triggers=("deploy",))
    store = MemoryCheckpointStore()
    session = Session(model=ScriptedModel(replies), skills=[skill], checkpoints=store, config=KEEP_ONE)
    for letter in "abc":
        await session.send(letter * 50)
    before = session.messages
    with pytest.raises(ContextOverflow):
        await session.send("please deploy now")
    assert session.messages == before
    assert session.compactions == ()
    assert (await session.send("please deploy now")).text == "done"
    again = Session(model=ScriptedModel(), checkpoints=store, session_id=session.id)
    await again.restore()
    assert again.messages == session.messages


async def test_the_reply_of_a_turn_stays_its_own() -> None:
    session = Session(model=ScriptedModel(["one", "two"]))
    sending = session.send("first")
    async for _ in sending:
        pass
    reply = sending.reply
    await session.send("second")
    assert sending.reply == reply


async def test_a_turn_that_is_not_read_to_its_end_can_be_closed() -> None:
    session = Session(model=ScriptedModel(["one", "two"]))
    heard: list[Event] = []
    session.subscribe(heard.append)
    sending = session.send("first")
    async for event in sending:
        if event.type == "text":
            break
    with pytest.raises(UsageError, match=r"aclose\(\)"):
        await session.send("second")
    await sending.aclose()
    await sending.aclose()
    assert [event.type for event in heard][-1] == "error"  # a turn that began has an end for those who listen
    assert (await session.send("second")).text == "two"


async def test_a_broken_try_leaves_no_answer_behind() -> None:
    """An answer that came before the stream broke is void: the next try has to bring its own."""

    class Breaks(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            if self.requests:
                return
            async for chunk in super().stream(request):
                yield chunk
            raise ProviderUnavailable("the line broke")

    async def no_wait(seconds: float) -> None:
        assert seconds

    session = Session(model=Breaks(["void"]), sleep=no_wait)
    with pytest.raises(BadResponse, match="without an answer"):
        await session.send("hi")
    assert session.messages == ()


@pytest.mark.parametrize("output", [None, 5, {"a": 1}, ["text"], "half a \ud800 pair"])
async def test_a_tool_that_returns_something_else_is_told_to_the_model(output: object) -> None:
    session = Session(model=ScriptedModel([CALL, "I see."]), tools=[Look(output)])
    assert (await session.send("look")).text == "I see."
    (result,) = session.messages[2].parts
    assert result.is_error  # type: ignore[union-attr]
    assert "text" in result.content[0].text  # type: ignore[union-attr]


# -- saving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), asyncio.CancelledError()])
async def test_a_save_whose_answer_was_lost_is_made_good_by_the_next(error: BaseException) -> None:
    store = LostAnswer(error)
    session = Session(model=ScriptedModel(["one", "two"]), checkpoints=store)
    with pytest.raises(type(error)):
        await session.send("first")
    assert (await session.send("second")).text == "two"
    again = Session(model=ScriptedModel(), checkpoints=store, session_id=session.id)
    await again.restore()
    assert texts(again) == ["first", "one", "second", "two"]


async def test_a_session_that_was_continued_elsewhere_goes_on_as_a_fork() -> None:
    store = MemoryCheckpointStore()
    here = Session(model=ScriptedModel(["one", "two", "three"]), checkpoints=store)
    await here.send("first")
    there = Session(model=ScriptedModel(["elsewhere"]), checkpoints=store, session_id=here.id)
    await there.restore()
    await there.send("second")
    with pytest.raises(StoreConflict, match=r"fork\(\) to go on from here"):
        await here.send("second here")
    with pytest.raises(StoreConflict):
        await here.checkpoint()
    other = await here.fork()
    assert texts(other) == ["first", "one", "second here", "two"]
    assert (other.turn, other.usage) == (here.turn, here.usage)
    await other.send("third")
    again = Session(model=ScriptedModel(), checkpoints=store, session_id=other.id)
    await again.restore()
    assert texts(again) == ["first", "one", "second here", "two", "third", "three"]
    await here.restore()
    assert texts(here) == ["first", "one", "second", "elsewhere"]


async def test_pins_are_saved_when_the_session_closes_or_is_forked() -> None:
    store = MemoryCheckpointStore()
    async with Session(model=ScriptedModel(["one"]), checkpoints=store) as session:
        await session.send("first")
        session.pin(session.shown[0].id)
        assert (await session.fork()).explain().messages[0].pinned
        session.pin(session.shown[1].id)
    again = Session(model=ScriptedModel(), checkpoints=store, session_id=session.id)
    await again.restore()
    assert [line.pinned for line in again.explain().messages] == [True, True]


async def test_the_session_starts_before_anything_else_happens() -> None:
    def begun() -> tuple[Session, list[Event]]:
        context = Context("chat")
        for text in ("a question " * 50, "another " * 50, "a third " * 50):
            context.convo.add(text)
            context.convo.add(Message("assistant", (TextPart("an answer " * 50),)))
        session = Session(
            model=ScriptedModel(["one"]), context=context, config={"compaction": {"strategy": "truncate"}}
        )
        heard: list[Event] = []
        session.subscribe(heard.append)
        return session, heard

    session, heard = begun()
    await session.checkpoint()
    assert [event.type for event in heard] == ["session.start", "checkpoint.saved"]
    session, heard = begun()
    await session.compact()
    assert heard[0].type == "session.start"


async def test_turn_0_is_what_the_context_began_with() -> None:
    context = Context("chat")
    context.convo.add("hello")
    session = Session(model=ScriptedModel(["one", "two"]), context=context)
    await session.send("first")
    await session.rewind(0)
    assert texts(session) == ["hello"]
    await session.send("second")
    assert texts(session) == ["hello", "second", "two"]


# -- thinking that is bound to its prompt ---------------------------------------------------------------------

BINDS = "anthropic:claude-opus-5-5"


def thoughts(request: ModelRequest) -> list[str]:
    return [part.text for m in request.messages for part in m.parts if isinstance(part, ThinkingPart)]


def thinker() -> ScriptedModel:
    def answer(request: ModelRequest) -> Reply:
        number = len(model.requests)
        return [ThinkingPart(f"thought {number}", signature=f"seal {number}"), TextPart("answer " * 30)]

    model = ScriptedModel(answer, name=BINDS)
    return model


async def test_thinking_done_in_view_of_a_compaction_is_void_once_that_is_undone() -> None:
    model, store = thinker(), MemoryCheckpointStore()
    session = Session(model=model, config=KEEP_ONE, checkpoints=store)
    for letter in "abc":
        await session.send(letter * 300)
    await session.compact()
    await session.send("d")
    await session.undo()
    again = Session(model=model, config=KEEP_ONE, checkpoints=store, session_id=session.id)
    await again.restore()
    await session.send("e")
    assert thoughts(model.requests[-1]) == ["thought 1", "thought 2", "thought 3"]
    other = await again.fork()
    await other.send("e")
    assert thoughts(model.requests[-1]) == ["thought 1", "thought 2", "thought 3"]


async def test_thinking_done_in_front_of_a_memory_that_is_gone_is_void_after_a_restore() -> None:
    model, store, memory = thinker(), MemoryCheckpointStore(), open_memory("inmemory", embedder="hash")
    await memory.remember("I live in Lisbon and I like boats.", user_id="ann")
    session = Session(model=model, memory=memory, checkpoints=store, user_id="ann")
    await session.send("Where do I live?")
    again = Session(model=model, memory=memory, checkpoints=store, user_id="ann", session_id=session.id)
    await again.restore()
    await again.send("And what do I like?")
    assert thoughts(model.requests[-1]) == []
    await memory.aclose()


# -- the rest -------------------------------------------------------------------------------------------------


async def test_settings_may_be_a_plain_mapping() -> None:
    model = ScriptedModel(["one"])
    await Session(model=model, config={"settings": {"max_output": 50}}).send("hi")
    assert model.requests[0].settings.max_output == 50


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"settings": {"max_ouput": 5}}, "max_ouput"),
        ({"settings": None}, "mapping or ModelSettings"),
        ({"tool_output_limit": "many"}, "1,000 characters"),
    ],
)
async def test_a_wrong_setting_is_refused_with_words(config: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Session(model=ScriptedModel(), config=config)


async def test_a_fork_is_stamped_with_the_clock_of_its_session() -> None:
    clock, store = FakeClock(), MemoryCheckpointStore()
    session = Session(model=ScriptedModel(["one"]), clock=clock, checkpoints=store)
    await session.send("first")
    clock.advance(60)
    forked = await store.load((await session.fork()).scope)
    assert forked is not None
    assert forked.at == clock.now()


# -- tools that end in odd ways -------------------------------------------------------------------------------


class AwaitsWhatWasCancelled(Look):
    """A tool that awaits a task of its own, which somebody cancelled."""

    spec = ToolSpec("odd", "Odd.", {"type": "object"})

    async def run(self, input: Any) -> Any:
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        task.cancel()
        return await task


class Slow(Look):
    """A tool that answers after the others have ended."""

    async def run(self, input: Any) -> Any:
        for _ in range(20):
            await asyncio.sleep(0)
        return "seen"


async def test_a_tool_that_awaits_a_cancelled_task_does_not_stop_the_tools_beside_it() -> None:
    model = ScriptedModel([(ToolCallPart("c0", "odd", {}), CALL), "done"])
    session = Session(model=model, tools=[AwaitsWhatWasCancelled(), Slow()])
    assert (await session.send("look")).text == "done"
    odd, slow = model.requests[-1].messages[-1].parts
    assert (odd.is_error, slow.is_error) == (True, False)  # pyright: ignore[reportAttributeAccessIssue]
    assert "cancelled before it answered" in str(odd)


async def test_a_tool_may_fail_with_an_error_that_is_not_utf_8() -> None:
    class Missing(Look):
        async def run(self, input: Any) -> Any:
            raise FileNotFoundError("caf\udce9.txt")

    model = ScriptedModel([CALL, "done"])
    assert (await Session(model=model, tools=[Missing()]).send("look")).text == "done"
    assert "FileNotFoundError: caf\ufffd.txt" in str(model.requests[-1].messages[-1])
