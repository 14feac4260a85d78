"""The page that follows one request names functions that exist, in the order in which they are called."""

import ast
import re
import sys
from pathlib import Path

import pytest

from loom import Agent, ToolCallPart, open_memory, open_model, tool
from loom.testing import ScriptedModel
from loom.testing.wire import AnthropicWire, Said, serve
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/explanation/one-request.md"
_LINK = re.compile(r"\[`([\w.]+)`\]\((\.\./\.\./src/[\w/]+\.py)\)")
_STEP = re.compile(r"^(\d+)\. " + _LINK.pattern, re.MULTILINE)


def linked(text):
    """What a page links to, in order: the name of a function and the file it should be in."""
    return [(name, (PAGE.parent / path).resolve()) for name, path in _LINK.findall(text)]


def steps(text):
    """The numbered steps of the page."""
    return [(name, (PAGE.parent / path).resolve()) for _, name, path in _STEP.findall(text)]


def names_in(path):
    """The functions, classes and methods of a file."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name
                yield from walk(child, f"{prefix}{child.name}.")

    return set(walk(ast.parse(path.read_text(encoding="utf-8")), ""))


def unknown(text):
    """What the page links to that is not there."""
    return [(name, path.name) for name, path in linked(text) if not path.is_file() or name not in names_in(path)]


@tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}."


@pytest.fixture
async def called():
    """The functions of Loom in the order of their first call, while one message is answered."""
    first: dict[tuple[str, Path], None] = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT / "src")):
            first.setdefault((code.co_qualname, Path(code.co_filename)))

    with serve(AnthropicWire()) as provider:
        provider.script(Said.calls(ToolCallPart("c1", "weather", {"city": "Oslo"})), Said.text("Sunny."))
        model = open_model("anthropic:claude-sonnet-5", base_url=provider.url, api_key="test")
        async with Agent("Be brief.", model=model, memory=open_memory("inmemory"), tools=[weather]) as agent:
            before = sys.getprofile()
            sys.setprofile(note)
            try:
                result = await agent.run("I live in Oslo. How is the weather?", user_id="ann", session_id="one")
            finally:
                sys.setprofile(before)
    assert result.text == "Sunny."
    return list(first)


def test_every_linked_function_exists():
    text = PAGE.read_text(encoding="utf-8")
    assert len(linked(text)) >= len(steps(text))
    assert 20 < len(steps(text)) <= 25
    assert unknown(text) == []


def test_the_steps_are_numbered_and_each_is_named_once():
    found = _STEP.findall(PAGE.read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
    assert len({(name, path) for _, name, path in found}) == len(found)


@pytest.mark.anyio
async def test_the_steps_are_called_in_this_order(called):
    told = steps(PAGE.read_text(encoding="utf-8"))
    assert [step[0] for step in called if step in told] == [name for name, _ in told]


@pytest.mark.anyio
async def test_a_turn_can_be_read_in_few_files(tmp_path):
    """The source files that a turn enters, with memory and a tool. The number may only fall.

    The store is left out: some of its reads are done in threads, where nothing is noted. So are rules for facts until
    a turn compiled no new pattern: the same message comes twice before the one that counts.
    """
    entered: set[str] = set()

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT / "src")) and "/stores/" not in path:
            entered.add(path)

    told = "I moved to Oslo. How is the weather?"
    model = ScriptedModel(["Good.", "Good.", [ToolCallPart("c1", "weather", {"city": "Oslo"})], "Sunny."])
    async with Agent("Be brief.", model=model, memory=f"sqlite:{tmp_path}/turn.db", tools=[weather]) as agent:
        for _ in range(2):
            await agent.run(told, user_id="ann", session_id="one")
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            result = await agent.run(told, user_id="ann", session_id="one")
        finally:
            sys.setprofile(before)
    assert result.text == "Sunny."
    assert len(entered) <= 62, "\n".join(sorted(entered))


def test_a_function_that_is_not_there_is_noticed():
    text = "1. [`Agent.walk`](../../src/loom/agent/agent.py) and [`Agent.run`](../../src/loom/agent/nowhere.py)"
    assert unknown(text) == [("Agent.walk", "agent.py"), ("Agent.run", "nowhere.py")]
