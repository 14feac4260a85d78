"""Single records: get, list, update, upsert, promote of many."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest

from loom import open_memory, open_memory_sync
from loom.core.filter import Eq
from loom.core.record import Episode, Layer
from loom.core.scope import Scope
from loom.errors import NotFound, StaleWrite, UsageError
from loom.protocols.memory_store import ExportsKeys
from loom.testing.fakes import FakeClock

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 5, 12, 12, tzinfo=UTC)


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path):
    where = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/memory.db"
    async with open_memory(where, embedder="hash", clock=FakeClock(NOON)) as made:
        yield made


async def kept(memory, *texts, **more):
    done = await memory.remember(list(texts), user_id="alice", **more)
    return [record.id for record in done.kept]


async def listed(memory, **how):
    return [record async for record in memory.list(user_id="alice", **how)]


async def test_get_gives_the_record_or_none(memory):
    (id,) = await kept(memory, "Green tea is brewed at eighty degrees.")
    assert (await memory.get(id, user_id="alice")).text == "Green tea is brewed at eighty degrees."
    assert await memory.get(id, user_id="bob") is None
    assert await memory.get("unknown", user_id="alice") is None
    block = await memory.set_block("persona", "Calm.", user_id="alice")
    assert await memory.get(block.id, user_id="alice") == block


async def test_list_goes_through_everything_by_pages_and_filters(memory):
    await kept(memory, *(f"note {n}" for n in range(620)), session_id="s1", attributes={"topic": "notes"})
    tea, coffee = await kept(memory, "green tea", "black coffee", attributes={"topic": "drinks", "n": 1})
    await memory.assert_fact("user", "lives_in", "Paris", user_id="alice")
    stated = await memory.assert_fact("user", "lives_in", "Rome", user_id="alice")
    (fact,) = [fact for fact in stated if fact.object == "Rome"]
    await memory.set_block("persona", "Calm.", user_id="alice")
    await memory.remember("other user", user_id="bob")
    assert len(await listed(memory, archived=True)) >= 625
    assert len(await listed(memory, kind="episode")) == 622
    believed = await listed(memory, kind="fact")
    assert fact.id in {record.id for record in believed}
    assert all(record.superseded_at is None for record in believed)
    assert len(await listed(memory, kind="fact", archived=True)) >= 2
    assert [record.text for record in await listed(memory, kind="block")] == ["Calm."]
    assert len(await listed(memory, kind="episode", session_id="s1")) == 620
    for where in ({"topic": "drinks"}, {"topic": ("drinks", "food"), "n": 1}, Eq("meta.topic", "drinks")):
        assert {record.id for record in await listed(memory, where=where)} == {tea, coffee}
    await memory.promote(tea, user_id="alice")
    assert [record.id for record in await listed(memory, layer=Layer.L2)] == [tea]
    assert len(await listed(memory, layer=[Layer.L1, Layer.L2])) == 622
    assert len(await listed(memory, limit=7)) == 7


@pytest.mark.parametrize(
    "bad", [{"kind": "passage"}, {"limit": 0}, {"layer": 9}, {"where": {"n": {"$gt": 1}}}], ids=str
)
async def test_a_list_that_cannot_be_meant_is_refused(memory, bad):
    with pytest.raises(UsageError):
        await listed(memory, **bad)


async def test_archived_records_are_listed_when_asked_for(memory):
    (id,) = await kept(memory, "an old note")
    record = await memory.get(id, user_id="alice")
    await memory.store.put(Scope(user_id="alice"), replace(record, archived_at=NOON))
    assert await listed(memory, kind="episode") == []
    assert [r.id for r in await listed(memory, kind="episode", archived=True)] == [id]


async def test_update_replaces_text_keys_and_vector_and_keeps_the_id(memory):
    first, middle, last = await kept(memory, "Where is it?", "The zebra is in the garden.", "Good.", session_id="s1")
    old = await memory.get(middle, user_id="alice")
    done = await memory.update(middle, user_id="alice", text="The giraffe is in the kitchen.", importance=0.7)
    (new,) = done.kept
    assert not any("without vectors" in note for note in done.notes)
    assert (new.id, new.text, new.importance) == (middle, "The giraffe is in the kitchen.", 0.7)
    assert (new.at, new.speaker, new.session_id, new.layer) == (old.at, old.speaker, old.session_id, old.layer)
    assert new.attributes == old.attributes
    assert await memory.get(middle, user_id="alice") == new
    assert [hit.item.id for hit in await memory.recall("giraffe kitchen", user_id="alice", limit=1)] == [middle]
    assert "zebra" not in "\n".join([line async for line in memory.export(user_id="alice")])
    if isinstance(memory.store, ExportsKeys):
        found = await memory.store.search_keys(Scope(user_id="alice"), first, middle, last)
        assert all("zebra" not in text for by in found.values() for text in by.keys.values())
        assert "giraffe" in found[first].keys["around"]
        (vector,) = await memory._embedder.embed([new.text], purpose="document")
        assert list(found[middle].vector) == pytest.approx(list(vector), abs=1e-3)


async def test_update_of_importance_and_attributes_leaves_the_text(memory):
    (id,) = await kept(memory, "green tea", attributes={"topic": "drinks", "n": 1})
    epoch = await memory.epoch(user_id="alice")
    await memory.update(id, user_id="alice", importance=0.9, attributes={"topic": "tea", "n": None, "m": 2})
    record = await memory.get(id, user_id="alice")
    assert (record.text, record.importance, dict(record.attributes)) == ("green tea", 0.9, {"topic": "tea", "m": 2})
    assert await memory.epoch(user_id="alice") == epoch
    await memory.update(id, user_id="alice", text="black tea")
    assert await memory.epoch(user_id="alice") != epoch


async def test_what_was_learnt_from_the_old_text_goes_and_the_new_text_is_learnt_from(memory):
    (id,) = await kept(memory, "I live in Paris.")
    await memory.metabolize(user_id="alice")
    assert [fact.object for fact in await memory.facts(user_id="alice")] == ["Paris"]
    await memory.update(id, user_id="alice", text="I live in Rome.")
    assert await memory.facts(user_id="alice", history=True) == ()
    await memory.metabolize(user_id="alice")
    assert [fact.object for fact in await memory.facts(user_id="alice")] == ["Rome"]
    assert "Paris" not in "\n".join([line async for line in memory.export(user_id="alice")])


async def test_what_the_old_text_had_retired_holds_again(memory):
    await kept(memory, "I live in Oslo.")
    await memory.metabolize(user_id="alice")
    (id,) = await kept(memory, "I live in Paris now.")
    await memory.metabolize(user_id="alice")
    assert [fact.object for fact in await memory.facts(user_id="alice")] == ["Paris"]
    await memory.update(id, user_id="alice", text="It rained.")
    assert [fact.object for fact in await memory.facts(user_id="alice")] == ["Oslo"]


async def test_what_was_prepared_from_the_old_text_is_not_written(memory):
    (id,) = await kept(memory, "The code is 1234.")
    epoch = await memory.epoch(user_id="alice")
    await memory.update(id, user_id="alice", text="The code is secret.")
    with pytest.raises(StaleWrite):
        await memory.remember("summary: the code is 1234", user_id="alice", since=epoch)


async def test_an_update_that_cannot_be_meant_is_refused(memory):
    (id,) = await kept(memory, "green tea")
    with pytest.raises(NotFound, match="unknown"):
        await memory.update("unknown", user_id="alice", text="x")
    with pytest.raises(NotFound):
        await memory.update(id, user_id="bob", text="x")
    with pytest.raises(UsageError, match="nothing to change"):
        await memory.update(id, user_id="alice")
    for text in (" ", "x" * 1_000_001):
        with pytest.raises(UsageError, match="cannot be stored"):
            await memory.update(id, user_id="alice", text=text)
    with pytest.raises(UsageError):
        await memory.update(id, user_id="alice", importance=2.0)
    (fact,) = await memory.assert_fact("user", "lives_in", "Paris", user_id="alice")
    with pytest.raises(UsageError, match=r"assert_fact\(\)"):
        await memory.update(fact.id, user_id="alice", text="x")
    block = await memory.set_block("persona", "Calm.", user_id="alice")
    with pytest.raises(UsageError, match="set_block"):
        await memory.update(block.id, user_id="alice", text="x")
    assert (await memory.get(id, user_id="alice")).text == "green tea"


async def test_remember_under_a_key_says_when_another_text_is_there(memory):
    await memory.remember("I drink tea.", user_id="alice", key="drink")
    same = await memory.remember("I drink tea.", user_id="alice", key="drink")
    other = await memory.remember("I drink coffee.", user_id="alice", key="drink")
    assert [skip.reason for skip in same.skipped] == ["remembered before under this key"]
    assert [(skip.text, skip.reason) for skip in other.skipped] == [
        ("I drink coffee.", "another text is kept under this key, and stays; upsert() replaces it")
    ]
    assert [record.text for record in other.kept] == ["I drink tea."]


async def test_upsert_keeps_one_text_under_a_key(memory):
    (first,) = (await memory.upsert("I live in Paris.", key="home", user_id="alice")).kept
    await memory.metabolize(user_id="alice")
    await memory.promote(first.id, user_id="alice", to=Layer.L4)
    (second,) = (
        await memory.upsert(
            "I live in Rome.", key="home", user_id="alice", importance=0.5, attributes={"topic": "home"}
        )
    ).kept
    assert (second.id, second.text, second.layer, second.importance) == (first.id, "I live in Rome.", Layer.L4, 0.5)
    assert second.attributes["topic"] == "home"
    await memory.metabolize(user_id="alice")
    assert [fact.object for fact in await memory.facts(user_id="alice", history=True)] == ["Rome"]
    assert "Paris" not in "\n".join([line async for line in memory.export(user_id="alice")])
    again = await memory.upsert("I live in Rome.", key="home", user_id="alice", importance=0.5)
    assert [record.id for record in again.kept] == [first.id]
    assert [fact.object for fact in await memory.facts(user_id="alice")] == ["Rome"]
    await memory.forget(first.id, user_id="alice")
    (third,) = (await memory.upsert("I live in Bern.", key="home", user_id="alice")).kept
    assert (third.id, third.text) == (first.id, "I live in Bern.")
    with pytest.raises(UsageError, match="given 2"):
        await memory.upsert(["one", "two"], key="home", user_id="alice")


async def test_upsert_in_a_session_keeps_its_place(memory):
    await kept(memory, "first", session_id="s1")
    (turn,) = (await memory.upsert("second", key="k", user_id="alice", session_id="s1")).kept
    await kept(memory, "third", session_id="s1")
    (new,) = (await memory.upsert("second again", key="k", user_id="alice", session_id="s1")).kept
    assert (new.id, new.attributes["turn"]) == (turn.id, turn.attributes["turn"])
    events = await memory.timeline(user_id="alice", session_id="s1")
    assert {event.record.text for event in events.events} == {"first", "second again", "third"}


async def test_two_that_upsert_at_once_leave_one_text_and_its_facts(tmp_path):
    where = f"sqlite:{tmp_path}/memory.db"
    async with open_memory(where, embedder="hash") as one, open_memory(where, embedder="hash") as other:
        for number in range(6):
            key = f"home{number}"

            async def write(memory, town, key=key):
                await memory.upsert(f"I live in {town}.", key=key, user_id=key)
                await memory.metabolize(user_id=key)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, one, "Oslo")
                tasks.start_soon(write, other, "Bergen")
            await one.metabolize(user_id=key)
            (record,) = [r async for r in other.list(user_id=key, kind="episode", archived=True) if not r.sources]
            town = record.text.removeprefix("I live in ").removesuffix(".")
            assert [fact.object for fact in await one.facts(user_id=key, history=True)] == [town]


async def test_two_that_update_at_once_leave_the_vector_of_the_text_that_stays(tmp_path):
    where = f"sqlite:{tmp_path}/memory.db"
    async with open_memory(where, embedder="hash") as one, open_memory(where, embedder="hash") as other:
        (record,) = (await one.remember("nothing yet", user_id="alice")).kept
        for number in range(6):
            async with anyio.create_task_group() as tasks:
                for memory, animal in ((one, "zebra"), (other, "giraffe")):
                    text = f"The {animal} has the number {number}."
                    tasks.start_soon(lambda m=memory, t=text: m.update(record.id, user_id="alice", text=t))
            found = await one.get(record.id, user_id="alice")
            by = (await one.store.search_keys(Scope(user_id="alice"), record.id))[record.id]
            (vector,) = await one._embedder.embed([found.text], purpose="document")
            assert list(by.vector) == pytest.approx(list(vector), abs=1e-3)


async def test_an_update_never_brings_back_what_another_forgot(tmp_path):
    where = f"sqlite:{tmp_path}/memory.db"
    async with open_memory(where, embedder="hash") as one, open_memory(where, embedder="hash") as other:
        for number in range(8):
            (record,) = (await one.remember(f"note {number}", user_id="alice")).kept

            async def change(id=record.id):
                with suppress(NotFound):
                    await one.update(id, user_id="alice", text="changed")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(change)
                tasks.start_soon(lambda id=record.id: other.forget(id, user_id="alice"))
            assert await one.get(record.id, user_id="alice") is None


async def test_promote_moves_many_or_none(memory):
    ids = await kept(memory, "one", "two", "three")
    moved = await memory.promote(*ids, user_id="alice")
    assert [(episode.id, episode.layer) for episode in moved] == [(id, Layer.L2) for id in ids]
    with pytest.raises(NotFound, match="none was moved"):
        await memory.promote(ids[0], "unknown", user_id="alice")
    assert [(await memory.get(id, user_id="alice")).layer for id in ids] == [Layer.L2] * 3
    one = await memory.promote(ids[0], user_id="alice", to=Layer.L4)
    assert isinstance(one, Episode)
    assert one.layer is Layer.L4
    with pytest.raises(UsageError, match="no id"):
        await memory.promote(user_id="alice")


def test_the_blocking_memory_has_the_same_calls(tmp_path):
    with open_memory_sync(f"sqlite:{tmp_path}/memory.db", embedder="hash") as memory:
        (record,) = memory.upsert("green tea", key="drink", user_id="alice").kept
        assert memory.get(record.id, user_id="alice").text == "green tea"
        memory.update(record.id, user_id="alice", text="black tea")
        assert [r.text for r in memory.list(user_id="alice", kind="episode")] == ["black tea"]
        assert memory.promote(record.id, user_id="alice").layer is Layer.L2


async def test_filters_may_be_mappings_in_recall_and_timeline(memory):
    await kept(memory, "green tea from Uji", attributes={"topic": "drinks"})
    await kept(memory, "green paint for the wall", attributes={"topic": "house"})
    found = await memory.recall("green", user_id="alice", where={"topic": "drinks"})
    assert [hit.item.text for hit in found] == ["green tea from Uji"]
    found = await memory.recall("green", user_id="alice", where={"topic": ["drinks", "house"], "kind": "episode"})
    assert len(found) == 2
    events = await memory.timeline(user_id="alice", where={"topic": "house"})
    assert [event.record.text for event in events.events] == ["green paint for the wall"]
    with pytest.raises(UsageError, match="not a filter"):
        await memory.recall("green", user_id="alice", where="drinks")


async def test_hits_below_the_least_score_are_left_out(memory):
    await kept(memory, "green tea from Uji", "the piano is in Zurich", "tea towels", "a walk in the rain")
    every = await memory.recall("green tea", user_id="alice")
    scores = [hit.score for hit in every]
    assert len(set(scores)) > 1
    least = (scores[1] + scores[2]) / 2
    best = await memory.recall("green tea", user_id="alice", min_score=least)
    assert [hit.item.id for hit in best] == [hit.item.id for hit in every if hit.score >= least]
    for bad in ("high", float("nan")):
        with pytest.raises(UsageError, match="min_score"):
            await memory.recall("green tea", user_id="alice", min_score=bad)
    none = await memory.recall("green tea", user_id="alice", min_score=1e9)
    assert (len(none), none.searched) == (0, 4)


async def test_the_only_record_says_why_it_was_found(memory):
    await kept(memory, "green tea from Uji")
    (hit,) = await memory.recall("green tea", user_id="alice")
    assert hit.why["bm25"] > 0
    assert hit.score == pytest.approx(sum(hit.why.values()))
    assert hit.score > 0


TASK = {
    "task_id": "task_123",
    "action": "file_read",
    "parameters": {"path": "/data/file.txt"},
    "result": "File content: the quarterly numbers",
}


async def test_a_task_is_kept_as_text_and_found_by_its_id_and_action(memory):
    (record,) = (await memory.remember(TASK, user_id="alice")).kept
    assert record.text == "Read file /data/file.txt\nResult: File content: the quarterly numbers"
    assert (record.attributes["task_id"], record.attributes["action"]) == ("task_123", "file_read")
    assert (record.provenance.origin, record.provenance.trusted, record.speaker) == ("tool", False, "tool")
    (hit,) = await memory.recall("quarterly numbers", user_id="alice", where={"task_id": "task_123"})
    assert hit.item.id == record.id


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"action": "send_mail", "parameters": {"to": "anna", "copies": 2}}, "Send mail to=anna, copies=2"),
        ({"action": "deploy", "result": {"ok": True}}, 'Deploy\nResult: {"ok": true}'),
        ({"action": "db.query", "parameters": "select 1", "error": "timeout"}, "Query db select 1\nError: timeout"),
        ({"action": "think", "parameters": {}, "result": ""}, "Think"),
    ],
)
async def test_tasks_of_any_form_become_readable(memory, task, text):
    (record,) = (await memory.remember(task, user_id="alice")).kept
    assert record.text == text


async def test_a_task_has_its_own_time_and_no_other_fields(memory):
    (record,) = (await memory.remember({**TASK, "created_at": "2026-01-02T03:04:05+00:00"}, user_id="alice")).kept
    assert record.at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for bad in ({"action": 3}, {"action": ""}, {"action": "x", "task_id": 7}):
        with pytest.raises(UsageError, match="of a task"):
            await memory.remember(bad, user_id="alice")
