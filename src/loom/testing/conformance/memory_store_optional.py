"""Laws of a memory store's optional protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Protocol, TypeAlias, cast

import pytest

from loom.core.clock import to_micros
from loom.core.filter import And, Eq, Not
from loom.core.record import Episode, Hit, Layer, Provenance, Record, WorkingBlock, rank_key
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, NotFound, StaleWrite, StoreConflict, UsageError
from loom.protocols.memory_store import (
    ColumnSearch,
    ExportsKeys,
    HitColumns,
    HybridSearch,
    KeepsJobs,
    KeepsKeys,
    KeepsVectors,
    MemoryStore,
    Newest,
    PrimaryStore,
    Prunes,
    Query,
    ReadsTogether,
    Reembeds,
    SearchKeys,
    Store,
    Touches,
    WritesVectors,
)
from loom.testing.conformance.suite import (
    ALICE,
    BOB,
    DAY,
    HOUR,
    a_block,
    a_fact,
    a_job,
    an_episode,
    at_once,
    ids_of,
    listed,
    needs,
)
from loom.testing.fakes import START, FakeClock

IDENTITY = "suite:1:2"
NAN, INFINITY = float("nan"), float("inf")


@needs(Prunes)
class PruneLaws:
    """The laws of a store that prunes."""

    async def test_the_least_recently_accessed_go_first(self, store: PrimaryStore, clock: FakeClock) -> None:
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

    async def test_of_what_was_never_accessed_the_oldest_goes_first(self, store: PrimaryStore) -> None:
        """Then by id."""
        for id, age in (("a", 1), ("b", 3), ("d", 2), ("c", 2)):
            await store.put(ALICE, an_episode(id, recorded_at=START - age * DAY, at=START - age * DAY))
        assert await store.prune(ALICE, layer=Layer.L1, keep=1) == ("b", "c", "d")

    async def test_pruned_is_archived_and_not_deleted(self, store: PrimaryStore, clock: FakeClock) -> None:
        """Only `archived_at` changes, and a search with `archived` still finds the episode."""
        await store.put(ALICE, an_episode("e1", attributes={"n": 1}), an_episode("e2", accessed_at=START + HOUR))
        clock.advance(DAY)
        assert await store.prune(ALICE, layer=Layer.L1, keep=1) == ("e1",)
        assert await store.get(ALICE, "e1") == an_episode("e1", attributes={"n": 1}, archived_at=clock.now())
        assert await ids_of(store, ALICE, "tea") == ["e2"]
        assert sorted(await ids_of(store, ALICE, "tea", archived=True)) == ["e1", "e2"]

    async def test_pruning_again_changes_nothing(self, store: PrimaryStore, clock: FakeClock) -> None:
        """What is archived is neither counted nor archived again."""
        await store.put(ALICE, *(an_episode(f"e{n}") for n in range(4)))
        assert len(await store.prune(ALICE, layer=Layer.L1, keep=2, before=START)) == 2
        after = await store.list(ALICE)
        clock.advance(DAY)
        assert await store.prune(ALICE, layer=Layer.L1, keep=2, before=START) == ()
        assert await store.list(ALICE) == after

    async def test_prune_by_age_takes_what_was_recorded_before(self, store: PrimaryStore) -> None:
        """`before` itself stays, and recorded_at counts, not `at`."""
        await store.put(ALICE, an_episode("old", recorded_at=START - HOUR, at=START + DAY))
        await store.put(ALICE, an_episode("edge", recorded_at=START, at=START - DAY))
        assert await store.prune(ALICE, layer=Layer.L1, before=START) == ("old",)

    async def test_prune_stays_inside_layer_and_scope(self, store: PrimaryStore) -> None:
        """Other layers, users, sessions, facts and blocks are left alone."""
        await store.put(ALICE, an_episode("l2", layer=Layer.L2), a_fact(), a_block(), an_episode("s2", session_id="s2"))
        await store.put(ALICE, an_episode("s1", session_id="s1"))
        await store.put(BOB, an_episode("s1", session_id="s1"))
        assert await store.prune(ALICE.for_session("s1"), layer=Layer.L1, keep=0) == ("s1",)
        assert await listed(store, ALICE, Eq("archived_at", None)) == ["block:persona", "f1", "l2", "s2"]
        assert await listed(store, BOB, Eq("archived_at", None)) == ["s1"]


@needs(Touches)
class TouchLaws:
    """The laws of a store that counts accesses."""

    async def test_a_touch_changes_only_the_accesses(self, store: PrimaryStore) -> None:
        """Every other field stays as it was."""
        await store.put(ALICE, an_episode(accesses=2, importance=0.5, attributes={"n": 1}))
        await store.touch(ALICE, "e1", at=START + DAY)
        expected = an_episode(accesses=3, accessed_at=START + DAY, importance=0.5, attributes={"n": 1})
        assert await store.get(ALICE, "e1") == expected
        assert await ids_of(store, ALICE, "tea") == ["e1"]

    async def test_concurrent_touches_all_count(self, store: PrimaryStore) -> None:
        """No update is lost among tasks."""
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        await at_once(*(store.touch(ALICE, "e1", "e2", at=START + HOUR) for _ in range(20)))
        found = await store.list(ALICE)
        assert [record.accesses for record in found if isinstance(record, Episode)] == [20, 20]

    async def test_a_touch_of_the_unknown_is_ignored(self, store: PrimaryStore) -> None:
        """Unknown ids, other users and other sessions, facts and blocks are left as they are."""
        await store.put(BOB, an_episode())
        await store.put(ALICE, a_fact(), a_block(), an_episode("e2", session_id="s2"))
        await store.touch(ALICE.for_session("s1"), "e1", "e2", "f1", "block:persona", "unknown", at=START + DAY)
        assert await store.get(BOB, "e1") == an_episode()
        assert list(await store.list(ALICE)) == [a_block(), an_episode("e2", session_id="s2"), a_fact()]


class _EmbeddedStore(PrimaryStore, WritesVectors, Protocol):
    """A store that writes vectors with their records."""


@needs(KeepsVectors)
class VectorLaws:
    """The laws of a store with vectors."""

    async def test_the_nearest_come_first(self, store: PrimaryStore) -> None:
        """Vectors speak as `dense`, with the cosine; a record without a vector is not a hit."""
        await store.bind(IDENTITY, 2)
        await store.put(ALICE, *(an_episode(id, "piano") for id in ("near", "far", "twin", "none")))
        await store.put_vectors(ALICE, {"near": [2.0, 0.0], "twin": (5.0, 0.0), "far": [1.0, 1.0]})
        hits = await store.search(ALICE, Query(vector=[3.0, 0.0]))
        assert [hit.item.id for hit in hits] == ["near", "twin", "far"]
        assert [hit.why["dense"] for hit in hits] == pytest.approx([1, 1, 0.5**0.5], abs=1e-3)

    @needs(WritesVectors)
    async def test_vectors_are_written_with_their_records_or_nothing_is(self, store: _EmbeddedStore) -> None:
        """One transaction: a vector that is refused leaves no record, key or job behind."""
        await store.bind(IDENTITY, 2)
        for vectors in ({"a": [1.0, 0.0, 0.0]}, {"a": [1.0, float("nan")]}):
            with pytest.raises(UsageError):
                await store.write_embedded(ALICE, vectors, put=[an_episode("a", "piano")], jobs=[a_job()])
        with pytest.raises(NotFound):
            await store.write_embedded(ALICE, {"b": [1.0, 0.0]}, put=[an_episode("a", "piano")])
        assert await listed(store, ALICE) == []
        epoch = await store.epoch(ALICE)
        done = await store.write_embedded(
            ALICE,
            {"a": [2.0, 0.0]},
            put=[an_episode("a", "piano")],
            keys={"a": {"k": "forte"}},
            jobs=[a_job()],
            since=epoch,
        )
        hits = await store.search(ALICE, Query(text="forte", vector=[1.0, 0.0]))
        assert (done, [sorted(hit.why) for hit in hits]) == (1, [["bm25.k", "dense"]])
        await store.delete(ALICE, "a")
        with pytest.raises(StaleWrite):
            await store.write_embedded(ALICE, {"c": [2.0, 0.0]}, put=[an_episode("c")], since=epoch)

    async def test_words_and_vectors_speak_together(self, store: PrimaryStore) -> None:
        """What either finds is a hit, and `why` tells them apart."""
        await store.bind(IDENTITY, 2)
        await store.put(ALICE, an_episode("both"), an_episode("words"), an_episode("dense", "piano"))
        await store.put_vectors(ALICE, {"both": [1.0, 0.0], "dense": [1.0, 0.0]})
        hits = await store.search(ALICE, Query(text="tea", vector=[1.0, 0.0]))
        signals = {hit.item.id: set(hit.why) for hit in hits}
        assert signals == {"both": {"bm25", "dense"}, "words": {"bm25"}, "dense": {"dense"}}

    async def test_vectors_obey_filters_scopes_and_time(self, store: PrimaryStore) -> None:
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

    async def test_before_bind_no_vector_is_taken(self, store: PrimaryStore) -> None:
        """Without a bound embedder, its vector space would be unknown."""
        await store.put(ALICE, an_episode())
        with pytest.raises(UsageError):
            await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})

    async def test_another_embedder_is_refused(self, store: PrimaryStore) -> None:
        """The same again is a no-op; another identity or dimension is EmbedderMismatch, and the first holds."""
        await store.bind(IDENTITY, 2)
        await store.bind(IDENTITY, 2)
        for identity, dimension in (("other:1:2", 2), (IDENTITY, 3), ("other:1:3", 3)):
            with pytest.raises(EmbedderMismatch):
                await store.bind(identity, dimension)
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})

    @pytest.mark.parametrize(("identity", "dimension"), [("", 2), (" ", 2), (IDENTITY, 0), (IDENTITY, -1)])
    async def test_an_embedder_without_a_name_or_size_is_refused(
        self, store: PrimaryStore, identity: str, dimension: int
    ) -> None:
        """UsageError, bound or not; and it binds nothing."""
        with pytest.raises(UsageError):
            await store.bind(identity, dimension)
        await store.bind(IDENTITY, 2)
        with pytest.raises(UsageError):
            await store.bind(identity, dimension)

    @pytest.mark.parametrize("bad", [[1.0], [1.0, 0.0, 0.0], [NAN, 1.0], [INFINITY, 1.0]], ids=str)
    async def test_a_bad_vector_is_refused(self, store: PrimaryStore, bad: list[float]) -> None:
        """Another dimension or a NaN is refused, stored or asked, and nothing of the batch is written."""
        await store.bind(IDENTITY, 2)
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        with pytest.raises(UsageError):
            await store.put_vectors(ALICE, {"e1": [1.0, 0.0], "e2": bad})
        with pytest.raises(UsageError):
            await store.search(ALICE, Query(vector=bad))
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []

    async def test_the_vector_of_an_unknown_record_is_refused(self, store: PrimaryStore) -> None:
        """Of another user or session too, and nothing of the batch is written."""
        await store.bind(IDENTITY, 2)
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"))
        for id in ("unknown", "bob", "e2"):
            with pytest.raises(NotFound):
                await store.put_vectors(ALICE.for_session("s1"), {"e1": [1.0, 0.0], id: [1.0, 0.0]})
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []

    async def test_a_vector_lives_and_dies_with_its_record(self, store: PrimaryStore) -> None:
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


@needs(KeepsKeys)
class KeyLaws:
    """The laws of a store with search keys."""

    async def test_a_record_is_found_by_its_keys(self, store: PrimaryStore) -> None:
        """Each kind speaks for itself, and the score is the sum."""
        await store.put(ALICE, an_episode(), an_episode("e2", "a piano"))
        await store.put_keys(ALICE, {"e1": {"around": "green tea and a zeppelin", "fact": "alice likes zeppelins"}})
        (hit,) = await store.search(ALICE, Query(text="zeppelin"))
        assert (hit.item, set(hit.why)) == (an_episode(), {"bm25.around", "bm25.fact"})
        (hit,) = await store.search(ALICE, Query(text="tea"))
        assert set(hit.why) == {"bm25", "bm25.around"}
        assert min(hit.why.values()) > 0
        assert hit.score == pytest.approx(sum(hit.why.values()))

    async def test_put_keys_replaces_the_kinds_it_names(self, store: PrimaryStore) -> None:
        """Other kinds stay; an empty text takes a key away."""
        await store.put(ALICE, an_episode())
        await store.put_keys(ALICE, {"e1": {"around": "zeppelin", "fact": "garden"}})
        await store.put_keys(ALICE, {"e1": {"around": "winter"}})
        assert [await ids_of(store, ALICE, w) for w in ("zeppelin", "garden", "winter")] == [[], ["e1"], ["e1"]]
        await store.put_keys(ALICE, {"e1": {"fact": ""}})
        assert [await ids_of(store, ALICE, w) for w in ("garden", "winter", "tea")] == [[], ["e1"], ["e1"]]

    async def test_a_key_never_takes_the_records_place(self, store: PrimaryStore) -> None:
        """get, list and count know nothing of keys, and a put keeps them."""
        await store.put(ALICE, an_episode())
        await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
        assert await store.list(ALICE) == (an_episode(),)
        await store.put(ALICE, an_episode(layer=Layer.L2))
        assert await ids_of(store, ALICE, "zeppelin") == ["e1"]

    async def test_the_key_of_an_unknown_record_is_refused(self, store: PrimaryStore) -> None:
        """Of another user or session too, and nothing of the batch is written."""
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"))
        for id in ("unknown", "bob", "e2"):
            with pytest.raises(NotFound):
                await store.put_keys(ALICE.for_session("s1"), {"e1": {"k": "zeppelin"}, id: {"k": "zeppelin"}})
        assert await ids_of(store, ALICE, "zeppelin") == []
        assert await ids_of(store, BOB, "zeppelin") == []

    async def test_keys_obey_filters_scopes_and_time(self, store: PrimaryStore) -> None:
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

    async def test_keys_live_and_die_with_their_record(self, store: PrimaryStore) -> None:
        """After delete() or forget() nothing is found by them, also when the id comes back."""
        for remove in (partial(store.delete, ALICE, "e1"), partial(store.forget, ALICE)):
            await store.put(ALICE, an_episode())
            await store.put_keys(ALICE, {"e1": {"around": "zeppelin"}})
            assert await ids_of(store, ALICE, "zeppelin") == ["e1"]
            await remove()
            await store.put(ALICE, an_episode())
            assert await ids_of(store, ALICE, "zeppelin") == []


# Laws of a store with native hybrid search: by words and by vector in one call.

_WORDS = ("tea", "zeppelin", "harbour", "piano", "green", "walk", "seven", "letter")
_ALL = 1000


class _TogetherStore(Store, ReadsTogether, Protocol):
    """A store that keeps jobs, and answers several reads from one moment."""


class _BothStore(MemoryStore, KeepsKeys, KeepsVectors, HybridSearch, Protocol):
    """A memory store with native hybrid search."""


class ApartLaws:
    """The laws of hybrid search."""

    @needs(HybridSearch, KeepsVectors, KeepsKeys)
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

    @needs(HybridSearch, KeepsVectors)
    async def test_without_words_or_vector_it_is_refused(self, store: _BothStore) -> None:
        """And so is a question for nothing."""
        await store.bind("suite:1:3", 3)
        await store.put(ALICE, an_episode())
        for query in (Query(text="tea"), Query(vector=[1.0, 0.0, 0.0])):
            with pytest.raises(UsageError):
                await store.search_hybrid(ALICE, query, near=3)
        with pytest.raises(UsageError):
            await store.search_hybrid(ALICE, Query(text="tea", vector=[1.0, 0.0, 0.0]), near=0)
        assert await store.search_hybrid(BOB, Query(text="tea", vector=[1.0, 0.0, 0.0]), near=3) == ()


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
    found = await store.search_hybrid(scope, query, near=near)
    assert {hit.item.id for hit in found} == said.keys() | nearest.keys()
    assert list(found) == sorted(found, key=rank_key)
    for hit in found:
        parts = [hits[hit.item.id].why for hits in (said, close) if hit.item.id in hits]
        expected = {signal: score for why in parts for signal, score in why.items()}
        assert dict(hit.why) == pytest.approx(expected, abs=1e-5)
        assert hit.score == pytest.approx(sum(expected.values()), abs=1e-4)
    if isinstance(store, ColumnSearch):
        columns = await store.search_columns(scope, query, near=near)
        assert [columns.read(place) for place in range(len(columns))] == [hit.item for hit in found]
        for place, hit in enumerate(found):
            why = {name: column[place] for name, column in columns.signals.items() if column[place] == column[place]}
            assert why == dict(hit.why)
            assert _row(columns, place) == _glance(cast("Record", hit.item))


def _row(columns: HitColumns, place: int) -> tuple[object, ...]:
    """What columns tell of a record."""
    names = ("ids", "kinds", "texts", "origins", "derived", "speakers", "sessions", "times", "attributes")
    recorded = columns.recorded[place] if columns.kinds[place] == Episode.kind else None
    return (*(getattr(columns, name)[place] for name in names), recorded)


def _glance(record: Record) -> tuple[object, ...]:
    """The same of the record itself."""
    sources = () if isinstance(record, WorkingBlock) else record.sources
    head = (record.id, record.kind, record.text, record.provenance.origin, bool(sources))
    if not isinstance(record, Episode):
        return (*head, None, None, None, {}, None)
    times = to_micros(record.at), to_micros(record.recorded_at)
    return (*head, record.speaker, record.session_id, times[0], record.attributes, times[1])


def _by_id(hits: tuple[Hit, ...]) -> dict[str, Hit]:
    return {hit.item.id: hit for hit in hits}


# Laws of a store that can export a record with its search keys and its vector.


@needs(ExportsKeys, KeepsKeys, KeepsVectors)
class HandoverLaws:
    """The laws of exporting records with their keys."""

    async def test_keys_and_vectors_are_handed_over(self, store: PrimaryStore) -> None:
        """Keys as they were set, vectors in their direction; nothing where there is nothing."""
        await store.bind("suite:1:2", 2)
        await store.put(ALICE, an_episode(), an_episode("e3", layer=Layer.L3), a_fact())
        await store.put_keys(ALICE, {"e1": {"around": " caf\u00e9 tea ", "fact": "tea"}, "e3": {"fact": "zeppelin"}})
        await store.put_keys(ALICE, {"e1": {"fact": ""}})
        await store.put_vectors(ALICE, {"e1": [0.0, 5.0], "f1": (3.0, 4.0)})
        found = await store.search_keys(ALICE, "e1", "e3", "f1", "unknown", "e1")
        assert dict(found) == {
            "e1": SearchKeys({"around": " caf\u00e9 tea "}),
            "e3": SearchKeys({"fact": "zeppelin"}),
            "f1": SearchKeys(),
        }
        assert _direction(found["e1"]) == pytest.approx([0, 1], abs=1e-6)
        assert _direction(found["f1"]) == pytest.approx([0.6, 0.8], abs=1e-6)
        assert found["e3"].vector is None

    async def test_only_what_the_scope_sees_is_handed_over(self, store: PrimaryStore) -> None:
        """Nothing of another user or session, and nothing that was deleted."""
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3"))
        await store.put_keys(BOB, {"bob": {"fact": "zeppelin"}})
        await store.delete(ALICE, "e3")
        assert await store.search_keys(ALICE.for_session("s1"), "bob", "e1", "e2", "e3") == {"e1": SearchKeys()}


def _direction(found: SearchKeys) -> list[float]:
    numbers = [] if found.vector is None else list(found.vector)
    length = sum(number**2 for number in numbers) ** 0.5
    return [number / length for number in numbers]


# Laws of a store whose vectors can be replaced by those of another embedder.

OLD, NEW = "suite:1:2", "suite:2:3"
ELSEWHERE = Scope("another", "alice")


@needs(Reembeds)
class ReembedLaws:
    """The laws of replacing all vectors."""

    async def test_rebind_exchanges_every_vector_and_the_embedder(self, store: PrimaryStore) -> None:
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

    async def test_vectors_of_the_same_size_are_not_mixed(self, store: PrimaryStore) -> None:
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

    async def test_the_same_embedder_again_changes_nothing(self, store: PrimaryStore) -> None:
        """Interrupted work continues where it stopped."""
        assert await store.rebind(NEW, 2) is True
        await store.put(ALICE, an_episode("e1"), an_episode("e2"))
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        assert await store.rebind(NEW, 2) is False
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]
        assert await store.unembedded() == ((ALICE, an_episode("e2")),)

    async def test_a_dimension_without_numbers_is_refused(self, store: PrimaryStore) -> None:
        """And the vectors are still there."""
        await store.bind(OLD, 2)
        await store.put(ALICE, an_episode())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        with pytest.raises(UsageError):
            await store.rebind(NEW, 0)
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == ["e1"]

    async def test_unembedded_lists_all_users_page_by_page(self, store: PrimaryStore) -> None:
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


# Laws of writes that were prepared from a read: records removed after the read do not come back.

_Change: TypeAlias = Callable[[Store], Awaitable[Any]]

_REMOVALS: dict[str, _Change] = {
    "delete": lambda store: store.delete(ALICE, "e1"),
    "delete in a write": lambda store: store.write(ALICE, delete=["e1"]),
    "delete and put again": lambda store: store.write(ALICE, delete=["e1"], put=[an_episode()]),
    "forget a session": lambda store: store.forget(ALICE.for_session("s1")),
    "forget the user": lambda store: store.forget(ALICE),
    "another text": lambda store: store.put(ALICE, an_episode(text="we drank coffee")),
    "another text of a block": lambda store: store.put(ALICE, a_block(text="likes coffee", version=2)),
}
_OTHER_CHANGES: dict[str, _Change] = {
    "put": lambda store: store.put(ALICE, an_episode("e9"), a_fact("f9")),
    "the same again": lambda store: store.put(ALICE, an_episode(), a_block()),
    "another field": lambda store: store.put(ALICE, an_episode(importance=0.5)),
    "delete what is not there": lambda store: store.delete(ALICE, "unknown"),
    "forget a session that is not there": lambda store: store.forget(ALICE.for_session("other")),
    "what others remove": lambda store: store.forget(BOB),
    "a job": lambda store: store.write(ALICE, jobs=[a_job("j9")]),
}


@needs(KeepsJobs)
class EpochLaws:
    """The laws of a read, a computation and a write that depends on both."""

    @needs(ReadsTogether)
    async def test_reads_of_one_moment_are_those_of_single_calls(self, store: _TogetherStore) -> None:
        """All records that fit each filter, of one user, and the epoch of that user."""
        await _filled(store)
        await store.put(BOB, an_episode("of bob"))
        wheres = (Eq("kind", "episode"), Eq("kind", "fact"), Eq("id", "nothing"))
        for scope in (ALICE, BOB):
            found = await store.read_together(scope, *wheres)
            assert found.epoch == await store.epoch(scope)
            single = [await store.list(scope, where=where) for where in wheres]
            assert [list(records) for records in found.lists] == [list(records) for records in single]

    @needs(ReadsTogether)
    async def test_the_newest_of_many_are_those_recorded_last(self, store: _TogetherStore) -> None:
        """Of the episodes that fit a filter, by id, as many as were asked for; beside lists of all."""
        later = [timedelta(minutes=n * 7 % 10) for n in range(10)]
        await store.put(ALICE, *(an_episode(f"e{n}", recorded_at=START + by) for n, by in enumerate(later)))
        await store.put(ALICE, an_episode("t", recorded_at=START + HOUR, provenance=Provenance("tool")), a_fact("f"))
        said = Eq("origin", "user")
        not_about_jam = And(said, Not(Eq("meta.topic", "jam")))  # which no column tells
        for limit in (0, 1, 3, 10, 50):
            wheres = Newest(said, limit), Newest(not_about_jam, limit), said
            newest, others, all_of_them = (await store.read_together(ALICE, *wheres)).lists
            last = sorted(range(10), key=later.__getitem__)[max(0, 10 - limit) :]
            assert [record.id for record in newest] == [f"e{n}" for n in sorted(last)]
            assert others == newest == (await store.read_together(ALICE, wheres[0])).lists[0]
            assert len(all_of_them) == 11

    @pytest.mark.parametrize("name", _REMOVALS)
    async def test_a_write_prepared_before_a_removal_is_refused(self, store: Store, name: str) -> None:
        """Records, keys and jobs of it: none is written, and the epoch read now is good for the next."""
        await _filled(store)
        since = await store.epoch(ALICE)
        await _REMOVALS[name](store)
        left, pending = await listed(store, ALICE), await store.pending(ALICE)
        with pytest.raises(StaleWrite, match="alice"):
            await store.write(ALICE, put=[an_episode("late")], jobs=[a_job("late")], since=since)
        assert (await listed(store, ALICE), await store.pending(ALICE)) == (left, pending)
        assert await store.write(ALICE, put=[an_episode("new")], since=await store.epoch(ALICE)) == 0
        assert "new" in await listed(store, ALICE)

    @pytest.mark.parametrize("name", [name for name in _REMOVALS if name != "forget the user"])
    async def test_a_job_that_read_before_a_removal_cannot_finish(self, store: Store, name: str) -> None:
        """It stays open and held; what it does after reading again is taken."""
        await _filled(store)
        await store.write(ALICE, jobs=[a_job()])
        (lease,) = await store.lease(now=START, until=START + HOUR)
        since = await store.epoch(ALICE)
        await _REMOVALS[name](store)
        left = await listed(store, ALICE)
        with pytest.raises(StaleWrite):
            await store.finish(lease, put=[a_fact("late")], jobs=[a_job("next")], since=since)
        assert (await listed(store, ALICE), await store.pending(ALICE)) == (left, 1)
        await store.finish(lease, put=[a_fact("good")], since=await store.epoch(ALICE))
        assert (await listed(store, ALICE), await store.pending(ALICE)) == (sorted([*left, "good"]), 0)

    async def test_a_forgotten_user_who_comes_back_is_somebody_else(self, store: Store) -> None:
        """A write is refused if its read was before the user's first record, or before the user was forgotten."""
        absent = await store.epoch(ALICE)
        await _filled(store)
        there = await store.epoch(ALICE)
        await store.forget(ALICE)
        for since in (absent, there):
            with pytest.raises(StaleWrite):
                await store.write(ALICE, put=[an_episode("late")], since=since)
        await _filled(store)
        for since in (absent, there):
            with pytest.raises(StaleWrite):
                await store.write(ALICE, put=[an_episode("late")], since=since)
        assert "late" not in await listed(store, ALICE)

    async def test_the_first_write_of_a_user_may_name_its_epoch(self, store: Store) -> None:
        """Where nothing was, nothing was removed."""
        await store.write(ALICE, put=[an_episode()], since=await store.epoch(ALICE))
        assert await listed(store, ALICE) == ["e1"]

    @pytest.mark.parametrize("name", _OTHER_CHANGES)
    async def test_what_removes_no_text_of_the_user_keeps_the_epoch(self, store: Store, name: str) -> None:
        """So that writers who only add never stop each other."""
        await _filled(store)
        await store.put(BOB, an_episode())
        since = await store.epoch(ALICE)
        await _OTHER_CHANGES[name](store)
        assert await store.epoch(ALICE) == since
        await store.write(ALICE, put=[an_episode("new")], since=since)

    async def test_of_a_removal_and_a_prepared_write_one_comes_first(self, store: Store) -> None:
        """At the same moment, whatever is left is as if one had followed the other."""
        for number in range(8):
            await store.put(ALICE, an_episode(f"said{number}", "zeppelin"))

        async def derive(number: int) -> None:
            since = await store.epoch(ALICE)
            if await store.get(ALICE, f"said{number}") is not None:
                with suppress(StoreConflict):
                    await store.write(ALICE, put=[an_episode(f"made{number}", "zeppelin")], since=since)

        def remove(number: int) -> Coroutine[Any, Any, Any]:
            return store.write(ALICE, delete=[f"said{number}", f"made{number}"])

        await at_once(*(change(number) for number in range(8) for change in (derive, remove)))
        assert await listed(store, ALICE) == []


async def _filled(store: Store) -> None:
    await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2"), a_fact(), a_block())


class OptionalLaws(PruneLaws, TouchLaws, VectorLaws, ReembedLaws, KeyLaws, HandoverLaws, ApartLaws, EpochLaws):
    """The laws of all optional protocols but jobs."""
