"""Facts, recall and the options of open_memory() do what they say (defects of seed 004, loomflow 0.20.0).

Its defects 07 and 12 (prompts) are tested with sessions, 11 with agents; 08 and 14 (cost that grows with everything
stored) are measured by `benchmarks/scale.py`.
"""

import inspect
from datetime import timedelta

import pytest

from loom import Memory, Message, open_memory, open_memory_sync
from loom.core.filter import Eq
from loom.core.message import TextPart, ToolCallPart
from loom.core.record import Episode, Fact
from loom.errors import LoomError, ScopeRequired, UsageError
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["inmemory", "sqlite"])
def where(request, tmp_path):
    return "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"


@pytest.fixture
async def memory(where, clock):
    async with open_memory(where, embedder="hash", clock=clock) as opened:
        yield opened


async def objects(memory, predicate, **how):
    return sorted(f.object for f in await memory.facts(user_id="alice", predicate=predicate, **how))


async def test_facts_that_tie_are_recalled(memory):
    await memory.assert_fact("alice", "likes", "Tokyo", user_id="alice")
    await memory.assert_fact("alice", "likes", "Osaka", user_id="alice")
    hits = await memory.recall("what does alice like", user_id="alice")
    assert sorted(hit.item.object for hit in hits if isinstance(hit.item, Fact)) == ["Osaka", "Tokyo"]


async def test_superseded_facts_are_not_recalled(memory, clock):
    await memory.assert_fact("user", "lives_in", "Tokyo", user_id="alice")
    clock.advance(timedelta(days=1))
    await memory.assert_fact("user", "lives_in", "Osaka", user_id="alice")
    hits = await memory.recall("where does the user live: lives in", user_id="alice")
    assert [hit.item.object for hit in hits if isinstance(hit.item, Fact)] == ["Osaka"]
    assert set(await objects(memory, "lives_in", history=True)) == {"Osaka", "Tokyo"}


async def test_a_predicate_may_have_several_values(memory, clock):
    for language in ("English", "French", "Korean"):
        await memory.remember(f"I speak {language}.", user_id="alice")
        await memory.metabolize(user_id="alice")
        clock.advance(timedelta(days=1))
    assert await objects(memory, "speaks") == ["English", "French", "Korean"]


async def test_the_same_fact_is_one_fact_however_it_is_written(memory, clock):
    for subject, predicate in (("bob", "lives_in"), ("Bob", "lives in"), (" BOB ", "livesIn")) * 2:
        await memory.assert_fact(subject, predicate, "Paris", user_id="alice")
    assert len(await memory.facts(user_id="alice", history=True)) == 1
    clock.advance(timedelta(days=1))
    await memory.assert_fact("Bob", "lives in", "Rome", user_id="alice")
    assert await objects(memory, "lives_in") == ["Rome"]


async def test_the_user_is_one_person_by_any_name(memory, clock):
    await memory.assert_fact("user", "lives_in", "Paris", user_id="alice")
    clock.advance(timedelta(days=1))
    await memory.assert_fact("I", "lives_in", "Rome", user_id="alice")
    assert await objects(memory, "lives_in") == ["Rome"]


async def test_without_a_key_and_a_network_the_right_thing_is_recalled(where, clock, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)  # the user has none
    targets = {
        "My sister keeps a sailing boat in Yokohama.": ("the sister's sailing boat", "Where is the yacht moored?"),
        "I am allergic to peanuts.": ("peanuts allergic", "Which nuts make me ill?"),
        "The puppy is called Biscuit.": ("puppy called", "What is the name of my dog?"),
    }
    async with open_memory(where, clock=clock) as memory:
        await memory.remember(list(targets), user_id="alice")
        noise = [f"Meeting {n} was moved to room {n % 17} because of the weather." for n in range(400)]
        await memory.remember(noise, user_id="alice")
        for text, questions in targets.items():
            for question in (text, *questions):
                hits = await memory.recall(question, user_id="alice", limit=5)
                assert text in [hit.item.text for hit in hits], question


async def test_a_question_need_not_be_part_of_the_answer(memory):
    await memory.remember("The code of the harbour gate is 4711.", user_id="alice")
    await memory.remember([f"Newer note {n} about nothing." for n in range(20)], user_id="alice")
    hits = await memory.recall("what is the harbour code, please?", user_id="alice")
    assert hits.hits[0].item.text == "The code of the harbour gate is 4711."


async def test_another_embedder_is_reported(tmp_path, clock):
    path = f"sqlite:{tmp_path}/m.db"
    async with open_memory(path, embedder="hash", clock=clock) as memory:
        await memory.remember("The gate code is 4711.", user_id="alice")
    async with open_memory(path, embedder="static", clock=clock) as memory:
        found = await memory.recall("gate code", user_id="alice")
        assert [hit.item.text for hit in found] == ["The gate code is 4711."]
        assert any("loom memory reembed" in note for note in found.notes)
        kept = await memory.remember("The door code is 815.", user_id="alice")
        assert any("loom memory reembed" in note for note in kept.notes)
        await memory.reembed()
        assert (await memory.recall("gate code", user_id="alice")).notes == ()


def test_every_call_about_a_user_names_the_user():
    for name in (
        "remember",
        "recall",
        "forget",
        "promote",
        "facts",
        "assert_fact",
        "blocks",
        "stats",
        "export",
        "import_",
    ):
        parameter = inspect.signature(getattr(Memory, name)).parameters["user_id"]
        assert parameter.default is parameter.empty, name


async def test_the_kind_that_is_asked_for_is_honoured(memory):
    await memory.remember("I live in Tokyo.", user_id="alice")
    await memory.metabolize(user_id="alice")
    for kind, record in (("episode", Episode), ("fact", Fact)):
        hits = await memory.recall("Tokyo", user_id="alice", where=Eq("kind", kind))
        assert [type(hit.item) for hit in hits] == [record]


async def test_many_are_written_in_one_call_all_or_none(memory):
    done = await memory.remember([f"turn {n}" for n in range(500)], user_id="alice", session_id="s1")
    assert len(done.kept) == 500
    with pytest.raises(LoomError):
        await memory.remember(["one more", 7], user_id="alice", session_id="s1")
    assert (await memory.stats(user_id="alice"))["L1"] == 500


async def test_a_call_without_a_user_is_refused(memory):
    with pytest.raises(ScopeRequired):
        await memory.remember("to whom it may concern", user_id=None)
    for _ in range(2):
        await memory.remember("once", user_id="alice", key="k")
    assert (await memory.stats(user_id="alice"))["L1"] == 1


async def test_with_facts_false_and_namespace_are_honoured(where, clock):
    for options in ({"with_facts": False, "namespace": "tenant_a"}, {}):
        backend, _, path = where.partition(":")
        given = {"backend": backend, **({"path": path} if path else {}), "embedder": "hash", **options}
        async with open_memory(given, clock=clock) as memory:
            await memory.remember("I live in Tokyo.", user_id="alice")
            await memory.metabolize()
            assert len(await memory.facts(user_id="alice")) == (0 if options else 1)
            assert memory.namespace == options.get("namespace", "default")
            assert len((await memory.recall("Tokyo", user_id="alice")).hits) == (1 if options else 2)


async def test_options_beside_a_mapping_are_honoured(clock):
    async with open_memory({"backend": "inmemory"}, embedder="hash", with_facts=False, namespace="n", clock=clock) as m:
        await m.remember("I live in Tokyo.", user_id="alice")
        await m.metabolize()
        assert (await m.facts(user_id="alice"), m.namespace) == ((), "n")


async def test_forgetting_a_session_forgets_what_was_learnt_from_it(memory):
    await memory.remember("I live in Tokyo.", user_id="alice", session_id="s1")
    await memory.remember("I speak French.", user_id="alice", session_id="s2")
    await memory.metabolize(user_id="alice")
    await memory.forget(user_id="alice", session_id="s1")
    assert await objects(memory, "lives_in", history=True) == []
    assert await objects(memory, "speaks") == ["French"]
    assert not [line async for line in memory.export(user_id="alice") if "Tokyo" in line]


async def test_a_fact_names_the_turn_it_comes_from(memory):
    done = await memory.remember(["Nice weather.", "I live in Tokyo."], user_id="alice")
    await memory.metabolize(user_id="alice")
    (fact,) = await memory.facts(user_id="alice", predicate="lives_in")
    assert fact.sources == (done.kept[1].id,)


async def test_tool_calls_come_back_and_are_exported(memory):
    call = ToolCallPart(id="c1", name="find_gate", input={"harbour": "Yokohama"})
    message = Message(role="assistant", parts=(TextPart("I look it up."), call))
    await memory.remember([message, Message(role="assistant", parts=(call,))], user_id="alice")
    lines = [line async for line in memory.export(user_id="alice")]
    assert sum("find_gate" in line and "Yokohama" in line for line in lines) == 2


def test_a_limit_below_zero_is_refused() -> None:
    with open_memory_sync() as memory, pytest.raises(UsageError, match="limit=-1; give 0 or more"):
        memory.recall("tea?", user_id="me", limit=-1)
