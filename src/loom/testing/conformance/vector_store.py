"""The laws of a vector store."""

from __future__ import annotations

import math
import random

import pytest

from loom.core.filter import Eq
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import KeepsPayloads, VectorItem, VectorStore
from loom.testing.conformance.suite import ALICE, BOB, TWINS, Suite

X, Y, XY = [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]
NAN, INFINITY = float("nan"), float("inf")


class VectorStoreSuite(Suite):
    """Subclass it and override the fixture `store`."""

    @pytest.fixture
    async def store(self) -> VectorStore:
        """An empty, unbound store; closed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `store`")

    async def test_the_nearest_come_first(self, store: VectorStore) -> None:
        """Scores are cosines, equal ones go by id, and attributes come back."""
        await store.upsert(ALICE, [VectorItem("b", X, {"n": 1}), VectorItem("a", X), VectorItem("c", XY)])
        hits = await store.search(ALICE, X)
        assert [(hit.id, dict(hit.attributes)) for hit in hits] == [("a", {}), ("b", {"n": 1}), ("c", {})]
        assert [hit.score for hit in hits] == pytest.approx([1, 1, 0.5**0.5], abs=1e-3)
        assert [hit.id for hit in await store.search(ALICE, X, limit=1)] == ["a"]

    async def test_an_empty_store_finds_nothing(self, store: VectorStore) -> None:
        """No vectors, no hits, no error."""
        await store.bind("suite:1:2", 2)
        assert await store.search(ALICE, X) == ()
        assert (await store.count(ALICE), await store.delete(ALICE, "a"), await store.forget(ALICE)) == (0, 0, 0)

    async def test_up_to_a_thousand_the_answer_is_exact(self, store: VectorStore) -> None:
        """The same as comparing with each."""
        rng = random.Random(1)  # noqa: S311
        vectors = {f"v{n:03}": [rng.gauss(0, 1) for _ in range(16)] for n in range(1000)}
        await store.upsert(ALICE, [VectorItem(id, vector) for id, vector in vectors.items()])
        for _ in range(5):
            asked = [rng.gauss(0, 1) for _ in range(16)]
            best = sorted(vectors, key=lambda id: -_cosine(asked, vectors[id]))[:20]
            assert [hit.id for hit in await store.search(ALICE, asked, limit=20)] == best

    async def test_scale_changes_no_answer(self, store: VectorStore) -> None:
        """Only the direction counts, stored and asked."""
        await store.upsert(ALICE, [VectorItem("a", [100.0, 1.0]), VectorItem("b", [0.01, 0.01]), VectorItem("c", Y)])
        for scale in (0.001, 1.0, 1000.0):
            hits = await store.search(ALICE, [scale, 0.0])
            assert [hit.id for hit in hits] == ["a", "b", "c"]
            assert [hit.score for hit in hits] == pytest.approx([1, 0.5**0.5, 0], abs=1e-3)

    async def test_upsert_replaces_by_id(self, store: VectorStore) -> None:
        """Vector and attributes, both."""
        await store.upsert(ALICE, [VectorItem("a", X, {"n": 1})])
        await store.upsert(ALICE, [VectorItem("a", Y, {"m": 2})])
        (hit,) = await store.search(ALICE, Y)
        assert (hit.score, dict(hit.attributes)) == (pytest.approx(1, abs=1e-3), {"m": 2})
        assert await store.count(ALICE) == 1

    @pytest.mark.parametrize("bad", [[1.0], [NAN, 1.0], [INFINITY, 1.0], [0.0, 0.0]], ids=str)
    async def test_a_bad_vector_is_refused(self, store: VectorStore, bad: list[float]) -> None:
        """Another dimension, NaN, infinity and zero; nothing of the batch is written."""
        await store.upsert(ALICE, [VectorItem("a", X)])
        with pytest.raises(UsageError):
            await store.upsert(ALICE, [VectorItem("b", Y), VectorItem("c", bad), VectorItem("a", Y)])
        with pytest.raises(UsageError):
            await store.search(ALICE, bad)
        assert [(hit.id, round(hit.score, 3)) for hit in await store.search(ALICE, X)] == [("a", 1)]

    async def test_another_embedder_is_refused(self, store: VectorStore) -> None:
        """The same again is a no-op."""
        await store.bind("suite:1:2", 2)
        await store.bind("suite:1:2", 2)
        with pytest.raises(EmbedderMismatch):
            await store.bind("other:1:2", 2)
        with pytest.raises(UsageError):
            await store.upsert(ALICE, [VectorItem("a", [1.0, 0.0, 0.0])])

    async def test_filters_come_before_the_limit(self, store: VectorStore) -> None:
        """Nearer vectors that do not fit the filter take no place."""
        await store.upsert(ALICE, [VectorItem(f"a{n}", X, {"lang": "de"}) for n in range(30)])
        await store.upsert(ALICE, [VectorItem(f"z{n}", XY, {"lang": "en"}) for n in range(3)])
        hits = await store.search(ALICE, X, limit=3, where=Eq("meta.lang", "en"))
        assert [hit.id for hit in hits] == ["z0", "z1", "z2"]

    async def test_what_is_deleted_is_never_found_again(self, store: VectorStore) -> None:
        """delete() and forget() say how many were there."""
        await store.upsert(ALICE, [VectorItem(id, X) for id in ("a", "b", "c")])
        assert await store.delete(ALICE, "a", "unknown") == 1
        assert [hit.id for hit in await store.search(ALICE, X)] == ["b", "c"]
        assert await store.forget(ALICE) == 2
        assert (await store.search(ALICE, X), await store.count(ALICE)) == ((), 0)

    @pytest.mark.parametrize(("mine", "theirs"), TWINS, ids=range(len(TWINS)))
    async def test_scopes_never_meet(self, store: VectorStore, mine: str, theirs: str) -> None:
        """In search, count, delete and forget, however alike the ids."""
        one, other = Scope(user_id=mine), Scope(user_id=theirs)
        await store.upsert(one, [VectorItem("a", X), VectorItem("same", X)])
        await store.upsert(other, [VectorItem("b", X), VectorItem("same", Y)])
        assert [hit.id for hit in await store.search(one, X)] == ["a", "same"]
        assert [hit.id for hit in await store.search(other, X, limit=1)] == ["b"]
        assert await store.delete(one, "b") == 0
        assert await store.forget(one) == 2
        assert (await store.count(one), await store.count(other)) == (0, 2)

    async def test_a_user_sees_their_sessions(self, store: VectorStore) -> None:
        """A session sees its own alone."""
        await store.upsert(ALICE.for_session("s1"), [VectorItem("a", X)])
        await store.upsert(ALICE.for_session("s2"), [VectorItem("b", X)])
        assert [hit.id for hit in await store.search(ALICE, X)] == ["a", "b"]
        assert [hit.id for hit in await store.search(ALICE.for_session("s2"), X)] == ["b"]
        assert await store.forget(ALICE.for_session("s1")) == 1
        assert (await store.count(ALICE), await store.count(BOB)) == (1, 0)

    async def test_a_payload_lives_and_dies_with_its_vector(self, store: VectorStore) -> None:
        """It comes back as it was given last, and a vector without one has none."""
        if not isinstance(store, KeepsPayloads):
            pytest.skip(f"{type(store).__name__} is not KeepsPayloads")
        assert (await store.ids(ALICE), await store.payloads(ALICE, "a")) == ((), {})
        given = 'text, "quoted" \u00e9\n' * 200
        await store.upsert(ALICE, [VectorItem("a", X, payload="old"), VectorItem("b", Y), VectorItem("c", Y)])
        await store.upsert(ALICE, [VectorItem("a", X, payload=given), VectorItem("c", Y, payload="later")])
        await store.upsert(BOB, [VectorItem("a", X, payload="another user's")])
        assert sorted(await store.ids(ALICE)) == ["a", "b", "c"]
        assert await store.payloads(ALICE, "a", "b", "c", "unknown") == {"a": given, "c": "later"}
        await store.upsert(ALICE, [VectorItem("c", Y)])
        assert await store.payloads(ALICE, "c") == {}
        await store.delete(ALICE, "a")
        assert (await store.payloads(ALICE, "a"), sorted(await store.ids(ALICE))) == ({}, ["b", "c"])

    async def test_closing_twice_is_allowed(self, store: VectorStore) -> None:
        """aclose() may be called again."""
        await store.aclose()
        await store.aclose()


def _cosine(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
