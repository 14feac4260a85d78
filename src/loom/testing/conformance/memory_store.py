"""Laws of a memory store: records, scopes, search."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.record import Episode, Layer, Record, WorkingBlock, rank_key
from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.protocols.memory_store import KeepsVectors, MemoryStore, Query
from loom.testing.conformance.isolation import check_non_interference
from loom.testing.conformance.jobs import JobLaws
from loom.testing.conformance.memory_store_optional import OptionalLaws
from loom.testing.conformance.suite import (
    ALICE,
    BOB,
    DAY,
    HOUR,
    TWINS,
    Suite,
    a_block,
    a_fact,
    an_episode,
    at_once,
    ids_of,
    listed,
    one_of_each,
)
from loom.testing.fakes import START, FakeClock

# Laws of storing records: what is put comes back, all or none, and goes when it is deleted.

FILTERS: tuple[tuple[Filter, list[str]], ...] = (
    (Eq("kind", "fact"), ["f1"]),
    (Eq("layer", Layer.EPISODIC), ["e3"]),
    (Eq("speaker", None), ["block:persona", "e2", "e3", "f1"]),
    (Eq("meta.n", 1), ["e1"]),
    (Eq("meta.n", 1.0), ["e1"]),
    (Eq("meta.n", True), ["e2"]),
    (Eq("meta.n", "1"), ["e3"]),
    (Eq("meta.missing", None), ["block:persona", "e1", "e2", "e3", "f1"]),
    (Eq("sources", "e2"), ["e3", "f1"]),
    (Eq("origin", "user"), ["block:persona", "e1", "e2", "e3", "f1"]),
    (Eq("trusted", True), []),
    (Eq("id", "e%"), []),
    (Eq("text", "we drank tea' OR '1'='1"), []),
    (In("id", ("e1", "f1", "e9")), ["e1", "f1"]),
    (In("id", ()), []),
    (Range("at", START + DAY, START + 2 * DAY), ["e2"]),
    (Range("meta.n", 1, 2), ["e1"]),
    (Range("meta.n", "0", "2"), ["e3"]),
    (And(), ["block:persona", "e1", "e2", "e3", "f1"]),
    (Or(), []),
    (And(Eq("kind", "episode"), Not(Eq("meta.n", 1))), ["e2", "e3"]),
    (Or(Eq("name", "persona"), Eq("predicate", "likes")), ["block:persona", "f1"]),
    (Not(Eq("kind", "episode")), ["block:persona", "f1"]),
)
"""A filter, and the ids of `_five_records` that fit it."""


class RecordLaws:
    """The laws of single records, for every memory store."""

    @pytest.mark.parametrize("which", [0, 1, 2], ids=["episode", "fact", "block"])
    async def test_what_is_put_comes_back_equal(self, store: MemoryStore, which: int) -> None:
        """Every field of every kind survives, through get, list and search."""
        record = one_of_each()[which]
        await store.put(ALICE, record)
        hits = await store.search(ALICE, Query(history=True, archived=True))
        found = [await store.get(ALICE, record.id), *await store.list(ALICE), *(hit.item for hit in hits)]
        assert found == [record] * 3
        assert _typed(found[0]) == _typed(record)

    async def test_a_megabyte_of_text_comes_back_equal(self, store: MemoryStore) -> None:
        """Long texts are neither cut nor refused."""
        long = an_episode(text="zeppelin " + "t\u00e9a \U0001f375 " * 100_000)
        await store.put(ALICE, long)
        assert await store.get(ALICE, "e1") == long
        assert await ids_of(store, ALICE, "zeppelin") == ["e1"]

    async def test_what_the_caller_changes_later_changes_nothing(self, store: MemoryStore) -> None:
        """A store holds its own copy, and hands out copies."""
        given = an_episode(attributes={"n": 1})
        await store.put(ALICE, given)
        for leaked in (given, await store.get(ALICE, "e1"), (await store.list(ALICE))[0]):
            attributes: Any = leaked.attributes if isinstance(leaked, Episode) else {}
            attributes["n"] = 2
        assert await store.get(ALICE, "e1") == an_episode(attributes={"n": 1})

    async def test_what_is_not_there_is_none(self, store: MemoryStore) -> None:
        """An unknown id and an unknown user are empty, not errors."""
        assert await store.get(ALICE, "e1") is None
        assert await store.list(ALICE) == ()
        assert await store.count(ALICE) == 0
        assert await store.delete(ALICE, "e1") == 0
        assert await ids_of(store, ALICE, "tea") == []
        assert not any((await store.forget(ALICE)).removed.values())

    async def test_putting_again_changes_nothing(self, store: MemoryStore) -> None:
        """put() is idempotent by id."""
        records = one_of_each()
        await store.put(ALICE, *records)
        await store.put(ALICE, *records)
        assert await store.count(ALICE) == 3
        assert [await store.get(ALICE, record.id) for record in records] == list(records)

    async def test_the_newest_wins(self, store: MemoryStore) -> None:
        """Under an equal id the last put stays, in search too."""
        await store.put(ALICE, an_episode(text="about tea"))
        await store.put(ALICE, an_episode(text="about coffee"))
        assert await store.get(ALICE, "e1") == an_episode(text="about coffee")
        assert await store.count(ALICE) == 1
        assert await ids_of(store, ALICE, "tea") == []
        assert await ids_of(store, ALICE, "coffee") == ["e1"]

    async def test_the_newest_wins_inside_one_put(self, store: MemoryStore) -> None:
        """The order of a batch counts."""
        await store.put(ALICE, an_episode(text="about tea"), an_episode(text="about coffee"))
        assert await listed(store, ALICE) == ["e1"]
        assert await ids_of(store, ALICE, "tea") == []

    async def test_put_is_all_or_nothing(self, store: MemoryStore) -> None:
        """A batch with one bad record writes none, wherever the bad one is."""
        await store.put(ALICE, a_block(), an_episode("old", "old piano"))
        bad = a_block(text="conflict", version=7)
        good = [an_episode(f"e{n}", "new piano") for n in range(3)]
        for batch in ([bad, *good], [*good, bad], [good[0], bad, replace(good[1], id="old")]):
            with pytest.raises(StoreConflict):
                await store.put(ALICE, *batch)
            assert await listed(store, ALICE) == ["block:persona", "old"]
            assert await ids_of(store, ALICE, "new") == []
        assert await store.get(ALICE, "old") == an_episode("old", "old piano")

    async def test_what_is_not_a_record_is_refused(self, store: MemoryStore) -> None:
        """A wrong type is refused before anything is written."""
        wrong: Any = "we drank tea"
        with pytest.raises(UsageError):
            await store.put(ALICE, an_episode(), wrong)
        assert await store.count(ALICE) == 0

    async def test_a_block_rises_by_one_version(self, store: MemoryStore) -> None:
        """The version after the stored one is taken; any other is a conflict."""
        with pytest.raises(StoreConflict):
            await store.put(ALICE, a_block(version=2))
        await store.put(ALICE, a_block())
        await store.put(ALICE, a_block(text="likes coffee", version=2))
        for version in (1, 2, 4):
            with pytest.raises(StoreConflict):
                await store.put(ALICE, a_block(text="likes milk", version=version))
        assert await store.get(ALICE, "block:persona") == a_block(text="likes coffee", version=2)

    async def test_an_equal_block_again_is_a_no_op(self, store: MemoryStore) -> None:
        """Writing the same block again is not a conflict."""
        await store.put(ALICE, a_block())
        await store.put(ALICE, a_block())
        assert await store.get(ALICE, "block:persona") == a_block()

    async def test_the_old_text_of_a_block_is_written_with_the_new_one_or_not_at_all(self, store: MemoryStore) -> None:
        """Memory keeps the text that a block had as a record beside it: one transaction, and gone by one delete."""
        old = a_block("~version:persona:00000001")
        await store.put(ALICE, a_block())
        await store.put(ALICE, a_block(text="likes coffee", version=2), old)
        with pytest.raises(StoreConflict):
            await store.put(ALICE, a_block("~version:persona:00000002"), a_block(text="likes milk", version=2))
        assert await listed(store, ALICE) == ["block:persona", old.id]
        old_ones = Range("id", low="block:~version:", high="block:~version;")
        assert await listed(store, ALICE, And(Eq("kind", "block"), old_ones)) == [old.id]
        assert await listed(store, ALICE, And(In("kind", ("fact", "block")), Not(old_ones))) == ["block:persona"]
        assert await store.count(ALICE, where=And(Eq("kind", "block"), Not(old_ones))) == 1
        assert await store.delete(ALICE, "block:persona", old.id) == 2
        assert await store.count(ALICE) == 0

    async def test_of_concurrent_writers_of_a_block_one_wins(self, store: MemoryStore) -> None:
        """The others get StoreConflict: no update is lost."""
        await store.put(ALICE, a_block())
        won: list[str] = []

        async def write(text: str) -> None:
            with suppress(StoreConflict):
                await store.put(ALICE, a_block(text=text, version=2))
                won.append(text)

        await at_once(*(write(f"likes tea {n}") for n in range(10)))
        assert len(won) == 1
        assert await store.get(ALICE, "block:persona") == a_block(text=won[0], version=2)

    async def test_concurrent_writers_read_their_writes(self, store: MemoryStore) -> None:
        """What put() acknowledged is seen at once, and nothing is lost among tasks."""

        async def write(n: int) -> None:
            await store.put(ALICE, an_episode(f"e{n:02}", f"tea number {n}"))
            assert await store.get(ALICE, f"e{n:02}") is not None
            assert f"e{n:02}" in await ids_of(store, ALICE, "tea")

        await at_once(*(write(n) for n in range(20)))
        assert await listed(store, ALICE) == [f"e{n:02}" for n in range(20)]

    async def test_a_block_may_be_empty(self, store: MemoryStore) -> None:
        """A block without text is kept, and no search for words finds it."""
        await store.put(ALICE, a_block(text=""))
        assert await store.get(ALICE, "block:persona") == a_block(text="")
        assert await ids_of(store, ALICE, "tea") == []

    async def test_list_goes_by_id(self, store: MemoryStore) -> None:
        """The order is that of the ids' characters."""
        ids = ["b", "a", "\u00e9", "Z", "10", "9", "\U0001f375", "a b", "a"]
        await store.put(ALICE, *(an_episode(id) for id in ids))
        assert await listed(store, ALICE) == sorted(set(ids))

    async def test_pages_neither_repeat_nor_skip(self, store: MemoryStore) -> None:
        """`after` continues a list, also when its record is gone and others came."""
        await store.put(ALICE, *(an_episode(f"e{n}", layer=Layer(1 + n % 2)) for n in range(10)))
        where = Eq("layer", Layer.L1)
        first = [r.id for r in await store.list(ALICE, where=where, limit=2)]
        await store.delete(ALICE, "e2")
        await store.put(ALICE, an_episode("e0a"), an_episode("e9z"))
        rest = [r.id for r in await store.list(ALICE, where=where, after=first[-1], limit=100)]
        assert (first, rest) == (["e0", "e2"], ["e4", "e6", "e8", "e9z"])
        assert await store.list(ALICE, after="e9z") == ()

    @pytest.mark.parametrize(("where", "expected"), FILTERS, ids=[str(f) for f, _ in FILTERS])
    async def test_filters_mean_what_they_say(self, store: MemoryStore, where: Filter, expected: list[str]) -> None:
        """list, count and search agree with Filter.matches."""
        records = _five_records()
        await store.put(ALICE, *records)
        assert await listed(store, ALICE, where) == expected
        assert await store.count(ALICE, where=where) == len(expected)
        assert sorted(await ids_of(store, ALICE, "tea", where=where)) == expected

    async def test_delete_leaves_nothing(self, store: MemoryStore) -> None:
        """After delete() no call finds the record; the others stay."""
        await store.put(ALICE, an_episode(), an_episode("e2"), a_fact(), a_block())
        assert await store.delete(ALICE, "e1", "f1", "block:persona", "unknown") == 3
        assert await store.delete(ALICE, "e1") == 0
        assert [await store.get(ALICE, id) for id in ("e1", "f1", "block:persona")] == [None] * 3
        assert await listed(store, ALICE) == ["e2"]
        assert await store.count(ALICE) == 1
        assert await ids_of(store, ALICE, "tea") == ["e2"]
        await store.put(ALICE, a_block())
        assert isinstance(await store.get(ALICE, "block:persona"), WorkingBlock)

    async def test_forget_leaves_nothing(self, store: MemoryStore) -> None:
        """After forget() the user has no record, and the receipt counts what went."""
        await store.put(ALICE, an_episode(session_id="s"), an_episode("e2"), a_fact(), a_block())
        receipt = await store.forget(ALICE)
        counted = {kind: receipt.removed.get(kind) for kind in ("episode", "fact", "block")}
        assert counted == {"episode": 2, "fact": 1, "block": 1}
        assert [await store.get(ALICE, id) for id in ("e1", "e2", "f1", "block:persona")] == [None] * 4
        assert await listed(store, ALICE) == []
        assert await store.count(ALICE) == 0
        assert await ids_of(store, ALICE, "tea", history=True, archived=True) == []
        assert await ids_of(store, ALICE.for_session("s"), "tea") == []

    async def test_closing_twice_is_allowed(self, store: MemoryStore) -> None:
        """aclose() may be called again."""
        await store.put(ALICE, an_episode())
        await store.aclose()
        await store.aclose()


def _five_records() -> tuple[Any, ...]:
    return (
        an_episode("e1", speaker="anna", attributes={"n": 1}),
        an_episode("e2", at=START + DAY, attributes={"n": True}),
        an_episode("e3", at=START + 2 * DAY, layer=Layer.EPISODIC, sources=("e1", "e2"), attributes={"n": "1"}),
        a_fact(sources=("e2",)),
        a_block(),
    )


def _typed(record: object) -> list[tuple[str, type]]:
    """The types of a record's attributes: True is equal to 1, but not the same."""
    attributes: dict[str, object] = dict(getattr(record, "attributes", {}))
    return sorted((name, type(value)) for name, value in attributes.items())


# Laws of scopes: users never see each other's records, and a session sees its own.

pairs = pytest.mark.parametrize(("mine", "theirs"), TWINS, ids=range(len(TWINS)))


class ScopeLaws:
    """The laws of scopes, for every memory store."""

    @pairs
    @pytest.mark.parametrize("part", ["user_id", "namespace", "session_id"])
    async def test_scopes_never_meet(self, store: MemoryStore, mine: str, theirs: str, part: str) -> None:
        """Two scopes whose ids look alike share nothing, in any call."""
        one, other = (replace(Scope("default", "user"), **{part: value}) for value in (mine, theirs))
        await store.put(one, an_episode("e1", "my tea", session_id=one.session_id))
        await store.put(other, an_episode("e2", "their tea", session_id=other.session_id))
        for scope, id, foreign in ((one, "e1", "e2"), (other, "e2", "e1")):
            assert await store.get(scope, foreign) is None
            assert await listed(store, scope) == [id]
            assert await store.count(scope) == 1
            assert await ids_of(store, scope, "tea") == [id]
            assert await ids_of(store, scope) == [id]
            assert await store.delete(scope, foreign) == 0
        assert (await store.forget(one)).removed["episode"] == 1
        assert await listed(store, other) == ["e2"]
        assert await ids_of(store, other, "tea") == ["e2"]
        assert await store.count(one) == 0

    async def test_the_same_id_of_two_users_is_two_records(self, store: MemoryStore) -> None:
        """An id means something only inside its user."""
        for scope, text in ((ALICE, "alice tea"), (BOB, "bob tea")):
            await store.put(scope, an_episode(text=text), a_fact(object=text), a_block(text=text))
        for scope, text in ((ALICE, "alice tea"), (BOB, "bob tea")):
            assert await store.get(scope, "e1") == an_episode(text=text)
            assert await store.get(scope, "f1") == a_fact(object=text)
            assert await store.get(scope, "block:persona") == a_block(text=text)
        assert await store.delete(ALICE, "e1", "f1", "block:persona") == 3
        assert await store.get(BOB, "e1") == an_episode(text="bob tea")
        assert sorted(await ids_of(store, BOB, "bob")) == ["block:persona", "e1", "f1"]

    async def test_forgetting_one_user_touches_nobody_else(self, store: MemoryStore) -> None:
        """All records of other users are unchanged."""
        others = [Scope(user_id="bob"), Scope("other", "alice"), Scope(user_id="alic"), Scope(user_id="alice2")]
        for scope in (ALICE, *others):
            await store.put(scope, an_episode(), an_episode("e2", session_id="s"), a_fact(), a_block())
        before = [await _everything(store, scope) for scope in others]
        await store.forget(ALICE)
        assert [await _everything(store, scope) for scope in others] == before
        assert len(before[0][0]) == 4

    @pytest.mark.parametrize("id", sorted({id for pair in TWINS for id in pair}), ids=lambda id: ascii(id)[:20])
    async def test_record_ids_are_data(self, store: MemoryStore, id: str) -> None:
        """No character of an id has a meaning."""
        twin = id.swapcase() if id.swapcase() != id else f"{id} "
        await store.put(ALICE, an_episode(id, "mine", session_id=id, speaker=id), an_episode(twin[:500], "twin"))
        assert await store.get(ALICE, id) == an_episode(id, "mine", session_id=id, speaker=id)
        assert await listed(store, ALICE.for_session(id)) == [id]
        assert await store.delete(ALICE, id) == 1
        assert await listed(store, ALICE) == [twin[:500]]

    async def test_a_session_sees_its_episodes_and_the_users_facts(self, store: MemoryStore) -> None:
        """Facts and blocks belong to no session; episodes of other sessions, or of none, stay out."""
        records: list[Record] = [an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3")]
        await store.put(ALICE, *records, a_fact(), a_block())
        session = ALICE.for_session("s1")
        seen = ["block:persona", "e1", "f1"]
        assert await listed(store, session) == seen
        assert await store.count(session) == 3
        assert sorted(await ids_of(store, session, "tea")) == seen
        assert [await store.get(session, id) for id in ("e2", "e3")] == [None, None]
        assert await store.count(ALICE) == 5

    @pytest.mark.parametrize("session_id", ["s2", None])
    async def test_an_episode_of_another_session_is_refused(self, store: MemoryStore, session_id: str | None) -> None:
        """What the scope would not see, it cannot write; and nothing of the batch is written."""
        with pytest.raises(UsageError):
            await store.put(ALICE.for_session("s1"), a_fact(), an_episode(session_id=session_id))
        assert await store.count(ALICE) == 0

    async def test_a_session_deletes_only_what_it_sees(self, store: MemoryStore) -> None:
        """delete() with a session leaves other sessions alone."""
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3"))
        assert await store.delete(ALICE.for_session("s1"), "e1", "e2", "e3") == 1
        assert await listed(store, ALICE) == ["e2", "e3"]

    async def test_forgetting_a_session_removes_its_episodes(self, store: MemoryStore) -> None:
        """The user's facts, blocks and other sessions stay."""
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3"))
        await store.put(ALICE, a_fact(), a_block())
        receipt = await store.forget(ALICE.for_session("s1"))
        assert receipt.removed["episode"] == 1
        assert await listed(store, ALICE) == ["block:persona", "e2", "e3", "f1"]
        assert "e1" not in await ids_of(store, ALICE, "tea", archived=True)

    @pytest.mark.parametrize("seed", range(24))
    async def test_a_user_cannot_tell_whether_others_exist(self, store: MemoryStore, seed: int) -> None:
        """Non-interference: without the other's calls every observation of a user is the same."""
        await check_non_interference(store, seed)


async def _everything(store: MemoryStore, scope: Scope) -> tuple[Any, ...]:
    hits = [(hit.item, hit.score) for hit in await store.search(scope, Query(text="tea"))]
    counts = [await store.count(scope, where=where) for where in (None, Eq("kind", "episode"))]
    return await store.list(scope), counts, hits


# Laws of search: which records are found, in which order, as of when, and why.

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


class MemoryStoreSuite(RecordLaws, ScopeLaws, SearchLaws, OptionalLaws, JobLaws, Suite):
    """Subclass it, override the fixture `store`, and every law runs; protocols that a store lacks are skipped."""

    @pytest.fixture
    async def store(self, clock: FakeClock) -> MemoryStore:
        """An empty store that takes its time from `clock`; closed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `store`")
