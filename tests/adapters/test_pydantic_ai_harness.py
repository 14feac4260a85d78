"""pydantic-ai-harness: its `Memory` capability on the files of a user's memory in Loom."""

import asyncio

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.memory import (
    InMemoryStore,
    Memory,
    MemoryConflictError,
    MemoryOperation,
    MemoryOperationConflictError,
    MemoryStore,
)

from loom import memory_files, open_memory
from loom.adapters.pydantic_ai_harness import LoomMemoryStore
from loom.testing import run_context

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    async with LoomMemoryStore(f"sqlite:{tmp_path}/bot.db", user_id="ann") as store:
        yield store


async def test_it_is_a_memory_store_of_the_harness(store):
    assert isinstance(store, MemoryStore)


@pytest.mark.parametrize("kind", ["harness", "loom"])
async def test_files_behave_as_in_the_harness_own_store(kind, store):
    store = InMemoryStore() if kind == "harness" else store
    assert await store.read("main/MEMORY.md", max_chars=10) is None
    made = await store.write("main/MEMORY.md", "tea and cake", expected_version=None)
    assert (made.existed, made.replayed) == (False, False)
    read = await store.read("main/MEMORY.md", max_chars=3)
    assert (read.content, read.truncated, read.version) == ("tea", True, made.version)
    with pytest.raises(MemoryConflictError):
        await store.write("main/MEMORY.md", "coffee", expected_version=None)
    changed = await store.write("main/MEMORY.md", "coffee", expected_version=made.version)
    assert changed.existed
    assert changed.version != made.version
    await store.write("main/b.md", "b", expected_version=None)
    await store.write("other/a.md", "a", expected_version=None)
    assert await store.list_paths("main/", limit=9) == ["main/MEMORY.md", "main/b.md"]
    assert await store.list_paths(limit=2) == ["main/MEMORY.md", "main/b.md"]
    with pytest.raises(MemoryConflictError):
        await store.delete("main/MEMORY.md", expected_version=made.version)
    gone = await store.delete("main/MEMORY.md", expected_version=changed.version)
    assert (gone.version, gone.existed) == (None, True)
    assert not (await store.delete("main/MEMORY.md", expected_version=None)).existed
    again = await store.write("main/MEMORY.md", "tea and cake", expected_version=None)
    assert again.version not in {made.version, changed.version}
    for call in (store.read("../x", max_chars=1), store.read("a", max_chars=0), store.list_paths(limit=0)):
        with pytest.raises(ValueError, match=r".+"):
            await call


@pytest.mark.parametrize("kind", ["harness", "loom"])
async def test_an_operation_is_done_once(kind, store):
    store = InMemoryStore() if kind == "harness" else store
    first = MemoryOperation("op-1", "print-1")
    assert await store.get_operation(first) is None
    made = await store.write("n.md", "one", expected_version=None, operation=first)
    assert (await store.read("n.md", max_chars=9)).operation_id == "op-1"
    await store.write("n.md", "two", expected_version=made.version)
    replayed = await store.write("n.md", "one", expected_version=None, operation=first)
    assert (replayed.replayed, replayed.version, replayed.existed) == (True, made.version, False)
    assert (await store.read("n.md", max_chars=9)).content == "two"
    with pytest.raises(MemoryOperationConflictError):
        await store.get_operation(MemoryOperation("op-1", "another"))


async def test_of_two_writers_that_read_the_same_version_one_wins(store):
    made = await store.write("n.md", "0", expected_version=None)

    async def write(n: int) -> bool:
        try:
            await store.write("n.md", str(n), expected_version=made.version)
        except MemoryConflictError:
            return False
        return True

    assert (await asyncio.gather(*map(write, range(10)))).count(True) == 1


async def test_an_agent_writes_a_note_that_another_object_and_looms_tool_read(tmp_path):
    url = f"sqlite:{tmp_path}/bot.db"
    seen = list[str]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(str(messages))
        if len(seen) == 1:
            return ModelResponse(parts=[ToolCallPart("write_memory", {"content": "Ann plays the cello"})])
        return ModelResponse(parts=[TextPart("Noted.")])

    async with LoomMemoryStore(url, user_id="ann") as store:
        await Agent(FunctionModel(answer), capabilities=[Memory(store=store)]).run("I play the cello")
    async with LoomMemoryStore(url, user_id="ann") as store:
        await Agent(FunctionModel(answer), capabilities=[Memory(store=store)]).run("What do I play?")
    assert "Ann plays the cello" in seen[-1]
    async with open_memory(url) as memory:
        with run_context(user_id="ann"):
            assert "Ann plays the cello" in str(
                await memory_files(memory).run({"command": "view", "path": "/memories/main/MEMORY.md"})
            )
            listed = str(await memory_files(memory).run({"command": "view", "path": "/memories"}))
        assert "receipts" not in listed
        assert await memory.blocks(user_id="ann") == ()
        await memory.forget(user_id="ann")
    async with LoomMemoryStore(url, user_id="ann") as store:
        assert await store.list_paths(limit=9) == []


async def test_users_never_meet(tmp_path):
    async with open_memory(f"sqlite:{tmp_path}/bot.db") as memory:
        ann, bob = LoomMemoryStore(memory, user_id="ann"), LoomMemoryStore(memory, user_id="bob")
        await ann.write("n.md", "heron", expected_version=None, operation=MemoryOperation("o", "f"))
        assert await bob.read("n.md", max_chars=9) is None
        assert await bob.list_paths(limit=9) == []
        assert await bob.get_operation(MemoryOperation("o", "other")) is None


async def test_operations_beyond_the_kept_ones_are_dropped_and_what_does_not_fit_is_refused(store):
    version = None
    for n in range(300):
        made = await store.write(
            "n.md", str(n), expected_version=version, operation=MemoryOperation(f"{n:064}", "f" * 64)
        )
        version = made.version
    assert await store.get_operation(MemoryOperation(f"{0:064}", "f" * 64)) is None
    assert (await store.get_operation(MemoryOperation(f"{299:064}", "f" * 64))).replayed
    with pytest.raises(ValueError, match="split it"):
        await store.write("big.md", "x" * 100_001, expected_version=None)
