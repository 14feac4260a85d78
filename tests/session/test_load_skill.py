"""Skills in a session: the model sees what there is and loads one itself."""

from __future__ import annotations

from typing import Any

import pytest

from loom import Context, PromptBuilder, Session, Skill, create_skills_fragment
from loom.core.message import JSON, ToolCallPart, ToolResultPart, ToolSpec
from loom.errors import UsageError
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio

REVIEW = Skill(
    name="review",
    description="Reviews a change.",
    content="Read the diff first.",
    triggers=("review",),
    allowed_tools=("read",),
)
DEPLOY = Skill(
    name="deploy",
    description="Deploys a service.",
    content="Ask before production.",
    triggers=(r"^/deploy (staging|production)$",),
    trigger_is_regex=True,
    allowed_tools=("bash",),
)
SECRET = Skill(name="wipe", description="Wipes a disk.", content="Wipe it.", user_only=True)


class Named:
    """A tool that says its name."""

    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name, f"Does {name}.", {"type": "object"})
        self.runs = 0

    async def run(self, input: JSON) -> str:
        self.runs += 1
        return f"{self.spec.name} ran"


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(f"c_{tool}", tool, arguments)


def results(model: ScriptedModel, request: int) -> list[tuple[str, bool]]:
    parts = model.requests[request].messages[-1].parts
    return [(part.content[0].text, part.is_error) for part in parts if isinstance(part, ToolResultPart)]  # type: ignore[union-attr]


async def test_the_model_sees_the_skills_and_loads_one() -> None:
    model = ScriptedModel([call("load_skill", name="review"), call("bash"), call("read"), "done", call("bash"), "ok"])
    bash, read = Named("bash"), Named("read")
    session = Session(model=model, instructions="Be kind.", tools=[bash, read], skills=[REVIEW, DEPLOY, SECRET])
    await session.send("look at my change")
    system = "".join(model.requests[0].system)
    assert "- review: Reviews a change. (tools: read; trigger: review)" in system
    assert "pattern: ^/deploy (staging|production)$" in system
    assert "wipe" not in system
    spec = next(spec for spec in model.requests[0].tools if spec.name == "load_skill")
    assert spec.input_schema["properties"]["name"]["enum"] == ["deploy", "review"]
    assert "Read the diff first." in results(model, 1)[0][0]
    text, is_error = results(model, 2)[0]
    assert is_error
    assert "does not allow this call" in text
    assert results(model, 3) == [("read ran", False)]
    await session.send("now something else")
    assert (bash.runs, read.runs) == (1, 1), "a loaded skill is active until its turn is over"


async def test_a_skill_that_the_model_loads_gives_no_tool_back_that_the_users_choice_took() -> None:
    model = ScriptedModel([call("load_skill", name="deploy"), call("bash"), "done"])
    bash = Named("bash")
    session = Session(model=model, tools=[bash, Named("read")], skills=[REVIEW, DEPLOY])
    await session.send("/review please")
    assert "Ask before production." in results(model, 1)[0][0]
    assert results(model, 2)[0][1]
    assert bash.runs == 0


@pytest.mark.parametrize("arguments", [{}, {"name": 5}, {"name": "wipe"}, {"name": "unknown"}])
async def test_what_cannot_be_loaded_is_told_to_the_model(arguments: dict[str, Any]) -> None:
    model = ScriptedModel([ToolCallPart("c", "load_skill", arguments), "done"])
    await Session(model=model, skills=[REVIEW, SECRET]).send("hello")
    text, is_error = results(model, 1)[0]
    assert is_error
    assert "review" in text


async def test_a_command_that_does_not_fit_the_pattern_activates_nothing() -> None:
    model = ScriptedModel(["no", "yes"])
    session = Session(model=model, skills=[DEPLOY])
    await session.send("/deploy development")
    assert "Ask before production." not in str(session.messages)
    await session.send("/deploy staging")
    assert "Ask before production." in str(session.messages)


async def test_the_list_is_shown_once_and_a_fork_has_it_too() -> None:
    context = Context("scout")
    PromptBuilder().add_fragment(create_skills_fragment([REVIEW])).build().apply(context)
    model = ScriptedModel(["a", "b", "c"])
    await Session(model=model, context=context, skills=[REVIEW]).send("hi")
    session = Session(model=model, skills=[REVIEW])
    await session.send("hi")
    await (await session.fork()).send("hi")
    assert ["".join(request.system).count("- review:") for request in model.requests] == [1, 1, 1]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["load_skill"]] * 3


async def test_where_nothing_can_be_loaded_nothing_is_added() -> None:
    model = ScriptedModel(["a", "b"])
    await Session(model=model, skills=[SECRET]).send("hi")
    assert (model.requests[0].system, model.requests[0].tools) == ((), ())
    with pytest.raises(UsageError, match="5 is not a tool"):
        Session(model=model, tools=[5], skills=[REVIEW])  # type: ignore[list-item]
    own = Named("load_skill")
    await Session(model=model, tools=[own], skills=[REVIEW]).send("hi")
    assert [spec.description for spec in model.requests[1].tools] == ["Does load_skill."]
