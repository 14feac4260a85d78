"""Memory through its front door, on every embedded backend."""

from datetime import UTC, datetime, timedelta

import anyio
import anyio.lowlevel
import pytest

from loom.core.filter import Eq
from loom.core.message import Message
from loom.core.record import Episode, Fact, Layer
from loom.engine import open_memory, open_memory_sync
from loom.errors import ScopeRequired, UsageError
from loom.memory.config import MemoryConfig
from loom.memory.memory import Memory
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio

CHAT = [
    {"role": "user", "content": "Hi, I'm Alice and I live in Tokyo."},
    {"role": "assistant", "content": "Nice to meet you, Alice! How long have you lived there?"},
    {"role": "user", "content": "Three years. I am allergic to peanuts, please remember that."},
    {"role": "user", "content": "My sister Anna keeps a sailing boat in the harbour of Yokohama."},
]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path, clock):
    where = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"
    async with open_memory(where, embedder="hash", clock=clock) as opened:
        yield opened


async def test_what_was_remembered_is_recalled_at_once_and_says_why(memory):
    done = await memory.remember(CHAT, user_id="alice", session_id="s1")
    assert [e.text for e in done.kept] == [turn["content"] for turn in CHAT]
    found = await memory.recall("Where does her sister keep the boat?", user_id="alice", limit=3)
    assert "Yokohama" in found.hits[0].item.text
    assert found.hits[0].why
    assert found.searched in (None, len(CHAT)), "where the store knows it without counting"
    nothing = await memory.recall("Where is the boat?", user_id="alice", where=Eq("speaker", "nobody"))
    assert (nothing.hits, nothing.searched) == ((), len(CHAT))


async def test_users_never_meet(memory):
    await memory.remember(CHAT, user_id="alice")
    await memory.remember("Hi, I'm Bob.", user_id="bob")
    await memory.metabolize()
    found = await memory.recall("Tokyo peanuts boat Alice", user_id="bob")
    assert {hit.item.text for hit in found} <= {"Hi, I'm Bob."} | {f.text for f in await memory.facts(user_id="bob")}
    assert not [f for f in await memory.facts(user_id="bob") if "Tokyo" in f.text]
    lines = [line async for line in memory.export(user_id="bob")]
    assert not [line for line in lines if "Tokyo" in line]


async def test_facts_are_learnt_and_change_with_both_axes_kept(memory, clock):
    await memory.remember("I live in Tokyo.", user_id="alice")
    await memory.metabolize(user_id="alice")
    before = clock.now()
    assert [f.object for f in await memory.facts(user_id="alice", predicate="lives_in")] == ["Tokyo"]
    clock.advance(timedelta(days=30))
    await memory.remember("I moved to Berlin.", user_id="alice")
    await memory.metabolize(user_id="alice")
    clock.advance(timedelta(days=1))
    current = await memory.facts(user_id="alice", predicate="lives_in")
    assert [f.object for f in current] == ["Berlin"]
    then = await memory.facts(user_id="alice", predicate="lives_in", at=before, known_at=before)
    assert [f.object for f in then] == ["Tokyo"]
    assert all(f.sources for f in current)


async def test_the_same_key_keeps_one_copy(memory):
    first, _, done = [await memory.remember(["one", "two"], user_id="alice", key="batch-7") for _ in range(3)]
    assert first.kept == done.kept
    assert [s.reason for s in done.skipped] == ["remembered before under this key"] * 2
    assert len(done.kept) == 2
    assert (await memory.stats(user_id="alice"))["L1"] == 2


async def test_what_cannot_be_kept_is_named(memory):
    done = await memory.remember(["", "fine", " \x00 "], user_id="alice")
    assert [e.text for e in done.kept] == ["fine"]
    assert [s.reason.split(":")[0] for s in done.skipped] == ["empty", "empty"]


async def test_recalling_often_moves_a_record_up_and_it_is_still_found(memory):
    await memory.remember("The code of the harbour gate is 4711.", user_id="alice")
    for _ in range(3):
        await memory.recall("harbour gate code", user_id="alice")
    await memory.metabolize(user_id="alice")
    assert (await memory.stats(user_id="alice"))["L2"] == 1
    found = await memory.recall("harbour gate code", user_id="alice")
    assert "4711" in found.hits[0].item.text
    assert len({hit.item.text for hit in found}) == len(found), "a statement and its source are not two hits"


async def test_layers_can_be_asked_for(memory):
    done = await memory.remember("the gate code is 4711", user_id="alice")
    await memory.promote(done.kept[0].id, user_id="alice", to=Layer.L3)
    assert len(await memory.recall("gate code", user_id="alice", layers=[Layer.L3])) == 1
    assert len(await memory.recall("gate code", user_id="alice", layers=[Layer.L1])) == 0


async def test_a_budget_is_kept(memory):
    await memory.remember([f"note {n} about the boat " + "and more " * 40 for n in range(10)], user_id="alice")
    found = await memory.recall("boat", user_id="alice", limit=10, budget=200)
    assert 0 < found.tokens <= 200


async def test_forgetting_a_user_leaves_nothing_and_the_receipt_says_so(memory):
    await memory.remember(CHAT, user_id="alice", session_id="s1")
    await memory.remember("Hi, I'm Bob.", user_id="bob")
    await memory.set_block("persona", "likes tea", user_id="alice")
    await memory.metabolize()
    receipt = await memory.forget(user_id="alice")
    assert sum(receipt.removed.values()) >= 5
    assert set((await memory.stats(user_id="alice")).values()) == {0}
    assert len(await memory.recall("Tokyo", user_id="alice")) == 0
    assert (await memory.stats(user_id="bob"))["L1"] == 1


async def test_forgetting_one_record_takes_what_was_made_from_it(memory):
    done = await memory.remember("I live in Tokyo. We decided to stay.", user_id="alice")
    await memory.metabolize(user_id="alice")
    assert await memory.facts(user_id="alice")
    await memory.forget(done.kept[0].id, user_id="alice")
    assert set((await memory.stats(user_id="alice")).values()) == {0}


async def test_blocks_have_versions(memory):
    await memory.set_block("persona", "likes tea", user_id="alice")
    again = await memory.set_block("persona", "likes coffee", user_id="alice")
    assert again.version == 2
    assert [(b.name, b.text) for b in await memory.blocks(user_id="alice")] == [("persona", "likes coffee")]


async def test_export_and_import_round_trip(memory):
    await memory.remember(CHAT, user_id="alice", session_id="s1")
    await memory.set_block("persona", "likes tea", user_id="alice")
    await memory.metabolize(user_id="alice")
    lines = [line async for line in memory.export(user_id="alice")]
    await memory.import_(lines, user_id="carol")
    same = [
        [r for r in lines if '"kind": "episode"' in r],
        [r async for r in memory.export(user_id="carol") if '"kind": "episode"' in r],
    ]
    assert same[0] == same[1]
    with pytest.raises(UsageError, match="line 2 is not JSON"):
        await memory.import_([lines[0], "{"], user_id="dave")
    assert set((await memory.stats(user_id="dave")).values()) == {0}


async def test_every_call_names_its_user(memory):
    for call in (memory.remember("x", user_id=""), memory.recall("x", user_id=" "), memory.forget(user_id="")):
        with pytest.raises(ScopeRequired):
            await call
    with pytest.raises(UsageError, match="empty question"):
        await memory.recall("  ", user_id="alice")


async def test_a_time_that_is_none_is_refused(memory):
    with pytest.raises(UsageError, match="the time 'noon'"):
        await memory.remember({"role": "user", "content": "hi", "at": "noon"}, user_id="alice")


async def test_a_move_of_last_week_is_where_the_user_lives_now(memory, clock):
    for first, then, now in (
        ("I live in Tokyo.", "I moved to Berlin last week.", "Berlin"),
        ("I moved to Berlin last week.", "I live in Tokyo.", "Tokyo"),
    ):
        user = f"from {first}"
        for text in (first, then):
            await memory.remember(text, user_id=user)
            clock.advance(timedelta(hours=1))
        await memory.metabolize(user_id=user)
        assert [f.object for f in await memory.facts(user_id=user, predicate="lives_in")] == [now]


async def test_messages_carry_their_role(memory):
    done = await memory.remember([Message.user("hi"), Message.assistant("hello")], user_id="alice")
    assert [(e.speaker, e.provenance.origin) for e in done.kept] == [("user", "user"), ("assistant", "assistant")]


async def test_a_session_can_be_searched_alone(memory):
    await memory.remember("the boat is red", user_id="alice", session_id="s1")
    await memory.remember("the boat is blue", user_id="alice", session_id="s2")
    found = await memory.recall("boat", user_id="alice", session_id="s2")
    assert [h.item.text for h in found if isinstance(h.item, Episode)] == ["the boat is blue"]


async def test_stated_facts(memory):
    await memory.assert_fact("user", "lives_in", "Oslo", user_id="alice", valid_from=datetime(2020, 1, 1, tzinfo=UTC))
    written = await memory.assert_fact(
        "user", "lives_in", "Rome", user_id="alice", valid_from=datetime(2024, 1, 1, tzinfo=UTC)
    )
    assert written
    assert all(isinstance(f, Fact) for f in written)
    at = datetime(2022, 6, 1, tzinfo=UTC)
    assert [f.object for f in await memory.facts(user_id="alice", at=at)] == ["Oslo"]


async def test_a_worker_does_the_jobs_in_the_background(memory):
    async with memory.worker(every=0.0):
        await memory.remember("I live in Tokyo.", user_id="alice")
        while not await memory.facts(user_id="alice"):
            await anyio.lowlevel.checkpoint()
    assert (await memory.stats(user_id="alice"))["jobs"] == 0


def test_urls_mappings_and_instances(tmp_path):
    one = open_memory({"backend": "sqlite", "path": f"{tmp_path}/x.db", "namespace": "tenant_a", "embedder": "hash"})
    assert one.namespace == "tenant_a"
    assert open_memory({"backend": "sqlite", "path": f"{tmp_path}/y.db", "durability": "fast"}).store is not None
    with pytest.raises(UsageError, match="durability"):
        open_memory({"backend": "sqlite", "path": f"{tmp_path}/y.db", "durability": "some"})
    assert Memory.open(one) is one
    for bad in ("nowhere", "sqlite:", {"backend": "inmemory", "colour": "red"}):
        with pytest.raises(UsageError):
            open_memory(bad)


def test_the_blocking_facade_works_without_a_loop_and_survives_reopening(tmp_path):
    where = f"sqlite:{tmp_path}/m.db"
    with open_memory_sync(where, embedder="hash", config=MemoryConfig()) as memory:
        memory.remember("the gate code is 4711", user_id="alice")
    with open_memory_sync(where, embedder="hash") as memory:
        assert "4711" in memory.recall("gate code", user_id="alice").hits[0].item.text
        assert len([*memory.export(user_id="alice")]) == 2
