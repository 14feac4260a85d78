"""Use the defaults, replace single slots, or build from scratch; and hand the prompt to a session or an agent."""

from __future__ import annotations

from typing import Any

import pytest

from loom import (
    Agent,
    Context,
    PromptBuilder,
    Session,
    Skill,
    ToolSpec,
    create_context_fragment,
    create_identity_fragment,
    create_tools_fragment,
)
from loom.errors import UsageError
from loom.testing import ScriptedModel

READ = ToolSpec(
    "read",
    "Reads a file.",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": ["integer", "null"]}, "how": {"enum": ["fast"]}},
        "required": ["path"],
    },
)
COMMIT = Skill(name="commit", description="Writes a commit message.", content="Use the imperative.")


def test_the_defaults() -> None:
    assert [f.slot for f in PromptBuilder.default().build().fragments] == ["identity", "behavior"]
    assert PromptBuilder.default().build_text().startswith("You are a helpful assistant.")
    full = PromptBuilder.default(
        "You are Scout.", tools=[READ], skills=[COMMIT], memory="Use tabs.", context={"cwd": "/srv"}
    ).build()
    assert [f.slot for f in full.fragments] == ["identity", "behavior", "tools", "skills", "memory", "context"]
    for text in ("You are Scout.", "- read(", "- commit:", "Use tabs.", "/srv"):
        assert text in full.text


def test_single_slots_are_replaced() -> None:
    builder = PromptBuilder.default().replace(create_identity_fragment("You are Scout."))
    builder.add("identity", "You are patient.").replace(create_context_fragment({"cwd": "/srv"})).remove("behavior")
    assert [f.text() for f in builder.build().fragments] == [
        "You are Scout.",
        "You are patient.",
        "- Working directory: /srv",
    ]
    assert builder.replace(create_identity_fragment("You are Ada.")).build_text().startswith("You are Ada.\n\n#")
    before = len(builder)
    with pytest.raises(UsageError, match="Fragment"):
        builder.replace("You are Ada.")  # type: ignore[arg-type]
    assert len(builder) == before


def test_from_scratch_nothing_is_there_that_was_not_added() -> None:
    assert PromptBuilder().build_text() == ""
    assert PromptBuilder().add("identity", "You are Scout.").build_text() == "You are Scout.\n\n"


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        (READ, "- read(path: string, limit?: integer | null, how?): Reads a file."),
        (ToolSpec("now"), "- now"),
        ({"name": "a", "parameters": {"properties": {"x": {"type": "number"}}}}, "- a(x?: number)"),
        ({"name": "a", "inputSchema": {"properties": {"x": True}, "required": ["x"]}}, "- a(x)"),
        ({"name": "a", "input_schema": {"properties": {"x\n- b": {"type": "evil\n"}}}}, "- a(x - b?)"),
        ({"name": "a", "input_schema": {"properties": [], "required": 5}}, "- a"),
        ({"name": "a", "input_schema": {"properties": {"x": {}}, "required": "x"}}, "- a(x?)"),
    ],
)
def test_the_tools_fragment_shows_parameters(tool: Any, line: str) -> None:
    assert create_tools_fragment([tool]).text() == line


@pytest.mark.anyio
async def test_a_session_and_an_agent_take_a_prompt() -> None:
    prompt = PromptBuilder.default("You are Scout.", memory="Use tabs.", context={"cwd": "/srv"}).build()
    model = ScriptedModel(["a", "b", "c", "d", "e"])
    session = Session(model=model, prompt=prompt, instructions="First of all.")
    await session.send("hi")
    await (await session.fork()).send("hi")
    async with Agent(prompt, model=model, memory=None) as agent:
        await agent.run("hi", session_id="one")
        await agent.run("hi", session_id="two")
    for request in model.requests:
        system = "".join(request.system)
        assert system.count("You are Scout.") == system.count("Use tabs.") == 1
        assert "/srv" not in system, "what changes is never in the prefix"
        assert str(request.messages).count("/srv") == 1
    assert model.requests[0].system[0] == "First of all."
    context = Context("own")
    await Session(model=model, context=context, prompt=prompt).send("hi")
    assert "You are Scout." in str(context.render(clear_volatile=False))


@pytest.mark.parametrize("wrong", [PromptBuilder.default(), "You are Scout.", 5])
def test_anything_but_a_prompt_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="build"):
        Session(model=ScriptedModel(["a"]), prompt=wrong)
    if not isinstance(wrong, str):
        with pytest.raises(UsageError, match="build"):
            Agent(wrong, model=ScriptedModel(["a"]))
