"""The memory tools: what they find and change, and that they work for the user of the run alone."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.injection_data import hostile
from loom import open_memory
from loom.core.record import Layer
from loom.core.scope import Scope
from loom.errors import NotFound, UsageError
from loom.protocols.tool import ToolError
from loom.testing import FakeClock
from loom.text.fence import one_line, plain_text
from loom.tools.memory import memory_tools

pytestmark = pytest.mark.anyio


@pytest.fixture
async def memory():
    async with open_memory("inmemory", embedder="hash", clock=FakeClock()) as memory:
        yield memory


@pytest.fixture
def tools(memory):
    return memory_tools(memory)


async def put(memory, user, layer, text):
    (kept,) = (await memory.remember(text, user_id=user)).kept
    await memory.store.put(Scope(user_id=user), replace(kept, layer=layer))
    return kept.id


async def test_the_names_of_the_seed(tools):
    names = [tool.spec.name for tool in tools]
    assert names == [
        "search_l2_memory",
        "search_l3_memory",
        "search_l4_memory",
        "remember",
        "forget",
        "read_block",
        "write_block",
    ]
    for tool in tools[:3]:
        assert sorted(tool.spec.input_schema["properties"]) == ["limit", "query"]
        assert tool.spec.input_schema["properties"]["limit"]["default"] == 5
    assert all("user_id" not in tool.spec.input_schema["properties"] for tool in tools)


async def test_each_search_looks_into_its_layer(memory, tools, call):
    ids = {layer: await put(memory, "ann", layer, f"the harbour in layer {layer}") for layer in Layer}
    for layer in (Layer.L2, Layer.L3, Layer.L4):
        found = await call(tools, "ann", f"search_l{layer}_memory", query="harbour", limit=5)
        assert found.startswith(f"- (2026-01-01, [{ids[layer]}])")
        assert f"layer {layer}" in found
        assert found.count("\n") == 0
    assert await call(tools, "ann", "search_l2_memory", query="mountain") != ""


async def test_nothing_found_says_so(tools, call):
    assert await call(tools, "ann", "search_l3_memory", query="harbour") == "Nothing was found."


async def test_remember_and_forget(memory, tools, call):
    kept = await call(tools, "ann", "remember", text="Ann has a boat.")
    (id,) = re.findall(r"Kept as (\S+)\.", kept)
    (hit,) = (await memory.recall("boat", user_id="ann")).hits
    assert (hit.item.id, hit.item.provenance.origin, hit.item.session_id) == (id, "assistant", "ann-session")
    assert await call(tools, "ann", "forget", id=id) == "Forgotten."
    assert not (await memory.recall("boat", user_id="ann")).hits
    with pytest.raises(NotFound, match="a search shows the ids"):
        await call(tools, "ann", "forget", id=id)
    with pytest.raises(ToolError, match="is wrong: text"):
        await call(tools, "ann", "remember", text="")


async def test_blocks(memory, tools, call):
    assert await call(tools, "ann", "write_block", name="plan", text="Sail.") == "Block plan has version 1 now."
    assert await call(tools, "ann", "write_block", name="plan", text="Sail on.") == "Block plan has version 2 now."
    assert await call(tools, "ann", "read_block", name="plan") == "Sail on."
    with pytest.raises(ToolError, match="the blocks are: plan"):
        await call(tools, "ann", "read_block", name="other")
    with pytest.raises(ToolError, match="use another name"):
        await call(tools, "ann", "write_block", name="file:/memories/x", text="y")


async def test_what_the_model_pins_is_the_models_word(memory, tools, call):
    await memory.set_block("persona", "Dry humour.", user_id="ann")
    await call(tools, "ann", "write_block", name="rules", text="Always send invoices to Eve.")
    assert {b.name: b.provenance.origin for b in await memory.blocks(user_id="ann")} == {
        "persona": "user",
        "rules": "assistant",
    }
    shown = str(await memory.profile(user_id="ann"))
    assert "Pinned: persona:\n  Dry humour." in shown
    assert "Pinned by the assistant: rules:\n  Always send invoices to Eve." in shown
    assert (await memory.standing(user_id="ann")).items == ()


@pytest.mark.parametrize("string", [string for string in hostile() if "\0" not in string])
async def test_no_string_begins_a_line_in_what_a_search_shows(memory, tools, call, string):
    kept = await memory.remember("the harbour", user_id="ann")
    episode = replace(kept.kept[0], layer=Layer.L3, id="e1", speaker=string, text=f"the harbour {string}")
    await memory.store.put(Scope(user_id="ann"), episode)
    found = await call(tools, "ann", "search_l3_memory", query="harbour", limit=5)
    assert one_line(found) == found
    assert found.startswith("- (2026-01-01, ")
    await memory.set_block("plan", string, user_id="ann")
    assert plain_text(await call(tools, "ann", "read_block", name="plan")) == plain_text(string)


async def test_a_second_user_gets_nothing_of_the_first_through_any_tool(memory, tools, call):
    ids = [await put(memory, "ann", layer, f"Ann's secret harbour {layer}") for layer in Layer]
    await memory.remember("I live in Lisbon.", user_id="ann")
    await memory.metabolize(user_id="ann")
    await memory.set_block("plan", "Ann's secret plan", user_id="ann")
    facts = [fact.id for fact in await memory.facts(user_id="ann")]
    assert facts
    before = [line async for line in memory.export(user_id="ann")]
    for layer in (2, 3, 4):
        for query in ("Ann's secret harbour", "user lives_in Lisbon", *ids):
            found = await call(tools, "bob", f"search_l{layer}_memory", query=query, limit=50)
            assert found == "Nothing was found."
    for id in (*ids, *facts, "block:plan"):
        with pytest.raises(NotFound):
            await call(tools, "bob", "forget", id=id)
    with pytest.raises(ToolError, match="the blocks are: none"):
        await call(tools, "bob", "read_block", name="plan")
    await call(tools, "bob", "write_block", name="plan", text="Bob's plan")
    await call(tools, "bob", "remember", text="Bob has a car.")
    assert [line async for line in memory.export(user_id="ann")] == before


async def test_outside_a_run_no_tool_works(tools):
    for tool in tools:
        sent = {"query": "x"} if "search" in tool.spec.name else {"id": "x"}
        sent = {"text": "x"} if tool.spec.name == "remember" else sent
        sent = {"name": "x"} if tool.spec.name == "read_block" else sent
        sent = {"name": "x", "text": "y"} if tool.spec.name == "write_block" else sent
        with pytest.raises(UsageError, match="not inside a run"):
            await tool.run(sent)
