"""A turn costs what it adds: what is written, hashed and counted for it does not grow with the conversation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import pytest

from loom import Context, Message, Session
from loom.context.cache.explain import compare
from loom.context.cache.simulate import replay
from loom.core.log import CacheStatus
from loom.core.message import JSON, TextPart, ToolCallPart, ToolSpec, Usage
from loom.core.window import RequestBlocks
from loom.protocols.model import Chunk, ModelRequest, ModelResponse
from loom.testing import FakeClock, ScriptedModel
from loom.traces.request import read_request

pytestmark = pytest.mark.anyio

WRITTEN = ("loom/context/render/anthropic.py", "add"), ("loom/context/render/openai.py", "add")
HASHED = ("loom/core/window.py", "_digest"), ("loom/core/window.py", "__post_init__")
LAID_OUT = (("loom/context/render/layout.py", "_item_slots"),)
COUNTED = (("loom/text/tokens.py", "count"),)

NOT_FLAT = ("<lambda>", "scale", "_bits", "_draw")
"""Searches by halves take a step more; how far a response is off decides how often the scale is asked for; bits are drawn
for an id where a millisecond has none yet, and a turn may begin in one that has."""


class Instant:
    """Answers at once, and asks for a tool as often as it is told to; keeps the last requests."""

    context_window = 10_000_000
    reads_text = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.last: ModelRequest | None = None

    def answer(self, request: ModelRequest) -> ModelResponse:
        self.last = request
        usage = Usage(input=20_000, output=10)
        if self.calls:
            self.calls -= 1
            call = ToolCallPart(f"call-{self.calls}", "look", {"at": self.calls})
            return ModelResponse(parts=(call,), stop="tool", usage=usage, model="m")
        return ModelResponse(parts=(TextPart("All is well."),), stop="end", usage=usage, model="m")

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return self.answer(request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield self.answer(request)

    async def aclose(self) -> None:
        pass


class Look:
    """A tool that answers at once."""

    spec = ToolSpec("look", "Look at something.", {"type": "object"})

    async def run(self, input: JSON) -> str:
        return f"seen: {input}"


class Calls:
    """Counts the calls of Loom's functions while it is entered, by file and name."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Counter[tuple[str, str]]:
        sys.setprofile(self._note)
        return self.found

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        _, found, path = frame.f_code.co_filename.rpartition("/src/loom/")
        if event == "call" and found:
            self.found[f"loom/{path}", frame.f_code.co_name] += 1


async def calls_of_turn(name: str, turns: int, steps: int) -> Counter[tuple[str, str]]:
    context = Context("long")
    context.foundation.add("Be careful. " * 1000)  # more than the least that is cached
    for n in range(turns):
        context.convo.add(Message.user(f"What about number {n:03}?"))
        context.convo.add(Message.assistant(f"Number {n:03} is as it should be."))
    model = Instant(name)
    session = Session(model=model, context=context, tools=[Look()], clock=FakeClock())  # as many ids a millisecond
    for n in range(5):  # what is measured goes on from a few requests before
        await session.send(f"Look again, {n}.")
    model.calls = steps
    with Calls() as found:
        await session.send("And now?")
    return found


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("anthropic:claude-sonnet-4-5", 10),
        ("openai:gpt-5.6", 40),  # which marks 24 earlier ends again, once there are so many
        ("openai:gpt-4o", 10),
        ("deepseek:deepseek-chat", 10),
    ],
)
async def test_turn_600_writes_hashes_and_counts_what_turn_10_does(name, turns, steps):
    early, late = await calls_of_turn(name, turns, steps), await calls_of_turn(name, 600, steps)
    for found in (early, late):
        assert all(any(found[one] for one in what) for what in (WRITTEN, HASHED, LAID_OUT, COUNTED))
        for what in [what for what in found if what[1] in NOT_FLAT]:
            del found[what]
    assert late == early, "every function of Loom is called as often as it was"


async def test_a_step_costs_the_same_however_many_came_before_in_its_turn():
    one, two, many = [await calls_of_turn("anthropic:claude-sonnet-4-5", 10, steps) for steps in (20, 21, 121)]
    for what in (*WRITTEN, *HASHED, *LAID_OUT, *COUNTED):
        assert many[what] - two[what] == 100 * (two[what] - one[what]), what


async def test_the_neutral_form_is_made_where_it_is_asked_for():
    model = Instant("anthropic:claude-sonnet-4-5")
    session = Session(model=model, instructions="Be brief.")
    with Calls() as found:
        await session.send("Hello.")
    assert not found["loom/context/render/request.py", "neutral"]
    assert model.last is not None
    assert (model.last.system, model.last.messages) == (("Be brief.",), (Message.user("Hello."),))
    assert model.last == type(model.last)(
        messages=model.last.messages,
        system=model.last.system,
        tools=model.last.tools,
        settings=model.last.settings,
        rendered=model.last.rendered,
    )


class Reading(ScriptedModel):
    """Reads each request back as its cache sees it, with the counts of that moment."""

    session: Session

    def __init__(self, script: Any, name: str) -> None:
        super().__init__(script, name=name)
        self.prompts: list[RequestBlocks] = []

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        assert request.rendered is not None
        caller = self.session._parts.model
        provider, model = caller.target.provider, caller.target.model
        body = dict(request.rendered.body)
        self.prompts.append(read_request(body, provider=provider, model=model, counter=caller.meter.counter))
        return super().stream(request)


@pytest.mark.parametrize(
    "name", ["anthropic:claude-sonnet-4-5", "openai:gpt-5.6", "openai:gpt-4o", "deepseek:deepseek-chat"]
)
async def test_the_cache_status_is_that_of_the_bodies_sent(name):
    """With tools, a compaction, its undo, another instruction, and counts that are learned from every response."""
    call = ToolCallPart("c", "look", {"at": 1})
    answers = [f"Answer {n}. " * 40 for n in range(8)]
    model = Reading([*answers[:3], call, *answers[3:5], "A summary.", *answers[5:]], name)
    session = model.session = Session(model=model, tools=[Look()], instructions="Be brief. " * 300)
    events: list[CacheStatus] = []
    session.subscribe(lambda event: events.append(event) if isinstance(event, CacheStatus) else None)
    for n in range(4):
        await session.send(f"Question {n}. " * 30)
    await session.compact()
    await session.send("And now? " * 30)
    await session.undo()
    await session.send("And then? " * 30)
    session.context.foundation.add("Be kind, too.")
    await session.send("At last? " * 30)
    info = session._parts.model.target.info
    prompts = model.prompts[-len(events) :]
    assert len(prompts) == len(events) >= 8
    for n, event in enumerate(events):
        step = replay(prompts[max(0, n - 4) : n + 1], info.cache).steps[-1]
        assert (event.predicted_read, event.predicted_write) == (step.read, step.write)
        found = compare(prompts[n - 1], prompts[n], info) if n else None
        assert event.broke_at == (found.path if found and found.moved else None)
    assert any(event.broke_at for event in events)
    assert any(event.predicted_read for event in events)
