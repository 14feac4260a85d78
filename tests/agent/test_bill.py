"""The bill: every request to a model is counted once, in usage, cost and spans; and no answer waits for learning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loom import Agent, MemoryConfig, open_memory, open_model
from loom.core.message import Usage
from loom.errors import UsageError
from loom.protocols.model import ModelRequest
from loom.telemetry import Bill, Ledger, info_of, metered
from loom.testing import ScriptedModel
from loom.testing.wire import AnthropicWire, GeminiWire, Refused, ResponsesWire, Said, serve

pytestmark = pytest.mark.anyio
ASKED = Usage(input=1000, output=20, cache_read=600, cache_write=300)
LATER = MemoryConfig(learn_seconds=3600)


@pytest.fixture
def chats() -> Iterator[Any]:
    """The spans of requests so far."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())  # once in a process
    exporter = InMemorySpanExporter()
    processor = SimpleSpanProcessor(exporter)
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(processor)

    def named() -> list[ReadableSpan]:
        return [span for span in exporter.get_finished_spans() if span.name.startswith("chat ")]

    yield named
    exporter.shutdown()


def is_learning(request: ModelRequest) -> bool:
    return request.settings.output_schema is not None


class Provider:
    """Answers both kinds of requests, and turns some of each away."""

    def __init__(self, slow_down: Refused) -> None:
        self.slow_down = slow_down
        self.answered = self.refused = self.learning = 0

    def __call__(self, body: dict[str, Any]) -> Said | Refused:
        learns = "<episodes>" in json.dumps(body)
        self.learning += learns
        if (self.answered + self.refused) % 9 == 4:
            self.refused += 1
            return self.slow_down
        self.answered += 1
        fact = {"sources": ["e1"], "subject": "user", "predicate": "has_pet", "object": f"beast {self.answered}"}
        return Said.text(json.dumps({"facts": [fact]}) if learns else f"Answer {self.answered}.", usage=ASKED)


WIRES = {
    "anthropic:claude-sonnet-5": AnthropicWire,
    "openai:gpt-5.1": ResponsesWire,
    "gemini:gemini-3.6-flash": GeminiWire,
}


@pytest.mark.parametrize("name", WIRES)
async def test_a_hundred_turns_with_facts_by_a_model_are_on_the_bill(name: str, tmp_path: Path, chats: Any) -> None:
    wire = WIRES[name]()
    told = wire.refused("rate_limited")
    headers = {key: "0" if key == "retry-after" else value for key, value in told.headers.items()}
    provider = Provider(Refused(told.status, told.body.replace(b"7s", b"0s"), headers))
    with serve(wire, default=provider) as service:
        model = open_model(name, base_url=service.url, api_key="test")
        memory = {"url": f"sqlite:{tmp_path / 'm.db'}", "embedder": "hash", "config": LATER}
        spent = Usage()
        async with Agent("Be brief.", model=model, memory=memory) as agent:
            for n in range(100):
                done = await agent.run(f"Today I saw beast number {n}.", user_id=f"u{n % 5}", session_id=f"s{n % 10}")
                spent += done.usage
            assert agent.memory
            learning = agent.memory.bill
        bill = agent.bill
        await model.aclose()
        assert (len(service.requests), provider.refused > 10) == (provider.answered + provider.refused, True)
    assert bill.requests == len(service.requests) == len(chats())
    assert provider.learning > 20
    usage = Usage()
    for _ in range(provider.answered):
        usage += ASKED if name.startswith("anthropic") else _as_told(name)
    assert agent.usage == bill.usage == usage
    assert sum((span.attributes or {}).get("gen_ai.usage.input_tokens", 0) for span in chats()) == usage.input  # type: ignore[misc]
    assert bill.cost is not None
    assert agent.cost == bill.cost == pytest.approx(info_of(name).cost(usage))
    assert spent.input + learning.usage.input <= usage.input, "what a result says is of its turn alone"
    assert sum(1 for span in chats() if (span.attributes or {}).get("loom.purpose") == "learning") == provider.learning


def _as_told(name: str) -> Usage:
    """What a provider's wire can say of the usage: some write no cache at a price."""
    return ASKED if name.startswith("openai") else Usage(input=1000, output=20, cache_read=600)


# -- no answer waits ------------------------------------------------------------------------------------------


class Stuck(ScriptedModel):
    """Answers people at once, and learns when it may."""

    def __init__(self, learns: str = '{"facts": []}') -> None:
        super().__init__(lambda request: learns if is_learning(request) else "Noted.", name="anthropic:claude-sonnet-5")
        self.reads, self.may_learn = anyio.Event(), anyio.Event()

    async def complete(self, request: ModelRequest) -> Any:
        if is_learning(request):
            self.reads.set()
            await self.may_learn.wait()
        return await super().complete(request)


async def test_run_returns_while_learning_never_does() -> None:
    model = Stuck()
    async with Agent(model=model, memory="inmemory", facts="model") as agent:
        for n in range(4):
            assert (await agent.run(f"I live in town {n}.", user_id="ann")).text == "Noted."
        await model.reads.wait()
        for n in range(4):
            done = await agent.run(f"I moved to Oslo {n}.", user_id="ann", session_id="s")
            assert done.text == "Noted."
            assert [event async for event in agent.stream("Thanks!", user_id="ann")][-1].type in {
                "turn.end",
                "memory.promoted",
            }
        assert agent.memory
        assert await agent.memory.facts(user_id="ann"), "what rules find is known to the next turn"
        assert not any(is_learning(request) for request in model.requests)
        model.may_learn.set()
    assert sum(map(is_learning, model.requests)) == 2


async def test_a_model_that_makes_one_answer_at_a_time_does_not_learn_meanwhile() -> None:
    class Alone(Stuck):
        one_at_a_time = True
        learns = False

        async def complete(self, request: ModelRequest) -> Any:
            if not is_learning(request):
                assert not self.learns, "an answer had to wait"
                return await super().complete(request)
            self.learns = True
            try:
                return await super().complete(request)
            finally:
                self.learns = False

    model = Alone()
    async with Agent(model=model, memory={"backend": "inmemory", "config": LATER}, facts="model") as agent:
        for n in range(12):
            await agent.run(f"I live in town {n}.", user_id="ann")
            if n == 4:
                await model.reads.wait()
        model.may_learn.set()
    learnt = [request for request in model.requests if is_learning(request)]
    assert len(learnt) == 1
    assert learnt[0].messages[-1].text.count('"origin": "user"') == 12, "what was broken off is read later, once"


# -- what is said of it ---------------------------------------------------------------------------------------


REX = json.dumps({"facts": [{"sources": ["e1"], "subject": "user", "predicate": "has_pet", "object": "Rex"}]})


async def learnt(agent: Agent, model: Stuck) -> None:
    """Wait until the model has read what waited."""
    await model.reads.wait()
    model.may_learn.set()
    assert agent.memory
    await agent.memory.metabolize(user_id="ann")


async def test_what_was_learnt_since_the_last_result_is_in_its_notes_and_events() -> None:
    model = Stuck(REX)
    memory = {"backend": "inmemory", "config": LATER}
    async with Agent(model=model, memory=memory, facts="model") as agent:
        for n in range(4):
            done = await agent.run(f"I saw a beast {n}.", user_id="ann", session_id="s")
            assert done.notes == ()
        await learnt(agent, model)
        assert agent.memory
        other = await agent.run("I saw a beast.", user_id="bob")
        assert other.notes == (), "what was learnt of others is not told"
        done = await agent.run("Thanks!", user_id="ann", session_id="s")
        assert done.notes[0].startswith("a model read 4 remembered turns and wrote 1 fact: 1 request, ")
        event = done.events[-1]
        assert (event.type, event.turns, event.facts, event.error) == ("memory.learned", 4, 1, None)
        assert event.usage == agent.memory.usage
        assert event.seq == done.events[-2].seq + 1
        assert (await agent.run("Thanks!", user_id="ann", session_id="s")).notes == ()
        answers = sum(not is_learning(request) for request in model.requests)
        assert (agent.bill.requests, answers) == (len(model.requests), 7)
        assert agent.cost
        assert agent.memory.bill.cost
        assert agent.cost > agent.memory.bill.cost > 0


async def test_a_stream_tells_it_too() -> None:
    model = Stuck(REX)
    async with Agent(model=model, memory={"backend": "inmemory", "config": LATER}, facts="model") as agent:
        for n in range(4):
            await agent.run(f"I saw a beast {n}.", user_id="ann", session_id="s")
        await learnt(agent, model)
        events = [event async for event in agent.stream("Thanks!", user_id="ann", session_id="s")]
        assert [event.type for event in events[-2:]] == ["turn.end", "memory.learned"]


async def test_learning_that_fails_is_in_the_notes() -> None:
    model = Stuck("Sure!")
    config = MemoryConfig(learn_turns=1)
    async with Agent(model=model, memory={"backend": "inmemory", "config": config}, facts="model") as agent:
        await agent.run("I saw a beast.", user_id="ann", session_id="s")
        await learnt(agent, model)
        done = await agent.run("Thanks!", user_id="ann", session_id="s")
        assert "it failed: no JSON could be read in 1 of the model's replies" in done.notes[0]
        assert done.events[-1].error


async def test_summaries_of_another_model_are_on_the_bill(chats: Any) -> None:
    small = ScriptedModel(lambda _: "They talked about beasts. " * 3, name="anthropic:claude-haiku-4-5")
    model = ScriptedModel(lambda _: "The beast has fur. " * 100, name="anthropic:claude-sonnet-5", context_window=8000)
    async with Agent(model=model, compaction={"strategy": "summarize", "summary_model": small}) as agent:
        used = [await agent.run("Tell me of beasts. " * 20, session_id="s") for _ in range(8)]
        session = await agent.session(session_id="s")
        plan = await session.compact(dry_run=True)
        assert (plan.calls, small.requests) == (1, []), "a dry run asks nobody"
        used += [await agent.run("Tell me of beasts. " * 20, session_id="s") for _ in range(8)]
    assert len(small.requests) == 1
    assert agent.bill.requests == 1 + len(model.requests) == len(chats())
    assert sum((one.usage for one in used), Usage()) == session.usage == agent.usage
    assert agent.cost
    assert agent.cost < info_of(model.name).cost(agent.usage), "the summary is billed at the price of who wrote it"
    assert sum(one.cost or 0.0 for one in used) == pytest.approx(agent.cost)


# -- counting -------------------------------------------------------------------------------------------------


async def test_a_metered_model_is_the_model_inside() -> None:
    ledger = Ledger()
    plain = Stuck()
    plain.may_learn.set()
    model = metered(plain, ledger)
    assert model.name == plain.name
    assert model.context_window == plain.context_window
    request = ModelRequest(messages=())
    whole = await model.complete(request)
    stream = model.stream(request)
    pieces = [chunk async for chunk in stream]
    assert pieces[-1] == whole
    assert ledger.bill.requests == 2
    assert ledger.bill.usage == whole.usage + whole.usage
    left: Any = model.stream(request)
    await anext(left)
    await left.aclose()
    assert ledger.bill.requests == 3, "a stream that is left was a request, and said nothing of tokens"
    assert ledger.bill.usage == whole.usage + whole.usage


def test_bills_add_up_and_a_price_that_is_not_known_makes_the_sum_unknown() -> None:
    one, two = Bill(requests=1, usage=Usage(input=10, output=2), cost=0.5), Bill(requests=2, cost=None)
    assert one + one == Bill(requests=2, usage=Usage(input=20, output=4), cost=1.0)
    assert (one + two).cost is None
    assert str(one) == "1 request, 10 tokens in, 2 out, $0.5000"
    assert str(two) == "2 requests, 0 tokens in, 0 out"
    ledger = Ledger()
    ledger.answered(Usage(), None)
    assert ledger.bill.cost == 0.0
    ledger.answered(Usage(input=1), info_of("nobody:knows-this"))
    assert ledger.bill.cost is None


@pytest.mark.parametrize(
    ("name", "known_as"),
    [("openai_chat:gpt-5.1", "openai:gpt-5.1"), ("litellm:openai/gpt-5.1", "openai:gpt-5.1")],
)
def test_a_model_costs_the_same_by_every_name(name: str, known_as: str) -> None:
    usage = Usage(input=1_000_000)
    assert info_of(name).cost(usage) == info_of(known_as).cost(usage) != 0


# -- how it is asked for --------------------------------------------------------------------------------------


async def test_facts_need_a_memory_and_a_model() -> None:
    with pytest.raises(UsageError, match="facts='model' needs a memory"):
        Agent(model=ScriptedModel(), memory=None, facts="model")
    with pytest.raises(UsageError, match="facts='model' needs a language model, and offline:memory is none"):
        Agent(model="offline:memory", memory="inmemory", facts="model")
    with pytest.raises(UsageError, match="facts='never' is not known"):
        Agent(model=ScriptedModel(), memory="inmemory", facts="never")


@pytest.mark.parametrize("named", ["agent", "mapping", "memory"])
async def test_facts_by_rules_ask_no_model(named: str) -> None:
    model = ScriptedModel(lambda _: "Noted.", name="anthropic:claude-sonnet-5")
    place: dict[str, Any] = {"backend": "inmemory", "config": MemoryConfig(learn_turns=1)}
    memory = {
        "agent": place,
        "mapping": {**place, "facts": "rules"},
        "memory": open_memory({**place, "facts": "rules"}),
    }
    async with Agent(model=model, memory=memory[named], **({"facts": "rules"} if named == "agent" else {})) as agent:
        assert agent.memory
        await agent.run("I live in Oslo.", user_id="ann")
        await agent.memory.metabolize(user_id="ann")
        assert await agent.memory.facts(user_id="ann")
    assert len(model.requests) == 1
