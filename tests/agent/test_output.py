"""Answers of a given form: a pydantic model, a dataclass, a TypedDict, a plain type; retries; the wire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field, field_validator

from loom import Agent, Session, tool
from loom.core.message import ToolCallPart, ToolResultPart
from loom.errors import BadOutput, UsageError
from loom.protocols.model import ModelResponse, Usage
from loom.session.output import FINAL_ANSWER
from loom.testing import ScriptedModel
from loom.testing.wire import Said
from tests.providers.models.served import each_kind, served

pytestmark = pytest.mark.anyio


class Weather(BaseModel):
    """The weather of a day."""

    city: str
    degrees: float = Field(ge=-90, le=60)
    day: date | None = None

    @field_validator("city")
    @classmethod
    def known(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("there is no such city")
        return city


@dataclass
class Point:
    x: int
    y: int = 0


class Person(TypedDict):
    name: str
    age: int


class Half(TypedDict, total=False):
    json: str


def final(**input: Any) -> ToolCallPart:
    return ToolCallPart("f", FINAL_ANSWER, input)


@pytest.mark.parametrize(
    ("form", "input", "output"),
    [
        (Weather, {"city": "Oslo", "degrees": 3}, Weather(city="Oslo", degrees=3)),
        (Weather, {"city": "Oslo", "degrees": "3.5", "day": "2026-01-02"}, Weather(city="Oslo", degrees=3.5, day=date(2026, 1, 2))),
        (Point, {"x": 1}, Point(1, 0)),
        (Person, {"name": "Ann", "age": 41}, {"name": "Ann", "age": 41}),
        (Half, {}, {}),
        (Half, {"json": "x"}, {"json": "x"}),
        (list[int], {"value": [1, 2]}, [1, 2]),
        (bool, {"value": False}, False),
        (list[Point], {"value": [{"x": 1}]}, [Point(1)]),
    ],
)  # fmt: skip
async def test_an_answer_is_a_value_of_the_type(form: Any, input: dict[str, Any], output: Any) -> None:
    async with Agent(model=ScriptedModel([final(**input)]), memory=None) as agent:
        result = await agent.run("Go.", output_type=form)
    assert result.output == output
    assert type(result.output) is type(output)
    assert (result.stop, result.turn) == ("end", 1)


async def test_the_model_is_told_the_form_for_that_turn_alone() -> None:
    model = ScriptedModel([final(city="Oslo", degrees=3), "Bye."])
    async with Agent(model=model, memory=None) as agent:
        result = await agent.run("Weather?", session_id="s", output_type=Weather)
        (spec,) = model.requests[0].tools
        assert spec.name == FINAL_ANSWER
        assert set(spec.input_schema["properties"]) == {"city", "degrees", "day"}
        assert result.text == '{"city": "Oslo", "degrees": 3}'
        await agent.run("Bye.", session_id="s")
        assert model.requests[1].tools == ()
        roles = [message.role for message in model.requests[1].messages]
        assert roles == ["user", "assistant", "user"] or roles[-1] == "user"
        parts = [part for message in model.requests[1].messages for part in message.parts]
        assert [part.content[0].text for part in parts if isinstance(part, ToolResultPart)] == ["accepted"]  # type: ignore[union-attr]


async def test_tools_run_before_the_answer_and_not_with_it() -> None:
    ran: list[str] = []

    @tool
    def look(city: str) -> str:
        """Look at the thermometer."""
        ran.append(city)
        return "3 degrees"

    both = (final(city="Oslo", degrees=3), ToolCallPart("l2", "look", {"city": "Rome"}))
    model = ScriptedModel([ToolCallPart("l", "look", {"city": "Oslo"}), both])
    async with Agent(model=model, tools=[look]) as agent:
        result = await agent.run("Weather?", output_type=Weather)
    assert result.output.degrees == 3
    assert ran == ["Oslo"]


@pytest.mark.parametrize("wrong", [final(city="Oslo"), final(city="Atlantis", degrees=1), "It is cold in Oslo.", ""])
async def test_an_answer_that_does_not_fit_is_asked_for_once_more_with_the_reason(wrong: Any) -> None:
    model = ScriptedModel([wrong, final(city="Oslo", degrees=3)])
    async with Agent(model=model) as agent:
        result = await agent.run("Weather?", output_type=Weather)
    assert result.output == Weather(city="Oslo", degrees=3)
    assert len(model.requests) == 2
    told = str(model.requests[1].messages[-1])
    assert any(word in told for word in ("degrees: Field required", "there is no such city", "it is not JSON"))
    assert result.usage.input > 0


@pytest.mark.parametrize("text", ['{"city": "Oslo", "degrees": 3}', '```json\n{"city": "Oslo", "degrees": 3}\n```'])
async def test_an_answer_in_words_that_is_the_json_is_taken(text: str) -> None:
    async with Agent(model=ScriptedModel([text])) as agent:
        assert (await agent.run("Weather?", output_type=Weather)).output.city == "Oslo"


@pytest.mark.parametrize(
    ("form", "text", "output"),
    [
        (str, "It is sunny.", "It is sunny."),
        (str, '"It is sunny."', "It is sunny."),
        (str, "42", "42"),
        (str, '{"value": "sunny"}', "sunny"),
        (date, "2026-01-31", date(2026, 1, 31)),
        (Literal["sun", "rain"], "rain", "rain"),
    ],
)
async def test_a_type_that_is_written_as_text_takes_an_answer_in_words(form: Any, text: str, output: Any) -> None:
    agent = Agent("...", model=ScriptedModel([text]), memory=None)
    assert (await agent.run("How is it?", output_type=form)).output == output


@pytest.mark.parametrize(("form", "text"), [(str, " "), (Literal["sun", "rain"], "snow"), (str, "[1, 2")])
async def test_words_that_do_not_fit_are_asked_for_again(form: Any, text: str) -> None:
    model = ScriptedModel([text, '"rain"'])
    result = await Agent("...", model=model, memory=None).run("How is it?", output_type=form)
    assert (result.output, len(model.requests)) == (("[1, 2", 1) if text == "[1, 2" else ("rain", 2))


async def test_after_the_last_try_it_is_an_error_that_says_what_was_wrong() -> None:
    model = ScriptedModel([final(city="Oslo"), final(city="Rome"), "Bye."])
    async with Agent(model=model) as agent:
        with pytest.raises(
            BadOutput, match=r"answered 2 times, and never with a Weather: degrees: Field required"
        ) as error:
            await agent.run("Weather?", session_id="s", output_type=Weather)
        assert (error.value.tries, error.value.form) == (2, "Weather")
        assert (await agent.run("Bye.", session_id="s")).turn == 2, "the conversation goes on"
    model = ScriptedModel(["no"])
    with pytest.raises(BadOutput, match="answered once"):
        await Agent(model=model).run("Weather?", output_type=Weather, output_retries=0)


async def test_an_answer_that_was_cut_off_is_none() -> None:
    cut = ModelResponse(parts=(final(city="Oslo", degrees=3),), stop="length", usage=Usage(), model="m")
    model = ScriptedModel([cut, final(city="Rome", degrees=20)])
    assert (await Agent(model=model).run("Weather?", output_type=Weather)).output.city == "Rome"


async def test_a_turn_that_ends_early_has_no_answer_and_stays_whole() -> None:
    model = ScriptedModel([final(city="Oslo"), "Bye."])
    async with Agent(model=model, config={"max_steps": 1}) as agent:
        result = await agent.run("Weather?", session_id="s", output_type=Weather)
        assert (result.stop, result.output) == ("steps", None)
        assert (await agent.run("Bye.", session_id="s")).text == "Bye."
        parts = [part for message in model.requests[1].messages for part in message.parts]
        assert sum(isinstance(part, ToolResultPart) for part in parts) == 1


async def test_words_at_the_last_step_are_left_as_they_are() -> None:
    model = ScriptedModel(["It is cold.", "Bye."])
    async with Agent(model=model, config={"max_steps": 1}, memory=None) as agent:
        assert (await agent.run("Weather?", session_id="s", output_type=Weather)).stop == "steps"
        session = await agent.session(session_id="s")
        assert [message.text for message in session.messages] == ["Weather?", "It is cold."]


async def test_what_is_wrong_is_told_in_few_words() -> None:
    model = ScriptedModel([final(value=["x"] * 5_000), final(value=[1])])
    assert (await Agent(model=model).run("Go.", output_type=list[int])).output == [1]
    assert len(str(model.requests[1].messages[-1])) < 4_000


async def test_a_session_takes_a_form_too() -> None:
    reply = await Session(model=ScriptedModel([final(x=1, y=2)])).send("Where?", output_type=Point)
    assert reply.output == Point(1, 2)


def test_a_form_without_an_event_loop() -> None:
    with Agent(model=ScriptedModel([final(x=1)])) as agent:
        assert agent.run_sync("Where?", output_type=Point).output == Point(1)


async def test_an_output_type_without_a_schema_is_refused_before_anything_is_asked() -> None:
    class Opaque:
        pass

    @tool
    def final_answer() -> str:
        """Taken."""
        return ""

    model = ScriptedModel()
    with pytest.raises(UsageError, match="output_type=Opaque has no JSON schema"):
        await Agent(model=model).run("Go.", output_type=Opaque)
    with pytest.raises(UsageError, match="output_retries=-1"):
        await Agent(model=model).run("Go.", output_type=Point, output_retries=-1)
    with pytest.raises(UsageError, match="a tool is called 'final_answer'"):
        await Agent(model=model, tools=[final_answer]).run("Go.", output_type=Point)
    assert model.requests == []


@each_kind
async def test_a_form_over_the_wire_of_each_provider(kind: Any) -> None:
    async with served(kind) as (model, service):
        service.script(
            Said.calls(ToolCallPart("f1", FINAL_ANSWER, {"city": "Oslo"})),
            Said.calls(ToolCallPart("f2", FINAL_ANSWER, {"city": "Oslo", "degrees": 3})),
            Said.text("Bye."),
        )
        session = Session(model=model)
        reply = await session.send("Weather?", output_type=Weather)
        assert reply.output == Weather(city="Oslo", degrees=3)
        assert reply.usage.input == 2_000
        assert (await session.send("Bye.")).text == "Bye."
