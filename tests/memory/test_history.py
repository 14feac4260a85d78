"""Old texts of blocks and standing instructions: kept, shown, capped, carried along, and forgotten."""

import json
import random
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

import anyio
import pytest

from loom import MemoryConfig, NotFound, Scope, StoreConflict, UsageError, open_memory
from loom.memory._shared import OLD
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio
MINUTE = timedelta(minutes=1)
CANARY = "Zebra4711"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path, clock):
    url = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"
    async with open_memory(url, embedder="hash", clock=clock, config=MemoryConfig(block_versions=3)) as opened:
        yield opened


async def edited(memory, clock, *texts, name="persona", user_id="ann"):
    for text in texts:
        clock.advance(MINUTE)
        await memory.set_block(name, text, user_id=user_id)


async def test_who_changed_what_and_when(memory, clock):
    started = clock.now()
    await memory.set_block("persona", "Likes tea.\nLives in Oslo.", user_id="ann", trusted=True)
    clock.advance(MINUTE)
    await memory.set_block("persona", "Likes tea.\nLives in Rome.", user_id="ann", origin="assistant")
    history = await memory.block_history("persona", user_id="ann")
    first, second = history
    assert (first.number, first.text, first.origin, first.trusted) == (1, "Likes tea.\nLives in Oslo.", "user", True)
    assert (first.since, first.until) == (started, started + MINUTE)
    assert (second.number, second.origin, second.trusted) == (2, "assistant", False)
    assert (second.since, second.until) == (started + MINUTE, None)
    assert history.diff().splitlines()[-3:] == [" Likes tea.", "-Lives in Oslo.", "+Lives in Rome."]
    assert history.diff(1).splitlines()[-2:] == ["+Likes tea.", "+Lives in Oslo."]
    assert "version 2 by assistant" in str(history)
    with pytest.raises(NotFound, match="no version 9; these are kept: 1, 2"):
        history.diff(9)


async def test_the_number_of_a_version_is_that_of_the_block(memory, clock):
    await edited(memory, clock, "a", "b", "b", "c")
    history = await memory.block_history("persona", user_id="ann")
    (block,) = await memory.blocks(user_id="ann")
    assert [(v.number, v.text) for v in history] == [(1, "a"), (3, "b"), (4, "c")], (
        "the same text again changes nothing"
    )
    assert block.version == 4


async def test_only_so_many_are_kept(memory, clock):
    await edited(memory, clock, *(f"text {n}" for n in range(1, 8)))
    history = await memory.block_history("persona", user_id="ann")
    assert [v.number for v in history] == [4, 5, 6, 7]
    assert str(history).startswith("versions before 4 are not kept")
    none = memory.view(config=MemoryConfig(block_versions=0))
    await none.set_block("persona", "text 8", user_id="ann")
    assert [v.text for v in await memory.block_history("persona", user_id="ann")] == ["text 8"]
    with pytest.raises(UsageError, match="block_versions"):
        MemoryConfig(block_versions=-1)


async def test_old_texts_are_shown_nowhere_else(memory, clock):
    await edited(memory, clock, f"first {CANARY}", "second")
    assert CANARY not in str(await memory.profile(user_id="ann"))
    assert [block.text for block in await memory.blocks(user_id="ann")] == ["second"]
    assert (await memory.stats(user_id="ann"))["blocks"] == 1
    assert [record.text async for record in memory.list(user_id="ann", kind="block")] == ["second"]
    assert len([record async for record in memory.list(user_id="ann", archived=True)]) == 2
    for more in ({}, {"history": True}):
        found = await memory.recall(f"first {CANARY}", user_id="ann", **more)
        assert not found.hits
        assert "1 block is not searched" in found.notes[0]


async def test_names_that_begin_alike_have_their_own_history(memory, clock):
    for name in ("a", "a:b", "a:00000001", "\u00e9" * 200):
        await edited(memory, clock, f"old {name}", f"new {name}", name=name)
    for name in ("a", "a:b", "a:00000001", "\u00e9" * 200):
        history = await memory.block_history(name, user_id="ann")
        assert [v.text for v in history] == [f"old {name}", f"new {name}"]
    await memory.forget("block:a", user_id="ann")
    with pytest.raises(NotFound):
        await memory.block_history("a", user_id="ann")
    assert len(await memory.block_history("a:b", user_id="ann")) == 2
    assert len(await memory.block_history("a:00000001", user_id="ann")) == 2


async def test_their_names_are_reserved(memory):
    with pytest.raises(UsageError, match="names of old texts"):
        await memory.set_block(f"{OLD}persona:00000001", "x", user_id="ann")
    with pytest.raises(NotFound, match="no block"):
        await memory.block_history("persona", user_id="ann")


async def test_another_user_has_another_history(memory, clock):
    await edited(memory, clock, "ann 1", "ann 2")
    await edited(memory, clock, "bob 1", user_id="bob")
    assert [v.text for v in await memory.block_history("persona", user_id="bob")] == ["bob 1"]


async def stored(memory, user_id="ann"):
    return " ".join(r.text for r in await memory.store.list(Scope(user_id=user_id), limit=1000))


@pytest.mark.parametrize("what", ["block", "user", "before", "version"])
async def test_forgetting_takes_the_old_texts(memory, clock, what):
    await edited(memory, clock, f"one {CANARY}", f"two {CANARY}", "three")
    cut = clock.now()
    if what == "block":
        receipt = await memory.forget("block:persona", user_id="ann")
        assert receipt.removed == {"block": 3}
    elif what == "user":
        await memory.forget(user_id="ann")
    elif what == "before":
        await memory.forget(user_id="ann", before=cut)
        assert [v.text for v in await memory.block_history("persona", user_id="ann")] == ["three"]
    else:
        for version in await memory.block_history("persona", user_id="ann"):
            if CANARY in version.text:
                await memory.forget(version.id, user_id="ann")
        assert [v.text for v in await memory.block_history("persona", user_id="ann")] == ["three"]
    assert CANARY not in await stored(memory)


async def test_no_byte_of_an_old_text_is_left_in_the_file(tmp_path):
    path = tmp_path / "m.db"
    async with open_memory(f"sqlite:{path}", embedder="hash") as memory:
        for number in range(30):
            await memory.set_block("persona", f"{number} {CANARY} " * 50, user_id="ann")
        await memory.set_block("persona", "clean", user_id="ann")
        await memory.set_block("other", "clean", user_id="ann")
        await memory.instruct(f"Always call me {CANARY}.", user_id="ann")
        (told,) = await memory.standing_history(user_id="ann")
        receipt = await memory.forget("block:persona", *told.versions[0].sources, user_id="ann")
        assert not receipt.pending
    left = [file.name for file in tmp_path.iterdir() if CANARY.encode() in file.read_bytes()]
    assert left == []


async def test_export_and_import_carry_them_and_editing_goes_on(memory, clock):
    await edited(memory, clock, "a", "b", "c")
    lines = [line async for line in memory.export(user_id="ann")]
    await memory.import_(lines, user_id="bob")
    before = await memory.block_history("persona", user_id="ann")
    assert await memory.block_history("persona", user_id="bob") == before
    await memory.import_(lines, user_id="bob")
    assert await memory.block_history("persona", user_id="bob") == before
    await edited(memory, clock, "d", user_id="bob")
    assert [v.number for v in await memory.block_history("persona", user_id="bob")] == [1, 2, 3, 4]


async def test_an_import_that_replaces_a_block_keeps_the_text_it_replaced(memory, clock):
    await edited(memory, clock, "a", "b")
    lines = [line async for line in memory.export(user_id="ann")]
    await edited(memory, clock, "mine", user_id="bob")
    await memory.import_(lines, user_id="bob")
    texts = [v.text for v in await memory.block_history("persona", user_id="bob")]
    assert texts[-1] == "b"
    assert {"a", "mine"} <= set(texts)


async def test_a_version_in_a_file_that_is_far_too_high_does_no_harm(memory, clock):
    await edited(memory, clock, "a")
    lines = [line async for line in memory.export(user_id="ann")]
    lines[-1] = json.dumps({**json.loads(lines[-1]), "version": 10**12})
    await memory.import_(lines, user_id="bob")
    assert [v.text for v in await memory.block_history("persona", user_id="bob")] == ["a"]


async def test_writers_at_once_lose_no_text(tmp_path):
    config = MemoryConfig(block_versions=100)
    url = f"sqlite:{tmp_path}/m.db"
    async with open_memory(url, config=config) as one, open_memory(url, config=config) as other:

        async def write(memory, who):
            for number in range(20):
                await memory.set_block("notes", f"{who} {number}", user_id="ann")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, one, "one")
            tasks.start_soon(write, other, "other")
        history = await one.block_history("notes", user_id="ann")
    assert [v.number for v in history] == list(range(1, 41))
    assert len({v.text for v in history}) == 40


async def test_a_write_that_is_refused_leaves_no_old_text(memory, clock):
    await edited(memory, clock, "a")
    with suppress(StoreConflict):
        await memory.set_block("persona", "b", user_id="ann", version=7)
    assert len(await memory.block_history("persona", user_id="ann")) == 1


async def test_standing_instructions_show_what_they_replaced(memory, clock):
    for text in ("Always answer in French.", "Never use emojis.", "Please reply in German from now on."):
        clock.advance(MINUTE)
        await memory.instruct(text, user_id="ann")
    language, emojis = await memory.standing_history(user_id="ann")
    assert [v.text for v in language] == ["Always answer in French", "Please reply in German from now on"]
    assert language.name == "language"
    assert language.versions[0].until == language.versions[1].since
    assert language.versions[1].until is None
    assert language.versions[0].sources
    assert [v.text for v in emojis] == ["Never use emojis"]
    assert "-Always answer in French" in language.diff()
    clock.advance(MINUTE)
    await memory.reject(language.versions[1].id, user_id="ann")
    (back,) = [h for h in await memory.standing_history(user_id="ann") if h.name == "language"]
    assert [(v.text, v.until) for v in back] == [("Always answer in French", None)]


@pytest.mark.parametrize(
    ("first", "then", "count"),
    [
        ("always answer in French", "never answer in French", 1),
        ("I prefer tea over coffee", "I prefer coffee over tea", 1),
        ("I'm vegetarian", "I'm vegan", 1),
        ("never call me before 9", "never call me before 10", 1),
        ("I prefer tea over coffee", "I prefer trains over planes", 2),
        ("I'm allergic to peanuts", "I'm allergic to shellfish", 2),
    ],
)
async def test_what_contradicts_is_one_history_and_what_does_not_is_two(memory, clock, first, then, count):
    await memory.instruct(first, user_id="ann")
    clock.advance(MINUTE)
    await memory.instruct(then, user_id="ann")
    found = await memory.standing_history(user_id="ann")
    assert len(found) == count
    assert sum(len(history) for history in found) == 2


@pytest.mark.parametrize("keep", [0, 1, 2, 7, 20])
async def test_the_last_texts_are_kept_whatever_their_number(memory, clock, keep):
    view = memory.view(config=MemoryConfig(block_versions=keep))
    for count in range(1, 31):
        await edited(view, clock, f"text {count}")
        expected = [f"text {n}" for n in range(max(1, count - keep), count + 1)]
        assert [v.text for v in await view.block_history("persona", user_id="ann")] == expected


SAID = (
    "Always answer in French.",
    "Never answer in French.",
    "Please reply in German from now on.",
    "Always be brief.",
    "Give me detailed answers.",
    "I prefer tea over coffee.",
    "I prefer coffee over tea.",
    "I prefer trains over planes.",
    "I'm vegetarian.",
    "I'm vegan.",
    "I'm allergic to peanuts.",
    "Never use emojis.",
    "Stop using emojis.",
    "Always use emojis.",
    "Never call me before 9.",
    "Never call me before 10.",
    "Always call me Jo.",
    "Always call me Dr Smith.",
)


@pytest.mark.parametrize("seed", range(8))
async def test_what_has_not_ended_in_the_history_is_shown_in_every_turn(memory, clock, seed):
    told = random.Random(seed).choices(SAID, k=14)
    for text in told:
        clock.advance(MINUTE)
        await memory.instruct(text, user_id="ann")
        histories = await memory.standing_history(user_id="ann")
        standing = await memory.standing(user_id="ann")
        now = sorted(version.text for history in histories for version in history if version.until is None)
        assert now == sorted(item.text for item in (*standing.items, *standing.left_out)), told
        for history in histories:
            assert [version.number for version in history] == list(range(1, len(history) + 1))
            assert all(one.until == other.since for one, other in pairwise(history)), told
            assert str(history)
