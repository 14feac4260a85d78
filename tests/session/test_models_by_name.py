"""Models by name in a session: who writes summaries, and going on with another model."""

from __future__ import annotations

from typing import Any

import pytest

from loom import Agent, Message, Session, TextPart, ThinkingPart, Usage
from loom.engine import open as models
from loom.errors import UsageError
from loom.protocols.model import ModelResponse
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Closable(ScriptedModel):
    """A model that knows whether it was closed."""

    is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Closable]:
    """A provider `house` whose models are made here, by name."""
    made: dict[str, Closable] = {}

    def open_house(id: str, **_: Any) -> Closable:
        answers = lambda request: f"{id} says {len(request.messages)}"  # noqa: E731
        made[id] = Closable(answers, name=f"house:{id}", context_window=100_000)
        return made[id]

    monkeypatch.setitem(models.MODELS.built_in, "house", open_house)
    return made


def small() -> ScriptedModel:
    return ScriptedModel(lambda _: "fine " * 30, context_window=100_000)


COMPACTION = {"strategy": "summarize", "retain": {"type": "messages", "count": 2}, "summary_model": "house:writer"}


async def test_a_session_opens_the_model_for_summaries_by_its_name_and_closes_it(opened: dict[str, Closable]) -> None:
    own = small()
    session = Session(model=own, config={"compaction": COMPACTION})
    for n in range(6):
        await session.send(f"question {n} " * 20)
    done = await session.compact()
    assert done is not None
    assert done.strategy == "summarize"
    assert "writer says" in session.messages[0].text
    assert len(opened["writer"].requests) == 1
    assert len(own.requests) == 6
    assert not opened["writer"].is_closed
    await session.aclose()
    assert opened["writer"].is_closed


async def test_an_agent_counts_the_model_for_summaries_and_closes_it(opened: dict[str, Closable]) -> None:
    async with Agent(model=small(), memory=None, compaction=COMPACTION) as agent:
        for n in range(6):
            await agent.run(f"question {n} " * 20, session_id="s")
        session = await agent.session(session_id="s")
        before = agent.bill
        assert await session.compact() is not None
        assert agent.bill.requests == before.requests + 1
        assert agent.bill.usage.input > before.usage.input
    assert opened["writer"].is_closed


@pytest.mark.parametrize("name", ["writer", "house:", ":writer", 5])
def test_what_names_no_model_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="summary_model is"):
        Session(model=small(), config={"compaction": {"summary_model": name}})


def test_a_name_that_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="names no model"):
        Session(model=small(), config={"compaction": {"summary_model": "nobody:writer"}})


async def test_set_model_keeps_the_conversation_and_counts_it(opened: dict[str, Closable]) -> None:
    session = Session(model=small())
    await session.send("hello")
    spent = session.usage
    session.set_model("house:other")
    assert (await session.send("and now?")).text == "other says 3"
    assert session.turn == 2
    assert session.usage.input > spent.input
    assert [m.role for m in opened["other"].requests[0].messages] == ["user", "assistant", "user"]
    forked = await session.fork()
    assert (await forked.send("go on")).text == "other says 5"
    third = small()
    session.set_model(third)
    assert (await session.send("back")).text.startswith("fine")
    await session.aclose()
    assert opened["other"].is_closed


async def test_set_model_takes_the_window_and_the_prices_of_the_new_model() -> None:
    session = Session(model=ScriptedModel(["one"], name="anthropic:claude-opus-4-1"))
    await session.send("hello")
    dear = session.cost_of(Usage(input=1_000_000))
    cheap = ScriptedModel(lambda _: "two", name="anthropic:claude-haiku-4-5", context_window=1_000)
    session.set_model(cheap)
    price = session.cost_of(Usage(input=1_000_000))
    assert dear is not None
    assert price is not None
    assert price < dear
    for n in range(12):
        await session.send(f"question {n} " + "word " * 100)
    assert session.compactions, "the smaller window counts"


async def test_an_agents_session_keeps_its_bill(opened: dict[str, Closable]) -> None:
    async with Agent(model=small(), memory=None) as agent:
        await agent.run("hello", session_id="s")
        session = await agent.session(session_id="s")
        session.set_model("house:other")
        before = agent.bill
        result = await agent.run("and now?", session_id="s")
        assert result.text == "other says 3"
        assert agent.bill.requests == before.requests + 1
        assert agent.bill.usage.input > before.usage.input


async def test_thinking_of_one_model_is_not_sent_to_another_that_binds_it() -> None:
    thought = (ThinkingPart("hm", signature="sig"), TextPart("hi"))
    answer = ModelResponse(parts=thought, stop="end", usage=Usage(), model="m")
    first = ScriptedModel([answer], name="anthropic:claude-sonnet-4-5")
    second = ScriptedModel(["ok"], name="anthropic:claude-fable-5")
    session = Session(model=first)
    await session.send("hello")
    session.set_model(second)
    await session.send("go on")
    sent = [part for message in second.requests[0].messages for part in message.parts]
    assert session.messages[1] == Message("assistant", thought)
    assert any(isinstance(p, ThinkingPart) for p in sent) is not session._parts.model.binds_thinking


async def test_a_model_cannot_be_changed_in_a_turn_or_after_the_end() -> None:
    session = Session(model=small())
    sending = session.send("hello")
    async for _ in sending:
        with pytest.raises(UsageError, match="in a turn"):
            session.set_model(small())
        break
    await sending.aclose()
    with pytest.raises(UsageError, match="not a model"):
        session.set_model(5)  # type: ignore[arg-type]
    await session.send("hello")
    await session.aclose()
    with pytest.raises(UsageError, match="closed"):
        session.set_model(small())
