"""Users of a SQLite store with many vectors, of whom only sketches are kept: what is replaced, removed, or fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from numpy.typing import NDArray

from loom.core.filter import Eq, Not
from loom.errors import StoreUnavailable
from loom.protocols.memory_store import Query
from loom.stores.sqlite import SqliteStore, index, search
from loom.testing.conformance.suite import ALICE, an_episode

pytestmark = pytest.mark.anyio
SIZE = 256
MANY = 2_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "x.db", durability="fast") as store:
        store._cache = index.SearchCache(2**29, store._changes, exact_numbers=2**10)
        await store.bind(f"suite:1:{SIZE}", SIZE)
        yield store


class Cosines:
    """Vectors with a cosine to the question that is chosen."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(1)
        question = self._chance.standard_normal(SIZE)
        self.question: NDArray[np.float64] = question / np.linalg.norm(question)

    def at(self, cosine: float) -> list[float]:
        other = self._chance.standard_normal(SIZE)
        other -= self.question * (self.question @ other)
        other /= np.linalg.norm(other)
        return (cosine * self.question + np.sqrt(1 - cosine * cosine) * other).tolist()


async def test_a_vector_that_was_replaced_counts_once(store: SqliteStore) -> None:
    vectors = Cosines()
    await store.put(
        ALICE, *(an_episode(f"e{n:05}", f"plum {n}", speaker="her" if n < 10 else "him") for n in range(MANY))
    )
    await store.put_vectors(ALICE, {f"e{n:05}": vectors.at(0.95 - n / MANY) for n in range(MANY)})
    query = Query(text="plum", vector=vectors.question.tolist(), archived=True, where=Eq("speaker", "her"))
    await store.search_columns(ALICE, query, near=10)
    for cosine in (0.86, 0.85, 0.84):
        await store.put_vectors(ALICE, {f"e{n:05}": vectors.at(cosine - n / 1_000) for n in range(10)})
        found = await store.search_columns(ALICE, query, near=10)
        cosines = dict(zip(found.ids, found.signals["dense"].tolist(), strict=True))
        assert cosines == pytest.approx({f"e{n:05}": cosine - n / 1_000 for n in range(10)}, abs=1e-4)
        hits = await store.search(ALICE, query)
        assert [hit.why["dense"] for hit in hits] == pytest.approx([cosine - n / 1_000 for n in range(10)], abs=1e-4)


async def test_a_long_conversation_that_is_left_out_does_not_make_a_search_list_everything(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best 300 are of the conversation itself, which the model sees anyway."""
    vectors, ids, listed = Cosines(), [f"e{n:05}" for n in range(MANY)], list[int]()
    monkeypatch.setattr(search, "_fitting", lambda *_, **__: listed.append(1) or [])
    sessions = ["now" if n < 300 else "before" for n in range(MANY)]
    await store.put(ALICE, *(an_episode(id, "plum", session_id=of) for id, of in zip(ids, sessions, strict=True)))
    await store.put_vectors(ALICE, {id: vectors.at(0.95 - n / MANY / 2) for n, id in enumerate(ids)})
    query = Query(
        text="pear", vector=vectors.question.tolist(), limit=100, archived=True, where=Not(Eq("session_id", "now"))
    )
    found = await store.search_columns(ALICE, query, near=100)
    assert set(found.ids) == set(ids[300:400])
    assert not listed


async def test_vectors_that_could_not_be_read_count_once_when_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pages of vectors, of which the second fails once."""
    made, calls = index._matrix, list[int]()

    def failing(vectors: Any, size: int) -> Any:
        calls.append(len(vectors))
        if len(calls) == 2:
            raise apsw.IOError("disk I/O error")
        return made(vectors, size)

    async with SqliteStore(tmp_path / "x.db", durability="fast") as store:
        await store.bind("suite:1:2", 2)
        await store.put(ALICE, *(an_episode(f"e{n:05}", f"plum {n}") for n in range(5_000)))
        await store.put_vectors(ALICE, {f"e{n:05}": [1.0, n / 1000] for n in range(5_000)})
        query = Query(text="pear", vector=[1.0, 0.0], limit=5, archived=True)
        monkeypatch.setattr(index, "_matrix", failing)
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            await store.search_columns(ALICE, query, near=5)
        found = await store.search_columns(ALICE, query, near=5)
        assert list(found.ids) == [f"e{n:05}" for n in range(5)]
        assert found.signals["dense"].tolist() == pytest.approx([1.0] * 5, abs=1e-4)


async def test_sketches_that_could_not_be_read_are_read_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = Cosines()
    await store.put(ALICE, *(an_episode(f"e{n:05}", f"plum {n}") for n in range(MANY)))
    await store.put_vectors(ALICE, {f"e{n:05}": vectors.at(0.95 - n / MANY) for n in range(MANY)})
    query = Query(text="pear", vector=vectors.question.tolist(), limit=5, archived=True)
    with monkeypatch.context() as patch:
        patch.setattr(index.Vectors, "append", _out_of_space)
        with pytest.raises(StoreUnavailable):
            await store.search_columns(ALICE, query, near=5)
    found = await store.search_columns(ALICE, query, near=5)
    assert list(found.ids) == [f"e{n:05}" for n in range(5)]


def _out_of_space(*_: Any) -> None:
    raise apsw.FullError("database or disk is full")


async def test_few_vectors_of_many_records_are_brought_in_once(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, loads = Cosines(), list[int]()
    load = index._Held._load_sketches
    monkeypatch.setattr(index._Held, "_load_sketches", lambda *given: loads.append(1) or load(*given))
    await store.put(ALICE, *(an_episode(f"e{n:05}", f"plum {n}") for n in range(MANY)))
    await store.put_vectors(ALICE, {f"e{MANY - n:05}": vectors.at(0.9 - n / 100) for n in range(1, 4)})
    query = Query(text="pear", vector=vectors.question.tolist(), limit=5, archived=True)
    for _ in range(5):
        assert len(await store.search_columns(ALICE, query, near=5)) == 3
    assert len(loads) == 1
