"""What a session guarantees where others are known to fail: lost requests, orphaned calls, silent compaction.

The guarantees of the strategies themselves are in `test_compaction_guarantees.py`, prompts in `tests/context/test_prompt.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loom import FileCheckpointStore, MemoryCheckpointStore, Session, ToolSpec
from loom.core.log import CompactionEnd, CompactionStart, ContextPressure, Event
from loom.core.message import JSON, ThinkingPart, ToolCallPart
from loom.core.scope import Scope
from loom.errors import BadResponse, ProviderError, RateLimited
from loom.protocols.model import ModelRequest
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio

STORY = "Here is a long story about it, with many words. "
ASKS = "The conversation pauses here"


class Read:
    """A tool with a large answer."""

    spec = ToolSpec("read", "Reads a file.", {"type": "object"})

    async def run(self, input: JSON) -> str:
        return STORY * 30


def heard(session: Session) -> list[Event]:
    events: list[Event] = []
    session.subscribe(events.append)
    return events


def asks(request: ModelRequest) -> bool:
    return ASKS in request.messages[-1].text


# -- seed 001, 2.3 -------------------------------------------------------------------------------------------


async def test_6_a_chat_without_tools_and_the_final_answer_are_saved_and_turns_count_on() -> None:
    store = MemoryCheckpointStore()
    session = Session(model=ScriptedModel(["a", ToolCallPart("1", "read", {}), "b"]), tools=[Read()], checkpoints=store)
    await session.send("no tools")
    await session.send("with tools")
    saved = await store.list(session.scope)
    assert [c.turn for c in saved] == [2, 1, 1, 1], "two turns, the second saved before and after its tools as well"
    records = await session.requests()
    assert len(await store.history(session.scope, saved[0].id)) == len(session.log) + len(records) == 6 + 3
    assert saved[0].usage == session.usage


async def test_7_a_saved_checkpoint_does_not_grow_by_itself() -> None:
    store = MemoryCheckpointStore()
    session = Session(model=ScriptedModel(lambda _: "ok"), checkpoints=store)
    await session.send("one")
    first = (await store.list(session.scope))[0]
    before = await store.history(session.scope, first.id)
    await session.send("two")
    assert await store.history(session.scope, first.id) == before


async def test_8_ids_that_look_alike_as_file_names_do_not_share_a_file(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path)
    for name in ("a:b", "a_b", "A_b", "../a_b", "a/b"):
        session = Session(model=ScriptedModel([f"I am {name}"]), checkpoints=store, session_id=name)
        await session.send("who?")
    listed = {c.session_id for c in await store.list(Scope(user_id="default"))}
    assert listed == {"a:b", "a_b", "A_b", "../a_b", "a/b"}
    for name in listed:
        other = Session(model=ScriptedModel(), checkpoints=store, session_id=name)
        await other.restore()
        assert other.messages[-1].text == f"I am {name}"


async def test_10_clearing_tool_results_lowers_the_measured_usage_in_the_same_turn() -> None:
    calls = iter(range(1000))
    model = ScriptedModel(
        lambda r: "done" if next(calls) > 60 else ToolCallPart(f"c{next(calls)}", "read", {}), context_window=8_000
    )
    session = Session(model=model, tools=[Read()])
    events = heard(session)
    await session.send("read it all")
    first = next(e for e in events if isinstance(e, CompactionEnd) and e.undo)
    assert first.strategy == "clear_tools"
    assert first.tokens_after < first.tokens_before
    sizes = [e.usage.input for e in events if e.type == "cache.status" and e.seq > first.seq]
    assert sizes[0] < first.tokens_before, "the very next request is smaller"


async def test_11_the_first_estimate_counts_system_and_tools() -> None:
    model = ScriptedModel(["ok"], context_window=4_000)
    session = Session(model=model, instructions=STORY * 300, tools=[Read()])
    events = heard(session)
    await session.send("hi")
    pressure = [e for e in events if isinstance(e, ContextPressure)]
    assert pressure, "85% full, and nobody said so"
    assert pressure[0].seq < next(e.seq for e in events if e.type == "cache.status")
    assert pressure[0].tokens > 2_500


async def test_12_a_summary_request_does_not_lower_the_measured_usage() -> None:
    model = ScriptedModel(lambda r: "Summary." if asks(r) else "ok")
    session = Session(model=model)
    for n in range(8):
        await session.send(f"{n} {STORY * 25}")
    before = session.explain().tokens
    done = await session.compact()
    await session.undo(done.id)
    assert session.explain().tokens == before


async def test_16_what_is_shown_for_one_turn_only_never_stands_before_a_marker() -> None:
    from loom import open_memory

    memory = open_memory("inmemory", embedder="hash")
    await memory.remember("The dog is called Rex.", user_id="default")
    model = ScriptedModel(lambda _: "ok", name="anthropic:claude-sonnet-4-5")
    session = Session(model=model, memory=memory, instructions=STORY * 100)
    session.context.attention.add("Remember: be kind.")
    for n in range(3):
        await session.send(f"What is the dog called? {n}")
    assert len(model.requests) == 3
    for request in model.requests:
        assert request.rendered
        blocks = [block for message in request.rendered.body["messages"] for block in message["content"]]
        marked = max(n for n, block in enumerate(blocks) if "cache_control" in block)
        behind = {n for n, block in enumerate(blocks) if "<memory>" in block["text"] or "be kind" in block["text"]}
        assert min(behind) > marked


async def test_18_compaction_start_comes_before_the_work() -> None:
    order: list[str] = []

    def reply(request: ModelRequest) -> str:
        if asks(request):
            order.append("work")
            return "Summary."
        return "ok"

    session = Session(model=ScriptedModel(reply))
    for n in range(8):
        await session.send(f"{n} {STORY * 25}")
    session.subscribe(lambda e: order.append(e.type) if e.type.startswith("compaction") else None)
    await session.compact()
    assert order == ["compaction.start", "work", "compaction.end"]


# -- what users complain about --------------------------------------------------------------------------------


async def test_no_death_spiral_a_prompt_that_stays_full_is_not_compacted_again_and_again() -> None:
    model = ScriptedModel(lambda r: "Summary." if asks(r) else "ok", context_window=4_000)
    session = Session(model=model, instructions=STORY * 300)
    events = heard(session)
    for n in range(15):
        await session.send(f"question {n}")
    starts = [e for e in events if isinstance(e, CompactionStart)]
    assert len(starts) <= 4
    assert session.turn == 15


async def test_a_summary_request_that_overflows_is_asked_in_steps_or_left_to_truncation() -> None:
    def reply(request: ModelRequest) -> Any:
        return "Summary." if asks(request) else "ok"

    model = ScriptedModel(reply, context_window=100_000)
    session = Session(model=model)
    for n in range(20):
        await session.send(f"{n} {STORY * 20}")
    model.context_window = 2_000  # from now on the history itself is larger than the window
    events = heard(session)
    assert (await session.send("and now?")).text == "ok"
    assert any(isinstance(e, CompactionEnd) and e.undo for e in events)


async def test_a_rate_limit_in_the_middle_of_a_compaction_destroys_nothing(tmp_path: Path) -> None:
    def reply(request: ModelRequest) -> str:
        if asks(request):
            raise RateLimited("later")
        return "ok"

    store = FileCheckpointStore(tmp_path)
    config = {"compaction": {"strategy": "summarize"}}
    session = Session(model=ScriptedModel(reply), config=config, checkpoints=store, session_id="s")
    for n in range(10):
        await session.send(f"{n} {STORY * 25}")
    said = [m.message for m in session.log]
    done = await session.compact()
    assert done.strategy == "truncate"
    other = Session(model=ScriptedModel(), checkpoints=store, session_id="s")
    await other.restore()
    assert [m.message for m in other.log] == said
    await other.undo()
    assert list(other.messages) == said


async def test_an_orphan_never_bricks_a_session_that_stopped_inside_a_tool_round() -> None:
    model = ScriptedModel([ToolCallPart("a", "read", {}), "recovered"])
    session = Session(model=model, tools=[Read()])
    events = aiter(session.send("go"))
    async for event in events:
        if event.type == "tool.start":
            break
    await events.aclose()  # type: ignore[attr-defined]
    assert (await session.send("go on")).text == "recovered"
    last = json.dumps(model.requests[-1].rendered.body) if model.requests[-1].rendered else ""
    assert "No result was recorded" in last


async def test_signed_thinking_is_not_replayed_behind_a_rewritten_prefix() -> None:
    def reply(request: ModelRequest) -> Any:
        if asks(request):
            return "Summary."
        return (ThinkingPart("hm", signature="c2ln"), ToolCallPart(f"c{len(request.messages)}", "read", {}))

    config = {"max_steps": 6}
    model = ScriptedModel(reply, name="anthropic:claude-opus-5-5")
    session = Session(model=model, tools=[Read()], config=config)
    await session.send("go")
    await session.compact()
    await session.send("on")
    request = model.requests[-6].rendered
    assert request
    first_edit = next(
        n
        for n, m in enumerate(request.body["messages"])
        if "no longer shown" in json.dumps(m) or "cleared" in json.dumps(m)
    )
    kinds = [b["type"] for m in request.body["messages"][first_edit:-1] for b in m["content"]]
    assert "thinking" not in kinds


@pytest.mark.parametrize("empty", ["", "   ", "\n"])
async def test_a_summary_that_was_never_made_is_not_shown_as_one(empty: str) -> None:
    model = ScriptedModel(lambda r: empty if asks(r) else "ok")
    session = Session(model=model)
    for n in range(10):
        await session.send(f"{n} {STORY * 25}")
    assert (await session.compact()).strategy == "truncate"


async def test_an_error_other_than_an_overflow_compacts_nothing() -> None:
    model = ScriptedModel(lambda _: "ok")
    session = Session(model=model)
    for n in range(6):
        await session.send(f"{n}")
    shown = session.messages
    for error in (BadResponse("400"), ProviderError("prompt")):
        model._script = lambda _, error=error: error
        with pytest.raises(ProviderError):
            await session.send("hi")
        assert session.messages == shown
        assert session.compactions == ()


async def test_summaries_do_not_pile_up_and_a_stale_one_never_wins() -> None:
    count = iter(range(100))
    model = ScriptedModel(lambda r: f"Summary number {next(count)}." if asks(r) else "ok")
    session = Session(model=model)
    for round in range(4):
        for n in range(8):
            await session.send(f"{round}.{n} {STORY * 25}")
        await session.compact()
    shown = " ".join(m.text for m in session.messages)
    assert shown.count("Summary number") == 1
    assert "Summary number 3" in shown


async def test_a_request_is_not_carried_out_again_after_the_boundary() -> None:
    model = ScriptedModel(lambda r: "Summary: the file was deleted." if asks(r) else "ok")
    session = Session(model=model)
    await session.send("delete the file notes.txt")
    for n in range(8):
        await session.send(f"{n} {STORY * 25}")
    await session.compact()
    assert "Do not carry out again what it says was asked" in session.messages[0].text
    assert "delete the file" not in " ".join(m.text for m in session.messages[1:])


async def test_rules_are_not_lost_they_stand_in_the_foundation_and_pins_stay() -> None:
    model = ScriptedModel(lambda r: "Summary." if asks(r) else "ok")
    session = Session(model=model, instructions="Never delete a file.")
    await session.send("Rule: always answer in French.")
    session.pin(session.shown[0].id)
    for n in range(8):
        await session.send(f"{n} {STORY * 25}")
    await session.compact()
    await session.send("so?")
    assert model.requests[-1].system == ("Never delete a file.",)
    assert "always answer in French" in model.requests[-1].messages[0].text


async def test_a_pass_costs_one_cache_reset() -> None:
    calls = iter(range(1000))
    model = ScriptedModel(
        lambda r: (
            "Summary." if asks(r) else "done" if next(calls) > 120 else ToolCallPart(f"c{next(calls)}", "read", {})
        ),
        name="anthropic:claude-sonnet-4-5",
        context_window=12_000,
    )
    session = Session(model=model, tools=[Read()], instructions=STORY * 120)
    events = heard(session)
    await session.send("read it all")
    passes = len([e for e in events if isinstance(e, CompactionEnd) and e.undo])
    broke = [e for e in events if e.type == "cache.status" and e.broke_at]
    assert 0 < len(broke) <= passes


async def test_it_triggers_also_where_the_window_is_not_in_any_list() -> None:
    model = ScriptedModel(lambda r: "Summary." if asks(r) else "ok", name="somebody:unheard-of", context_window=3_000)
    session = Session(model=model)
    events = heard(session)
    for n in range(40):
        await session.send(f"{n} {STORY * 10}")
    assert any(isinstance(e, CompactionEnd) and e.undo for e in events)


async def test_the_store_does_not_grow_with_the_square_of_the_session(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path)
    session = Session(model=ScriptedModel(lambda r: f"{len(r.messages):05}" * 200), checkpoints=store)
    sizes: list[int] = []
    for n in range(60):
        await session.send(f"{n:05}" * 200)
        sizes.append(_size_of(tmp_path))
    payload = sum(len(m.message.text) for m in session.log)
    assert sizes[-1] < 2.5 * payload
    assert sizes[-1] - sizes[30] < 1.2 * (sizes[30] - sizes[0])


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
