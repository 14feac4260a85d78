"""ChromaMemory: memory in a folder of Chroma, in memory, and beside a server."""

import sys

import anyio
import pytest

from loom import Agent
from loom.errors import StoreUnavailable, UsageError
from loom.memory.chroma import ChromaMemory
from loom.memory.embedder import HashEmbedder
from loom.stores.chroma import ChromaVectorStore
from loom.stores.chroma.store import hold, release
from loom.testing import ScriptedModel
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("chromadb")]


async def test_a_folder_holds_all_of_it(tmp_path):
    folder = tmp_path / "new" / "chroma"
    memory = ChromaMemory.local(folder, embedder=HashEmbedder(), with_facts=True)
    assert not folder.exists()
    async with memory:
        await memory.remember("I live in Tokyo.", user_id="alice")
        await memory.set_block("persona", "calm", user_id="alice")
    async with ChromaMemory.local(folder, embedder=HashEmbedder()) as memory:
        found = await memory.recall("Who lives in Tokyo?", user_id="alice")
        assert [hit.item.text for hit in found.hits] == ["I live in Tokyo."]
        assert [block.text for block in await memory.blocks(user_id="alice")] == ["calm"]
        assert (await memory.recall("Who lives in Tokyo?", user_id="bob")).hits == ()
        assert (await memory.store.verify()).is_equal
        assert (await memory.store.verify()).vectors == 1
    assert {file.name for file in folder.iterdir()} >= {"memory.db", "chroma.sqlite3"}


async def test_two_ephemeral_memories_never_meet():
    async with ChromaMemory.ephemeral(embedder=HashEmbedder()) as one:
        async with ChromaMemory.ephemeral(embedder=HashEmbedder()) as other:
            await one.remember("green tea", user_id="alice")
            assert (await other.recall("tea", user_id="alice")).hits == ()
            assert await other.store._index.users() == ()
        assert len((await one.recall("tea", user_id="alice")).hits) == 1


async def test_beside_a_server(chroma_url, tmp_path):
    async with ChromaMemory.server(chroma_url, primary=tmp_path / "memory.db", embedder=HashEmbedder()) as memory:
        await memory.remember("green tea", user_id="alice")
        assert (await memory.store.verify()).vectors == 1
        assert (await memory.store.verify()).is_equal
        receipt = await memory.forget(user_id="alice")
        assert receipt.removed["episode"] == 1
        assert await memory.store._index.users() == ()


async def test_an_agent_remembers_with_it(tmp_path):
    memory = ChromaMemory.local(tmp_path / "chroma", embedder=HashEmbedder())
    async with memory, Agent(model=ScriptedModel(["Hello Alice.", "In Tokyo."]), memory=memory) as agent:
        await agent.run("Hi, I'm Alice and I live in Tokyo.", user_id="alice")
        await agent.run("Where do I live?", user_id="alice", session_id="another")
        asked = str(agent.model.requests[-1])
        assert "Tokyo" in asked


async def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    source = f"""
import sys
from loom.stores.chroma.store import hold
hold({str(tmp_path)!r})
sys.stdout.write("held")
sys.stdout.flush()
sys.stdin.read()
"""
    store = ChromaVectorStore(tmp_path)
    async with await anyio.open_process([sys.executable, "-c", source], stderr=None) as other:
        assert await other.stdout.receive() == b"held"
        with pytest.raises(StoreUnavailable, match=rf"open in process {other.pid}, .*chroma run --path"):
            await store.users()
        await other.stdin.aclose()
        await other.wait()
    assert await store.users() == ()
    await store.aclose()


def test_one_process_may_hold_a_folder_twice(tmp_path):
    first, second = hold(str(tmp_path)), hold(str(tmp_path))
    release(first)
    release(second)
    with pytest.raises(KeyError):
        release(first)


async def test_a_server_that_is_not_there_is_said_so(tmp_path):
    store = ChromaVectorStore("http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.users()
    await store.aclose()
    with pytest.raises(UsageError, match="closed"):
        await store.users()
    with pytest.raises(UsageError, match=r"ChromaMemory\.server"):
        ChromaMemory.local("http://127.0.0.1:9")
