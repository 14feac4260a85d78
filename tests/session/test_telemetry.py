"""The events of a session as OpenTelemetry spans, under the GenAI names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loom import Session, ToolSpec
from loom.core.message import JSON, ToolCallPart
from loom.errors import ProviderError
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Secret:
    """A tool that knows something private."""

    spec = ToolSpec("secret", "Knows.", {"type": "object"})

    async def run(self, input: JSON) -> str:
        if input.get("fail"):
            raise ValueError("classified")
        return "the vault code is 4711"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())  # once in a process
    exporter = InMemorySpanExporter()
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    exporter.shutdown()


def named(spans: InMemorySpanExporter, start: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name.startswith(start)]


async def test_a_turn_its_calls_and_its_tools_are_spans(spans: InMemorySpanExporter) -> None:
    model = ScriptedModel(
        [(ToolCallPart("a", "secret", {}), ToolCallPart("b", "secret", {"fail": True})), "It is 4711."],
        name="anthropic:claude-sonnet-4-5",
    )
    session = Session(model=model, tools=[Secret()], session_id="s1")
    reply = await session.send("What is the vault code?")
    (turn,) = named(spans, "invoke_agent")
    chats, tools = named(spans, "chat"), named(spans, "execute_tool")
    assert (len(chats), len(tools)) == (2, 2)
    for span in (*chats, *tools):
        assert span.parent
        assert turn.context
        assert span.parent.span_id == turn.context.span_id
    attributes = dict(chats[0].attributes or {})
    assert chats[0].name == "chat claude-sonnet-4-5"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "anthropic"
    assert attributes["gen_ai.conversation.id"] == "s1"
    assert attributes["gen_ai.response.finish_reasons"] == ("tool",)
    assert sum((s.attributes or {})["gen_ai.usage.input_tokens"] for s in chats) == reply.usage.input  # type: ignore[misc]
    assert [(s.attributes or {})["gen_ai.tool.call.id"] for s in tools] == ["a", "b"]
    assert [s.status.is_ok for s in tools] == [True, False]
    assert "4711" not in " ".join(s.to_json() for s in spans.get_finished_spans()), "what was said stays out of spans"


async def test_a_failure_and_a_compaction_are_marked(spans: InMemorySpanExporter) -> None:
    session = Session(model=ScriptedModel(lambda r: "ok " * 40), config={"compaction": {"strategy": "truncate"}})
    for n in range(10):
        await session.send(f"{n} " + "and so on " * 40)
    await session.compact()
    (compaction,) = named(spans, "loom.compaction")
    counts = dict(compaction.attributes or {})
    assert counts["loom.compaction.tokens_after"] < counts["loom.compaction.tokens_before"]  # type: ignore[operator]
    failing = Session(model=ScriptedModel([ProviderError("no")]))
    spans.clear()
    with pytest.raises(ProviderError):
        await failing.send("hi")
    assert [s.status.is_ok for s in spans.get_finished_spans()] == [False, False]


async def test_a_turn_that_was_cancelled_leaves_no_span_open(spans: InMemorySpanExporter) -> None:
    class Stops(Secret):
        async def run(self, input: JSON) -> str:
            scope.cancel()
            await anyio.sleep_forever()
            return ""

    session = Session(model=ScriptedModel([ToolCallPart("a", "secret", {})]), tools=[Stops()])
    with anyio.CancelScope() as scope:
        await session.send("What is the vault code?")
    assert len(named(spans, "invoke_agent")) == 1
    assert len(named(spans, "execute_tool")) == 1
