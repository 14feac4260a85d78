"""Memory under forgetting, concurrent calls, failing parts and invalid input."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest
from anyio import Event, create_task_group

from loom import open_memory, open_memory_sync
from loom.core.record import Layer, Provenance
from loom.errors import UsageError
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory._write.learn_in_background import MAX_ATTEMPTS
from loom.protocols.extractor import Extraction
from loom.testing import FakeClock
from loom.traces.reader import TranscriptReader
from loom.traces.stream import JsonStream

pytestmark = pytest.mark.anyio
ALICE = {"user_id": "alice"}


@pytest.fixture(params=["inmemory", "sqlite", "composite"])
async def memory(request, tmp_path):
    file = f"sqlite:{tmp_path / 'm.db'}"
    where = {
        "inmemory": "inmemory",
        "sqlite": file,
        "composite": {"backend": "composite", "layers": {"l1": "inmemory", "l4": file}},
    }
    async with open_memory(where[request.param], embedder="hash", clock=FakeClock()) as opened:
        yield opened


async def keys_of(memory, *ids):
    found = await memory.store.search_keys(memory._scope("alice"), *ids)
    return {id: dict(by.keys) for id, by in found.items()}


# -- forgetting ---------------------------------------------------------------------------------------------


async def test_the_words_of_a_forgotten_turn_leave_the_keys_of_the_turns_around_it(memory):
    said = await memory.remember(
        ["Good morning.", "Is my code zebra42?", "Noted.", "Bye."], session_id="monday", **ALICE
    )
    first, secret, noted, bye = (e.id for e in said.kept)
    assert "zebra42" in str(await keys_of(memory, first, noted, bye))
    await memory.forget(secret, **ALICE)
    assert "zebra42" not in str(await keys_of(memory, first, noted, bye))
    assert "Noted." in (await keys_of(memory, first))[first]["around"], "the others are still neighbours"


def test_a_forgotten_record_leaves_no_byte_in_the_files(tmp_path):
    path = tmp_path / "m.db"
    memory = open_memory_sync(f"sqlite:{path}", embedder="hash")
    said = memory.remember(["Good morning.", "The code is zebra42.", "Noted."], session_id="monday", **ALICE)
    memory.metabolize(**ALICE)

    def bytes_of_all_files():
        return b"".join(file.read_bytes() for file in Path(tmp_path).iterdir()).lower()

    assert b"zebra42" in bytes_of_all_files()
    receipt = memory.forget(said.kept[1].id, **ALICE)
    assert receipt.pending == ()
    assert b"zebra42" not in bytes_of_all_files()
    memory.close()


async def test_a_record_that_cannot_be_wiped_out_yet_is_pending(tmp_path):
    path = tmp_path / "m.db"
    async with open_memory(f"sqlite:{path}", embedder="hash") as memory:
        said = await memory.remember("The code is zebra42.", **ALICE)
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchall()
        receipt = await memory.forget(said.kept[0].id, **ALICE)
        reader.execute("COMMIT")
        reader.close()
    assert receipt.removed["episode"] == 1
    assert "write-ahead log" in receipt.pending[0]


async def test_a_fact_that_two_turns_taught_outlives_one_of_them(memory):
    one = await memory.remember("I live in Oslo.", **ALICE)
    two = await memory.remember("I live in Oslo.", **ALICE)
    await memory.metabolize(**ALICE)
    await memory.forget(one.kept[0].id, **ALICE)
    (fact,) = await memory.facts(**ALICE)
    assert (fact.object, fact.sources) == ("Oslo", (two.kept[0].id,))
    await memory.forget(two.kept[0].id, **ALICE)
    assert await memory.facts(history=True, **ALICE) == ()


@pytest.mark.parametrize("how", ["turn", "fact", "session"])
async def test_what_a_forgotten_statement_had_closed_holds_again(memory, how):
    await memory.remember("I live in Tokyo.", session_id="monday", **ALICE)
    await memory.metabolize(**ALICE)
    memory._clock._clock.advance(timedelta(days=1))
    moved = await memory.remember("I moved to Berlin.", session_id="tuesday", **ALICE)
    await memory.metabolize(**ALICE)
    (berlin,) = await memory.facts(predicate="lives_in", **ALICE)
    assert berlin.object == "Berlin"
    if how == "session":
        await memory.forget(session_id="tuesday", **ALICE)
    else:
        await memory.forget(moved.kept[0].id if how == "turn" else berlin.id, **ALICE)
    assert [fact.object for fact in await memory.facts(predicate="lives_in", **ALICE)] == ["Tokyo"]
    assert "Berlin" not in {fact.object for fact in await memory.facts(history=True, **ALICE)}
    later = memory._clock._clock.advance(timedelta(days=1))
    assert [f.object for f in await memory.facts(predicate="lives_in", at=later, **ALICE)] == ["Tokyo"]


async def test_an_instruction_stands_again_when_its_contradiction_is_forgotten(memory):
    await memory.instruct("Always answer in French.", **ALICE)
    memory._clock._clock.advance(60)
    said = await memory.instruct("Never answer in French.", **ALICE)
    await memory.forget(said.episode.id, **ALICE)
    assert [item.text for item in (await memory.standing(**ALICE)).items] == ["Always answer in French"]


async def test_a_fact_is_not_the_users_word_once_only_a_tool_is_left_that_said_it(memory):
    await memory.remember({"role": "user", "content": "I'm vegan."}, **ALICE)
    await memory.metabolize(**ALICE)
    (fact,) = await memory.facts(predicate="diet", **ALICE)
    tool = (await memory.remember("The diet is vegan.", origin="tool", **ALICE)).kept[0]
    await memory.store.put(memory._scope("alice"), replace(fact, sources=(*fact.sources, tool.id)))
    assert len((await memory.standing(**ALICE)).items) == 1
    await memory.forget(fact.sources[0], **ALICE)
    (left,) = await memory.facts(predicate="diet", **ALICE)
    assert left.provenance == Provenance("derived")
    assert (await memory.standing(**ALICE)).items == ()


class SlowExtractor:
    """Reads as slowly as a model: until it is told to go on."""

    def __init__(self):
        self.reads, self.go_on = Event(), Event()

    async def extract(self, episodes):
        self.reads.set()
        await self.go_on.wait()
        return await RuleExtractor().extract(episodes)


@pytest.mark.parametrize("how", ["turn", "session"])
async def test_what_is_forgotten_while_a_model_reads_it_is_not_learnt(tmp_path, how):
    slow = SlowExtractor()
    where = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(where, embedder="hash", extractor=slow) as memory, create_task_group() as tasks:
        said = await memory.remember(
            ["I live in Tokyo. We decided to stay.", "My sister is Anna."], session_id="monday", **ALICE
        )
        tasks.start_soon(lambda: memory.metabolize(**ALICE))
        await slow.reads.wait()
        await (
            memory.forget(said.kept[0].id, **ALICE) if how == "turn" else memory.forget(session_id="monday", **ALICE)
        )
        slow.go_on.set()
    async with open_memory(where, embedder="hash") as memory:
        left = [line async for line in memory.export(**ALICE)][1:]
        assert (await memory.stats(**ALICE))["jobs"] == 0
    assert "Tokyo" not in str(left)
    assert ("Anna" in str(left)) == (how == "turn")


# -- several at once ----------------------------------------------------------------------------------------


async def test_of_facts_stated_at_once_one_holds(memory):
    async with create_task_group() as tasks:
        for city in ("Rome", "Paris", "Wien", "Bern"):
            tasks.start_soon(lambda city=city: memory.assert_fact("user", "lives_in", city, **ALICE))
    assert len(await memory.facts(predicate="lives_in", **ALICE)) == 1
    assert len({f.object for f in await memory.facts(predicate="lives_in", history=True, **ALICE)}) == 4


async def test_turns_said_at_once_have_places_of_their_own(memory):
    async with create_task_group() as tasks:
        for n in range(6):
            tasks.start_soon(lambda n=n: memory.remember(f"turn {n}", session_id="monday", **ALICE))
    places = [event.record.attributes["turn"] for event in await memory.timeline(**ALICE)]
    assert sorted(places) == [0, 1, 2, 3, 4, 5]


async def test_a_place_is_not_given_again_after_a_turn_is_forgotten(memory):
    said = await memory.remember(["one", "two", "three"], session_id="monday", **ALICE)
    await memory.forget(said.kept[0].id, **ALICE)
    (four,) = (await memory.remember("four", session_id="monday", **ALICE)).kept
    assert four.attributes["turn"] == 3


# -- jobs ---------------------------------------------------------------------------------------------------


async def test_a_job_that_fails_in_third_party_code_ends_as_a_dead_letter():
    class Broken:
        async def extract(self, episodes) -> Extraction:
            raise ConnectionError("no route")

    clock = FakeClock()
    async with open_memory("inmemory", embedder="hash", extractor=Broken(), clock=clock) as memory:
        said = await memory.remember("keep me", **ALICE)
        for _ in range(MAX_ATTEMPTS):
            done = await memory.metabolize()
            assert done.failed == ("ConnectionError: no route",)
            clock.advance(timedelta(minutes=5))
        assert (await memory.metabolize()).failed == ()
        (letter,) = (await memory.explain(said.kept[0].id, **ALICE)).given_up
        assert letter.reason == "ConnectionError", "what somebody else's error says may repeat what was said"
        assert (await memory.stats(**ALICE))["failed"] == 1


# -- recall and facts ---------------------------------------------------------------------------------------


async def test_a_single_hit_says_why_too(memory):
    await memory.assert_fact("user", "lives_in", "Tokyo", **ALICE)
    (hit,) = await memory.recall("Tokyo?", **ALICE)
    assert "bm25" in hit.why
    assert sum(hit.why.values()) == pytest.approx(hit.score)


async def test_a_large_limit_is_not_cut_to_the_pool(memory):
    await memory.remember([f"zeppelin number {n}" for n in range(230)], **ALICE)
    assert len(await memory.recall("zeppelin", limit=230, **ALICE)) == 230


async def test_facts_are_found_by_any_spelling_of_their_subject(memory):
    await memory.assert_fact("Anna Berg", "likes", "tea", **ALICE)
    assert len(await memory.facts(subject="anna  berg", **ALICE)) == 1
    assert await memory.facts(subject="Anna", **ALICE) == ()


# -- export and import --------------------------------------------------------------------------------------


async def test_importing_again_changes_nothing_and_keeps_where_things_come_from(memory):
    await memory.remember(["one boat", "two boats", "three boats"], session_id="monday", **ALICE)
    await memory.set_block("persona", "Alice sails.", trusted=True, **ALICE)
    await memory.set_block("persona", "Alice sails well.", trusted=True, **ALICE)
    lines = [line async for line in memory.export(**ALICE)]
    keys = await keys_of(memory, *[e.record.id for e in await memory.timeline(**ALICE)])
    assert len(keys) == 3
    assert all(keys.values())
    await memory.import_(lines, **ALICE)
    assert [line async for line in memory.export(**ALICE)] == lines
    await memory.forget(**ALICE)
    await memory.import_(lines, **ALICE)
    again = [line async for line in memory.export(**ALICE)]
    assert [line for line in again if '"block"' not in line] == [line for line in lines if '"block"' not in line]
    assert (await memory.blocks(**ALICE))[0].provenance == Provenance("user", trusted=True)
    assert await keys_of(memory, *keys) == keys, "what finds a turn comes back with it"


async def test_a_turn_after_an_import_has_the_next_place(memory):
    await memory.remember(["one boat", "two boats", "three boats"], session_id="monday", **ALICE)
    await memory.remember("a first turn", session_id="monday", user_id="bob")
    await memory.import_([line async for line in memory.export(**ALICE)], user_id="bob")
    (next_one,) = (await memory.remember("four boats", session_id="monday", user_id="bob")).kept
    assert next_one.attributes["turn"] == 4


# -- an embedder that breaks its laws -----------------------------------------------------------------------


@pytest.mark.parametrize("vectors", [None, [], [[float("nan")] * 4], [[0.0] * 4], [[1.0]]])
async def test_a_broken_embedder_costs_vectors_and_not_the_call(tmp_path, vectors):
    class Broken:
        identity, dimension = "broken:1", 4

        async def embed(self, texts, *, purpose):
            if vectors is None:
                raise ConnectionError("no route")
            return vectors

    for where in ("inmemory", f"sqlite:{tmp_path / 'm.db'}"):
        async with open_memory(where, embedder=Broken()) as memory:
            done = await memory.remember("a red boat", **ALICE)
            assert done.notes[0].startswith("kept without vectors")
            found = await memory.recall("boat", **ALICE)
            assert found.notes[0].startswith("searched by words only")
            assert [hit.item.text for hit in found] == ["a red boat"]


# -- bad input ----------------------------------------------------------------------------------------------


async def test_input_of_the_wrong_kind_is_refused_in_words(memory):
    said = await memory.remember("hello", **ALICE)
    for call in (
        lambda: memory.remember(None, **ALICE),
        lambda: memory.remember(5, **ALICE),
        lambda: memory.remember(b"bytes", **ALICE),
        lambda: memory.remember({"text": "x", "role": ["user"]}, **ALICE),
        lambda: memory.instruct(None, **ALICE),
        lambda: memory.recall(None, **ALICE),
        lambda: memory.recall("x", prefer="none", **ALICE),
        lambda: memory.recall("x", layers=["L1"], **ALICE),
        lambda: memory.recall("x", layers=[9], **ALICE),
        lambda: memory.promote(said.kept[0].id, to=0, **ALICE),
    ):
        with pytest.raises(UsageError):
            await call()
    assert (await memory.stats(**ALICE))["L1"] == 1
    assert (await memory.promote(said.kept[0].id, to=2, **ALICE)).layer is Layer.L2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attributes", []),
        ("sources", "abc"),
        ("accesses", 1.5),
        ("provenance", {"origin": "user", "trusted": "no"}),
    ],
)
def test_a_line_with_a_value_of_the_wrong_kind_is_refused(field, value):
    memory = open_memory_sync("inmemory", embedder="hash")
    memory.remember("hello", **ALICE)
    line = json.loads([*memory.export(**ALICE)][1])
    with pytest.raises(UsageError, match="line 1: this is not a valid episode"):
        memory.import_([json.dumps({**line, field: value})], user_id="bob")
    assert len([*memory.export(user_id="bob")]) == 1
    memory.close()


@pytest.mark.parametrize(
    "text",
    [
        '[{"mapping": 5}]',
        '[{"mapping": {"a": 5, "b": {"message": 5}}}]',
        "[5]",
        '{"message": {"role": 5, "content": "x"}}',
    ],
)
def test_a_transcript_of_another_shape_is_refused_in_words(text):
    with pytest.raises(UsageError, match="holds no conversation"):
        list(TranscriptReader().read(JsonStream([text.encode()]), "export.json"))


@pytest.mark.parametrize("time", ["1e400", "1e20", "NaN", '"soon"', "null", "[]"])
def test_a_transcript_with_an_impossible_time_is_read_without_it(time):
    line = f'{{"role": "user", "content": "hello", "timestamp": {time}}}'
    ((text,),) = [found.texts for found in TranscriptReader().read(JsonStream([line.encode()]), "talk.json")]
    assert (text.text, text.at) == ("hello", None)


def test_a_blocking_memory_can_be_closed_twice_and_then_says_that_it_is_closed():
    memory = open_memory_sync("inmemory", embedder="hash")
    memory.remember("hello", at=datetime(2026, 1, 1, tzinfo=UTC), **ALICE)
    memory.close()
    memory.close()
    with pytest.raises(UsageError, match="closed"):
        memory.recall("hello", **ALICE)
