"""The OpenAI Agents SDK: what its own tests ask of a session, runs of its own Runner, compaction, and many writers.

The SDK's tests of sessions (tests/memory/test_session.py and test_session_limit.py of openai-agents-python) ask for the
behaviours that are tested here, as far as the public protocol shows them. Left out:
- names and contents of SQLite tables, journal mode, connections per thread, locks of files: private to SQLiteSession;
- rows that are not JSON, which are skipped there: a log holds nothing else;
- `RuntimeError` after close(): Loom raises UsageError;
- `TypeError` for an item that is not JSON: Loom raises UsageError, with the place of the item.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from agents import (
    Agent,
    ModelResponse,
    RunConfig,
    Runner,
    Session,
    SessionSettings,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from loom import CompactionConfig, ProviderUnavailable, ScopeRequired, UsageError, open_checkpoints
from loom.adapters.openai_agents import LoomSession
from loom.testing import ScriptedModel
from tests.adapters.writers import check_all, write_all

pytestmark = pytest.mark.anyio
set_tracing_disabled(disabled=True)


def say(text: str) -> ResponseOutputMessage:
    parts = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="m", type="message", role="assistant", content=parts, status="completed")


class Scripted(Model):
    """A model that answers from a list and keeps what it was given."""

    def __init__(self, *answers) -> None:
        self.answers, self.inputs = list(answers), list[list[Any]]()

    async def get_response(self, system_instructions, input, *args, **kwargs) -> ModelResponse:
        self.inputs.append(input if isinstance(input, list) else [{"role": "user", "content": input}])
        answer = self.answers.pop(0) if self.answers else say("I see.")
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def items(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


def texts(found: list[Any]) -> list[str]:
    return [item["content"] if isinstance(item["content"], str) else item["content"][0]["text"] for item in found]


@pytest.fixture
async def session(place, new_user):
    async with LoomSession("s", place, user_id=new_user()) as session:
        yield session


async def test_items_come_back_in_order_and_whole(session):
    assert isinstance(session, Session)
    assert await session.get_items() == []
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"é": "🎉"}'}
    given = [
        *items("Hello"),
        call,
        {"type": "function_call_output", "call_id": "c", "output": "naïve ☕\n\"'; DROP TABLE x"},
    ]
    await session.add_items(given[:1])
    await session.add_items(given[1:])
    await session.add_items([])
    assert await session.get_items() == given


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, "0123"), (2, "23"), (1, "3"), (9, "0123"), (0, ""), (-1, "0123")]
)
async def test_a_limit_gives_the_last_items_in_order(limit, expected):
    async with LoomSession("s", "inmemory", user_id="ann") as session:
        await session.add_items(items(*"0123"))
        assert "".join(texts(await session.get_items(limit))) == expected


async def test_the_settings_of_the_sdk_give_a_limit_that_a_call_overrides():
    for settings in (SessionSettings(limit=2), {"limit": 2}):
        async with LoomSession("s", "inmemory", user_id="ann", session_settings=settings) as session:
            await session.add_items(items(*"0123"))
            assert texts(await session.get_items()) == ["2", "3"]
            assert texts(await session.get_items(3)) == ["1", "2", "3"]
            model = Scripted()
            await Runner.run(
                Agent("a", model=model),
                "next",
                session=session,
                run_config=RunConfig(session_settings=SessionSettings(limit=1)),
            )
            assert texts(model.inputs[0]) == ["3", "next"]


async def test_the_last_item_can_be_taken_back(session):
    assert await session.pop_item() is None
    await session.add_items(items("one", "two", "three"))
    assert texts([await session.pop_item(), await session.pop_item()]) == ["three", "two"]
    await session.add_items(items("four"))
    assert texts(await session.get_items()) == ["one", "four"]
    assert texts([await session.pop_item(), await session.pop_item()]) == ["four", "one"]
    assert await session.pop_item() is None


async def test_a_cleared_session_is_empty_and_begins_again(session):
    await session.add_items(items("one"))
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items(items("two"))
    assert texts(await session.get_items()) == ["two"]


async def test_sessions_and_users_never_meet():
    store = open_checkpoints("inmemory")
    ann, other, bob = (LoomSession(s, store, user_id=u) for s, u in (("s", "ann"), ("t", "ann"), ("s", "bob")))
    await ann.add_items(items("heron"))
    assert await other.get_items() == await bob.get_items() == []
    await bob.clear_session()
    assert texts(await ann.get_items()) == ["heron"]
    with pytest.raises(ScopeRequired):
        LoomSession("", store, user_id="ann")
    with pytest.raises(UsageError, match="neither JSON nor bytes"):
        await ann.add_items([{"role": "user", "content": object()}])
    assert texts(await ann.get_items()) == ["heron"]
    await ann.aclose()
    assert texts(await ann.get_items()) == ["heron"]  # the store was given, so it stays open
    await store.aclose()


async def test_an_agent_goes_on_where_another_object_stopped(tmp_path):
    url = f"sqlite:{tmp_path}/s.db"
    async with LoomSession("s", url, user_id="ann") as session:
        await Runner.run(
            Agent("a", model=Scripted(say("San Francisco"))), "Which city has the bridge?", session=session
        )
    model = Scripted(say("California"))
    async with LoomSession("s", url, user_id="ann") as session:
        result = await Runner.run(Agent("a", model=model), "Which state is it in?", session=session)
        assert result.final_output == "California"
        assert texts(model.inputs[0]) == ["Which city has the bridge?", "San Francisco", "Which state is it in?"]
        # A correction: the last exchange is taken back and asked again.
        await session.pop_item()
        await session.pop_item()
        await Runner.run(Agent("a", model=model), "Which country?", session=session)
    assert texts(model.inputs[1]) == ["Which city has the bridge?", "San Francisco", "Which country?"]


def test_the_blocking_runner_works_in_several_threads(tmp_path):
    with LoomSession("s", f"sqlite:{tmp_path}/s.db", user_id="ann") as session:

        def speak(n: int) -> None:
            asyncio.run(Runner.run(Agent("a", model=Scripted(say(f"answer {n}"))), f"question {n}", session=session))

        with ThreadPoolExecutor(5) as threads:
            list(threads.map(speak, range(10)))
        held = texts(asyncio.run(session.get_items()))
    assert sorted(held) == sorted([f"{what} {n}" for what in ("question", "answer") for n in range(10)])


def test_eight_processes_of_five_loops_lose_nothing_and_keep_nothing_twice(tmp_path):
    written = write_all("openai", f"sqlite:{tmp_path}/s.db", "ann")
    assert len(written) == 1000
    with LoomSession("shared", f"sqlite:{tmp_path}/s.db", user_id="ann") as session:
        check_all(texts(asyncio.run(session.get_items())), written)


async def test_no_two_callers_take_the_same_item(tmp_path):
    url = f"sqlite:{tmp_path}/s.db"
    sessions = [LoomSession("s", url, user_id="ann") for _ in range(4)]
    await sessions[0].add_items(items(*(str(n) for n in range(20))))
    popped = await asyncio.gather(*(session.pop_item() for session in sessions for _ in range(5)))
    assert sorted(texts(popped), key=int) == [str(n) for n in range(20)]
    assert await sessions[0].get_items() == []
    for session in sessions:
        await session.aclose()


async def test_a_closed_session_says_so(tmp_path):
    session = LoomSession("s", f"sqlite:{tmp_path}/s.db", user_id="ann")
    await session.aclose()
    await session.aclose()
    with pytest.raises(UsageError, match="is closed"):
        await session.get_items()


# Compaction: a view, of which the originals stay.

SMALL = {
    "trigger": {"type": "tokens", "threshold": 400},
    "retain": {"type": "messages", "count": 4},
    "strategy": "truncate",
}


def long_talk() -> list[Any]:
    talk = list[Any]()
    for n in range(12):
        talk += items(f"question {n}: " + "word " * 20)
        call = {"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": f'{{"n": {n}}}'}
        talk += [{"type": "reasoning", "id": f"r{n}", "summary": []}, call]
        talk += [{"type": "function_call_output", "call_id": f"c{n}", "output": f"result {n} " + "word " * 10}]
        talk += [{"role": "assistant", "content": f"answer {n}"}]
    return talk


async def test_the_view_is_compacted_and_the_originals_stay(place, new_user):
    if place == "inmemory":
        place = open_checkpoints("inmemory")
    user = new_user()
    async with (
        LoomSession("s", place, user_id=user, compaction=SMALL) as session,
        LoomSession("s", place, user_id=user) as plain,
    ):
        talk = long_talk()
        await session.add_items(talk)
        view: list[Any] = await session.get_items()
        assert len(view) < len(talk) / 2
        assert view[-1] == talk[-1]
        assert await session.get_items() == view  # decided once, and the same for each reader
        assert await plain.get_items() == view
        calls = [item["call_id"] for item in view if item.get("type") == "function_call"]
        results = [item["call_id"] for item in view if item.get("type") == "function_call_output"]
        assert calls == results
        for before, after in pairwise(view):
            assert before.get("type") != "reasoning" or after.get("type") == "function_call"
        entries = await plain._home.call(lambda store: plain._logs.read(store, "s", "openai_agents.item"))
        assert [entry.body for entry in entries] == talk
        await session.add_items(items("and now?"))
        assert await session.get_items() == [*view, *items("and now?")]  # what was shown stays as it was
        while (await session.pop_item()) not in (None, talk[0]):
            pass
        assert await session.get_items() == []


async def test_a_model_may_write_the_summary_and_readers_at_one_time_share_it(tmp_path):
    model = ScriptedModel(lambda _: "The user asked many questions about words.")
    room = {"type": "tokens", "threshold": 800}  # half of it has room for a summary
    config = {**SMALL, "trigger": room, "strategy": "summarize", "summary_model": model}
    sessions = [LoomSession("s", f"sqlite:{tmp_path}/s.db", user_id="ann", compaction=config) for _ in range(3)]
    talk = long_talk()
    await sessions[0].add_items(talk)
    views = await asyncio.gather(*(session.get_items() for session in sessions))
    assert views[0] == views[1] == views[2] == await sessions[0].get_items()
    assert len(views[0]) < len(talk) / 2
    assert any("asked many questions" in str(item.get("content")) for item in views[0])
    for session in sessions:
        await session.aclose()


async def test_a_summary_that_fails_falls_back_and_a_talk_that_cannot_shrink_is_given_whole():
    def fail(_: object) -> str:
        raise ProviderUnavailable("down")

    config = {**SMALL, "strategy": "summarize", "summary_model": ScriptedModel(fail)}
    async with LoomSession("s", "inmemory", user_id="ann", compaction=config) as session:
        await session.add_items(long_talk())
        assert len(await session.get_items()) < 30
    async with LoomSession("s", "inmemory", user_id="ann", compaction=SMALL) as session:
        await session.add_items(items("word " * 2000))
        assert texts(await session.get_items()) == ["word " * 2000]


async def test_an_agent_with_a_long_talk_goes_on_in_the_compacted_view():
    @function_tool
    def look(n: int) -> str:
        return "rain " * 50

    async with LoomSession("s", "inmemory", user_id="ann", compaction=SMALL) as session:
        sizes, model = list[int](), Scripted()
        for n in range(8):
            call = ResponseFunctionToolCall(
                call_id=f"c{n}", name="look", arguments=f'{{"n": {n}}}', type="function_call"
            )
            model = Scripted(call, say(f"answer {n}"))
            await Runner.run(Agent("a", model=model, tools=[look]), f"What is it like at {n}?", session=session)
            sizes.append(len(model.inputs[-1]))
        assert model.inputs[-1][-1]["output"].startswith("rain")
    assert max(sizes) < 8 * 3


async def test_a_compaction_that_cannot_be_is_refused_when_the_session_is_made():
    with pytest.raises(UsageError, match="give tokens or messages"):
        LoomSession("s", "inmemory", user_id="ann", compaction={})
    with pytest.raises(UsageError, match="needs a model"):
        LoomSession("s", "inmemory", user_id="ann", compaction={"trigger": {"type": "messages", "threshold": 9}})
    config = CompactionConfig.of(SMALL)
    async with LoomSession("s", "inmemory", user_id="ann", compaction=config) as session:
        await session.add_items(items("short"))
        assert texts(await session.get_items()) == ["short"]
