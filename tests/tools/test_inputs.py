"""Inputs that are no object, names that no provider takes, and types that pydantic does not."""

from __future__ import annotations

import sys
from typing import Any, TypedDict

import pytest

from loom.errors import UsageError
from loom.protocols.tool import ToolError
from loom.tools.function import tool

pytestmark = pytest.mark.anyio


async def test_an_input_that_was_written_as_text_once_more_is_read() -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert await add.run('{"a": 2}') == "3"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ('{"a": 2', "is not valid JSON (Expecting"),
        ("[1]", "is not a JSON object"),
        ([1], "is not a JSON object"),
        (7, "is not a JSON object"),
    ],
)
async def test_an_input_that_is_not_an_object_is_reported(sent: Any, said: str) -> None:
    @tool
    def add(a: int) -> int:
        return a

    with pytest.raises(ToolError) as error:
        await add.run(sent)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["<lambda>", "my tool", "a.b", "1st", "x" * 65, "größe"])
def test_a_name_that_a_provider_would_refuse_is_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match="a tool cannot be called"):
        tool(name=name)(lambda: None)
    assert tool(name="ok")(lambda: None).spec.name == "ok"


def test_a_type_that_pydantic_does_not_take_is_told_in_our_words() -> None:
    class Point(TypedDict):
        x: int

    def far(point: Point) -> None: ...

    far.__annotations__["point"] = Point
    if sys.version_info < (3, 12):  # from there on pydantic takes them
        with pytest.raises(UsageError, match="a model cannot be told of the types of far"):
            tool(far)


def test_of_what_pydantic_says_only_the_first_sentence_is_told() -> None:
    class Boat: ...

    def sail(boat: Boat) -> None: ...

    sail.__annotations__["boat"] = Boat
    with pytest.raises(UsageError, match="Boat") as caught:
        tool(sail)
    assert "arbitrary_types_allowed" not in str(caught.value)
    assert str(caught.value).endswith("Use plain types, dataclasses or pydantic models")
