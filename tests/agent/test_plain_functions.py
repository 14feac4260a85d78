"""Functions as tools of an agent or a session, without @tool: what the model is told, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from loom import Agent, AgentConfig, LoomApp, RunContext, Session, get_run_context, tool
from loom.core.message import ToolCallPart, plain
from loom.errors import UsageError
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    """A place."""

    name: str
    floor: int = 0


class Order(BaseModel):
    """An order."""

    item: str
    count: int


class Size(TypedDict):
    """A size."""

    width: int
    height: int


def weather(
    city: str,
    days: int = 3,
    unit: Literal["c", "f"] = "c",
    hours: list[int] | None = None,
) -> str:
    """The weather of a city.

    Args:
        city: its name.
        days: how many days.
    """
    return f"{city} {days} {unit} {hours}"


async def ship(order: Order, to: Place, box: Size) -> dict[str, Any]:
    """Send an order."""
    await asyncio.sleep(0)
    return {"item": order.item, "floor": to.floor, "area": box["width"] * box["height"]}


def whoami() -> str:
    """The user of this run."""
    return get_run_context().user_id


class Shop:
    """Has a method that is a tool of no instance yet."""

    def stock(self, item: str) -> str:
        """How many there are."""
        return f"{item}: 3"


async def result_of(function: Any, arguments: dict[str, Any]) -> str:
    """What the model is told when it calls a function of an agent."""
    name = getattr(function, "__name__", None) or function.func.__name__
    model = ScriptedModel([ToolCallPart("c1", name, arguments), "Done."])
    async with Agent(model=model, tools=[function], memory=None) as agent:
        assert (await agent.run("Go.", user_id="ann")).text == "Done."
    return plain(model.requests[-1].messages[-1].parts[0]).removeprefix("[result of c1] ")


async def test_the_model_is_told_the_signature_and_the_docstring() -> None:
    model = ScriptedModel(["Hi."])
    async with Agent(model=model, tools=[weather], memory=None) as agent:
        await agent.run("Hi.")
    spec = next(spec for spec in model.requests[0].tools if spec.name == "weather")
    assert spec.description == "The weather of a city."
    assert spec.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "its name."},
            "days": {"type": "integer", "default": 3, "description": "how many days."},
            "unit": {"enum": ["c", "f"], "type": "string", "default": "c"},
            "hours": {"anyOf": [{"items": {"type": "integer"}, "type": "array"}, {"type": "null"}], "default": None},
        },
    }


async def test_sync_and_async_functions_methods_and_partials_are_called() -> None:
    assert await result_of(weather, {"city": "Oslo", "hours": [8, 9]}) == "Oslo 3 c [8, 9]"
    shipped = {"order": {"item": "tea", "count": 2}, "to": {"name": "b", "floor": 4}, "box": {"width": 2, "height": 3}}
    assert await result_of(ship, shipped) == '{"item": "tea", "floor": 4, "area": 6}'
    assert await result_of(Shop().stock, {"item": "tea"}) == "tea: 3"
    assert await result_of(partial(weather, city="Rome"), {"days": 1}) == "Rome 1 c None"
    assert await result_of(whoami, {}) == "ann"


async def test_what_does_not_fit_is_told_to_the_model_and_not_called() -> None:
    assert "unit: Input should be 'c' or 'f'" in await result_of(weather, {"city": "Oslo", "unit": "k"})


async def test_a_session_and_an_application_take_functions_too() -> None:
    model = ScriptedModel([ToolCallPart("c1", "weather", {"city": "Oslo"}), "Fine."])
    session = Session(model=model, tools=[weather])
    assert (await session.send("How is it?")).text == "Fine."
    assert plain(model.requests[-1].messages[-1].parts[0]).endswith("Oslo 3 c None")
    other = ScriptedModel(["Hi."])
    async with LoomApp(model=other, tools=[whoami]) as app:
        await app.create_agent(AgentConfig(name="a", memory=None, tools=(weather,))).run("Hi.")
    assert [spec.name for spec in other.requests[0].tools][:2] == ["whoami", "weather"]


async def test_functions_and_tools_stand_together_in_their_order() -> None:
    model = ScriptedModel(["Hi."])
    async with Agent(model=model, tools=(one for one in (weather, tool(whoami))), memory=None) as agent:
        await agent.run("Hi.")
    assert [spec.name for spec in model.requests[0].tools][:2] == ["weather", "whoami"]


def many(*args: str) -> None:
    """Takes any number."""


def named(**options: str) -> None:
    """Takes any name."""


def first(a: int, /) -> None:
    """Takes no name."""


def unknown(query, limit=5) -> None:  # type: ignore[no-untyped-def]
    """Says no types."""


def half(query: str, limit=5) -> None:  # type: ignore[no-untyped-def]
    """Says one type."""


def context(run: RunContext, query: str) -> None:
    """Wants what no model can send."""


class Odd:
    """Has no schema."""


def odd(thing: Odd) -> None:
    """Wants one."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([many], r"many takes \*args: .*write each parameter out, or take one: `args: list\[str\]`"),
        ([named], r"named takes \*\*options: .*`options: dict\[str, str\]`"),
        ([first], "first takes a: .*delete the `/` behind 'a'"),
        ([unknown], "parameter 'query' of unknown has no type hint.*write `query: str`"),
        ([half], "parameter 'limit' of half has no type hint.*write `limit: int`"),
        ([context], r"no model can send; leave it out, and call get_run_context\(\)"),
        ([odd], "cannot be told of the types of odd"),
        ([lambda: 1], r"cannot be called '<lambda>'; name it with tool\(name=...\)\(function\)"),
        ([Shop.stock], "stock is a method; give the tool of an instance"),
        ([Shop], "Shop is a class, not a tool"),
        ([len], "takes obj"),
        ([{"type": "function"}], "is not a tool; give a function with type hints"),
        (weather, r"is not a list of tools; write tools=\[...\]"),
        ("weather", r"is not a list of tools; write tools=\[...\]"),
        ([weather, weather], "two tools are called 'weather'"),
    ],
)
async def test_what_a_model_cannot_be_told_of_is_refused_with_what_to_write(given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):  # noqa: PT012
        agent = Agent(model=ScriptedModel(["Hi."]), tools=given, memory=None)
        await agent.run("Hi.")


def test_an_agent_is_given_as_a_tool() -> None:
    with pytest.raises(UsageError, match=r"is not a tool; give its as_tool\(\)"):
        Agent(tools=[Agent("Helper.")])  # type: ignore[list-item]
