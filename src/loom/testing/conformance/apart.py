"""Laws of a store with native hybrid search: by words and by vector in one call."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Protocol

import pytest

from loom.core.filter import Eq
from loom.core.hit import Hit, rank_key
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.memory_store import KeepsKeys, KeepsVectors, MemoryStore, Query, SearchesApart
from loom.testing.conformance.samples import ALICE, BOB, START, a_fact, an_episode
from loom.testing.conformance.suite import needs

_WORDS = ("tea", "zeppelin", "harbour", "piano", "green", "walk", "seven", "letter")
_ALL = 1000


class _BothStore(MemoryStore, KeepsKeys, KeepsVectors, SearchesApart, Protocol):
    """A memory store with native hybrid search."""


class ApartLaws:
    """The laws of hybrid search."""

    @needs(SearchesApart, KeepsVectors, KeepsKeys)
    @pytest.mark.parametrize("seed", range(4))
    async def test_words_and_vector_find_what_each_finds_alone(self, store: _BothStore, seed: int) -> None:
        """Every hit has its lexical score, if words found it, and its distance."""
        chance = Random(seed)  # noqa: S311 - nothing is secret here
        await _fill(store, chance)
        for scope in (ALICE, ALICE.for_session("s1")):
            for where in (None, Eq("kind", "episode"), Eq("speaker", "nobody")):
                vector = [chance.gauss(), chance.gauss(), chance.gauss()]
                query = Query(text=" ".join(chance.sample(_WORDS, 2)), vector=vector, limit=5, where=where)
                await _check(store, scope, query, near=chance.choice((1, 4, 70)))

    @needs(SearchesApart, KeepsVectors)
    async def test_without_words_or_vector_it_is_refused(self, store: _BothStore) -> None:
        """And so is a question for nothing."""
        await store.bind("suite:1:3", 3)
        await store.put(ALICE, an_episode())
        for query in (Query(text="tea"), Query(vector=[1.0, 0.0, 0.0])):
            with pytest.raises(UsageError):
                await store.search_apart(ALICE, query, near=3)
        with pytest.raises(UsageError):
            await store.search_apart(ALICE, Query(text="tea", vector=[1.0, 0.0, 0.0]), near=0)
        assert await store.search_apart(BOB, Query(text="tea", vector=[1.0, 0.0, 0.0]), near=3) == ()


async def _fill(store: _BothStore, chance: Random) -> None:
    await store.bind("suite:1:3", 3)
    await store.put(BOB, an_episode("bob", "tea zeppelin harbour piano"))
    await store.put_vectors(BOB, {"bob": [1.0, 1.0, 1.0]})
    records = [
        an_episode(
            f"e{i:02}",
            " ".join(chance.sample(_WORDS, 3)),
            session_id=chance.choice(("s1", "s2")),
            archived_at=chance.choice((None, None, None, START)),
        )
        for i in range(60)
    ]
    await store.put(ALICE, *records, a_fact("f1"), a_fact("past", superseded_at=START))
    ids = [record.id for record in records]
    await store.put_keys(ALICE, {id: {"around": " ".join(chance.sample(_WORDS, 4))} for id in chance.sample(ids, 30)})
    with_vector = [*chance.sample(ids, 40), "f1", "past"]
    await store.put_vectors(ALICE, {id: [chance.gauss() for _ in range(3)] for id in with_vector})


async def _check(store: _BothStore, scope: Scope, query: Query, *, near: int) -> None:
    words, vector = replace(query, vector=None), replace(query, text="")
    said = _by_id(await store.search(scope, words))
    nearest = _by_id(await store.search(scope, replace(vector, limit=near)))
    close = _by_id(await store.search(scope, replace(vector, limit=_ALL)))
    found = await store.search_apart(scope, query, near=near)
    assert {hit.item.id for hit in found} == said.keys() | nearest.keys()
    assert list(found) == sorted(found, key=rank_key)
    for hit in found:
        parts = [hits[hit.item.id].why for hits in (said, close) if hit.item.id in hits]
        expected = {signal: score for why in parts for signal, score in why.items()}
        assert dict(hit.why) == pytest.approx(expected, abs=1e-5)
        assert hit.score == pytest.approx(sum(expected.values()), abs=1e-4)


def _by_id(hits: tuple[Hit, ...]) -> dict[str, Hit]:
    return {hit.item.id: hit for hit in hits}
