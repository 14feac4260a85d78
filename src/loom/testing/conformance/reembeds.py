"""Laws of a store whose vectors can be replaced by those of another embedder."""

from __future__ import annotations

import pytest

from loom.core.filter import Eq
from loom.core.record import Episode
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, UsageError
from loom.protocols.memory_store import Reembeds
from loom.testing.conformance.samples import ALICE, BOB, ReembeddingStore, a_block, a_fact, an_episode, ids_of
from loom.testing.conformance.suite import needs

OLD, NEW = "suite:1:2", "suite:2:3"
ELSEWHERE = Scope("another", "alice")


class ReembedLaws:
    """The laws of replacing all vectors."""

    @needs(Reembeds)
    async def test_rebind_exchanges_every_vector_and_the_embedder(self, store: ReembeddingStore) -> None:
        """No old vector is left for any user, the old embedder is refused, and the records are as they were."""
        await store.bind(OLD, 2)
        for scope in (ALICE, BOB, ELSEWHERE):
            await store.put(scope, an_episode(), a_fact(), a_block())
            await store.put_vectors(scope, {"e1": [1.0, 0.0]})
            assert await ids_of(store, scope, vector=[1.0, 0.0]) == ["e1"]
        assert await store.rebind(NEW, 3) is True
        with pytest.raises(EmbedderMismatch):
            await store.bind(OLD, 2)
        for scope in (ALICE, BOB, ELSEWHERE):
            assert await ids_of(store, scope, vector=[1.0, 0.0, 0.0]) == []
            assert list(await store.list(scope)) == [a_block(), an_episode(), a_fact()]
            assert await ids_of(store, scope, "tea", where=Eq("kind", "episode")) == ["e1"]
            await store.put_vectors(scope, {"e1": [0.0, 0.0, 1.0]})
            assert await ids_of(store, scope, vector=[0.0, 0.0, 1.0]) == ["e1"]

    @needs(Reembeds)
    async def test_vectors_of_the_same_size_are_not_mixed(self, store: ReembeddingStore) -> None:
        """Nothing that was cached for a search outlives the replacement."""
        await store.bind(OLD, 2)
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0], "e2": [0.0, 1.0]})
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1", "e2"]
        await store.rebind(NEW, 2)
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []
        await store.put_vectors(ALICE, {"e2": [1.0, 0.0]})
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e2"]
        await store.rebind(OLD, 2)
        await store.rebind(NEW, 2)
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == [], "there and back is an exchange, too"

    @needs(Reembeds)
    async def test_the_same_embedder_again_changes_nothing(self, store: ReembeddingStore) -> None:
        """Interrupted work continues where it stopped."""
        assert await store.rebind(NEW, 2) is True
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert await store.rebind(NEW, 2) is False
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
        assert await store.unembedded() == ((ALICE, an_episode("e2")),)

    @needs(Reembeds)
    async def test_a_dimension_without_numbers_is_refused(self, store: ReembeddingStore) -> None:
        """And the vectors are still there."""
        await store.bind(OLD, 2)
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        with pytest.raises(UsageError):
            await store.rebind(NEW, 0)
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]

    @needs(Reembeds)
    async def test_unembedded_lists_all_users_page_by_page(self, store: ReembeddingStore) -> None:
        """By namespace, user and id; a page begins behind the one before, and the filter comes before the limit."""
        await store.bind(OLD, 2)
        expected: list[tuple[Scope, Episode]] = []
        for scope in (ELSEWHERE, ALICE, BOB):
            for number in range(3):
                await store.put(scope, an_episode(f"e{number}", session_id="s"), a_fact())
            await store.put_vectors(scope, {"e1": [1.0, 0.0]})
            expected += [(scope, an_episode(id, session_id="s")) for id in ("e0", "e2")]
        episodes = Eq("kind", "episode")
        found: list[object] = []
        after: tuple[Scope, str] | None = None
        while page := await store.unembedded(where=episodes, after=after, limit=1):
            found += page
            after = (page[-1][0], page[-1][1].id)
        assert found == expected
        assert await store.count_unembedded(where=episodes) == 6
        assert await store.count_unembedded() == 9
        with pytest.raises(UsageError):
            await store.unembedded(limit=0)
