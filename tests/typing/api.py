"""What users write, as type checkers see it: pyright and mypy read this file under `make check`; nothing runs it.

`assert_type` says what a call gives. A line with an `ignore` holds a mistake: a checker that no longer finds it says
that the comment is not needed, and fails.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from typing import Any, assert_type

import loom
from loom import (
    Agent,
    AnthropicModel,
    Checkpoint,
    CheckpointStore,
    Compaction,
    CompactionPlan,
    Context,
    Episode,
    Eq,
    Event,
    Fact,
    FunctionTool,
    Hit,
    Layer,
    LoomApp,
    Memory,
    Message,
    Model,
    Passage,
    PendingReply,
    Recalled,
    Receipt,
    Record,
    Remembered,
    Reply,
    Result,
    Session,
    SyncAgent,
    SyncMemory,
    SyncSession,
    Text,
    TurnEnd,
    UsageError,
    Window,
    WorkingBlock,
    get_run_context,
    open_checkpoints,
    open_memory,
    open_memory_sync,
    open_model,
    tool,
)

# -- opening ------------------------------------------------------------------------------------------------------

assert_type(open_memory("sqlite:./bot.db"), Memory)
assert_type(Memory.open("sqlite:./bot.db", namespace="shop"), Memory)
assert_type(open_memory_sync("inmemory"), SyncMemory)
assert_type(open_checkpoints("files:./chats"), CheckpointStore)
assert_type(open_model("anthropic:claude-sonnet-5"), Model)
model: Model = AnthropicModel("claude-sonnet-5")

open_memory("inmemory", embeder="hash")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
open_memory_sync("inmemory", embeder="hash")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Memory.open("inmemory", namspace="shop")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
open_memory_sync("inmemory", facts="magic")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
loom.open_memroy("inmemory")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


# -- a blocking memory --------------------------------------------------------------------------------------------


def blocking_memory() -> None:
    with open_memory_sync("inmemory") as memory:
        assert_type(memory, SyncMemory)
        assert_type(memory.remember("I live in Oslo.", user_id="ann"), Remembered)
        recalled = memory.recall("Where?", user_id="ann", layers=[Layer.L4], where=Eq("topic", "home"))
        assert_type(recalled, Recalled)
        assert_type(recalled.text, str)
        for hit in recalled:
            assert_type(hit, Hit)
            assert_type(hit.score, float)
            assert_type(hit.item, Episode | Fact | WorkingBlock | Passage)
        for record in memory.list(user_id="ann"):
            assert_type(record, Episode | Fact | WorkingBlock)
        assert_type(memory.list(user_id="ann"), Iterator[Record])
        assert_type(memory.export(user_id="ann"), Iterator[str])
        assert_type(memory.worker(), AbstractContextManager[None])
        assert_type(memory.forget(user_id="ann"), Receipt)
        assert_type(memory.view(namespace="shop"), SyncMemory)
        assert_type(memory.facts(user_id="ann"), tuple[Fact, ...])

        memory.remmember("typo", user_id="ann")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        memory.recall("Where?", user="ann")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        memory.recall("Where?")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        memory.recall("Where?", user_id="ann", limit="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        str(recalled.txt)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def async_memory() -> None:
    async with open_memory("inmemory") as memory:
        assert_type(await memory.recall("Where?", user_id="ann"), Recalled)
        async for record in memory.list(user_id="ann"):
            assert_type(record, Episode | Fact | WorkingBlock)
        assert_type(await memory.get("id", user_id="ann"), Episode | Fact | WorkingBlock | None)
        assert_type(await memory.promote("id", user_id="ann"), Episode)
        await memory.recal("Where?", user_id="ann")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


# -- sessions -----------------------------------------------------------------------------------------------------


async def session() -> None:
    async with Session(model=model, instructions="Be brief.", user_id="ann") as session:
        sending = session.send("Hi.", max_cost=0.1)
        assert_type(sending, PendingReply)
        assert_type(await sending, Reply)
        assert_type(await session.compact(dry_run=True), CompactionPlan)
        assert_type(await session.compact(), Compaction | None)
        assert_type(await session.checkpoint(), Checkpoint)
        async for event in session.send("Hi again."):
            if isinstance(event, Text):
                assert_type(event.text, str)
        session.send("Hi.", max_costs=0.1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Session(modl=model)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def blocking_session() -> None:
    with SyncSession(Session(model=model)) as session:
        assert_type(session.send("Hi."), Reply)
        assert_type(session.stream("Hi."), Iterator[Event])
        assert_type(session.compact(dry_run=True), CompactionPlan)
        assert_type(session.fork(1), SyncSession)
        assert_type(session.messages, tuple[Message, ...])
        session.sent("Hi.")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        session.fork(1, sesion_id="b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- agents and tools ---------------------------------------------------------------------------------------------


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"{city}, {days} days: rain, says {get_run_context().user_id}"


@tool(name="orders", timeout=5)
async def my_orders(limit: int) -> list[str]:
    """The user's orders."""
    return ["tea"] * limit


assert_type(weather("Oslo"), str)
weather(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
weather(town="Oslo")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Shop:
    @tool
    def price(self, item: str) -> float:
        """The price of an item."""
        return float(len(item))


assert_type(Shop().price("tea"), float)
Shop().price(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def blocking_agent() -> None:
    agent = Agent("Be brief.", model="anthropic:claude-sonnet-5", tools=[weather, my_orders, Shop().price])
    result = agent.run_sync("Hi.", user_id="ann", session_id="s")
    assert_type(result, Result)
    assert_type(result.recalled, Recalled | None)
    assert_type(agent.resume_sync(session_id="s", at=1), Result)
    assert_type(agent.memory, Memory | None)
    assert_type(agent.blocking, SyncAgent)
    with SyncAgent(agent) as blocking:
        assert_type(blocking.run("Hi."), Result)
        assert_type(blocking.session(session_id="s"), SyncSession)
        assert_type(blocking.memory, SyncMemory | None)
        for event in blocking.stream("Hi.", max_cost=0.5):
            if isinstance(event, TurnEnd):
                assert_type(event.stop, str)

    agent.run_sync("x", user="typo")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.blocking.run("x", sesion_id="s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.blocking.streem("x")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    Agent("Be brief.", memry="inmemory")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    str(result.txt)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def async_agent() -> None:
    assert_type(await my_orders(3), list[str])
    await my_orders()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async with Agent(memory={"backend": "sqlite", "path": "./bot.db"}) as agent:
        assert_type(await agent.run("Hi.", output_type=int), Result)
        assert_type(agent.stream("Hi."), AsyncIterator[Event])
        assert_type(await agent.session(session_id="s"), Session)
        assert_type(LoomApp(model=model).get_agent("bot"), Agent)
        await agent.run("Hi.", outputtype=int)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- contexts and errors ------------------------------------------------------------------------------------------


def context() -> None:
    context = Context("chat")
    context.foundation.add("Be brief.")
    assert_type(context.compile(), Window)
    context.foundations.add("typo")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def errors() -> None:
    try:
        open_memory("nowhere:")
    except UsageError as error:
        problem: ValueError = error
        raise problem from None


any_tool: FunctionTool[..., Any] = weather
