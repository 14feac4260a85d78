"""Vectors of an embedder in this process are written with the texts; those of any other embedder after them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from loom import open_memory
from loom.errors import ProviderUnavailable
from loom.protocols.embedder import Purpose
from loom.stores.sqlite.file import SqliteFile

pytestmark = pytest.mark.anyio
TEXTS = ["The boat is blue.", "We had soup for lunch."]


class Letters:
    """Counts letters, unless it is told to fail or to give vectors that no store takes."""

    identity, dimension = "letters:26", 26

    def __init__(self, *, is_instant: bool, fails: int = 0, size: int = 26) -> None:
        self.is_instant, self.fails, self.size = is_instant, fails, size

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[list[float]]:
        assert purpose
        if self.fails:
            self.fails -= 1
            raise ProviderUnavailable("no letters today; try again")
        return [[text.lower().count(chr(97 + place)) + 0.01 for place in range(self.size)] for text in texts]


async def _remembered(
    path: Path, monkeypatch: pytest.MonkeyPatch, embedder: Letters
) -> tuple[int, tuple[str, ...], list[str]]:
    """How many commits a `remember` takes, its notes, and what the vectors find afterwards."""
    commits, commit = list[object](), SqliteFile.commit

    def counted(*given: object) -> object:
        commits.append(given)
        return commit(*given)  # type: ignore[arg-type]

    async with open_memory(f"sqlite:{path}", embedder=embedder, facts=None) as memory:
        await memory.remember("The first text binds the file.", user_id="bob")
        with monkeypatch.context() as patch:
            patch.setattr(SqliteFile, "commit", counted)
            done = await memory.remember(TEXTS, user_id="ann", session_id="s")
        embedder.fails, embedder.size = 0, 26
        assert [record.text for record in done.kept] == TEXTS
        found = await memory.recall("blue boat", user_id="ann")
        return len(commits), done.notes, sorted(hit.text for hit in found.hits if "dense" in hit.why)


@pytest.mark.parametrize(("is_instant", "commits"), [(True, 1), (False, 2)])
async def test_what_is_instant_takes_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_instant: bool, commits: int
) -> None:
    found = await _remembered(tmp_path / "memory.db", monkeypatch, Letters(is_instant=is_instant))
    assert found == (commits, (), TEXTS)


async def test_text_is_kept_when_an_instant_embedder_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Letters(is_instant=True)
    async with open_memory(f"sqlite:{tmp_path / 'memory.db'}", embedder=embedder, facts=None) as memory:
        embedder.fails = 1
        assert (await memory.remember(TEXTS[0], user_id="ann")).notes == (), "a second try embeds it"
        embedder.fails = 2
        (note,) = (await memory.remember(TEXTS[1], user_id="ann")).notes
        assert "kept without vectors" in note
        found = await memory.recall("soup for lunch", user_id="ann")
        assert found.hits[0].text == TEXTS[1]


async def test_text_is_kept_when_the_store_refuses_the_vectors(tmp_path: Path) -> None:
    embedder = Letters(is_instant=True)
    async with open_memory(f"sqlite:{tmp_path / 'memory.db'}", embedder=embedder, facts=None) as memory:
        await memory.remember("The first text binds the file.", user_id="ann")
        embedder.size = 7
        (note,) = (await memory.remember(TEXTS[1], user_id="ann", session_id="s")).notes
        assert "kept without vectors" in note
        embedder.size = 26
        assert (await memory.recall("soup for lunch", user_id="ann")).hits[0].text == TEXTS[1]
