"""A memory beside a vector engine while its embedder is down: words are kept and found, and vectors come later."""

import pytest

from loom import open_memory
from loom.errors import ProviderUnavailable
from loom.stores.chroma import ChromaVectorStore
from loom.stores.qdrant import QdrantVectorStore
from loom.stores.sqlite import SqliteStore
from loom.wrappers.indexed import IndexedStore
from tests.stores.engines import needs_package

pytestmark = pytest.mark.anyio


class Flaky:
    """An embedder that can be switched off."""

    identity, dimension = "flaky:1:2", 2

    def __init__(self):
        self.is_down = False

    async def embed(self, texts, *, purpose):
        if self.is_down:
            raise ProviderUnavailable("the embedder is down; try again")
        return [[float("bee" in text), 1.0] for text in texts]


@pytest.mark.parametrize(
    "open_index",
    [
        pytest.param(ChromaVectorStore, marks=needs_package("chromadb"), id="chroma"),
        pytest.param(QdrantVectorStore, marks=needs_package("qdrant_client"), id="qdrant"),
        pytest.param(
            lambda folder: QdrantVectorStore(f"edge:{folder}"), marks=needs_package("qdrant_edge"), id="qdrant-edge"
        ),
    ],
)
async def test_words_are_kept_and_found_and_vectors_come_later(open_index, tmp_path):
    embedder = Flaky()
    store = IndexedStore(SqliteStore(tmp_path / "memory.db", durability="fast"), open_index(tmp_path / "index"))
    async with open_memory(store, embedder=embedder, with_facts=False) as memory:
        await memory.remember("Ann keeps bees.", user_id="u")
        embedder.is_down = True
        done = await memory.remember("Bob mends clocks.", user_id="u")
        found = await memory.recall("who mends clocks?", user_id="u")
        assert [note for note in done.notes if "embedder is down" in note]
        assert found.hits[0].item.text == "Bob mends clocks."
        assert found.notes == ("searched by words only: the embedder is down; try again",)
        assert (await store.verify()).vectors == 1
        embedder.is_down = False
        assert (await memory.reembed()).records == 1
        assert (await store.verify()).vectors == 2
        assert (await store.verify()).is_equal
        found = await memory.recall("who mends clocks?", user_id="u")
        assert found.notes == ()
        assert "dense" in found.hits[0].why
