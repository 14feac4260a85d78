"""Laws of search: which records are found, in which order, as of when, and why."""

from __future__ import annotations

import pytest

from loom.core.filter import And, Eq, Range
from loom.core.hit import rank_key
from loom.core.record import Layer
from loom.errors import UsageError
from loom.protocols.memory_store import KeepsVectors, MemoryStore, Query
from loom.testing.clock import FakeClock
from loom.testing.conformance.samples import (
    ALICE,
    BOB,
    DAY,
    HOUR,
    START,
    a_block,
    a_fact,
    an_episode,
    ids_of,
)

HOSTILE = (
    '"', "'", 'tea"', "tea'; DROP TABLE records; --", "tea OR", "NEAR(", "tea*", "-tea", "tea AND NOT", "%", "_", "*",
    "text:tea", "{", "(tea", "^tea", "tea\\", "\U0001f375", "\u200b", " \n ", "?", "$1", ":1", "[tea]", "tea\u0301",
)  # fmt: skip


class SearchLaws:
    """The laws of search, for every memory store."""

    async def test_search_finds_words_in_any_order_and_case(self, store: MemoryStore) -> None:
        """One word is enough; a record with none of the words is not a hit."""
        await store.put(ALICE, an_episode("e1", "Green TEA in Z\u00fcrich"), an_episode("e2", "a piano"))
        for text in ("tea", "zurich tea", "Z\u00dcRICH?", "coffee or tea"):
            assert await ids_of(store, ALICE, text) == ["e1"], text
        assert await ids_of(store, ALICE, "violin") == []

    async def test_every_kind_is_found(self, store: MemoryStore) -> None:
        """Episodes, facts and blocks are searched together."""
        await store.put(ALICE, an_episode(), a_fact(), a_block())
        assert sorted(await ids_of(store, ALICE, "tea")) == ["block:persona", "e1", "f1"]

    async def test_better_fits_come_first(self, store: MemoryStore) -> None:
        """A rare word counts more than a common one, and more words more than one."""
        await store.put(ALICE, *(an_episode(f"a{n}", f"tea number {n} of many") for n in range(5)))
        await store.put(ALICE, an_episode("rare", "a zeppelin of many"), an_episode("both", "zeppelin tea of many"))
        assert (await ids_of(store, ALICE, "tea zeppelin"))[:2] == ["both", "rare"]

    async def test_the_order_is_total_and_stable(self, store: MemoryStore) -> None:
        """Hits go by rank_key: equal scores by id, the same each time, and a limit cuts off the end."""
        await store.put(ALICE, *(an_episode(f"e{n:02}", "tea time") for n in (7, 3, 9, 1, 5)))
        await store.put(ALICE, an_episode("z", "tea tea tea"), an_episode("a", "tea and very many other words"))
        hits = await store.search(ALICE, Query(text="tea"))
        assert list(hits) == sorted(hits, key=rank_key)
        assert len(hits) == 7
        assert await store.search(ALICE, Query(text="tea")) == hits
        for limit in (1, 2, 6):
            assert await store.search(ALICE, Query(text="tea", limit=limit)) == hits[:limit]

    async def test_every_hit_says_why(self, store: MemoryStore) -> None:
        """Words speak as `bm25`, with a positive score."""
        await store.put(ALICE, an_episode())
        (hit,) = await store.search(ALICE, Query(text="tea"))
        assert hit.why["bm25"] > 0
        assert hit.score == pytest.approx(sum(hit.why.values()))

    async def test_a_search_without_words_goes_by_the_filter(self, store: MemoryStore) -> None:
        """All that fits is found, by id."""
        await store.put(ALICE, an_episode("b"), an_episode("a", "piano"), an_episode("c", layer=Layer.L2))
        assert await ids_of(store, ALICE, where=Eq("layer", Layer.L1)) == ["a", "b"]
        assert await ids_of(store, ALICE, limit=2) == ["a", "b"]

    async def test_filters_come_before_the_limit(self, store: MemoryStore) -> None:
        """Better hits that do not fit the filter take no place."""
        await store.put(ALICE, *(an_episode(f"a{n}", "tea tea tea") for n in range(30)))
        await store.put(ALICE, *(an_episode(f"z{n}", "tea with milk", speaker="anna") for n in range(3)))
        assert await ids_of(store, ALICE, "tea", where=Eq("speaker", "anna"), limit=3) == ["z0", "z1", "z2"]
        where = And(Eq("speaker", "anna"), Range("id", "z1", None))
        assert await ids_of(store, ALICE, "tea", where=where, limit=1) == ["z1"]

    async def test_other_scopes_take_nobodys_place(self, store: MemoryStore) -> None:
        """Scope, archive and time come before the limit, like filters."""
        await store.put(BOB, *(an_episode(f"a{n}", "tea tea tea") for n in range(30)))
        await store.put(ALICE, *(an_episode(f"b{n}", "tea tea", archived_at=START) for n in range(30)))
        await store.put(ALICE, *(a_fact(f"c{n}", "tea tea", superseded_at=START) for n in range(30)))
        await store.put(ALICE, *(an_episode(f"d{n}", "tea tea", session_id="s2") for n in range(30)))
        await store.put(ALICE, an_episode("z", "tea with milk", session_id="s1"))
        assert await ids_of(store, ALICE.for_session("s1"), "tea", limit=1) == ["z"]

    async def test_only_current_facts_are_found(self, store: MemoryStore, clock: FakeClock) -> None:
        """Without a time, facts count that are true and believed now; the rest only with `history`."""
        now = clock.now()
        facts = [
            a_fact("current", valid_from=now - DAY, recorded_at=now - DAY),
            a_fact("ended", valid_from=now - DAY, valid_until=now, recorded_at=now - DAY),
            a_fact("not_yet", valid_from=now + DAY, recorded_at=now - DAY),
            a_fact("superseded", recorded_at=now - DAY, superseded_at=now),
            a_fact("future", recorded_at=now + DAY),
        ]
        await store.put(ALICE, *facts)
        assert await ids_of(store, ALICE, "tea") == ["current"]
        assert sorted(await ids_of(store, ALICE, "tea", history=True)) == sorted(fact.id for fact in facts)
        clock.advance(DAY)
        assert sorted(await ids_of(store, ALICE, "tea")) == ["current", "future", "not_yet"]

    async def test_facts_are_found_as_of_both_axes(self, store: MemoryStore) -> None:
        """On a grid of times, what is found is what Fact.is_current says."""
        times = [START + n * DAY for n in range(5)]
        ends = (None, *times[1:4])
        facts = [
            a_fact(f"f{v}{w}{r}{s}", valid_from=times[v], valid_until=ends[w], recorded_at=times[r],
                   superseded_at=ends[s])
            for v in range(2) for w in (0, 1, 2, 3) for r in range(2) for s in (0, 1, 3)
        ]  # fmt: skip
        await store.put(ALICE, *facts)
        for at in (START - HOUR, *times, times[2] + HOUR):
            for known_at in (START - HOUR, *times, times[2] + HOUR):
                expected = sorted(fact.id for fact in facts if fact.is_current(at, known_at))
                assert sorted(await ids_of(store, ALICE, "tea", at=at, known_at=known_at)) == expected
                assert await ids_of(store, ALICE, at=at, known_at=known_at) == expected

    async def test_archived_episodes_are_found_on_request(self, store: MemoryStore) -> None:
        """The archive is searched only with `archived`; get and list see it always."""
        await store.put(ALICE, an_episode("e1"), an_episode("e2", archived_at=START))
        assert await ids_of(store, ALICE, "tea") == ["e1"]
        assert await ids_of(store, ALICE) == ["e1"]
        assert sorted(await ids_of(store, ALICE, "tea", archived=True)) == ["e1", "e2"]
        assert await store.count(ALICE) == 2

    @pytest.mark.parametrize("text", HOSTILE, ids=ascii)
    async def test_the_text_of_a_query_is_data(self, store: MemoryStore, text: str) -> None:
        """No character of a query has a meaning, and none breaks it."""
        await store.put(ALICE, an_episode("e1", f"tea {text}"), an_episode("e2", "piano"))
        await store.put(BOB, an_episode("e3", f"tea {text}"))
        found = await ids_of(store, ALICE, f"{text} tea")
        assert found == ["e1"]
        assert set(await ids_of(store, ALICE, text)) <= {"e1", "e2"}
        assert await store.count(ALICE) == 2

    async def test_a_vector_is_refused_by_a_store_without_vectors(self, store: MemoryStore) -> None:
        """A signal that cannot be used is not silently dropped."""
        if isinstance(store, KeepsVectors):
            pytest.skip(f"{type(store).__name__} keeps vectors")
        with pytest.raises(UsageError):
            await store.search(ALICE, Query(text="tea", vector=[1.0, 0.0]))
