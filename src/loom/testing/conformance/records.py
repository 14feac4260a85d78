"""Laws of storing records: what is put comes back, all or none, and goes when it is deleted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest

from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.record import Episode, Layer, WorkingBlock
from loom.errors import StoreConflict, UsageError
from loom.protocols.memory_store import MemoryStore, Query
from loom.testing.conformance.samples import (
    ALICE,
    DAY,
    START,
    a_block,
    a_fact,
    an_episode,
    ids_of,
    listed,
    one_of_each,
)

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

    async def test_of_concurrent_writers_of_a_block_one_wins(self, store: MemoryStore) -> None:
        """The others get StoreConflict: no update is lost."""
        await store.put(ALICE, a_block())
        won: list[str] = []

        async def write(text: str) -> None:
            with suppress(StoreConflict):
                await store.put(ALICE, a_block(text=text, version=2))
                won.append(text)

        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(write, f"likes tea {n}")
        assert len(won) == 1
        assert await store.get(ALICE, "block:persona") == a_block(text=won[0], version=2)

    async def test_concurrent_writers_read_their_writes(self, store: MemoryStore) -> None:
        """What put() acknowledged is seen at once, and nothing is lost among tasks."""

        async def write(n: int) -> None:
            await store.put(ALICE, an_episode(f"e{n:02}", f"tea number {n}"))
            assert await store.get(ALICE, f"e{n:02}") is not None
            assert f"e{n:02}" in await ids_of(store, ALICE, "tea")

        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(write, n)
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
