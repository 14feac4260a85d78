"""What a turn of an agent sends, reads and compares: mistakes of other libraries that Loom does not make."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from loom import Agent, open_memory
from loom.core.message import JSON
from loom.protocols.model import ModelRequest
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


def answering(name: str = "anthropic:claude-sonnet-4-5", window: int = 200_000) -> ScriptedModel:
    return ScriptedModel(lambda _: "ok", name=name, context_window=window)


def body(request: ModelRequest) -> dict[str, JSON]:
    assert request.rendered is not None
    return dict(request.rendered.body)


def texts(request: ModelRequest) -> list[str]:
    return [block["text"] for message in body(request)["messages"] for block in message["content"]]


async def test_003_01_what_is_stable_comes_first_and_what_is_new_last() -> None:
    memory = open_memory("inmemory", embedder="hash")
    await memory.remember("The dog is called Rex.", user_id="ann")
    model = answering()
    agent = Agent("You are kind.", model=model, memory=memory)
    for n in range(3):
        await agent.run(f"What is the dog called? {n}", user_id="ann", session_id="s")
    assert len(model.requests) >= 3
    for before, after in pairwise(model.requests):
        assert body(after)["system"] == body(before)["system"]
        stable = [text for text in texts(before) if "<memory>" not in text]
        assert texts(after)[: len(stable)] == stable
        assert "<memory>" in texts(after)[-1], "what was recalled stands behind everything else"


async def test_003_06_the_current_message_is_never_dropped_for_older_important_ones() -> None:
    memory = open_memory("inmemory", embedder="hash")
    for n in range(40):
        await memory.remember(f"Important fact {n}: the vault is watched. " * 20, user_id="ann", importance=1.0)
    model = answering(window=3_000)
    agent = Agent("You are kind.", model=model, memory=memory)
    for n in range(12):
        await agent.run(f"Question {n} about the vault, please. " * 20, user_id="ann", session_id="s")
        asked = [text for text in texts(model.requests[-1]) if text.startswith(f"Question {n} about")]
        assert len(asked) == 1


async def test_004_07_recalled_memory_is_neither_in_the_system_prompt_nor_before_the_history() -> None:
    memory = open_memory("inmemory", embedder="hash")
    await memory.remember("The dog is called Rex.", user_id="ann")
    model = answering()
    agent = Agent("You are kind.", model=model, memory=memory)
    for n in range(3):
        await agent.run(f"What is the dog called? {n}", user_id="ann", session_id="s")
    last = model.requests[-1]
    assert "Rex" not in str(body(last)["system"])
    said = texts(last)
    assert min(n for n, text in enumerate(said) if "Rex" in text) > said.index("What is the dog called? 1")


async def test_004_08_a_recall_does_not_read_every_record(tmp_path: Any) -> None:
    from loom.stores import _sql

    memory = open_memory(f"sqlite:{tmp_path / 'm.db'}", embedder="hash")
    await memory.remember([f"Note {n}: the weather was fine." for n in range(1_500)], user_id="ann")
    read = 0
    original = _sql.from_row

    def counting(row: tuple[Any, ...]) -> Any:
        nonlocal read
        read += 1
        return original(row)

    with pytest.MonkeyPatch.context() as patch:  # the only way to see how many rows one call turns into records
        for module in ("records", "search", "store"):
            patch.setattr(f"loom.stores.sqlite.{module}.from_row", counting)
        await memory.recall("How was the weather in note 700?", user_id="ann")
    assert 0 < read <= 40
    await memory.aclose()


async def test_004_11_an_agent_recalls_for_the_user_who_asks_and_for_nobody_else() -> None:
    model = answering()
    agent = Agent("You are kind.", model=model, memory=open_memory("inmemory", embedder="hash"))
    await agent.run("My dog is called Rex.", user_id="ann")
    await agent.run("My dog is called Tim.", user_id="bob")
    found = await agent.run("What is my dog called?", user_id="ann")
    other = await agent.run("What is my dog called?", user_id="bob")
    assert found.recalled
    assert "Rex" in found.recalled.text
    assert other.recalled
    assert "Tim" in other.recalled.text
    assert "Rex" not in other.recalled.text
    assert "Rex" not in str(model.requests[-1])


async def test_004_12_a_session_shows_its_whole_history_bounded_by_tokens_alone() -> None:
    model = answering()
    agent = Agent("You are kind.", model=model)
    for n in range(40):
        await agent.run(f"message {n}", session_id="s")
    said = texts(model.requests[-1])
    assert all(f"message {n}" in said for n in range(40))


async def test_004_14_a_new_fact_is_compared_with_its_own_kind_only() -> None:
    memory = open_memory("inmemory", embedder="hash")
    for n in range(300):
        await memory.assert_fact("Ann", f"likes number {n}", str(n), user_id="ann")
    looked = 0
    inner = memory.store.list

    async def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal looked
        page = await inner(*args, **kwargs)
        looked += len(page)
        return page

    memory.store.list = counting  # type: ignore[method-assign]  # to see how many records one call looks at
    await memory.assert_fact("Ann", "lives in", "Oslo", user_id="ann")
    assert looked < 100
