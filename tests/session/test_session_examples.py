"""Compaction, checkpoints and prompt assembly in one session, as in the examples that people come with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from loom import (
    Context,
    FileCheckpointStore,
    MemoryCheckpointStore,
    PromptBuilder,
    Session,
    SessionState,
    ToolSpec,
    create_context_fragment,
    create_identity_fragment,
    create_memory_fragment,
    create_safety_fragment,
    create_skills_fragment,
    create_tools_fragment,
)
from loom.context.skills import Skill
from loom.core.message import JSON
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio

CONFIG = {
    "compaction": {
        "trigger": {"type": "fraction", "threshold": 0.80},
        "retain": {"type": "messages", "count": 6},
        "strategy": "summarize",
    },
}


class Fetch:
    """A tool of the example."""

    spec = ToolSpec(
        "fetch",
        "Fetches a page.",
        {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
    )

    async def run(self, input: JSON) -> str:
        return "a page"


async def test_the_compaction_example() -> None:
    for strategy in ("summarize", "truncate", "sliding_window", "hierarchical", "snapshot"):
        config = {"compaction": {**CONFIG["compaction"], "strategy": strategy}}
        model = ScriptedModel(lambda _: "Done; nothing is open.", context_window=3_000)
        session = Session(config=config, provider=model)
        seen: list[str] = []
        session.subscribe(lambda event, seen=seen: seen.append(event.type))
        for n in range(12):
            await session.send(f"Question {n}. " + "Here is a long story about it. " * 40)
        for kind in ("context.pressure", "compaction.start", "compaction.end"):
            assert kind in seen, f"{strategy} never told {kind}"
        assert seen.index("context.pressure") < seen.index("compaction.start") < seen.index("compaction.end")


async def test_the_checkpoint_example(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path / "checkpoints")
    model = ScriptedModel(["one", "two"])
    session = Session(config=CONFIG, provider=model, tools=[Fetch()], checkpoint=store, session_id="chat")
    seen: list[str] = []
    session.subscribe(lambda event: seen.append(event.type))
    await session.send("first")
    assert "checkpoint.saved" in seen
    checkpoint = await store.load(session.scope)
    assert checkpoint is not None
    other = Session(config=CONFIG, provider=model, tools=[Fetch()], checkpoint=store, session_id="chat")
    await other.restore(checkpoint)  # no shape to translate
    assert (other.turn, other.usage, other.messages) == (session.turn, session.usage, session.messages)
    assert (await other.send("second")).text == "two"
    nobody = Session(config=CONFIG, provider=model, checkpoint=MemoryCheckpointStore(), session_id="never saved")
    assert await MemoryCheckpointStore().load(nobody.scope) is None


async def test_the_whole_document_in_python(tmp_path: Path) -> None:
    """The document from top to bottom: names in snake case, `await` where something is read or written."""
    config = {
        "compaction": {
            "trigger": {"type": "fraction", "threshold": 0.80},
            "retain": {"type": "messages", "count": 6},
            "strategy": "summarize",
        },
    }
    provider = ScriptedModel(lambda _: "Done; nothing is open.", name="anthropic:claude-sonnet-4-5")
    tools = [Fetch()]

    soul_md = "You are Scout, a focused research assistant."
    agents_md = "Use tabs."
    skills = [Skill(name="commit", description="Writes a commit message.", content="Use the imperative.")]
    prompt = (
        PromptBuilder()
        .add_fragment(create_identity_fragment(soul_md))
        .add_fragment(create_tools_fragment(tools))
        .add_fragment(create_safety_fragment())
        .add_fragment(create_memory_fragment(agents_md))
        .add_fragment(create_context_fragment({"cwd": str(tmp_path), "gitBranch": "main"}))
        .add_fragment(create_skills_fragment(skills))
        .build()
    )
    assert "- fetch(url: string): Fetches a page." in prompt.text

    store = FileCheckpointStore(tmp_path / "checkpoints")
    session = Session(config=config, provider=provider, tools=tools, skills=skills, prompt=prompt, checkpoint=store)
    seen: list[str] = []
    session.subscribe(lambda event: seen.append(event.type))
    for n in range(8):
        await session.send(f"Question {n}. " + "Here is a long story about it. " * 40)
    await session.send("/commit please")
    assert await session.compact() is not None
    assert {"checkpoint.saved", "compaction.start", "compaction.end"} <= set(seen)
    assert "Use the imperative." in str(session.messages)

    session_id = session.id
    cp = await store.load(session_id)
    assert await store.load("never saved") is None
    assert [point.session_id for point in await store.list()] == [session_id]
    assert cp is not None
    restored = Session(config=config, provider=provider, tools=tools, skills=skills, prompt=prompt, checkpoint=store)
    await restored.restore(
        SessionState(
            session_id=cp.session_id,
            messages=cp.messages,
            turn_count=cp.turn_index,
            total_usage={**asdict(cp.usage), "model": provider.name},
            created_at=cp.timestamp,
            updated_at=cp.timestamp,
        )
    )
    assert (restored.messages, restored.turn, restored.usage) == (session.messages, 9, session.usage)
    assert (await restored.send("go on")).turn == 10
    assert await store.delete(session_id)
    assert [point.session_id for point in await store.list()] == [restored.id]


async def test_the_prompt_example(tmp_path: Path) -> None:
    agents_md = "Use tabs."
    tools = [Fetch.spec]
    prompt = (
        PromptBuilder()
        .add_fragment(create_identity_fragment("You are Scout, a focused research assistant."))
        .add_fragment(create_tools_fragment(tools))
        .add_fragment(create_safety_fragment())
        .add_fragment(create_memory_fragment(agents_md))
        .add_fragment(create_context_fragment({"cwd": str(tmp_path)}))
        .build()
    )
    for said in ("You are Scout", "fetch", "Use tabs.", str(tmp_path)):
        assert said in prompt.text
    context = Context("scout")
    prompt.apply(context)
    model = ScriptedModel(["ok", "ok"], name="anthropic:claude-sonnet-4-5")
    session = Session(model=model, context=context, tools=[Fetch()])
    await session.send("hi")
    first = model.requests[0].rendered
    assert first
    system = str(first.body["system"])
    assert "You are Scout" in system
    assert str(tmp_path) not in system, "a fact that changes never stands in the cached prefix"
    assert str(tmp_path) in str(first.body["messages"])


async def test_the_skills_example() -> None:
    skill = Skill(name="commit", description="Writes a commit message.", content="Use the imperative.")
    context = Context("scout")
    PromptBuilder().add_fragment(create_skills_fragment([skill])).build().apply(context)
    model = ScriptedModel(["done"])
    await Session(model=model, context=context, skills=[skill]).send("/commit please")
    assert "Writes a commit message." in "".join(model.requests[0].system)
    assert "Use the imperative." in model.requests[0].messages[0].text
