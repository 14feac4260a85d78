"""Which embedder a store is opened with: the one it was made with, and none that sends texts away unless it is named."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from loom import open_memory
from loom.providers.embedding.local import HashEmbedder

pytestmark = pytest.mark.anyio
ALICE = {"user_id": "alice"}


@pytest.fixture(autouse=True)
def no_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key for OpenAI in the environment, and nobody who could be reached with it."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a text was about to leave this machine")

    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setattr(socket.socket, "connect", refuse)


class FarAway:
    """An embedder of somebody else's, as a file may hold the vectors of."""

    def __init__(self, identity: str) -> None:
        self.identity, self.dimension = identity, 8

    async def embed(self, texts: Any, *, purpose: Any) -> Any:
        return await HashEmbedder(8).embed(texts, purpose=purpose)


async def test_a_key_in_the_environment_sends_nothing_away(tmp_path: Path) -> None:
    async with open_memory(f"sqlite:{tmp_path / 'm.db'}") as memory:
        done = await memory.remember("The boat is red.", **ALICE)
        found = await memory.recall("boat", **ALICE)
        assert (done.notes, found.notes) == ((), ())
        assert "dense" in found.hits[0].why
        assert "on this machine" in memory.embedder_note


@pytest.mark.parametrize("first", ["recall", "remember", "stats"])
async def test_a_file_opens_with_the_local_embedder_it_was_made_with(tmp_path: Path, first: str) -> None:
    place = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(place, embedder=HashEmbedder(64)) as memory:
        await memory.remember("The boat is red.", **ALICE)
    async with open_memory(place) as memory:
        notes: tuple[str, ...] = ()
        if first == "remember":
            notes = (await memory.remember("The boat is blue.", **ALICE)).notes
        elif first == "stats":
            await memory.stats(**ALICE)
            assert memory.embedder_note == "embedding with hash:1:64, because this store was made with it"
        found = await memory.recall("boat", **ALICE)
        assert (*notes, *found.notes) == ()
        assert found.hits
        assert all("dense" in hit.why for hit in found)
        assert memory.embedder_note == "embedding with hash:1:64, because this store was made with it"


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("openai:text-embedding-3-small:8", "openai"),
        ("openai:text-embedding-3-large:8", "openai-large"),
        ("mine:1:8", "mine"),
    ],
)
async def test_a_file_of_an_embedder_that_is_not_local_is_searched_by_words_and_says_what_to_do(
    tmp_path: Path, identity: str, name: str
) -> None:
    place = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(place, embedder=FarAway(identity)) as memory:
        await memory.remember("The boat is red.", **ALICE)
    async with open_memory(place) as memory:
        done = await memory.remember("The boat is blue.", **ALICE)
        found = await memory.recall("boat", **ALICE)
        assert len(found) == 2
        for note in (*done.notes, *found.notes):
            assert f"open it with embedder={name!r}" in note
            assert "loom memory reembed" in note


@pytest.mark.parametrize("name", ["wordllama", "minilm"])
async def test_a_file_of_a_local_embedder_that_is_not_installed_names_the_extra_and_can_be_embedded_again(
    tmp_path: Path, name: str
) -> None:
    place = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(place, embedder=FarAway(f"{name}:0.0.1:8")) as memory:
        await memory.remember("The boat is red.", **ALICE)
    async with open_memory(place) as memory:
        done = await memory.remember("The boat is blue.", **ALICE)
        found = await memory.recall("boat", **ALICE)
        assert {hit.item.text for hit in found} == {"The boat is red.", "The boat is blue."}
        for note in (*done.notes, *found.notes):
            assert "run `loom memory reembed`" in note
            assert f"open it with embedder={name!r} (pip install 'loom-engine[{name}]')" in note
        assert (await memory.reembed()).records == 2
        found = await memory.recall("boat", **ALICE)
        assert found.notes == ()
        assert all("dense" in hit.why for hit in found)


async def test_a_file_of_an_earlier_version_of_the_default_can_only_be_embedded_again(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(place, embedder=FarAway("static:1:8")) as memory:
        await memory.remember("The boat is red.", **ALICE)
    async with open_memory(place) as memory:
        found = await memory.recall("boat", **ALICE)
        assert found.hits
        assert found.notes[0].endswith("run `loom memory reembed`")
        assert (await memory.reembed()).records == 1
        assert (await memory.recall("boat", **ALICE)).notes == ()


async def test_an_embedder_that_was_named_is_not_exchanged_for_another(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(place, embedder=HashEmbedder(64)) as memory:
        await memory.remember("The boat is red.", **ALICE)
    async with open_memory(place, embedder="hash") as memory:
        found = await memory.recall("boat", **ALICE)
        assert "this store holds vectors from hash:1:64" in found.notes[0]
        assert "embedder='hash' was configured" in memory.embedder_note
