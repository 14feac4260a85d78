"""The seed's way back: load a session by its id, read it, and go on with it in any session."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest

from loom import Message, Scope, Session, SessionState, TextPart, ThinkingPart, Usage
from loom.errors import LoomError, NotFound, ScopeRequired, StoreConflict, UsageError
from loom.stores.checkpoints import BaseCheckpointStore
from loom.stores.files.checkpoints import FileCheckpointStore
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.stores.sqlite.checkpoints import SqliteCheckpointStore
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "files", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    kinds = {
        "memory": MemoryCheckpointStore,
        "files": lambda: FileCheckpointStore(tmp_path / "checkpoints"),
        "sqlite": lambda: SqliteCheckpointStore(tmp_path / "sessions.db"),
    }
    opened = kinds[request.param]()
    yield opened
    await opened.aclose()


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: f"answer {len(request.messages)}")


def session(store: BaseCheckpointStore, id: str | None = None, **options: Any) -> Session:
    return Session(model=model(), checkpoints=store, session_id=id, **options)


async def test_a_session_id_is_a_scope_of_the_default_user(store: BaseCheckpointStore) -> None:
    first = session(store, "s1")
    await first.send("hello")
    await first.send("and again")
    await session(store, "s2").send("hi")
    await session(store, "s1", user_id="alice").send("mine")
    found = await store.load("s1")
    assert found is not None
    assert found.messages == first.messages
    assert (found.session_id, found.turn_index, found.usage) == ("s1", 2, first.usage)
    assert found.timestamp == found.at
    assert found == await store.load(Scope(user_id="default", session_id="s1"))
    assert [(c.session_id, c.turn) for c in await store.list()] == [("s2", 1), ("s1", 2)]
    assert [c.session_id for c in await store.list(limit=1)] == ["s2"]
    assert [c.turn for c in await store.list("s1")] == [2, 1]
    assert await store.load("never saved") is None
    assert len(await store.history("s1", found.id)) == 6, "four messages, and a record of each call"
    assert await store.delete("s1") is True
    assert await store.delete("s1") is False
    assert await store.load("s1") is None
    assert await store.load(Scope(user_id="alice", session_id="s1")) is not None


async def test_what_is_not_possible_says_so(store: BaseCheckpointStore) -> None:
    await session(store, "s1").send("hello")
    cheap = await store.load(Scope(user_id="default", session_id="s1"))
    assert cheap is not None
    with pytest.raises(UsageError, match=r"store.load\('s1'\)"):
        _ = cheap.messages
    with pytest.raises(ScopeRequired):
        await store.load("")
    with pytest.raises(ScopeRequired):
        await store.delete(Scope(user_id="default"))
    with pytest.raises(UsageError, match="give a Scope"):
        await store.load(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="restore"):
        await session(store).restore(5)  # type: ignore[arg-type]


async def test_the_messages_of_a_checkpoint_are_those_that_were_shown(store: BaseCheckpointStore) -> None:
    first = session(store, "s1", config={"compaction": {"strategy": "truncate"}})
    for n in range(8):
        await first.send(f"question {n} " + "word " * 50)
    await first.compact()
    found = await store.load("s1")
    assert found is not None
    assert found.messages == first.messages
    assert len(found.messages) < len(first.log)


async def test_the_mapping_of_the_seed(store: BaseCheckpointStore) -> None:
    before = session(store, "s1")
    await before.send("my name is Ada")
    found = await store.load("s1")
    assert found is not None
    after = session(MemoryCheckpointStore())
    saved = await after.restore(
        SessionState(
            session_id=found.session_id,
            messages=found.messages,
            turn_count=found.turn_index,
            total_usage={**asdict(found.usage), "model": "scripted:model"},
            created_at=found.timestamp,
            updated_at=found.timestamp,
        )
    )
    assert (after.messages, after.turn, after.usage) == (before.messages, 1, before.usage)
    assert saved.id == after.head
    assert {m.at for m in after.log} == {found.timestamp}
    reply = await after.send("what is my name?")
    assert (reply.turn, after.turn) == (2, 2)
    assert [m.role for m in after.messages] == ["user", "assistant"] * 2


async def test_a_session_that_is_restored_to_its_own_state_keeps_its_log(store: BaseCheckpointStore) -> None:
    before = session(store, "s1", config={"compaction": {"strategy": "truncate"}})
    for n in range(8):
        await before.send(f"question {n} " + "word " * 50)
    await before.compact()
    found = await store.load("s1")
    assert found is not None
    after = session(store, "s1")
    assert await after.restore(SessionState.of(found)) == found
    assert after.log == before.log
    await after.undo()
    assert len(after.messages) == 16
    other = SessionState(session_id="s1", messages=found.messages[:2])
    with pytest.raises(StoreConflict, match="other messages"):
        await session(store, "s1").restore(other)


async def test_a_conversation_from_elsewhere_as_a_mapping_or_a_checkpoint(store: BaseCheckpointStore) -> None:
    talk = [Message.user("hello"), Message.assistant("hi")]
    first = session(store, "new")
    await first.restore({"session_id": "from a file", "messages": talk, "turn_count": 1})
    assert first.messages == tuple(talk)
    again = session(store, "new")
    await again.restore()
    assert (again.messages, again.turn) == (tuple(talk), 1)
    with pytest.raises(NotFound):
        await again.rewind(0 + 5)
    other = session(store, "copy")
    loaded = await store.load("new")
    assert loaded is not None
    await other.restore(loaded)
    assert other.messages == tuple(talk)
    with pytest.raises(StoreConflict):
        await session(store, "new").restore({"session_id": "another", "messages": talk})


async def test_a_running_session_may_become_another(store: BaseCheckpointStore) -> None:
    first = session(store, "s1")
    await first.send("hello")
    earlier = await first.checkpoint()
    await first.restore(SessionState(session_id="x", messages=[Message.user("moin"), Message.assistant("moin moin")]))
    await first.send("go on")
    assert [m.text for m in first.messages][:2] == ["moin", "moin moin"]
    await first.restore(earlier)
    assert first.messages[0].text == "hello", "what came before stays loadable"


async def test_thinking_from_elsewhere_is_not_sent_to_a_model_that_binds_it() -> None:
    scripted = ScriptedModel(["ok"], name="anthropic:claude-opus-4-7")
    after = Session(model=scripted)
    thought = Message("assistant", (ThinkingPart("hm", signature="sig"), TextPart("hi")))
    await after.restore(SessionState(session_id="x", messages=[Message.user("hello"), thought]))
    await after.send("go on")
    assert after.messages[1] == thought
    sent = scripted.requests[0].messages[1]
    bound = after._parts.model.binds_thinking
    assert any(isinstance(p, ThinkingPart) for p in sent.parts) is not bound


@pytest.mark.parametrize(
    "state",
    [
        {"messages": []},
        {"session_id": "x"},
        {"session_id": "x", "messages": [], "turnCount": 1},
        {"session_id": "x", "messages": ["hello"]},
        {"session_id": "x", "messages": "hello"},
        {"session_id": "x", "messages": [], "turn_count": -1},
        {"session_id": "x", "messages": [], "turn_count": True},
        {"session_id": "x", "messages": [], "total_usage": {"tokens": 5}},
        {"session_id": "x", "messages": [], "total_usage": {"input": -5}},
        {"session_id": "x", "messages": [], "total_usage": 5},
        {"session_id": "x", "messages": [], "updated_at": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"session_id": "x", "messages": [], "updated_at": "yesterday"},
        {"session_id": "x", "messages": [{"role": "wizard", "content": "hello"}]},
        {"session_id": "x", "messages": [{"content": "hello"}]},
        {"session_id": "", "messages": []},
    ],
)
async def test_a_state_that_cannot_be_is_refused_and_nothing_changes(state: dict[str, Any]) -> None:
    first = session(MemoryCheckpointStore(), "s1")
    await first.send("hello")
    before = first.messages
    with pytest.raises(LoomError):
        await first.restore(state)
    assert first.messages == before


async def test_a_state_may_be_what_a_file_of_another_program_holds(store: BaseCheckpointStore) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    text = json.dumps(
        {
            "session_id": "theirs",
            "messages": [
                {"role": "user", "content": "my name is Ada"},
                {"role": "assistant", "content": [{"type": "text", "text": "hello Ada"}]},
                {"role": "user", "content": "look it up"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "found"},
                {"role": "assistant", "content": "it is there"},
            ],
            "turn_count": 2,
            "created_at": "2026-01-31T08:00:00Z",
            "updated_at": "2026-01-31T09:00:00+01:00",
        }
    )
    after = session(store, "mine")
    await after.restore(json.loads(text))
    assert [m.role for m in after.messages] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert {m.at for m in after.log} == {datetime(2026, 1, 31, 8, tzinfo=UTC)}
    reply = await after.send("what is my name?")
    assert (reply.turn, after.messages[0].text) == (3, "my name is Ada")


def test_a_state_is_a_value() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    messages = [Message.user("hello")]
    state = SessionState(session_id="s", messages=messages, total_usage=Usage(input=5), created_at=at)
    messages.append(Message.user("later"))
    assert len(state.messages) == 1
    assert state.usage.input == 5
