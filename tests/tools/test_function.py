"""@tool: schema, reading what a model sent, running, and what comes back."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from threading import Event, get_ident
from typing import Annotated, Any, Literal, Optional

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from loom.core.message import ImagePart, TextPart, ToolSpec
from loom.errors import UsageError
from loom.protocols.tool import ToolError
from loom.tools.function import tool

pytestmark = pytest.mark.anyio


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    city: str
    country: str = "PT"


class Line(BaseModel):
    item: str
    amount: int = Field(ge=1)


@tool
def order(
    *,
    lines: list[Line],
    to: Place,
    colour: Colour = Colour.RED,
    speed: Literal["slow", "fast"] = "slow",
    note: Optional[str] = None,  # noqa: UP045  (the older spelling is what people write)
    tags: Annotated[list[str], Field(description="Any words.")] = [],  # noqa: B006  (never handed to the function)
) -> dict[str, Any]:
    """Order things.

    Args:
        lines: what to order.
        note: for the driver.
        tags: not this text.
    """
    return {"lines": lines, "to": to, "colour": colour, "speed": speed, "note": note, "tags": tags}


async def test_the_schema_comes_from_hints_and_docstring() -> None:
    assert order.spec.name == "order"
    assert order.spec.description == "Order things."
    schema = order.spec.input_schema
    assert schema["required"] == ["lines", "to"]
    assert schema["additionalProperties"] is False
    fields = schema["properties"]
    assert list(fields) == ["lines", "to", "colour", "speed", "note", "tags"]
    assert fields["lines"]["description"] == "what to order."
    assert fields["tags"]["description"] == "Any words."
    assert fields["speed"] == {"default": "slow", "enum": ["slow", "fast"], "type": "string"}
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema["$defs"]["Line"]["properties"]["amount"]["minimum"] == 1


async def test_the_function_gets_real_values_and_the_model_gets_json() -> None:
    sent = {"lines": [{"item": "tea", "amount": "2"}], "to": {"city": "Lisbon"}, "colour": "blue"}
    assert json.loads(await order.run(sent)) == {  # type: ignore[arg-type]
        "lines": [{"item": "tea", "amount": 2}],
        "to": {"city": "Lisbon", "country": "PT"},
        "colour": "blue",
        "speed": "slow",
        "note": None,
        "tags": [],
    }


async def test_it_is_still_the_function() -> None:
    @tool
    def double(x: int) -> int:
        return x * 2

    assert double(4) == 8


@tool
def typed(*, n: int, f: float, b: bool, s: str, items: list[int], place: Place | None = None) -> str:
    return repr((n, f, b, s, items, place))


async def test_values_are_read_where_nothing_is_lost() -> None:
    sent = {"n": "5", "f": "1.5", "b": "true", "s": 12, "items": "[1, 2]", "place": '{"city": "Rome"}'}
    place = Place("Rome")
    assert await typed.run(sent) == repr((5, 1.5, True, "12", [1, 2], place))


async def test_a_text_that_looks_like_json_stays_text_where_text_is_wanted() -> None:
    @tool
    def echo(text: str) -> str:
        return text

    assert await echo.run({"text": '["a"]'}) == '["a"]'


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"n": 5.5}, "n: "),
        ({"n": "five"}, "n: "),
        ({"s": None}, "s: "),
        ({"items": "[1, "}, "items: "),
        ({"items": ["a"]}, "items.0: "),
        ({"x": 1}, "the parameters are n, f, b, s, items, place"),
    ],
)
async def test_a_wrong_input_is_told_with_what_to_do(wrong: dict[str, Any], said: str) -> None:
    fine = {"n": 5, "f": 1.5, "b": True, "s": "x", "items": [1]}
    with pytest.raises(ToolError, match="Call it again with the right one") as raised:
        await typed.run({**fine, **wrong})
    assert "the input of typed is wrong" in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize("nothing", [None, "", {}])
async def test_no_input_is_an_empty_one(nothing: Any) -> None:
    @tool
    def now() -> str:
        return "noon"

    assert now.spec.input_schema["properties"] == {}
    assert await now.run(nothing) == "noon"


@given(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers()), st.dictionaries(st.text(), st.text())))
def test_whatever_a_model_sends_ends_in_an_answer_or_a_tool_error(sent: Any) -> None:
    @tool
    async def add(a: int, b: int = 1) -> int:
        return a + b

    with suppress(ToolError):
        assert anyio.run(add.run, sent)


async def test_parameters_may_have_names_that_pydantic_uses_itself() -> None:
    @tool
    def odd(json: str, copy: int = 1, model_config: str = "x", _private: int = 3) -> str:
        return f"{json}{copy}{model_config}{_private}"

    assert list(odd.spec.input_schema["properties"]) == ["json", "copy", "model_config", "_private"]
    assert await odd.run({"json": "a", "_private": 4}) == "a1x4"


async def test_a_default_without_a_json_form_stays_with_the_function() -> None:
    nothing = object()

    @tool
    def look(x: int = 1, y: Any = nothing) -> str:
        return str(y is nothing)

    assert "default" not in look.spec.input_schema["properties"]["y"]
    assert await look.run({}) == "True"


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    def stock(self, item: str) -> str:
        """What is in stock."""
        return f"{self.name}: {item}"

    @tool(name="prices", timeout=5)
    async def price(self, item: str) -> str:
        return f"{self.name} asks 3 for {item}"

    def plain(self, item: str) -> str:
        return f"plain {self.name}: {item}"


async def test_methods() -> None:
    one, two = Shop("one"), Shop("two")
    assert await one.stock.run({"item": "tea"}) == "one: tea"
    assert await two.stock.run({"item": "tea"}) == "two: tea"
    assert await two.price.run({"item": "tea"}) == "two asks 3 for tea"
    assert two.price.spec.name == "prices"
    assert one.stock("milk") == "one: milk"
    assert list(one.stock.spec.input_schema["properties"]) == ["item"]
    assert await tool(one.plain).run({"item": "tea"}) == "plain one: tea"
    with pytest.raises(UsageError, match="give the tool of an instance"):
        await Shop.stock.run({"item": "tea"})


async def test_what_a_partial_fixed_is_hidden_from_the_model() -> None:
    def orders(user: str, item: str) -> str:
        """Orders of a user."""
        return f"{user}: {item}"

    mine = tool(partial(orders, user="ann"))
    assert mine.spec.name == "orders"
    assert mine.spec.description == "Orders of a user."
    assert list(mine.spec.input_schema["properties"]) == ["item"]
    assert await mine.run({"item": "tea"}) == "ann: tea"
    with pytest.raises(ToolError):
        await mine.run({"item": "tea", "user": "bob"})


async def test_wrapped_functions_and_objects_that_can_be_called() -> None:
    def logged(function: Any) -> Any:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    @tool
    @logged
    def add(a: int, b: int) -> int:
        return a + b

    class Adder:
        async def __call__(self, a: int) -> int:
            return a + 1

    assert await add.run({"a": 1, "b": 2}) == "3"
    assert await tool(Adder()).run({"a": 1}) == "2"


async def test_sync_functions_run_beside_the_loop_and_async_ones_in_it() -> None:
    @tool
    def there() -> int:
        return get_ident()

    @tool
    async def here() -> int:
        return get_ident()

    assert await here.run({}) == str(get_ident())
    assert await there.run({}) != str(get_ident())


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    release = Event()

    @tool(timeout=0.01)
    async def waits() -> None:
        await anyio.sleep_forever()

    @tool(timeout=0.01)
    def blocks() -> None:
        release.wait()

    try:
        for slow in (waits, blocks):
            with pytest.raises(ToolError, match=r"took longer than 0\.01 seconds and was stopped"):
                await slow.run({})
    finally:
        release.set()


async def test_a_timeout_of_the_functions_own_is_not_mistaken_for_the_tools() -> None:
    @tool(timeout=3600)
    async def asks() -> None:
        raise TimeoutError("the shop did not answer")

    with pytest.raises(TimeoutError, match="the shop did not answer"):
        await asks.run({})


async def test_an_exception_reaches_the_caller_of_the_tool() -> None:
    @tool
    def fails() -> None:
        raise KeyError("no such order")

    with pytest.raises(KeyError, match="no such order"):
        await fails.run({})


PICTURE = ImagePart("aGk=", "image/png")


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        ("", "(empty)"),
        ("a\ud800b", "a\ufffdb"),
        (None, "done"),
        (3, "3"),
        (True, "true"),
        ([1, "é"], '[1, "é"]'),
        ([], "[]"),
        ({"a": None}, '{"a": null}'),
        (Place("Rome"), '{"city": "Rome", "country": "PT"}'),
        (Line(item="tea", amount=1), '{"item": "tea", "amount": 1}'),
        ([Line(item="tea", amount=1)], '[{"item": "tea", "amount": 1}]'),
        (datetime(2026, 1, 1, tzinfo=UTC), '"2026-01-01T00:00:00Z"'),
        (Path("a/b"), '"a/b"'),
        (Colour.RED, '"red"'),
        (TextPart("x"), (TextPart("x"),)),
        ([TextPart("x"), PICTURE], (TextPart("x"), PICTURE)),
    ],
)
async def test_results(value: Any, output: Any) -> None:
    @tool
    def give() -> Any:
        return value

    assert await give.run({}) == output


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"x", "returned bytes; return text, or an ImagePart"),
        (object(), "returned a object that has no JSON form"),
        (iter([1]), "return a list"),
        ({"a": object()}, "returned a dict that has no JSON form"),
    ],
)
async def test_results_without_a_form_are_told(value: Any, said: str) -> None:
    @tool
    def give() -> Any:
        return value

    with pytest.raises(ToolError, match="give ") as raised:
        await give.run({})
    assert said in str(raised.value)


def test_what_cannot_be_a_tool_is_refused_when_it_is_made() -> None:
    class Odd:
        pass

    def unhinted(x):  # type: ignore[no-untyped-def]
        return x

    def many(*names: str) -> str:
        return ""

    def unknown(x: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
        return ""

    def arbitrary(x: Path) -> str:
        return ""

    arbitrary.__annotations__["x"] = Odd
    for function, said in [
        (unhinted, "has no type hint"),
        (many, "takes parameters with names"),
        (unknown, "cannot be read"),
        (arbitrary, "cannot be told of the types of arbitrary"),
    ]:
        with pytest.raises(UsageError, match=said):
            tool(function)
    for seconds in (0, -1, float("nan")):
        with pytest.raises(UsageError, match="seconds above 0"):
            tool(timeout=seconds)(test_results)


def test_a_tool_says_nothing_that_changes_from_one_process_to_the_next() -> None:
    again = ToolSpec(order.spec.name, order.spec.description, json.loads(json.dumps(order.spec.input_schema)))
    assert again == order.spec
