"""Laws of a store's optional protocols: pruning, touching, vectors and keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from loom.core.filter import Eq
from loom.core.record import Episode, Layer
from loom.errors import EmbedderMismatch, NotFound, UsageError
from loom.protocols.memory_store import KeepsKeys, KeepsVectors, Prunes, Query, Touches
from loom.testing.clock import FakeClock
from loom.testing.conformance.samples import (
    ALICE,
    BOB,
    DAY,
    HOUR,
    START,
    KeyKeepingStore,
    PruningStore,
    TouchingStore,
    VectorKeepingStore,
    a_block,
    a_fact,
    an_episode,
    ids_of,
    listed,
)
from loom.testing.conformance.suite import needs

IDENTITY = "suite:1:2"
NAN, INFINITY = float("nan"), float("inf")


class PruneLaws:
    """The laws of a store that prunes."""

    @needs(Prunes)
    async def test_the_least_recently_accessed_go_first(self, store: PruningStore, clock: FakeClock) -> None:
        """At equal access the oldest, then by id."""
        clock.advance(10 * DAY)
        await store.put(
            ALICE,
            an_episode("d", recorded_at=START, at=START, accessed_at=START + 4 * DAY, accesses=9),
            an_episode("c", recorded_at=START + HOUR, at=START + HOUR, accessed_at=START + 3 * DAY),
            an_episode("b", recorded_at=START, at=START, accessed_at=START + 3 * DAY),
            an_episode("a", recorded_at=START + HOUR, at=START + HOUR, accessed_at=START + 3 * DAY),
        )
        assert await store.prune(ALICE, layer=Layer.L1, keep=3) == ("b",)
        assert await store.prune(ALICE, layer=Layer.L1, keep=2) == ("a",)
        assert await store.prune(ALICE, layer=Layer.L1, keep=0) == ("c", "d")

    @needs(Prunes)
    async def test_of_what_was_never_accessed_the_oldest_goes_first(self, store: PruningStore) -> None:
        """Then by id."""
        for id, age in (("a", 1), ("b", 3), ("d", 2), ("c", 2)):
            await store.put(ALICE, an_episode(id, recorded_at=START - age * DAY, at=START - age * DAY))
        assert await store.prune(ALICE, layer=Layer.L1, keep=1) == ("b", "c", "d")

    @needs(Prunes)
    async def test_pruned_is_archived_and_not_deleted(self, store: PruningStore, clock: FakeClock) -> None:
        """Only `archived_at` changes, and a search with `archived` still finds the episode."""
        await store.put(ALICE, an_episode("e1", attributes={"n": 1}), an_episode("e2", accessed_at=START + HOUR))
        clock.advance(DAY)
        assert await store.prune(ALICE, layer=Layer.L1, keep=1) == ("e1",)
        assert await store.get(ALICE, "e1") == an_episode("e1", attributes={"n": 1}, archived_at=clock.now())
        assert await ids_of(store, ALICE, "tea") == ["e2"]
        assert sorted(await ids_of(store, ALICE, "tea", archived=True)) == ["e1", "e2"]

    @needs(Prunes)
    async def test_pruning_again_changes_nothing(self, store: PruningStore, clock: FakeClock) -> None:
        """What is archived is neither counted nor archived again."""
        await store.put(ALICE, *(an_episode(f"e{n}") for n in range(4)))
        assert len(await store.prune(ALICE, layer=Layer.L1, keep=2, before=START)) == 2
        after = await store.list(ALICE)
        clock.advance(DAY)
        assert await store.prune(ALICE, layer=Layer.L1, keep=2, before=START) == ()
        assert await store.list(ALICE) == after

    @needs(Prunes)
    async def test_prune_by_age_takes_what_was_recorded_before(self, store: PruningStore) -> None:
        """`before` itself stays, and recorded_at counts, not `at`."""
        await store.put(ALICE, an_episode("old", recorded_at=START - HOUR, at=START + DAY))
        await store.put(ALICE, an_episode("edge", recorded_at=START, at=START - DAY))
        assert await store.prune(ALICE, layer=Layer.L1, before=START) == ("old",)

    @needs(Prunes)
    async def test_prune_stays_inside_layer_and_scope(self, store: PruningStore) -> None:
        """Other layers, users, sessions, facts and blocks are left alone."""
        await store.put(ALICE, an_episode("l2", layer=Layer.L2), a_fact(), a_block(), an_episode("s2", session_id="s2"))
        await store.put(ALICE, an_episode("s1", session_id="s1"))
        await store.put(BOB, an_episode("s1", session_id="s1"))
        assert await store.prune(ALICE.for_session("s1"), layer=Layer.L1, keep=0) == ("s1",)
        assert await listed(store, ALICE, Eq("archived_at", None)) == ["block:persona", "f1", "l2", "s2"]
        assert await listed(store, BOB, Eq("archived_at", None)) == ["s1"]


class TouchLaws:
    """The laws of a store that counts accesses."""

    @needs(Touches)
    async def test_a_touch_changes_only_the_accesses(self, store: TouchingStore) -> None:
        """Every other field stays as it was."""
        await store.put(ALICE, an_episode(accesses=2, importance=0.5, attributes={"n": 1}))
        await store.touch(ALICE, "e1", at=START + DAY)
        expected = an_episode(accesses=3, accessed_at=START + DAY, importance=0.5, attributes={"n": 1})
        assert await store.get(ALICE, "e1") == expected
        assert await ids_of(store, ALICE, "tea") == ["e1"]

    @needs(Touches)
    async def test_concurrent_touches_all_count(self, store: TouchingStore) -> None:
        """No update is lost among tasks."""
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))

        async def touch() -> None:
            await store.touch(ALICE, "e1", "e2", at=START + HOUR)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(touch)
        found = await store.list(ALICE)
        assert [record.accesses for record in found if isinstance(record, Episode)] == [20, 20]

    @needs(Touches)
    async def test_a_touch_of_the_unknown_is_ignored(self, store: TouchingStore) -> None:
        """Unknown ids, other users and other sessions, facts and blocks are left as they are."""
        await store.put(BOB, an_episode())
        await store.put(ALICE, a_fact(), a_block(), an_episode("e2", session_id="s2"))
        await store.touch(ALICE.for_session("s1"), "e1", "e2", "f1", "block:persona", "unknown", at=START + DAY)
        assert await store.get(BOB, "e1") == an_episode()
        assert list(await store.list(ALICE)) == [a_block(), an_episode("e2", session_id="s2"), a_fact()]


class VectorLaws:
    """The laws of a store with vectors."""

    @needs(KeepsVectors)
    async def test_the_nearest_come_first(self, store: VectorKeepingStore) -> None:
        """Vectors speak as `dense`, with the cosine; a record without a vector is not a hit."""
        await store.bind(IDENTITY, 2)
        await store.put(ALICE, *(an_episode(id, "piano") for id in ("near", "far", "twin", "none")))
        await store.put_vectors(ALICE, {"near": [2.0, 0.0], "twin": (5.0, 0.0), "far": [1.0, 1.0]})
        hits = await store.search(ALICE, Query(vector=[3.0, 0.0]))
        assert [hit.item.id for hit in hits] == ["near", "twin", "far"]
        assert [hit.why["dense"] for hit in hits] == pytest.approx([1, 1, 0.5**0.5], abs=1e-3)

    @needs(KeepsVectors)
    async def test_words_and_vectors_speak_together(self, store: VectorKeepingStore) -> None:
        """What either finds is a hit, and `why` tells them apart."""
        await store.bind(IDENTITY, 2)
        await store.put(ALICE, an_episode("both"), an_episode("words"), an_episode("dense", "piano"))
        await store.put_vectors(ALICE, {"both": [1.0, 0.0], "dense": [1.0, 0.0]})
        hits = await store.search(ALICE, Query(text="tea", vector=[1.0, 0.0]))
        signals = {hit.item.id: set(hit.why) for hit in hits}
        assert signals == {"both": {"bm25", "dense"}, "words": {"bm25"}, "dense": {"dense"}}

    @needs(KeepsVectors)
    async def test_vectors_obey_filters_scopes_and_time(self, store: VectorKeepingStore) -> None:
        """Records that a search by words would exclude, vectors do not find either, and they take no place."""
        await store.bind(IDENTITY, 2)
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("old", archived_at=START), a_fact("past", superseded_at=START))
        await store.put(ALICE, an_episode("s2", session_id="s2"), an_episode("mine", session_id="s1"))
        await store.put_vectors(BOB, {"bob": [1.0, 0.0]})
        await store.put_vectors(ALICE, {id: [1.0, 0.0] for id in ("old", "past", "s2")} | {"mine": [0.1, 1.0]})
        session = ALICE.for_session("s1")
        assert await ids_of(store, session, vector=[1.0, 0.0], limit=1) == ["mine"]
        assert await ids_of(store, session, vector=[1.0, 0.0], where=Eq("kind", "fact")) == []
        assert await ids_of(store, session, vector=[1.0, 0.0], history=True, limit=1) == ["past"]

    @needs(KeepsVectors)
    async def test_before_bind_no_vector_is_taken(self, store: VectorKeepingStore) -> None:
        """Without a bound embedder, its vector space would be unknown."""
        await store.put(ALICE, an_episode())
        with pytest.raises(UsageError):
            await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})

    @needs(KeepsVectors)
    async def test_another_embedder_is_refused(self, store: VectorKeepingStore) -> None:
        """The same again is a no-op; another identity or dimension is EmbedderMismatch, and the first holds."""
        await store.bind(IDENTITY, 2)
        await store.bind(IDENTITY, 2)
        for identity, dimension in (("other:1:2", 2), (IDENTITY, 3), ("other:1:3", 3)):
            with pytest.raises(EmbedderMismatch):
                await store.bind(identity, dimension)
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})

    @needs(KeepsVectors)
    @pytest.mark.parametrize(("identity", "dimension"), [("", 2), (" ", 2), (IDENTITY, 0), (IDENTITY, -1)])
    async def test_an_embedder_without_a_name_or_size_is_refused(
        self, store: VectorKeepingStore, identity: str, dimension: int
    ) -> None:
        """UsageError, bound or not; and it binds nothing."""
        with pytest.raises(UsageError):
            await store.bind(identity, dimension)
        await store.bind(IDENTITY, 2)
        with pytest.raises(UsageError):
            await store.bind(identity, dimension)

    @needs(KeepsVectors)
    @pytest.mark.parametrize("bad", [[1.0], [1.0, 0.0, 0.0], [NAN, 1.0], [INFINITY, 1.0]], ids=str)
    async def test_a_bad_vector_is_refused(self, store: VectorKeepingStore, bad: list[float]) -> None:
        """Another dimension or a NaN is refused, stored or asked, and nothing of the batch is written."""
        await store.bind(IDENTITY, 2)
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        with pytest.raises(UsageError):
            await store.put_vectors(ALICE, {"e1": [1.0, 0.0], "e2": bad})
        with pytest.raises(UsageError):
            await store.search(ALICE, Query(vector=bad))
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []

    @needs(KeepsVectors)
    async def test_the_vector_of_an_unknown_record_is_refused(self, store: VectorKeepingStore) -> None:
        """Of another user or session too, and nothing of the batch is written."""
        await store.bind(IDENTITY, 2)
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"))
        for id in ("unknown", "bob", "e2"):
            with pytest.raises(NotFound):
                await store.put_vectors(ALICE.for_session("s1"), {"e1": [1.0, 0.0], id: [1.0, 0.0]})
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []

    @needs(KeepsVectors)
    async def test_a_vector_lives_and_dies_with_its_record(self, store: VectorKeepingStore) -> None:
        """It outlives a change of other fields, and no deletion."""
        await store.bind(IDENTITY, 2)
        for remove in (partial(store.delete, ALICE, "e1"), partial(store.forget, ALICE)):
            await store.put(ALICE, an_episode())
            await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
            await store.put(ALICE, an_episode(layer=Layer.L2))
            assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
            await remove()
            await store.put(ALICE, an_episode())
            assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []


class KeyLaws:
    """The laws of a store with search keys."""

    @needs(KeepsKeys)
    async def test_a_record_is_found_by_its_keys(self, store: KeyKeepingStore) -> None:
        """Each kind speaks for itself, and the score is the sum."""
        await store.put(ALICE, an_episode(), an_episode("e2", "a piano"))
        await store.put_keys(ALICE, {"e1": {"around": "green tea and a zeppelin", "fact": "alice likes zeppelins"}})
        (hit,) = await store.search(ALICE, Query(text="zeppelin"))
        assert (hit.item, set(hit.why)) == (an_episode(), {"bm25.around", "bm25.fact"})
        (hit,) = await store.search(ALICE, Query(text="tea"))
        assert set(hit.why) == {"bm25", "bm25.around"}
        assert min(hit.why.values()) > 0
        assert hit.score == pytest.approx(sum(hit.why.values()))

    @needs(KeepsKeys)
    async def test_put_keys_replaces_the_kinds_it_names(self, store: KeyKeepingStore) -> None:
        """Other kinds stay; an empty text takes a key away."""
        await store.put(ALICE, an_episode())
        await store.put_keys(ALICE, {"e1": {"around": "zeppelin", "fact": "garden"}})
        await store.put_keys(ALICE, {"e1": {"around": "winter"}})
        assert [await ids_of(store, ALICE, w) for w in ("zeppelin", "garden", "winter")] == [[], ["e1"], ["e1"]]
        await store.put_keys(ALICE, {"e1": {"fact": ""}})
        assert [await ids_of(store, ALICE, w) for w in ("garden", "winter", "tea")] == [[], ["e1"], ["e1"]]

    @needs(KeepsKeys)
    async def test_a_key_never_takes_the_records_place(self, store: KeyKeepingStore) -> None:
        """get, list and count know nothing of keys, and a put keeps them."""
        await store.put(ALICE, an_episode())
        await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
        assert await store.list(ALICE) == (an_episode(),)
        await store.put(ALICE, an_episode(layer=Layer.L2))
        assert await ids_of(store, ALICE, "zeppelin") == ["e1"]

    @needs(KeepsKeys)
    async def test_the_key_of_an_unknown_record_is_refused(self, store: KeyKeepingStore) -> None:
        """Of another user or session too, and nothing of the batch is written."""
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"))
        for id in ("unknown", "bob", "e2"):
            with pytest.raises(NotFound):
                await store.put_keys(ALICE.for_session("s1"), {"e1": {"k": "zeppelin"}, id: {"k": "zeppelin"}})
        assert await ids_of(store, ALICE, "zeppelin") == []
        assert await ids_of(store, BOB, "zeppelin") == []

    @needs(KeepsKeys)
    async def test_keys_obey_filters_scopes_and_time(self, store: KeyKeepingStore) -> None:
        """What the own text would not find, a key does not find either."""
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("old", archived_at=START), a_fact("past", superseded_at=START))
        await store.put(ALICE, an_episode("e1", session_id="s1"))
        key: Any = {"k": "zeppelin"}
        await store.put_keys(BOB, {"bob": key})
        await store.put_keys(ALICE, {"old": key, "past": key, "e1": key})
        assert await ids_of(store, ALICE, "zeppelin") == ["e1"]
        assert await ids_of(store, ALICE, "zeppelin", where=Eq("session_id", None)) == []
        assert await ids_of(store, ALICE.for_session("s2"), "zeppelin") == []

    @needs(KeepsKeys)
    async def test_keys_live_and_die_with_their_record(self, store: KeyKeepingStore) -> None:
        """After delete() or forget() nothing is found by them, also when the id comes back."""
        for remove in (partial(store.delete, ALICE, "e1"), partial(store.forget, ALICE)):
            await store.put(ALICE, an_episode())
            await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
            assert await ids_of(store, ALICE, "zeppelin") == ["e1"]
            await remove()
            await store.put(ALICE, an_episode())
            assert await ids_of(store, ALICE, "zeppelin") == []
