"""Every public call that takes text, as a function of the text: prepared first, then made."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from loom import (
    Agent,
    CompactionConfig,
    Context,
    Memory,
    Message,
    PromptBuilder,
    Session,
    SessionConfig,
    Skill,
    SkillMatcher,
    explain,
    plan,
    simulate,
    tool,
)
from loom.core.checks import MAX_BLOCK, MAX_INSTRUCTION, MAX_NAME, MAX_OBJECT, MAX_PREDICATE, MAX_QUERY, MAX_TEXT
from loom.core.codec import record_to_dict
from loom.core.message import TextPart, ToolCallPart
from loom.core.record import Episode, Provenance
from loom.knowledge.graph import GraphKnowledgeBase
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.memory._facts.instructions import contradict, topic_of
from loom.memory._recall.rank import questions_in
from loom.memory._write.extract_llm import LlmExtractor, read_items
from loom.protocols.knowledge_base import Document
from loom.protocols.token_counter import TokenCounter
from loom.testing import FakeClock, ScriptedModel
from loom.text.fence import fenced
from loom.text.time_words import time_hint
from loom.text.tokens import EstimateCounter
from loom.text.words import tokens

Call = Callable[[], Awaitable[Any]]
Prepare = Callable[[str], Awaitable[Call]]
"""Makes everything ready for a call with a text; what it returns is measured."""

NOW = FakeClock().now()
USER: dict[str, Any] = {"user_id": "ann"}


class Lengths:
    """Counts by length alone: what a model counts for itself is not measured."""

    name, error = "lengths", 0.0

    def count(self, text: str) -> int:
        return len(text) // 4

    def count_part(self, part: Any) -> int:
        return len(getattr(part, "text", "")) // 4


COUNTER: TokenCounter = Lengths()


def model(*replies: Any) -> ScriptedModel:
    said = iter(replies)
    return ScriptedModel(lambda _: next(said, "All right."), context_window=10**9, counter=COUNTER)


async def filled() -> Memory:
    """A memory that holds a little."""
    memory = Memory.open("inmemory")
    for text in ("I live in Oslo.", "The boat leaves at nine.", "My sister Liis likes tea."):
        await memory.remember(text, session_id="s", speaker="Bob", **USER)
    await memory.metabolize(**USER)
    return memory


def now(work: Callable[[str], Any]) -> Prepare:
    """A call that does not wait for anything."""

    async def prepare(text: str) -> Call:
        async def call() -> Any:
            return work(text)

        return call

    return prepare


def of_memory(work: Callable[[Memory, str], Awaitable[Any]]) -> Prepare:
    async def prepare(text: str) -> Call:
        memory = await filled()
        return lambda: work(memory, text)

    return prepare


async def remember_and_digest(memory: Memory, text: str) -> None:
    await memory.remember([text, text], session_id="s", **USER)
    await memory.metabolize(**USER)


async def remembered(text: str) -> Call:
    """Everything that is done with a long text that is there already."""
    memory = await filled()
    kept = (await memory.remember(text, session_id="s", **USER)).kept

    async def call() -> None:
        await memory.recall("Which boat leaves at nine?", **USER)
        await memory.recall("The boat leaves at ten.", budget=500, **USER)
        await memory.timeline(about="boat", **USER)
        await memory.profile(**USER)
        if kept:
            str(await memory.explain(kept[0].id, **USER))
            await memory.forget(kept[0].id, **USER)

    return call


def imported(size: int) -> Prepare:
    """Import a text in records of so many characters."""

    async def prepare(text: str) -> Call:
        lines = [json.dumps({"loom": "memory", "format": 1})]
        for start in range(0, len(text), size):
            said = f"{text[start : start + size]}."
            episode = Episode(
                id=f"e{start:09}", text=said, at=NOW, recorded_at=NOW, provenance=Provenance("user"), session_id="s"
            )
            lines.append(json.dumps(record_to_dict(episode)))
        return lambda: Memory.open("inmemory").import_(lines, user_id="ben")

    return prepare


async def extracted(text: str) -> Call:
    memory = Memory.open("inmemory")
    kept = (await memory.remember(text, **USER)).kept
    reply = json.dumps({"facts": [{"sources": ["e1"], "subject": "user", "predicate": "says", "object": text[:500]}]})
    return lambda: LlmExtractor(model(reply + text)).extract([record for record in kept if isinstance(record, Episode)])


def sent(**options: Any) -> Prepare:
    async def prepare(text: str) -> Call:
        session = Session(model=model(), memory=await filled(), **USER, **options)
        await session.send("Hello.")

        async def call() -> None:
            await session.send(text)
            await session.send("Thanks.")

        return call

    return prepare


async def answered(text: str) -> Call:
    session = Session(model=model(text), memory=await filled(), **USER)
    return lambda: _awaited(session.send("Hello."))


async def with_tool(text: str) -> Call:
    @tool
    async def echo(value: str) -> str:
        """Say it again."""
        return value * 2

    config = SessionConfig(tool_output_limit=5_000)
    said = model([ToolCallPart("c1", "echo", {"value": text})], "Done.")
    session = Session(model=said, tools=[echo], config=config, **USER)
    return lambda: _awaited(session.send("Hello."))


async def talked(text: str) -> Session:
    config = SessionConfig(
        compaction=CompactionConfig.of({"strategy": "snapshot", "retain": {"type": "messages", "count": 2}})
    )
    session = Session(model=model(), config=config, **USER)
    for start in range(0, len(text), max(1, len(text) // 8)):
        await session.send(f"We decided: {text[start : start + len(text) // 8]}.")

    return session


async def compacted(text: str) -> Call:
    session = await talked(text)
    return lambda: session.compact()  # noqa: PLW0108  (it is typed for one of two results)


async def looked_at(text: str) -> Call:
    session = await talked(text)
    await session.compact()

    async def call() -> None:
        str(session.explain())
        session.coverage()

    return call


async def ran(text: str) -> Call:
    agent = Agent(f"Be kind. {text[:1000]}", model=model(), memory=await filled(), memory_tools=True)
    return lambda: agent.run(text, user_id="ann")


async def ran_offline(text: str) -> Call:
    agent = Agent("Be kind.", memory=await filled())
    return lambda: agent.run(text, user_id="ann")


def rendered(text: str) -> None:
    context = Context("all")
    context.foundation.add(f"Rules. {text}")
    context.convo.add(Message.user(f"Hi. {text}"))
    context.convo.add(Message("assistant", (TextPart(f"Ho. {text}"),)))
    context.attention.add(f"Mind. {text}")
    context.to_messages(clear_volatile=False)
    context.compile(clear_volatile=False)
    context.render()


def prompted(text: str) -> None:
    builder = PromptBuilder().add("identity", f"You are. {text}").add("context", f"Now. {text}", label="Now")
    str(builder.build())


def request_of(text: str, number: int) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "system": [{"type": "text", "text": f"Be kind. {text}", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "echo", "description": f"Echo. {text[:1000]}", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": f"{number}. {text}"}]}],
    }


def recorded(text: str) -> None:
    requests = [request_of(text, number) for number in range(3)]
    plan(requests[-1], previous=requests[:-1])
    simulate(requests)
    explain(requests[0], requests[1])


def skills(text: str) -> None:
    skill = Skill(
        name="tidy", description="Tidies a room up for guests.", content=f"Tidy. {text[:100_000]}", triggers=("tidy",)
    )
    SkillMatcher([skill]).match(text)


def of_base(make: Callable[[], Any]) -> Prepare:
    async def prepare(text: str) -> Call:
        base = make()

        async def call() -> None:
            await base.add(Document(id="d", text=f"Anna knows Bob. {text}"))
            await base.search(f"Whom does Anna know? {text[:1900]}")
            await base.remove("d")

        return call

    return prepare


async def _awaited(sending: Any) -> Any:
    return await sending


CALLS: dict[str, Prepare] = {
    "Memory.remember": of_memory(lambda memory, text: memory.remember(text, session_id="s", **USER)),
    "Memory.remember with names": of_memory(
        lambda memory, text: memory.remember("Hi.", speaker=text, attributes={text: text}, **USER)
    ),
    "Memory.remember and metabolize": of_memory(remember_and_digest),
    "Memory on a long text": remembered,
    "Memory.recall": of_memory(lambda memory, text: memory.recall(text, **USER)),
    "Memory.recall of a statement": of_memory(lambda memory, text: memory.recall(text[:1900] + ".", **USER)),
    "Memory.instruct": of_memory(lambda memory, text: memory.instruct(text, **USER)),
    "Memory.state an instruction": of_memory(
        lambda memory, text: memory.assert_fact("user", "instruction", text, **USER)
    ),
    "Memory.state a subject": of_memory(lambda memory, text: memory.assert_fact(text, "likes", "tea", **USER)),
    "Memory.state a predicate": of_memory(lambda memory, text: memory.assert_fact("user", text, "tea", **USER)),
    "Memory.facts": of_memory(lambda memory, text: memory.facts(subject=text, predicate=text, **USER)),
    "Memory.set_block": of_memory(lambda memory, text: memory.set_block("notes", text, **USER)),
    "Memory.set_block by name": of_memory(lambda memory, text: memory.set_block(text, "notes", **USER)),
    "Memory.timeline": of_memory(lambda memory, text: memory.timeline(about=text, **USER)),
    "Memory.explain": of_memory(lambda memory, text: memory.explain(text, **USER)),
    "Memory.import_": imported(10_000_000),
    "Memory.import_ of lines": imported(200),
    "LlmExtractor.extract": extracted,
    "Session.send": sent(),
    "Session.send with a skill": sent(skills=[Skill(name="tidy", description="Tidies.", content="Tidy.")]),
    "Session.send an answer": answered,
    "Session.send with a tool": with_tool,
    "Session.compact": compacted,
    "Session.explain and coverage": looked_at,
    "Agent.run": ran,
    "Agent.run offline": ran_offline,
    "Context": now(rendered),
    "PromptBuilder": now(prompted),
    "plan, simulate, explain": now(recorded),
    "SkillMatcher": now(skills),
    "InMemoryKnowledgeBase": of_base(InMemoryKnowledgeBase),
    "GraphKnowledgeBase": of_base(GraphKnowledgeBase),
    "fenced": now(lambda text: fenced("memory", text)),
    "tokens": now(tokens),
    "EstimateCounter": now(lambda text: EstimateCounter().count(text)),
    "topic_of": now(topic_of),
    "contradict": now(lambda text: contradict(f"always {text}", f"never {text}")),
    "questions_in": now(questions_in),
    "time_hint": now(lambda text: time_hint(text, NOW)),
    "read_items": now(read_items),
}

CAPS: dict[str, int] = {
    "Memory.remember": MAX_TEXT,
    "Memory.remember with names": MAX_NAME,
    "Memory.remember and metabolize": MAX_TEXT,
    "Memory on a long text": MAX_TEXT,
    "Memory.recall": MAX_TEXT,
    "Memory.recall of a statement": MAX_QUERY,
    "Memory.instruct": MAX_INSTRUCTION,
    "Memory.state an instruction": MAX_OBJECT,
    "Memory.state a subject": MAX_NAME,
    "Memory.state a predicate": MAX_PREDICATE,
    "Memory.facts": MAX_NAME,
    "Memory.set_block": MAX_BLOCK,
    "Memory.set_block by name": MAX_NAME,
    "Memory.timeline": MAX_QUERY,
    "Memory.explain": MAX_NAME,
    "Memory.import_": MAX_TEXT - 10,
    "LlmExtractor.extract": MAX_TEXT,
    "Session.send": MAX_TEXT,
    "Session.send with a skill": MAX_TEXT,
    "Session.send an answer": MAX_TEXT,
    "Session.send with a tool": MAX_TEXT,
    "Session.compact": MAX_TEXT,
    "Agent.run": MAX_TEXT,
    "Agent.run offline": MAX_TEXT,
    "InMemoryKnowledgeBase": 3 * MAX_TEXT,
    "GraphKnowledgeBase": MAX_TEXT,
}
"""Characters of the longest text that each call takes; documents may be longer, and take long to prepare here."""
