"""A session over each model and a real connection: whatever goes wrong, no turn is lost and none is doubled."""

from contextlib import aclosing
from functools import partial

import pytest
from anyio import to_thread

from loom.core.message import TextPart, ToolCallPart, ToolSpec
from loom.errors import BadResponse, ProviderError, ProviderUnavailable
from loom.session.session import Session
from loom.testing import ScriptedModel
from loom.testing.wire import Refused, Said
from tests.providers.models.served import each_kind, served

pytestmark = pytest.mark.anyio

NOTHING = Refused(200, b"", {"content-type": "text/event-stream"})
"""A stream that ends before anything of an answer came."""


class Search:
    """A tool that finds what it is asked for."""

    def __init__(self):
        self.spec = ToolSpec("search", "Search the notes.", {"type": "object"})
        self.asked = []

    async def run(self, input):
        self.asked.append(input)
        return f"found {input['q']}"


class Waits:
    """How to wait without waiting: it notes for how long."""

    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)


def said_by(session):
    return [(message.role, message.text) for message in session.messages]


@each_kind
@pytest.mark.parametrize(
    "fault", ["rate_limited", "overloaded", "server_error", "dropped", "cut", "ended_early", "error_in_stream"]
)
async def test_a_fault_of_the_moment_costs_a_wait_and_nothing_else(kind, fault):
    async with served(kind) as (model, service):
        service.script(Said.text("First."), fault, fault, Said.text("Second."), Said.text("Third."))
        waits = Waits()
        session = Session(model=model, sleep=waits)
        await session.send("1")
        reply = await session.send("2")
        assert reply.text == "Second."
        assert waits.seconds == ([7.0, 7.0] if fault == "rate_limited" else [1.0, 2.0])
        await session.send("3")
        assert said_by(session) == [
            ("user", "1"),
            ("assistant", "First."),
            ("user", "2"),
            ("assistant", "Second."),
            ("user", "3"),
            ("assistant", "Third."),
        ]
        tries = service.requests[1:4]
        assert tries[0] == tries[1] == tries[2], "what is tried again is the same request, byte for byte"
        assert len(service.requests) == 5


@each_kind
@pytest.mark.parametrize("fault", ["malformed", NOTHING, "bad_request", "empty_400", "unauthorized"], ids=str)
async def test_a_fault_for_good_withdraws_the_message(kind, fault):
    async with served(kind) as (model, service):
        service.script(fault, Said.text("Now it works."))
        session = Session(model=model, sleep=Waits())
        with pytest.raises(BadResponse if fault in ("malformed", NOTHING) else ProviderError):
            await session.send("hi")
        assert session.messages == ()
        assert len(service.requests) == 1
        await session.send("hi")
        assert said_by(session) == [("user", "hi"), ("assistant", "Now it works.")]


@each_kind
async def test_a_provider_that_stays_away_ends_the_turn(kind):
    async with served(kind) as (model, service):
        service.script(*["overloaded"] * 4, Said.text("Back."))
        session = Session(model=model, sleep=Waits())
        with pytest.raises(ProviderUnavailable):
            await session.send("hi")
        assert session.messages == ()
        assert (await session.send("hi")).text == "Back."


@each_kind
async def test_an_overflow_compacts_and_then_the_turn_goes_on(kind):
    async with served(kind) as (model, service):
        answers = [Said.text(f"Answer {n}. " + "words " * 200) for n in range(8)]
        service.script(*answers)
        compaction = {"strategy": "truncate", "retain": {"type": "messages", "count": 4}}
        session = Session(model=model, sleep=Waits(), config={"compaction": compaction})
        for n in range(8):
            await session.send(f"Question {n}?")
        service.script("overflow", Said.text("It fits now."))
        events = [event async for event in session.send("And this?")]
        told = [event.type for event in events]
        assert "compaction.end" in told
        assert [event.action for event in events if event.type == "recovery"] == ["compact"]
        assert [m.text for m in session.messages[-2:]] == ["And this?", "It fits now."]
        assert len([entry for entry in session.log if entry.message.text == "And this?"]) == 1
        assert len(str(service.requests[-1])) < len(str(service.requests[-2]))
        assert "And this?" in str(service.requests[-1])


@each_kind
async def test_reasoning_goes_back_unchanged_in_every_round_of_a_turn(kind):
    async with served(kind) as (model, service):
        rounds = [
            Said.calls(*kind.thinking, TextPart("Looking."), ToolCallPart("c1", "search", {"q": "tea"}), id="a1"),
            Said.calls(
                ToolCallPart("c2", "search", {"q": "milk"}), ToolCallPart("c3", "search", {"q": "cup"}), id="a2"
            ),
        ]
        service.script(rounds[0], "cut", rounds[1], Said.text("Tea, milk and a cup.", id="a3"), Said.text("Bye."))
        search = Search()
        session = Session(model=model, tools=[search], instructions="Be brief.", sleep=Waits())
        assert (await session.send("What have I got?")).text == "Tea, milk and a cup."
        assert [asked["q"] for asked in search.asked] == ["tea", "milk", "cup"]
        await session.send("Bye")
        blocks = service.wire.replayed(rounds[0])
        assert blocks
        assert len(service.requests) > 2
        for request in service.requests[1:]:
            turns = request.get("messages") or request["input"]
            assert [block for block in blocks if block not in _flat(turns)] == []
        assert _bare(service.requests[1]) == _bare(service.requests[2])


@each_kind
async def test_walking_away_from_a_turn_stops_the_request(kind):
    async with served(kind) as (model, service):
        service.script("stalled", Said.text("Still here."))
        session = Session(model=model)
        async with aclosing(aiter(session.send("hi"))) as events:
            async for event in events:
                if event.type == "text":
                    break
        assert await to_thread.run_sync(partial(service.hung_up.wait, 20))
        assert session.messages == ()
        assert (await session.send("hi")).text == "Still here."


def _flat(turns):
    """Everything said in a request, as blocks without markers."""
    found = []
    for turn in turns:
        parts = [*_listed(turn.get("content")), *_listed(turn.get("tool_calls"))]
        found.extend(_bare(block) for block in (turn, *parts))
    return found


def _listed(value):
    return value if isinstance(value, list) else []


def _bare(block):
    return {name: value for name, value in block.items() if name != "cache_control"}


async def test_a_provider_that_says_how_long_it_is_away_is_waited_for():
    waits = Waits()
    session = Session(model=ScriptedModel([ProviderUnavailable("away", retry_after=20.0), "Back."]), sleep=waits)
    assert (await session.send("hi")).text == "Back."
    assert waits.seconds == [20.0]
