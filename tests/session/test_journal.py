"""The journal of requests: a record of every call of a model, whose sum is what the session spent."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.agent.agent import Agent
from loom.context.context import Context
from loom.core.codec import to_bytes
from loom.core.log import Recorded
from loom.core.message import TextPart, ToolCallPart, ToolSpec, Usage
from loom.core.scope import Scope
from loom.errors import LoomError, NotFound, ProviderUnavailable, RateLimited, UsageError
from loom.protocols.model import ModelRequest, ModelResponse
from loom.session.journal import REQUEST, RequestRecord, requests_of
from loom.session.session import Session
from loom.stores import _packed as packing
from loom.stores.files import FileCheckpointStore
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore
from loom.testing.fakes import FakeClock, ScriptedModel

pytestmark = pytest.mark.anyio

SONNET = "anthropic:claude-sonnet-4-5"
LONG = "The river carries timber from the hills to the mill by the bridge. " * 120


async def no_wait(_: float) -> None:
    """Retries come at once."""


def an_answer(text: str = "ok", *, reported: dict[str, int] | None = None, **usage: int) -> ModelResponse:
    """An answer with a usage."""
    given = Usage(**{"input": 5000, "output": 7, **usage})
    return ModelResponse(parts=(TextPart(text),), stop="end", usage=given, model="claude-x", reported=reported)


def a_session(model: ScriptedModel, **options: Any) -> Session:
    return Session(model=model, sleep=no_wait, **options)


def total(records: Sequence[RequestRecord]) -> Usage:
    """The tokens of all records."""
    return sum((record.usage for record in records if record.usage is not None), Usage())


async def test_a_turn_leaves_one_record() -> None:
    clock = FakeClock()
    reported = {"read": 0, "write": 4000, "5m": 4000, "1h": 0}
    model = ScriptedModel([an_answer(cache_write=4000, reported=reported)], name=SONNET)
    session = a_session(model, instructions=LONG, clock=clock)
    reply = await session.send("Where does the river go?")
    (record,) = await session.requests()
    assert (record.turn, record.purpose, record.at) == (1, "answer", clock.now())
    assert (record.provider, record.model, record.error, record.loss) == ("anthropic", "claude-x", None, None)
    assert record.usage == session.usage == Usage(input=5000, output=7, cache_write=4000)
    assert (record.cache_read, record.cache_write, record.write_5m, record.write_1h) == (0, 4000, 4000, 0)
    assert record.cost == reply.cost
    assert (record.predicted_read, record.predicted_write) == (0, record.markers[-1].tokens)
    assert set(record.sections) == {"foundation", "convo"}
    assert [marker.ttl for marker in record.markers] == ["5m", "5m"]
    assert record.markers[0].path == "system[0]"
    assert len({marker.digest for marker in record.markers}) == 2
    assert all(len(marker.digest) == 16 for marker in record.markers)


async def test_equal_prefixes_have_equal_digests() -> None:
    session = a_session(ScriptedModel(["a", "b", "c"], name=SONNET), instructions=LONG)
    for text in ("one", "two", "three"):
        await session.send(text)
    records = await session.requests()
    assert len({record.markers[0].digest for record in records}) == 1, "the instructions stay the same"
    assert len({record.prefix for record in records}) == 3
    assert [record.predicted_read > 0 for record in records if record.predicted_read is not None] == [False, True, True]


async def test_what_is_not_reported_is_not_zero() -> None:
    model = ScriptedModel([an_answer(reported={}), an_answer(), an_answer(cache_read=50)], name=SONNET)
    session = a_session(model)
    for _ in range(3):
        await session.send("Hello.")
    records = await session.requests()
    assert [record.cache_read for record in records] == [None, None, 50]
    assert [record.write_1h for record in records] == [None, None, None]


async def test_retries_that_failed_are_records() -> None:
    errors = [RateLimited("slow down"), ProviderUnavailable("x" * 5000)]
    session = a_session(ScriptedModel([*errors, an_answer()], name=SONNET))
    await session.send("Hello.")
    first, second, third = await session.requests()
    assert (first.error, first.usage, first.cost, first.turn) == ("RateLimited: slow down", None, None, 1)
    assert second.error is not None
    assert len(second.error) < 200
    assert (third.error, third.usage) == (None, session.usage)
    assert first.prefix == second.prefix == third.prefix


async def test_a_turn_that_failed_is_recorded_with_the_next_save() -> None:
    store = MemoryCheckpointStore()
    model = ScriptedModel([UsageError("no"), "fine", UsageError("no"), "fine"], name=SONNET)
    session = a_session(model, checkpoints=store)
    with pytest.raises(UsageError):
        await session.send("Hello.")
    assert [record.error for record in await session.requests()] == ["UsageError: no"]
    assert await store.list(session.scope) == (), "calls that failed are not a conversation"
    await session.send("Hello.")
    with pytest.raises(UsageError):
        await session.send("Again.")
    assert len(session.messages) == 2
    await session.aclose()
    saved = await requests_of(store, session.scope)
    assert [record.error is None for record in saved] == [False, True, False]
    assert [record.turn for record in saved] == [1, 1, 2]


async def test_only_failures_leave_no_session() -> None:
    store = MemoryCheckpointStore()
    async with a_session(ScriptedModel([UsageError("no")]), checkpoints=store) as session:
        with pytest.raises(UsageError):
            await session.send("Hello.")
    assert await store.sessions(session.scope.for_user()) == ()


async def test_a_turn_that_is_cancelled_is_recorded() -> None:
    class Hangs(ScriptedModel):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            await anyio.sleep_forever()
            return await super().complete(request)

    session = a_session(Hangs(name=SONNET))
    with anyio.move_on_after(0):
        await session.send("Hello.")
    records = await session.requests()
    assert [record.error for record in records] in ([], ["given up before it answered"])


class Look:
    """A tool."""

    spec = ToolSpec("look", "Look.", {"type": "object"})

    async def run(self, input: Any) -> str:
        return LONG


def says(request: ModelRequest) -> str:
    """A summary where one is asked for."""
    asked = "The conversation pauses here" in request.messages[-1].text
    return "A summary: nothing was decided." if asked else "ok"


@pytest.mark.parametrize("other", [False, True], ids=["own model", "another model"])
async def test_a_summary_is_a_record(other: bool) -> None:
    summaries = ScriptedModel(lambda _: an_answer("In short: a river.", input=300), name="openai:gpt-5")
    compaction = {"strategy": "summarize", "retain": {"type": "messages", "count": 2}}
    config = {"compaction": compaction | ({"summary_model": summaries} if other else {})}
    session = a_session(ScriptedModel(says, name=SONNET), config=config)
    for _ in range(4):
        await session.send(LONG)
    assert await session.compact() is not None
    records = await session.requests()
    assert [record.purpose for record in records] == ["answer"] * 4 + ["summary"]
    assert records[-1].provider == ("openai" if other else "anthropic")
    assert records[-1].turn == 4
    assert total(records) == session.usage


async def test_a_summary_that_failed_is_a_record() -> None:
    def reply(request: ModelRequest) -> Any:
        return ProviderUnavailable("down") if says(request) != "ok" else "ok"

    config = {"compaction": {"strategy": "summarize", "retain": {"type": "messages", "count": 2}}}
    session = a_session(ScriptedModel(reply, name=SONNET), config=config)
    for _ in range(4):
        await session.send(LONG)
    with suppress(LoomError):
        await session.compact()
    failed = [record for record in await session.requests() if record.error]
    assert {record.purpose for record in failed} == {"summary"}
    assert total(await session.requests()) == session.usage


async def test_an_answer_of_another_form_is_asked_for_again() -> None:
    session = a_session(ScriptedModel(["not a number", ToolCallPart("1", "final_answer", {"value": 3})], name=SONNET))
    with suppress(LoomError):
        await session.send("How many?", output_type=int)
    assert [record.purpose for record in await session.requests()] == ["answer", "repair"]


async def test_what_an_agent_inside_a_tool_spends_is_recorded() -> None:
    inner = Agent("You know places.", model=ScriptedModel(["Paris."], name=SONNET), memory=None, name="inner")
    ask = ToolCallPart("1", "inner", {"task": "Where?"})
    store = MemoryCheckpointStore()
    outer = Agent(
        model=ScriptedModel([ask, "Done."], name=SONNET), tools=[inner.as_tool()], memory=None, checkpoints=store
    )
    result = await outer.run("Go.", session_id="s")
    records = await requests_of(store, Scope(user_id="default", session_id="s"))
    assert [record.purpose for record in records] == ["answer", "nested", "answer"]
    assert total(records) == result.usage


async def test_a_change_of_the_prompt_is_named_with_entry_and_byte() -> None:
    context = Context("c")
    context.foundation.add("Be brief. " + LONG)
    read = {"read": 5000, "write": 10}
    model = ScriptedModel([an_answer(cache_read=5000, reported=read) for _ in range(3)], name=SONNET)
    session = a_session(model, context=context)
    await session.send("one")
    await session.send("two")
    context.foundation.clear()
    context.foundation.add("Be long. " + LONG)
    await session.send("three")
    first, second, third = await session.requests()
    assert (first.loss, second.loss) == (None, None)
    assert third.loss is not None
    assert third.loss.cause.startswith("block_")
    assert (third.loss.path, third.loss.tokens > 1000) == ("system[0]", True)
    assert "foundation" in third.loss.entry
    assert third.loss.byte is not None


@pytest.mark.parametrize(("idle", "cause"), [(10, "unexplained"), (3601, "expired")])
async def test_reads_that_are_missing_have_a_cause(idle: int, cause: str) -> None:
    clock = FakeClock()
    answers = [an_answer(reported={"read": 0, "write": 4000}), an_answer(reported={"read": 0, "write": 4000})]
    session = a_session(ScriptedModel(answers, name=SONNET), instructions=LONG, clock=clock)
    await session.send("one")
    clock.advance(idle)
    await session.send("two")
    _, second = await session.requests()
    assert second.loss is not None
    assert second.loss.cause == cause
    assert second.loss.tokens == second.predicted_read


async def test_a_record_is_small() -> None:
    """With every field as long as it gets, in the bytes that a store keeps."""
    store = MemoryCheckpointStore()
    context = Context("c" * 200)
    context.foundation.add("Be brief. " + LONG)
    reported = dict.fromkeys(("read", "write", "5m", "1h"), 10**9)
    answer = an_answer(input=10**10, output=10**9, cache_read=10**9, cache_write=10**9, reported=reported)
    named = ModelResponse(parts=answer.parts, stop="end", usage=answer.usage, model="m" * 500, reported=reported)
    session = a_session(
        ScriptedModel([named, ProviderUnavailable("e" * 9000), named], name="anthropic:" + "n" * 300),
        context=context,
        tools=[Look()],
        checkpoints=store,
    )
    await session.send("one")
    context.foundation.clear()
    context.foundation.add("Be long. " + LONG)
    await session.send("two")
    entries = await store.recorded(session.scope, kind=REQUEST)
    assert len(entries) == 3
    assert all(len(to_bytes(entry.body)) <= 1024 for entry in entries)


async def test_bodies_are_kept_where_that_is_asked_for() -> None:
    store = MemoryCheckpointStore()
    model = ScriptedModel(lambda _: "ok", name=SONNET)
    given: dict[str, Any] = {"checkpoints": store, "session_id": "s", "config": {"keep_requests": True}}
    session = a_session(model, instructions=LONG, **given)
    for n in range(12):
        await session.send(f"{n} {LONG}")
    await session.aclose()
    again = a_session(model, instructions=LONG, **given)
    await again.restore()
    await again.send("and on")
    sent = [json.loads(json.dumps(request.rendered.body)) for request in model.requests if request.rendered]
    records = await again.requests()
    assert [await again.request_body(record.id) for record in records] == sent
    kept = sum(len(to_bytes(entry.body)) for entry in await store.recorded(again.scope, kind="loom.request.body"))
    assert kept < sum(len(to_bytes(body)) for body in sent[-2:]) * 2, "each message once, and all again after restoring"
    with pytest.raises(NotFound, match="was not kept"):
        await again.request_body("nothing")


async def test_bodies_are_not_kept_otherwise() -> None:
    store = MemoryCheckpointStore()
    session = a_session(ScriptedModel(["ok"]), checkpoints=store)
    await session.send("Hello.")
    assert {entry.kind for entry in await store.recorded(session.scope)} == {REQUEST}
    with pytest.raises(NotFound):
        await session.request_body((await session.requests())[0].id)
    with pytest.raises(UsageError):
        a_session(ScriptedModel(["ok"]), config={"keep_requests": "yes"})


async def test_records_follow_the_log() -> None:
    store = MemoryCheckpointStore()
    session = a_session(ScriptedModel(lambda _: "ok", name=SONNET), checkpoints=store, session_id="s")
    for n in range(4):
        await session.send(f"turn {n}")
    fork = await session.fork(at=2, session_id="f")
    await fork.send("other")
    assert [record.turn for record in await fork.requests()] == [1, 2, 3]
    await session.rewind(1)
    assert [record.turn for record in await session.requests()] == [1]
    assert total(await session.requests()) == session.usage
    await session.send("again")
    assert [record.turn for record in await session.requests()] == [1, 2]
    again = a_session(ScriptedModel(lambda _: "ok"), checkpoints=store, session_id="s")
    await again.restore()
    assert await again.requests() == await session.requests() == await requests_of(store, session.scope)


async def test_no_message_is_read_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryCheckpointStore()
    session = a_session(ScriptedModel(lambda _: "ok"), checkpoints=store)
    for n in range(5):
        await session.send(f"turn {n}")
    read: list[Any] = []
    real: Callable[[Any], Any] = packing.part_from_dict
    monkeypatch.setattr(packing, "part_from_dict", lambda data: read.append(data) or real(data))
    assert len(await requests_of(store, session.scope)) == 5
    assert read == []


async def test_loading_reads_no_body_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryCheckpointStore()
    session = a_session(ScriptedModel(lambda _: "ok"), checkpoints=store, session_id="s")
    await session.send("Hello.")
    again = a_session(ScriptedModel(lambda _: "ok"), checkpoints=store, session_id="s")
    read: list[Any] = []
    real: Callable[[Any], Any] = packing.from_bytes
    monkeypatch.setattr(packing, "from_bytes", lambda data: read.append(data) or real(data))
    await again.restore()
    assert read == []
    assert [type(entry) for entry in again._history.log].count(Recorded) == 1


@pytest.mark.parametrize("kind", ["files", "sqlite"])
async def test_erasure_leaves_no_record(kind: str, tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path / "s") if kind == "files" else SqliteCheckpointStore(tmp_path / "s.db")
    async with store:
        answer = ModelResponse(parts=(TextPart("ok"),), stop="end", usage=Usage(input=1), model="canary-model")
        model = ScriptedModel([ProviderUnavailable("canary-error"), answer, answer], name="anthropic:canary-name")
        session = a_session(model, checkpoints=store, session_id="s", config={"keep_requests": True})
        await session.send("canary-text")
        other = a_session(ScriptedModel(["ok"]), checkpoints=store, session_id="other")
        await other.send("Hello.")

        def stored() -> bytes:
            return b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

        for canary in (b"canary-model", b"canary-error", b"canary-name", b"canary-text"):
            assert canary in stored()
        await store.forget(session.scope)
        assert b"canary" not in stored()
        assert len(await requests_of(store, other.scope)) == 1


# The law: the sum of all records is the usage of the session, whatever happens.

STEPS = st.lists(
    st.sampled_from(["send", "tool", "retry", "fail", "long", "compact", "undo", "fork", "rewind", "restore"]),
    min_size=1,
    max_size=8,
)


async def run_steps(steps: Sequence[str], seed: int) -> None:
    chance = random.Random(seed)
    queue: list[Any] = []

    def reply(request: ModelRequest) -> Any:
        if chance.random() < 0.1:
            return RateLimited("slow down")
        if queue:
            return queue.pop(0)
        read = chance.randrange(3) * 10
        usage = Usage(input=chance.randrange(40, 9000), output=chance.randrange(9), cache_read=read)
        return ModelResponse(parts=(TextPart(says(request)),), stop="end", usage=usage, model="m")

    model = ScriptedModel(reply, name=SONNET, context_window=12_000)
    compaction = {"strategy": chance.choice(["summarize", "truncate", "hierarchical"])}
    compaction["trigger"] = {"type": "messages", "threshold": 8}  # pyright: ignore[reportArgumentType]
    store = MemoryCheckpointStore()
    given: dict[str, Any] = {"checkpoints": store, "tools": [Look()], "config": {"compaction": compaction}}
    session = a_session(model, session_id="s0", **given)
    for number, step in enumerate(steps, 1):
        queue.clear()
        queue.extend({"tool": [ToolCallPart("1", "look", {})], "retry": [RateLimited("x"), ProviderUnavailable("y")],
                      "fail": [UsageError("no")]}.get(step, []))  # fmt: skip
        with suppress(LoomError):
            match step:
                case "compact":
                    await session.compact()
                case "undo":
                    await session.undo()
                case "fork":
                    session = await session.fork(session_id=f"s{number}")
                case "rewind":
                    await session.rewind(chance.randrange(session.turn + 1))
                case "restore":
                    await session.aclose()
                    session = a_session(model, session_id=session.id, **given)
                    await session.restore()
                case _:
                    await session.send("Hello. " + (LONG if step == "long" else ""))
        assert total(await session.requests()) == session.usage, (steps, number)
    for saved in await store.sessions(session.scope.for_user()):
        scope = session.scope.for_user().for_session(saved.session_id)
        for checkpoint in await store.list(scope):
            assert total(await requests_of(store, scope, checkpoint.id)) == checkpoint.usage


@settings(max_examples=1000, deadline=None)
@given(STEPS, st.integers(0, 2**32))
def test_the_sum_of_all_records_is_the_usage_of_the_session(steps: list[str], seed: int) -> None:
    anyio.run(run_steps, steps, seed)
