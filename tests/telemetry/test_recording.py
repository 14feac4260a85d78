"""What spans and metrics say: of the cache, of memory, of agents inside agents, and of nothing where nothing is set up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from loom import Agent, ModelResponse, Session, Text, TextPart, ToolCallPart, Usage, configure_telemetry, open_memory
from loom.testing import ScriptedModel
from tests.telemetry.conftest import Recorded
from tests.telemetry.scenes import CLAUDE, a_cache_that_collapses, a_turn_with_tools, answer, operations_of_a_memory

pytestmark = pytest.mark.anyio


async def test_a_memory_belongs_to_the_turn_that_uses_it(recorded: Recorded) -> None:
    await a_turn_with_tools()
    (turn,) = recorded.spans("invoke_agent helper")
    (search,) = recorded.spans("search_memory")
    before, after = recorded.spans("create_memory")
    assert turn.context
    assert search.parent
    assert after.parent
    assert {search.parent.span_id, after.parent.span_id} == {turn.context.span_id}
    assert before.parent is None
    assert (search.attributes or {})["gen_ai.memory.record.count"] == 1


async def test_counts_of_every_operation(recorded: Recorded) -> None:
    await operations_of_a_memory()
    counts = [(s.name, (s.attributes or {}).get("gen_ai.memory.record.count")) for s in recorded.spans()]
    assert counts == [
        ("create_memory", 1),
        ("search_memory", 1),
        ("update_memory", 1),
        ("upsert_memory", 1),
        ("upsert_memory", 1),
        ("delete_memory", 1),
        ("search_memory", None),
    ]
    assert [s.status.is_ok for s in recorded.spans()] == [True] * 6 + [False]
    timed = [p for p in recorded.points() if p.name == "gen_ai.client.operation.duration"]
    assert {p.attributes["gen_ai.operation.name"] for p in timed if "error.type" not in p.attributes} == {
        "create_memory", "search_memory", "update_memory", "upsert_memory", "delete_memory",
    }  # fmt: skip
    assert [p.attributes["error.type"] for p in timed if "error.type" in p.attributes] == ["UsageError"]


async def test_an_empty_recall_counts_zero(recorded: Recorded) -> None:
    async with open_memory("inmemory", embedder="hash") as memory:
        await memory.recall("tea", user_id="nobody")
    (span,) = recorded.spans("search_memory")
    assert (span.attributes or {})["gen_ai.memory.record.count"] == 0


async def test_what_the_cache_did_is_on_the_call(recorded: Recorded) -> None:
    await a_cache_that_collapses()
    calls = [dict(span.attributes or {}) for span in recorded.spans("chat")]
    steady, moved, lost = calls[1], calls[2], calls[3]
    assert "loom.cache.broke_at" not in steady
    assert moved["loom.cache.broke_at"].startswith("system")
    assert steady["loom.cache.predicted_read_tokens"] > 3000
    assert steady["loom.section.foundation.tokens"] > steady["loom.section.convo.tokens"]
    assert calls[0]["loom.cache.prefix_digest"] != steady["loom.cache.prefix_digest"], "the prefix grew"
    assert "loom.cache.broke_at" not in lost
    compacted = [call.get("gen_ai.conversation.compacted") for call in calls]
    assert compacted == [None] * (len(calls) - 2) + [True, None]
    collapses = Counter[str]()
    for point in recorded.points():
        if point.name == "loom.cache.collapses":
            collapses[point.attributes["loom.cache.cause"]] += int(point.value)
    assert collapses == {"moved": 1, "lost": 1, "compaction": 1}


async def test_tokens_are_counted_by_cache_state(recorded: Recorded) -> None:
    replies = [answer(cache_write=3000), answer(cache_read=3000, cache_write=100)]
    session = Session(model=ScriptedModel(replies, name=CLAUDE))
    for _ in replies:
        await session.send("hi")
    counts = {point.name.removeprefix("gen_ai.client.inference.usage."): point for point in recorded.points()}
    assert counts["input_tokens"].value == 10_000
    assert counts["output_tokens"].value == 14
    assert counts["cache_read.input_tokens"].value == 3000
    assert counts["cache_write.input_tokens"].value == 3100
    assert counts["input_tokens"].attributes["gen_ai.provider.name"] == "anthropic"


async def test_the_span_of_a_call_ends_when_the_call_does(recorded: Recorded) -> None:
    """It is exported after it is known what the cache did; the turn goes on after that, too."""
    await a_turn_with_tools()
    (turn,), calls, tools = recorded.spans("invoke_agent"), recorded.spans("chat"), recorded.spans("execute_tool")
    assert calls[0].end_time
    assert all(calls[0].end_time <= (tool.start_time or 0) for tool in tools)
    assert all(call.end_time and turn.end_time and call.end_time <= turn.end_time for call in calls)


async def test_a_turn_that_nobody_reads_to_its_end_leaves_no_span_open(recorded: Recorded) -> None:
    session = Session(model=ScriptedModel(["word " * 100]))
    events: Any = aiter(session.send("hi"))
    while not isinstance(await anext(events), Text):
        pass
    await events.aclose()
    (turn,), (call,) = recorded.spans("invoke_agent"), recorded.spans("chat")
    assert not turn.status.is_ok
    assert (call.attributes or {})["error.type"] == "CancelledError"


async def test_an_import_shows_the_first_records_only(recorded: Recorded) -> None:
    configure_telemetry(content=True)
    async with open_memory("inmemory", embedder="hash") as memory:
        await memory.remember([f"Note {n}." for n in range(150)], user_id="ann")
    (span,) = recorded.spans("create_memory")
    values = dict(span.attributes or {})
    assert values["gen_ai.memory.record.count"] == 150
    shown = json.loads(str(values["gen_ai.memory.records"]))
    assert [one["content"] for one in shown] == [f"Note {n}." for n in range(100)]


async def test_an_agent_inside_a_tool_is_below_the_turn_that_calls_it(recorded: Recorded) -> None:
    inner = Agent(name="inner", model=ScriptedModel(["Done."]))
    call = ToolCallPart("a", "inner", {"task": "Work."})
    async with inner, Agent(name="outer", model=ScriptedModel([call, "Yes."]), tools=[inner.as_tool()]) as outer:
        await outer.run("Go.")
    (above,), (below,) = recorded.spans("invoke_agent outer"), recorded.spans("invoke_agent inner")
    assert above.context
    assert below.parent
    assert below.parent.span_id == above.context.span_id
    durations = {
        p.attributes["gen_ai.agent.name"] for p in recorded.points() if p.name == "gen_ai.invoke_agent.duration"
    }
    assert durations == {"inner", "outer"}


async def test_the_word_of_the_provider_and_our_own(recorded: Recorded) -> None:
    reply = ModelResponse(
        parts=(TextPart("Half of"),), stop="length", usage=Usage(), model="gemini-3", finish="MAX_TOKENS"
    )
    await Session(model=ScriptedModel([reply], name="gemini:gemini-3")).send("hi")
    (call,) = recorded.spans("chat")
    values = dict(call.attributes or {})
    assert values["gen_ai.response.finish_reasons"] == ("MAX_TOKENS",)
    assert values["loom.finish_reason"] == "length"
    assert values["gen_ai.provider.name"] == "gcp.gemini"


_WORK = """
import asyncio, sys
{before}
from loom import Agent
from loom.testing import ScriptedModel
calls = []
def watch(frame, event, arg):
    if event == "call" and "opentelemetry" in frame.f_code.co_filename:
        calls.append(frame.f_code.co_name)
async def work():
    async with Agent(model=ScriptedModel(["Hi.", "Hi."]), memory="inmemory") as agent:
        await agent.run("I live in Oslo.", user_id="ann", session_id="s")
        sys.setprofile(watch)
        await agent.run("Where do I live?", user_id="ann", session_id="s")
        sys.setprofile(None)
asyncio.run(work())
print(sorted(set(calls)), any(name.startswith("opentelemetry") for name in sys.modules))
"""


def _run(before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", _WORK.format(before=before)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_program_without_telemetry_imports_and_calls_nothing() -> None:
    assert _run() == "[] False"


def test_a_program_that_set_up_nothing_is_only_asked_whether_it_did() -> None:
    asked = _run("from opentelemetry import metrics, trace")
    assert asked == "['get_meter_provider', 'get_tracer_provider'] True"


async def test_every_call_of_a_memory_that_is_recorded_counts_its_records(recorded: Recorded) -> None:
    async with open_memory("inmemory", embedder="hash") as memory:
        (kept,) = (await memory.remember("The boat is red.", user_id="ann")).kept
        await memory.mark(kept.id, user_id="ann", importance=0.9)
        await memory.assert_fact("Anna", "lives_in", "Oslo", user_id="ann")
        await memory.assert_fact("Anna", "lives_in", "Rome", user_id="ann")
        told = await memory.instruct("Always answer in French.", user_id="ann")
        await memory.reject(told.kept[0].id, user_id="ann")
        lines = [line async for line in memory.export(user_id="ann")]
        await memory.import_(lines, user_id="bob")
        await memory.forget(user_id="bob")
    counts = [(s.name, (s.attributes or {})["gen_ai.memory.record.count"]) for s in recorded.spans()]
    assert [name for name, _ in counts] == [
        *("create_memory", "update_memory", "create_memory", "create_memory", "create_memory", "delete_memory"),
        *("create_memory", "delete_memory"),
    ]
    assert [count for _, count in counts[:5]] == [1, 1, 1, 3, 1]
    assert counts[6][1] == counts[7][1] == len(lines) - 1
