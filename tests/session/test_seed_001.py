"""Seed 001 in Python spelling: compaction, checkpoints and prompt assembly in one session."""

from __future__ import annotations

from pathlib import Path

import pytest

from loom import (
    Context,
    FileCheckpointStore,
    MemoryCheckpointStore,
    PromptBuilder,
    Session,
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

    spec = ToolSpec("fetch", "Fetches a page.", {"type": "object"})

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
