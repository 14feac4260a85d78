"""Compaction through a session: pressure, order, undo, pins, overflow, and what a dry run says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loom.core.log import CompactionEnd, CompactionStart, ContextPressure, Event
from loom.core.message import JSON, ToolCallPart, ToolSpec
from loom.errors import CannotCompact, ContextOverflow, NotFound, RateLimited
from loom.protocols.model import ModelRequest
from loom.session.session import Session
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio

STRATEGIES = ("summarize", "truncate", "sliding_window", "hierarchical", "snapshot")
LONG = "The quick brown fox jumps over the lazy dog. " * 20


class Read:
    """A tool with a large answer."""

    spec = ToolSpec("read", "Reads a file.", {"type": "object"})

    async def run(self, input: JSON) -> str:
        return f"{input['path']}: {LONG}"


def answers(request: ModelRequest) -> str:
    return "A summary: nothing was decided." if asks_for_a_summary(request) else f"ok {LONG[:200]}"


def asks_for_a_summary(request: ModelRequest) -> bool:
    return "The conversation pauses here" in request.messages[-1].text


def session_of(strategy: str, *, window: int = 4_000, **options: Any) -> tuple[Session, ScriptedModel]:
    model = ScriptedModel(answers, context_window=window)
    config = {"compaction": {"strategy": strategy}}
    return Session(model=model, config=config, instructions="Be kind.", tools=[Read()], **options), model


def rendered(session: Session) -> str:
    request = session._parts.model.request(session.context.compile(clear_volatile=False))
    assert request.rendered is not None
    return json.dumps(request.rendered.body, sort_keys=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_long_conversation_never_dies_at_the_window(strategy: str) -> None:
    session, model = session_of(strategy)
    events: list[Event] = []
    session.subscribe(events.append)
    for n in range(40):
        await session.send(f"question {n}: {LONG[:400]}")
    done = [e for e in events if isinstance(e, CompactionEnd) and e.undo]
    assert len(done) >= 2
    assert all(e.tokens_after < e.tokens_before for e in done)
    assert len(session.log) == 80, "every original is there"
    assert len(model.requests) >= 40


async def test_pressure_comes_before_compaction_start_before_work_and_usage_falls_in_the_same_turn() -> None:
    session, _ = session_of("truncate")
    for n in range(30):
        events = [event async for event in session.send(f"question {n}: {LONG[:400]}")]
        if any(isinstance(e, CompactionStart) for e in events):
            break
    else:
        pytest.fail("it never compacted")
    kinds = [e.type for e in events if e.type != "text"]
    start, end = kinds.index("compaction.start"), kinds.index("compaction.end")
    assert start < end < kinds.index("cache.status") < kinds.index("turn.end")
    before = next(e for e in events if isinstance(e, CompactionStart)).tokens
    finished = next(e for e in events if isinstance(e, CompactionEnd))
    assert finished.tokens_before == before
    assert finished.tokens_after < before
    assert abs(session.explain().tokens - finished.tokens_after) < 800, "measured right after: the history did shrink"
    assert [e.seq for e in events] == list(range(events[0].seq, events[0].seq + len(events)))


async def test_pressure_is_told_before_the_trigger_is_reached() -> None:
    session, _ = session_of("truncate")
    heard: list[Event] = []
    session.subscribe(heard.append)
    while not any(isinstance(e, CompactionStart) for e in heard):
        await session.send(f"question: {LONG[:400]}")
    first = next(e for e in heard if isinstance(e, ContextPressure))
    start = next(e for e in heard if isinstance(e, CompactionStart))
    assert first.seq < start.seq
    assert first.tokens < first.trigger <= start.tokens


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_undo_is_byte_identical_and_expand_shows_what_is_behind(strategy: str) -> None:
    session, _ = session_of(strategy, window=100_000)
    for n in range(8):
        await session.send(f"edit src/app_{n}.py and set the limit to {n}17: {LONG[:300]}")
    before, shown = rendered(session), session.messages
    compaction = await session.compact()
    assert rendered(session) != before
    assert compaction.tokens_after < compaction.tokens_before
    originals = [m.message for m in session.expand(compaction.id)]
    assert originals
    assert all(m in shown for m in originals)
    told = " ".join(m.text for m in session.messages) + " ".join(m.text for m in originals)
    assert all(f"src/app_{n}.py" in told and f"{n}17" in told for n in range(8))
    assert session.coverage().paths.contained or session.coverage().paths.missing
    await session.undo(compaction.id)
    assert rendered(session) == before
    assert session.messages == shown
    with pytest.raises(NotFound):
        await session.undo(compaction.id)


async def test_a_compacted_session_restores_as_it_was_shown() -> None:
    store = MemoryCheckpointStore()
    session, model = session_of("truncate", window=100_000, checkpoints=store, session_id="s")
    for n in range(8):
        await session.send(f"question {n}: {LONG[:300]}")
    session.pin(session.explain().messages[0].id)
    handle = (await session.compact()).id
    other = Session(model=model, checkpoints=store, session_id="s", instructions="Be kind.", tools=[Read()])
    await other.restore()
    assert other.messages == session.messages
    assert rendered(other) == rendered(session)
    await other.undo(handle)
    assert len(other.messages) == 16
    assert other.explain().messages[0].pinned


async def test_pins_survive_and_can_be_let_go() -> None:
    session, _ = session_of("truncate", window=100_000)
    for n in range(8):
        await session.send(f"question {n}: {LONG[:300]}")
    pinned = session.explain().messages[2]
    session.pin(pinned.id)
    await session.compact()
    assert any(m.text.startswith("question 1:") for m in session.messages)
    session.unpin(pinned.id)
    await session.compact()
    assert not any(m.text.startswith("question 1:") for m in session.messages)
    with pytest.raises(NotFound):
        session.pin("nothing")


async def test_one_round_with_500_calls_compacts_like_any_other() -> None:
    asked = 0

    def reply(request: ModelRequest) -> Any:
        nonlocal asked
        if asks_for_a_summary(request):
            return "Summary: many files were read."
        asked += 1
        return ToolCallPart(f"c{asked}", "read", {"path": f"f{asked}"}) if asked < 500 else "All read."

    model = ScriptedModel(reply, context_window=20_000)
    session = Session(model=model, tools=[Read()], config={"max_steps": 600})
    ended: list[CompactionEnd] = []
    session.subscribe(lambda e: ended.append(e) if isinstance(e, CompactionEnd) else None)
    assert (await session.send("read everything, please")).text == "All read."
    assert len([e for e in ended if e.undo]) >= 3
    assert session.messages[0].text == "read everything, please"
    assert len(session.log) == 1 + 2 * 499 + 1


async def test_a_refused_request_is_made_smaller_once() -> None:
    session, model = session_of("truncate", window=100_000)
    for n in range(12):
        await session.send(f"question {n}: {LONG[:400]}")
    refusals = 1

    def refuse(request: ModelRequest) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise ContextOverflow("prompt is too long", limit=2_000, size=3_000)
        return "fits"

    model._script = refuse
    sizes = len(model.requests[-1].messages)
    events = [event async for event in session.send("and now?")]
    assert [e.type for e in events if e.type in {"recovery", "compaction.start", "compaction.end"}] == [
        "recovery",
        "compaction.start",
        "compaction.end",
    ]
    assert len(model.requests[-1].messages) < sizes
    assert session.messages[-1].text == "fits"
    refusals = 2
    with pytest.raises(ContextOverflow):
        await session.send("again?")
    assert session.messages[-1].text == "fits"


async def test_a_failing_summariser_falls_back_and_nothing_is_lost() -> None:
    def reply(request: ModelRequest) -> Any:
        if asks_for_a_summary(request):
            raise RateLimited("not now")
        return "ok"

    model = ScriptedModel(reply, context_window=4_000)
    session = Session(model=model)
    ended: list[CompactionEnd] = []
    session.subscribe(lambda e: ended.append(e) if isinstance(e, CompactionEnd) else None)
    for n in range(60):
        await session.send(f"question {n}: {LONG[:400]}")
    assert {e.strategy for e in ended if e.undo} == {"truncate"}
    assert len(session.log) == 120


async def test_the_summary_request_is_the_parents_prefix_with_one_instruction() -> None:
    model = ScriptedModel(answers, name="anthropic:claude-opus-5", context_window=100_000)
    session = Session(model=model, instructions="Be kind.", tools=[Read()])
    for n in range(8):
        await session.send(f"question {n}: {LONG[:300]}")
    parent = model.requests[-1].rendered
    await session.compact()
    asked = model.requests[-1].rendered
    assert parent
    assert asked
    assert asked.body["system"] == parent.body["system"]
    assert asked.body["tools"] == parent.body["tools"]
    old, new = _blocks(parent.body), _blocks(asked.body)
    assert new[:-1] == old[: len(new) - 1]
    assert len(new) > 2


def _blocks(body: dict[str, JSON]) -> list[str]:
    return [block["text"] for message in body["messages"] for block in message["content"]]


async def test_a_dry_run_says_what_would_happen_and_changes_nothing() -> None:
    session, model = session_of("summarize", window=100_000)
    for n in range(8):
        await session.send(f"question {n}: {LONG[:300]}")
    before, asked = rendered(session), len(model.requests)
    plan = await session.compact(dry_run=True)
    assert (rendered(session), len(model.requests)) == (before, asked)
    assert plan.calls == 1
    assert plan.call_tokens > 0
    assert 0 < plan.tokens_after < plan.tokens_before
    assert len(plan.goes) + len(plan.stays) == 16
    assert "would go" in str(plan)
    done = await session.compact()
    assert done.tokens_after <= plan.tokens_after


async def test_a_history_that_cannot_shrink_is_left_alone_and_does_not_loop() -> None:
    session, model = session_of("truncate", window=3_000)
    with pytest.raises((CannotCompact, ContextOverflow)):
        await session.send("x " * 5_000)
    assert session.messages == ()
    assert await session.compact() is None, "nothing is there to compact"
    assert len(model.requests) <= 2


async def test_a_giant_request_near_the_window_compacts_once_not_every_step() -> None:
    session, _ = session_of("truncate", window=4_000)
    tries: list[CompactionStart] = []
    session.subscribe(lambda e: tries.append(e) if isinstance(e, CompactionStart) else None)
    await session.send("word " * 2_700)
    for _ in range(3):
        await session.send("hi")
    assert len(tries) <= 3
